//! What stands for MPI in a build without it: the reason why it cannot be used.

use std::net::TcpListener;

use super::{TransportKind, choose::World, control::Control, tcp::Tcp};
use crate::{Error, Result, deadline::Deadline, rendezvous::Environment};

const REASON: &str = "this program was built without the feature `mpi` of burn-nccl";

/// Does nothing; the choice of a transport tells who asks for MPI by name.
pub(crate) fn prepare(_: &mut Environment, _: TransportKind, _: Deadline) -> Result<Option<TcpListener>> {
    Ok(None)
}

/// Why this process has no place in MPI's world.
pub(super) fn world() -> Result<World, String> {
    Err(REASON.to_owned())
}

/// Nobody comes here, since no rank has a place in MPI's world.
pub(super) fn connect(_: &[usize], _: u32, _: &Control, _: Deadline) -> Result<Tcp> {
    Err(Error::Mpi { action: "join the ranks".into(), class: 0, text: REASON.into() })
}
