//! What runs in which type, as data: the table of ops, the table of layers, and the paths that a user keeps.

use super::Precision;

/// In which type an op runs under autocast.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpClass {
    /// In the half type.
    Half,
    /// In f32, whatever the input.
    Full,
    /// In the type of its input.
    Input,
}

/// An op of Burn, the name of its counterpart in torch, and the type that torch.amp runs it in on a GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpRule {
    /// Burn's name.
    pub op: &'static str,
    /// Torch's name.
    pub torch: &'static str,
    /// The type it runs in.
    pub class: OpClass,
}

const fn rule(op: &'static str, torch: &'static str, class: OpClass) -> OpRule {
    OpRule { op, torch, class }
}

/// The table of torch.amp, as far as Burn has the op.
///
/// `Half` is what [`Autocast::module`](super::Autocast::module) brings about by casting weights. `Full` is what a forward
/// pass must [`widen`](super::widen) for: Burn has no dispatch hook in which a library could do it.
///
/// Source: `ATen/autocast_mode.h`, the macros `AT_FORALL_LOWER_PRECISION_FP`, `AT_FORALL_FP32` and
/// `AT_FORALL_FP32_SET_OPT_DTYPE`; an op in none of them runs in the type of its input. Torch promotes the operands of a
/// few more to the widest of them (`cross`, `dot`, `grid_sampler`, `scatter_add`), which Burn does of none.
pub const OPS: &[OpRule] = &[
    rule("conv1d", "conv1d", OpClass::Half),
    rule("conv2d", "conv2d", OpClass::Half),
    rule("conv3d", "conv3d", OpClass::Half),
    rule("conv_transpose1d", "conv_transpose1d", OpClass::Half),
    rule("conv_transpose2d", "conv_transpose2d", OpClass::Half),
    rule("conv_transpose3d", "conv_transpose3d", OpClass::Half),
    rule("matmul", "matmul", OpClass::Half),
    rule("linear", "linear", OpClass::Half),
    rule("einsum", "einsum", OpClass::Half),
    rule("prelu", "prelu", OpClass::Half),
    rule("attention", "scaled_dot_product_attention", OpClass::Half),
    rule("exp", "exp", OpClass::Full),
    rule("log", "log", OpClass::Full),
    rule("log1p", "log1p", OpClass::Full),
    rule("recip", "reciprocal", OpClass::Full),
    rule("powf", "pow", OpClass::Full),
    rule("tan", "tan", OpClass::Full),
    rule("acos", "acos", OpClass::Full),
    rule("asin", "asin", OpClass::Full),
    rule("sinh", "sinh", OpClass::Full),
    rule("cosh", "cosh", OpClass::Full),
    rule("softplus", "softplus", OpClass::Full),
    rule("softmax", "softmax", OpClass::Full),
    rule("log_softmax", "log_softmax", OpClass::Full),
    rule("sum", "sum", OpClass::Full),
    rule("prod", "prod", OpClass::Full),
    rule("cumsum", "cumsum", OpClass::Full),
    rule("cumprod", "cumprod", OpClass::Full),
    rule("vector_norm", "linalg_vector_norm", OpClass::Full),
    rule("layer_norm", "layer_norm", OpClass::Full),
    rule("group_norm", "group_norm", OpClass::Full),
    rule("rms_norm", "rms_norm", OpClass::Full),
    rule("nll_loss", "nll_loss", OpClass::Full),
    rule("mse_loss", "mse_loss", OpClass::Full),
    rule("huber_loss", "huber_loss", OpClass::Full),
    rule("smooth_l1_loss", "smooth_l1_loss", OpClass::Full),
    rule("kl_div_loss", "kl_div", OpClass::Full),
    rule("binary_cross_entropy_with_logits", "binary_cross_entropy_with_logits", OpClass::Full),
    rule("l1_loss", "l1_loss", OpClass::Full),
    rule("soft_margin_loss", "soft_margin_loss", OpClass::Full),
    rule("multi_margin_loss", "multi_margin_loss", OpClass::Full),
    rule("margin_ranking_loss", "margin_ranking_loss", OpClass::Full),
    rule("triplet_margin_loss", "triplet_margin_loss", OpClass::Full),
    rule("hinge_embedding_loss", "hinge_embedding_loss", OpClass::Full),
    rule("cosine_embedding_loss", "cosine_embedding_loss", OpClass::Full),
    rule("poisson_nll_loss", "poisson_nll_loss", OpClass::Full),
    rule("cosine_similarity", "cosine_similarity", OpClass::Full),
    rule("interpolate", "upsample_bilinear2d", OpClass::Full),
    rule("batch_norm", "batch_norm", OpClass::Input),
    rule("instance_norm", "instance_norm", OpClass::Input),
    rule("embedding", "embedding", OpClass::Input),
    rule("relu", "relu", OpClass::Input),
    rule("gelu", "gelu", OpClass::Input),
    rule("silu", "silu", OpClass::Input),
    rule("sigmoid", "sigmoid", OpClass::Input),
    rule("tanh", "tanh", OpClass::Input),
    rule("max_pool2d", "max_pool2d", OpClass::Input),
    rule("avg_pool2d", "avg_pool2d", OpClass::Input),
    rule("adaptive_avg_pool2d", "adaptive_avg_pool2d", OpClass::Input),
    rule("mean", "mean", OpClass::Input),
    rule("add", "add", OpClass::Input),
    rule("mul", "mul", OpClass::Input),
    rule("cat", "cat", OpClass::Input),
    rule("dropout", "dropout", OpClass::Input),
];

/// What becomes of a layer's parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Treatment {
    /// Half, cast from the master.
    Cast,
    /// The master itself.
    Keep,
    /// The layer cannot take half input; the text is the remedy.
    Refuse(&'static str),
}

const KEEP_BATCH_NORM: &str = "use burn_nccl's SyncBatchNorm, which takes half input and has the same record, or widen the \
                               layer's input and name it in full_precision_paths";
const KEEP_RECURRENT: &str = "its first state is f32: widen its input and name it in full_precision_paths";

/// The treatment of a layer of burn-nn (or of any struct of the same name), by the type of container that Burn's
/// `Module` derive reports for its parameters. `None`: not a layer with a rule, so that its parameters are cast.
pub(super) fn treatment(container: &str, precision: Precision) -> Option<Treatment> {
    let layer = container.strip_prefix("Struct:")?;
    Some(match layer {
        // It widens f16 input together with its parameters, but not bf16 input.
        "LayerNorm" if precision == Precision::F16 => Treatment::Keep,
        // These want parameters of the type of their input, and widen where they must, except for bf16 (amp/mod.rs).
        "LayerNorm" | "GroupNorm" | "InstanceNorm" | "RmsNorm" => Treatment::Cast,
        "BatchNorm" => Treatment::Refuse(KEEP_BATCH_NORM),
        "Lstm" | "BiLstm" | "Gru" | "BiGru" | "Rnn" | "BiRnn" => Treatment::Refuse(KEEP_RECURRENT),
        _ => return None,
    })
}

/// Whether a container is a layer of burn-nn whose parameters meet in one op, so that they must have one type.
pub(super) fn is_layer(container: &str) -> bool {
    let Some(layer) = container.strip_prefix("Struct:") else { return false };
    layer == "Linear"
        || layer.ends_with("Norm")
        || layer.starts_with("Conv")
        || layer.starts_with("DeformConv")
}

/// Whether `pattern` names the parameter at `path` or a module that holds it: equal component by component, where `*`
/// stands for any characters within one.
pub(super) fn path_matches(pattern: &str, path: &str) -> bool {
    let mut components = path.split('.');
    pattern.split('.').all(|part| components.next().is_some_and(|component| glob(part, component)))
}

fn glob(pattern: &str, text: &str) -> bool {
    match pattern.split_once('*') {
        None => pattern == text,
        Some((head, rest)) => text.strip_prefix(head).is_some_and(|text| {
            text.char_indices().map(|(at, _)| at).chain([text.len()]).any(|at| glob(rest, &text[at..]))
        }),
    }
}

/// The paths most like `pattern`, among `paths` and the modules that hold them.
pub(super) fn nearest<'a>(pattern: &str, paths: impl Iterator<Item = &'a str>) -> Vec<String> {
    const SHOWN: usize = 3;
    let mut known: Vec<&str> =
        paths.flat_map(|path| path.match_indices('.').map(|(at, _)| &path[..at]).chain([path])).collect();
    known.sort_unstable();
    known.dedup();
    known.sort_by_key(|path| edit_distance(pattern, path));
    known.into_iter().take(SHOWN).map(String::from).collect()
}

/// Levenshtein's distance.
fn edit_distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, a) in a.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, &b) in b.iter().enumerate() {
            let substituted = diagonal + usize::from(a != b);
            diagonal = row[j + 1];
            row[j + 1] = substituted.min(diagonal + 1).min(row[j] + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_matches_exactly_by_prefix_of_components_or_by_star() {
        let path = "layer1.0.conv2.weight";
        for pattern in ["layer1.0.conv2.weight", "layer1", "layer1.0", "layer*.*.conv2", "*.0.c*v*.weight"] {
            assert!(path_matches(pattern, path), "{pattern}");
        }
        for pattern in
            ["layer", "layer1.0.conv", "layer1.1", "conv2", "layer*.conv2", "layer1.0.conv2.weight.x", ""]
        {
            assert!(!path_matches(pattern, path), "{pattern}");
        }
    }

    #[test]
    fn the_nearest_paths_of_a_typing_error_are_found() {
        let paths = ["conv1.weight", "layer1.0.conv1.weight", "fc.weight", "fc.bias"];
        let nearest = nearest("fc.wieght", paths.into_iter());
        assert_eq!(nearest[0], "fc.weight");
        assert_eq!(edit_distance("kitten", "sitting"), 3);
    }

    #[test]
    fn no_op_is_listed_twice() {
        let mut names: Vec<_> = OPS.iter().map(|rule| rule.op).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), OPS.len());
    }
}
