//! Which transport a group is to use.

use serde::{Deserialize, Serialize};

use super::named::named;

/// The transport that carries a group's data.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum TransportKind {
    /// What suits where the ranks are: shared memory where they share one host. Between hosts MPI, where its launcher
    /// started them and it is built in, else TCP; and where a host has several ranks, shared memory within it as a first and
    /// a last step of an all-reduce, a broadcast or a barrier. Such steps add within a host before they add hosts, which
    /// the last bits of a sum can show.
    #[default]
    Auto,
    /// TCP connections between all ranks.
    Tcp,
    /// A memory segment that all ranks map; for ranks of one host.
    SharedMemory,
    /// The MPI library that started the ranks; needs the feature `mpi`.
    Mpi,
}

impl TransportKind {
    /// Every kind.
    pub const ALL: [Self; 4] = [Self::Auto, Self::Tcp, Self::SharedMemory, Self::Mpi];

    /// The name in the environment and on command lines: `auto`, `tcp`, `shm`, `mpi`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Tcp => "tcp",
            Self::SharedMemory => "shm",
            Self::Mpi => "mpi",
        }
    }
}

named!(TransportKind);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_reads_back_from_its_name() {
        for kind in TransportKind::ALL {
            assert_eq!(kind.to_string().parse(), Ok(kind));
        }
        assert_eq!("udp".parse::<TransportKind>(), Err("one of auto, tcp, shm, mpi".to_owned()));
    }
}
