//! Which dictionary of a PyTorch file holds the weights.

use std::collections::HashMap;

use pytorch_reader::PickleValue;

/// Keys that hold weights wherever they are found.
const SURE_KEYS: [&str; 2] = ["state_dict", "model_state_dict"];

/// Keys that hold weights in a training checkpoint, but may as well name a part of a model that was saved whole.
const LIKELY_KEYS: [&str; 6] = ["model", "module", "net", "network", "weights", "params"];

/// The key of the dictionary to take, none for the root; or why it cannot be told, and the keys to choose from.
pub(super) fn select(root: &Dict, key: Option<&str>) -> Result<Option<String>, (String, Vec<String>)> {
    let mut dictionaries: Vec<String> =
        root.iter().filter(|(_, value)| is_state_dict(value)).map(|(key, _)| key.clone()).collect();
    dictionaries.sort_unstable();
    if let Some(key) = key {
        return match descend(root, key).is_some_and(is_state_dict) {
            true => Ok(Some(key.into())),
            false => Err((format!("has no dictionary of tensors under the key `{key}`"), dictionaries)),
        };
    }
    let find = |keys: &[&str]| {
        keys.iter().find(|key| dictionaries.iter().any(|found| found == *key)).map(|key| key.to_string())
    };
    if let Some(key) = find(&SURE_KEYS) {
        return Ok(Some(key));
    }
    // A model that was saved whole reads as dictionaries of nothing but tensors; a training checkpoint holds numbers too.
    let only_tensors = root.iter().all(|(key, value)| key == "_metadata" || is_tensor_tree(value));
    if only_tensors && root.values().any(holds_tensor) {
        return Ok(None);
    }
    if let Some(key) = find(&LIKELY_KEYS) {
        return Ok(Some(key));
    }
    if root.values().any(is_tensor) {
        return Ok(None);
    }
    match dictionaries.iter().filter(|key| !key.contains("optim")).collect::<Vec<_>>()[..] {
        [only] => Ok(Some(only.clone())),
        [] => Err(("holds no tensors".into(), dictionaries)),
        _ => Err(("holds several dictionaries of tensors".into(), dictionaries)),
    }
}

pub(super) type Dict = HashMap<String, PickleValue>;

/// What is under `key`, which has a dot between the keys of nested dictionaries.
fn descend<'a>(root: &'a Dict, key: &str) -> Option<&'a PickleValue> {
    match key.split_once('.') {
        None => root.get(key),
        Some((first, rest)) => match root.get(first)? {
            PickleValue::Dict(dict) => descend(dict, rest),
            _ => None,
        },
    }
}

fn is_state_dict(value: &PickleValue) -> bool {
    matches!(value, PickleValue::Dict(_)) && holds_tensor(value)
}

fn is_tensor(value: &PickleValue) -> bool {
    matches!(value, PickleValue::Unsupported(kind) if kind == "torch.Tensor")
}

fn holds_tensor(value: &PickleValue) -> bool {
    match value {
        PickleValue::Dict(dict) => dict.values().any(holds_tensor),
        PickleValue::List(list) => list.iter().any(holds_tensor),
        value => is_tensor(value),
    }
}

fn is_tensor_tree(value: &PickleValue) -> bool {
    match value {
        PickleValue::Dict(dict) => dict.values().all(is_tensor_tree),
        value => is_tensor(value),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tensor() -> PickleValue {
        PickleValue::Unsupported("torch.Tensor".into())
    }

    fn dict<const N: usize>(entries: [(&str, PickleValue); N]) -> PickleValue {
        PickleValue::Dict(entries.map(|(key, value)| (key.to_string(), value)).into())
    }

    fn selected<const N: usize>(entries: [(&str, PickleValue); N]) -> Option<String> {
        let PickleValue::Dict(root) = dict(entries) else { unreachable!("a dictionary was made") };
        select(&root, None).unwrap()
    }

    fn weights() -> PickleValue {
        dict([("a.weight", tensor())])
    }

    #[test]
    fn a_plain_state_dict_is_its_own_root() {
        assert_eq!(selected([("model.a", tensor()), ("head", tensor())]), None);
        // What PyTorch keeps of versions is no tensor, and makes no training checkpoint of it.
        assert_eq!(selected([("model", weights()), ("_metadata", dict([("v", PickleValue::Int(1))]))]), None);
    }

    #[test]
    fn a_part_called_model_is_not_taken_for_the_model() {
        assert_eq!(selected([("model", weights()), ("head", weights())]), None);
        assert_eq!(selected([("model", weights()), ("epoch", PickleValue::Int(1))]), Some("model".into()));
    }

    #[test]
    fn a_sure_key_comes_before_likely_and_other_ones() {
        let root = [("state_dict", weights()), ("model", weights()), ("mean", tensor())];
        assert_eq!(selected(root), Some("state_dict".into()));
        let root = [("model_state_dict", weights()), ("optimizer_state_dict", dict([("state", weights())]))];
        assert_eq!(selected(root), Some("model_state_dict".into()));
    }

    #[test]
    fn the_only_one_beside_the_optimizer_is_taken() {
        let root = [("generator", weights()), ("optim", weights()), ("step", PickleValue::Int(1))];
        assert_eq!(selected(root), Some("generator".into()));
    }

    #[test]
    fn a_key_of_nested_dictionaries_is_followed() {
        let PickleValue::Dict(root) = dict([("best", dict([("net", weights())]))]) else { unreachable!() };
        assert_eq!(select(&root, Some("best.net")).unwrap().as_deref(), Some("best.net"));
        assert!(select(&root, Some("best.other")).is_err());
    }
}
