//! Weights in fewer bits.

use burn_nccl_inference::{Error, Onnx, WeightType};
use half::f16;
use tract_onnx::pb::attribute_proto::AttributeType;
use tract_onnx::pb::{AttributeProto, GraphProto, NodeProto};

use crate::common::{difference, graph, logits, tensor, values};
use crate::testing::{Net, tensor as f32_tensor};

fn narrowed(net: &Net, weights: WeightType) -> Onnx {
    let mut onnx = Onnx::from_bytes(&net.bytes()).unwrap();
    onnx.set_weights(weights).unwrap();
    Onnx::from_bytes(&onnx.to_bytes()).unwrap()
}

/// What is said where a weight is changed to values, and the network must stay as it was.
fn refusal(name: &str, found: &[f32], to: WeightType) -> String {
    let mut net = Net::residual(3, 10);
    let tensor = net.graph.initializer.iter_mut().find(|tensor| tensor.name == name).unwrap();
    let mut values = values(tensor);
    values[..found.len()].copy_from_slice(found);
    let dims: Vec<_> = tensor.dims.iter().map(|dim| *dim as usize).collect();
    *tensor = f32_tensor(name, &dims, &values);
    let mut onnx = Onnx::from_bytes(&net.bytes()).unwrap();
    let error = onnx.set_weights(to).unwrap_err();
    assert!(matches!(&error, Error::Weights { tensor, .. } if tensor == name), "{error}");
    assert_eq!(onnx.to_bytes(), net.bytes(), "nothing is changed");
    error.to_string()
}

#[test]
fn a_weight_in_a_node_that_is_refused_leaves_the_network_as_it_was() {
    let mut net = Net::residual(3, 10);
    let place = net.graph.initializer.iter().position(|tensor| tensor.name == "fc.weight").unwrap();
    let weight = net.graph.initializer.remove(place);
    let mut found = values(&weight);
    found[7] = f32::NAN;
    let value = AttributeProto {
        name: "value".to_owned(),
        r#type: AttributeType::Tensor as i32,
        t: Some(f32_tensor("", &[10, 12], &found)),
        ..Default::default()
    };
    let constant = NodeProto {
        op_type: "Constant".to_owned(),
        output: vec![weight.name],
        attribute: vec![value],
        ..Default::default()
    };
    net.graph.node.insert(0, constant);
    let mut onnx = Onnx::from_bytes(&net.bytes()).unwrap();
    let before = onnx.to_bytes();
    let error = onnx.set_weights(WeightType::Int8).unwrap_err();
    assert!(matches!(&error, Error::Weights { tensor, .. } if tensor == "fc.weight"), "{error}");
    assert!(error.to_string().contains("value 7 is NaN"), "{error}");
    assert!(onnx.to_bytes() == before, "nothing is changed");
}

#[test]
fn f32_leaves_the_file_as_it_is() {
    let net = Net::residual(3, 10);
    assert_eq!(narrowed(&net, WeightType::F32).to_bytes(), net.bytes());
}

#[test]
fn f16_weights_are_the_nearest_and_biases_stay() {
    let net = Net::residual(3, 10);
    let after = graph(&narrowed(&net, WeightType::F16));
    let mut weights = 0;
    for before in &net.graph.initializer {
        if !(before.name.starts_with("conv") || before.name == "fc.weight") || before.name.ends_with("bias") {
            assert_eq!(tensor(&after, &before.name), before);
            continue;
        }
        weights += 1;
        let narrow = tensor(&after, &format!("{}.f16", before.name));
        assert_eq!(narrow.dims, before.dims);
        let found = narrow.raw_data.as_chunks().0.iter().map(|bytes| f16::from_le_bytes(*bytes).to_f32());
        for (value, found) in values(before).iter().zip(found) {
            // Half a unit in the last of 11 bits, and of the subnormals.
            let bound = (value.abs() / 2048.0).max(2.0_f32.powi(-25));
            assert!((value - found).abs() <= bound, "{value} {found}");
        }
    }
    assert_eq!(weights, 7);
}

/// The weights that an int8 network computes with, and its scales.
fn dequantized(graph: &GraphProto, name: &str, axis: usize) -> (Vec<f32>, Vec<f32>) {
    let narrow = tensor(graph, &format!("{name}.int8"));
    let scales = values(tensor(graph, &format!("{name}.scale")));
    let inner: i64 = narrow.dims[axis + 1..].iter().product();
    let widen = |(place, byte): (usize, &u8)| {
        f32::from(*byte as i8) * scales[place / inner as usize % narrow.dims[axis] as usize]
    };
    (narrow.raw_data.iter().enumerate().map(widen).collect(), scales)
}

fn assert_within_half_a_scale(before: &GraphProto, after: &GraphProto, name: &str, axis: usize) {
    let wide = tensor(before, name);
    let (found, scales) = dequantized(after, name, axis);
    let channels = wide.dims[axis] as usize;
    let inner = wide.dims[axis + 1..].iter().product::<i64>() as usize;
    assert_eq!(scales.len(), channels);
    let mut largest = vec![0.0_f32; channels];
    for (place, value) in values(wide).iter().enumerate() {
        let channel = place / inner % channels;
        largest[channel] = largest[channel].max(value.abs());
        let error = (value - found[place]).abs();
        assert!(error <= scales[channel] * 0.500001, "{name} {place}: {error} of {}", scales[channel]);
    }
    for (largest, scale) in largest.iter().zip(&scales) {
        assert!((largest / 127.0 - scale).abs() <= 1e-9, "{name}: {largest} {scale}");
    }
}

#[test]
fn int8_weights_are_within_half_a_scale_of_their_channel() {
    let net = Net::residual(3, 10);
    let after = graph(&narrowed(&net, WeightType::Int8));
    for name in ["conv0.weight", "conv4.weight", "conv7.weight", "conv9.weight", "fc.weight"] {
        assert_within_half_a_scale(&net.graph, &after, name, 0);
    }
    assert_eq!(tensor(&after, "fc.bias"), tensor(&net.graph, "fc.bias"));
}

/// A network whose head is one product of the pooled channels with `[channels, classes]`.
fn with_product(operation: &str) -> Net {
    let mut net = Net::residual(3, 10);
    let weight = net.random("head.weight", &[12, 10], 0.5);
    let gemm = net.graph.node.pop().unwrap();
    let output = net.node(operation, &[&gemm.input[0], &weight], vec![]);
    net.output(&output, 10);
    net.graph.initializer.retain(|tensor| !tensor.name.starts_with("fc."));
    net
}

#[test]
fn the_channels_of_a_product_are_its_columns() {
    for operation in ["Gemm", "MatMul"] {
        let net = with_product(operation);
        let after = graph(&narrowed(&net, WeightType::Int8));
        assert_within_half_a_scale(&net.graph, &after, "head.weight", 1);
    }
}

#[test]
fn a_channel_of_zeros_or_of_the_smallest_numbers_has_a_scale() {
    let mut net = Net::residual(3, 10);
    let weight = net.graph.initializer.iter_mut().find(|tensor| tensor.name == "fc.weight").unwrap();
    let mut changed = values(weight);
    changed[..12].fill(0.0);
    changed[12..24].fill(1e-44);
    changed[24..36].fill(f32::MAX);
    *weight = f32_tensor("fc.weight", &[10, 12], &changed);
    let after = graph(&narrowed(&net, WeightType::Int8));
    let (found, scales) = dequantized(&after, "fc.weight", 0);
    assert_eq!(scales[..2], [1.0, f32::MIN_POSITIVE]);
    assert_eq!(found[..24], [0.0; 24]);
    assert!(found[24..36].iter().all(|value| (value / f32::MAX - 1.0).abs() < 1e-6));
}

#[test]
fn the_logits_of_narrow_weights_are_near() {
    let net = Net::residual(3, 10);
    let images = net.images(3, 16, 16);
    let wide = logits(&Onnx::from_bytes(&net.bytes()).unwrap(), 3, &images);
    let half = difference(&wide, &logits(&narrowed(&net, WeightType::F16), 3, &images));
    assert!(half > 0.0 && half < 2e-3, "{half}");
    let byte = difference(&wide, &logits(&narrowed(&net, WeightType::Int8), 3, &images));
    assert!(byte > half && byte < 5e-2, "{byte}");
}

#[test]
fn files_become_as_small_as_the_type_says() {
    let mut net = Net::new(64, 4, 4);
    let conv = net.conv("input", crate::testing::Conv::same(64, 256, 3));
    let output = net.head(&conv, 256, 3);
    net.output(&output, 3);
    let size = |weights| narrowed(&net, weights).to_bytes().len() as f64 / net.bytes().len() as f64;
    assert!((size(WeightType::F16) - 0.5).abs() < 0.01);
    assert!((size(WeightType::Int8) - 0.25).abs() < 0.01);
}

#[test]
fn values_that_a_type_cannot_hold_are_refused_by_name() {
    for to in [WeightType::F16, WeightType::Int8] {
        let said = refusal("conv4.weight", &[0.0, f32::NAN], to);
        assert!(said.contains("`conv4.weight`") && said.contains("value 1 is NaN"), "{said}");
        refusal("fc.weight", &[f32::NEG_INFINITY], to);
    }
    // The last that rounds down to 65504 is just below 65520.
    let said = refusal("fc.weight", &[65519.99, -65520.0], WeightType::F16);
    assert!(said.contains("value 1 is -65520") && said.contains("65504"), "{said}");
}

#[test]
fn weights_that_are_narrow_are_narrowed_once() {
    let mut onnx = narrowed(&Net::residual(3, 10), WeightType::F16);
    let once = onnx.to_bytes();
    onnx.set_weights(WeightType::F16).unwrap();
    onnx.set_weights(WeightType::F32).unwrap();
    let said = onnx.set_weights(WeightType::Int8).unwrap_err().to_string();
    assert!(said.contains("`conv0.weight.f16`") && said.contains("stored as f16 already"), "{said}");
    assert_eq!(onnx.to_bytes(), once);
}

#[test]
fn int8_needs_an_opset_that_has_scales_per_channel() {
    let mut net = Net::residual(3, 10);
    net.opset = 12;
    let mut onnx = Onnx::from_bytes(&net.bytes()).unwrap();
    let said = onnx.set_weights(WeightType::Int8).unwrap_err().to_string();
    assert!(said.contains("opset 12") && said.contains("opset 13"), "{said}");
    onnx.set_weights(WeightType::F16).unwrap();
}

#[test]
fn folded_and_narrow_networks_are_near_the_first() {
    let net = Net::residual(3, 10);
    let images = net.images(2, 16, 16);
    let mut onnx = Onnx::from_bytes(&net.bytes()).unwrap();
    let wide = logits(&onnx, 2, &images);
    assert_eq!(onnx.fold_batch_norms().unwrap(), 6);
    onnx.set_weights(WeightType::Int8).unwrap();
    assert!(difference(&wide, &logits(&onnx, 2, &images)) < 5e-2);
}
