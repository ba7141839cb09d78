//! What the same parameter is called in Burn and in PyTorch.

use std::collections::BTreeMap;

use crate::Format;

/// Whose names and layouts the tensors of a file have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Names {
    /// Burn's, the paths of a module's fields: norms have `gamma` and `beta`, and the weight of a `Linear` is
    /// `[inputs, outputs]`.
    #[default]
    Burn,
    /// Those of a PyTorch `state_dict`: norms have `weight` and `bias`, the weight of a `Linear` is `[outputs, inputs]`,
    /// the name of an enum's variant is no part of a path, and `num_batches_tracked` counts what Burn does not. A network
    /// whose fields have torchvision's names loads into torchvision strictly.
    Torch,
}

impl Names {
    /// What [`NAMES_KEY`] says.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Burn => "burn",
            Self::Torch => "torch",
        }
    }
}

/// The metadata entry by which this crate's files say whose names they have: `burn` or `torch`.
pub(crate) const NAMES_KEY: &str = "burn-nccl.names";

/// What is known of a file's names before they are compared with a model's.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Hint {
    /// Said by the caller, the format or the writer of the file.
    Sure(Names),
    /// To be taken unless the other fits more parameters.
    Likely(Names),
}

impl Hint {
    pub(crate) fn new(format: Format, metadata: &BTreeMap<String, String>) -> Self {
        let entry = |key: &str| metadata.get(key).map(String::as_str);
        match entry(NAMES_KEY) {
            Some("burn") => return Self::Sure(Names::Burn),
            Some("torch") => return Self::Sure(Names::Torch),
            _ => {}
        }
        match format {
            Format::Pytorch => Self::Sure(Names::Torch),
            // Burn's own stores can write PyTorch's names, and say nothing of it.
            Format::Burnpack | Format::Checkpoint => Self::Likely(Names::Burn),
            _ if entry("format") == Some("pt") => Self::Sure(Names::Torch),
            _ if entry("producer") == Some("burn") => Self::Likely(Names::Burn),
            _ => Self::Likely(Names::Torch),
        }
    }

    /// The names to assume without a model to compare with.
    pub(crate) fn names(self) -> Names {
        match self {
            Self::Sure(names) | Self::Likely(names) => names,
        }
    }
}

/// The type of the module that declares a parameter, past the lists and tuples that hold that module. `containers` are
/// the types on the way down, as Burn's derive names them: `Struct:Linear`, `Vec`, `Enum:Block`.
pub(crate) fn declared_in<'a>(containers: impl DoubleEndedIterator<Item = &'a str>) -> &'a str {
    containers.rev().find(|it| it.starts_with("Struct:") || it.starts_with("Enum:")).unwrap_or("")
}

/// PyTorch's name of the parameter `name` of a module of type `container`, `Struct:BatchNorm` say.
pub(crate) fn torch_name<'a>(container: &str, name: &'a str) -> &'a str {
    let norm = matches!(
        container.strip_prefix("Struct:"),
        Some("BatchNorm" | "LayerNorm" | "GroupNorm" | "InstanceNorm" | "RmsNorm")
    );
    match name {
        "gamma" if norm => "weight",
        "beta" if norm => "bias",
        "alpha" if container == "Struct:PRelu" => "weight",
        name => name,
    }
}

/// Whether PyTorch's `name` is a count of batches, for which Burn has no use.
pub(crate) fn is_batch_count(name: &str) -> bool {
    name.rsplit('.').next() == Some("num_batches_tracked")
}

/// What wrappers put before every name: `DataParallel` and `DistributedDataParallel`, `torch.compile`, and Lightning.
const WRAPPERS: [&str; 3] = ["module.", "_orig_mod.", "model."];

/// Those of them that are hardly ever the name of a field; `model` is, in most networks of Hugging Face.
const SURE_WRAPPERS: [&str; 2] = ["module.", "_orig_mod."];

/// The wrappers' prefix that all of `keys` begin with, empty if there is none.
///
/// The model, whose `paths` these are, may have a field of a wrapper's name itself, so a prefix goes only where each key
/// repeats it more often than any path does.
pub(crate) fn wrapper_prefix(keys: &[&str], paths: &[&str]) -> String {
    common_prefix(keys, paths, &WRAPPERS)
}

/// The same where no model is known.
pub(crate) fn sure_wrapper_prefix(keys: &[&str]) -> String {
    common_prefix(keys, &[], &SURE_WRAPPERS)
}

fn common_prefix(keys: &[&str], paths: &[&str], wrappers: &[&str]) -> String {
    let mut prefix = String::new();
    // All repeats of a wrapper at once: name by name, a hostile key of 100 MB of them would take years.
    while let Some((wrapper, count)) = wrappers.iter().find_map(|wrapper| {
        let wrapped = keys.iter().map(|key| repeats(&key[prefix.len()..], wrapper)).min()?;
        let own = paths.iter().map(|path| repeats(path, wrapper)).max().unwrap_or(0);
        (wrapped > own).then(|| (wrapper, wrapped - own))
    }) {
        prefix.push_str(&wrapper.repeat(count));
    }
    prefix
}

/// How often `name` begins with `wrapper`. A name that is nothing else keeps the last.
fn repeats(name: &str, wrapper: &str) -> usize {
    let strip = |rest: &str| rest.strip_prefix(wrapper).map(str::len).filter(|&left| left > 0);
    std::iter::successors(strip(name), |&left| strip(&name[name.len() - left..])).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATHS: [&str; 2] = ["features.conv.weight", "fc.weight"];

    // C6
    #[test]
    fn wrappers_are_stripped_however_often_they_wrap() {
        for prefix in [
            "module.",
            "model.",
            "_orig_mod.",
            "module._orig_mod.",
            "_orig_mod.module.model.",
            "module.module.",
        ] {
            let keys = PATHS.map(|path| format!("{prefix}{path}"));
            assert_eq!(wrapper_prefix(&keys.each_ref().map(String::as_str), &PATHS), prefix);
        }
    }

    #[test]
    fn a_key_of_nothing_but_wrappers_takes_no_longer_than_it_is_long() {
        let key = "module.".repeat(1_000_000) + "a";
        assert_eq!(wrapper_prefix(&[&key], &["module.a"]).len(), 999_999 * 7);
    }

    // C6
    #[test]
    fn a_prefix_that_one_key_lacks_stays() {
        assert_eq!(wrapper_prefix(&["module.a", "module.b", "c"], &["a", "b", "c"]), "");
    }

    // C6
    #[test]
    fn a_field_named_like_a_wrapper_stays_and_a_wrapper_around_it_goes() {
        assert_eq!(wrapper_prefix(&["module.a", "module.b"], &["module.a", "module.b"]), "");
        assert_eq!(
            wrapper_prefix(&["module.module.a", "module.module.b"], &["module.a", "module.b"]),
            "module."
        );
        assert_eq!(wrapper_prefix(&["module.model.a"], &["model.a"]), "module.");
    }

    // C7
    #[test]
    fn without_a_prefix_nothing_is_stripped() {
        assert_eq!(wrapper_prefix(&PATHS, &PATHS), "");
        assert_eq!(wrapper_prefix(&["modules.a", "modeling.b"], &PATHS), "");
        assert_eq!(wrapper_prefix(&[], &PATHS), "");
    }

    #[test]
    fn without_a_model_the_usual_name_of_a_field_is_no_wrapper() {
        let prefix = |keys: [&str; 2]| sure_wrapper_prefix(&keys);
        assert_eq!(prefix(["module.a.weight", "module.b"]), "module.");
        let deep = ["module._orig_mod.module.a", "module._orig_mod.module.b"];
        assert_eq!(prefix(deep), "module._orig_mod.module.");
        assert_eq!(prefix(["module.a", "b"]), "");
        assert_eq!(prefix(["model.a", "model.b"]), "");
        assert_eq!(prefix(["module.module.", "module.b"]), "module.");
        assert_eq!(sure_wrapper_prefix(&[]), "");
    }

    #[test]
    fn only_the_parameters_of_norms_have_other_names_in_pytorch() {
        assert_eq!(torch_name("Struct:BatchNorm", "gamma"), "weight");
        assert_eq!(torch_name("Struct:LayerNorm", "beta"), "bias");
        assert_eq!(torch_name("Struct:BatchNorm", "running_mean"), "running_mean");
        assert_eq!(torch_name("Struct:PRelu", "alpha"), "weight");
        assert_eq!(torch_name("Struct:LayerScale", "gamma"), "gamma");
        assert!(is_batch_count("layer1.0.bn1.num_batches_tracked"));
        assert!(!is_batch_count("num_batches_tracked.weight"));
    }

    #[test]
    fn what_a_file_says_of_its_names_comes_before_its_format() {
        let says = |key: &str, value: &str| BTreeMap::from([(key.to_string(), value.to_string())]);
        let hint = Hint::new;
        let none = BTreeMap::new();
        assert_eq!(hint(Format::Pytorch, &none), Hint::Sure(Names::Torch));
        assert_eq!(hint(Format::Burnpack, &none), Hint::Likely(Names::Burn));
        assert_eq!(hint(Format::Burnpack, &says(NAMES_KEY, "torch")), Hint::Sure(Names::Torch));
        assert_eq!(hint(Format::Safetensors, &says("format", "pt")), Hint::Sure(Names::Torch));
        assert_eq!(hint(Format::Safetensors, &says("producer", "burn")), Hint::Likely(Names::Burn));
        assert_eq!(hint(Format::Safetensors, &none), Hint::Likely(Names::Torch));
    }
}
