//! What ranks tell each other before they make a communicator, and what must agree.

use serde::{Deserialize, Serialize};

use super::api::Version;
use crate::device_error::DeviceError;

/// The first NCCL that can serve two ranks on one GPU.
const FIRST_TO_SHARE: Version = Version(23000);

/// What a rank has.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Identity {
    /// NCCL's version, as `ncclGetVersion` gives it.
    pub(super) nccl: i32,
    /// The driver's, as `cuDriverGetVersion` gives it.
    pub(super) driver: i32,
    /// The machine's name, for people.
    pub(super) host: String,
    /// The machine, without a doubt.
    pub(super) machine: String,
    pub(super) ordinal: usize,
    /// The GPU's place on the bus.
    pub(super) pci_bus_id: String,
    /// Whether NCCL has been told that ranks may share a GPU.
    pub(super) may_share: bool,
    /// Whether its streams are ordered by context events, for the others' logs.
    pub(super) context_events: bool,
}

/// What is wrong, and the rank that it is told of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Wrong {
    pub(super) rank: usize,
    pub(super) error: Box<DeviceError>,
}

/// What all ranks have, in rank order, or the first thing that is wrong.
pub(super) fn compare(ranks: Vec<Result<Identity, DeviceError>>) -> Result<Vec<Identity>, Wrong> {
    let ranks: Vec<Identity> = ranks
        .into_iter()
        .enumerate()
        .map(|(rank, identity)| identity.map_err(|error| wrong(rank, error)))
        .collect::<Result<_, _>>()?;
    for (rank, identity) in ranks.iter().enumerate() {
        if let Some(first) = ranks.first().filter(|first| first.nccl != identity.nccl) {
            let (first, other) = (Version(first.nccl).to_string(), Version(identity.nccl).to_string());
            return Err(wrong(rank, DeviceError::NcclVersionsDiffer { rank, first, other }));
        }
    }
    for (second, identity) in ranks.iter().enumerate() {
        if let Some(first) = ranks[..second].iter().position(|other| share(other, identity)) {
            let (host, pci_bus_id) = (identity.host.clone(), identity.pci_bus_id.clone());
            return Err(wrong(second, DeviceError::SharedGpu { first, second, host, pci_bus_id }));
        }
    }
    Ok(ranks)
}

fn wrong(rank: usize, error: DeviceError) -> Wrong {
    Wrong { rank, error: Box::new(error) }
}

/// Whether two ranks have one GPU, and NCCL cannot serve both.
fn share(one: &Identity, other: &Identity) -> bool {
    let can_share = |identity: &Identity| identity.may_share && Version(identity.nccl) >= FIRST_TO_SHARE;
    let is_one = one.machine == other.machine && one.pci_bus_id.eq_ignore_ascii_case(&other.pci_bus_id);
    is_one && !(can_share(one) && can_share(other))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rank(nccl: i32, machine: &str, bus: &str) -> Identity {
        Identity {
            nccl,
            driver: 12040,
            host: machine.to_uppercase(),
            machine: machine.into(),
            ordinal: 0,
            pci_bus_id: bus.into(),
            may_share: false,
            context_events: false,
        }
    }

    #[test]
    fn the_error_of_the_lowest_rank_comes_before_any_difference() {
        let broken = |ordinal| Err(DeviceError::NoSuchGpu { ordinal, visible: 1, filter: None });
        let ranks = vec![Ok(rank(22703, "a", "1")), broken(1), broken(2), Ok(rank(21800, "a", "1"))];
        assert_eq!(
            compare(ranks).unwrap_err(),
            wrong(1, DeviceError::NoSuchGpu { ordinal: 1, visible: 1, filter: None })
        );
    }

    #[test]
    fn the_first_rank_with_another_version_is_named_with_both_versions() {
        let ranks = vec![Ok(rank(22703, "a", "1")), Ok(rank(22703, "a", "2")), Ok(rank(23007, "b", "1"))];
        let (first, other) = ("2.27.3".into(), "2.30.7".into());
        assert_eq!(
            compare(ranks).unwrap_err(),
            wrong(2, DeviceError::NcclVersionsDiffer { rank: 2, first, other })
        );
    }

    #[test]
    fn one_gpu_for_two_ranks_is_refused_unless_both_have_an_nccl_that_can_and_was_told() {
        let pair = |nccl, first: bool, second: bool| {
            let one = Identity { may_share: first, ..rank(nccl, "a", "00000000:3b:00.0") };
            let other = Identity { may_share: second, ..rank(nccl, "a", "00000000:3B:00.0") };
            compare(vec![Ok(rank(nccl, "b", "00000000:3B:00.0")), Ok(one), Ok(other)])
        };
        for (nccl, first, second) in [(23007, false, false), (23007, true, false), (22907, true, true)] {
            let found = pair(nccl, first, second).unwrap_err();
            let (host, pci_bus_id) = ("A".into(), "00000000:3B:00.0".into());
            assert_eq!(found, wrong(2, DeviceError::SharedGpu { first: 1, second: 2, host, pci_bus_id }));
        }
        assert_eq!(pair(23000, true, true).unwrap().len(), 3);
    }

    #[test]
    fn one_place_on_the_bus_of_two_machines_is_two_gpus() {
        let ranks = vec![Ok(rank(22703, "a", "1")), Ok(rank(22703, "b", "1"))];
        assert_eq!(compare(ranks.clone()), Ok(ranks.into_iter().map(Result::unwrap).collect()));
    }
}
