//! Makes ONNX files of random weights.

use prost::Message;
use tract_onnx::pb::tensor_proto::DataType;
use tract_onnx::pb::{AttributeProto, GraphProto, ModelProto, NodeProto, OperatorSetIdProto, TensorProto};

use crate::Onnx;
use crate::testing::{self, value};

pub(super) use crate::testing::{int as int_attribute, tensor as float};

/// A graph on its way to a file. Names of values are given by the operation and a number.
pub(super) struct Builder {
    pub(super) graph: GraphProto,
    pub(super) last: String,
    /// Channels, height and width of the last value where the builder knows them.
    pub(super) shape: [usize; 3],
    seed: u64,
}

/// Values in [-1, 1), the same for a seed on every machine (SplitMix64).
pub(super) fn random(count: usize, seed: u64) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mut next = || {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut bits = state;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (bits ^ (bits >> 31)) >> 40
    };
    (0..count).map(|_| next() as f32 / (1 << 23) as f32 - 1.).collect()
}

pub(super) fn ints(name: &str, values: &[i64]) -> TensorProto {
    TensorProto {
        name: name.to_owned(),
        dims: vec![values.len() as i64],
        data_type: DataType::Int64 as i32,
        raw_data: values.iter().flat_map(|value| value.to_le_bytes()).collect(),
        ..Default::default()
    }
}

pub(super) fn ints_attribute(name: &str, sizes: &[usize]) -> AttributeProto {
    let sizes: Vec<_> = sizes.iter().map(|&size| size as i64).collect();
    testing::ints(name, &sizes)
}

/// A convolution.
#[derive(Clone, Copy, Debug)]
pub(super) struct ConvCase {
    pub(super) input: [usize; 3],
    pub(super) out: usize,
    pub(super) kernel: [usize; 2],
    pub(super) stride: [usize; 2],
    /// Top, left, bottom, right.
    pub(super) pads: [usize; 4],
    pub(super) dilation: [usize; 2],
    pub(super) groups: usize,
}

impl Builder {
    pub(super) fn new(channels: usize, height: usize, width: usize) -> Self {
        let input = value("input", &[None, Some(channels), Some(height), Some(width)]);
        let graph = GraphProto { name: "test".to_owned(), input: vec![input], ..Default::default() };
        Self { graph, last: "input".to_owned(), shape: [channels, height, width], seed: 1 }
    }

    /// Adds a node that reads the last value and `more`.
    pub(super) fn node(
        &mut self,
        operation: &str,
        more: &[&str],
        attributes: Vec<AttributeProto>,
    ) -> &mut Self {
        let count = self.graph.node.len();
        let output = format!("{operation}_{count}");
        let input = std::iter::once(&*self.last).chain(more.iter().copied()).map(str::to_owned).collect();
        self.graph.node.push(NodeProto {
            input,
            output: vec![output.clone()],
            name: format!("/{operation}/{count}"),
            op_type: operation.to_owned(),
            attribute: attributes,
            ..Default::default()
        });
        self.last = output;
        self
    }

    /// Adds a tensor of random values, and gives its name.
    pub(super) fn tensor(&mut self, dims: &[usize], map: impl Fn(f32) -> f32) -> String {
        self.seed += 1;
        let name = format!("tensor_{}", self.seed);
        let values: Vec<_> = random(dims.iter().product(), self.seed).into_iter().map(map).collect();
        self.graph.initializer.push(float(&name, dims, &values));
        name
    }

    pub(super) fn conv(&mut self, case: &ConvCase, bias: bool) -> &mut Self {
        let channels = case.input[0] / case.groups;
        let [height, width] = case.kernel;
        // Keeps the variance of values through many layers.
        let scale = (3. / (channels * height * width) as f32).sqrt();
        let weight = self.tensor(&[case.out, channels, height, width], |value| value * scale);
        let mut inputs = vec![weight];
        if bias {
            inputs.push(self.tensor(&[case.out], |value| value));
        }
        let inputs: Vec<_> = inputs.iter().map(String::as_str).collect();
        let attributes = vec![
            ints_attribute("strides", &case.stride),
            ints_attribute("pads", &case.pads),
            ints_attribute("dilations", &case.dilation),
            int_attribute("group", case.groups as i64),
        ];
        self.node("Conv", &inputs, attributes);
        let size = |axis: usize| {
            let padded = case.input[axis + 1] + case.pads[axis] + case.pads[axis + 2];
            (padded - (case.kernel[axis] - 1) * case.dilation[axis] - 1) / case.stride[axis] + 1
        };
        self.shape = [case.out, size(0), size(1)];
        self
    }

    /// A square convolution of the last value.
    pub(super) fn square(&mut self, out: usize, kernel: usize, stride: usize) -> &mut Self {
        let case = ConvCase {
            input: self.shape,
            out,
            kernel: [kernel; 2],
            stride: [stride; 2],
            pads: [kernel / 2; 4],
            dilation: [1; 2],
            groups: 1,
        };
        self.conv(&case, false)
    }

    pub(super) fn batch_norm(&mut self) -> &mut Self {
        let channels = [self.shape[0]];
        let gamma = self.tensor(&channels, |value| 0.75 + value / 4.);
        let beta = self.tensor(&channels, |value| value / 4.);
        let mean = self.tensor(&channels, |value| value / 4.);
        let variance = self.tensor(&channels, |value| 1. + value / 2.);
        self.node("BatchNormalization", &[&gamma, &beta, &mean, &variance], Vec::new())
    }

    pub(super) fn relu(&mut self) -> &mut Self {
        self.node("Relu", &[], Vec::new())
    }

    pub(super) fn pool(&mut self, operation: &str, kernel: usize, stride: usize, pad: usize) -> &mut Self {
        let attributes = vec![
            ints_attribute("kernel_shape", &[kernel; 2]),
            ints_attribute("strides", &[stride; 2]),
            ints_attribute("pads", &[pad; 4]),
        ];
        self.node(operation, &[], attributes);
        let [channels, height, width] = self.shape;
        let size = |size: usize| (size + 2 * pad - kernel) / stride + 1;
        self.shape = [channels, size(height), size(width)];
        self
    }

    pub(super) fn global_average(&mut self) -> &mut Self {
        self.shape = [self.shape[0], 1, 1];
        self.node("GlobalAveragePool", &[], Vec::new())
    }

    pub(super) fn flatten(&mut self) -> &mut Self {
        self.shape = [self.shape.iter().product(), 1, 1];
        self.node("Flatten", &[], vec![int_attribute("axis", 1)])
    }

    pub(super) fn gemm(&mut self, classes: usize) -> &mut Self {
        let channels = self.shape[0];
        let scale = (1. / channels as f32).sqrt();
        let weight = self.tensor(&[classes, channels], |value| value * scale);
        let bias = self.tensor(&[classes], |value| value);
        self.shape = [classes, 1, 1];
        self.node("Gemm", &[&weight, &bias], vec![int_attribute("transB", 1)])
    }

    /// The file, whose logits are the last value.
    pub(super) fn proto(mut self) -> ModelProto {
        let output = value("logits", &[None, Some(self.shape[0])]);
        self.graph.output = vec![output];
        if let Some(node) = self.graph.node.last_mut() {
            node.output[0] = "logits".to_owned();
        }
        ModelProto {
            ir_version: 8,
            opset_import: vec![OperatorSetIdProto { domain: String::new(), version: 18 }],
            graph: Some(self.graph),
            ..Default::default()
        }
    }

    pub(super) fn finish(self) -> Onnx {
        Onnx::from_bytes(&self.proto().encode_to_vec()).expect("the file is in order")
    }
}
