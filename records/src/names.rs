//! What the same parameter is called in Burn and in PyTorch.

use std::collections::BTreeMap;

use crate::Format;

/// Whose names and layouts a file's tensors have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum NameStyle {
    /// Told by the file's format and metadata, and for safetensors without such by which names and shapes fit.
    #[default]
    Auto,
    /// Burn's: norms have `gamma` and `beta`, and the weight of a `Linear` is `[inputs, outputs]`.
    Burn,
    /// PyTorch's: norms have `weight` and `bias`, the weight of a `Linear` is `[outputs, inputs]`, the name of an enum's
    /// variant is no part of a path, and `num_batches_tracked` counts what Burn does not.
    Torch,
}

/// The metadata entry by which this crate's files say whose names they have: `burn` or `torch`.
pub(crate) const NAMES_KEY: &str = "burn-nccl.names";

/// What is known of a file's names before they are compared with a model's.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Hint {
    /// Said by the caller, the format or the writer.
    Sure(NameStyle),
    /// To be taken unless the other fits more parameters.
    Likely(NameStyle),
}

impl Hint {
    pub(crate) fn new(asked: NameStyle, format: Format, metadata: &BTreeMap<String, String>) -> Self {
        let entry = |key: &str| metadata.get(key).map(String::as_str);
        if asked != NameStyle::Auto {
            return Self::Sure(asked);
        }
        match entry(NAMES_KEY) {
            Some("burn") => return Self::Sure(NameStyle::Burn),
            Some("torch") => return Self::Sure(NameStyle::Torch),
            _ => {}
        }
        match format {
            Format::Pytorch => Self::Sure(NameStyle::Torch),
            // Burn's own stores can write PyTorch's names, and say nothing of it.
            Format::Burnpack | Format::Checkpoint => Self::Likely(NameStyle::Burn),
            _ if entry("format") == Some("pt") => Self::Sure(NameStyle::Torch),
            _ if entry("producer") == Some("burn") => Self::Likely(NameStyle::Burn),
            _ => Self::Likely(NameStyle::Torch),
        }
    }
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

/// What wrappers put before every name: `DataParallel` and `DistributedDataParallel`, Lightning, and `torch.compile`.
const WRAPPERS: [&str; 3] = ["module.", "model.", "_orig_mod."];

/// The wrappers' prefix that all of `keys` begin with, empty if there is none.
///
/// A model may have a field of a wrapper's name itself, so a prefix goes only where each key repeats it more often than
/// any path of the model does.
pub(crate) fn wrapper_prefix(keys: &[&str], paths: &[&str]) -> String {
    let repeats = |name: &str, wrapper: &str| {
        std::iter::successors(name.strip_prefix(wrapper), |rest| rest.strip_prefix(wrapper)).count()
    };
    let mut prefix = String::new();
    while let Some(wrapper) = WRAPPERS.iter().find(|wrapper| {
        let wrapped = keys.iter().map(|key| repeats(&key[prefix.len()..], wrapper)).min();
        let own = paths.iter().map(|path| repeats(path, wrapper)).max();
        wrapped.unwrap_or(0) > own.unwrap_or(0)
    }) {
        prefix.push_str(wrapper);
    }
    prefix
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
        let hint = |format, metadata: &BTreeMap<_, _>| Hint::new(NameStyle::Auto, format, metadata);
        let none = BTreeMap::new();
        assert_eq!(hint(Format::Pytorch, &none), Hint::Sure(NameStyle::Torch));
        assert_eq!(hint(Format::Burnpack, &none), Hint::Likely(NameStyle::Burn));
        assert_eq!(hint(Format::Burnpack, &says(NAMES_KEY, "torch")), Hint::Sure(NameStyle::Torch));
        assert_eq!(hint(Format::Safetensors, &says("format", "pt")), Hint::Sure(NameStyle::Torch));
        assert_eq!(hint(Format::Safetensors, &says("producer", "burn")), Hint::Likely(NameStyle::Burn));
        assert_eq!(hint(Format::Safetensors, &none), Hint::Likely(NameStyle::Torch));
        assert_eq!(Hint::new(NameStyle::Burn, Format::Pytorch, &none), Hint::Sure(NameStyle::Burn));
    }
}
