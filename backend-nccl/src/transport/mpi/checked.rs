//! MPI's calls, raw to checked: one thread at a time, every return code looked at.

use std::{
    ffi::{c_char, c_int, c_void},
    fmt, ptr,
    sync::{Mutex, MutexGuard, PoisonError},
};

use mpi::ffi::{self, MPI_Comm, MPI_Request, MPI_Status};

/// What MPI says of a call that it could not do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Fault {
    /// What was tried, for a sentence: `receive from rank 2`.
    pub(crate) action: String,
    /// MPI's error class, 0 where the fault is not MPI's own.
    pub(crate) class: i32,
    /// MPI's words.
    pub(crate) text: String,
}

impl Fault {
    /// A fault that is not MPI's own.
    pub(super) fn ours(action: &str, text: impl Into<String>) -> Self {
        Self { action: action.to_owned(), class: 0, text: text.into() }
    }

    fn of(action: String, code: c_int) -> Self {
        let mut class: c_int = 0;
        let mut text = [0u8; ffi::MPI_MAX_ERROR_STRING as usize + 1];
        let mut length: c_int = 0;
        // SAFETY: both calls write to locals that are as large as MPI asks for, and are allowed from any state.
        let told = unsafe {
            ffi::MPI_Error_class(code, &mut class) == SUCCESS
                && ffi::MPI_Error_string(code, text.as_mut_ptr().cast::<c_char>(), &mut length) == SUCCESS
        };
        let length = usize::try_from(length).unwrap_or(0).min(text.len());
        let text =
            if told { String::from_utf8_lossy(&text[..length]).into_owned() } else { format!("code {code}") };
        Self { action, class, text }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "could not {}: {}", self.action, self.text)?;
        if self.class == 0 { Ok(()) } else { write!(f, " (error class {})", self.class) }
    }
}

const SUCCESS: c_int = ffi::MPI_SUCCESS as c_int;

/// Turns a return code into a result; `action` names the call for the message.
pub(super) fn check(code: c_int, action: impl FnOnce() -> String) -> Result<(), Fault> {
    if code == SUCCESS { Ok(()) } else { Err(Fault::of(action(), code)) }
}

/// Whether MPI is over. The lock is the turn of the one thread that may be inside of MPI.
static OVER: Mutex<bool> = Mutex::new(false);

/// The right to call MPI.
///
/// MPI need not be able to run two calls at once (MPI_THREAD_SERIALIZED is all that is asked for), and no call may follow
/// MPI_Finalize. Calls under a turn are short: none of them blocks.
pub(super) struct Turn(MutexGuard<'static, bool>);

impl Turn {
    /// Waits for the turn.
    pub(super) fn wait(action: &str) -> Result<Self, Fault> {
        let over = OVER.lock().unwrap_or_else(PoisonError::into_inner);
        if *over { Err(Fault::ours(action, "MPI has been finalized")) } else { Ok(Self(over)) }
    }

    /// Ends MPI. Blocks until the other ranks do the same, and every later turn is refused.
    pub(super) fn finalize(mut self) -> Result<(), Fault> {
        *self.0 = true;
        // SAFETY: MPI was initialized by this thread, nothing is under way, and no call follows.
        check(unsafe { ffi::MPI_Finalize() }, || "finalize".into())
    }
}

/// The one copy of `MPI_COMM_WORLD` on which all groups of this process run.
#[derive(Clone, Copy, Debug)]
pub(super) struct Comm(pub(super) MPI_Comm);

// SAFETY: a handle that lives as long as MPI does; MPI's calls take it from any thread, one at a time.
unsafe impl Send for Comm {}
// SAFETY: as above.
unsafe impl Sync for Comm {}

impl Comm {
    /// Starts to send.
    ///
    /// # Safety
    ///
    /// `bytes` stay where they are, unchanged, until the request is complete.
    pub(super) unsafe fn send(
        self,
        _: &Turn,
        bytes: &[u8],
        to: c_int,
        tag: c_int,
    ) -> Result<MPI_Request, Fault> {
        let action = || format!("send to rank {to} of MPI's world");
        let (count, mut request) = (count(bytes.len(), action)?, null_request());
        // SAFETY: the caller keeps the bytes; the handles are MPI's own.
        let code = unsafe {
            ffi::MPI_Isend(
                bytes.as_ptr().cast::<c_void>(),
                count,
                ffi::RSMPI_UINT8_T,
                to,
                tag,
                self.0,
                &mut request,
            )
        };
        check(code, action).map(|()| request)
    }

    /// Starts to receive.
    ///
    /// # Safety
    ///
    /// `bytes` stay where they are, and nobody looks at them, until the request is complete.
    pub(super) unsafe fn receive(
        self,
        _: &Turn,
        bytes: &mut [u8],
        from: c_int,
        tag: c_int,
    ) -> Result<MPI_Request, Fault> {
        let action = || format!("receive from rank {from} of MPI's world");
        let (count, mut request) = (count(bytes.len(), action)?, null_request());
        let buffer = bytes.as_mut_ptr().cast::<c_void>();
        // SAFETY: the caller keeps the bytes; the handles are MPI's own.
        let code =
            unsafe { ffi::MPI_Irecv(buffer, count, ffi::RSMPI_UINT8_T, from, tag, self.0, &mut request) };
        check(code, action).map(|()| request)
    }

    /// Starts to collect `send` of every rank in `recv`.
    ///
    /// # Safety
    ///
    /// Both stay where they are, and nobody looks at `recv`, until the request is complete.
    pub(super) unsafe fn all_gather(
        self,
        _: &Turn,
        send: &[u8],
        recv: &mut [u8],
    ) -> Result<MPI_Request, Fault> {
        let action = || "collect a value of every rank".to_owned();
        let (count, mut request) = (count(send.len(), action)?, null_request());
        let (from, to) = (send.as_ptr().cast::<c_void>(), recv.as_mut_ptr().cast::<c_void>());
        // SAFETY: `recv` holds one part for each rank, which the caller has seen to, and the caller keeps both.
        let code = unsafe {
            let bytes = ffi::RSMPI_UINT8_T;
            ffi::MPI_Iallgather(from, count, bytes, to, count, bytes, self.0, &mut request)
        };
        check(code, action).map(|()| request)
    }
}

/// Whether the request is complete, and then the bytes that it moved.
pub(super) fn test(_: &Turn, request: &mut MPI_Request, action: &str) -> Result<bool, Fault> {
    let (mut done, mut status) = (0, empty_status());
    // SAFETY: the request is one of MPI's, and the rest are locals.
    check(unsafe { ffi::MPI_Test(request, &mut done, &mut status) }, || action.to_owned())?;
    Ok(done != 0)
}

/// Tests all requests at once. `indices` and `statuses` are as long as `requests`; the first ones tell what is complete, and
/// how many is returned.
pub(super) fn test_some(
    _: &Turn,
    requests: &mut [MPI_Request],
    indices: &mut [c_int],
    statuses: &mut [MPI_Status],
) -> Result<usize, Fault> {
    debug_assert!(requests.len() == indices.len() && requests.len() == statuses.len());
    let action = || "move its data".to_owned();
    let (incoming, mut count) = (count(requests.len(), action)?, 0);
    // SAFETY: the arrays have the length that MPI is told, and the requests are MPI's.
    let code = unsafe {
        ffi::MPI_Testsome(
            incoming,
            requests.as_mut_ptr(),
            &mut count,
            indices.as_mut_ptr(),
            statuses.as_mut_ptr(),
        )
    };
    let count = usize::try_from(count).unwrap_or(0).min(requests.len());
    let Err(fault) = check(code, action) else { return Ok(count) };
    // The code of the call says only that one of the requests has failed.
    let own = statuses[..count].iter().map(|status| status.MPI_ERROR);
    let own = own.filter(|code| *code != SUCCESS && *code != ffi::MPI_ERR_PENDING as c_int).next();
    match own {
        Some(code) if fault.class == ffi::MPI_ERR_IN_STATUS as i32 => Err(Fault::of(action(), code)),
        _ => Err(fault),
    }
}

/// The bytes that a complete receive has brought.
pub(super) fn received(_: &Turn, status: &MPI_Status) -> Result<usize, Fault> {
    let mut count = 0;
    // SAFETY: the status was written by MPI, and the count is a local.
    let code = unsafe { ffi::MPI_Get_count(status, ffi::RSMPI_UINT8_T, &mut count) };
    check(code, || "tell how much arrived".into())?;
    Ok(usize::try_from(count).unwrap_or(0))
}

/// Asks MPI to forget a receive. It is complete after a test says so, with data or without.
pub(super) fn cancel(_: &Turn, request: &mut MPI_Request) -> Result<(), Fault> {
    // SAFETY: the request is one of MPI's and not complete.
    check(unsafe { ffi::MPI_Cancel(request) }, || "cancel a receive".into())
}

pub(super) fn null_request() -> MPI_Request {
    // SAFETY: a constant of the shim that nothing writes.
    unsafe { ffi::RSMPI_REQUEST_NULL }
}

pub(super) fn empty_status() -> MPI_Status {
    // SAFETY: a status is plain integers, for which all zero is a value.
    unsafe { std::mem::zeroed() }
}

/// The name and version of the library, its first line.
pub(super) fn library_version() -> String {
    let mut text = vec![0u8; 8192];
    let mut length = 0;
    // SAFETY: allowed before initialization; the buffer is larger than MPI_MAX_LIBRARY_VERSION_STRING (256 in Open MPI,
    // 8192 in MPICH), the terminating zero included.
    let code = unsafe { ffi::MPI_Get_library_version(text.as_mut_ptr().cast::<c_char>(), &mut length) };
    if check(code, || "tell its version".into()).is_err() {
        return "an unknown MPI".into();
    }
    text.truncate(usize::try_from(length).unwrap_or(0));
    let text = String::from_utf8_lossy(&text);
    text.split(['\n', ',', '\0']).next().unwrap_or_default().trim().to_owned()
}

/// The largest tag that a message may have.
pub(super) fn largest_tag(_: &Turn, comm: MPI_Comm) -> Result<c_int, Fault> {
    // The least that every MPI allows.
    const LEAST: c_int = 32_767;
    let (mut value, mut found): (*mut c_int, c_int) = (ptr::null_mut(), 0);
    // SAFETY: for this key MPI stores a pointer to an integer that lives as long as MPI does.
    let code = unsafe {
        let place = (&raw mut value).cast::<c_void>();
        ffi::MPI_Comm_get_attr(comm, ffi::MPI_TAG_UB as c_int, place, &mut found)
    };
    check(code, || "tell its largest tag".into())?;
    // SAFETY: as above; `found` says that there is one.
    Ok(if found != 0 && !value.is_null() { unsafe { *value } } else { LEAST })
}

fn count(length: usize, action: impl FnOnce() -> String) -> Result<c_int, Fault> {
    c_int::try_from(length)
        .map_err(|_| Fault::ours(&action(), format!("{length} is more than MPI can count")))
}
