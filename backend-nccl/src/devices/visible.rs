//! What `CUDA_VISIBLE_DEVICES` and `CUDA_DEVICE_ORDER` mean: which GPU each CUDA ordinal is.
//!
//! Sources: [CUDA Programming Guide, Environment Variables](https://docs.nvidia.com/cuda/cuda-programming-guide/05-appendices/environment-variables.html)
//! for indices, abbreviated UUIDs, what an invalid entry does and the two orders; [MIG User Guide, Device Names](https://docs.nvidia.com/datacenter/tesla/mig-user-guide/mig-device-names.html)
//! for the two forms of instances. What they leave open is taken from what the driver does: a repeated entry hides
//! everything, a number ends at its first character that is no digit, and the first entry decides whether the list is of
//! numbers, GPUs or instances (so does `torch.cuda`, which reads the variable by the same rules).

use serde::Serialize;

use super::{Gpu, Mig};

/// What `CUDA_VISIBLE_DEVICES` says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VisibleDevices {
    /// What is listed, up to the first entry that cannot be meant; `None` where the variable is not set.
    entries: Option<Vec<Entry>>,
    /// Why the list ends before its end.
    stop: Option<Stop>,
}

/// An entry of the list.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Entry {
    /// A number in CUDA's order.
    Index(usize),
    /// A UUID or its first characters: `GPU-…` or `MIG-…`.
    Uuid(String),
    /// The older form of an instance, `MIG-GPU-<uuid>/<GPU instance>/<compute instance>`.
    Instance { gpu: String, gpu_instance: u32, compute_instance: u32 },
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
            match parse_entry(text, entries.first()) {
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
        let whole: Vec<usize> = (0..gpus.len()).filter(|place| !is_instance(&gpus[*place])).collect();
        let by_index = || enumeration(gpus, &whole, order);
        let Some(entries) = &self.entries else {
            return match by_index() {
                Ok(_) if gpus.iter().any(|gpu| gpu.mig != Mig::Off) => Ordinals::Unknown {
                    reason: "a GPU is divided into MIG instances, of which the driver chooses one".to_owned(),
                },
                Ok(places) => Ordinals::Known { places, stop: None },
                Err(reason) => Ordinals::Unknown { reason },
            };
        };
        let (mut places, mut stop) = (Vec::new(), self.stop.clone());
        for entry in entries {
            let found = match entry {
                Entry::Index(index) => match by_index() {
                    Ok(order) => order.get(*index).copied().ok_or_else(|| none_of(whole.len())),
                    Err(reason) => return Ordinals::Unknown { reason },
                },
                Entry::Uuid(prefix) => by_uuid(gpus, prefix),
                Entry::Instance { gpu, gpu_instance, compute_instance } => {
                    let mig =
                        Mig::Instance { gpu_instance: *gpu_instance, compute_instance: *compute_instance };
                    by_instance(gpus, gpu, mig)
                }
            };
            match found.and_then(|place| first_instance(gpus, place)) {
                Ok(place) if places.contains(&place) => {
                    let reason = "it is listed twice, which hides all GPUs".to_owned();
                    return Ordinals::Known {
                        places: Vec::new(),
                        stop: Some(Stop { entry: entry.text(), reason }),
                    };
                }
                Ok(place) => places.push(place),
                Err(reason) => {
                    stop = Some(Stop { entry: entry.text(), reason });
                    break;
                }
            }
        }
        one_instance(gpus, places, stop)
    }
}

impl Entry {
    fn text(&self) -> String {
        match self {
            Self::Index(index) => index.to_string(),
            Self::Uuid(prefix) => prefix.clone(),
            Self::Instance { gpu, gpu_instance, compute_instance } => {
                format!("MIG-{gpu}/{gpu_instance}/{compute_instance}")
            }
        }
    }
}

/// Reads an entry of a list that begins with `first`.
fn parse_entry(text: &str, first: Option<&Entry>) -> Result<Entry, String> {
    let entry = if text.starts_with("GPU-") {
        Entry::Uuid(text.to_owned())
    } else if let Some(instance) = text.strip_prefix("MIG-") {
        parse_instance(instance).unwrap_or_else(|| Entry::Uuid(text.to_owned()))
    } else {
        let digits = text.find(|letter: char| !letter.is_ascii_digit()).unwrap_or(text.len());
        Entry::Index(text[..digits].parse().map_err(|_| "it is neither a number nor a UUID".to_owned())?)
    };
    match first {
        Some(first) if kind(first) != kind(&entry) => {
            Err(format!("it follows {} in a list, which cannot hold both", kind(first)))
        }
        _ => Ok(entry),
    }
}

fn parse_instance(text: &str) -> Option<Entry> {
    let mut parts = text.split('/');
    let (gpu, gpu_instance, compute_instance) = (parts.next()?, parts.next()?, parts.next()?);
    let is_whole = gpu.starts_with("GPU-") && parts.next().is_none();
    let (gpu_instance, compute_instance) = (gpu_instance.parse().ok()?, compute_instance.parse().ok()?);
    is_whole.then(|| Entry::Instance { gpu: gpu.to_owned(), gpu_instance, compute_instance })
}

fn kind(entry: &Entry) -> &'static str {
    match entry {
        Entry::Index(_) => "a number",
        Entry::Uuid(prefix) if prefix.starts_with("GPU-") => "a GPU",
        Entry::Uuid(_) | Entry::Instance { .. } => "a MIG instance",
    }
}

/// The places of the whole GPUs by the number that an index of the list means.
fn enumeration(gpus: &[Gpu], whole: &[usize], order: DeviceOrder) -> Result<Vec<usize>, String> {
    // Equal GPUs are equally fast, and the driver leaves them in the order of the bus.
    let are_equal = whole.windows(2).all(|pair| gpus[pair[0]].name == gpus[pair[1]].name);
    match order {
        DeviceOrder::FastestFirst if !are_equal => {
            Err("the GPUs differ, and which of them CUDA takes for the fastest is \
             known to the driver alone (CUDA_DEVICE_ORDER=PCI_BUS_ID orders them as nvidia-smi does)"
                .to_owned())
        }
        _ => Ok(whole.to_vec()),
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

fn is_instance(gpu: &Gpu) -> bool {
    matches!(gpu.mig, Mig::Instance { .. })
}

fn none_of(count: usize) -> String {
    format!("this machine has {count} GPUs, counted from 0")
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
#[path = "visible_tests.rs"]
mod tests;
