//! Which GPUs there are, who holds them, how they hang together, and which of them a rank takes.
//!
//! [`GpuReport::read`] asks NVML, the CUDA driver and the kernel; everything else is decided from its plain data by
//! functions that need no GPU. Absent NVML or an absent driver is a note in the report.
//!
//! CUDA numbers GPUs by an order of its own and shows only those of `CUDA_VISIBLE_DEVICES`; NVML numbers all of them by
//! their place on the bus. The two numbers of a GPU differ more often than not, so the report has both
//! ([`Gpu::ordinal`], [`Gpu::index`]), joined by UUID.
//!
//! ```
//! use burn_nccl::devices::{GpuReport, freest};
//!
//! let report = GpuReport::read();
//! println!("{report}");
//! // One GPU per rank, by local rank (group.local_rank(), group.local_world_size()); or the two freest of the machine.
//! let own = report.ordinal_of(0, 1);
//! let two = freest(&report.gpus, 2, report.filter.as_deref());
//! # let _ = (own, two);
//! ```

mod choose;
mod claim;
mod driver;
mod gpu;
mod nvml;
mod report;
mod sysfs;
mod topology;
mod visible;

#[cfg(test)]
mod double_tests;

pub use choose::{by_freedom, existing_ordinal, first_unless_held, freest, ordinal_of_rank};
pub use claim::GpuClaim;
pub use gpu::{ComputeMode, Gpu, GpuMemory, Holder, HostSite, Mig};
pub use nvml::PeerLink;
pub use report::GpuReport;
pub use sysfs::Sysfs;
pub use topology::{Distance, Topology, TopologyGpu};
pub use visible::{DeviceOrder, Ordinals, Stop, VisibleDevices, places_by_uuid};
