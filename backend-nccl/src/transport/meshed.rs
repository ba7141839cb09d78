//! The transport of a group of several ranks: control connections, and an engine that moves the data.

use super::{
    Buffer, Call, Collective, Mesh, Patience, Transport, Wish, Witness,
    control::{Control, Obstacle},
    engine::Engine,
    members::Members,
    mesh::Connecting,
    start,
};
use crate::{Error, Result, deadline::Deadline, failure::Failure, rendezvous::Role};

/// The transport of a group whose ranks have found each other.
#[derive(Debug)]
pub(crate) struct Meshed {
    mesh: Mesh,
    all: Members,
    control: Control,
    engine: Box<dyn Engine>,
}

/// Connects the ranks of a mesh: control first, then the engine that suits them all, then a first barrier.
///
/// # Errors
///
/// A rank that cannot be reached or fails meanwhile, by the deadline.
pub(crate) fn connect(
    mesh: Mesh,
    mut connecting: Connecting,
    wish: Wish,
    deadline: Deadline,
) -> Result<Meshed> {
    let (rank, world_size) = (mesh.identity.rank, mesh.identity.world_size);
    let all = Members::all(rank, world_size);
    let failed = |failure| Error::SetUp { rank, world_size, failure };
    let connections = connecting.connect(Role::Control, &all.others(), None, deadline)?;
    let control = Control::start(rank, world_size, connections, mesh.host_timeout).map_err(failed)?;
    let engine = start::start(&mesh, &control, &mut connecting, wish, deadline).inspect_err(|error| {
        // Otherwise the others would see this rank's end and take it for the cause.
        let failure = match error {
            Error::SetUp { failure, .. } => failure.clone(),
            error => Failure::Aborted { rank, reason: error.to_string() },
        };
        control.fail(failure);
    })?;
    let meshed = Meshed { mesh, all, control, engine };
    // Rank 0 may close the rendezvous only when no rank needs it any more.
    let call = Call {
        sequence: 0,
        deadline,
        check: false,
        checksums: false,
        patience: Patience::Waiting,
        part_of: None,
    };
    meshed.execute(call, Collective::Barrier).map_err(failed)?;
    Ok(meshed)
}

impl Meshed {
    fn fail(&self, failure: Failure) -> Failure {
        let first = self.control.fail(failure);
        // Only now: the end of its data makes a peer look for the reason.
        self.engine.shutdown();
        first
    }

    /// What a failure is once the others have been asked. One that another rank has told meanwhile comes first, so that
    /// all report the same.
    fn examined(&self, failure: Failure) -> Failure {
        let is_asked_about =
            matches!(failure, Failure::Deadline { .. } | Failure::Stalled { .. } | Failure::Mismatch { .. });
        match (self.control.witness(), self.control.told()) {
            (Some(witness), None) if is_asked_about => {
                let failure = witness.examine(failure, &self.control);
                self.control.told().unwrap_or(failure)
            }
            (_, Some(told)) if is_asked_about => told,
            _ => failure,
        }
    }
}

impl Transport for Meshed {
    fn name(&self) -> &'static str {
        self.engine.name()
    }

    fn execute(&self, call: Call, collective: Collective<'_>) -> Result<(), Failure> {
        if let Some(failure) = self.control.failure() {
            // Which the others have heard before this returns.
            return Err(self.control.fail(failure));
        }
        let is_common = collective.is_common();
        // A message may find its bytes there although the group has ended; a collective belongs before or after the end.
        if !is_common && let Some(failure) = self.control.told() {
            return Err(self.fail(failure));
        }
        self.engine
            .run(&self.control, &self.all, call, collective)
            .map_err(|failure| self.fail(self.examined(failure)))?;
        if is_common {
            self.control.complete(call.sequence);
        }
        Ok(())
    }

    fn abort(&self, failure: Failure) -> Failure {
        self.fail(self.examined(failure))
    }

    fn obstacle(&self) -> Option<Failure> {
        let lost = || self.control.obstacle_among(None, self.all.others()).map(Obstacle::failure);
        self.control.failure().or_else(lost)
    }

    fn fault(&self) -> Option<Failure> {
        self.control.fault()
    }

    fn gather(&self, label: &str, value: &[u8], deadline: Deadline) -> Result<Vec<Vec<u8>>, Failure> {
        self.control.gather(label, value, deadline)
    }

    fn posted(&self, label: &str) -> Vec<Option<Vec<u8>>> {
        self.control.posted(label)
    }

    fn allocate(&self, len_bytes: usize) -> Buffer {
        self.engine.allocate(len_bytes).unwrap_or_else(|| Buffer::on_heap(len_bytes))
    }

    fn set_witness(&self, witness: std::sync::Arc<dyn Witness>) {
        self.control.set_witness(witness);
    }

    fn mesh(&self) -> Option<&Mesh> {
        Some(&self.mesh)
    }

    fn close(&self) {
        self.control.goodbye();
    }
}
