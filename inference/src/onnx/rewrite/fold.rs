//! Batch normalisations into convolutions.

use tract_onnx::pb::{GraphProto, NodeProto};

use super::super::graph::{attribute, is_standard, label};
use super::super::values::{f32_tensor, f32_values, map_f32};
use super::super::{EXPORT, format};
use super::dead::remove_dead;
use super::index::Index;
use super::names::Names;
use crate::Result;

/// What a normalisation does to each channel: `x * scale + shift`.
struct Affine {
    scale: Vec<f64>,
    shift: Vec<f64>,
}

/// A normalisation and the convolution that takes it in.
struct Fold {
    conv: usize,
    norm: usize,
    /// The place of the weights `[channels, ...]`, which nothing else uses.
    weight: usize,
    bias: Bias,
    affine: Affine,
}

/// The biases that a convolution has.
enum Bias {
    None,
    /// Its own, at this place.
    Private(usize),
    /// Some that other nodes use too.
    Shared(Vec<f32>),
}

/// Folds those that can be, removes what is no longer used, and says how many were folded.
///
/// Every normalisation is looked at before anything is changed.
pub(in crate::onnx) fn fold_batch_norms(graph: &mut GraphProto) -> Result<usize> {
    let folds = folds(graph)?;
    let mut names = Names::of(graph);
    let mut folded = vec![false; graph.node.len()];
    for fold in &folds {
        apply(graph, fold, &mut names);
        folded[fold.norm] = true;
    }
    let mut folded = folded.into_iter();
    graph.node.retain(|_| !folded.next().unwrap_or(false));
    remove_dead(graph);
    Ok(folds.len())
}

fn folds(graph: &GraphProto) -> Result<Vec<Fold>> {
    let index = Index::of(graph);
    let mut folds = Vec::new();
    for (place, node) in graph.node.iter().enumerate() {
        if node.op_type == "BatchNormalization" && is_standard(&node.domain) {
            folds.extend(find(graph, &index, place)?);
        }
    }
    Ok(folds)
}

/// The convolution before a normalisation; none where there is none, or where it feeds something else too.
///
/// The weights come first: each has but one convolution, while thousands of normalisations may name the same statistics.
fn find(graph: &GraphProto, index: &Index<'_>, norm: usize) -> Result<Option<Fold>> {
    let Some(input) = graph.node[norm].input.first() else { return Ok(None) };
    let Some(conv) = index.maker(input).filter(|_| index.uses(input) == 1) else { return Ok(None) };
    let node = &graph.node[conv];
    let is_conv = node.op_type == "Conv" && is_standard(&node.domain) && node.output.len() == 1;
    let (true, [_, weight, biases @ ..]) = (is_conv, node.input.as_slice()) else { return Ok(None) };
    let Some(weight) = index.private_initializer(weight) else { return Ok(None) };
    let tensor = &graph.initializer[weight];
    let Some(values) = f32_values(tensor).filter(|values| !values.is_empty()) else { return Ok(None) };
    let channels = tensor.dims.first().and_then(|dim| usize::try_from(*dim).ok()).unwrap_or(1);
    let Some(bias) = Bias::of(graph, index, biases, channels) else { return Ok(None) };
    let affine = Affine::of(index, &graph.node[norm], norm, channels)?;
    let per_channel = values.len() / channels;
    let scaled = |(place, value): (usize, &f32)| f64::from(*value) * affine.scale[place / per_channel];
    // An infinite weight would be one in the file as well; one that only the product makes is an error.
    if values.iter().enumerate().any(|value| value.1.is_finite() && !(scaled(value) as f32).is_finite()) {
        let reason = format!("{} scales the weights before it beyond f32", label(&graph.node[norm], norm));
        return Err(format(reason, EXPORT));
    }
    Ok(Some(Fold { conv, norm, weight, bias, affine }))
}

impl Bias {
    fn of(graph: &GraphProto, index: &Index<'_>, names: &[String], channels: usize) -> Option<Self> {
        let Some(name) = names.first().filter(|name| !name.is_empty()) else { return Some(Self::None) };
        let values = f32_values(index.constant(name)?).filter(|values| values.len() == channels)?;
        match index.private_initializer(name) {
            Some(place) if f32_values(&graph.initializer[place]).is_some() => Some(Self::Private(place)),
            _ => Some(Self::Shared(values.into_owned())),
        }
    }
}

impl Affine {
    /// `scale = gamma / sqrt(var + epsilon)`, `shift = beta - mean scale`.
    ///
    /// Of a node behind a convolution of so many channels.
    fn of(index: &Index<'_>, node: &NodeProto, place: usize, outputs: usize) -> Result<Self> {
        let refuse = |reason: String| Err(format(format!("{} {reason}", label(node, place)), EXPORT));
        let per_value = attribute(node, "spatial").is_some_and(|spatial| spatial.i == 0);
        if node.input.len() != 5 || node.output.is_empty() || per_value {
            return refuse("is no normalisation of channels".to_owned());
        }
        let tensors = [1, 2, 3, 4].map(|input| index.constant(&node.input[input]));
        let lengths = tensors.map(|tensor| tensor.map_or(0, |tensor| elements(&tensor.dims)));
        let channels = lengths[0];
        if tensors.iter().all(Option::is_some) {
            if channels == 0 || lengths != [channels; 4] {
                return refuse("has statistics of different lengths".to_owned());
            }
            if channels != outputs {
                return refuse(format!("has {channels} channels, and the convolution before it {outputs}"));
            }
        }
        let [Some(gamma), Some(beta), Some(mean), Some(var)] =
            tensors.map(|tensor| tensor.and_then(f32_values))
        else {
            return refuse("has statistics that are no constants of f32".to_owned());
        };
        let epsilon = f64::from(attribute(node, "epsilon").map_or(1e-5, |epsilon| epsilon.f));
        let mut affine = Self { scale: Vec::with_capacity(channels), shift: Vec::with_capacity(channels) };
        for channel in 0..channels {
            let scale = f64::from(gamma[channel]) / (f64::from(var[channel]) + epsilon).sqrt();
            let shift = f64::from(beta[channel]) - f64::from(mean[channel]) * scale;
            if !(scale.is_finite() && shift.is_finite()) {
                return refuse(format!("has statistics of channel {channel} that give no number"));
            }
            affine.scale.push(scale);
            affine.shift.push(shift);
        }
        Ok(affine)
    }
}

fn apply(graph: &mut GraphProto, fold: &Fold, names: &mut Names) {
    let Affine { scale, shift } = &fold.affine;
    let weight = &mut graph.initializer[fold.weight];
    let per_channel = elements(&weight.dims) / scale.len();
    map_f32(weight, |place, value| (f64::from(value) * scale[place / per_channel]) as f32);
    let folded = |channel: usize, bias: f32| f64::from(bias).mul_add(scale[channel], shift[channel]) as f32;
    match &fold.bias {
        Bias::Private(place) => map_f32(&mut graph.initializer[*place], folded),
        Bias::None => add_bias(graph, fold, names, shift.iter().map(|shift| *shift as f32)),
        Bias::Shared(values) => {
            add_bias(
                graph,
                fold,
                names,
                values.iter().enumerate().map(|(channel, bias)| folded(channel, *bias)),
            );
        }
    }
    let output = graph.node[fold.norm].output[0].clone();
    graph.node[fold.conv].output[0] = output;
}

fn add_bias(graph: &mut GraphProto, fold: &Fold, names: &mut Names, values: impl Iterator<Item = f32>) {
    let name = names.unique(format!("{}.bias", graph.initializer[fold.weight].name));
    let channels = fold.affine.scale.len() as i64;
    graph.initializer.push(f32_tensor(name.clone(), vec![channels], values));
    let inputs = &mut graph.node[fold.conv].input;
    inputs.truncate(2);
    inputs.push(name);
}

fn elements(dims: &[i64]) -> usize {
    dims.iter().map(|dim| usize::try_from(*dim).unwrap_or(0)).product()
}
