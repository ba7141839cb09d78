//! What is accepted as a network, and what each refusal says.

use burn_nccl_inference::{Error, Onnx, Signature};
use prost::Message;
use tract_onnx::pb::tensor_proto::{DataLocation, DataType};
use tract_onnx::pb::tensor_shape_proto::dimension::Value;
use tract_onnx::pb::{
    AttributeProto, FunctionProto, GraphProto, ModelProto, NodeProto, OperatorSetIdProto, type_proto,
};

use crate::testing::{Net, int, ints, tensor, value};

fn refusal(bytes: &[u8]) -> String {
    Onnx::from_bytes(bytes).expect_err("the file should be refused").to_string()
}

/// What is said of a network that was changed.
fn changed(change: impl FnOnce(&mut ModelProto, &mut GraphProto)) -> String {
    let mut model = Net::residual(3, 10).model();
    let mut graph = model.graph.take().unwrap();
    change(&mut model, &mut graph);
    if model.graph.is_none() {
        model.graph = Some(graph);
    }
    refusal(&model.encode_to_vec())
}

#[track_caller]
fn assert_says(said: &str, parts: &[&str]) {
    for part in parts {
        assert!(said.contains(part), "`{said}` does not say `{part}`");
    }
}

#[test]
fn a_network_is_read_with_its_signature() {
    let onnx = Onnx::from_bytes(&Net::residual(3, 10).bytes()).unwrap();
    let expected = Signature {
        input: "input".to_owned(),
        output: "gemm_22".to_owned(),
        batch: None,
        channels: 3,
        height: 16,
        width: 16,
        classes: 10,
    };
    assert_eq!(onnx.signature(), &expected);
    assert_eq!(onnx.signature().image_values(), 768);
}

#[test]
fn the_bytes_of_a_network_are_those_that_were_read() {
    let bytes = Net::residual(1, 4).bytes();
    assert_eq!(Onnx::from_bytes(&bytes).unwrap().to_bytes(), bytes);
}

#[test]
fn a_file_is_opened_by_its_path() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.onnx");
    std::fs::write(&path, Net::residual(1, 4).bytes()).unwrap();
    assert_eq!(Onnx::open(&path).unwrap().signature().classes, 4);
    assert!(matches!(Onnx::open(folder.path().join("other.onnx")), Err(Error::Read { .. })));
    assert!(matches!(Onnx::open(folder.path()), Err(Error::Read { .. })));
}

#[test]
fn a_file_beyond_the_limit_of_protobuf_is_refused_before_it_is_read() {
    let file = tempfile::NamedTempFile::new().unwrap();
    file.as_file().set_len(3 << 30).unwrap();
    let said = Onnx::open(file.path()).unwrap_err().to_string();
    assert_says(&said, &["3221225472 bytes", "2147483647", "narrow its weights"]);
}

#[test]
fn files_of_other_kinds_are_told_apart() {
    let cases: [(&[u8], &str); 12] = [
        (b"", "it is empty"),
        (b"<!DOCTYPE html><html>", "web page"),
        (b"\n  <html>", "web page"),
        (b"PK\x03\x04 archive/data.pkl", "zip archive"),
        (b"\x80\x04\x95 rest", "Python pickle"),
        (b"version https://git-lfs.github.com/spec/v1\n", "git lfs pull"),
        (b"\x40\0\0\0\0\0\0\0{\"__metadata__\"", "safetensors"),
        (b"NRUB\x01\0", "burnpack"),
        (b"\x89PNG\r\n", "PNG"),
        (b"\x1c\0\0\0TFL3", "TensorFlow Lite"),
        (b"hello world, this is a text", "another kind of file"),
        (&[0; 64], "another kind of file"),
    ];
    for (bytes, part) in cases {
        assert_says(&refusal(bytes), &["no usable ONNX file", part]);
    }
}

#[test]
fn a_truncated_file_says_where_it_ends() {
    let bytes = Net::residual(3, 10).bytes();
    let said = refusal(&bytes[..bytes.len() / 2]);
    assert_says(&said, &["truncated", "copy or download the file again"]);
}

#[test]
fn data_in_another_file_is_refused() {
    let said = changed(|_, graph| {
        graph.initializer[0].raw_data.clear();
        graph.initializer[0].data_location = Some(DataLocation::External as i32);
    });
    assert_says(&said, &["`conv0.weight`", "in another file", "save_as_external_data=False"]);
}

#[test]
fn graphs_within_the_graph_and_functions_are_refused() {
    let branch = AttributeProto {
        name: "then_branch".to_owned(),
        g: Some(GraphProto::default()),
        ..Default::default()
    };
    assert_says(
        &changed(|_, graph| graph.node[0].attribute.push(branch)),
        &["graphs within its graph", "control flow"],
    );
    assert_says(
        &changed(|model, _| model.functions.push(FunctionProto::default())),
        &["functions", "inline"],
    );
}

#[test]
fn deep_nesting_is_refused_without_using_the_stack() {
    // Attribute -> graph -> node -> attribute -> ..., 100,000 deep, closed from the inside.
    let mut inner = Vec::new();
    for _ in 0..100_000 / 3 {
        for tag in [0x32_u8, 0x0a, 0x2a] {
            let mut outer = vec![tag];
            prost::encoding::encode_varint(inner.len() as u64, &mut outer);
            outer.reverse();
            inner.extend(outer);
        }
    }
    inner.reverse();
    let mut bytes = vec![0x08, 0x08, 0x3a];
    prost::encoding::encode_varint(inner.len() as u64, &mut bytes);
    bytes.extend(inner);
    refusal(&bytes);
}

#[test]
fn a_version_of_operations_that_no_engine_has_is_refused() {
    for version in [1, 6, 26, -1, i64::MAX] {
        let said = changed(|model, _| model.opset_import[0].version = version);
        assert_says(&said, &[&format!("opset {version}"), "7 to 25"]);
    }
    let twice = OperatorSetIdProto { domain: "ai.onnx".to_owned(), version: 17 };
    assert_says(&changed(|model, _| model.opset_import.push(twice)), &["once"]);
    assert_says(&changed(|model, _| model.opset_import.clear()), &["once"]);
    assert_says(&changed(|model, _| model.ir_version = 2), &["version 2"]);
    for version in [7, 25] {
        let mut net = Net::residual(3, 10);
        net.opset = version;
        Onnx::from_bytes(&net.bytes()).unwrap();
    }
}

#[test]
fn tensors_whose_data_does_not_fit_their_shape_are_refused() {
    let said = changed(|_, graph| graph.initializer[0].dims[0] += 1);
    assert_says(&said, &["`conv0.weight`", "[9, 3, 7, 7]", "5292", "4704"]);
    for dims in [vec![-1], vec![i64::MAX, i64::MAX], vec![i64::MAX, 0], vec![1 << 31], vec![1 << 20; 4]] {
        let said = changed(|_, graph| graph.initializer[0].dims = dims.clone());
        assert_says(&said, &["`conv0.weight`", "impossible shape"]);
    }
    let said = changed(|_, graph| graph.initializer[0].dims.extend([1; 5]));
    assert_says(&said, &["`conv0.weight`", "9 axes, more than 8"]);
    let said = changed(|_, graph| graph.initializer[0].raw_data.clear());
    assert_says(&said, &["needs 1176 values, and has 0"]);
    let said = changed(|_, graph| graph.initializer[0].float_data = vec![0.0; 1176]);
    assert_says(&said, &["several types"]);
    let said = changed(|_, graph| graph.initializer[0].data_type = 99);
    assert_says(&said, &["unknown type 99"]);
    let said = changed(|_, graph| graph.initializer[0].data_type = DataType::String as i32);
    assert_says(&said, &["several types"]);
}

#[test]
fn tensors_may_be_in_typed_fields() {
    let mut net = Net::residual(3, 10);
    let weight = &mut net.graph.initializer[0];
    weight.float_data =
        weight.raw_data.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect();
    weight.raw_data.clear();
    Onnx::from_bytes(&net.bytes()).unwrap();
}

#[test]
fn names_are_made_once_and_before_they_are_used() {
    let said = changed(|_, graph| graph.node[2].input[0] = "nothing".to_owned());
    assert_says(&said, &["`Relu_2`", "`nothing`", "nothing makes"]);
    let said = changed(|_, graph| graph.node[0].input[0] = "relu_2".to_owned());
    assert_says(&said, &["`Conv_0`", "`relu_2`", "cycle"]);
    let said = changed(|_, graph| graph.node[2].output[0] = "conv_0".to_owned());
    assert_says(&said, &["`Relu_2`", "`conv_0`", "there already"]);
    let said = changed(|_, graph| graph.node[2].output[0] = "input".to_owned());
    assert_says(&said, &["`Relu_2`", "`input`", "there already"]);
    let said = changed(|_, graph| graph.initializer.push(tensor("fc.bias", &[1], &[0.0])));
    assert_says(&said, &["`fc.bias`", "twice"]);
    let said = changed(|_, graph| graph.output[0].name = "elsewhere".to_owned());
    assert_says(&said, &["no node makes the output `elsewhere`"]);
    let said = changed(|_, graph| graph.node[0].attribute.push(int("group", 2)));
    assert_says(&said, &["`Conv_0`", "twice"]);
}

#[test]
fn a_network_of_too_many_nodes_is_refused() {
    let said = changed(|_, graph| graph.node = vec![NodeProto::default(); 20_001]);
    assert_says(&said, &["20001 nodes", "20000"]);
}

#[test]
fn messages_that_take_more_when_decoded_than_they_may_are_refused() {
    // A million empty nodes in two megabytes.
    let mut graph = Vec::new();
    for _ in 0..1 << 20 {
        graph.extend([0x0a, 0x00]);
    }
    let mut bytes = vec![0x08, 0x08, 0x3a];
    prost::encoding::encode_varint(graph.len() as u64, &mut bytes);
    bytes.extend(graph);
    assert_says(&refusal(&bytes), &["more memory than the file"]);
}

#[test]
fn a_normalisation_in_training_mode_is_refused() {
    let remedy = "evaluation mode";
    let said = changed(|_, graph| graph.node[1].attribute.push(int("training_mode", 1)));
    assert_says(&said, &["`BatchNormalization_1`", "training mode", remedy]);
    let said = changed(|_, graph| graph.node[1].output.push("mean".to_owned()));
    assert_says(&said, &["`BatchNormalization_1`", "training mode", remedy]);
}

#[test]
fn a_network_that_is_no_image_classifier_says_what_it_has_instead() {
    let input = |dims: &[Option<usize>]| value("input", dims);
    let three = input(&[None, Some(3), Some(16)]);
    assert_says(&changed(|_, graph| graph.input[0] = three), &["no image classifier", "3 axes instead of 4"]);
    let free = input(&[None, Some(3), None, Some(16)]);
    assert_says(&changed(|_, graph| graph.input[0] = free), &["number of rows of `input` is not fixed"]);
    let huge = input(&[None, Some(3), Some(1 << 20), Some(1 << 20)]);
    assert_says(&changed(|_, graph| graph.input[0] = huge), &["3 x 1048576 x 1048576"]);
    assert_says(&changed(|_, graph| graph.input.clear()), &["`input`, which nothing makes"]);
    let more = value("mask", &[None]);
    assert_says(&changed(|_, graph| graph.input.push(more)), &["2 inputs: `input`, `mask`"]);
    assert_says(&changed(|_, graph| graph.output.clear()), &["no output"]);
    let sequence = value("gemm_22", &[None, Some(5), Some(10)]);
    assert_says(
        &changed(|_, graph| graph.output[0] = sequence),
        &["output `gemm_22` has 3 axes instead of 2"],
    );
    let half = |graph: &mut GraphProto| {
        let Some(type_proto::Value::TensorType(tensor)) = &mut graph.input[0].r#type.as_mut().unwrap().value
        else {
            panic!("a tensor")
        };
        tensor.elem_type = DataType::Float16 as i32;
    };
    assert_says(&changed(|_, graph| half(graph)), &["`input` is of f16"]);
}

#[test]
fn an_axis_that_is_zero_or_negative_is_refused() {
    for size in [0, -1] {
        let said = changed(|_, graph| {
            let Some(type_proto::Value::TensorType(tensor)) =
                &mut graph.input[0].r#type.as_mut().unwrap().value
            else {
                panic!("a tensor")
            };
            tensor.shape.as_mut().unwrap().dim[0].value = Some(Value::DimValue(size));
        });
        assert_says(&said, &["batch axis", &size.to_string()]);
    }
}

#[test]
fn the_batch_is_free_or_fixed_on_both_sides() {
    let mut net = Net::residual(3, 10);
    net.graph.input[0] = value("input", &[Some(4), Some(3), Some(16), Some(16)]);
    assert_eq!(Onnx::from_bytes(&net.bytes()).unwrap().signature().batch, Some(4));
    net.graph.output[0] = value("gemm_22", &[Some(4), Some(10)]);
    assert_eq!(Onnx::from_bytes(&net.bytes()).unwrap().signature().batch, Some(4));
    net.graph.input[0] = value("input", &[None, Some(3), Some(16), Some(16)]);
    assert_says(&refusal(&net.bytes()), &["any number of images", "logits of 4"]);
}

#[test]
fn constants_that_are_listed_as_inputs_are_no_inputs() {
    let mut net = Net::residual(3, 10);
    let constants: Vec<_> =
        net.graph.initializer.iter().map(|tensor| value(&tensor.name, &[Some(1)])).collect();
    net.graph.input.extend(constants);
    assert_eq!(Onnx::from_bytes(&net.bytes()).unwrap().signature().input, "input");
}

#[test]
fn a_name_as_long_as_the_file_does_not_fill_the_message() {
    let said = changed(|_, graph| graph.node[2].input[0] = "é".repeat(100_000));
    assert!(said.len() < 1000, "{} bytes", said.len());
}

#[test]
fn windows_whose_attributes_do_not_fit_each_other_are_refused() {
    let set = |node: usize, name: &'static str, values: &'static [i64]| {
        changed(|_, graph| {
            let attributes = &mut graph.node[node].attribute;
            attributes.retain(|attribute| attribute.name != name);
            attributes.push(ints(name, values));
        })
    };
    for name in ["strides", "dilations"] {
        assert_says(&set(0, name, &[1]), &["`Conv_0`", name, "another number of axes"]);
        assert_says(&set(0, name, &[1, 0]), &["`Conv_0`", name, "impossible"]);
    }
    assert_says(&set(0, "pads", &[1, 1]), &["`Conv_0`", "pads", "another number of axes"]);
    assert_says(&set(0, "pads", &[0, 0, 0, -1]), &["pads", "impossible"]);
    assert_says(&set(0, "pads", &[0, 0, 0, i64::MAX]), &["pads", "impossible"]);
    assert_says(&set(0, "kernel_shape", &[3, 3]), &["`Conv_0`", "another size than its weights"]);
    assert_says(&set(3, "strides", &[2, 2, 2]), &["`MaxPool_3`", "strides", "another number of axes"]);
    let said = changed(|_, graph| {
        graph.node[0].attribute.retain(|attribute| attribute.name != "group");
        graph.node[0].attribute.push(int("group", 0));
    });
    assert_says(&said, &["`Conv_0`", "impossible number of groups"]);
}
