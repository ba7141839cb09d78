//! Whose names the tensors of a file have, and whether a conversion has to translate them.

use burn_nccl_records::{Format, Names, Source};

use super::target::Target;

/// Metadata of files that this project wrote.
pub(super) const NAMES_KEY: &str = "burn-nccl.names";
/// Metadata of files that Burn wrote.
const PRODUCER_KEY: &str = "producer";
/// Prefixes that PyTorch's wrappers put before every name.
const WRAPPERS: [&str; 2] = ["module.", "_orig_mod."];

/// How tensors come to the new file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Route {
    /// With the names and layouts they have.
    Copy,
    /// Through the network, which knows both names and both layouts.
    Translate,
}

/// The route from names to a format; none where it leads through a network that is not known.
pub(super) fn route(target: Target, found: Names, network_is_known: bool) -> Option<Route> {
    let wanted = match target {
        Target::Bpk => Names::Burn,
        Target::Torch => Names::Torch,
        Target::Safetensors => found,
    };
    match (wanted == found, network_is_known) {
        (true, _) => Some(Route::Copy),
        (false, true) => Some(Route::Translate),
        (false, false) => None,
    }
}

/// Whose names a file has.
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
    fn only_the_other_sides_names_need_the_network() {
        use Names::{Burn, Torch};
        let copies = [
            (Target::Bpk, Burn),
            (Target::Torch, Torch),
            (Target::Safetensors, Burn),
            (Target::Safetensors, Torch),
        ];
        for (target, found) in copies {
            assert_eq!(route(target, found, false), Some(Route::Copy), "{target:?} {found:?}");
        }
        for (target, found) in [(Target::Bpk, Torch), (Target::Torch, Burn)] {
            assert_eq!(route(target, found, false), None, "{target:?} {found:?}");
            assert_eq!(route(target, found, true), Some(Route::Translate), "{target:?} {found:?}");
        }
    }

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
