//! The mixed-precision policy against f32, against torch.autocast, and at its edges.

use std::collections::BTreeMap;

use burn::module::{Module, ModuleMapper, ModuleVisitor, Param, ParamId, RunningState};
use burn::nn::conv::{Conv2d, Conv2dConfig};
use burn::nn::gru::{Gru, GruConfig};
use burn::nn::loss::CrossEntropyLossConfig;
use burn::nn::{
    BatchNorm, BatchNormConfig, Embedding, EmbeddingConfig, GroupNorm, GroupNormConfig, InstanceNorm,
    InstanceNormConfig, LayerNorm, LayerNormConfig, Linear, LinearConfig, PaddingConfig2d, RmsNorm,
    RmsNormConfig,
};
use burn::optim::GradientsParams;
use burn::tensor::activation::relu;
use burn::tensor::{DType, Device, Int, Tensor, TensorData};
use burn_nccl::amp::{
    Autocast, AutocastConfig, GradScalerConfig, OPS, OpClass, Precision, match_dtype, widen,
};
use burn_nccl::{DdpConfig, DistributedDataParallel, Error, SyncBatchNorm, SyncBatchNormConfig};
use serde::Deserialize;

use crate::model::{Net, parameters, rows};
use crate::{assert_close, on_ranks, values};

const HALVES: [Precision; 2] = [Precision::BF16, Precision::F16];

/// What one rounding to the half type leaves, relative to the largest value.
fn rounding(precision: Precision) -> f32 {
    match precision {
        Precision::F32 => f32::EPSILON,
        Precision::BF16 => 1.0 / 256.0,
        Precision::F16 => 1.0 / 2048.0,
    }
}

/// The largest difference, relative to the largest expected value.
fn difference(found: &[f32], expected: &[f32]) -> f32 {
    assert_eq!(found.len(), expected.len());
    let largest = |values: &mut dyn Iterator<Item = f32>| values.fold(0.0, |a: f32, b| a.max(b.abs()));
    largest(&mut found.iter().zip(expected).map(|(a, b)| a - b)) / largest(&mut expected.iter().copied())
}

fn assert_near(what: &str, found: &[f32], expected: &[f32], limit: f32) {
    let difference = difference(found, expected);
    assert!(difference <= limit, "{what} differs by {difference:.1e}, allowed {limit:.1e}");
}

/// `autocast.json`, written by `autocast.py`.
#[derive(Deserialize)]
struct Reference {
    ops: BTreeMap<String, Vec<String>>,
    exact: BTreeMap<String, Vec<f32>>,
    bf16: BTreeMap<String, Vec<f32>>,
    f16: BTreeMap<String, Vec<f32>>,
}

fn reference() -> Reference {
    serde_json::from_str(include_str!("reference/autocast.json")).unwrap()
}

/// The formula of autocast.py.
fn table<const D: usize>(shape: [usize; D], phase: f64, offset: f64, device: &Device) -> Tensor<D> {
    let count = shape.iter().product::<usize>();
    let values: Vec<f64> =
        (0..count).map(|i| offset + f64::from(((0.7 * i as f64 + phase).sin() * 0.5) as f32)).collect();
    Tensor::from_data(TensorData::new(values, shape), device)
}

fn parameter<const D: usize>(tensor: Tensor<D>) -> Param<Tensor<D>> {
    Param::initialized(ParamId::new(), tensor.require_grad())
}

/// The net of autocast.py.
#[derive(Module, Debug)]
struct Small {
    conv: Conv2d,
    norm: SyncBatchNorm,
    fc: Linear,
}

impl Small {
    fn new(device: &Device) -> Self {
        let padding = PaddingConfig2d::Explicit(1, 1, 1, 1);
        let conv = Conv2dConfig::new([2, 4], [3, 3]).with_padding(padding).with_bias(false).init(device);
        let mut norm = SyncBatchNormConfig::new(4).init(device);
        norm.norm.gamma = parameter(table([4], 0.3, 1.0, device));
        norm.norm.beta = parameter(table([4], 0.4, 0.0, device));
        let weight = parameter(table([4, 3], 0.5, 0.0, device));
        let bias = Some(parameter(table([3], 0.6, 0.0, device)));
        Self {
            conv: Conv2d { weight: parameter(table([4, 2, 3, 3], 0.1, 0.0, device)), ..conv },
            norm,
            fc: Linear { weight, bias },
        }
    }

    fn images(device: &Device) -> Tensor<4> {
        table([5, 2, 6, 6], 0.7, 0.0, device)
    }

    /// Convolution and linear in the type of their weights, the rest as the policy asks of a forward pass.
    fn forward(&self, images: Tensor<4>) -> Tensor<2> {
        let x = self.conv.forward(match_dtype(images, &self.conv.weight.val()));
        let x = widen(relu(self.norm.forward(x)));
        let x = x.mean_dim(3).mean_dim(2).flatten(1, 3);
        widen(self.fc.forward(match_dtype(x, &self.fc.weight.val())))
    }

    fn loss(&self, logits: Tensor<2>) -> Tensor<1> {
        assert_eq!(logits.dtype(), DType::F32, "the loss is computed in f32");
        let labels = Tensor::<1, Int>::from_ints([0, 2, 1, 1, 0], &logits.device());
        CrossEntropyLossConfig::new().init(&logits.device()).forward(logits, labels)
    }
}

/// The types of all float tensors of a module by path.
fn dtypes(module: &impl Module) -> BTreeMap<String, DType> {
    #[derive(Default)]
    struct Types(Vec<String>, BTreeMap<String, DType>);
    impl ModuleVisitor for Types {
        fn enter_module(&mut self, name: &str, _container_type: &str) {
            self.0.push(name.into());
        }
        fn exit_module(&mut self, _name: &str, _container_type: &str) {
            self.0.pop();
        }
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            self.1.insert(self.0.join("."), param.val().dtype());
        }
    }
    let mut types = Types::default();
    module.visit(&mut types);
    types.1
}

fn half(precision: Precision) -> DType {
    precision.half().unwrap().into()
}

#[test]
fn a7_the_table_of_ops_is_that_of_torch() {
    let reference = reference();
    let class = |torch: &str| match torch {
        torch if reference.ops["half"].iter().any(|op| op == torch) => OpClass::Half,
        torch if reference.ops["full"].iter().any(|op| op == torch) => OpClass::Full,
        _ => OpClass::Input,
    };
    for rule in OPS {
        assert_eq!(rule.class, class(rule.torch), "{}", rule.op);
    }
}

#[test]
fn one_training_step_is_that_of_torch_autocast() {
    let reference = reference();
    let device = Device::flex().autodiff();
    for precision in Precision::ALL {
        let torch = match precision {
            Precision::F32 => &reference.exact,
            Precision::BF16 => &reference.bf16,
            Precision::F16 => &reference.f16,
        };
        let net = Small::new(&device);
        let copy = Autocast::new(precision).module(&net).unwrap();
        let logits = copy.forward(Small::images(&device));
        let loss = copy.loss(logits.clone());
        let grads = loss.backward();
        let norm = &net.norm.norm;
        let found = [
            ("logits", values(logits)),
            ("loss", values(loss)),
            ("running_mean", values(norm.running_mean.value_sync())),
            ("running_var", values(norm.running_var.value_sync())),
            ("conv.weight", values(net.conv.weight.grad(&grads).unwrap())),
            ("norm.weight", values(norm.gamma.grad(&grads).unwrap())),
            ("norm.bias", values(norm.beta.grad(&grads).unwrap())),
            ("fc.weight", values(net.fc.weight.grad(&grads).unwrap())),
            ("fc.bias", values(net.fc.bias.as_ref().unwrap().grad(&grads).unwrap())),
        ];
        // Torch rounds in other places; its own distance from the exact step is up to 4 roundings.
        let limit = if precision == Precision::F32 { 2e-6 } else { 5.0 * rounding(precision) };
        for (name, values) in found {
            assert_near(&format!("{precision} {name}"), &values, &torch[name], limit);
            assert_near(&format!("{precision} {name} (exact)"), &values, &reference.exact[name], limit);
        }
    }
}

#[test]
fn a6_convolution_and_linear_see_half_and_everything_that_is_kept_is_f32() {
    let device = Device::flex().autodiff();
    for precision in HALVES {
        let net = Small::new(&device);
        let copy = Autocast::new(precision).module(&net).unwrap();
        let half = half(precision);
        for (path, dtype) in dtypes(&copy) {
            let expected = if path.starts_with("norm.") { DType::F32 } else { half };
            assert_eq!(dtype, expected, "{path}");
        }
        let x = copy.conv.forward(match_dtype(Small::images(&device), &copy.conv.weight.val()));
        assert_eq!(x.dtype(), half, "the convolution computes in half");
        assert_eq!(copy.norm.forward(x.clone()).dtype(), half, "the norm keeps the type of its input");
        assert_eq!(copy.fc.forward(x.flatten::<2>(0, 2).slice([0..2, 0..4])).dtype(), half);
        assert!(dtypes(&net).values().all(|dtype| *dtype == DType::F32), "the masters are untouched");
    }
}

#[test]
fn a6_training_in_half_keeps_f32_parameters_and_optimizer_state_and_the_result_of_f32() {
    let device = Device::flex().autodiff();
    let train = |precision| {
        let (mut net, mut optimizer) = (Small::new(&device), crate::model::optimizer());
        let autocast = Autocast::new(precision);
        for _step in 0..10 {
            let copy = autocast.module(&net).unwrap();
            let loss = copy.loss(copy.forward(Small::images(&device)));
            let gradients = GradientsParams::from_grads(loss.backward(), &net);
            assert_eq!(gradients.len(), 5);
            assert_eq!(gradients.get::<4>(net.conv.weight.id).unwrap().dtype(), DType::F32);
            net = optimizer.step(0.1, net, gradients);
        }
        assert!(dtypes(&net).values().all(|dtype| *dtype == DType::F32));
        (parameters(&net), optimizer.into_bytes().unwrap())
    };
    let (exact, _) = train(Precision::F32);
    for precision in HALVES {
        let (found, state) = train(precision);
        let names =
            |name: &str| state.windows(name.len()).filter(|window| *window == name.as_bytes()).count();
        // One velocity for each parameter; the record tells each tensor's type.
        assert_eq!((names("F32"), names("F16")), (5, 0));
        assert_near(&precision.to_string(), &found, &exact, 4.0 * rounding(precision));
    }
}

#[test]
fn a_policy_of_f32_changes_no_bit() {
    let device = Device::flex().autodiff();
    let net = Small::new(&device);
    let copy = Autocast::new(Precision::F32).module(&net).unwrap();
    let loss = copy.loss(copy.forward(Small::images(&device)));
    let expected = net.loss(net.forward(Small::images(&device)));
    let gradient = |loss: Tensor<1>| values(net.conv.weight.grad(&loss.backward()).unwrap());
    assert_eq!(gradient(loss), gradient(expected));
}

#[test]
fn the_gradient_of_a_cast_is_the_f32_gradient_within_half_rounding() {
    let device = Device::flex().autodiff();
    let net = Net::new(&device);
    let run = |net: &Net, autocast: Option<&Autocast>| {
        let copy = autocast.map_or_else(|| net.clone(), |autocast| autocast.module(net).unwrap());
        let input = match_dtype(rows(0, 8, &device), &copy.first.weight.val());
        let grads = widen(copy.forward(input, true)).powi_scalar(2).mean().backward();
        values(net.first.weight.grad(&grads).unwrap())
    };
    let exact = run(&net, None);
    for precision in HALVES {
        let found = run(&net, Some(&Autocast::new(precision)));
        assert_near(&precision.to_string(), &found, &exact, 4.0 * rounding(precision));
    }
}

#[test]
fn the_gradients_of_a_weight_used_twice_are_summed_in_the_master() {
    #[derive(Module, Debug)]
    struct Tied {
        embedding: Embedding,
        output: Linear,
    }
    let device = Device::flex().autodiff();
    let embedding = EmbeddingConfig::new(4, 4).init(&device);
    let output = Linear { weight: embedding.weight.clone(), bias: None };
    let tied = Tied { embedding, output };
    let gradient = |tied: &Tied, master: &Tied| {
        let tokens = Tensor::<2, Int>::from_data([[0, 2, 3]], &device);
        let logits = widen(tied.output.forward(tied.embedding.forward(tokens)));
        values(master.embedding.weight.grad(&logits.powi_scalar(2).sum().backward()).unwrap())
    };
    let copy = Autocast::new(Precision::BF16).module(&tied).unwrap();
    assert_eq!(copy.embedding.weight.id, copy.output.weight.id);
    assert_near(
        "gradient",
        &gradient(&copy, &tied),
        &gradient(&tied, &tied),
        4.0 * rounding(Precision::BF16),
    );
}

#[test]
fn named_paths_stay_in_full_precision() {
    let device = Device::flex().autodiff();
    let net = Small::new(&device);
    let autocast =
        |path: &str| AutocastConfig::new(Precision::BF16).with_full_precision_paths(vec![path.into()]).init();
    for path in ["fc", "fc.weight", "f*.weight", "*"] {
        let copy = autocast(path).module(&net).unwrap();
        assert_eq!(copy.fc.weight.val().dtype(), DType::F32, "{path}");
        let logits = copy.forward(Small::images(&device));
        assert_eq!(logits.dims(), [5, 3], "a forward that matches types runs under every policy");
    }
    let error = autocast("fc.wieght").module(&net).unwrap_err();
    assert_eq!(
        error.to_string(),
        "full_precision_paths: `fc.wieght` names no parameter of the model; the nearest are `fc.weight`, `fc.bias`, \
         `conv.weight`"
    );
    assert!(matches!(autocast("fd").check(&net, &device), Err(Error::AutocastPath { .. })));
}

#[test]
fn burns_own_norm_layers_take_half_input_within_half_rounding_of_f32() {
    #[derive(Module, Debug)]
    struct Norms {
        layer: LayerNorm,
        group: GroupNorm,
        instance: InstanceNorm,
        rms: RmsNorm,
    }
    let device = Device::flex().autodiff();
    let norms = Norms {
        layer: LayerNormConfig::new(6).init(&device),
        group: GroupNormConfig::new(2, 4).init(&device),
        instance: InstanceNormConfig::new(4).init(&device),
        rms: RmsNormConfig::new(6).init(&device),
    };
    let run = |norms: &Norms, input: Tensor<3>| {
        [
            norms.layer.forward(input.clone()),
            norms.group.forward(input.clone()),
            norms.instance.forward(input.clone()),
            norms.rms.forward(input),
        ]
    };
    let input = table([3, 4, 6], 0.2, 0.3, &device);
    let exact = run(&norms, input.clone()).map(values);
    for precision in HALVES {
        let autocast = Autocast::new(precision);
        autocast.check(&norms, &device).unwrap();
        let outputs = run(&autocast.module(&norms).unwrap(), autocast.input(input.clone()));
        for (output, exact) in outputs.into_iter().zip(&exact) {
            assert_eq!(output.dtype(), half(precision));
            assert_near(&precision.to_string(), &values(widen(output)), exact, 3.0 * rounding(precision));
        }
    }
}

#[test]
fn layers_that_cannot_take_half_input_are_refused_before_the_first_step() {
    #[derive(Module, Debug)]
    struct Refused {
        norms: Vec<BatchNorm>,
        rnn: Gru,
    }
    let device = Device::flex().autodiff();
    let norm = || BatchNormConfig::new(2).init(&device);
    let model = Refused { norms: vec![norm(), norm()], rnn: GruConfig::new(2, 2, true).init(&device) };
    let autocast = |paths: &[&str]| {
        let paths = paths.iter().map(|path| path.to_string()).collect();
        AutocastConfig::new(Precision::F16).with_full_precision_paths(paths).init()
    };
    let error = autocast(&[]).check(&model, &device).unwrap_err();
    assert!(
        matches!(&error, Error::AutocastLayer { layer, path, others: 2, .. } if layer == "BatchNorm" && path == "norms.0"),
        "{error}"
    );
    assert!(error.to_string().contains("use burn_nccl's SyncBatchNorm"), "{error}");
    let error = autocast(&["norms"]).check(&model, &device).unwrap_err().to_string();
    assert!(error.starts_with("Gru at `rnn` cannot take f16 input: its first state is f32"), "{error}");
    let error = autocast(&[]).check(&norm(), &device).unwrap_err().to_string();
    assert!(error.starts_with("BatchNorm, the model itself, cannot take f16 input"), "{error}");
    let kept = autocast(&["norms.*", "rnn"]).module(&model).unwrap();
    assert!(dtypes(&kept).values().all(|dtype| *dtype == DType::F32));
    assert_eq!(kept.norms[0].forward(Tensor::<2>::ones([3, 2], &device)).dtype(), DType::F32);
}

#[test]
fn frozen_parameters_are_cast_without_a_gradient_and_running_statistics_never() {
    #[derive(Module, Debug)]
    struct Own {
        frozen: Linear,
        mean: RunningState<Tensor<1>>,
        free: Linear,
    }
    for device in [Device::flex().autodiff(), Device::flex()] {
        let linear = || LinearConfig::new(2, 2).init(&device);
        let mean = RunningState::new(Tensor::<1>::ones([2], &device));
        let own = Own { frozen: linear().freeze(), mean, free: linear() };
        let copy = Autocast::new(Precision::F16).module(&own).unwrap();
        let found = dtypes(&copy);
        assert_eq!((found["frozen.weight"], found["free.bias"]), (DType::F16, DType::F16));
        assert_eq!((found["mean"], dtypes(&own)["mean"]), (DType::F32, DType::F32));
        assert!(!copy.frozen.weight.val().is_tracked());
        own.mean.update(Tensor::full([2], 3.0, &device));
        assert_eq!(values(copy.mean.value_sync()), [3.0, 3.0], "the copy shares the statistics");
    }
}

#[test]
fn a_model_on_a_plain_device_is_cast_for_evaluation() {
    let net = Small::new(&Device::flex().autodiff()).valid();
    let images = Small::images(&Device::flex());
    let exact = values(net.forward(images.clone()));
    for precision in HALVES {
        let copy = Autocast::new(precision).module(&net).unwrap();
        assert_near(
            &precision.to_string(),
            &values(copy.forward(images.clone())),
            &exact,
            4.0 * rounding(precision),
        );
        assert_eq!(dtypes(&net)["norm.running_mean"], DType::F32);
    }
}

#[test]
fn gradient_checkpointing_changes_no_bit() {
    let run = |device: Device| {
        let net = Small::new(&device);
        let copy = Autocast::new(Precision::BF16).module(&net).unwrap();
        let grads = copy.loss(copy.forward(Small::images(&device))).backward();
        values(net.conv.weight.grad(&grads).unwrap())
    };
    assert_eq!(run(Device::flex().autodiff()), run(Device::flex().autodiff().gradient_checkpointing()));
}

#[test]
fn two_ranks_in_half_equal_one_process_on_the_joined_batch() {
    let device = Device::flex().autodiff();
    let autocast = &Autocast::new(Precision::BF16);
    let train = |group: &burn_nccl::ProcessGroup, per_rank: usize| {
        let (mut ddp, mut net) =
            DistributedDataParallel::new(Net::new(&device), group, &DdpConfig::new()).unwrap();
        let mut scaler = GradScalerConfig::new().init().unwrap().with_group(group);
        let mut optimizer = crate::model::optimizer();
        for step in 0..4 {
            let start = (step * group.world_size() + group.rank()) * per_rank;
            let copy = autocast.module(&ddp.hook(&net).unwrap()).unwrap();
            let output = copy.forward(autocast.input(rows(start, start + per_rank, &device)), true);
            let loss = scaler.scale(widen(output).powi_scalar(2).mean());
            let gradients = ddp.backward(&loss, &net).unwrap();
            assert_eq!(gradients.get::<2>(net.first.weight.id).unwrap().dtype(), DType::F32);
            net = scaler.step(&mut optimizer, 0.1, net, gradients).unwrap();
            scaler.update().unwrap();
        }
        assert_eq!(scaler.skipped_steps(), 0);
        parameters(&net)
    };
    let joined = on_ranks(1, |group| train(&group, 6)).remove(0);
    let found = on_ranks(2, |group| train(&group, 3));
    assert_eq!(found[0], found[1]);
    assert_close(&found[0], &joined, rounding(Precision::BF16));
    let exact = crate::model::alone(&device, 4, 6);
    assert_close(&joined, &exact, 2.0 * rounding(Precision::BF16));
}

#[test]
fn checking_draws_no_random_numbers() {
    let device = Device::flex().autodiff();
    let net = Small::new(&device);
    let draw = |check: bool| {
        device.seed(3);
        if check {
            Autocast::new(Precision::F16).check(&net, &device).unwrap();
        }
        values(Tensor::<1>::random([4], burn::tensor::Distribution::Default, &device))
    };
    // The generator is the process's, so that another test may draw in between; not every time.
    assert!((0..50).any(|_| draw(true) == draw(false)));
}

#[cfg(feature = "ndarray")]
#[test]
fn a_backend_without_half_is_refused_by_op_type_and_name() {
    let device = Device::ndarray().autodiff();
    let net = Small::new(&device);
    let error = Autocast::new(Precision::BF16).check(&net, &device).unwrap_err().to_string();
    assert_eq!(
        error,
        "the backend `ndarray` cannot run conv2d in bf16: the backend has no arithmetic in that type; train in f32 or on \
         a backend that can, or keep the layers that need it in f32 by full_precision_paths"
    );
    Autocast::new(Precision::F32).check(&net, &device).unwrap();
}

#[test]
fn widening_and_matching_leave_alone_what_needs_no_cast() {
    let device = Device::flex();
    let double = Tensor::<1>::from_data(TensorData::from([1.5_f64]), (&device, DType::F64));
    assert_eq!(widen(double.clone()).dtype(), DType::F64);
    assert_eq!(Autocast::new(Precision::F16).input(double.clone()).dtype(), DType::F64);
    let single = Tensor::<1>::ones([1], &device);
    assert_eq!(match_dtype(single.clone(), &double).dtype(), DType::F64);
    let half = Autocast::new(Precision::BF16).input(single);
    assert_eq!((half.dtype(), widen(half).dtype()), (DType::BF16, DType::F32));
}

/// A mapper for a test of the record: none of the copies may be trained by mistake.
struct Count(usize);

impl ModuleMapper for Count {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        self.0 += usize::from(param.val().is_require_grad());
        param
    }
}

#[test]
fn the_copy_has_no_leaf_but_the_kept_parameters() {
    let device = Device::flex().autodiff();
    let mut count = Count(0);
    drop(Autocast::new(Precision::BF16).module(&Small::new(&device)).unwrap().map(&mut count));
    assert_eq!(count.0, 2, "gamma and beta are the masters themselves");
}

#[test]
fn ranks_with_other_policies_learn_of_it_before_the_first_step() {
    let outcomes = on_ranks(3, |group| {
        let same = Autocast::new(Precision::BF16).check_ranks(&group).is_ok();
        let paths = if group.rank() == 2 { vec!["fc".to_string()] } else { vec![] };
        let policy = AutocastConfig::new(Precision::BF16).with_full_precision_paths(paths).init();
        (same, policy.check_ranks(&group).unwrap_err().to_string())
    });
    for (same, error) in outcomes {
        assert!(same);
        assert!(error.contains("rank 2") && error.contains("fc in full precision"), "{error}");
    }
}

#[test]
fn in_f32_nothing_is_refused_and_nothing_cast_but_paths_are_still_checked() {
    let device = Device::flex().autodiff();
    let layers = (BatchNormConfig::new(2).init(&device), GruConfig::new(2, 2, true).init(&device));
    let policy = Autocast::new(Precision::F32);
    policy.check(&layers, &device).unwrap();
    assert_eq!(policy.module(&layers).unwrap().0.gamma.val().dtype(), DType::F32);
    let paths = vec!["no.such".to_string()];
    let error =
        AutocastConfig::new(Precision::F32).with_full_precision_paths(paths).init().check(&layers, &device);
    assert!(matches!(error, Err(Error::AutocastPath { .. })));
}
