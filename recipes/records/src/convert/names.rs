//! Whose names the tensors of a file have.

use burn_nccl_records::{Format, Names, Source};

use super::target::Target;

/// Metadata of files that this project wrote.
pub(super) const NAMES_KEY: &str = "burn-nccl.names";
/// Metadata of files that Burn wrote.
const PRODUCER_KEY: &str = "producer";
/// Prefixes that PyTorch's wrappers put before every name.
const WRAPPERS: [&str; 2] = ["module.", "_orig_mod."];

/// Whose names the tensors of the new file have. Where these are others than those found, the way leads through the
/// network, which knows both names and both layouts.
pub(super) fn wanted(target: Target, found: Names) -> Names {
    match target {
        Target::Bpk => Names::Burn,
        Target::Torch => Names::Torch,
        Target::Safetensors => found,
    }
}

/// Whose names a file has, as far as it can be told without the network.
pub(super) fn of(source: &Source) -> Names {
    let metadata = |key| source.metadata().get(key).map(String::as_str);
    let has_ending = |ending| source.tensors().iter().any(|tensor| tensor.name().ends_with(ending));
    match (metadata(NAMES_KEY), source.format()) {
        (Some("torch"), _) | (None, Format::Pytorch) => Names::Torch,
        (Some("burn"), _) | (None, Format::Burnpack | Format::Checkpoint) => Names::Burn,
        // Safetensors: Burn signs its files, Python does not; an older file of Burn's shows by its norms.
        _ if metadata(PRODUCER_KEY) == Some("burn") || has_ending(".gamma") => Names::Burn,
        _ => Names::Torch,
    }
}

/// What `DistributedDataParallel` and `torch.compile` put before every name; empty where one lacks it.
pub(super) fn wrapper<'a>(names: &[&'a str]) -> &'a str {
    let Some(&first) = names.first() else { return "" };
    let mut end = 0;
    while let Some(prefix) = WRAPPERS.iter().find(|prefix| {
        let wrapped = |name: &&str| {
            name.get(end..).is_some_and(|rest| rest.len() > prefix.len() && rest.starts_with(**prefix))
        };
        names.iter().all(wrapped)
    }) {
        end += prefix.len();
    }
    &first[..end]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wrapper_is_what_every_name_begins_with() {
        assert_eq!(wrapper(&["module.a.weight", "module.b"]), "module.");
        assert_eq!(
            wrapper(&["module._orig_mod.module.a", "module._orig_mod.module.b"]),
            "module._orig_mod.module."
        );
        assert_eq!(wrapper(&["module.a", "b"]), "");
        assert_eq!(wrapper(&["model.a", "model.b"]), "");
        assert_eq!(wrapper(&[]), "");
    }
}
