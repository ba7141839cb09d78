//! NCCL's functions, with result codes as numbers: a newer NCCL has codes that no list knows.

use std::{
    ffi::{CStr, c_char, c_int, c_uint, c_void},
    path::PathBuf,
    sync::Arc,
};

use super::{
    built_for,
    candidates::Libraries,
    library::{Library, functions},
    refused::Refused,
};
use crate::device_error::DeviceError;

/// The oldest NCCL that takes a [`Config`] and can finalize.
const OLDEST: Version = Version(21700);
/// The newest that this was written for.
const NEWEST: Version = Version(23099);

const REMEDY: &str = "install it (apt install libnccl2 from NVIDIA's repository, or pip install nvidia-nccl-cu12), name \
                      the file with BURN_NCCL_LIBRARY, or set BURN_NCCL_DEVICE_TRANSPORT=host to go through host memory";

pub(super) const SUCCESS: i32 = 0;
pub(super) const SYSTEM_ERROR: i32 = 2;
pub(super) const REMOTE_ERROR: i32 = 6;
pub(super) const IN_PROGRESS: i32 = 7;

/// `ncclUniqueId`, which NCCL takes by value.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub(super) struct UniqueId(pub(super) [u8; 128]);

/// `ncclConfig_t` as NCCL 2.18 has it. Versions compare `size` with their own and take what both know: 2.17's has 40 bytes,
/// without `split_share`; newer ones take their defaults for the rest.
#[repr(C)]
pub(super) struct Config {
    size: usize,
    magic: c_uint,
    version: c_uint,
    blocking: c_int,
    cga_cluster_size: c_int,
    min_ctas: c_int,
    max_ctas: c_int,
    net_name: *const c_char,
    split_share: c_int,
}

const _: () = assert!(size_of::<Config>() == 48, "the layout of NCCL 2.18");

impl Config {
    /// Calls return at once, and their end is asked for.
    pub(super) const NON_BLOCKING: Self = {
        // `NCCL_CONFIG_UNDEF_INT`: NCCL's own choice.
        const UNDEFINED: c_int = c_int::MIN;
        Self {
            size: size_of::<Self>(),
            magic: 0xcafe_beef,
            version: OLDEST.0 as c_uint,
            blocking: 0,
            cga_cluster_size: UNDEFINED,
            min_ctas: UNDEFINED,
            max_ctas: UNDEFINED,
            net_name: std::ptr::null(),
            split_share: UNDEFINED,
        }
    };
}

functions! {
    /// The functions, as `nccl.h` declares them.
    Functions {
        get_unique_id: ncclGetUniqueId(*mut UniqueId) -> c_int;
        comm_init_rank_config: ncclCommInitRankConfig(*mut *mut c_void, c_int, UniqueId, c_int, *const Config) -> c_int;
        comm_get_async_error: ncclCommGetAsyncError(*mut c_void, *mut c_int) -> c_int;
        comm_finalize: ncclCommFinalize(*mut c_void) -> c_int;
        comm_destroy: ncclCommDestroy(*mut c_void) -> c_int;
        comm_abort: ncclCommAbort(*mut c_void) -> c_int;
        all_reduce: ncclAllReduce(*const c_void, *mut c_void, usize, c_int, c_int, *mut c_void, *mut c_void) -> c_int;
        broadcast: ncclBroadcast(*const c_void, *mut c_void, usize, c_int, c_int, *mut c_void, *mut c_void) -> c_int;
        all_gather: ncclAllGather(*const c_void, *mut c_void, usize, c_int, *mut c_void, *mut c_void) -> c_int;
        reduce_scatter:
            ncclReduceScatter(*const c_void, *mut c_void, usize, c_int, c_int, *mut c_void, *mut c_void) -> c_int;
        send: ncclSend(*const c_void, usize, c_int, c_int, *mut c_void, *mut c_void) -> c_int;
        recv: ncclRecv(*mut c_void, usize, c_int, c_int, *mut c_void, *mut c_void) -> c_int;
        group_start: ncclGroupStart() -> c_int;
        group_end: ncclGroupEnd() -> c_int;
        get_error_string: ncclGetErrorString(c_int) -> *const c_char;
        } {
        get_last_error: ncclGetLastError(*mut c_void) -> *const c_char;
    }
}

/// A version of NCCL, as `ncclGetVersion` gives it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Version(pub(super) i32);

impl std::fmt::Display for Version {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Up to 2.8 the minor version had one digit less.
        let minor_at = if self.0 < 10_000 { 1000 } else { 10_000 };
        write!(f, "{}.{}.{}", self.0 / minor_at, self.0 % minor_at / 100, self.0 % 100)
    }
}

/// NCCL, loaded.
#[derive(Debug)]
pub(super) struct Api {
    pub(super) functions: Functions,
    pub(super) version: Version,
    /// The file it was loaded from.
    pub(super) path: PathBuf,
}

impl Api {
    /// Loads NCCL.
    ///
    /// # Errors
    ///
    /// [`DeviceError::LibraryMissing`], [`DeviceError::NcclTooOld`], [`DeviceError::SymbolMissing`].
    pub(super) fn load(libraries: &Libraries) -> Result<Arc<Self>, DeviceError> {
        let (candidates, notes) = libraries.nccl();
        let library = Library::open("NCCL", &candidates, notes, REMEDY)?;
        // SAFETY: the type is that of the declaration in `nccl.h`.
        let get_version: unsafe extern "C" fn(*mut c_int) -> c_int =
            unsafe { library.required("ncclGetVersion") }?;
        let path = library.path("ncclGetVersion");
        let mut version = Version(0);
        // SAFETY: the result is a local.
        let code = unsafe { get_version(&mut version.0) };
        if code != SUCCESS {
            let text = name_of(code).to_owned();
            return Err(DeviceError::Nccl { action: "ncclGetVersion".into(), code, text });
        }
        // Before the functions: an old library lacks some of them, and that is the reason.
        if version < OLDEST {
            return Err(DeviceError::NcclTooOld {
                found: version.to_string(),
                oldest: "2.17".into(),
                path: path.display().to_string(),
            });
        }
        if version > NEWEST {
            log::debug!("NCCL {version} is newer than the newest that this was written for, {NEWEST}");
        }
        Ok(Arc::new(Self { functions: Functions::find(&library)?, version, path }))
    }

    /// The CUDA that the library was built for, if it says so.
    pub(super) fn built_for(&self) -> Option<built_for::Cuda> {
        built_for::read(&self.path)
    }

    /// What a code means. An operation that is in progress is under way, which is no error.
    ///
    /// # Errors
    ///
    /// Any other code but success.
    pub(super) fn check(&self, code: i32, call: &'static str, action: &'static str) -> Result<(), Refused> {
        match code {
            SUCCESS | IN_PROGRESS => Ok(()),
            code => Err(Refused::Nccl { call, action, code, text: self.text_of(code) }),
        }
    }

    /// NCCL's words for a code, and for what went wrong last.
    fn text_of(&self, code: i32) -> String {
        // SAFETY: any number may be asked about.
        let general = text(unsafe { (self.functions.get_error_string)(code) });
        // SAFETY: the argument is not used, as `nccl.h` says.
        let last = self.functions.get_last_error.map(|last| text(unsafe { last(std::ptr::null_mut()) }));
        let parts = [name_of(code).to_owned(), general, last.unwrap_or_default()];
        parts.into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join(": ")
    }

    /// Makes the id by which the ranks of one communicator find each other.
    ///
    /// # Errors
    ///
    /// NCCL finds no network, for example.
    pub(super) fn unique_id(&self) -> Result<UniqueId, Refused> {
        let mut id = UniqueId([0; 128]);
        // SAFETY: the result is a local of the declared size.
        let code = unsafe { (self.functions.get_unique_id)(&mut id) };
        self.check(code, "ncclGetUniqueId", "make an id for its communicator").map(|()| id)
    }
}

/// The text behind a pointer of NCCL.
fn text(pointer: *const c_char) -> String {
    if pointer.is_null() {
        return String::new();
    }
    // SAFETY: NCCL's texts are constants, or a buffer that it keeps, and end with a zero.
    unsafe { CStr::from_ptr(pointer) }.to_string_lossy().trim().to_owned()
}

/// The name of a code in `nccl.h`.
pub(super) fn name_of(code: i32) -> &'static str {
    const NAMES: [&str; 9] = [
        "ncclSuccess",
        "ncclUnhandledCudaError",
        "ncclSystemError",
        "ncclInternalError",
        "ncclInvalidArgument",
        "ncclInvalidUsage",
        "ncclRemoteError",
        "ncclInProgress",
        "ncclTimeout",
    ];
    usize::try_from(code).ok().and_then(|code| NAMES.get(code)).copied().unwrap_or("a code of a newer NCCL")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn version_numbers_read_as_nccl_writes_them() {
        for (number, text) in
            [(21703, "2.17.3"), (22707, "2.27.7"), (23007, "2.30.7"), (2804, "2.8.4"), (20900, "2.9.0")]
        {
            assert_eq!(Version(number).to_string(), text);
        }
        assert!(Version(2804) < OLDEST && Version(21602) < OLDEST && Version(21701) >= OLDEST);
        assert!(Version(23007) < NEWEST && Version(23100) > NEWEST);
    }

    #[test]
    fn codes_that_no_header_has_yet_have_no_name_and_no_claim() {
        assert_eq!(name_of(6), "ncclRemoteError");
        assert_eq!(name_of(8), "ncclTimeout");
        assert_eq!([name_of(9), name_of(99), name_of(-1)], ["a code of a newer NCCL"; 3]);
    }
}
