//! Straight loops in f64, by the definitions of <https://onnx.ai/onnx/operators/>.

use std::collections::HashMap;

use tract_onnx::pb::{NodeProto, TensorProto};

use crate::Onnx;

/// Values `[batch, channels, height, width]`, or of a constant in whatever shape.
#[derive(Clone, Debug)]
struct Array {
    dims: Vec<usize>,
    values: Vec<f64>,
}

impl Array {
    fn at(&self, at: [usize; 4]) -> f64 {
        self.values[at.iter().zip(&self.dims).fold(0, |index, (at, dim)| index * dim + at)]
    }

    fn of(tensor: &TensorProto) -> Self {
        let raw = tensor.raw_data.as_chunks().0.iter();
        let values = raw.map(|bytes| f64::from(f32::from_le_bytes(*bytes))).collect();
        Self { dims: tensor.dims.iter().map(|&dim| dim as usize).collect(), values }
    }

    fn make(dims: [usize; 4], at: impl Fn([usize; 4]) -> f64) -> Self {
        let mut values = Vec::with_capacity(dims.iter().product());
        for n in 0..dims[0] {
            for c in 0..dims[1] {
                for y in 0..dims[2] {
                    for x in 0..dims[3] {
                        values.push(at([n, c, y, x]));
                    }
                }
            }
        }
        Self { dims: dims.to_vec(), values }
    }

    fn map(&self, map: impl Fn(f64) -> f64) -> Self {
        Self { dims: self.dims.clone(), values: self.values.iter().copied().map(map).collect() }
    }

    fn four(&self) -> [usize; 4] {
        let mut dims = self.dims.clone();
        dims.resize(4, 1);
        dims.try_into().expect("at most four axes")
    }
}

fn ints<const N: usize>(node: &NodeProto, name: &str, default: [usize; N]) -> [usize; N] {
    let found = node.attribute.iter().find(|attribute| attribute.name == name);
    found.map_or(default, |found| std::array::from_fn(|at| found.ints[at] as usize))
}

fn int(node: &NodeProto, name: &str, default: i64) -> i64 {
    node.attribute.iter().find(|attribute| attribute.name == name).map_or(default, |found| found.i)
}

/// Computes the logits of some images.
pub(super) fn run(onnx: &Onnx, batch: usize, images: &[f32]) -> Vec<f64> {
    let signature = onnx.signature();
    let graph = onnx.proto().graph.as_ref().expect("a graph");
    let mut values: HashMap<_, _> =
        graph.initializer.iter().map(|tensor| (tensor.name.clone(), Array::of(tensor))).collect();
    let dims = vec![batch, signature.channels, signature.height, signature.width];
    values.insert(
        signature.input.clone(),
        Array { dims, values: images.iter().copied().map(f64::from).collect() },
    );
    for node in &graph.node {
        let inputs: Vec<_> = node.input.iter().map(|name| &values[name]).collect();
        let output = compute(node, &inputs);
        values.insert(node.output[0].clone(), output);
    }
    values[&signature.output].values.clone()
}

fn compute(node: &NodeProto, inputs: &[&Array]) -> Array {
    let x = inputs[0];
    match node.op_type.as_str() {
        "Conv" => conv(node, inputs),
        "Gemm" => gemm(node, inputs),
        "BatchNormalization" => Array::make(x.four(), |at| {
            let of = |input: usize| inputs[input].values[at[1]];
            (x.at(at) - of(3)) / (of(4) + f64::from(1e-5_f32)).sqrt() * of(1) + of(2)
        }),
        "Relu" => x.map(|value| value.max(0.)),
        "Clip" => x.map(|value| value.clamp(inputs[1].values[0], inputs[2].values[0])),
        "Add" => Array {
            dims: x.dims.clone(),
            values: x.values.iter().zip(&inputs[1].values).map(|(a, b)| a + b).collect(),
        },
        "MaxPool" | "AveragePool" => pool(node, x),
        "GlobalAveragePool" => {
            let [n, c, height, width] = x.four();
            Array::make([n, c, 1, 1], |[n, c, ..]| {
                let plane = &x.values[(n * x.dims[1] + c) * height * width..][..height * width];
                plane.iter().sum::<f64>() / plane.len() as f64
            })
        }
        "Flatten" => Array { dims: vec![x.dims[0], x.dims[1..].iter().product()], values: x.values.clone() },
        other => panic!("the reference has no {other}"),
    }
}

fn conv(node: &NodeProto, inputs: &[&Array]) -> Array {
    let (x, weight) = (inputs[0], inputs[1]);
    let [stride_y, stride_x] = ints(node, "strides", [1; 2]);
    let [dilation_y, dilation_x] = ints(node, "dilations", [1; 2]);
    let [top, left, bottom, right] = ints(node, "pads", [0; 4]);
    let groups = int(node, "group", 1) as usize;
    let [batch, _, height, width] = x.four();
    let [out, group_in, kernel_y, kernel_x] = weight.four();
    let size = |size: usize, pads: usize, kernel: usize, dilation: usize, stride: usize| {
        (size + pads - (kernel - 1) * dilation - 1) / stride + 1
    };
    let dims = [
        batch,
        out,
        size(height, top + bottom, kernel_y, dilation_y, stride_y),
        size(width, left + right, kernel_x, dilation_x, stride_x),
    ];
    Array::make(dims, |[n, o, y, x_out]| {
        let mut sum = inputs.get(2).map_or(0., |bias| bias.values[o]);
        let first = o / (out / groups) * group_in;
        for c in 0..group_in {
            for ky in 0..kernel_y {
                let Some(row) = (y * stride_y + ky * dilation_y).checked_sub(top).filter(|&row| row < height)
                else {
                    continue;
                };
                for kx in 0..kernel_x {
                    let column = (x_out * stride_x + kx * dilation_x).checked_sub(left);
                    if let Some(column) = column.filter(|&column| column < width) {
                        sum += x.at([n, first + c, row, column]) * weight.at([o, c, ky, kx]);
                    }
                }
            }
        }
        sum
    })
}

fn gemm(node: &NodeProto, inputs: &[&Array]) -> Array {
    let (x, weight) = (inputs[0], inputs[1]);
    let transposed = int(node, "transB", 0) != 0;
    let (channels, classes) =
        if transposed { (weight.dims[1], weight.dims[0]) } else { (weight.dims[0], weight.dims[1]) };
    Array::make([x.dims[0], classes, 1, 1], |[n, class, ..]| {
        let weight =
            |c: usize| weight.values[if transposed { class * channels + c } else { c * classes + class }];
        let product: f64 = (0..channels).map(|c| x.values[n * channels + c] * weight(c)).sum();
        product + inputs.get(2).map_or(0., |bias| bias.values[class])
    })
}

fn pool(node: &NodeProto, x: &Array) -> Array {
    let kernel = ints(node, "kernel_shape", [1; 2]);
    let stride = ints(node, "strides", [1; 2]);
    let dilation = ints(node, "dilations", [1; 2]);
    let pads = ints(node, "pads", [0; 4]);
    let [batch, channels, height, width] = x.four();
    let size = [height, width];
    let places = |axis: usize| {
        (size[axis] + pads[axis] + pads[axis + 2] - (kernel[axis] - 1) * dilation[axis] - 1) / stride[axis]
            + 1
    };
    let on_image = |axis: usize, at: usize, place: usize| {
        (at * stride[axis] + place * dilation[axis]).checked_sub(pads[axis]).filter(|&at| at < size[axis])
    };
    Array::make([batch, channels, places(0), places(1)], |[n, c, y, x_out]| {
        let mut found = Vec::new();
        for row in (0..kernel[0]).filter_map(|place| on_image(0, y, place)) {
            for column in (0..kernel[1]).filter_map(|place| on_image(1, x_out, place)) {
                found.push(x.at([n, c, row, column]));
            }
        }
        if node.op_type == "MaxPool" {
            return found.into_iter().fold(f64::NEG_INFINITY, f64::max);
        }
        let padding = int(node, "count_include_pad", 0) != 0;
        let count = if padding { kernel[0] * kernel[1] } else { found.len() };
        found.iter().sum::<f64>() / count as f64
    })
}
