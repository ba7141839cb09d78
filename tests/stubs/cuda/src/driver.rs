//! The one driver of a process, and what every function of it does first.

use std::{
    cell::{Cell, RefCell},
    collections::HashMap,
    sync::{
        Arc, Mutex, OnceLock,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
};

use stubs::{Config, Double, lock};

use crate::{code, context::Context, event::Event, memory::Memory, stream::Stream};

/// What is behind the handles that callers hold.
pub(crate) struct Driver {
    pub(crate) double: Double,
    pub(crate) memory: Memory,
    initialized: AtomicBool,
    contexts: Vec<OnceLock<Arc<Context>>>,
    streams: Mutex<HashMap<usize, Arc<Stream>>>,
    events: Mutex<HashMap<usize, Arc<Event>>>,
    next_handle: AtomicUsize,
}

thread_local! {
    /// The contexts of this thread, the current one last.
    static CURRENT: RefCell<Vec<Option<Arc<Context>>>> = const { RefCell::new(Vec::new()) };
    /// Whether this thread runs a host function, which may call nothing of the driver.
    static IN_HOST_FUNCTION: Cell<bool> = const { Cell::new(false) };
}

/// The result of what callers see as a code.
pub(crate) type Outcome<T = ()> = Result<T, i32>;

/// The driver, made by the first call.
pub(crate) fn driver() -> &'static Driver {
    static DRIVER: OnceLock<Driver> = OnceLock::new();
    DRIVER.get_or_init(|| {
        let double = Double::of(driver as *const std::ffi::c_void);
        let contexts = double.config().cuda.devices.iter().map(|_| OnceLock::new()).collect();
        Driver {
            double,
            memory: Memory::default(),
            initialized: AtomicBool::new(false),
            contexts,
            streams: Mutex::default(),
            events: Mutex::default(),
            // Like addresses, but of nothing: who reads through one ends at once.
            next_handle: AtomicUsize::new(0x10_0000),
        }
    })
}

/// Runs a function of the driver: not before `cuInit`, not within a host function, and not if it is to fail.
pub(crate) fn call(function: &str, body: impl FnOnce(&'static Driver) -> Outcome) -> i32 {
    let driver = driver();
    let result = driver.admit(function).and_then(|()| body(driver));
    result.err().unwrap_or(code::SUCCESS)
}

impl Driver {
    pub(crate) fn config(&self) -> Arc<Config> {
        self.double.config()
    }

    fn admit(&self, function: &str) -> Outcome {
        let who = current().map(|context| context.device);
        if let Some(code) = self.double.injected(&self.config().cuda.injections, function, who) {
            return Err(code);
        }
        if IN_HOST_FUNCTION.get() {
            return self.refuse(
                code::NOT_PERMITTED,
                format!("{function} was called from a host function of a stream"),
            );
        }
        let early =
            ["cuInit", "cuDriverGetVersion", "cuGetErrorName", "cuGetErrorString", "cuGetProcAddress"];
        if !self.initialized.load(Ordering::Acquire) && !early.contains(&function) {
            return Err(code::NOT_INITIALIZED);
        }
        Ok(())
    }

    pub(crate) fn initialize(&self) {
        self.initialized.store(true, Ordering::Release);
    }

    /// Records a fault and gives the code that the caller sees.
    pub(crate) fn refuse<T>(&self, code: i32, text: String) -> Outcome<T> {
        self.double.fault(text);
        Err(code)
    }

    pub(crate) fn new_handle(&self) -> usize {
        self.next_handle.fetch_add(16, Ordering::Relaxed)
    }

    /// The primary context of a GPU, made when it is first asked for.
    pub(crate) fn context_of(&self, device: i32) -> Outcome<&Arc<Context>> {
        let slot = usize::try_from(device).ok().and_then(|device| Some((device, self.contexts.get(device)?)));
        let (device, slot) = slot.ok_or(code::INVALID_DEVICE)?;
        Ok(slot.get_or_init(|| Arc::new(Context::new(device, self.new_handle()))))
    }

    /// The context of a handle, if somebody retains it.
    pub(crate) fn context_at(&self, handle: usize) -> Outcome<Arc<Context>> {
        let known = self.contexts.iter().filter_map(OnceLock::get).find(|context| context.handle == handle);
        let context = known.filter(|context| context.is_retained()).ok_or(code::INVALID_CONTEXT)?;
        Ok(context.clone())
    }

    pub(crate) fn add_stream(&self, stream: Arc<Stream>) {
        lock(&self.streams).insert(stream.handle, stream);
    }

    /// The stream of a handle: 0 and 1 are the legacy one of the current context, and 2 is taken for it too.
    pub(crate) fn stream_at(&self, function: &str, handle: usize) -> Outcome<Arc<Stream>> {
        if handle <= 2 {
            return Ok(need_current()?.legacy.clone());
        }
        need_current()?;
        match lock(&self.streams).get(&handle) {
            Some(stream) => Ok(stream.clone()),
            None => self.refuse(code::INVALID_HANDLE, format!("{function}: no stream {handle:#x}")),
        }
    }

    /// The stream of a handle that is not one of the three special ones.
    pub(crate) fn plain_stream(&self, handle: usize) -> Option<Arc<Stream>> {
        lock(&self.streams).get(&handle).cloned()
    }

    pub(crate) fn remove_stream(&self, handle: usize) -> Option<Arc<Stream>> {
        lock(&self.streams).remove(&handle)
    }

    pub(crate) fn add_event(&self, event: Event) -> usize {
        let handle = self.new_handle();
        lock(&self.events).insert(handle, Arc::new(event));
        handle
    }

    pub(crate) fn event_at(&self, function: &str, handle: usize) -> Outcome<Arc<Event>> {
        match lock(&self.events).get(&handle) {
            Some(event) => Ok(event.clone()),
            None => self.refuse(code::INVALID_HANDLE, format!("{function}: no event {handle:#x}")),
        }
    }

    pub(crate) fn remove_event(&self, handle: usize) -> Option<Arc<Event>> {
        lock(&self.events).remove(&handle)
    }
}

/// The context of this thread, if it has one that lives.
pub(crate) fn current() -> Option<Arc<Context>> {
    CURRENT.with_borrow(|contexts| contexts.last().cloned().flatten()).filter(|context| context.is_retained())
}

pub(crate) fn need_current() -> Outcome<Arc<Context>> {
    current().ok_or(code::INVALID_CONTEXT)
}

pub(crate) fn set_current(context: Option<Arc<Context>>) {
    CURRENT.with_borrow_mut(|contexts| {
        contexts.pop();
        contexts.push(context);
    });
}

pub(crate) fn push_current(context: Arc<Context>) {
    CURRENT.with_borrow_mut(|contexts| contexts.push(Some(context)));
}

pub(crate) fn pop_current() -> Option<Arc<Context>> {
    CURRENT.with_borrow_mut(|contexts| contexts.pop().flatten())
}

/// Runs a host function of a stream on its thread.
pub(crate) fn in_host_function(run: impl FnOnce()) {
    IN_HOST_FUNCTION.set(true);
    run();
    IN_HOST_FUNCTION.set(false);
}
