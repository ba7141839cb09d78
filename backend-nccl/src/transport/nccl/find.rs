//! What a rank has: the libraries, its GPU, and the ordering of streams that works there.

use std::sync::Arc;

use super::{
    api::Api, built_for::Cuda, compare::Identity, driver::Driver, engine::Settings, gpu::Gpu, ordering,
};
use crate::{
    deadline::Deadline,
    device_error::DeviceError,
    rendezvous::host_name,
    transport::{StreamOrdering, host},
};

/// What a rank has found.
pub(super) struct Found {
    pub(super) api: Arc<Api>,
    pub(super) gpu: Arc<Gpu>,
    pub(super) ordering: StreamOrdering,
}

/// Loads the libraries, takes hold of the GPU and tests how its streams can be ordered.
pub(super) fn find(settings: &Settings, deadline: Deadline) -> Result<Found, DeviceError> {
    settings.variables.check()?;
    let driver = Driver::load(&settings.libraries)?;
    let gpu = Gpu::retain(driver, settings.ordinal)?;
    let api = Api::load(&settings.libraries)?;
    if let Some(needed) = api.built_for().filter(|needed| is_too_new(*needed, gpu.driver.version)) {
        return Err(too_old(&api, &gpu, needed.to_string()));
    }
    let ordering = ordering::resolve(settings, &gpu, deadline)?;
    Ok(Found { api, gpu, ordering })
}

impl Found {
    /// What an error of NCCL comes from, where its words tell: what it was built for may not have been found in its file.
    pub(super) fn explain(&self, error: DeviceError) -> DeviceError {
        match &error {
            // The CUDA runtime's words for `cudaErrorInsufficientDriver`.
            DeviceError::Nccl { text, .. } if text.contains("driver version is insufficient") => {
                too_old(&self.api, &self.gpu, "newer than that".into())
            }
            _ => error,
        }
    }
}

fn too_old(api: &Api, gpu: &Gpu, needed: String) -> DeviceError {
    DeviceError::DriverTooOld {
        host: host_name(),
        driver: gpu.driver.cuda(),
        nccl: api.version.to_string(),
        path: api.path.display().to_string(),
        needed,
    }
}

/// Whether a library for CUDA `needed` cannot run on a driver: within one major version any can.
fn is_too_new(needed: Cuda, driver: i32) -> bool {
    i64::from(needed.major) > i64::from(driver / 1000)
}

/// What the others are told of it.
pub(super) fn identify(found: &Found, settings: &Settings) -> Identity {
    Identity {
        nccl: found.api.version.0,
        driver: found.gpu.driver.version,
        host: host_name(),
        machine: host::fingerprint(),
        ordinal: settings.ordinal,
        pci_bus_id: found.gpu.pci_bus_id.clone(),
        may_share: settings.variables.may_share,
        context_events: found.ordering == StreamOrdering::ContextEvents,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_driver_runs_what_was_built_for_its_own_major_version_of_cuda_or_an_older_one() {
        let needs = |major, minor| Cuda { major, minor };
        for (needed, driver, refused) in [
            ((12, 9), 12020, false),
            ((12, 2), 12090, false),
            ((11, 8), 13000, false),
            ((13, 0), 12090, true),
        ] {
            assert_eq!(is_too_new(needs(needed.0, needed.1), driver), refused, "{needed:?} on {driver}");
        }
    }
}
