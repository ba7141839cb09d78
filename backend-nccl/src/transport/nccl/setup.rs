//! How the ranks of a group come to a communicator: what they have is compared first, because NCCL itself would hang, or
//! fail on one of them.

use std::{
    sync::{Arc, mpsc},
    thread::JoinHandle,
    time::Duration,
};

use serde::{Serialize, de::DeserializeOwned};

use super::{
    api::UniqueId,
    communicator::Communicator,
    compare::compare,
    engine::Settings,
    event::Events,
    find::{self, Found},
    life::{self, Unmade},
    progress::Progress,
    shared::Shared,
    thread::Order,
    watch,
};
use crate::{
    Error, Result,
    deadline::Deadline,
    device_error::DeviceError,
    failure::Failure,
    transport::{StreamOrdering, Transport},
};

/// How long a rank whose part has failed waits for the others to say so too, before it ends theirs.
const OUTCOME_LIMIT: Duration = Duration::from_secs(2);
/// Beyond the deadline, for the thread that keeps it.
const SLACK: Duration = Duration::from_secs(5);

/// A communicator with its threads.
pub(super) struct Running {
    pub(super) shared: Arc<Shared>,
    pub(super) queue: mpsc::Sender<Order>,
    pub(super) threads: Vec<JoinHandle<()>>,
    pub(super) ordering: StreamOrdering,
    pub(super) version: String,
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
    let id = setup.unique_id(&found)?;
    setup.start(&found, id)
}

impl Setup {
    /// Finds what this rank has, and compares it with the others.
    fn agree(&self) -> Result<Found> {
        let found = find::find(&self.settings, self.deadline);
        let own = found.as_ref().map(|found| find::identify(found, &self.settings)).map_err(Clone::clone);
        let ranks = compare(self.gather("identity", &own, self.deadline)?);
        let ranks = ranks.map_err(|wrong| self.device_error(wrong.rank, *wrong.error))?;
        for (rank, identity) in ranks.iter().enumerate() {
            log::debug!("rank {rank}: {identity:?}");
        }
        // An error of its own is among those that were compared.
        found.map_err(|error| self.device_error(self.settings.rank, error))
    }

    /// The id that rank 0 makes.
    fn unique_id(&self, found: &Found) -> Result<UniqueId> {
        let own: Option<std::result::Result<Vec<u8>, DeviceError>> = (self.settings.rank == 0).then(|| {
            let id = found.api.unique_id().map(|id| id.0.to_vec());
            id.map_err(|refused| found.explain(refused.device_error(self.settings.ordinal)))
        });
        let posts = self.gather("id", &own, self.deadline)?;
        let id = posts.into_iter().next().flatten().unwrap_or(Ok(Vec::new()));
        let id = id.map_err(|error| self.device_error(0, error))?;
        let id = <[u8; 128]>::try_from(id).map_err(|_| {
            let detail = "its id for a communicator has a wrong length".into();
            self.set_up(self.group.abort(Failure::Protocol { rank: 0, detail }))
        })?;
        Ok(UniqueId(id))
    }

    /// Makes the communicator on the thread that will own it, and learns how it went on all ranks.
    fn start(&self, found: &Found, id: UniqueId) -> Result<Running> {
        let shared = Arc::new(Shared {
            rank: self.settings.rank,
            world_size: self.settings.world_size,
            timeout: self.settings.timeout,
            label: self.label.clone(),
            group: self.group.clone(),
            events: Events::new(&found.gpu),
            gpu: found.gpu.clone(),
            comm: Communicator::new(found.api.clone()),
            progress: Progress::default(),
            held: Default::default(),
        });
        let (queue, orders) = mpsc::channel();
        let (made, threads) = self.make(&shared, id, orders);
        let outcome = self.outcome(made.map_err(|unmade| unmade.explained(found)));
        if let Err(error) = outcome {
            // The threads end by themselves, the owner when it comes out of NCCL.
            let failure = Failure::Aborted { rank: self.settings.rank, reason: error.to_string() };
            shared.progress.fail(failure);
            return Err(error);
        }
        let (ordering, version) = (found.ordering, found.api.version.to_string());
        Ok(Running { shared, queue, threads, ordering, version })
    }

    /// Starts the threads, and waits until the communicator is made on this rank.
    fn make(
        &self,
        shared: &Arc<Shared>,
        id: UniqueId,
        orders: mpsc::Receiver<Order>,
    ) -> (std::result::Result<(), Unmade>, Vec<JoinHandle<()>>) {
        let (report, made) = mpsc::channel();
        let (deadline, owned, watched) = (self.deadline, shared.clone(), shared.clone());
        let owner = spawn("burn-nccl-device", move || life::live(&owned, id, deadline, orders, &report));
        let watchdog = spawn("burn-nccl-watch", move || watch::watch(watched));
        let made = match (&owner, &watchdog) {
            (Ok(_), Ok(_)) => made
                .recv_timeout(self.deadline.later(SLACK).remaining())
                .unwrap_or_else(|_| Err(Unmade::Failed(life::stalled(self.deadline)))),
            (Err(detail), _) | (_, Err(detail)) => {
                shared.progress.closed();
                let action = "start a thread for its communicator".into();
                let (rank, detail) = (self.settings.rank, detail.clone());
                Err(Unmade::Failed(Failure::System { rank, action, detail }))
            }
        };
        (made, [owner, watchdog].into_iter().flatten().collect())
    }

    /// Whether all ranks have the communicator. Otherwise the same error on all.
    fn outcome(&self, made: std::result::Result<(), Unmade>) -> Result<()> {
        let (own, failure) = match made {
            Ok(()) => (Ok(()), None),
            Err(Unmade::Refused(refused)) => {
                let (error, failure) = *refused;
                (Err(error), Some(failure))
            }
            Err(Unmade::Failed(failure)) => return Err(self.set_up(self.group.abort(failure))),
        };
        let deadline = match &failure {
            None => self.deadline.later(SLACK),
            // The others may wait in NCCL for this rank, and then say nothing.
            Some(_) => Deadline::after(OUTCOME_LIMIT.min(self.deadline.later(SLACK).remaining())),
        };
        let outcomes = self.post::<std::result::Result<(), DeviceError>>("outcome", &own, deadline);
        let outcomes = outcomes.map_err(|other| self.set_up(self.group.abort(failure.unwrap_or(other))))?;
        let wrong = outcomes.into_iter().enumerate().find_map(|(rank, it)| Some((rank, it.err()?)));
        wrong.map_or(Ok(()), |(rank, error)| Err(self.device_error(rank, error)))
    }

    /// Every rank's value, in rank order. Without them the group has ended.
    fn gather<T: Serialize + DeserializeOwned>(
        &self,
        what: &str,
        own: &T,
        deadline: Deadline,
    ) -> Result<Vec<T>> {
        self.post(what, own, deadline).map_err(|failure| self.set_up(self.group.abort(failure)))
    }

    fn post<T: Serialize + DeserializeOwned>(
        &self,
        what: &str,
        own: &T,
        deadline: Deadline,
    ) -> std::result::Result<Vec<T>, Failure> {
        let unreadable = |rank| {
            let detail = format!("its {what} for a communicator cannot be read");
            Failure::Protocol { rank, detail }
        };
        let own = serde_json::to_vec(own).map_err(|_| unreadable(self.settings.rank))?;
        let posts = self.group.gather(&format!("{}/{what}", self.label), &own, deadline)?;
        let read =
            |(rank, post): (usize, &Vec<u8>)| serde_json::from_slice(post).map_err(|_| unreadable(rank));
        posts.iter().enumerate().map(read).collect()
    }

    fn device_error(&self, rank: usize, error: DeviceError) -> Error {
        Error::Device { rank, world_size: self.settings.world_size, error: Box::new(error) }
    }

    fn set_up(&self, failure: Failure) -> Error {
        let Settings { rank, world_size, .. } = self.settings;
        Error::SetUp { rank, world_size, failure }
    }
}

fn spawn(name: &str, body: impl FnOnce() + Send + 'static) -> std::result::Result<JoinHandle<()>, String> {
    std::thread::Builder::new().name(name.into()).spawn(body).map_err(|error| error.to_string())
}
