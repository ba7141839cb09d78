//! The memory of one rank, seen from this process: a file without a name, mapped once for good.

use std::{
    os::fd::{AsRawFd, OwnedFd},
    ptr::NonNull,
    sync::atomic::{AtomicU32, AtomicU64, Ordering},
    time::Duration,
};

use nix::{
    errno::Errno,
    fcntl::{FallocateFlags, FcntlArg, OFlag, SealFlag, fallocate, fcntl, open},
    libc,
    sys::{
        memfd::{MFdFlags, memfd_create},
        mman::{MapFlags, MmapAdvise, ProtFlags, madvise, mmap, munmap},
        stat::{Mode, fchmod, fstat},
    },
};

pub(super) const PAGE: usize = 4096;
/// The least address space worth having.
const LEAST_SPAN: usize = 1 << 28;

/// A file in memory and the address range that it is mapped to. The range is longer than the file, so that the file
/// grows and its bytes stay where they are; bytes behind the end must not be touched.
#[derive(Debug)]
pub(super) struct Mapping {
    file: OwnedFd,
    start: NonNull<u8>,
    span: usize,
    /// Bytes of the file that are known to exist. It never shrinks: it is sealed.
    known: AtomicU64,
}

// SAFETY: the range is plain memory that stays mapped for the life of the value; who may touch which bytes when is the
// protocol's matter, see the module.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// A new file of `len` bytes in a range of at most `span`.
    pub(super) fn create(len: usize, span: usize) -> Result<Self, String> {
        let said = |what: &str| {
            let what = what.to_owned();
            move |error: Errno| format!("{what}: {error}")
        };
        let flags = MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING;
        let file = memfd_create(c"burn-nccl", flags).map_err(said("memfd_create"))?;
        fchmod(&file, Mode::S_IRUSR | Mode::S_IWUSR).map_err(said("fchmod"))?;
        fcntl(&file, FcntlArg::F_ADD_SEALS(SealFlag::F_SEAL_SHRINK)).map_err(said("seal"))?;
        let mapping = Self::map(file, span)?;
        mapping.grow(len).map_err(|error| format!("{len} bytes of shared memory: {error}"))?;
        Ok(mapping)
    }

    /// The file that another process holds open as `fd`.
    pub(super) fn open(pid: u32, fd: i32, span: usize) -> Result<Self, String> {
        let path = format!("/proc/{pid}/fd/{fd}");
        let flags = OFlag::O_RDWR | OFlag::O_CLOEXEC;
        let file = open(path.as_str(), flags, Mode::empty()).map_err(|error| format!("{path}: {error}"))?;
        let seals = fcntl(&file, FcntlArg::F_GET_SEALS).unwrap_or(0);
        if !SealFlag::from_bits_truncate(seals).contains(SealFlag::F_SEAL_SHRINK) {
            return Err(format!("{path} is no sealed memory file"));
        }
        Self::map(file, span)
    }

    fn map(file: OwnedFd, span: usize) -> Result<Self, String> {
        let mut span = span.next_multiple_of(PAGE);
        loop {
            let length = span.try_into().map_err(|_| "no address space".to_owned())?;
            let protection = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
            let flags = MapFlags::MAP_SHARED | MapFlags::MAP_NORESERVE;
            // SAFETY: a new range at an address of the system's choice.
            match unsafe { mmap(None, length, protection, flags, &file, 0) } {
                Ok(start) => {
                    // Huge pages where the system gives them on request; an empty range in core dumps would be noise.
                    for advice in [MmapAdvise::MADV_HUGEPAGE, MmapAdvise::MADV_DONTDUMP] {
                        // SAFETY: the range was just mapped; neither advice changes its contents.
                        let _ = unsafe { madvise(start, span, advice) };
                    }
                    let mapping = Self { file, start: start.cast(), span, known: AtomicU64::new(0) };
                    mapping.look_at_length();
                    return Ok(mapping);
                }
                // A limit of the address space (`ulimit -v`) leaves room for less.
                Err(Errno::ENOMEM) if span > LEAST_SPAN => span /= 2,
                Err(error) => return Err(format!("mmap of {span} bytes: {error}")),
            }
        }
    }

    pub(super) fn fd(&self) -> i32 {
        self.file.as_raw_fd()
    }

    pub(super) fn span(&self) -> usize {
        self.span
    }

    /// Makes the file at least `len` bytes long, with memory behind all of them: a lack of it is an error here and not
    /// a signal later.
    pub(super) fn grow(&self, len: usize) -> Result<(), Errno> {
        let len = len.next_multiple_of(PAGE);
        if len > self.span {
            return Err(Errno::ENOMEM);
        }
        let known = self.known.load(Ordering::Acquire) as usize;
        if len > known {
            let (start, more) = (known as libc::off_t, (len - known) as libc::off_t);
            loop {
                match fallocate(&self.file, FallocateFlags::empty(), start, more) {
                    Ok(()) => break,
                    Err(Errno::EINTR) => {}
                    Err(error) => return Err(error),
                }
            }
            self.known.fetch_max(len as u64, Ordering::AcqRel);
        }
        Ok(())
    }

    fn look_at_length(&self) -> usize {
        let len = fstat(&self.file).map_or(0, |stat| stat.st_size.max(0) as u64).min(self.span as u64);
        self.known.fetch_max(len, Ordering::AcqRel).max(len) as usize
    }

    /// Whether the file has these bytes, wherever the numbers come from.
    pub(super) fn has(&self, offset: u64, len: u64) -> bool {
        let Some(end) = offset.checked_add(len) else { return false };
        end <= self.known.load(Ordering::Acquire) || end <= self.look_at_length() as u64
    }

    /// The address of `len` bytes at `offset`.
    ///
    /// # Panics
    ///
    /// If the file has no such bytes.
    pub(super) fn at(&self, offset: usize, len: usize) -> *mut u8 {
        assert!(self.has(offset as u64, len as u64), "{len} bytes at {offset} of a shorter segment");
        // SAFETY: within the range, as was just checked.
        unsafe { self.start.as_ptr().add(offset) }
    }

    /// Where in the file `len` bytes at `address` lie, if they do.
    pub(super) fn offset_of(&self, address: *const u8, len: usize) -> Option<usize> {
        let offset = (address as usize).checked_sub(self.start.as_ptr() as usize)?;
        (offset < self.span && self.has(offset as u64, len as u64)).then_some(offset)
    }

    /// A word that several processes use.
    pub(super) fn word(&self, offset: usize) -> &AtomicU64 {
        assert!(offset.is_multiple_of(8));
        // SAFETY: eight bytes that exist, aligned, and used by everybody as an atomic only.
        unsafe { AtomicU64::from_ptr(self.at(offset, 8).cast()) }
    }

    /// A word that threads sleep on.
    pub(super) fn futex(&self, offset: usize) -> &AtomicU32 {
        assert!(offset.is_multiple_of(4));
        // SAFETY: four bytes that exist, aligned, and used by everybody as an atomic only.
        unsafe { AtomicU32::from_ptr(self.at(offset, 4).cast()) }
    }

    /// Fills the page table for these bytes in one go, which costs a fraction of a fault for each page.
    pub(super) fn populate(&self, offset: usize, len: usize) {
        let (first, end) = (offset / PAGE * PAGE, (offset + len).next_multiple_of(PAGE));
        let start = NonNull::new(self.at(first, end - first)).expect("a mapping is not at address 0");
        // SAFETY: the bytes exist; writing the pages in leaves their contents as they are. Where it fails, they come
        // one by one.
        let _ = unsafe { madvise(start.cast(), end - first, MmapAdvise::MADV_POPULATE_WRITE) };
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the range was mapped by this value, and whoever uses it holds the value.
        let _ = unsafe { munmap(self.start.cast(), self.span) };
    }
}

/// Sleeps until the word is woken, is not `value`, or the time has passed. May wake for no reason.
pub(super) fn sleep(word: &AtomicU32, value: u32, at_most: Duration) {
    let time = libc::timespec {
        tv_sec: at_most.as_secs() as libc::time_t,
        tv_nsec: at_most.subsec_nanos() as libc::c_long,
    };
    // SAFETY: the word and the time live through the call. Other processes sleep on the word too, so it is no private
    // futex.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAIT, value, &raw const time) };
}

/// Wakes whoever sleeps on the word.
pub(super) fn wake(word: &AtomicU32) {
    // SAFETY: the word lives through the call.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAKE, i32::MAX) };
}
