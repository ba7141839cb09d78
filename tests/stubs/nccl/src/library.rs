//! The one NCCL of a process: its communicators, and what is counted over all of them.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, OnceLock,
        atomic::{AtomicUsize, Ordering},
    },
};

use stubs::{Double, Injection, Nccl, lock};

use crate::{code, communicator::Communicator, driver::Driver};

/// As the real library has it, where it is looked for what it was built for. A test writes another to its copy.
#[used]
static BUILT_FOR: [u8; 30] = *b"NCCL version 2.27.3+cuda12.9\n\0";

pub(crate) struct Library {
    pub(crate) double: Double,
    driver: OnceLock<Result<Driver, String>>,
    communicators: Mutex<HashMap<usize, Arc<Communicator>>>,
    next_handle: AtomicUsize,
    /// The operations that a rank has started and ended, over all communicators.
    operations: Mutex<HashMap<usize, (u64, u64)>>,
}

/// The result of what callers see as a code.
pub(crate) type Outcome<T = ()> = Result<T, i32>;

pub(crate) fn library() -> &'static Library {
    static LIBRARY: OnceLock<Library> = OnceLock::new();
    LIBRARY.get_or_init(|| Library {
        double: Double::of(library as *const std::ffi::c_void),
        driver: OnceLock::new(),
        communicators: Mutex::default(),
        // Like addresses, but of nothing: who reads through one ends at once.
        next_handle: AtomicUsize::new(0x20_0000),
        operations: Mutex::default(),
    })
}

/// The code of a result.
pub(crate) fn code_of(result: Outcome) -> i32 {
    result.err().unwrap_or(code::SUCCESS)
}

impl Library {
    pub(crate) fn config(&self) -> Nccl {
        self.double.config().nccl.clone()
    }

    /// The driver's double beside this library.
    pub(crate) fn driver(&self) -> Outcome<&Driver> {
        let driver = self.driver.get_or_init(|| Driver::load(self.double.folder()));
        driver.as_ref().map_err(|reason| {
            self.double.fault(format!("the driver's double cannot be loaded: {reason}"));
            code::UNHANDLED_CUDA_ERROR
        })
    }

    /// Records a fault and gives the code that the caller sees.
    pub(crate) fn refuse<T>(&self, code: i32, text: String) -> Outcome<T> {
        self.double.fault(text);
        Err(code)
    }

    /// Fails if the call is to fail.
    pub(crate) fn inject(&self, function: &str, rank: Option<usize>) -> Outcome {
        match self.double.injected(&self.config().injections, function, rank) {
            Some(code) => Err(code),
            None => Ok(()),
        }
    }

    pub(crate) fn add(&self, make: impl FnOnce(usize) -> Communicator) -> Arc<Communicator> {
        let handle = self.next_handle.fetch_add(16, Ordering::Relaxed);
        let communicator = Arc::new(make(handle));
        lock(&self.communicators).insert(handle, communicator.clone());
        communicator
    }

    /// Ends the use of a handle; it is never given again.
    pub(crate) fn remove(&self, handle: usize) {
        lock(&self.communicators).remove(&handle);
    }

    /// The communicator of a handle, for a call that must come from its thread unless any may make it.
    pub(crate) fn enter(
        &self,
        function: &str,
        handle: usize,
        any_thread: bool,
    ) -> Outcome<Arc<Communicator>> {
        let Some(communicator) = lock(&self.communicators).get(&handle).cloned() else {
            let text = format!(
                "{function}: no communicator {handle:#x}: it was never made, or it is destroyed or aborted"
            );
            return self.refuse(code::INVALID_ARGUMENT, text);
        };
        self.inject(function, Some(communicator.rank))
            .inspect_err(|code| communicator.say(format!("{function}: told to fail with {code}")))?;
        let is_meant = |call: &&Injection| {
            call.function == function && call.who.is_none_or(|rank| rank == communicator.rank)
        };
        if let Some(stuck) = self.config().stuck.iter().find(is_meant) {
            communicator.wait_for_abort();
            return Err(stuck.code);
        }
        if !any_thread && !communicator.is_of_this_thread() {
            let text =
                format!("{function}: called from another thread than the one that made the communicator");
            return self.refuse(code::INVALID_USAGE, text);
        }
        Ok(communicator)
    }

    /// The number of the next operation of a rank, from 1.
    pub(crate) fn start_operation(&self, rank: usize) -> u64 {
        let mut operations = lock(&self.operations);
        let (started, _) = operations.entry(rank).or_default();
        *started += 1;
        *started
    }

    pub(crate) fn end_operation(&self, rank: usize) {
        lock(&self.operations).entry(rank).or_default().1 += 1;
    }

    /// How many operations of a rank have ended.
    pub(crate) fn ended(&self, rank: usize) -> u64 {
        lock(&self.operations).get(&rank).map_or(0, |(_, ended)| *ended)
    }
}
