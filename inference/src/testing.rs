//! Builds small networks for tests, in memory.
//!
//! Only types of ONNX are used here, so that tests outside the crate include this file too.

use prost::Message;
use tract_onnx::pb::attribute_proto::AttributeType;
use tract_onnx::pb::tensor_proto::DataType;
use tract_onnx::pb::tensor_shape_proto::{Dimension, dimension};
use tract_onnx::pb::{
    AttributeProto, GraphProto, ModelProto, NodeProto, OperatorSetIdProto, TensorProto, TensorShapeProto,
    TypeProto, ValueInfoProto, type_proto,
};

/// A network that grows by one operation at a time.
pub(crate) struct Net {
    pub(crate) graph: GraphProto,
    pub(crate) opset: i64,
    channels: usize,
    random: Random,
}

/// How a convolution is.
#[derive(Clone, Copy)]
pub(crate) struct Conv {
    pub(crate) inputs: usize,
    pub(crate) outputs: usize,
    pub(crate) kernel: usize,
    pub(crate) stride: usize,
    pub(crate) padding: usize,
    pub(crate) groups: usize,
    pub(crate) bias: bool,
}

impl Conv {
    /// A convolution that keeps the size.
    pub(crate) fn same(inputs: usize, outputs: usize, kernel: usize) -> Self {
        Self { inputs, outputs, kernel, stride: 1, padding: kernel / 2, groups: 1, bias: false }
    }
}

impl Net {
    /// Starts with an input `input` of shape `[batch, channels, height, width]`.
    pub(crate) fn new(channels: usize, height: usize, width: usize) -> Self {
        let dims = [None, Some(channels), Some(height), Some(width)];
        let graph =
            GraphProto { name: "net".to_owned(), input: vec![value("input", &dims)], ..Default::default() };
        Self { graph, opset: 18, channels, random: Random(0x9e37_79b9_7f4a_7c15) }
    }

    /// Adds a node of one output, whose name it gives.
    pub(crate) fn node(
        &mut self,
        operation: &str,
        inputs: &[&str],
        attributes: Vec<AttributeProto>,
    ) -> String {
        let place = self.graph.node.len();
        let output = format!("{}_{place}", operation.to_lowercase());
        self.graph.node.push(NodeProto {
            input: inputs.iter().map(|&name| name.to_owned()).collect(),
            output: vec![output.clone()],
            name: format!("{operation}_{place}"),
            op_type: operation.to_owned(),
            attribute: attributes,
            ..Default::default()
        });
        output
    }

    /// Adds a tensor of random values from -1 to 1, times `scale`.
    pub(crate) fn random(&mut self, name: &str, dims: &[usize], scale: f32) -> String {
        let values: Vec<_> =
            (0..dims.iter().product()).map(|_| scale * (2.0 * self.random.unit() - 1.0)).collect();
        self.constant(name, dims, &values)
    }

    /// Adds a tensor.
    pub(crate) fn constant(&mut self, name: &str, dims: &[usize], values: &[f32]) -> String {
        self.graph.initializer.push(tensor(name, dims, values));
        name.to_owned()
    }

    /// Adds a convolution of random weights whose output is about as large as its input.
    pub(crate) fn conv(&mut self, input: &str, conv: Conv) -> String {
        let place = self.graph.node.len();
        let dims = [conv.outputs, conv.inputs / conv.groups, conv.kernel, conv.kernel];
        let scale = (3.0 / (dims[1] * dims[2] * dims[3]) as f32).sqrt();
        let weight = self.random(&format!("conv{place}.weight"), &dims, scale);
        let mut inputs = vec![input.to_owned(), weight];
        if conv.bias {
            inputs.push(self.random(&format!("conv{place}.bias"), &[conv.outputs], 0.5));
        }
        let attributes = vec![
            ints("dilations", &[1, 1]),
            int("group", conv.groups as i64),
            ints("kernel_shape", &[conv.kernel as i64; 2]),
            ints("pads", &[conv.padding as i64; 4]),
            ints("strides", &[conv.stride as i64; 2]),
        ];
        self.node("Conv", &inputs.iter().map(String::as_str).collect::<Vec<_>>(), attributes)
    }

    /// Adds a batch normalisation of random statistics.
    pub(crate) fn batch_norm(&mut self, input: &str, channels: usize) -> String {
        let place = self.graph.node.len();
        let gamma = self.random(&format!("bn{place}.weight"), &[channels], 1.0);
        let beta = self.random(&format!("bn{place}.bias"), &[channels], 1.0);
        let mean = self.random(&format!("bn{place}.running_mean"), &[channels], 1.0);
        let variances: Vec<_> = (0..channels).map(|_| 0.2 + self.random.unit()).collect();
        let var = self.constant(&format!("bn{place}.running_var"), &[channels], &variances);
        self.node("BatchNormalization", &[input, &gamma, &beta, &mean, &var], vec![float("epsilon", 1e-5)])
    }

    /// Adds the mean over rows and columns, and a linear layer to `classes`.
    pub(crate) fn head(&mut self, input: &str, channels: usize, classes: usize) -> String {
        let pooled = self.node("GlobalAveragePool", &[input], vec![]);
        let flat = self.node("Flatten", &[&pooled], vec![int("axis", 1)]);
        let weight = self.random("fc.weight", &[classes, channels], (3.0 / channels as f32).sqrt());
        let bias = self.random("fc.bias", &[classes], 0.5);
        self.node("Gemm", &[&flat, &weight, &bias], vec![int("transB", 1)])
    }

    /// A network of every part of a residual network: a stem, a pooling, a block with a projection, one without, groups,
    /// and a linear layer. Takes images of 16 by 16 and gives `classes`.
    pub(crate) fn residual(channels: usize, classes: usize) -> Self {
        let mut net = Self::new(channels, 16, 16);
        let stem = net.conv("input", Conv { stride: 2, padding: 3, ..Conv::same(channels, 8, 7) });
        let stem = net.batch_norm(&stem, 8);
        let stem = net.node("Relu", &[&stem], vec![]);
        let pool = vec![ints("kernel_shape", &[3, 3]), ints("pads", &[1, 1, 1, 1]), ints("strides", &[2, 2])];
        let pooled = net.node("MaxPool", &[&stem], pool);
        let first = net.block(&pooled, 8, 12, 2);
        let second = net.block(&first, 12, 12, 1);
        let output = net.head(&second, 12, classes);
        net.output(&output, classes);
        net
    }

    fn block(&mut self, input: &str, inputs: usize, outputs: usize, stride: usize) -> String {
        let one = self.conv(input, Conv { stride, ..Conv::same(inputs, outputs, 3) });
        let one = self.batch_norm(&one, outputs);
        let one = self.node("Relu", &[&one], vec![]);
        let two = self.conv(&one, Conv { groups: 2, bias: true, ..Conv::same(outputs, outputs, 3) });
        let two = self.batch_norm(&two, outputs);
        let skip = if stride == 1 && inputs == outputs {
            input.to_owned()
        } else {
            let skip = self.conv(input, Conv { stride, ..Conv::same(inputs, outputs, 1) });
            self.batch_norm(&skip, outputs)
        };
        let sum = self.node("Add", &[&two, &skip], vec![]);
        self.node("Relu", &[&sum], vec![])
    }

    /// Names the output `[batch, classes]`.
    pub(crate) fn output(&mut self, name: &str, classes: usize) {
        self.graph.output = vec![value(name, &[None, Some(classes)])];
    }

    /// The whole file.
    pub(crate) fn model(&self) -> ModelProto {
        ModelProto {
            ir_version: 8,
            producer_name: "test".to_owned(),
            graph: Some(self.graph.clone()),
            opset_import: vec![OperatorSetIdProto { domain: String::new(), version: self.opset }],
            ..Default::default()
        }
    }

    /// The bytes of the file.
    pub(crate) fn bytes(&self) -> Vec<u8> {
        self.model().encode_to_vec()
    }

    /// Random images of the network's size, from -1 to 1.
    pub(crate) fn images(&self, batch: usize, height: usize, width: usize) -> Vec<f32> {
        let mut random = Random(0x1234_5678_9abc_def1);
        (0..batch * self.channels * height * width).map(|_| 2.0 * random.unit() - 1.0).collect()
    }
}

/// Numbers that look random and are the same in each run (xorshift64, Marsaglia 2003).
pub(crate) struct Random(pub(crate) u64);

impl Random {
    /// The next 64 bits.
    pub(crate) fn bits(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    /// A number from 0 to 1.
    pub(crate) fn unit(&mut self) -> f32 {
        (self.bits() >> 40) as f32 / (1 << 24) as f32
    }

    /// A number below `end`.
    pub(crate) fn below(&mut self, end: usize) -> usize {
        (self.bits() % end as u64) as usize
    }
}

/// An f32 tensor.
pub(crate) fn tensor(name: &str, dims: &[usize], values: &[f32]) -> TensorProto {
    assert_eq!(dims.iter().product::<usize>(), values.len(), "{name}");
    TensorProto {
        name: name.to_owned(),
        dims: dims.iter().map(|&dim| dim as i64).collect(),
        data_type: DataType::Float as i32,
        raw_data: values.iter().flat_map(|value| value.to_le_bytes()).collect(),
        ..Default::default()
    }
}

/// The description of an f32 value, with a free axis where a size is none.
pub(crate) fn value(name: &str, dims: &[Option<usize>]) -> ValueInfoProto {
    let dim = dims.iter().map(|size| Dimension {
        value: Some(match size {
            Some(size) => dimension::Value::DimValue(*size as i64),
            None => dimension::Value::DimParam("batch".to_owned()),
        }),
        ..Default::default()
    });
    let tensor = type_proto::Tensor {
        elem_type: DataType::Float as i32,
        shape: Some(TensorShapeProto { dim: dim.collect() }),
    };
    ValueInfoProto {
        name: name.to_owned(),
        r#type: Some(TypeProto { value: Some(type_proto::Value::TensorType(tensor)), ..Default::default() }),
        ..Default::default()
    }
}

/// An attribute of one integer.
pub(crate) fn int(name: &str, value: i64) -> AttributeProto {
    AttributeProto {
        name: name.to_owned(),
        r#type: AttributeType::Int as i32,
        i: value,
        ..Default::default()
    }
}

/// An attribute of integers.
pub(crate) fn ints(name: &str, values: &[i64]) -> AttributeProto {
    let ints = values.to_vec();
    AttributeProto { name: name.to_owned(), r#type: AttributeType::Ints as i32, ints, ..Default::default() }
}

/// An attribute of one float.
pub(crate) fn float(name: &str, value: f32) -> AttributeProto {
    AttributeProto {
        name: name.to_owned(),
        r#type: AttributeType::Float as i32,
        f: value,
        ..Default::default()
    }
}
