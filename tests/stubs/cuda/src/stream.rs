//! A stream: a thread that does one operation after the other, each after a random delay.

use std::{
    collections::VecDeque,
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use stubs::lock;

use crate::driver::driver;

type Work = Box<dyn FnOnce() + Send>;

pub(crate) struct Stream {
    pub(crate) handle: usize,
    /// The ordinal of its GPU.
    pub(crate) device: usize,
    /// Whether it is ordered with the legacy stream.
    pub(crate) blocking: bool,
    pub(crate) is_legacy: bool,
    progress: Mutex<Progress>,
    changed: Condvar,
}

#[derive(Default)]
struct Progress {
    queue: VecDeque<Work>,
    submitted: u64,
    completed: u64,
    closed: bool,
}

/// A point in a stream: what was submitted until then.
#[derive(Clone)]
pub(crate) struct Mark {
    stream: Arc<Stream>,
    position: u64,
}

impl Stream {
    /// A stream with its thread.
    pub(crate) fn start(device: usize, handle: usize, blocking: bool, is_legacy: bool) -> Arc<Self> {
        let stream = Arc::new(Self {
            handle,
            device,
            blocking,
            is_legacy,
            progress: Mutex::default(),
            changed: Condvar::new(),
        });
        let worker = stream.clone();
        std::thread::spawn(move || worker.work());
        stream
    }

    /// Appends an operation. What orders streams among each other is the context's business.
    pub(crate) fn push(self: &Arc<Self>, work: impl FnOnce() + Send + 'static) -> Mark {
        let mut progress = lock(&self.progress);
        progress.queue.push_back(Box::new(work));
        progress.submitted += 1;
        self.changed.notify_all();
        Mark { stream: self.clone(), position: progress.submitted }
    }

    /// The point after all that was submitted so far.
    pub(crate) fn mark(self: &Arc<Self>) -> Mark {
        Mark { stream: self.clone(), position: lock(&self.progress).submitted }
    }

    /// Ends the thread once its operations are done.
    pub(crate) fn close(&self) {
        lock(&self.progress).closed = true;
        self.changed.notify_all();
    }

    /// Whether nothing will ever happen in it again.
    pub(crate) fn has_ended(&self) -> bool {
        let progress = lock(&self.progress);
        progress.closed && progress.submitted == progress.completed
    }

    fn work(&self) {
        let config = driver().config();
        let mut random = Random::new(config.cuda.seed, self.handle as u64);
        while let Some(work) = self.next() {
            random.sleep(driver().config().cuda.max_delay_us);
            work();
            lock(&self.progress).completed += 1;
            self.changed.notify_all();
        }
    }

    fn next(&self) -> Option<Work> {
        let mut progress = lock(&self.progress);
        loop {
            if let Some(work) = progress.queue.pop_front() {
                return Some(work);
            }
            if progress.closed {
                return None;
            }
            progress = self.wait(progress);
        }
    }

    fn wait<'a>(&self, progress: MutexGuard<'a, Progress>) -> MutexGuard<'a, Progress> {
        self.changed.wait(progress).unwrap_or_else(PoisonError::into_inner)
    }
}

impl Mark {
    pub(crate) fn is_done(&self) -> bool {
        lock(&self.stream.progress).completed >= self.position
    }

    /// Blocks until the stream is past it.
    pub(crate) fn wait(&self) {
        let mut progress = lock(&self.stream.progress);
        while progress.completed < self.position {
            progress = self.stream.wait(progress);
        }
    }
}

/// Pseudo-random delays (xorshift64*), the same for one seed and one stream.
struct Random(u64);

impl Random {
    fn new(seed: u64, stream: u64) -> Self {
        Self((seed ^ stream.wrapping_mul(0x9e37_79b9_7f4a_7c15)) | 1)
    }

    fn sleep(&mut self, most_us: u64) {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        if most_us > 0 {
            let delay = self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) % (most_us + 1);
            std::thread::sleep(Duration::from_micros(delay));
        }
    }
}
