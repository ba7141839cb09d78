//! Which transport a group is to use.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};

/// The transport that carries a group's data.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum TransportKind {
    /// The fastest that all ranks can use.
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

impl fmt::Display for TransportKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for TransportKind {
    type Err = String;

    /// The kind of a name; else the text of what would be right.
    fn from_str(name: &str) -> Result<Self, String> {
        let kind = Self::ALL.into_iter().find(|kind| kind.name() == name);
        kind.ok_or_else(|| format!("one of {}", Self::ALL.map(Self::name).join(", ")))
    }
}

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
