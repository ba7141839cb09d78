//! Each engine gives the same logits, for any batch.

use burn_nccl_inference::{EngineChoice, EngineKind, Error, Onnx, WeightType, load, present};

use crate::common::{difference, engine, options};
use crate::testing::{Net, int, ints, value};

#[test]
fn a_batch_gives_the_logits_of_its_images() {
    let net = Net::residual(3, 10);
    let onnx = Onnx::from_bytes(&net.bytes()).unwrap();
    for kind in EngineKind::ALL {
        let Some(mut engine) = engine(&onnx, kind, &options()) else { continue };
        for batch in [3, 1, 8] {
            let images = net.images(batch, 16, 16);
            let (mut together, mut one, mut alone) = (vec![7.0], Vec::new(), Vec::new());
            engine.run(batch, &images, &mut together).unwrap();
            for image in images.chunks(768) {
                engine.run(1, image, &mut one).unwrap();
                alone.extend_from_slice(&one);
            }
            assert_eq!(together.len(), batch * 10);
            assert!(difference(&alone, &together) <= 1e-5, "{kind} {batch}");
        }
    }
}

#[test]
fn engines_agree_about_every_type_of_weights() {
    let net = Net::residual(3, 10);
    let images = net.images(3, 16, 16);
    for weights in WeightType::ALL {
        let mut onnx = Onnx::from_bytes(&net.bytes()).unwrap();
        onnx.set_weights(weights).unwrap();
        let mut all: Vec<Vec<f32>> = Vec::new();
        for kind in EngineKind::ALL {
            let Some(mut engine) = engine(&onnx, kind, &options()) else { continue };
            let mut logits = Vec::new();
            engine.run(3, &images, &mut logits).unwrap();
            all.push(logits);
        }
        for other in &all[1..] {
            assert!(difference(&all[0], other) <= 1e-5, "{weights}");
        }
    }
}

#[test]
fn threads_do_not_change_the_logits() {
    let net = Net::residual(3, 10);
    let onnx = Onnx::from_bytes(&net.bytes()).unwrap();
    let images = net.images(3, 16, 16);
    for kind in EngineKind::ALL {
        let mut all = Vec::new();
        // None are one.
        for threads in [0, 1, 2, 3] {
            let mut options = options();
            options.threads = threads;
            let Some(mut engine) = engine(&onnx, kind, &options) else { continue };
            let mut logits = Vec::new();
            engine.run(3, &images, &mut logits).unwrap();
            all.push(logits);
        }
        assert!(all.iter().all(|logits| difference(&all[0], logits) <= 1e-5), "{kind}");
    }
}

#[test]
fn engines_move_to_the_thread_that_classifies() {
    let net = Net::residual(1, 4);
    let onnx = Onnx::from_bytes(&net.bytes()).unwrap();
    let images = net.images(1, 16, 16);
    for kind in EngineKind::ALL {
        let Some(mut engine) = engine(&onnx, kind, &options().with_threads(2)) else { continue };
        let images = images.clone();
        let run = move || {
            let mut logits = Vec::new();
            engine.run(1, &images, &mut logits).map(|()| logits.len())
        };
        assert_eq!(std::thread::spawn(run).join().unwrap().unwrap(), 4);
    }
}

#[test]
fn engines_name_their_version() {
    let onnx = Onnx::from_bytes(&Net::residual(1, 4).bytes()).unwrap();
    for kind in EngineKind::ALL {
        let Some(engine) = engine(&onnx, kind, &options()) else { continue };
        let name = engine.name();
        // Behind the version ours says which instructions it uses.
        let version = name.strip_prefix(&format!("{kind} ")).and_then(|rest| rest.split(' ').next()).unwrap();
        assert!(version.split('.').all(|part| part.parse::<u32>().is_ok()), "{name}");
    }
}

#[test]
fn values_that_are_no_batch_are_refused() {
    let onnx = Onnx::from_bytes(&Net::residual(3, 10).bytes()).unwrap();
    for kind in EngineKind::ALL {
        let Some(mut engine) = engine(&onnx, kind, &options()) else { continue };
        let mut logits = Vec::new();
        for (batch, values) in [(0, 0), (1, 767), (2, 768), (usize::MAX, 768)] {
            let error = engine.run(batch, &vec![0.0; values], &mut logits).unwrap_err();
            assert!(matches!(error, Error::Shape { image: 768, .. }), "{kind}: {error}");
        }
    }
}

#[test]
fn a_network_of_a_fixed_batch_takes_that_one_alone() {
    let mut net = Net::residual(3, 10);
    net.graph.input[0] = value("input", &[Some(2), Some(3), Some(16), Some(16)]);
    net.graph.output[0] = value("gemm_22", &[Some(2), Some(10)]);
    let onnx = Onnx::from_bytes(&net.bytes()).unwrap();
    for kind in EngineKind::ALL {
        let Some(mut engine) = engine(&onnx, kind, &options()) else { continue };
        let mut logits = Vec::new();
        engine.run(2, &net.images(2, 16, 16), &mut logits).unwrap();
        assert_eq!(logits.len(), 20);
        let error = engine.run(1, &net.images(1, 16, 16), &mut logits).unwrap_err();
        assert!(matches!(error, Error::Batch { batch: 1, fixed: 2 }), "{kind}: {error}");
    }
}

#[test]
fn an_operation_that_no_engine_knows_is_an_error() {
    let mut net = Net::residual(3, 10);
    net.graph.node[2].op_type = "Relux".to_owned();
    let onnx = Onnx::from_bytes(&net.bytes()).unwrap();
    for kind in EngineKind::ALL {
        match load(&onnx, EngineChoice::Only(kind), &options()) {
            Err(Error::Unsupported { operation, .. }) => {
                assert_eq!((kind, &*operation), (EngineKind::Native, "Relux"))
            }
            Err(Error::Engine { reason, .. }) => assert!(reason.contains("Relux"), "{kind}: {reason}"),
            Err(Error::Unavailable { reason, .. }) => crate::common::skip(&reason),
            other => panic!("{kind}: {:?}", other.map(|engine| engine.name())),
        }
    }
}

#[test]
fn the_next_engine_is_taken_where_one_fails_to_load_the_network() {
    // The logits are the input itself, which ours does not compute.
    let mut net = Net::new(3, 1, 1);
    let output = net.node("Flatten", &["input"], vec![int("axis", 1)]);
    net.output(&output, 3);
    let onnx = Onnx::from_bytes(&net.bytes()).unwrap();
    let error = load(&onnx, EngineChoice::Only(EngineKind::Native), &options()).map(|_| ()).unwrap_err();
    assert!(matches!(error, Error::Engine { engine: EngineKind::Native, .. }), "{error}");
    let mut engine = load(&onnx, EngineChoice::Auto, &options()).unwrap();
    let images = net.images(2, 1, 1);
    let mut logits = Vec::new();
    engine.run(2, &images, &mut logits).unwrap();
    assert_eq!(logits, images);
}

#[test]
fn a_window_that_lies_between_the_pixels_is_as_in_onnx_runtime() {
    // Of each image one pixel, and a window of two on both sides of it.
    let mut net = Net::new(3, 1, 1);
    let attributes = vec![
        ints("kernel_shape", &[2, 2]),
        ints("dilations", &[2, 2]),
        ints("pads", &[1, 1, 1, 1]),
        ints("strides", &[1, 1]),
    ];
    let pooled = net.node("MaxPool", &["input"], attributes);
    let output = net.node("Flatten", &[&pooled], vec![int("axis", 1)]);
    net.output(&output, 3);
    let onnx = Onnx::from_bytes(&net.bytes()).unwrap();
    for kind in [EngineKind::Native, EngineKind::OnnxRuntime] {
        let Some(mut engine) = engine(&onnx, kind, &options()) else { continue };
        let mut logits = Vec::new();
        engine.run(2, &net.images(2, 1, 1), &mut logits).unwrap();
        assert_eq!(logits, [f32::MIN; 6], "{kind}");
    }
}

#[test]
fn where_no_engine_can_run_a_network_the_first_says_why() {
    let mut net = Net::residual(3, 10);
    net.graph.node[2].op_type = "Relux".to_owned();
    let onnx = Onnx::from_bytes(&net.bytes()).unwrap();
    let error = load(&onnx, EngineChoice::Auto, &options()).map(|_| ()).unwrap_err();
    assert!(
        matches!(&error, Error::Unsupported { engine: EngineKind::Native, node, .. } if node == "Relu_2"),
        "{error}"
    );
}

#[test]
fn the_engines_that_are_present_are_listed() {
    let all = present(&options());
    assert_eq!(all.iter().map(|(kind, _)| *kind).collect::<Vec<_>>(), EngineKind::ALL);
    for (kind, present) in all {
        match present {
            Err(Error::Unavailable { engine, reason }) => {
                assert_eq!((engine, kind), (EngineKind::OnnxRuntime, EngineKind::OnnxRuntime));
                crate::common::skip(&reason);
            }
            other => other.unwrap(),
        }
    }
}

#[test]
fn a_process_keeps_to_one_library() {
    let onnx = Onnx::from_bytes(&Net::residual(1, 4).bytes()).unwrap();
    if engine(&onnx, EngineKind::OnnxRuntime, &options()).is_none() {
        return;
    }
    let other = options().with_onnxruntime("/elsewhere/libonnxruntime.so");
    let error = load(&onnx, EngineChoice::Only(EngineKind::OnnxRuntime), &other).map(|_| ()).unwrap_err();
    let said = error.to_string();
    assert!(matches!(error, Error::Unavailable { .. }));
    assert!(said.contains("can load no other") && said.contains("/elsewhere/libonnxruntime.so"), "{said}");
}
