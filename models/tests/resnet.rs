//! What the configuration promises about a network, independent of any weights.

#![cfg(feature = "flex")]

use burn::config::Config;
use burn::module::Module;
use burn::tensor::{Device, Distribution, Tensor};
use burn_nccl_models::{Depth, ModelError, NormConfig, ResNetConfig, Stem};
use burn_nccl_records::{Error, SaveDType, SaveFormat, SaveOptions, load_model, save, save_model};

fn values<const D: usize>(tensor: Tensor<D>) -> Vec<f32> {
    tensor.into_data().try_into_vec().unwrap()
}

fn standard_deviation(values: &[f32]) -> f64 {
    (values.iter().map(|v| (*v as f64).powi(2)).sum::<f64>() / values.len() as f64).sqrt()
}

#[test]
fn every_depth_and_stem_has_the_documented_shapes() {
    let device = Device::flex();
    // The feature map of 33 pixels: 33 -> 17 -> 9 -> 5 -> 3 -> 2 with the ImageNet stem.
    let cases = [(Depth::ResNet18, Stem::ImageNet, 512, 2), (Depth::ResNet50, Stem::Cifar, 2048, 5)];
    for (depth, stem, features, size) in cases {
        let config = ResNetConfig::new(depth, 7).with_stem(stem).with_input_channels(1);
        let model = config.init(&device);
        let images = Tensor::random([2, 1, 33, 33], Distribution::Default, &device);
        assert_eq!(config.num_features(), features);
        assert_eq!(model.forward_features(images.clone()).dims(), [2, features, size, size]);
        assert_eq!(model.forward(images).dims(), [2, 7]);
    }
}

#[test]
fn one_pixel_is_a_legal_image() {
    for stem in [Stem::ImageNet, Stem::Cifar] {
        let device = Device::flex();
        let model = ResNetConfig::new(Depth::ResNet18, 4).with_stem(stem).init(&device);
        let logits = values(model.forward(Tensor::ones([1, 3, 1, 1], &device)));
        assert!(logits.len() == 4 && logits.iter().all(|v| v.is_finite()), "{logits:?}");
    }
}

#[test]
#[should_panic(expected = "axis 1 expected 3, got 1")]
fn an_image_with_other_channels_is_rejected() {
    let device = Device::flex();
    ResNetConfig::new(Depth::ResNet18, 4).init(&device).forward(Tensor::zeros([1, 1, 32, 32], &device));
}

#[test]
#[should_panic(expected = "num_classes must be at least 1")]
fn a_network_without_classes_is_rejected() {
    ResNetConfig::new(Depth::ResNet18, 0).init(&Device::flex());
}

#[test]
fn initial_weights_follow_torchvisions_distributions() {
    let device = Device::flex();
    let model = ResNetConfig::new(Depth::ResNet18, 1000).init(&device);

    // Kaiming by fan-out: 128 channels out of a 3x3 convolution with 64 channels in.
    let weights = values(model.layer2[0].conv1.weight.val());
    let expected = (2.0 / (128.0 * 9.0_f64)).sqrt();
    assert!((standard_deviation(&weights) / expected - 1.0).abs() < 0.02);

    // U(-k, k) with k = 1 / sqrt(512) has the standard deviation k / sqrt(3).
    let bound = 1.0 / 512.0_f64.sqrt();
    for weights in [values(model.fc.weight.val()), values(model.fc.bias.clone().unwrap().val())] {
        assert!(weights.iter().all(|v| (v.abs() as f64) <= bound));
        assert!((standard_deviation(&weights) / (bound / 3.0_f64.sqrt()) - 1.0).abs() < 0.1);
    }
}

#[test]
fn zero_init_residual_makes_each_block_start_as_its_shortcut() {
    let device = Device::flex();
    let input = Tensor::<4>::random([1, 64, 8, 8], Distribution::Uniform(0.0, 1.0), &device);
    for depth in [Depth::ResNet18, Depth::ResNet50] {
        let config = ResNetConfig::new(depth, 10).with_zero_init_residual(true);
        let model = config.init(&device);
        let block = &model.layer1[1];
        let channels = 64 * if depth.is_bottleneck() { 4 } else { 1 };
        let input = input.clone().repeat(&[1, channels / 64, 1, 1]);
        // The input is not negative, so the last ReLU leaves it alone.
        assert_eq!(values(block.forward(input.clone())), values(input.clone()));

        let plain = config.with_zero_init_residual(false).init(&device);
        assert_ne!(values(plain.layer1[1].forward(input.clone())), values(input));
    }
}

#[test]
fn training_and_evaluation_use_different_statistics() {
    let device = Device::flex().autodiff();
    let model = ResNetConfig::new(Depth::ResNet18, 10).with_stem(Stem::Cifar).init(&device);
    let images = Tensor::<4>::random([4, 3, 8, 8], Distribution::Normal(3.0, 2.0), &device);
    let training = values(model.forward(images.clone()));
    let evaluation = values(model.valid().forward(images.inner()));
    assert!(training.iter().zip(&evaluation).any(|(a, b)| (a - b).abs() > 1e-2));
}

#[test]
fn a_record_moves_all_values_into_a_new_network() {
    let device = Device::flex();
    let config = ResNetConfig::new(Depth::ResNet50, 10).with_stem(Stem::Cifar);
    let images = Tensor::<4>::random([1, 3, 8, 8], Distribution::Default, &device);
    let (first, second) = (config.init(&device), config.init(&device));
    let expected = values(first.forward(images.clone()));
    assert_ne!(values(second.forward(images.clone())), expected);
    assert_eq!(values(second.load_record(first.into_record()).forward(images)), expected);
}

#[test]
fn a_saved_configuration_is_readable_and_comes_back() {
    let config = ResNetConfig::new(Depth::ResNet101, 50).with_stem(Stem::Cifar).with_norm(NormConfig::Batch);
    let json: serde_json::Value = serde_json::from_str(&config.to_string()).unwrap();
    assert_eq!(
        json,
        serde_json::json!({
            "depth": "resnet101", "num_classes": 50, "stem": "cifar", "norm": "batch",
            "zero_init_residual": false, "input_channels": 3,
        })
    );
    assert_eq!(ResNetConfig::load_binary(config.to_string().as_bytes()).unwrap(), config);
}

#[test]
fn a_saved_model_loads_from_its_path_alone() {
    let folder = tempfile::tempdir().unwrap();
    let device = Device::flex();
    let config =
        ResNetConfig::new(Depth::ResNet18, 10).with_stem(Stem::Cifar).with_norm(NormConfig::SyncBatch);
    let model = config.init(&device);
    let images = Tensor::<4>::random([2, 3, 8, 8], Distribution::Default, &device);
    let expected = values(model.forward(images.clone()));
    let options = SaveOptions::default().with_durable(false);
    let safetensors = options.clone().with_format(SaveFormat::Safetensors);
    for (name, options) in [
        ("model.bpk", options),
        ("model.safetensors", safetensors.clone()),
        ("shards", safetensors.with_max_shard_bytes(10 << 20)),
    ] {
        let path = folder.path().join(name);
        save_model(&config, &model, &path, &options).unwrap();
        let (loaded_config, loaded) = load_model::<ResNetConfig>(&path, &device).unwrap();
        assert_eq!(loaded_config, config);
        assert_eq!(values(loaded.forward(images.clone())), expected, "{name}");
    }
}

#[test]
fn a_model_saved_in_half_precision_computes_in_single_precision_again() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.bpk");
    let device = Device::flex();
    let config = ResNetConfig::new(Depth::ResNet18, 10).with_stem(Stem::Cifar);
    let model = config.init(&device);
    let options = SaveOptions::default().with_durable(false).with_dtype(SaveDType::F16);
    let report = save_model(&config, &model, &path, &options).unwrap();
    let (_, loaded) = load_model::<ResNetConfig>(&path, &device).unwrap();
    let (before, after) = (values(model.fc.weight.val()), values(loaded.fc.weight.val()));
    // The largest weights of a fresh network are below 1, where f16 rounds by at most 2^-12.
    let error = before.iter().zip(&after).fold(0.0_f32, |error, (a, b)| error.max((a - b).abs()));
    assert!(error > 0.0 && f64::from(error) <= report.largest_error);
    assert!(report.largest_error <= 2.0_f64.powi(-12), "{}", report.largest_error);
    assert_eq!(values(loaded.bn1.norm.gamma.val()), values(model.bn1.norm.gamma.val()));
}

#[test]
fn a_file_that_describes_no_such_network_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.bpk");
    let device = Device::flex();
    let model = ResNetConfig::new(Depth::ResNet18, 2).init(&device);
    let load = || load_model::<ResNetConfig>(&path, &device).map(|_| ()).unwrap_err();
    let plain = SaveOptions::default().with_durable(false);
    save(&model, &path, &plain).unwrap();
    assert!(matches!(load(), Error::NoArchitecture { .. }));

    let described = plain.with_metadata("burn-nccl.architecture", "resnet");
    save(&model, &path, &described.clone().with_metadata("burn-nccl.architecture", "vit")).unwrap();
    assert!(matches!(load(), Error::OtherArchitecture { expected: "resnet", found, .. } if found == "vit"));

    let config = |json: serde_json::Value| {
        let mut config = serde_json::to_value(ResNetConfig::new(Depth::ResNet18, 2)).unwrap();
        config.as_object_mut().unwrap().extend(json.as_object().unwrap().clone());
        save(&model, &path, &described.clone().with_metadata("burn-nccl.config", config.to_string()))
            .unwrap();
        load()
    };
    for json in [
        serde_json::json!({ "num_classes": 0 }),
        serde_json::json!({ "input_channels": 0 }),
        serde_json::json!({ "num_classes": u64::MAX }),
        serde_json::json!({ "input_channels": 1_u64 << 40 }),
        serde_json::json!({ "num_classes": -1 }),
        serde_json::json!({ "depth": "resnet51" }),
    ] {
        let error = config(json.clone());
        assert!(matches!(error, Error::ModelConfig { .. }), "{json}: {error}");
    }
    let other = config(serde_json::json!({ "num_classes": 3 }));
    assert!(matches!(other, Error::Mismatch { .. }), "{other}");
}

#[test]
fn both_norms_take_each_others_records() {
    let device = Device::flex();
    let config = ResNetConfig::new(Depth::ResNet18, 10).with_stem(Stem::Cifar);
    let synchronized = config.clone().with_norm(NormConfig::SyncBatch);
    assert!(synchronized.to_string().contains("syncbatch"));
    let images = Tensor::<4>::random([1, 3, 8, 8], Distribution::Default, &device);
    let (local, synchronized) = (config.init(&device), synchronized.init(&device));
    assert!(synchronized.bn1.is_synchronized() && !local.bn1.is_synchronized());
    let expected = values(local.forward(images.clone()));
    assert_eq!(values(synchronized.load_record(local.into_record()).forward(images)), expected);
}

#[test]
#[should_panic(expected = "one value per channel")]
fn training_on_one_image_of_one_pixel_is_refused() {
    let device = Device::flex().autodiff();
    let model = ResNetConfig::new(Depth::ResNet18, 4).init(&device);
    model.forward(Tensor::ones([1, 3, 1, 1], &device));
}

#[test]
fn names_parse_back_and_unknown_ones_say_what_exists() {
    for depth in Depth::ALL {
        assert_eq!(depth.to_string().parse(), Ok(depth));
    }
    assert_eq!("cifar".parse(), Ok(Stem::Cifar));
    let error = "resnet51".parse::<Depth>().unwrap_err();
    assert_eq!(error, ModelError::UnknownDepth { name: "resnet51".into() });
    assert_eq!(
        error.to_string(),
        "unknown model `resnet51`: use resnet18, resnet34, resnet50, resnet101 or resnet152"
    );
}
