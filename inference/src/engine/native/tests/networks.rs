//! Whole networks, and what must not change a result.

use super::super::simd::Isa;
use super::super::{Engine, Native};
use super::builder::{self, Builder, float, int_attribute, ints, ints_attribute};
use super::{assert_as_reference, assert_close, reference, run_everywhere};
use crate::{EngineChoice, EngineKind, EngineOptions, Onnx};

/// A residual block as torchvision writes it: of `BasicBlock` for an expansion of 1, else of `Bottleneck`.
fn block(builder: &mut Builder, width: usize, stride: usize, expansion: usize, norms: bool) {
    let (input, shape, out) = (builder.last.clone(), builder.shape, width * expansion);
    let norm = |builder: &mut Builder| {
        if norms {
            builder.batch_norm();
        }
    };
    let convs: &[(usize, usize, usize)] = match expansion {
        1 => &[(width, 3, stride), (width, 3, 1)],
        _ => &[(width, 1, 1), (width, 3, stride), (out, 1, 1)],
    };
    for (at, &(out, kernel, stride)) in convs.iter().enumerate() {
        builder.square(out, kernel, stride);
        norm(builder);
        if at + 1 < convs.len() {
            builder.relu();
        }
    }
    let (branch, after) = (builder.last.clone(), builder.shape);
    if shape != after {
        (builder.last, builder.shape) = (input, shape);
        builder.square(out, 1, stride);
        norm(builder);
    } else {
        builder.last = input;
    }
    builder.node("Add", &[&branch], Vec::new());
    builder.relu();
}

/// A ResNet of torchvision for images of `size` pixels.
fn resnet(size: usize, blocks: [usize; 4], expansion: usize, norms: bool) -> Builder {
    let mut builder = Builder::new(3, size, size);
    builder.square(64, 7, 2);
    if norms {
        builder.batch_norm();
    }
    builder.relu().pool("MaxPool", 3, 2, 1);
    for (stage, count) in blocks.into_iter().enumerate() {
        for at in 0..count {
            let stride = if stage > 0 && at == 0 { 2 } else { 1 };
            block(&mut builder, 64 << stage, stride, expansion, norms);
        }
    }
    builder.global_average().flatten().gemm(100);
    builder
}

fn logits(onnx: &Onnx, threads: usize, isa: Isa, batch: usize, images: &[f32]) -> Vec<f32> {
    let mut engine = Native::load_with(onnx, threads, isa).expect("the network can be run");
    let mut logits = Vec::new();
    engine.run(batch, images, &mut logits).expect("the batch can be run");
    logits
}

#[test]
fn a_resnet_18_with_its_norms_is_as_in_f64() {
    let onnx = resnet(96, [2, 2, 2, 2], 1, true).finish();
    let images = builder::random(onnx.signature().image_values(), 3);
    let expected = reference::run(&onnx, 1, &images);
    for (isa, logits) in run_everywhere(&onnx, 2, 1, &images) {
        assert_close(&logits, &expected, 1e-5, &format!("ResNet-18 on {isa}"));
    }
}

#[test]
fn a_resnet_50_is_as_in_f64() {
    let onnx = resnet(64, [3, 4, 6, 3], 4, false).finish();
    let images = builder::random(onnx.signature().image_values(), 3);
    let expected = reference::run(&onnx, 1, &images);
    for (isa, logits) in run_everywhere(&onnx, 1, 1, &images) {
        assert_close(&logits, &expected, 1e-5, &format!("ResNet-50 on {isa}"));
    }
}

#[test]
fn whole_networks_give_what_tract_gives() {
    for (name, builder) in
        [("ResNet-18", resnet(96, [2, 2, 2, 2], 1, true)), ("ResNet-50", resnet(64, [3, 4, 6, 3], 4, true))]
    {
        let onnx = builder.finish();
        let images = builder::random(3 * onnx.signature().image_values(), 3);
        let (tract, options) = (EngineChoice::Only(EngineKind::Tract), EngineOptions::default());
        let mut expected = Vec::new();
        let mut tract = crate::load(&onnx, tract, &options).expect("tract runs it");
        tract.run(3, &images, &mut expected).expect("tract runs the batch");
        let expected: Vec<_> = expected.into_iter().map(f64::from).collect();
        for (isa, logits) in run_everywhere(&onnx, 2, 3, &images) {
            assert_close(&logits, &expected, 2e-5, &format!("{name} on {isa}"));
        }
    }
}

#[test]
fn logits_are_the_same_bits_in_every_batch_and_with_any_threads() {
    let onnx = resnet(64, [1, 1, 1, 1], 4, true).finish();
    let image = onnx.signature().image_values();
    let images = builder::random(8 * image, 5);
    for isa in Isa::present() {
        let alone: Vec<_> = images.chunks(image).flat_map(|image| logits(&onnx, 1, isa, 1, image)).collect();
        for threads in [1, 2, 3] {
            for batch in [1, 3, 8] {
                let found = logits(&onnx, threads, isa, batch, &images[..batch * image]);
                assert_eq!(found, alone[..found.len()], "{threads} threads, a batch of {batch} on {isa}");
            }
        }
    }
}

#[test]
fn a_batch_may_be_smaller_or_larger_than_the_one_before() {
    let onnx = resnet(32, [1, 1, 1, 1], 1, true).finish();
    let image = onnx.signature().image_values();
    let images = builder::random(8 * image, 5);
    let mut engine = Native::load(&onnx, 2).expect("the network can be run");
    let mut first = Vec::new();
    engine.run(8, &images, &mut first).expect("eight images");
    for batch in [1, 3, 8, 2] {
        let mut found = vec![f32::NAN; 7];
        engine.run(batch, &images[..batch * image], &mut found).expect("a batch");
        assert_eq!(found, first[..batch * 100]);
    }
}

#[test]
fn values_that_are_no_images_of_the_network_are_refused() {
    let onnx = resnet(32, [1, 1, 1, 1], 1, false).finish();
    let mut engine = Native::load(&onnx, 1).expect("the network can be run");
    for (batch, values) in [(0, 0), (1, 3 * 32 * 32 - 1), (2, 3 * 32 * 32), (usize::MAX, 3 * 32 * 32)] {
        let error = engine.run(batch, &vec![0.; values], &mut Vec::new()).expect_err("no images");
        assert!(matches!(error, crate::Error::Shape { image: 3072, .. }), "{error}");
    }
}

#[test]
fn pools_are_as_in_f64() {
    for (operation, kernel, stride, pad) in [
        ("MaxPool", 3, 2, 1),
        ("MaxPool", 2, 2, 0),
        ("MaxPool", 5, 1, 2),
        ("AveragePool", 3, 2, 1),
        ("AveragePool", 2, 2, 0),
    ] {
        for planar in [true, false] {
            let mut builder = Builder::new(20, 11, 13);
            if !planar {
                builder.square(20, 1, 1);
            }
            builder.pool(operation, kernel, stride, pad).flatten().gemm(7);
            assert_as_reference(builder, &format!("{operation} {kernel} {stride} {pad}"));
        }
    }
    let mut builder = Builder::new(20, 11, 13);
    builder.pool("AveragePool", 3, 2, 1).flatten();
    let pool = &mut builder.graph.node[0];
    pool.attribute.push(int_attribute("count_include_pad", 1));
    assert_as_reference(builder, "a mean with the padding");
}

#[test]
fn sums_norms_and_bounds_without_a_convolution_before_them_are_as_in_f64() {
    let mut builder = Builder::new(5, 6, 7);
    builder.batch_norm().relu();
    let first = builder.last.clone();
    builder.square(5, 3, 1);
    let second = builder.last.clone();
    // Both are read again, so that nothing is joined.
    builder.node("Add", &[&first], Vec::new()).relu();
    builder.node("Add", &[&second], Vec::new());
    builder.node("Add", &[&second], Vec::new()).batch_norm();
    builder.graph.initializer.push(float("low", &[], &[-0.5]));
    builder.graph.initializer.push(float("high", &[], &[0.75]));
    builder.node("Clip", &["low", "high"], Vec::new()).flatten();
    assert_as_reference(builder, "sums");
}

#[test]
fn a_convolution_may_be_added_to_its_own_input() {
    for kernel in [1, 3] {
        let mut builder = Builder::new(32, 14, 14);
        builder.square(32, 1, 1);
        let input = builder.last.clone();
        builder.square(32, kernel, 1).node("Add", &[&input], Vec::new()).relu().flatten();
        assert_as_reference(builder, &format!("a kernel of {kernel}"));
    }
}

#[test]
fn half_and_eight_bit_weights_are_those_of_the_numbers_they_stand_for() {
    use tract_onnx::pb::tensor_proto::DataType;
    let quantised = |weights: &str| {
        let mut builder = Builder::new(3, 8, 8);
        builder.square(24, 3, 1).relu().global_average().flatten().gemm(10);
        let graph = &mut builder.graph;
        let tensor = &mut graph.initializer[0];
        let (name, dims) = (tensor.name.clone(), tensor.dims.clone());
        let values: Vec<_> =
            tensor.raw_data.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect();
        let scales: Vec<_> = (0..24).map(|channel| 0.001 * (1 + channel) as f32).collect();
        let codes: Vec<_> = values.iter().map(|value| (value * 100.).round() as i8).collect();
        let half = |value: f32| half::f16::from_f32(value);
        let mut node = tract_onnx::pb::NodeProto {
            output: vec!["weights".to_owned()],
            name: "widen".to_owned(),
            ..Default::default()
        };
        let widened: Vec<f32> = match weights {
            "f16" => {
                tensor.data_type = DataType::Float16 as i32;
                tensor.raw_data = values.iter().flat_map(|&value| half(value).to_le_bytes()).collect();
                node.op_type = "Cast".to_owned();
                node.input = vec![name];
                node.attribute = vec![int_attribute("to", DataType::Float as i64)];
                values.iter().map(|&value| half(value).to_f32()).collect()
            }
            _ => {
                tensor.data_type = DataType::Int8 as i32;
                tensor.raw_data = codes.iter().map(|&code| code as u8).collect();
                node.op_type = "DequantizeLinear".to_owned();
                node.input = vec![name, "scales".to_owned()];
                node.attribute = vec![int_attribute("axis", 0)];
                codes
                    .chunks(27)
                    .zip(&scales)
                    .flat_map(|(codes, scale)| codes.iter().map(move |&code| f32::from(code) * scale))
                    .collect()
            }
        };
        graph.initializer.push(float("scales", &[24], &scales));
        let mut plain = Builder::new(3, 8, 8);
        plain.square(24, 3, 1).relu().global_average().flatten().gemm(10);
        plain.graph.initializer[0] = float(
            &plain.graph.initializer[0].name.clone(),
            &dims.iter().map(|&dim| dim as usize).collect::<Vec<_>>(),
            &widened,
        );
        graph.node.insert(0, node);
        graph.node[1].input[1] = "weights".to_owned();
        (builder.finish(), plain.finish())
    };
    for weights in ["f16", "int8"] {
        let (small, plain) = quantised(weights);
        let images = builder::random(3 * 8 * 8, 2);
        for isa in Isa::present() {
            assert_eq!(
                logits(&small, 1, isa, 1, &images),
                logits(&plain, 1, isa, 1, &images),
                "{weights} on {isa}"
            );
        }
    }
}

#[test]
fn what_a_product_adds_to_each_row_is_as_tract_has_it() {
    let with = |dims: &[usize]| {
        let mut builder = Builder::new(6, 1, 1);
        builder.flatten().gemm(4);
        let bias = builder.tensor(dims, |value| value);
        builder.graph.node[1].input[2] = bias;
        builder.graph.node[1].attribute.push(crate::testing::float("beta", 0.5));
        builder.finish()
    };
    let run = |onnx: &Onnx, kind| -> crate::Result<Vec<f32>> {
        let mut engine = crate::load(onnx, EngineChoice::Only(kind), &EngineOptions::default())?;
        let mut logits = Vec::new();
        engine.run(4, &builder::random(4 * 6, 3), &mut logits)?;
        Ok(logits)
    };
    for dims in [&[][..], &[1], &[4], &[1, 1], &[1, 4]] {
        let onnx = with(dims);
        let expected: Vec<_> =
            run(&onnx, EngineKind::Tract).expect("tract runs it").into_iter().map(f64::from).collect();
        let found = run(&onnx, EngineKind::Native).expect("the network can be run");
        assert_close(&found, &expected, 1e-5, &format!("{dims:?}"));
    }
    // As many numbers as there are columns, but one for each row.
    for dims in [&[4, 1][..], &[4, 4], &[2, 2], &[3], &[1, 1, 4]] {
        let error = run(&with(dims), EngineKind::Native).expect_err("no row");
        assert!(error.to_string().contains("no row of 4"), "{dims:?}: {error}");
    }
}

#[test]
fn the_end_of_a_network_may_be_written_in_many_ways() {
    let head = |end: &dyn Fn(&mut Builder)| {
        let mut builder = Builder::new(3, 8, 8);
        builder.square(32, 3, 1).relu();
        end(&mut builder);
        let weight = builder.tensor(&[32, 10], |value| value);
        let bias = builder.tensor(&[10], |value| value);
        builder.node("MatMul", &[&weight], Vec::new()).node("Add", &[&bias], Vec::new());
        builder.shape = [10, 1, 1];
        let images = builder::random(2 * 3 * 8 * 8, 2);
        logits(&builder.finish(), 1, Isa::best(), 2, &images)
    };
    let expected = head(&|builder| {
        builder.global_average().flatten();
    });
    let mean = head(&|builder| {
        builder.graph.initializer.push(ints("axes", &[-1, -2]));
        builder.node("ReduceMean", &["axes"], vec![int_attribute("keepdims", 0)]);
    });
    assert_eq!(mean, expected);
    let fixed = head(&|builder| {
        builder.graph.initializer.push(ints("to", &[-1, 32]));
        builder.global_average().node("Reshape", &["to"], Vec::new());
    });
    assert_eq!(fixed, expected);
    let squeezed = head(&|builder| {
        builder.node("ReduceMean", &[], vec![ints_attribute("axes", &[2, 3])]);
        builder.graph.initializer.push(ints("axes", &[2, 3]));
        builder.node("Squeeze", &["axes"], Vec::new());
    });
    assert_eq!(squeezed, expected);
    // As burn-onnx writes a `flatten` of a free batch.
    let computed = head(&|builder| {
        builder.global_average();
        let pooled = builder.last.clone();
        for (name, values) in [("first", [0]), ("channels", [32])] {
            builder.graph.initializer.push(ints(name, &values));
        }
        builder.node("Shape", &[], Vec::new()).node("Gather", &["first"], vec![int_attribute("axis", 0)]);
        builder.node("Concat", &["channels"], vec![int_attribute("axis", 0)]);
        let to = std::mem::replace(&mut builder.last, pooled);
        builder.node("Reshape", &[&to], Vec::new());
    });
    assert_eq!(computed, expected);
}
