//! The primary context of a GPU: its streams, and what orders them.

use std::sync::{
    Arc, Mutex,
    atomic::{AtomicUsize, Ordering},
};

use stubs::lock;

use crate::{
    driver::driver,
    stream::{Mark, Stream},
};

pub(crate) struct Context {
    /// The ordinal of its GPU.
    pub(crate) device: usize,
    pub(crate) handle: usize,
    /// The default stream, which waits for all blocking streams and they for it.
    pub(crate) legacy: Arc<Stream>,
    retained: AtomicUsize,
    submission: Mutex<Submission>,
}

/// Held while something is submitted, so that what is captured of several streams is one moment.
#[derive(Default)]
struct Submission {
    streams: Vec<Arc<Stream>>,
    /// What `cuCtxWaitEvent` makes later streams wait for too.
    waits: Vec<Mark>,
}

impl Context {
    pub(crate) fn new(device: usize, handle: usize) -> Self {
        Self {
            device,
            handle,
            legacy: Stream::start(device, driver().new_handle(), true, true),
            retained: AtomicUsize::new(0),
            submission: Mutex::default(),
        }
    }

    pub(crate) fn retain(&self) {
        self.retained.fetch_add(1, Ordering::AcqRel);
    }

    /// Whether there was anything to release.
    pub(crate) fn release(&self) -> bool {
        self.retained.fetch_update(Ordering::AcqRel, Ordering::Acquire, |count| count.checked_sub(1)).is_ok()
    }

    pub(crate) fn is_retained(&self) -> bool {
        self.retained.load(Ordering::Acquire) > 0
    }

    pub(crate) fn add_stream(&self, blocking: bool) -> Arc<Stream> {
        let stream = Stream::start(self.device, driver().new_handle(), blocking, false);
        let mut submission = lock(&self.submission);
        submission.waits.retain(|mark| !mark.is_done());
        let waits = submission.waits.clone();
        if !waits.is_empty() {
            stream.push(move || waits.iter().for_each(Mark::wait));
        }
        submission.streams.push(stream.clone());
        stream
    }

    /// Appends an operation to one of its streams, after what the legacy stream's rule puts before it.
    pub(crate) fn submit(&self, stream: &Arc<Stream>, work: impl FnOnce() + Send + 'static) -> Mark {
        let submission = lock(&self.submission);
        if stream.is_legacy {
            let blocking = submission.streams.iter().filter(|stream| stream.blocking);
            let before: Vec<_> = blocking.map(Stream::mark).filter(|mark| !mark.is_done()).collect();
            if !before.is_empty() {
                stream.push(move || before.iter().for_each(Mark::wait));
            }
        } else if stream.blocking {
            let before = self.legacy.mark();
            if !before.is_done() {
                stream.push(move || before.wait());
            }
        }
        stream.push(work)
    }

    /// The point after everything that was submitted to the context so far.
    pub(crate) fn mark_all(&self) -> Vec<Mark> {
        let mut submission = lock(&self.submission);
        submission.streams.retain(|stream| !stream.has_ended());
        submission.streams.iter().chain([&self.legacy]).map(Stream::mark).collect()
    }

    /// Makes everything that is submitted from now on wait, in streams that are made later too.
    pub(crate) fn wait_all(&self, marks: &[Mark]) {
        let mut submission = lock(&self.submission);
        for stream in submission.streams.iter().chain([&self.legacy]) {
            let marks = marks.to_vec();
            stream.push(move || marks.iter().for_each(Mark::wait));
        }
        submission.waits.extend_from_slice(marks);
    }
}
