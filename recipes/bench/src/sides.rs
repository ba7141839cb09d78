//! Everything that is compared, started once and measured in turn.

use std::io::Write;
use std::path::Path;
use std::process::Command;

use clap::ValueEnum;
use recipe_common::{RecipeError, Result};
use tempfile::NamedTempFile;

use crate::engine::{Measured, Order, Side, SideError, Variant, rank_arguments};

/// What to measure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Transport {
    /// TCP over the loopback interface.
    Tcp,
    /// Shared memory, with buffers in the segment and with buffers that are copied.
    Shm,
    /// The machine's MPI library.
    Mpi,
    /// All of them; MPI where the recipe was built with it.
    All,
}

impl Transport {
    /// # Errors
    /// MPI of a program without it.
    pub(crate) fn variants(self) -> Result<Vec<Variant>> {
        const SHARED: [Variant; 2] = [Variant::SharedResident, Variant::SharedCopies];
        match self {
            Self::Tcp => Ok(vec![Variant::Tcp]),
            Self::Shm => Ok(SHARED.to_vec()),
            Self::Mpi if cfg!(feature = "mpi") => Ok(vec![Variant::Mpi]),
            Self::Mpi => Err(RecipeError::usage(
                "cannot measure MPI",
                "this recipe-bench was built without it",
                "build it with --features mpi, or choose another --transport",
            )),
            Self::All if cfg!(feature = "mpi") => Ok([&SHARED[..], &[Variant::Tcp, Variant::Mpi]].concat()),
            Self::All => Ok([&SHARED[..], &[Variant::Tcp]].concat()),
        }
    }
}

const PEER: &str = include_str!("peer.py");

/// The ranks of everything that is compared. Those without an order wait and cost nothing.
pub(crate) struct Sides {
    own: Option<Side>,
    mpi: Option<Side>,
    peer: Option<Side>,
    /// The peer's program, for as long as it runs.
    _script: Option<NamedTempFile>,
}

impl Sides {
    /// Starts what `variants` need, `ranks` ranks of each.
    pub(crate) fn start(variants: &[Variant], ranks: usize, peer_python: Option<&Path>) -> Result<Self> {
        let needs_own = variants.iter().any(|variant| !matches!(variant, Variant::Mpi | Variant::Gloo));
        let own = needs_own.then(|| Side::own("burn-nccl", ranks)).transpose().map_err(own_failed)?;
        let needs_mpi = variants.contains(&Variant::Mpi);
        let mpi = needs_mpi.then(|| mpi(ranks)).transpose().map_err(mpi_failed)?;
        let (peer, script) = match peer_python {
            Some(python) if variants.contains(&Variant::Gloo) => {
                let (peer, script) = peer(python, ranks)?;
                (Some(peer), Some(script))
            }
            _ => (None, None),
        };
        Ok(Self { own, mpi, peer, _script: script })
    }

    /// What each rank says of one all-reduce.
    pub(crate) fn all_reduce(&mut self, variant: Variant, bytes: usize) -> Result<Vec<Measured>> {
        let (side, failed): (_, fn(SideError) -> RecipeError) = match variant {
            Variant::Mpi => (&mut self.mpi, mpi_failed),
            Variant::Gloo => (&mut self.peer, peer_failed),
            _ => (&mut self.own, own_failed),
        };
        let side = side.as_mut().expect("what is measured has been started");
        side.measure(Order::all_reduce(variant, bytes)).map_err(failed)
    }

    /// Bytes that all ranks together move in a second in the triad of STREAM; `None` where only the peer runs.
    pub(crate) fn memory_bandwidth(&mut self) -> Result<Option<f64>> {
        let Some(side) = self.own.as_mut().or(self.mpi.as_mut()) else { return Ok(None) };
        let order = Order::triad();
        let Order::Triad { bytes, .. } = order else { unreachable!("a triad is a triad") };
        let ranks = side.measure(order).map_err(own_failed)?;
        // Two arrays are read and one is written.
        Ok(Some(3.0 * bytes as f64 * ranks.len() as f64 / Measured::slowest(&ranks)))
    }
}

fn mpi(ranks: usize) -> std::result::Result<Side, SideError> {
    Side::start("mpirun", ranks, |address| {
        let mut command = Command::new("mpirun");
        // The others are not bound to cores either.
        command.args(["-n", &ranks.to_string(), "--oversubscribe", "--bind-to", "none"]);
        command.arg(std::env::current_exe()?).args(rank_arguments(address));
        command.env("RAYON_NUM_THREADS", "1");
        Ok(command)
    })
}

fn peer(python: &Path, ranks: usize) -> Result<(Side, NamedTempFile)> {
    let script = script().map_err(|error| RecipeError::file("write", &std::env::temp_dir(), error))?;
    let peer = Side::start(&python.display().to_string(), ranks, |address| {
        let mut command = Command::new(python);
        command.args(["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", &ranks.to_string()]);
        command.arg(script.path()).arg(address).env("OMP_NUM_THREADS", "1");
        Ok(command)
    });
    peer.map(|peer| (peer, script)).map_err(peer_failed)
}

fn script() -> std::io::Result<NamedTempFile> {
    let mut script = tempfile::Builder::new().suffix(".py").tempfile()?;
    script.write_all(PEER.as_bytes())?;
    Ok(script)
}

fn own_failed(error: SideError) -> RecipeError {
    RecipeError::failure("cannot measure", error.to_string(), "choose another --transport, or fewer --ranks")
}

fn mpi_failed(error: SideError) -> RecipeError {
    let remedy = "check that `mpirun -n 2 hostname` works; as root Open MPI wants OMPI_ALLOW_RUN_AS_ROOT=1 and \
                  OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1";
    RecipeError::failure("cannot measure MPI", error.to_string(), remedy)
}

fn peer_failed(error: SideError) -> RecipeError {
    let remedy = "give --peer-python the Python of an environment with torch, or leave it out";
    RecipeError::failure("cannot measure the peer", error.to_string(), remedy)
}
