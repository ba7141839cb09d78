//! Batch norms that go on training as they were trained.

use burn_onnx::ext::proc_macro2::{Literal, TokenStream};
use burn_onnx::ext::quote::{format_ident, quote};
use burn_onnx::ext::{
    CodegenContext, Field, Imports, Node, NodeType, OpOverride, PackTensor, ProcessError, arg_to_ident,
    create_deferred_tensor,
};
use onnx_ir::batch_norm::{BatchNormConfig, BatchNormStaticConfig, BatchNormalizationNode};

/// Names of the parameters in Burn, in the order of the inputs in ONNX behind the first.
const PARAMETERS: [&str; 4] = ["gamma", "beta", "running_mean", "running_var"];

/// Stands for burn-onnx's own code of `BatchNormalization`.
///
/// ONNX's `momentum` is the share of the old statistics that stays, 0.9; PyTorch's and Burn's is that of the new ones,
/// 0.1. burn-onnx 0.22.0 hands ONNX's number on: the network computes the same, but once it is trained its running
/// statistics are those of the last batch or two. It also takes an attribute that is not there as 0.
///
/// Source: <https://onnx.ai/onnx/operators/onnx__BatchNormalization.html>.
pub(super) struct TrainableBatchNorm;

impl OpOverride for TrainableBatchNorm {
    fn target(&self) -> NodeType {
        NodeType::BatchNormalization
    }

    fn forward(
        &self,
        node: &Node,
        context: &mut CodegenContext<'_, '_>,
    ) -> Result<TokenStream, ProcessError> {
        let (node, _) = with_constants(node)?;
        let (output, field) = (arg_to_ident(&node.outputs[0]), format_ident!("{}", node.name));
        let input = context.arg(&node.inputs[0]);
        Ok(quote! { let #output = self.#field.forward(#input); })
    }

    fn register_imports(&self, imports: &mut Imports<'_>) {
        imports.register("burn::nn::BatchNorm");
        imports.register("burn::nn::BatchNormConfig");
    }

    fn field(&self, node: &Node) -> Result<Option<Field>, ProcessError> {
        let (node, config) = with_constants(node)?;
        let shape = node.inputs[1].ty.static_shape_known().unwrap_or_default();
        let [channels] = shape[..] else {
            return Err(ProcessError::Custom("its scale is no list of one number for each channel".into()));
        };
        let (name, channels) = (format_ident!("{}", node.name), Literal::usize_unsuffixed(channels));
        let [epsilon, momentum] = in_burn(config).map(Literal::f64_unsuffixed);
        let init = quote! {
            let #name = BatchNormConfig::new(#channels).with_epsilon(#epsilon).with_momentum(#momentum).init(device);
        };
        Ok(Some(Field::new(&node.name, quote! { BatchNorm }, init)))
    }

    fn collect_tensors(&self, node: &Node, field: &str) -> Result<Vec<PackTensor>, ProcessError> {
        let (node, _) = with_constants(node)?;
        let inputs = node.inputs.iter().skip(1).zip(PARAMETERS);
        Ok(inputs
            .filter_map(|(input, name)| create_deferred_tensor(input, &format!("{field}.{name}")))
            .collect())
    }
}

/// The node with its settings, where its parameters are in the file.
fn with_constants(node: &Node) -> Result<(&BatchNormalizationNode, &BatchNormStaticConfig), ProcessError> {
    match node {
        Node::BatchNormalization(node) => match &node.config {
            BatchNormConfig::Static(config) => Ok((node, config)),
            BatchNormConfig::Runtime(_) => Err(ProcessError::Custom(
                "a scale, bias, mean or variance is computed, and only one in the file can be trained".into(),
            )),
        },
        _ => Err(ProcessError::Custom("this is no BatchNormalization".into())),
    }
}

/// Epsilon and momentum as Burn has them. Zero stands for an attribute that is not there: epsilon cannot be zero.
fn in_burn(config: &BatchNormStaticConfig) -> [f64; 2] {
    let or_default = |value: f64, default: f64| if value > 0.0 { shortest(value) } else { default };
    let momentum = 1.0 - or_default(config.momentum, 0.9);
    [or_default(config.epsilon, 1e-5), (momentum * 1e6).round() / 1e6]
}

/// The number with the fewest digits that is the same f32: 0.00001 for 9.999999747378752e-6.
fn shortest(value: f64) -> f64 {
    (value as f32).to_string().parse().unwrap_or(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_momentum_of_onnx_becomes_that_of_burn() {
        // What PyTorch writes for its eps=1e-5, momentum=0.1.
        let written =
            |epsilon: f32, momentum: f32| BatchNormStaticConfig::new(epsilon.into(), momentum.into());
        assert_eq!(in_burn(&written(1e-5, 0.9)), [1e-5, 0.1]);
        assert_eq!(in_burn(&written(1e-3, 0.99)), [1e-3, 0.01]);
        assert_eq!(in_burn(&written(1e-5, 1.0)), [1e-5, 0.0]);
    }

    #[test]
    fn an_attribute_that_is_not_there_has_the_default_of_onnx() {
        assert_eq!(in_burn(&BatchNormStaticConfig::new(0.0, 0.0)), [1e-5, 0.1]);
    }
}
