//! The threads behind the sockets, and what they share with them.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use axum::body::Bytes;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};

use super::answer::Refusal;
use super::metrics::{Metrics, Now};
use super::options::Limits;
use super::queue::Queue;
use super::requests::Kind;
use super::{batches, decoders};
use crate::classifier::{Classifier, Prediction};
use crate::package::Preprocess;

/// What is served.
pub(super) struct Model {
    /// Such as `resnet18`.
    pub(super) name: String,
    pub(super) labels: Vec<String>,
    /// The engine's name and version.
    pub(super) engine: String,
}

/// A picture on its way.
pub(super) struct Picture {
    /// The request's body.
    pub(super) bytes: Bytes,
    pub(super) kind: Kind,
    pub(super) ticket: Ticket,
}

/// A prepared picture on its way.
pub(super) struct Prepared {
    pub(super) values: Vec<f32>,
    pub(super) ticket: Ticket,
}

/// What goes with a picture until it is answered. Dropped without an answer it tells the client of a failure.
pub(super) struct Ticket {
    pub(super) top: usize,
    pub(super) reply: oneshot::Sender<Result<Classified, Refusal>>,
    /// The request's place among those that may be under way, and its body's bytes among those of all.
    pub(super) _place: [OwnedSemaphorePermit; 2],
}

impl Ticket {
    /// Whether nobody waits for the answer any more.
    pub(super) fn is_cancelled(&self) -> bool {
        self.reply.is_closed()
    }

    /// Answers. The client may have gone meanwhile.
    pub(super) fn answer(self, result: Result<Classified, Refusal>) {
        let _ = self.reply.send(result);
    }
}

/// What the engine says of one picture.
#[derive(Debug)]
pub(super) struct Classified {
    pub(super) predictions: Vec<Prediction>,
    pub(super) batch: usize,
}

/// What the threads share.
pub(super) struct Shared {
    pub(super) limits: Limits,
    pub(super) metrics: Metrics,
    pub(super) pictures: Queue<Picture>,
    pub(super) prepared: Queue<Prepared>,
    /// Pictures that are being decoded or wait for it.
    pub(super) decoding: AtomicUsize,
    /// Whether the newest batch failed.
    pub(super) engine_failed: AtomicBool,
    /// Whether the service is about to end.
    pub(super) stopping: AtomicBool,
    /// Requests that may still be accepted.
    pub(super) places: Arc<Semaphore>,
    /// Bytes of bodies that may still be read.
    pub(super) body_bytes: Arc<Semaphore>,
}

impl Shared {
    pub(super) fn now(&self) -> Now {
        let queue = self.limits.queue;
        Now { under_way: queue.saturating_sub(self.places.available_permits()), queue }
    }

    /// Seconds after which a full queue has been answered.
    pub(super) fn retry_after(&self) -> u64 {
        let seconds = self.metrics.seconds_per_picture() * self.limits.queue as f64;
        seconds.ceil().clamp(1.0, 60.0) as u64
    }
}

/// The service without its sockets.
pub(super) struct Service {
    pub(super) model: Arc<Model>,
    pub(super) shared: Arc<Shared>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

impl Service {
    /// Starts the threads that decode and the one that computes.
    pub(super) fn start(
        model: Model,
        preprocess: Preprocess,
        classifier: Classifier,
        limits: Limits,
    ) -> io::Result<Self> {
        let shared = Arc::new(Shared {
            limits,
            metrics: Metrics::default(),
            // Every accepted request has room: what is accepted is bounded by `places`.
            pictures: Queue::new(limits.queue),
            // One batch that is computed next, and one in the making.
            prepared: Queue::new(2 * limits.max_batch),
            decoding: AtomicUsize::new(0),
            engine_failed: AtomicBool::new(false),
            stopping: AtomicBool::new(false),
            places: Arc::new(Semaphore::new(limits.queue)),
            body_bytes: Arc::new(Semaphore::new(limits.all_bodies_bytes)),
        });
        let service = Self { model: Arc::new(model), shared, threads: Mutex::default() };
        let mut threads = decoders::start(&service.shared, &preprocess)?;
        threads.push(batches::start(Arc::clone(&service.shared), classifier)?);
        *service.threads.lock().unwrap_or_else(PoisonError::into_inner) = threads;
        Ok(service)
    }

    /// Ends the threads. What is still under way is not answered.
    pub(super) fn stop(&self) {
        self.shared.stopping.store(true, Ordering::Release);
        self.shared.pictures.close();
        self.shared.prepared.close();
        // They end after the picture or batch that they are at; the process need not wait for a slow one.
        let deadline = std::time::Instant::now() + Duration::from_secs(2);
        for thread in self.threads.lock().unwrap_or_else(PoisonError::into_inner).drain(..) {
            while !thread.is_finished() && std::time::Instant::now() < deadline {
                std::thread::sleep(Duration::from_millis(2));
            }
            if thread.is_finished() {
                let _ = thread.join();
            }
        }
    }
}

/// Where a thread of the service could not be started, those that run must end.
impl Drop for Service {
    fn drop(&mut self) {
        self.stop();
    }
}
