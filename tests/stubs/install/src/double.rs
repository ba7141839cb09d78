//! What a double is made with: where it lies, its configuration, its faults and the calls that must fail.

use std::{
    collections::HashMap,
    ffi::{CStr, CString, c_void},
    path::PathBuf,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use crate::{Config, Injection};

/// Faults beyond these are dropped: the first ones tell.
const MOST_FAULTS: usize = 200;

/// One loaded library: a double, with all that it remembers of its callers.
#[derive(Debug)]
pub struct Double {
    folder: PathBuf,
    config: Mutex<Arc<Config>>,
    faults: Mutex<Vec<String>>,
    calls: Mutex<HashMap<(String, Option<usize>), u64>>,
}

/// Locks, and goes on where another thread has panicked: the test sees that one.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Double {
    /// The double whose code holds the address. It stays loaded from now on: its threads run its code.
    pub fn of(address: *const c_void) -> Self {
        let library = library_of(address);
        let folder = library.parent().map(PathBuf::from).unwrap_or_default();
        let config = match std::fs::read(folder.join("stub.json")) {
            Ok(bytes) => serde_json::from_slice(&bytes).unwrap_or_else(|error| {
                // Going on would test something else than was asked for.
                eprintln!("{}: stub.json: {error}", folder.display());
                std::process::abort()
            }),
            Err(_) => Config::default(),
        };
        Self {
            folder,
            config: Mutex::new(Arc::new(config)),
            faults: Mutex::default(),
            calls: Mutex::default(),
        }
    }

    /// Where the library lies.
    pub fn folder(&self) -> &std::path::Path {
        &self.folder
    }

    /// What it is told.
    pub fn config(&self) -> Arc<Config> {
        lock(&self.config).clone()
    }

    /// Tells it something else, given as JSON, and counts the calls anew. Whether that could be read.
    ///
    /// # Safety
    ///
    /// `json` is valid for `len` bytes.
    pub unsafe fn configure(&self, json: *const u8, len: usize) -> bool {
        // SAFETY: the caller's promise.
        let bytes = unsafe { std::slice::from_raw_parts(json, len) };
        let Ok(config) = serde_json::from_slice(bytes) else { return false };
        *lock(&self.config) = Arc::new(config);
        lock(&self.calls).clear();
        true
    }

    /// Keeps what a caller did wrong.
    pub fn fault(&self, text: impl Into<String>) {
        let mut faults = lock(&self.faults);
        if faults.len() < MOST_FAULTS {
            faults.push(text.into());
        }
    }

    /// Writes the faults as a JSON array of strings and forgets them; where `len` bytes are not enough, it keeps them.
    /// The length of the text.
    ///
    /// # Safety
    ///
    /// `buffer` is valid for writes of `len` bytes.
    pub unsafe fn take_faults(&self, buffer: *mut u8, len: usize) -> usize {
        let mut faults = lock(&self.faults);
        let text = serde_json::to_vec(&*faults).unwrap_or_default();
        if text.len() <= len {
            // SAFETY: the caller's promise, and `text` is not longer than `len`.
            unsafe { std::ptr::copy_nonoverlapping(text.as_ptr(), buffer, text.len()) };
            faults.clear();
        }
        text.len()
    }

    /// Counts a call, and says with what it must fail, if it must.
    pub fn injected(&self, injections: &[Injection], function: &str, who: Option<usize>) -> Option<i32> {
        let mut calls = lock(&self.calls);
        let mut count = |who: Option<usize>| {
            let calls = calls.entry((function.to_owned(), who)).or_default();
            *calls += 1;
            *calls
        };
        let of_all = count(None);
        let of_one = who.map(|who| count(Some(who)));
        let hit = injections.iter().find(|injection| {
            let calls = match injection.who {
                None => Some(of_all),
                Some(_) if injection.who == who => of_one,
                Some(_) => None,
            };
            injection.function == function
                && calls.is_some_and(|calls| injection.call == 0 || injection.call == calls)
        });
        hit.map(|injection| injection.code)
    }
}

/// The file that an address was loaded from; it is never unloaded after this.
fn library_of(address: *const c_void) -> PathBuf {
    // SAFETY: plain C data, for which zeros are valid.
    let mut info: libc::Dl_info = unsafe { std::mem::zeroed() };
    // SAFETY: any address may be asked for; `info` outlives the call.
    let found = unsafe { libc::dladdr(address, &mut info) };
    if found == 0 || info.dli_fname.is_null() {
        return PathBuf::new();
    }
    // SAFETY: the loader gives a string that lives as long as the library.
    let name = unsafe { CStr::from_ptr(info.dli_fname) };
    let path = PathBuf::from(name.to_string_lossy().into_owned());
    // NOLOAD: in an executable that links the crate there is no library to keep.
    if let Ok(name) = CString::new(name.to_bytes()) {
        // SAFETY: a string, and flags that load nothing: the one effect is that the library stays.
        unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_NOLOAD | libc::RTLD_NODELETE) };
    }
    path
}
