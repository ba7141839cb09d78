//! GPUs: which one a rank takes, and what the log says of it.

use std::sync::{Arc, OnceLock};

use burn::tensor::{Device, DeviceType};
use burn_nccl::devices::{
    Gpu, GpuClaim, GpuReport, by_freedom, existing_ordinal, first_unless_held, freest, ordinal_of_rank,
};
use burn_nccl::{DeviceError, ProcessGroup};

use super::{DeviceChoice, DeviceTransport, Purpose, SelectedDevice, SelectedGpu};
use crate::error::{RecipeError, Result};

/// Keeps other runs that look for a free GPU away from one, for as long as the process lives.
pub(super) type Claim = GpuClaim;

/// What is known of the GPUs when the process first asks. A rank chooses once, soon after it begins.
fn report() -> &'static GpuReport {
    static REPORT: OnceLock<GpuReport> = OnceLock::new();
    REPORT.get_or_init(GpuReport::read)
}

pub(super) fn gpu_count() -> usize {
    Device::enumerate(DeviceType::Cuda).into_vec().len()
}

/// GPUs that nobody computes on.
pub(super) fn idle_count() -> usize {
    let idle = |gpu: &&Gpu| gpu.ordinal.is_some() && !gpu.is_held() && gpu.is_open();
    report().gpus.iter().filter(idle).count()
}

/// Why a machine with GPUs shows none, where `CUDA_VISIBLE_DEVICES` has a mistake.
pub(super) fn hidden_gpus() -> Option<String> {
    report().filter_error().map(|error| error.to_string())
}

/// The GPU of a rank.
pub(super) fn select(choice: DeviceChoice, purpose: Purpose) -> Result<SelectedDevice> {
    let (report, visible) = (report(), gpu_count());
    let refused = |error: DeviceError| {
        // Fewer GPUs than there should be are often those of a variable with a mistake.
        let error = report.filter_error().unwrap_or(error);
        RecipeError::from_text(format!("cannot use {choice}"), &error.to_string())
    };
    let (ordinal, claim) = match choice {
        DeviceChoice::CudaFree => free(report, visible, purpose, refused)?,
        _ => (named(choice, report, visible, purpose).map_err(refused)?, None),
    };
    let gpu = report.gpu(ordinal);
    // Others that look for a free GPU shall not take this one; whether it was free does not matter here.
    let claim = claim
        .or_else(|| gpu.filter(|_| purpose.takes).and_then(|gpu| GpuClaim::take(&gpu.uuid).ok().flatten()));
    if purpose.takes {
        tell(choice, ordinal, report, purpose);
    }
    let gpu = gpu.map(|gpu| SelectedGpu {
        name: gpu.name.clone(),
        pci_bus_id: gpu.pci_bus_id.clone(),
        _claim: claim.map(Arc::new),
    });
    Ok(SelectedDevice {
        device: Device::cuda(ordinal),
        backend: "cuda",
        name: format!("cuda:{ordinal}"),
        gpu,
    })
}

/// The ordinal that the options and the place in the job give.
fn named(
    choice: DeviceChoice,
    report: &GpuReport,
    visible: usize,
    purpose: Purpose,
) -> std::result::Result<usize, DeviceError> {
    let (filter, ranks) = (report.filter.as_deref(), purpose.local_world_size);
    match choice {
        DeviceChoice::CudaOrdinal(ordinal) => existing_ordinal(ordinal, visible, filter),
        DeviceChoice::Auto if ranks == 1 => match first_unless_held(&report.gpus) {
            Some(ordinal) => Ok(ordinal),
            None => ordinal_of_rank(purpose.local_rank, ranks, visible, filter),
        },
        _ => ordinal_of_rank(purpose.local_rank, ranks, visible, filter),
    }
}

/// The freest GPU that nobody else has taken. Each rank takes one for itself, in the order in which they come: what one has
/// taken the others do not get, though its memory is still free.
fn free(
    report: &GpuReport,
    visible: usize,
    purpose: Purpose,
    refused: impl Fn(DeviceError) -> RecipeError,
) -> Result<(usize, Option<Claim>)> {
    let Purpose { local_rank, local_world_size, takes } = purpose;
    if report.visible() == 0 && visible > 0 {
        log::warn!(
            "which GPU is free is not known ({}); each rank takes that of its local rank",
            report.notes.join("; ")
        );
        let filter = report.filter.as_deref();
        return ordinal_of_rank(local_rank, local_world_size, visible, filter)
            .map(|ordinal| (ordinal, None))
            .map_err(refused);
    }
    let own = freest(&report.gpus, local_world_size, report.filter.as_deref()).map_err(&refused)?;
    if !takes {
        return Ok((own[local_rank], None));
    }
    let open = by_freedom(&report.gpus);
    for &ordinal in &open {
        let Some(gpu) = report.gpu(ordinal) else { continue };
        match GpuClaim::take(&gpu.uuid) {
            Ok(Some(claim)) => return Ok((ordinal, Some(claim))),
            Ok(None) => {}
            Err(error) => {
                log::warn!(
                    "no GPU can be reserved ({error}); ranks that start later than others may choose the same one"
                );
                return Ok((own[local_rank], None));
            }
        }
    }
    Err(all_taken(open.len(), report.visible()))
}

fn all_taken(open: usize, visible: usize) -> RecipeError {
    RecipeError::failure(
        "cannot use cuda:free",
        format!(
            "other runs have taken all {open} GPUs that are open to this process, of {visible} that it sees"
        ),
        "wait until one ends, start fewer ranks, or name a GPU with --device cuda:N",
    )
}

/// Says which GPU is taken and why, and warns of who else computes on it.
fn tell(choice: DeviceChoice, ordinal: usize, report: &GpuReport, purpose: Purpose) {
    if purpose.local_rank == 0 {
        log::info!("GPUs of this machine:\n{report}");
    }
    let Some(gpu) = report.gpu(ordinal) else { return log::info!("taking cuda:{ordinal}") };
    let why = match choice {
        DeviceChoice::CudaFree => "the freest that no other run has taken",
        DeviceChoice::CudaOrdinal(_) => "as named",
        DeviceChoice::Auto if ordinal != 0 && purpose.local_world_size == 1 => {
            let first = report.gpu(0).and_then(Gpu::held_by).unwrap_or_else(|| "its compute mode".into());
            log::warn!("taking cuda:{ordinal} ({}), since cuda:0 is held by {first}", gpu.name);
            "the freest idle one"
        }
        _ => "by local rank",
    };
    log::info!("taking cuda:{ordinal} ({}, {}, {}): {why}", gpu.name, gpu.uuid, gpu.pci_bus_id);
    if let Some(holders) = gpu.held_by() {
        // No word here about what memory may lack: --find-batch-size looks for such words.
        log::warn!(
            "cuda:{ordinal} ({}) is held by {holders}, which leaves less of it; --device cuda:free takes the freest GPU, \
             and CUDA_VISIBLE_DEVICES hides GPUs",
            gpu.name
        );
    }
}

pub(super) fn device_transport(group: &ProcessGroup) -> Option<DeviceTransport> {
    let report = group.device_transport_report()?;
    let stream_ordering = report.stream_ordering.to_string();
    Some(DeviceTransport { nccl_version: report.nccl_version, stream_ordering })
}

pub(super) fn topology_warning(pci_bus_ids: &[String]) -> Option<String> {
    report().topology.of(pci_bus_ids).warning()
}
