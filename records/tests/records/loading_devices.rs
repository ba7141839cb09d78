//! Where parameters are, what type they have, and what loading leaves alone.

use burn::module::Module;
use burn::tensor::{DType, Device, Distribution, Tensor};
use burn_nccl_records::{Error, LoadDType, LoadOptions, load};

use crate::fixtures::{Net, assert_is_golden, fixture, golden};

fn devices(net: &Net) -> Vec<Device> {
    net.collect_devices(Vec::new())
}

// C5: the device is the model's, given when it is made.
#[cfg(feature = "ndarray")]
#[test]
fn every_parameter_loads_onto_the_device_that_it_was_made_for() {
    for device in [Device::flex(), Device::ndarray()] {
        for file in ["net.pth", "net-legacy.pth", "net.safetensors", "sharded"] {
            let (net, _) = load(&Net::new(&device), fixture(file), &LoadOptions::default()).unwrap();
            assert_eq!(devices(&net), std::slice::from_ref(&device), "{file}");
            assert_is_golden(&net);
        }
    }
}

// C5, and the placement of a model over two devices.
#[cfg(feature = "ndarray")]
#[test]
fn the_parts_of_a_model_load_onto_their_own_devices() {
    let (first, second) = (Device::ndarray(), Device::flex());
    let net = Net { fc: Net::new(&second).fc, ..Net::new(&first) };
    let (net, _) = load(&net, fixture("net.pth"), &LoadOptions::default()).unwrap();
    assert_eq!(net.conv.weight.val().device(), first);
    assert_eq!(net.bn.running_mean.value().device(), first);
    assert_eq!(net.fc.weight.val().device(), second);
    assert_is_golden(&net);
}

// C9: no rank's tensors pass through the device of another.
#[cfg(feature = "ndarray")]
#[test]
fn every_rank_loads_onto_its_own_device_only() {
    let ranks = [Device::flex(), Device::ndarray()].map(|device| {
        std::thread::spawn(move || {
            let (net, _) = load(&Net::new(&device), fixture("net.pth"), &LoadOptions::default()).unwrap();
            (devices(&net), device)
        })
    });
    for rank in ranks {
        let (used, own) = rank.join().unwrap();
        assert_eq!(used, [own]);
    }
}

#[test]
fn a_model_for_training_stays_one() {
    let device = Device::flex().autodiff();
    let (net, _) = load(&Net::new(&device), fixture("net.pth"), &LoadOptions::default()).unwrap();
    assert_is_golden(&net);
    assert!(net.fc.weight.val().is_require_grad() && net.bn.gamma.val().is_require_grad());
    assert!(!net.bn.running_mean.value().is_require_grad());
    let gradients = net.forward(Tensor::ones([2, 2, 3, 3], &device)).sum().backward();
    assert!(net.fc.weight.val().grad(&gradients).is_some(), "the turned weight is a leaf");
}

#[test]
fn no_initial_weights_are_drawn() {
    let device = Device::flex();
    let draw = || Tensor::<1>::random([4], Distribution::Default, &device).into_data();
    device.seed(3);
    let expected = draw();
    device.seed(3);
    let net = Net::new(&device);
    let (loaded, _) = load(&net, fixture("net.pth"), &LoadOptions::default()).unwrap();
    draw().assert_eq(&expected, true);
    assert!(!net.conv.weight.is_initialized() && loaded.conv.weight.is_initialized());
}

/// Burn adds the statistics of a forward pass to the running ones with the next pass or `valid`.
#[test]
fn what_an_earlier_forward_pass_left_over_does_not_replace_loaded_statistics() {
    let device = Device::flex().autodiff();
    let net = Net::new(&device);
    net.forward(Tensor::random([4, 2, 3, 3], Distribution::Default, &device));
    let (loaded, _) = load(&net, fixture("net.pth"), &LoadOptions::default()).unwrap();
    assert_is_golden(&loaded.valid());
}

#[test]
fn floats_of_any_width_load_as_the_models_type() {
    let device = Device::flex();
    let options = LoadOptions::default();
    let exact = golden().state["conv.weight"].clone();
    let weights = |file: &str| {
        let (net, _) = load(&Net::new(&device), fixture(file), &options).unwrap();
        assert_eq!(net.conv.weight.val().dtype(), DType::F32, "{file}");
        net.state()["conv.weight"].clone()
    };
    for extension in ["pth", "safetensors"] {
        assert_eq!(weights(&format!("net-f64.{extension}")), exact);
        // The rounding was PyTorch's; to the nearest, at most half a unit in the last place of 11 and of 8 bits.
        for (name, unit) in [("f16", 2f32.powi(-11)), ("bf16", 2f32.powi(-8))] {
            let rounded = weights(&format!("net-{name}.{extension}"));
            assert!(rounded.iter().zip(&exact).all(|(a, b)| (a - b).abs() <= unit * b.abs()), "{rounded:?}");
            assert_ne!(rounded, exact);
        }
    }
}

#[test]
fn the_type_is_the_models_the_files_or_one_asked_for() {
    let device = Device::flex();
    let half = load(
        &Net::new(&device),
        fixture("net-bf16.safetensors"),
        &LoadOptions::default().with_dtype(LoadDType::File),
    )
    .unwrap()
    .0;
    assert_eq!(half.conv.weight.val().dtype(), DType::BF16);
    // Now bf16 is the model's type.
    let (net, _) = load(&half, fixture("net.pth"), &LoadOptions::default()).unwrap();
    assert_eq!(
        (net.conv.weight.val().dtype(), net.bn.running_var.value().dtype()),
        (DType::BF16, DType::BF16)
    );
    assert_eq!(net.state(), half.state(), "rounded as PyTorch rounds");
    for dtype in [DType::F64, DType::F32, DType::F16] {
        let options = LoadOptions::default().with_dtype(LoadDType::To(dtype));
        let (net, _) = load(&half, fixture("net.pth"), &options).unwrap();
        assert_eq!((net.fc.weight.val().dtype(), net.bn.running_mean.value().dtype()), (dtype, dtype));
    }
    let options = LoadOptions::default().with_dtype(LoadDType::To(DType::I32));
    let error = load(&half, fixture("net.pth"), &options).unwrap_err();
    assert!(matches!(error, Error::NotFloat { dtype: DType::I32 }), "{error}");
}
