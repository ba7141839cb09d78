//! Which GPU an entry of `CUDA_VISIBLE_DEVICES` means.

use super::super::{Gpu, Mig};
use super::{DeviceOrder, Entry};

/// Why an entry has no GPU.
pub(super) enum Miss {
    /// There is none.
    Invalid(String),
    /// Only the driver knows which.
    Unknown(String),
}

/// The place in the list of the GPU that an entry means.
pub(super) fn place_of(entry: &Entry, gpus: &[Gpu], order: DeviceOrder) -> Result<usize, Miss> {
    let found = match entry {
        Entry::Index(index) => {
            let places = enumeration(gpus, order).map_err(Miss::Unknown)?;
            let none = || format!("this machine has {} GPUs, counted from 0", places.len());
            places.get(*index).copied().ok_or_else(none)
        }
        Entry::Uuid(prefix) => by_uuid(gpus, prefix),
        Entry::Instance { gpu, gpu_instance, compute_instance } => {
            let mig = Mig::Instance { gpu_instance: *gpu_instance, compute_instance: *compute_instance };
            by_instance(gpus, gpu, mig)
        }
    };
    found.and_then(|place| first_instance(gpus, place)).map_err(Miss::Invalid)
}

/// The places of the whole GPUs by the number that an index of the list means.
pub(super) fn enumeration(gpus: &[Gpu], order: DeviceOrder) -> Result<Vec<usize>, String> {
    let whole: Vec<usize> = (0..gpus.len()).filter(|place| !is_instance(&gpus[*place])).collect();
    // Equal GPUs are equally fast, and the driver leaves them in the order of the bus.
    let are_equal = whole.windows(2).all(|pair| gpus[pair[0]].name == gpus[pair[1]].name);
    match order {
        DeviceOrder::FastestFirst if !are_equal => {
            Err("the GPUs differ, and which of them CUDA takes for the fastest is \
             known to the driver alone (CUDA_DEVICE_ORDER=PCI_BUS_ID orders them as nvidia-smi does)"
                .to_owned())
        }
        _ => Ok(whole),
    }
}

fn by_uuid(gpus: &[Gpu], prefix: &str) -> Result<usize, String> {
    let mut matching = (0..gpus.len()).filter(|place| gpus[*place].uuid.starts_with(prefix));
    match (matching.next(), matching.next()) {
        (Some(place), None) => Ok(place),
        (Some(_), Some(_)) => Err("several GPUs begin with it".to_owned()),
        (None, _) => Err("no GPU of this machine has that UUID".to_owned()),
    }
}

fn by_instance(gpus: &[Gpu], gpu: &str, mig: Mig) -> Result<usize, String> {
    let parent = by_uuid(gpus, gpu)?;
    let instances = instances_of(gpus, parent);
    instances
        .into_iter()
        .find(|place| gpus[*place].mig == mig)
        .ok_or_else(|| "that GPU has no such instance".to_owned())
}

/// The place itself; for a divided GPU that of its first instance, which is what CUDA makes of it.
fn first_instance(gpus: &[Gpu], place: usize) -> Result<usize, String> {
    match gpus[place].mig {
        Mig::Divided => {
            instances_of(gpus, place).first().copied().ok_or_else(|| "it has no MIG instance".to_owned())
        }
        _ => Ok(place),
    }
}

fn instances_of(gpus: &[Gpu], parent: usize) -> Vec<usize> {
    (parent + 1..gpus.len()).take_while(|place| is_instance(&gpus[*place])).collect()
}

pub(super) fn is_instance(gpu: &Gpu) -> bool {
    matches!(gpu.mig, Mig::Instance { .. })
}
