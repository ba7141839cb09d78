//! Where the ranks of a job compute, and what to know of it before they begin.

use burn_nccl::Environment;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::device::{SelectedGpu, topology_warning};
use crate::machine::boot_id;

/// The key under which a rank says where it computes, beside its options.
pub(crate) const PLACE: &str = "place";

/// Where a rank computes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Place {
    machine: String,
    /// The GPU's place on the bus.
    gpu: Option<String>,
}

impl Place {
    /// This rank's.
    pub(crate) fn own(gpu: Option<&SelectedGpu>) -> Self {
        Self { machine: boot_id(), gpu: gpu.map(|gpu| gpu.pci_bus_id.clone()) }
    }

    /// That of the rank that has sent `bytes`.
    pub(crate) fn sent(bytes: &[u8]) -> Option<Self> {
        let sent: Map<String, Value> = serde_json::from_slice(bytes).ok()?;
        serde_json::from_value(sent.get(PLACE)?.clone()).ok()
    }
}

/// Warns once on each machine of GPUs that hang together badly.
pub(crate) fn warn_of_topology(places: &[Option<Place>], environment: &Environment) {
    if environment.local_rank == 0
        && let Some(warning) = topology_warning(&gpus_beside(places, environment.rank))
    {
        log::warn!("{warning}");
    }
}

/// The GPUs of all ranks on the machine of one.
fn gpus_beside(places: &[Option<Place>], rank: usize) -> Vec<String> {
    let Some(Some(own)) = places.get(rank) else { return Vec::new() };
    let beside = places.iter().flatten().filter(|place| place.machine == own.machine);
    beside.filter_map(|place| place.gpu.clone()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_gpus_of_a_machine_are_those_of_all_its_ranks_wherever_they_compute() {
        let sent = |machine: &str, gpu: Option<&str>| {
            let place = Place { machine: machine.into(), gpu: gpu.map(Into::into) };
            let bytes = serde_json::to_vec(&serde_json::json!({"lr": 0.1, PLACE: place})).unwrap();
            Place::sent(&bytes)
        };
        let places = [
            sent("a", Some("0000:3b:00.0")),
            sent("a", None),
            sent("b", Some("0000:3b:00.0")),
            sent("a", Some("0000:af:00.0")),
        ];
        assert_eq!(gpus_beside(&places, 0), ["0000:3b:00.0", "0000:af:00.0"]);
        assert_eq!(gpus_beside(&places, 2), ["0000:3b:00.0"]);
        assert_eq!(gpus_beside(&[None], 0), [""; 0]);
    }
}
