//! Batch normalisations are folded into convolutions, and the network stays the same.

use burn_nccl_inference::Onnx;
use tract_onnx::pb::tensor_proto::DataType;
use tract_onnx::pb::{AttributeProto, GraphProto, NodeProto, TensorProto};

use crate::common::{difference, graph, logits, tensor, values};
use crate::testing::{Conv, Net, int, tensor as f32_tensor};

fn operations(graph: &GraphProto) -> Vec<&str> {
    graph.node.iter().map(|node| node.op_type.as_str()).collect()
}

fn folded(net: &Net) -> (Onnx, usize) {
    let mut onnx = Onnx::from_bytes(&net.bytes()).unwrap();
    let count = onnx.fold_batch_norms().unwrap();
    // What was written must be a network again.
    Onnx::from_bytes(&onnx.to_bytes()).unwrap();
    (onnx, count)
}

/// A convolution, a normalisation, and a head.
fn small(conv: Conv) -> Net {
    let mut net = Net::new(conv.inputs, 4, 4);
    let made = net.conv("input", conv);
    let normal = net.batch_norm(&made, conv.outputs);
    let output = net.head(&normal, conv.outputs, 3);
    net.output(&output, 3);
    net
}

fn assert_same(net: &Net, onnx: &Onnx, size: usize) {
    let images = net.images(3, size, size);
    let before = logits(&Onnx::from_bytes(&net.bytes()).unwrap(), 3, &images);
    let difference = difference(&before, &logits(onnx, 3, &images));
    assert!(difference <= 1e-5, "{difference}");
}

#[test]
fn a_residual_network_gives_the_same_logits_without_normalisations() {
    let net = Net::residual(3, 10);
    let (onnx, count) = folded(&net);
    assert_eq!(count, 6);
    let graph = graph(&onnx);
    assert!(!operations(&graph).contains(&"BatchNormalization"));
    assert!(!graph.initializer.iter().any(|tensor| tensor.name.starts_with("bn")), "statistics are removed");
    assert_same(&net, &onnx, 16);
}

#[test]
fn weights_and_biases_are_those_of_the_formula() {
    for bias in [false, true] {
        let net = small(Conv { bias, ..Conv::same(2, 5, 3) });
        let before = net.graph.clone();
        let (onnx, count) = folded(&net);
        assert_eq!(count, 1);
        let after = graph(&onnx);
        let of = |name: &str| values(tensor(&before, name));
        let weight = (of("conv0.weight"), values(tensor(&after, "conv0.weight")));
        // W s and (b - mean) s + beta, with s = gamma / sqrt(var + 1e-5).
        let scale: Vec<f64> = of("bn1.weight")
            .iter()
            .zip(of("bn1.running_var"))
            .map(|(gamma, var)| f64::from(*gamma) / (f64::from(var) + 1e-5).sqrt())
            .collect();
        for (place, (before, after)) in weight.0.iter().zip(&weight.1).enumerate() {
            let expected = f64::from(*before) * scale[place / 18];
            assert!((expected - f64::from(*after)).abs() <= expected.abs() * 1e-7, "{place}");
        }
        let name = if bias { "conv0.bias" } else { "conv0.weight.bias" };
        assert_eq!(after.node[0].input, ["input", "conv0.weight", name]);
        let had = if bias { of("conv0.bias") } else { vec![0.0; 5] };
        for (channel, found) in values(tensor(&after, name)).iter().enumerate() {
            let [mean, beta] = ["bn1.running_mean", "bn1.bias"].map(|name| f64::from(of(name)[channel]));
            let expected = (f64::from(had[channel]) - mean) * scale[channel] + beta;
            assert!((expected - f64::from(*found)).abs() <= 1e-6, "{channel}");
        }
    }
}

#[test]
fn the_folded_convolution_makes_the_value_that_the_normalisation_made() {
    let net = small(Conv::same(2, 5, 3));
    let (onnx, _) = folded(&net);
    let graph = graph(&onnx);
    assert_eq!(operations(&graph), ["Conv", "GlobalAveragePool", "Flatten", "Gemm"]);
    assert_eq!(graph.node[0].name, "Conv_0");
    assert_eq!(graph.node[0].output, ["batchnormalization_1"]);
}

#[test]
fn folding_twice_changes_nothing_more() {
    let (mut onnx, _) = folded(&Net::residual(1, 10));
    let once = onnx.to_bytes();
    assert_eq!(onnx.fold_batch_norms().unwrap(), 0);
    assert_eq!(onnx.to_bytes(), once);
}

#[test]
fn a_convolution_that_feeds_something_else_keeps_its_normalisation() {
    let mut net = Net::new(2, 4, 4);
    let conv = net.conv("input", Conv::same(2, 4, 3));
    let normal = net.batch_norm(&conv, 4);
    let sum = net.node("Add", &[&conv, &normal], vec![]);
    let output = net.head(&sum, 4, 3);
    net.output(&output, 3);
    let (onnx, count) = folded(&net);
    assert_eq!(count, 0);
    assert_same(&net, &onnx, 4);
}

#[test]
fn weights_that_two_convolutions_share_stay() {
    let mut net = Net::new(2, 4, 4);
    let one = net.conv("input", Conv::same(2, 2, 3));
    let normal = net.batch_norm(&one, 2);
    let attributes = net.graph.node[0].attribute.clone();
    let two = net.node("Conv", &[&normal, "conv0.weight"], attributes);
    let output = net.head(&two, 2, 3);
    net.output(&output, 3);
    let (onnx, count) = folded(&net);
    assert_eq!(count, 0);
    assert_same(&net, &onnx, 4);
}

#[test]
fn a_shared_bias_stays_for_the_other() {
    let mut net = Net::new(2, 4, 4);
    let one = net.conv("input", Conv { bias: true, ..Conv::same(2, 2, 3) });
    let normal = net.batch_norm(&one, 2);
    let weight = net.random("other.weight", &[2, 2, 3, 3], 0.3);
    let attributes = net.graph.node[0].attribute.clone();
    let two = net.node("Conv", &[&normal, &weight, "conv0.bias"], attributes);
    let output = net.head(&two, 2, 3);
    net.output(&output, 3);
    let (onnx, count) = folded(&net);
    assert_eq!(count, 1);
    assert_eq!(values(tensor(&graph(&onnx), "conv0.bias")), values(tensor(&net.graph, "conv0.bias")));
    assert_same(&net, &onnx, 4);
}

#[test]
fn a_new_bias_gets_a_name_that_nothing_has() {
    let mut net = small(Conv::same(2, 5, 3));
    net.graph.node.last_mut().unwrap().input[2] = "conv0.weight.bias".to_owned();
    let bias = net.graph.initializer.iter_mut().find(|tensor| tensor.name == "fc.bias").unwrap();
    bias.name = "conv0.weight.bias".to_owned();
    let (onnx, _) = folded(&net);
    assert_eq!(graph(&onnx).node[0].input[2], "conv0.weight.bias.2");
    assert_same(&net, &onnx, 4);
}

#[test]
fn constants_in_nodes_and_behind_second_names_are_found() {
    let mut net = small(Conv::same(2, 5, 3));
    let weight = net.graph.initializer.remove(0);
    let value = AttributeProto {
        name: "value".to_owned(),
        r#type: 4,
        t: Some(TensorProto { name: String::new(), ..weight }),
        ..Default::default()
    };
    let constant = NodeProto {
        op_type: "Constant".to_owned(),
        output: vec!["conv0.weight".to_owned()],
        attribute: vec![value],
        ..Default::default()
    };
    let identity = NodeProto {
        op_type: "Identity".to_owned(),
        input: vec!["bn1.bias".to_owned()],
        output: vec!["second".to_owned()],
        ..Default::default()
    };
    net.graph.node[1].input[3] = "second".to_owned();
    net.graph.node.splice(0..0, [constant, identity]);
    let (onnx, count) = folded(&net);
    assert_eq!(count, 1);
    assert_eq!(operations(&graph(&onnx)), ["Conv", "GlobalAveragePool", "Flatten", "Gemm"]);
    assert_same(&net, &onnx, 4);
}

#[test]
fn a_normalisation_that_no_convolution_takes_in_is_not_looked_at() {
    let mut net = Net::new(2, 4, 4);
    let sum = net.node("Relu", &["input"], vec![]);
    let normal = net.batch_norm(&sum, 2);
    net.graph.initializer.iter_mut().find(|tensor| tensor.name == "bn1.running_var").unwrap().raw_data[3] =
        0xff;
    let output = net.head(&normal, 2, 3);
    net.output(&output, 3);
    assert_eq!(folded(&net).1, 0);
}

#[test]
fn before_folding_the_statistics_have_to_be_constants() {
    let mut net = small(Conv::same(2, 5, 3));
    net.graph.initializer.retain(|tensor| tensor.name != "bn1.running_mean");
    let shape = f32_tensor("bn1.mean2", &[5], &[1.0; 5]);
    net.graph.initializer.push(shape);
    let double = NodeProto {
        op_type: "Add".to_owned(),
        input: vec!["bn1.mean2".to_owned(); 2],
        output: vec!["bn1.running_mean".to_owned()],
        ..Default::default()
    };
    net.graph.node.insert(0, double);
    let mut onnx = Onnx::from_bytes(&net.bytes()).unwrap();
    let said = onnx.fold_batch_norms().unwrap_err().to_string();
    assert!(said.contains("`BatchNormalization_1` has statistics that are no constants"), "{said}");
}

#[test]
fn statistics_that_give_no_number_or_do_not_fit_are_refused() {
    let refusal = |change: &dyn Fn(&mut GraphProto)| {
        let mut net = small(Conv::same(2, 5, 3));
        change(&mut net.graph);
        let mut onnx = Onnx::from_bytes(&net.bytes()).unwrap();
        let before = onnx.to_bytes();
        let said = onnx.fold_batch_norms().unwrap_err().to_string();
        assert_eq!(onnx.to_bytes(), before, "nothing is changed");
        said
    };
    let replace = |name: &'static str, values: &'static [f32]| {
        move |graph: &mut GraphProto| {
            let tensor = graph.initializer.iter_mut().find(|tensor| tensor.name == name).unwrap();
            *tensor = f32_tensor(name, &[values.len()], values);
        }
    };
    let said = refusal(&replace("bn1.running_var", &[1.0, -1.0, 1.0, 1.0, 1.0]));
    assert!(said.contains("channel 1"), "{said}");
    let said = refusal(&replace("bn1.running_mean", &[f32::INFINITY, 1.0, 1.0, 1.0, 1.0]));
    assert!(said.contains("channel 0"), "{said}");
    let said = refusal(&replace("bn1.running_mean", &[1.0; 4]));
    assert!(said.contains("different lengths"), "{said}");
    let said = refusal(&|graph: &mut GraphProto| graph.node[1].attribute.push(int("spatial", 0)));
    assert!(said.contains("no normalisation of channels"), "{said}");
    let said = refusal(&|graph: &mut GraphProto| {
        graph.initializer.iter_mut().find(|tensor| tensor.name == "bn1.bias").unwrap().data_type =
            DataType::Int32 as i32;
    });
    assert!(said.contains("no constants of f32"), "{said}");
    let said = refusal(&|graph: &mut GraphProto| {
        for tensor in graph.initializer.iter_mut().filter(|tensor| tensor.name.starts_with("bn")) {
            *tensor = f32_tensor(&tensor.name.clone(), &[4], &[1.0; 4]);
        }
    });
    assert!(said.contains("has 4 channels, and the convolution before it 5"), "{said}");
}
