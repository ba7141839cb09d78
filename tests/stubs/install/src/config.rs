//! What a double is told to be and to do wrong. Written as `stub.json` beside the libraries.

use serde::{Deserialize, Serialize};

/// The configuration of both doubles.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// The double of the driver.
    pub cuda: Cuda,
    /// The double of NCCL.
    pub nccl: Nccl,
}

/// The double of the driver.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Cuda {
    /// What `cuDriverGetVersion` says, such as 12080.
    pub driver_version: i32,
    /// The GPUs; by default four.
    pub devices: Vec<Device>,
    /// Functions that the library does not have.
    pub missing: Vec<String>,
    /// Calls that fail. The `who` of an injection is the ordinal of the current context's GPU.
    pub injections: Vec<Injection>,
    /// Where the random delays start from.
    pub seed: u64,
    /// The longest random delay before an operation of a stream, in microseconds.
    pub max_delay_us: u64,
    /// Whether freed memory is overwritten, kept from being handed out again, and its use a fault.
    pub poison: bool,
    /// Whether `cuMemFree` waits until the GPU is idle, as real drivers do though it is not documented.
    /// Off, it frees at once, so that freeing too early is found.
    pub free_waits: bool,
    /// Whether `cuCtxRecordEvent` captures nothing, as a driver would whose context events do not work.
    pub context_events_are_empty: bool,
}

/// A GPU of the double.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Device {
    /// Its name.
    pub name: String,
    /// Its 16 bytes.
    pub uuid: [u8; 16],
    /// Its place on the bus.
    pub pci_bus_id: String,
    /// Its memory.
    pub memory_bytes: u64,
    /// Its compute capability.
    pub compute_capability: (i32, i32),
}

/// The double of NCCL.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Nccl {
    /// What `ncclGetVersion` says, such as 22703.
    pub version: i32,
    /// Functions that the library does not have.
    pub missing: Vec<String>,
    /// Calls that fail. The `who` of an injection is the rank.
    pub injections: Vec<Injection>,
    /// Calls that do not return until the communicator is aborted, and then with the code; every call of a function.
    pub stuck: Vec<Injection>,
    /// How many polls report `ncclInProgress` after each call on a non-blocking communicator; the operation starts after them.
    pub in_progress_polls: u32,
    /// Errors that polls report from some operation on.
    pub async_errors: Vec<AsyncError>,
    /// Operations that do not end until the communicator is aborted.
    pub hangs: Vec<Operation>,
    /// Ranks whose communicator is never made.
    pub init_hangs: Vec<usize>,
    /// What happens to the operations of the others when a rank leaves without a word.
    pub peer_loss: PeerLoss,
    /// Whether two ranks may share a GPU.
    pub shared_gpu: bool,
    /// Where the random delays start from.
    pub seed: u64,
    /// The longest random delay within an operation, in microseconds.
    pub max_delay_us: u64,
}

/// A call that fails with a code and does nothing else.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Injection {
    /// The function, such as `ncclAllReduce`.
    pub function: String,
    /// Which call fails, counted from 1; 0 is every call.
    pub call: u64,
    /// What it returns; any number.
    pub code: i32,
    /// Whose calls are counted; by default everyone's.
    pub who: Option<usize>,
}

/// One operation of one rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Operation {
    /// The rank.
    pub rank: usize,
    /// The operation, counted from 1 over all communicators of the rank.
    pub operation: u64,
}

/// An error that polls report.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AsyncError {
    /// The rank that sees it.
    pub rank: usize,
    /// How many operations end before it.
    pub after: u64,
    /// The code.
    pub code: i32,
}

/// What the others see when a rank leaves without a word.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum PeerLoss {
    /// Nothing: their operations never end, as over shared memory and NVLink.
    #[default]
    Hang,
    /// `ncclRemoteError` in polls, as over sockets; their operations never end.
    RemoteError,
}

impl Injection {
    /// The failure of one call, counted from 1, whoever makes it.
    pub fn new(function: &str, call: u64, code: i32) -> Self {
        Self { function: function.to_owned(), call, code, who: None }
    }

    /// The same for the calls of one rank, or of one GPU.
    pub fn of(mut self, who: usize) -> Self {
        self.who = Some(who);
        self
    }
}

impl Device {
    /// The GPU of an ordinal, with an identity of its own.
    pub fn numbered(ordinal: u8) -> Self {
        let mut uuid = *b"burn-nccl stub \0";
        uuid[15] = ordinal;
        Self {
            name: "Test Double".to_owned(),
            uuid,
            pci_bus_id: format!("0000:{:02X}:00.0", 0x10 + ordinal),
            memory_bytes: 8 << 30,
            compute_capability: (9, 0),
        }
    }
}

impl Default for Device {
    fn default() -> Self {
        Self::numbered(0)
    }
}

impl Default for Cuda {
    fn default() -> Self {
        Self {
            driver_version: 12080,
            devices: (0..4).map(Device::numbered).collect(),
            missing: Vec::new(),
            injections: Vec::new(),
            seed: 1,
            max_delay_us: 200,
            poison: true,
            free_waits: false,
            context_events_are_empty: false,
        }
    }
}

impl Default for Nccl {
    fn default() -> Self {
        Self {
            version: 22703,
            missing: Vec::new(),
            injections: Vec::new(),
            stuck: Vec::new(),
            in_progress_polls: 0,
            async_errors: Vec::new(),
            hangs: Vec::new(),
            init_hangs: Vec::new(),
            peer_loss: PeerLoss::Hang,
            shared_gpu: false,
            seed: 1,
            max_delay_us: 200,
        }
    }
}
