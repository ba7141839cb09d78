//! MPI as a transport (feature `mpi`): for clusters whose nodes talk over what MPI knows best.
//!
//! Bytes move by MPI's non-blocking messages between two ranks, never by its collectives: those know neither f16 nor bf16,
//! may add in any order, and cannot be left when a rank has died. Values are folded here, in rank order, so the results
//! have the same bits as over TCP, for every type and reduction.
//!
//! Three things are MPI's and cannot be changed from here. By default its launcher ends the whole job when a rank
//! dies or returns a failure, often before the others can tell the cause; the launcher's own message names that rank. A
//! process that exits without MPI_Finalize counts as failed, so the process finalizes MPI at its exit, for up to five
//! seconds, unless a group has failed. And MPI makes progress within calls only: a wait polls, at first without pause.

mod bootstrap;
mod checked;
mod data;
mod exchange;
mod lane;
mod library;
mod pause;
mod transfers;

use std::{
    collections::HashMap,
    ffi::c_int,
    net::TcpListener,
    sync::{Arc, Mutex, MutexGuard, PoisonError, atomic::Ordering},
};

use checked::Fault;
use exchange::{Exchange, Setting};
use library::Library;
use transfers::Pool;

use super::{
    Call, Collective, Signature, TransportKind, choose::World, control::Control, engine::Engine,
    members::Members,
};
use crate::{Error, Result, deadline::Deadline, failure::Failure, rendezvous::Environment};

/// The ranks of one group in MPI's world.
#[derive(Debug)]
pub(super) struct Mpi {
    library: Arc<Library>,
    /// MPI's rank of each rank of the group.
    ranks: Vec<c_int>,
    /// Distinguishes the messages of this group from those of any other.
    tag: c_int,
    group_tag: u32,
    pool: Mutex<Pool>,
    /// The last call in which each rank was seen.
    seen: Mutex<HashMap<usize, Signature>>,
}

/// Initializes MPI where the group needs it or may want it, and has it tell what the environment leaves out. Returns the
/// socket of rank 0 if that is where it waits for the others.
///
/// # Errors
///
/// [`Error::Mpi`] where MPI is needed and fails, or knows the ranks by other numbers than the launcher.
pub(crate) fn prepare(
    environment: &mut Environment,
    kind: TransportKind,
    deadline: Deadline,
) -> Result<Option<TcpListener>> {
    let is_needed = environment.mpi && (environment.master_addr.is_empty() || environment.master_port == 0);
    let is_wanted = kind == TransportKind::Mpi || environment.mpi && kind == TransportKind::Auto;
    if !is_needed && !is_wanted {
        return Ok(None);
    }
    match library::start(deadline).and_then(|library| agreed(library, environment)) {
        Ok(library) if is_needed => bootstrap::find(&library, environment, deadline),
        Ok(_) => Ok(None),
        Err(fault) if is_needed => Err(fault.into()),
        Err(fault) => {
            log::warn!("rank {} goes on without MPI, which {fault}", environment.rank);
            Ok(None)
        }
    }
}

/// Whether MPI and the launcher's environment mean the same ranks. They do not where another MPI's mpirun started them.
fn agreed(library: Arc<Library>, environment: &Environment) -> Result<Arc<Library>, Fault> {
    let (found, expected) = ((library.rank, library.size), (environment.rank, environment.world_size));
    if found == expected {
        return Ok(library);
    }
    let text = format!(
        "{} takes this process for rank {} of {} and the launcher for rank {} of {}",
        library.version, found.0, found.1, expected.0, expected.1
    );
    Err(Fault::ours("tell the ranks of the job", text))
}

/// This process's place in MPI's world, or why it has none.
pub(super) fn world() -> Result<World, String> {
    match library::started() {
        Some(Ok(library)) => Ok(World { rank: library.rank, size: library.size }),
        Some(Err(fault)) => Err(format!("MPI {fault}")),
        None => Err("MPI is used only where its launcher, such as mpirun, has started the ranks".into()),
    }
}

/// Joins the ranks of a group, given as MPI's rank of each. `group_tag` is the group's own mark on its headers.
pub(super) fn connect(
    world_ranks: &[usize],
    group_tag: u32,
    control: &Control,
    deadline: Deadline,
) -> Result<Mpi> {
    let library = library::start(deadline)?;
    // The first rank chooses the tag for all; every rank posts something.
    let own = if control.rank() == 0 { library.new_tag()? } else { 0 };
    let tags = control.gather("mpi tag", &own.to_le_bytes(), deadline).map_err(|failure| Error::SetUp {
        rank: control.rank(),
        world_size: control.world_size(),
        failure,
    })?;
    let tag = tags[0].as_slice().try_into().map(c_int::from_le_bytes);
    let tag =
        tag.map_err(|_| Fault::ours("agree on a tag", "rank 0 sent none; build all ranks from one version"))?;
    let ranks = world_ranks.iter().map(|rank| *rank as c_int).collect();
    Ok(Mpi { library, ranks, tag, group_tag, pool: Mutex::default(), seen: Mutex::default() })
}

impl Mpi {
    /// A rank of the group with its rank in MPI's world.
    fn peer(&self, rank: usize) -> (usize, c_int) {
        (rank, self.ranks[rank])
    }

    fn saw(&self, rank: usize, call: Signature) {
        lock(&self.seen).insert(rank, call);
    }

    fn last_seen(&self, rank: usize) -> Option<Signature> {
        lock(&self.seen).get(&rank).copied()
    }
}

impl Engine for Mpi {
    fn name(&self) -> &'static str {
        "mpi"
    }

    fn run(
        &self,
        control: &Control,
        among: &Members,
        call: Call,
        collective: Collective<'_>,
    ) -> Result<(), Failure> {
        let mut pool = lock(&self.pool);
        self.library.running.fetch_add(1, Ordering::AcqRel);
        let result = Exchange::new(Setting { mpi: self, control, among, call }, &mut pool, collective).run();
        self.library.running.fetch_sub(1, Ordering::AcqRel);
        if result.is_err() {
            self.library.failed.store(true, Ordering::Release);
        }
        result
    }

    /// A wait looks at the group's failure itself, within a millisecond.
    fn shutdown(&self) {
        self.library.failed.store(true, Ordering::Release);
    }
}

impl From<Fault> for Error {
    fn from(Fault { action, class, text }: Fault) -> Self {
        Self::Mpi { action, class, text }
    }
}

/// A poisoned lock guards plain values that are valid at every step, so the panic that poisoned it is no reason to stop.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
