//! What the user reads after an import.

use burn_nccl_inference::{Onnx, Signature};
use burn_nccl_records::{OpenOptions, Source, StoredTensor};
use recipe_common::{RecipeError, Result};

use super::destination::Destination;

/// What was written, what of it trains, and the lines that make use of it.
pub(super) fn summary(destination: &Destination, name: &str, onnx: &Onnx) -> Result<String> {
    let (code, weights) = (destination.code.display(), destination.weights.display());
    let source = Source::open(&destination.weights, &OpenOptions::default())
        .map_err(|error| RecipeError::records(format!("cannot read {weights}"), error))?;
    let network = shapes(onnx.signature());
    Ok(format!(
        "wrote {code}\nwrote {weights}\n{network}\n{}{}",
        parts(source.tensors()),
        next_steps(name, &weights.to_string())
    ))
}

/// `images [batch, 3, 32, 32] -> logits [batch, 8]`.
fn shapes(signature: &Signature) -> String {
    let batch = signature.batch.map_or("batch".into(), |batch| batch.to_string());
    let Signature { input, output, channels, height, width, classes, .. } = signature;
    let text = format!("{input} [{batch}, {channels}, {height}, {width}] -> {output} [{batch}, {classes}]");
    text.chars().filter(|c| !c.is_control()).collect()
}

/// How many tensors of each kind there are, and what that means for training.
fn parts(tensors: &[StoredTensor]) -> String {
    let names = || tensors.iter().map(StoredTensor::name);
    let statistics =
        names().filter(|name| name.ends_with(".running_mean") || name.ends_with(".running_var")).count();
    let constants = names().filter(|name| is_constant(name)).count();
    let trained = tensors.len() - statistics - constants;
    let values: usize = tensors.iter().map(|tensor| tensor.shape().iter().product::<usize>()).sum();
    let mut text = format!(
        "{} tensors with {values} values: {trained} to be trained, {statistics} running statistics\n",
        tensors.len()
    );
    if statistics == 0 {
        text += "note: there is no batch norm; if the network had some, the export folded them into its convolutions: see \
                 import --help\n";
    }
    if constants > 0 {
        text += &format!(
            "note: {constants} constants outside layers stay as they are: Burn's optimizers do not see them\n"
        );
    }
    text
}

/// burn-onnx calls what is in no layer `constant1` and so on.
fn is_constant(name: &str) -> bool {
    let last = name.rsplit('.').next().unwrap_or(name);
    last.strip_prefix("constant").is_some_and(|number| number.bytes().all(|byte| byte.is_ascii_digit()))
}

fn next_steps(name: &str, weights: &str) -> String {
    format!(
        r#"
In the Cargo.toml of a crate that uses it:
    burn = {{ version = "0.22.1", features = ["autodiff", "flex", "optim"] }}
    burn-store = "0.22.1"
In a source file beside {name}.rs:
    mod {name} {{
        #![allow(dead_code, missing_docs, unreachable_pub)]
        include!("{name}.rs");
    }}
To load it:
    let weights = burn::tensor::Bytes::from_bytes_vec(std::fs::read({weights:?})?);
    let network = {name}::Model::from_bytes(weights, &device);
On a device with .autodiff() it trains, and its batch norms update their statistics; network.valid() only classifies.
The example `imported` of recipe-resnet-export does all of it and exports the trained network again.
"#
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn constants_are_told_by_the_names_that_burn_onnx_gives() {
        assert!(["constant1", "submodule2.constant12"].into_iter().all(is_constant));
        assert!(
            ["constant1.weight", "conv2d1.weight", "constants"].into_iter().all(|name| !is_constant(name))
        );
    }
}
