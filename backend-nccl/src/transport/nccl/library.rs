//! Shared libraries that are loaded when they are needed, and stay.

use std::{ffi::c_void, fmt, mem::ManuallyDrop, path::PathBuf};

use crate::device_error::DeviceError;

/// A library of this process.
pub(crate) struct Library {
    /// `NCCL` or `the CUDA driver`.
    name: &'static str,
    remedy: &'static str,
    /// Never unloaded: both libraries run threads of their own, whose code would be gone.
    inner: ManuallyDrop<libloading::Library>,
    /// The name it was asked for by.
    asked: PathBuf,
}

impl Library {
    /// Loads the first of `candidates` that can be loaded.
    ///
    /// # Errors
    ///
    /// [`DeviceError::LibraryMissing`] with what the loader said of each, and `notes` on what was not even tried.
    pub(crate) fn open(
        name: &'static str,
        candidates: &[PathBuf],
        notes: Vec<String>,
        remedy: &'static str,
    ) -> Result<Self, DeviceError> {
        let mut tried = Vec::with_capacity(candidates.len());
        for candidate in candidates {
            // SAFETY: the user names these libraries or the system provides them under their well-known names; what they
            // run when they are loaded is their own start, as in any program that is linked with them.
            match unsafe { libloading::Library::new(candidate.as_os_str()) } {
                Ok(inner) => {
                    let (inner, asked) = (ManuallyDrop::new(inner), candidate.clone());
                    return Ok(Self { name, remedy, inner, asked });
                }
                Err(error) => tried.push(said(candidate, &words(&error))),
            }
        }
        tried.extend(notes);
        Err(DeviceError::LibraryMissing { library: name.into(), tried, remedy: remedy.into() })
    }

    /// A function that every supported version has.
    ///
    /// # Errors
    ///
    /// [`DeviceError::SymbolMissing`].
    ///
    /// # Safety
    ///
    /// `T` must be the type of the pointer to that function.
    pub(crate) unsafe fn required<T: Copy>(&self, symbol: &str) -> Result<T, DeviceError> {
        // SAFETY: the caller's promise.
        unsafe { self.optional(symbol) }.ok_or_else(|| DeviceError::SymbolMissing {
            library: self.name.into(),
            path: self.asked.display().to_string(),
            symbol: symbol.into(),
            remedy: self.remedy.into(),
        })
    }

    /// A function that newer versions have.
    ///
    /// # Safety
    ///
    /// As [`required`](Self::required).
    pub(super) unsafe fn optional<T: Copy>(&self, symbol: &str) -> Option<T> {
        // SAFETY: the caller's promise. The library is never unloaded, so the pointer stays valid.
        unsafe { self.inner.get::<T>(symbol) }.ok().map(|found| *found)
    }

    /// The file that the loader has found; the name it was asked for where it does not say.
    pub(super) fn path(&self, known_symbol: &str) -> PathBuf {
        // SAFETY: the address is looked at, not called.
        let address = unsafe { self.optional::<*const c_void>(known_symbol) };
        address.and_then(file_of).unwrap_or_else(|| self.asked.clone())
    }
}

/// The loader's own words, which the error's text leaves out.
fn words(error: &libloading::Error) -> String {
    std::error::Error::source(error).map_or_else(|| error.to_string(), ToString::to_string)
}

/// One line for a candidate: what the loader says names the file itself, unless it says something else.
fn said(candidate: &std::path::Path, reason: &str) -> String {
    let candidate = candidate.display().to_string();
    if reason.contains(&candidate) { reason.to_owned() } else { format!("{candidate}: {reason}") }
}

/// The file in which an address lies.
fn file_of(address: *const c_void) -> Option<PathBuf> {
    use std::os::unix::ffi::OsStrExt;
    let mut info = nix::libc::Dl_info {
        dli_fname: std::ptr::null(),
        dli_fbase: std::ptr::null_mut(),
        dli_sname: std::ptr::null(),
        dli_saddr: std::ptr::null_mut(),
    };
    // SAFETY: any address may be asked about, and the result is a local.
    if unsafe { nix::libc::dladdr(address, &mut info) } == 0 || info.dli_fname.is_null() {
        return None;
    }
    // SAFETY: the loader keeps the name, which ends with a zero, as long as the library is loaded: for ever.
    let name = unsafe { std::ffi::CStr::from_ptr(info.dli_fname) };
    Some(PathBuf::from(std::ffi::OsStr::from_bytes(name.to_bytes())))
}

impl fmt::Debug for Library {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} at {}", self.name, self.asked.display())
    }
}

/// A table of C functions: the first ones must be there.
macro_rules! functions {
    (
        $(#[$doc:meta])*
        $table:ident {
            $($required:ident: $symbol:ident($($argument:ty),*) -> $result:ty;)*
        } {
            $($optional:ident: $name:ident($($parameter:ty),*) -> $returned:ty;)*
        }
    ) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug)]
        pub(super) struct $table {
            $(pub(super) $required: unsafe extern "C" fn($($argument),*) -> $result,)*
            $(pub(super) $optional: Option<unsafe extern "C" fn($($parameter),*) -> $returned>,)*
        }

        impl $table {
            fn find(library: &$crate::transport::nccl::library::Library) -> Result<Self, DeviceError> {
                Ok(Self {
                    // SAFETY: the type is that of the function's declaration in the library's header.
                    $($required: unsafe { library.required(stringify!($symbol)) }?,)*
                    // SAFETY: as above.
                    $($optional: unsafe { library.optional(stringify!($name)) },)*
                })
            }
        }
    };
}
pub(super) use functions;
