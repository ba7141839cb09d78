//! Whether a backend has what a model needs in half, tried at the start.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::panic::{self, AssertUnwindSafe};
use std::sync::Once;

use burn::backend::{Backend, Dispatch};
use burn::nn::conv::{
    Conv1dConfig, Conv2dConfig, Conv3dConfig, ConvTranspose1dConfig, ConvTranspose2dConfig,
    ConvTranspose3dConfig,
};
use burn::nn::pool::MaxPool2dConfig;
use burn::nn::{
    EmbeddingConfig, GroupNormConfig, Initializer, InstanceNormConfig, LayerNormConfig, LinearConfig,
    PReluConfig, RmsNormConfig,
};
use burn::tensor::activation::{relu, softmax};
use burn::tensor::module::adaptive_avg_pool2d;
use burn::tensor::{Device, FloatDType, Int, Tensor};

use super::{Autocast, Precision, widen};
use crate::error::{Error, Result};

/// Runs once what the layers in `containers` need.
///
/// # Errors
/// [`Error::AutocastUnsupported`].
pub(super) fn check(
    containers: &BTreeSet<String>,
    dtype: FloatDType,
    precision: Precision,
    device: &Device,
) -> Result<()> {
    let device = if device.is_autodiff() { device.clone() } else { device.clone().autodiff() };
    let unsupported =
        |op, cause| Error::AutocastUnsupported { op, precision, backend: backend_name(&device), cause };
    let mut probes = PROBES.iter().filter(|probe| containers.contains(probe.container)).peekable();
    if !device.clone().inner().supports_dtype(dtype) {
        let op = probes.peek().map_or(ELEMENTWISE.op, |probe| probe.op);
        return Err(unsupported(op, "the backend has no arithmetic in that type".into()));
    }
    for probe in probes.chain(&WITHOUT_PARAMETERS) {
        probe.try_on(precision, &device).map_err(|cause| unsupported(probe.op, cause))?;
    }
    Ok(())
}

/// Burn's name of the backend, such as `ndarray`.
fn backend_name(device: &Device) -> String {
    let device = device.clone().inner();
    let name = Dispatch::name(device.as_dispatch());
    name.strip_prefix("dispatch<").and_then(|name| name.strip_suffix('>')).unwrap_or(&name).into()
}

/// The values that a probe computed: output and gradient.
type Values = std::result::Result<Vec<f32>, String>;

fn finite(values: Vec<f32>) -> std::result::Result<(), String> {
    let all = values.iter().all(|value| value.is_finite());
    if all { Ok(()) } else { Err("a small example gave values that are not finite".into()) }
}

struct Probe {
    /// What Burn's `Module` derive reports for the parameters of the layer that needs the op.
    container: &'static str,
    op: &'static str,
    run: fn(&Autocast, &Device) -> Values,
}

impl Probe {
    /// Runs it; the error is the backend's reason.
    fn try_on(&self, precision: Precision, device: &Device) -> std::result::Result<(), String> {
        quietly(|| (self.run)(&Autocast::new(precision), device).and_then(finite)).flatten()
    }
}

/// Makes a probe of a layer whose forward takes one float tensor.
macro_rules! probe {
    ($container:literal, $op:literal, $config:expr, $shape:expr) => {
        Probe {
            container: $container,
            op: $op,
            run: |autocast, device| {
                let layer = autocast.module(&$config.init(device)).map_err(|error| error.to_string())?;
                values(autocast, ramp($shape, device), |input| layer.forward(input))
            },
        }
    };
}

/// Constant, since drawing weights would shift the random numbers of the run that follows.
const CONSTANT: Initializer = Initializer::Constant { value: 0.1 };

static PROBES: [Probe; 13] = [
    probe!("Struct:Conv1d", "conv1d", Conv1dConfig::new(2, 2, 3).with_initializer(CONSTANT), [1, 2, 4]),
    probe!(
        "Struct:Conv2d",
        "conv2d",
        Conv2dConfig::new([2, 2], [3; 2]).with_initializer(CONSTANT),
        [1, 2, 4, 4]
    ),
    probe!(
        "Struct:Conv3d",
        "conv3d",
        Conv3dConfig::new([2, 2], [3; 3]).with_initializer(CONSTANT),
        [1, 2, 4, 4, 4]
    ),
    probe!(
        "Struct:ConvTranspose1d",
        "conv_transpose1d",
        ConvTranspose1dConfig::new([2, 2], 3).with_initializer(CONSTANT),
        [1, 2, 4]
    ),
    probe!(
        "Struct:ConvTranspose2d",
        "conv_transpose2d",
        ConvTranspose2dConfig::new([2, 2], [3; 2]).with_initializer(CONSTANT),
        [1, 2, 4, 4]
    ),
    probe!(
        "Struct:ConvTranspose3d",
        "conv_transpose3d",
        ConvTranspose3dConfig::new([2, 2], [3; 3]).with_initializer(CONSTANT),
        [1, 2, 4, 4, 4]
    ),
    probe!("Struct:Linear", "linear", LinearConfig::new(8, 8).with_initializer(CONSTANT), [8, 8]),
    probe!("Struct:PRelu", "prelu", PReluConfig::new(), [2, 8]),
    probe!("Struct:LayerNorm", "layer_norm", LayerNormConfig::new(8), [2, 8]),
    probe!("Struct:GroupNorm", "group_norm", GroupNormConfig::new(2, 4), [1, 4, 2, 2]),
    probe!("Struct:InstanceNorm", "instance_norm", InstanceNormConfig::new(2), [1, 2, 2, 2]),
    probe!("Struct:RmsNorm", "rms_norm", RmsNormConfig::new(8), [2, 8]),
    Probe { container: "Struct:Embedding", op: "embedding", run: embedding },
];

/// What models need whatever their parameters say: the casts themselves, and ops that follow the type of their input.
static WITHOUT_PARAMETERS: [Probe; 4] = [
    ELEMENTWISE,
    Probe {
        container: "",
        op: "max_pool2d",
        run: |autocast, device| {
            let pool = MaxPool2dConfig::new([2, 2]).init();
            values(autocast, ramp([1, 2, 4, 4], device), |input| pool.forward(input))
        },
    },
    Probe {
        container: "",
        op: "avg_pool2d",
        run: |autocast, device| {
            values(autocast, ramp([1, 2, 4, 4], device), |input| adaptive_avg_pool2d(input, [2, 2]))
        },
    },
    Probe {
        container: "",
        op: "softmax",
        run: |autocast, device| values(autocast, ramp([2, 4], device), |input| softmax(input, 1)),
    },
];

const ELEMENTWISE: Probe = Probe {
    container: "",
    op: "matmul",
    run: |autocast, device| {
        values(autocast, ramp([8, 8], device), |input| {
            let product = input.clone().matmul(input.clone());
            relu(product * input.clone() + input)
        })
    },
};

fn embedding(autocast: &Autocast, device: &Device) -> Values {
    let master = EmbeddingConfig::new(4, 8).with_initializer(CONSTANT).init(device);
    let layer = autocast.module(&master).map_err(|error| error.to_string())?;
    let output = widen(layer.forward(Tensor::<2, Int>::from_data([[0, 3], [3, 1]], device)));
    let gradients = output.clone().sum().backward();
    let gradient = master.weight.grad(&gradients).ok_or("no gradient reached the weight")?;
    Ok([read(output)?, read(gradient)?].concat())
}

/// Distinct values around zero.
fn ramp<const D: usize>(shape: [usize; D], device: &Device) -> Tensor<D> {
    let elements: usize = shape.iter().product();
    let ramp = Tensor::<1, Int>::arange(0..elements as i64, device).float();
    (ramp / elements as f64 - 0.4).reshape(shape).detach().require_grad()
}

/// The output of `forward` on the half cast of `input`, and the gradient of its sum.
fn values<const D: usize>(
    autocast: &Autocast,
    input: Tensor<D>,
    forward: impl FnOnce(Tensor<D>) -> Tensor<D>,
) -> Values {
    let output = widen(forward(autocast.input(input.clone())));
    let gradients = output.clone().sum().backward();
    let gradient = input.grad(&gradients).ok_or("no gradient reached the input")?;
    Ok([read(output)?, read(gradient)?].concat())
}

fn read<const D: usize>(tensor: Tensor<D>) -> Values {
    let data = tensor.try_into_data().map_err(|error| error.to_string())?;
    data.try_to_vec::<f32>().map_err(|error| format!("{error:?}"))
}

thread_local! {
    /// Whether a panic on this thread goes unreported, because the caller makes an error of it.
    static QUIET: Cell<bool> = const { Cell::new(false) };
}

/// Runs `run` and returns the text of its panic, which is not printed.
fn quietly<T>(run: impl FnOnce() -> T) -> std::result::Result<T, String> {
    // The hook is the process's: it is wrapped once and for all, so that no other thread's report can get lost between
    // taking the old hook and putting it back.
    static WRAP_HOOK: Once = Once::new();
    WRAP_HOOK.call_once(|| {
        let report = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            if !QUIET.get() {
                report(info);
            }
        }));
    });
    QUIET.set(true);
    let outcome = panic::catch_unwind(AssertUnwindSafe(run));
    QUIET.set(false);
    outcome.map_err(|payload| {
        let text = payload.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| payload.downcast_ref::<&str>().copied()).unwrap_or("it panicked");
        text.split_whitespace().collect::<Vec<_>>().join(" ")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(feature = "flex")]
    #[test]
    fn a_probe_passes_or_says_why_not() {
        let device = Device::flex().autodiff();
        for precision in Precision::ALL {
            for probe in PROBES.iter().chain(&WITHOUT_PARAMETERS) {
                assert_eq!(probe.try_on(precision, &device), Ok(()), "{}", probe.op);
            }
        }
        let mixed = Probe {
            container: "",
            op: "matmul",
            run: |autocast, device| {
                values(autocast, ramp([2, 2], device), |input| widen(input.clone()).matmul(input))
            },
        };
        let cause = mixed.try_on(Precision::BF16, &device).unwrap_err();
        assert!(cause.contains("matmul: dtype mismatch"), "{cause}");
        let overflow = Probe {
            run: |autocast, device| values(autocast, ramp([8], device), |input| (input * 100.0).exp()),
            ..mixed
        };
        assert!(overflow.try_on(Precision::F16, &device).unwrap_err().contains("not finite"));
    }

    #[test]
    fn a_panic_becomes_its_text_on_one_line() {
        assert_eq!(
            quietly(|| -> () { panic!("matmul:\n  dtype {}", "mismatch") }).unwrap_err(),
            "matmul: dtype mismatch"
        );
        assert_eq!(quietly(|| 3).unwrap(), 3);
    }
}
