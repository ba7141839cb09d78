//! What stands for MPI in a build without it: the reason why it cannot be used.

use super::{choose::World, control::Control, tcp::Tcp};
use crate::{
    Error, Result,
    deadline::Deadline,
    rendezvous::{Environment, Found},
    transport::TransportKind,
};

const REASON: &str = "this program was built without the feature `mpi` of burn-nccl";

/// As with MPI; nothing to prepare here.
pub(crate) fn prepare(_: &Environment, _: TransportKind, _: Deadline) -> Result<Option<Found>> {
    Ok(None)
}

/// As with MPI.
pub(super) fn world() -> Result<World, String> {
    Err(REASON.to_owned())
}

/// As with MPI; nobody comes here, since no rank has a place in its world.
pub(super) fn connect(_: &[usize], _: u32, _: &Control, _: Deadline) -> Result<Tcp> {
    Err(Error::Mpi { action: "join the ranks".into(), class: 0, text: REASON.into() })
}
