//! What can be wrong with GPUs, the driver and NCCL before anything is computed: plain data, so that a rank can tell the
//! others, and every rank of a job reports the same.

use serde::{Deserialize, Serialize};

/// What is wrong with a GPU, the CUDA driver or NCCL.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
#[non_exhaustive]
pub enum DeviceError {
    /// A shared library that cannot be loaded.
    #[error("cannot load {library} (tried {}); {remedy}", tried.join("; "))]
    LibraryMissing {
        /// `NCCL`, `the CUDA driver` or `NVML`.
        library: String,
        /// What was tried, each with the loader's words.
        tried: Vec<String>,
        /// How to get it.
        remedy: String,
    },
    /// A library that lacks a function which every supported version has.
    #[error("{library} at {path} has no function {symbol}; {remedy}")]
    SymbolMissing {
        /// `NCCL` or `the CUDA driver`.
        library: String,
        /// Where it was loaded from.
        path: String,
        /// The function.
        symbol: String,
        /// What to do.
        remedy: String,
    },
    /// An NCCL that is too old.
    #[error(
        "NCCL {found} at {path} is too old, {oldest} is the oldest that works; install a newer libnccl2 (apt, or pip \
         install nvidia-nccl-cu12), or name one with BURN_NCCL_LIBRARY"
    )]
    NcclTooOld {
        /// Its version.
        found: String,
        /// The oldest supported one.
        oldest: String,
        /// Where it was loaded from.
        path: String,
    },
    /// Ranks with different versions of NCCL, which NCCL itself refuses late and without names.
    #[error(
        "rank 0 has NCCL {first} and rank {rank} has {other}; install one version on all nodes, or name one with \
         BURN_NCCL_LIBRARY"
    )]
    NcclVersionsDiffer {
        /// The first rank that differs from rank 0.
        rank: usize,
        /// The version of rank 0.
        first: String,
        /// The version of that rank.
        other: String,
    },
    /// A driver that is older than what NCCL was built for.
    #[error(
        "the driver of {host} is for CUDA {driver}, and NCCL {nccl} at {path} was built for CUDA {needed}; update the \
         driver, or install the NCCL for CUDA {driver} and name it with BURN_NCCL_LIBRARY"
    )]
    DriverTooOld {
        /// The machine.
        host: String,
        /// The newest CUDA that the driver supports.
        driver: String,
        /// The version of NCCL.
        nccl: String,
        /// Where it was loaded from.
        path: String,
        /// The CUDA it was built for.
        needed: String,
    },
    /// Two ranks of a job on one GPU.
    #[error(
        "ranks {first} and {second} both use the GPU {pci_bus_id} of {host}; give each rank a GPU of its own: start at \
         most one rank per GPU and let LOCAL_RANK choose it"
    )]
    SharedGpu {
        /// The lower rank.
        first: usize,
        /// The higher rank.
        second: usize,
        /// The machine.
        host: String,
        /// The GPU's place on the bus.
        pci_bus_id: String,
    },
    /// A GPU that is not there.
    #[error(
        "there is no GPU {ordinal}: {visible} are visible to this process{}; start at most one rank per GPU, check \
         nvidia-smi and CUDA_VISIBLE_DEVICES",
        filter.as_ref().map_or_else(String::new, |filter| format!(" (CUDA_VISIBLE_DEVICES={filter})"))
    )]
    NoSuchGpu {
        /// The CUDA ordinal that was asked for.
        ordinal: usize,
        /// How many there are.
        visible: usize,
        /// What `CUDA_VISIBLE_DEVICES` says, if anything.
        filter: Option<String>,
    },
    /// A `CUDA_VISIBLE_DEVICES` that names nothing.
    #[error("CUDA_VISIBLE_DEVICES={value}: {reason}; list GPU numbers or UUIDs as nvidia-smi -L shows them")]
    VisibleDevices {
        /// Its value.
        value: String,
        /// What is wrong.
        reason: String,
    },
    /// The CUDA driver refused.
    #[error("{action} failed: CUDA error {code} ({name}); check nvidia-smi and the kernel log for Xid lines")]
    Driver {
        /// What was tried.
        action: String,
        /// CUDA's code.
        code: i32,
        /// CUDA's name of it.
        name: String,
    },
    /// NCCL refused.
    #[error(
        "{action} failed: NCCL error {code} ({text}); run again with NCCL_DEBUG=INFO for its own account"
    )]
    Nccl {
        /// What was tried.
        action: String,
        /// NCCL's code.
        code: i32,
        /// NCCL's words.
        text: String,
    },
    /// No memory on the GPU.
    #[error(
        "no {bytes} bytes on GPU {ordinal} for {purpose}; make the batch or the buckets smaller, or look with nvidia-smi who \
         holds the memory"
    )]
    OutOfMemory {
        /// The CUDA ordinal.
        ordinal: usize,
        /// What was asked for.
        bytes: usize,
        /// What for.
        purpose: String,
    },
    /// A collective while a graph is captured.
    #[error("collectives cannot be captured in a CUDA graph; end the capture before {call}")]
    Capturing {
        /// The collective.
        call: String,
    },
    /// A GPU's memory that cannot be had.
    #[error("the memory of a tensor cannot be used: {reason}")]
    Memory {
        /// CubeCL's words.
        reason: String,
    },
    /// Streams that cannot be ordered as was asked.
    #[error(
        "{reason}; leave BURN_NCCL_STREAM_ORDERING at auto, or set it to host-fence, which every driver can"
    )]
    Ordering {
        /// What is missing.
        reason: String,
    },
    /// A variable of the environment that changes NCCL so that it cannot be worked with.
    #[error("{name}={value} {reason}; {remedy}")]
    Variable {
        /// The variable.
        name: String,
        /// Its value.
        value: String,
        /// What it does.
        reason: String,
        /// What to do.
        remedy: String,
    },
    /// Ranks whose tensors are on different kinds of devices.
    #[error(
        "rank {rank} takes part with a GPU and rank {other} {found}; give all ranks the same kind of device and the same \
         BURN_NCCL_DEVICE_TRANSPORT"
    )]
    DevicesDiffer {
        /// A rank with a GPU.
        rank: usize,
        /// One that differs.
        other: usize,
        /// What it does.
        found: String,
    },
}
