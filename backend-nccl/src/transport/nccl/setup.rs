//! How the ranks of a group come to a communicator: what they have is compared first, because NCCL itself would hang, or
//! fail on one of them.

use std::{
    sync::{Arc, mpsc},
    thread::JoinHandle,
    time::Duration,
};

use serde::{Serialize, de::DeserializeOwned};

use super::{
    api::{Api, UniqueId},
    built_for::Cuda,
    communicator::Communicator,
    compare::{Identity, compare},
    driver::Driver,
    engine::Settings,
    event::Events,
    gpu::Gpu,
    leave, ordering,
    progress::Progress,
    refused::Refused,
    shared::{Shared, Trouble},
    stream::Stream,
    thread::{Order, Owner},
    watch,
};
use crate::{
    Error, Result,
    deadline::Deadline,
    device_error::DeviceError,
    failure::Failure,
    rendezvous::{host_name, requested},
    transport::{StreamOrdering, Transport, host},
};

/// How long a rank whose part has failed waits for the others to say so too, before it ends theirs.
const OUTCOME_LIMIT: Duration = Duration::from_secs(2);
/// Beyond the deadline, for the thread that keeps it.
const SLACK: Duration = Duration::from_secs(5);
const PAUSE: Duration = Duration::from_millis(1);

/// A communicator with its threads.
pub(super) struct Running {
    pub(super) shared: Arc<Shared>,
    pub(super) queue: mpsc::Sender<Order>,
    pub(super) threads: Vec<JoinHandle<()>>,
    pub(super) ordering: StreamOrdering,
    pub(super) version: String,
}

/// What a rank has found.
struct Found {
    api: Arc<Api>,
    gpu: Arc<Gpu>,
    ordering: StreamOrdering,
}

/// Why a rank has no communicator.
enum Unmade {
    /// Its own trouble.
    Refused(DeviceError, Failure),
    /// That of the group.
    Failed(Failure),
}

/// One rank's way to a communicator.
struct Setup {
    group: Arc<dyn Transport>,
    settings: Settings,
    label: String,
    deadline: Deadline,
}

/// Makes a communicator with all ranks of `group`.
///
/// # Errors
///
/// As [`Nccl::connect`](super::Nccl::connect).
pub(super) fn connect(group: Arc<dyn Transport>, settings: Settings, deadline: Deadline) -> Result<Running> {
    let label = format!("nccl/{}", settings.number);
    let setup = Setup { group, settings, label, deadline };
    let found = setup.agree()?;
    let id = setup.unique_id(&found.api)?;
    setup.start(found, id)
}

impl Setup {
    /// Finds what this rank has, and compares it with the others.
    fn agree(&self) -> Result<Found> {
        let found = find(&self.settings, self.deadline);
        let own = found.as_ref().map(|found| identify(found, self.settings.ordinal)).map_err(Clone::clone);
        let ranks = compare(self.gather("identity", &own, self.deadline)?);
        let ranks = ranks.map_err(|(rank, error)| self.device_error(rank, error))?;
        for (rank, identity) in ranks.iter().enumerate() {
            log::debug!("rank {rank}: {identity:?}");
        }
        // An error of its own is among those that were compared.
        found.map_err(|error| self.device_error(self.settings.rank, error))
    }

    /// The id that rank 0 makes.
    fn unique_id(&self, api: &Api) -> Result<UniqueId> {
        let own: Option<std::result::Result<Vec<u8>, DeviceError>> = (self.settings.rank == 0).then(|| {
            let id = api.unique_id().map(|id| id.0.to_vec());
            id.map_err(|refused| refused.device_error(self.settings.ordinal))
        });
        let posts = self.gather("id", &own, self.deadline)?;
        let id = posts.into_iter().next().flatten().unwrap_or(Ok(Vec::new()));
        let id = id.map_err(|error| self.device_error(0, error))?;
        let id = <[u8; 128]>::try_from(id).map_err(|_| self.unreadable("id"))?;
        Ok(UniqueId(id))
    }

    /// Makes the communicator on the thread that will own it, and learns how it went on all ranks.
    fn start(&self, found: Found, id: UniqueId) -> Result<Running> {
        let Found { api, gpu, ordering } = found;
        let version = api.version.to_string();
        let shared = Arc::new(Shared {
            rank: self.settings.rank,
            world_size: self.settings.world_size,
            timeout: self.settings.timeout,
            label: self.label.clone(),
            group: self.group.clone(),
            events: Events::new(&gpu),
            gpu,
            comm: Communicator::new(api),
            progress: Progress::default(),
            held: Default::default(),
        });
        let (queue, orders) = mpsc::channel();
        let (report, made) = mpsc::channel();
        let (deadline, owned) = (self.deadline, shared.clone());
        let owner = spawn("burn-nccl-device", move || own(&owned, id, deadline, orders, &report));
        let watched = shared.clone();
        let watchdog = spawn("burn-nccl-watch", move || watch::watch(watched));
        let made = match (&owner, &watchdog) {
            (Ok(_), Ok(_)) => made
                .recv_timeout(self.deadline.later(SLACK).remaining())
                .unwrap_or_else(|_| Err(Unmade::Failed(stalled(self.deadline)))),
            (Err(detail), _) | (_, Err(detail)) => Err(Unmade::Failed(Failure::System {
                rank: self.settings.rank,
                action: "start a thread for its communicator".into(),
                detail: detail.clone(),
            })),
        };
        let threads = [owner, watchdog].into_iter().flatten().collect();
        match self.outcome(made) {
            Ok(()) => Ok(Running { shared, queue, threads, ordering, version }),
            Err(error) => {
                // The threads end by themselves, the owner when it comes out of NCCL.
                let failure = Failure::Aborted { rank: self.settings.rank, reason: error.to_string() };
                shared.progress.fail(failure);
                Err(error)
            }
        }
    }

    /// Whether all ranks have the communicator. Otherwise the same error on all.
    fn outcome(&self, made: std::result::Result<(), Unmade>) -> Result<()> {
        let (own, failure) = match made {
            Ok(()) => (Ok(()), None),
            Err(Unmade::Refused(error, failure)) => (Err(error), Some(failure)),
            Err(Unmade::Failed(failure)) => return Err(self.set_up(self.group.abort(failure))),
        };
        let deadline = match &failure {
            None => self.deadline.later(SLACK),
            // The others may wait in NCCL for this rank, and then say nothing.
            Some(_) => Deadline::after(OUTCOME_LIMIT.min(self.deadline.later(SLACK).remaining())),
        };
        match (self.gather::<std::result::Result<(), DeviceError>>("outcome", &own, deadline), failure) {
            (Ok(outcomes), _) => {
                let wrong = outcomes.into_iter().enumerate().find_map(|(rank, it)| Some((rank, it.err()?)));
                wrong.map_or(Ok(()), |(rank, error)| Err(self.device_error(rank, error)))
            }
            (Err(_), Some(failure)) => Err(self.set_up(self.group.abort(failure))),
            (Err(error), None) => Err(error),
        }
    }

    /// Every rank's value, in rank order.
    fn gather<T: Serialize + DeserializeOwned>(
        &self,
        what: &str,
        own: &T,
        deadline: Deadline,
    ) -> Result<Vec<T>> {
        let own = serde_json::to_vec(own).map_err(|_| self.unreadable(what))?;
        let posts = self.group.gather(&format!("{}/{what}", self.label), &own, deadline);
        let posts = posts.map_err(|failure| self.set_up(self.group.abort(failure)))?;
        posts.iter().map(|post| serde_json::from_slice(post).map_err(|_| self.unreadable(what))).collect()
    }

    fn device_error(&self, rank: usize, error: DeviceError) -> Error {
        Error::Device { rank, world_size: self.settings.world_size, error }
    }

    fn set_up(&self, failure: Failure) -> Error {
        let Settings { rank, world_size, .. } = self.settings;
        Error::SetUp { rank, world_size, failure }
    }

    fn unreadable(&self, what: &str) -> Error {
        let detail = format!("its {what} for a communicator cannot be read");
        self.set_up(Failure::Protocol { rank: self.settings.rank, detail })
    }
}

/// Loads the libraries, takes hold of the GPU and tests how its streams can be ordered.
fn find(settings: &Settings, deadline: Deadline) -> std::result::Result<Found, DeviceError> {
    let driver = Driver::load(&settings.libraries)?;
    let gpu = Gpu::retain(driver, settings.ordinal)?;
    let api = Api::load(&settings.libraries)?;
    if let Some(needed) = api.built_for().filter(|needed| is_too_new(*needed, gpu.driver.version)) {
        return Err(DeviceError::DriverTooOld {
            host: host_name(),
            driver: gpu.driver.cuda(),
            nccl: api.version.to_string(),
            path: api.path.display().to_string(),
            needed: needed.to_string(),
        });
    }
    let ordering = ordering::resolve(settings.ordering, &gpu, deadline)?;
    Ok(Found { api, gpu, ordering })
}

/// Whether a library for CUDA `needed` cannot run on a driver: within one major version any can.
fn is_too_new(needed: Cuda, driver: i32) -> bool {
    i64::from(needed.major) > i64::from(driver / 1000)
}

fn identify(found: &Found, ordinal: usize) -> Identity {
    Identity {
        nccl: found.api.version.0,
        driver: found.gpu.driver.version,
        host: host_name(),
        machine: host::fingerprint(),
        ordinal,
        pci_bus_id: found.gpu.pci_bus_id.clone(),
        may_share: requested::<Switch>("NCCL_MULTI_RANK_GPU_ENABLE").is_ok_and(|switch| switch.0),
        context_events: found.ordering == StreamOrdering::ContextEvents,
    }
}

/// A variable of NCCL that is 1 or not.
#[derive(Default)]
struct Switch(bool);

impl std::str::FromStr for Switch {
    type Err = String;

    fn from_str(value: &str) -> std::result::Result<Self, String> {
        Ok(Self(value == "1"))
    }
}

fn spawn(name: &str, body: impl FnOnce() + Send + 'static) -> std::result::Result<JoinHandle<()>, String> {
    std::thread::Builder::new().name(name.into()).spawn(body).map_err(|error| error.to_string())
}

fn stalled(deadline: Deadline) -> Failure {
    Failure::Stalled { operation: "the set-up of a communicator".into(), limit: deadline.limit() }
}

/// The life of the owner's thread.
fn own(
    shared: &Arc<Shared>,
    id: UniqueId,
    deadline: Deadline,
    orders: mpsc::Receiver<Order>,
    report: &mpsc::Sender<std::result::Result<(), Unmade>>,
) {
    let stream = match make(shared, id, deadline) {
        Ok(stream) => stream,
        Err(unmade) => {
            shared.comm.abort();
            // Without a receiver the one who asked has given up.
            let _ = report.send(Err(unmade));
            return shared.progress.closed();
        }
    };
    let _ = report.send(Ok(()));
    let mut owner = Owner::new(shared.clone(), stream, orders);
    owner.serve();
    leave::leave(shared);
    drop(owner);
    shared.progress.closed();
}

/// Makes the communicator, and the stream for it.
fn make(shared: &Shared, id: UniqueId, deadline: Deadline) -> std::result::Result<Stream, Unmade> {
    let refused = |refused: Refused| match refused.clone().failure(shared.rank) {
        Some(failure) => Unmade::Refused(refused.device_error(shared.gpu.ordinal), failure),
        None => Unmade::Failed(stalled(deadline)),
    };
    shared.gpu.bind().map_err(refused)?;
    let stream = Stream::new(&shared.gpu).map_err(refused)?;
    shared.comm.begin(shared.world_size, id, shared.rank).map_err(refused)?;
    let mut trouble = Trouble::default();
    while !shared.comm.is_settled("make its communicator").map_err(refused)? {
        if let Some(failure) = trouble.look(shared) {
            return Err(Unmade::Failed(failure));
        }
        if deadline.expired() {
            return Err(Unmade::Failed(stalled(deadline)));
        }
        std::thread::sleep(PAUSE);
    }
    Ok(stream)
}
