//! What `CUDA_VISIBLE_DEVICES` and `CUDA_DEVICE_ORDER` mean: which GPU each CUDA ordinal is.
//!
//! Sources: [CUDA Programming Guide, Environment Variables](https://docs.nvidia.com/cuda/cuda-programming-guide/05-appendices/environment-variables.html)
//! for indices, abbreviated UUIDs, what an invalid entry does and the two orders; [MIG User Guide, Device Names](https://docs.nvidia.com/datacenter/tesla/mig-user-guide/mig-device-names.html)
//! for the two forms of instances. What they leave open is taken from what the driver does: a repeated entry hides
//! everything, a number ends at its first character that is no digit, and the first entry decides whether the list is of
//! numbers, GPUs or instances (so does `torch.cuda`, which reads the variable by the same rules).

mod entry;
mod place;

use serde::Serialize;

use self::entry::Entry;
use self::place::{Miss, enumeration, is_instance, place_of};
use super::{Gpu, Mig};

/// What `CUDA_VISIBLE_DEVICES` says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VisibleDevices {
    /// What is listed, up to the first entry that cannot be meant; `None` where the variable is not set.
    entries: Option<Vec<Entry>>,
    /// Why the list ends before its end.
    stop: Option<Stop>,
}

/// An entry at which CUDA stops to read the list: it and all after it count as hidden.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Stop {
    /// The entry.
    pub entry: String,
    /// What is wrong with it.
    pub reason: String,
}

/// In which order CUDA numbers the GPUs that an index counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DeviceOrder {
    /// The fastest first, by a rule of the driver's own. The default.
    #[default]
    FastestFirst,
    /// By place on the bus, as NVML and `nvidia-smi` number them.
    PciBusId,
}

/// Which GPUs the CUDA ordinals of a process are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ordinals {
    /// The places of the GPUs in the list that was asked about, by ordinal.
    Known {
        /// One for each ordinal.
        places: Vec<usize>,
        /// The entry after which all is hidden, where there is one.
        stop: Option<Stop>,
    },
    /// Only the driver can tell.
    Unknown {
        /// Why.
        reason: String,
    },
}

impl DeviceOrder {
    /// What `CUDA_DEVICE_ORDER` asks for. CUDA takes a name that it does not know for the default.
    pub fn parse(value: Option<&str>) -> Self {
        match value {
            Some("PCI_BUS_ID") => Self::PciBusId,
            _ => Self::FastestFirst,
        }
    }
}

impl VisibleDevices {
    /// Reads the value of the variable; `None` is a variable that is not set, which hides nothing. An empty value hides
    /// all.
    pub fn parse(value: Option<&str>) -> Self {
        let Some(value) = value else { return Self { entries: None, stop: None } };
        let mut entries: Vec<Entry> = Vec::new();
        let mut stop = None;
        for text in value.split(',').map(str::trim) {
            match Entry::parse(text, entries.first()) {
                Ok(entry) => entries.push(entry),
                Err(reason) => {
                    // A value that is empty, or -1, is how one says that all are to be hidden.
                    let is_meant = entries.is_empty() && matches!(text, "" | "-1");
                    stop = (!is_meant).then(|| Stop { entry: text.to_owned(), reason });
                    break;
                }
            }
        }
        Self { entries: Some(entries), stop }
    }

    /// Which of `gpus` each ordinal is. They are all GPUs of the machine in NVML's order, a divided one before its
    /// instances.
    pub fn resolve(&self, gpus: &[Gpu], order: DeviceOrder) -> Ordinals {
        let Some(entries) = &self.entries else { return unfiltered(gpus, order) };
        let (mut places, mut stop) = (Vec::new(), self.stop.clone());
        for entry in entries {
            let stop_here = |reason| Some(Stop { entry: entry.to_string(), reason });
            match place_of(entry, gpus, order) {
                Ok(place) if places.contains(&place) => {
                    let reason = "it is listed twice, which hides all GPUs".to_owned();
                    return Ordinals::Known { places: Vec::new(), stop: stop_here(reason) };
                }
                Ok(place) => places.push(place),
                Err(Miss::Unknown(reason)) => return Ordinals::Unknown { reason },
                Err(Miss::Invalid(reason)) => {
                    stop = stop_here(reason);
                    break;
                }
            }
        }
        one_instance(gpus, places, stop)
    }
}

/// All GPUs, where no variable hides any.
fn unfiltered(gpus: &[Gpu], order: DeviceOrder) -> Ordinals {
    if gpus.iter().any(|gpu| gpu.mig != Mig::Off) {
        let reason = "a GPU is divided into MIG instances, of which the driver chooses one".to_owned();
        return Ordinals::Unknown { reason };
    }
    match enumeration(gpus, order) {
        Ok(places) => Ordinals::Known { places, stop: None },
        Err(reason) => Ordinals::Unknown { reason },
    }
}

/// A process has one MIG instance at most, the first that is listed, and no whole GPU beside it.
fn one_instance(gpus: &[Gpu], mut places: Vec<usize>, stop: Option<Stop>) -> Ordinals {
    let Some(instance) = places.iter().copied().find(|place| is_instance(&gpus[*place])) else {
        return Ordinals::Known { places, stop };
    };
    let hidden = places.iter().copied().find(|place| *place != instance);
    places = vec![instance];
    let reason = || "a process can use one MIG instance, and nothing beside it".to_owned();
    let stop = hidden.map(|place| Stop { entry: gpus[place].uuid.clone(), reason: reason() }).or(stop);
    Ordinals::Known { places, stop }
}

/// Which of `gpus` each ordinal is, by the UUIDs that the driver gives its ordinals; `None` for one that is not in the list.
///
/// The driver's word is better than what the environment lets one conclude. UUIDs are compared by their digits: those of
/// instances have another prefix at times.
pub fn places_by_uuid(uuids: &[String], gpus: &[Gpu]) -> Vec<Option<usize>> {
    let digits = |uuid: &str| uuid.trim_start_matches("MIG-").trim_start_matches("GPU-").to_ascii_lowercase();
    uuids.iter().map(|uuid| gpus.iter().position(|gpu| digits(&gpu.uuid) == digits(uuid))).collect()
}

#[cfg(test)]
mod tests;
