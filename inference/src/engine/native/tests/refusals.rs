//! What cannot be run is refused by name, before anything runs.

use prost::Message;
use tract_onnx::pb::ModelProto;

use super::super::Native;
use super::builder::{Builder, ConvCase, float, int_attribute, ints, ints_attribute};
use crate::{EngineKind, Error, Onnx, Result};

fn load(proto: &ModelProto) -> Result<()> {
    Native::load(&Onnx::from_bytes(&proto.encode_to_vec())?, 1).map(|_| ())
}

/// The file is refused for what it says of a node.
#[track_caller]
fn assert_unsupported(builder: Builder, name: &str, what: &str, why: &str) {
    match load(&builder.proto()) {
        Err(Error::Unsupported { engine: EngineKind::Native, node, operation, reason }) => {
            assert_eq!((node.as_str(), operation.as_str()), (name, what), "{reason}");
            assert!(reason.contains(why), "`{reason}` does not say `{why}`");
        }
        Err(other) => panic!("refused for something else: {other}"),
        Ok(()) => panic!("{what} was not refused"),
    }
}

fn head(builder: &mut Builder) {
    builder.global_average().flatten().gemm(4);
}

#[test]
fn an_unknown_operation_is_named() {
    let mut builder = Builder::new(3, 8, 8);
    builder.square(8, 3, 1).node("Erf", &[], Vec::new());
    head(&mut builder);
    assert_unsupported(builder, "/Erf/1", "Erf", "no such operation");
}

#[test]
fn an_operation_of_another_domain_is_named() {
    let mut builder = Builder::new(3, 8, 8);
    builder.square(8, 3, 1).relu();
    builder.graph.node[1].domain = "com.microsoft".to_owned();
    head(&mut builder);
    assert_unsupported(builder, "/Relu/1", "com.microsoft.Relu", "no such operation");
}

#[test]
fn an_unknown_attribute_is_named() {
    let mut builder = Builder::new(3, 8, 8);
    builder.square(8, 3, 1);
    builder.graph.node[0].attribute.push(int_attribute("activation", 1));
    head(&mut builder);
    assert_unsupported(builder, "/Conv/0", "Conv", "`activation`");
}

#[test]
fn a_node_without_a_name_is_told_by_its_place() {
    let mut builder = Builder::new(3, 8, 8);
    builder.square(8, 3, 1).node("Tanh", &[], Vec::new());
    builder.graph.node[1].name.clear();
    head(&mut builder);
    assert_unsupported(builder, "#1", "Tanh", "no such operation");
}

#[test]
fn long_names_are_cut_in_errors() {
    let long = "x".repeat(3 << 20);
    let edits: [&dyn Fn(&mut tract_onnx::pb::NodeProto); 4] = [
        &|node| node.name = long.clone(),
        &|node| node.op_type = long.clone(),
        &|node| node.attribute.push(int_attribute(&long, 1)),
        &|node| node.attribute.push(ints_attribute("pads", &vec![0; 1 << 16])),
    ];
    for (at, edit) in edits.into_iter().enumerate() {
        let mut builder = Builder::new(3, 8, 8);
        builder.square(8, 3, 1).node("Erf", &[], Vec::new());
        edit(&mut builder.graph.node[1]);
        head(&mut builder);
        let error = load(&builder.proto()).expect_err("there is no Erf");
        assert!(error.to_string().len() < 2000, "{at}: {}", error.to_string().len());
    }
    let mut conv = Builder::new(3, 8, 8);
    conv.square(8, 3, 1);
    conv.graph.node[0].attribute.push(int_attribute(&long, 1));
    head(&mut conv);
    assert!(load(&conv.proto()).expect_err("unknown").to_string().len() < 2000);
}

#[test]
fn weights_that_are_computed_from_the_images_are_refused() {
    let mut builder = Builder::new(3, 8, 8);
    builder.square(8, 3, 1);
    builder.graph.node[0].input[1] = "input".to_owned();
    head(&mut builder);
    assert_unsupported(builder, "/Conv/0", "Conv", "no constant");
}

#[test]
fn windows_that_cannot_be_are_refused() {
    let case = ConvCase {
        input: [3, 8, 8],
        out: 4,
        kernel: [3, 3],
        stride: [1, 1],
        pads: [1; 4],
        dilation: [1, 1],
        groups: 1,
    };
    let edits: [(&str, Vec<usize>); 7] = [
        ("strides", vec![0, 1]),
        ("dilations", vec![0, 1]),
        ("dilations", vec![usize::MAX >> 1, 1]),
        ("pads", vec![usize::MAX >> 1; 4]),
        ("pads", vec![1 << 40; 4]),
        ("pads", vec![1; 3]),
        ("dilations", vec![9, 9]),
    ];
    for (name, values) in edits {
        let mut builder = Builder::new(3, 8, 8);
        builder.conv(&case, true);
        let attributes = &mut builder.graph.node[0].attribute;
        attributes.retain(|attribute| attribute.name != name);
        attributes.push(ints_attribute(name, &values));
        head(&mut builder);
        // Reading the file may refuse it already.
        let error = load(&builder.proto()).expect_err(name);
        assert!(
            matches!(error, Error::Unsupported { .. } | Error::Format { .. }),
            "{name} {values:?}: {error}"
        );
    }
}

#[test]
fn weights_that_do_not_fit_are_refused() {
    for dims in [[4, 2, 3, 3], [4, 3, 3, 2], [3, 4, 3, 3], [12, 9, 1, 1], [0, 3, 3, 3]] {
        let mut builder = Builder::new(3, 8, 8);
        builder.square(4, 3, 1);
        let name = builder.graph.initializer[0].name.clone();
        let count = dims.iter().product();
        builder.graph.initializer[0] = float(&name, &dims, &vec![0.5; count]);
        head(&mut builder);
        let loaded = load(&builder.proto());
        // [4, 3, 3, 2] is a window of other sides, whose result is but one column narrower.
        assert_eq!(loaded.is_ok(), dims == [4, 3, 3, 2], "{dims:?}: {loaded:?}");
    }
}

#[test]
fn a_reshape_that_mixes_images_is_refused() {
    for to in [vec![32, -1], vec![1, 8], vec![-1, 4], vec![8], vec![-1, -1], vec![0, 0, 1, 2], vec![2, 8]] {
        let mut builder = Builder::new(3, 8, 8);
        builder.square(8, 3, 1).global_average();
        builder.graph.initializer.push(ints("to", &to));
        builder.node("Reshape", &["to"], Vec::new());
        builder.shape = [8, 1, 1];
        builder.gemm(4);
        assert!(load(&builder.proto()).is_err(), "{to:?}");
    }
}

#[test]
fn logits_of_other_classes_than_the_file_says_are_refused() {
    let mut builder = Builder::new(3, 8, 8);
    builder.square(8, 3, 1);
    head(&mut builder);
    builder.shape = [5, 1, 1];
    let error = load(&builder.proto()).expect_err("four logits, not five");
    assert!(error.to_string().contains("has 4 classes, the file says 5"), "{error}");
}

#[test]
fn images_that_grow_without_bound_are_refused() {
    // Each convolution pads 4,096 pixels on every side: the images would be of terabytes.
    let mut builder = Builder::new(1, 64, 64);
    for _ in 0..40 {
        let case = ConvCase {
            input: builder.shape,
            out: 1,
            kernel: [1, 1],
            stride: [1, 1],
            pads: [4096; 4],
            dilation: [1, 1],
            groups: 1,
        };
        builder.conv(&case, false);
    }
    head(&mut builder);
    let error = load(&builder.proto()).expect_err("too large");
    assert!(error.to_string().contains("too large"), "{error}");
}

#[test]
fn a_tensor_that_is_used_again_and_again_takes_bounded_memory() {
    // 2 MiB in the file, and up to 9 MiB with each use: fewer products take more weights.
    let mut builder = Builder::new(3, 32, 32);
    builder.square(256, 1, 1).square(256, 3, 1);
    for _ in 0..400 {
        let weight = builder.graph.node[1].input[1].clone();
        let attributes = builder.graph.node[1].attribute.clone();
        builder.node("Conv", &[&weight], attributes);
    }
    head(&mut builder);
    let error = load(&builder.proto()).expect_err("3 GiB of weights");
    assert!(error.to_string().contains("take more memory than is allowed"), "{error}");
}

#[test]
fn a_constant_of_one_value_that_is_for_all_of_many_channels_takes_bounded_memory() {
    // A file of a few kilobytes whose nodes would keep two numbers for each of a million channels.
    let mut builder = Builder::new(1 << 20, 1, 1);
    builder.graph.initializer.push(float("one", &[], &[1.]));
    for _ in 0..200 {
        builder.node("Add", &["one"], Vec::new());
    }
    builder.flatten();
    assert_unsupported(builder, "/Add/16", "Add", "channels");
}

#[test]
fn a_long_list_of_numbers_is_no_shape() {
    let seventeen = ints("many", &[0; 17]);
    let mut gathered = Builder::new(3, 8, 8);
    gathered.graph.initializer.push(seventeen.clone());
    gathered.node("Shape", &[], Vec::new()).node("Gather", &["many"], Vec::new());
    head(&mut gathered);
    assert_unsupported(gathered, "/Gather/1", "Gather", "at most 16 sizes");
    let mut reshaped = Builder::new(3, 8, 8);
    reshaped.graph.initializer.push(seventeen);
    reshaped.node("Reshape", &["many"], Vec::new());
    head(&mut reshaped);
    assert_unsupported(reshaped, "/Reshape/0", "Reshape", "at most 16 sizes");
    let mut constant = Builder::new(3, 8, 8);
    constant.node("Constant", &[], vec![ints_attribute("value_ints", &[0; 17])]);
    constant.graph.node[0].input.clear();
    constant.last = "input".to_owned();
    head(&mut constant);
    assert_unsupported(constant, "/Constant/0", "Constant", "at most 16 sizes");
}

#[test]
fn nodes_that_make_no_step_are_counted_too() {
    let mut builder = Builder::new(3, 8, 8);
    for _ in 0..4096 {
        builder.node("Identity", &[], Vec::new());
    }
    head(&mut builder);
    assert_unsupported(builder, "/GlobalAveragePool/4096", "GlobalAveragePool", "one of more than 4096");
}

#[test]
fn shapes_that_double_with_each_node_are_refused() {
    let mut builder = Builder::new(3, 8, 8);
    builder.square(8, 3, 1).global_average();
    let pooled = builder.last.clone();
    builder.node("Shape", &[], Vec::new());
    for _ in 0..60 {
        let last = builder.last.clone();
        builder.node("Concat", &[&last], vec![int_attribute("axis", 0)]);
    }
    let to = std::mem::replace(&mut builder.last, pooled);
    builder.node("Reshape", &[&to], Vec::new());
    builder.shape = [8, 1, 1];
    builder.gemm(4);
    assert_unsupported_prefix(builder);
}

fn assert_unsupported_prefix(builder: Builder) {
    let error = load(&builder.proto()).expect_err("a shape of many sizes");
    assert!(error.to_string().contains("at most 16 sizes"), "{error}");
}

#[test]
fn a_damaged_file_never_panics() {
    let mut builder = Builder::new(3, 8, 8);
    builder.square(8, 3, 1).batch_norm().relu().pool("MaxPool", 3, 2, 1);
    head(&mut builder);
    let bytes = builder.proto().encode_to_vec();
    let mut state = 1_u64;
    for round in 0..4000 {
        let mut damaged = bytes.clone();
        for _ in 0..3 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let at = (state >> 33) as usize % damaged.len();
            damaged[at] = (state >> 25) as u8;
        }
        let Ok(onnx) = Onnx::from_bytes(&damaged) else { continue };
        if let Ok(mut engine) = Native::load(&onnx, 1 + round % 3) {
            let values = onnx.signature().image_values();
            if values <= 1 << 16 {
                let images = vec![0.5; values];
                // The team tells of a panic as an error.
                if let Err(error) = super::super::Engine::run(&mut engine, 1, &images, &mut Vec::new()) {
                    assert!(!error.to_string().contains("panicked"), "round {round}: {error}");
                }
            }
        }
    }
}
