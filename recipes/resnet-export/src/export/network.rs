//! The network to export: which one it is, and its weights.

use std::path::Path;

use burn::module::{Module, Param};
use burn::tensor::{DType, Tensor};
use burn_nccl_models::{Depth, ResNet, ResNetConfig, Stem};
use burn_nccl_records::{Architecture, Error, LoadDType, LoadOptions, OpenOptions, Source, load_source};
use clap::Args;
use recipe_common::device::DeviceChoice;
use recipe_common::{RecipeError, Result};

use super::parameters::{Look, visit};
use super::run_settings::RunSettings;

/// Height and width of the ImageNet stem's kernel.
const IMAGENET_KERNEL: usize = 7;

/// The network, where the weights do not tell.
#[derive(Args)]
pub(super) struct NetworkOptions {
    /// The network of bare weights, such as resnet50; runs, checkpoints and self-describing files tell it
    #[arg(long, value_name = "MODEL")]
    model: Option<Depth>,
    /// The first layers of bare weights, imagenet or cifar [default: by the shape of the first convolution]
    #[arg(long, value_name = "STEM")]
    stem: Option<Stem>,
    /// Number of classes, to be sure: the weights tell it
    #[arg(long, value_name = "N")]
    num_classes: Option<usize>,
}

/// Weights of a known network, not loaded yet.
pub(super) struct Found {
    pub(super) source: Source,
    pub(super) config: ResNetConfig,
    pub(super) run: RunSettings,
}

/// Opens `path` and finds out which network it is: as the file says, or its run, or the options.
///
/// # Errors
/// Where none of them tells, or one contradicts another.
pub(super) fn find(path: &Path, options: &NetworkOptions) -> Result<Found> {
    let what = || format!("cannot export {}", path.display());
    let source =
        Source::open(path, &OpenOptions::default()).map_err(|error| RecipeError::records(what(), error))?;
    let run = RunSettings::of(&source);
    let config = match source.architecture::<ResNetConfig>() {
        Ok(config) => config,
        Err(Error::NoArchitecture { .. }) => assemble(&source, options, &run)
            .map_err(|(why, remedy)| RecipeError::usage(what(), why, remedy))?,
        Err(error) => return Err(RecipeError::records(what(), error)),
    };
    contradiction(options, &config, classes(&source)).map_or(Ok(()), |why| {
        Err(RecipeError::usage(what(), why, "leave the option out, or give the file that is meant"))
    })?;
    Ok(Found { source, config, run })
}

/// The config of weights that carry none.
fn assemble(
    source: &Source,
    options: &NetworkOptions,
    run: &RunSettings,
) -> Result<ResNetConfig, (String, &'static str)> {
    let depth = options.model.or(run.model).ok_or_else(|| {
        let why = "it holds weights and does not say of which network".to_owned();
        (why, "give --model, such as --model resnet50")
    })?;
    let no_tensor =
        |name| (format!("it has no tensor `{name}`, as a {depth} has"), "check --from and --model");
    let first = shape(source, "conv1.weight").ok_or_else(|| no_tensor("conv1.weight"))?;
    let &[_, input_channels, _, kernel] = first else { return Err(no_tensor("conv1.weight")) };
    let told = if kernel == IMAGENET_KERNEL { Stem::ImageNet } else { Stem::Cifar };
    let config = ResNetConfig::new(depth, classes(source).ok_or_else(|| no_tensor("fc.bias"))?)
        .with_stem(options.stem.or(run.stem).unwrap_or(told))
        .with_norm(run.norm)
        .with_input_channels(input_channels);
    config.check().map_err(|why| (why, "check --from and --model"))?;
    Ok(config)
}

/// What an option says that the network is not.
fn contradiction(options: &NetworkOptions, config: &ResNetConfig, classes: Option<usize>) -> Option<String> {
    let classes = classes.unwrap_or(config.num_classes);
    if let Some(model) = options.model.filter(|&model| model != config.depth) {
        return Some(format!("it is a {}, and --model says {model}", config.depth));
    }
    if let Some(stem) = options.stem.filter(|&stem| stem != config.stem) {
        return Some(format!("its stem is {}, and --stem says {stem}", config.stem));
    }
    if let Some(given) = options.num_classes.filter(|&given| given != classes) {
        return Some(format!("it tells {classes} classes apart, and --num-classes says {given}"));
    }
    None
}

fn classes(source: &Source) -> Option<usize> {
    shape(source, "fc.bias").and_then(|shape| shape.first().copied())
}

/// The shape of the network's tensor `name`, which wrappers may have put a prefix before. The shortest name is meant:
/// blocks have a `conv1.weight` too.
fn shape<'a>(source: &'a Source, name: &str) -> Option<&'a [usize]> {
    let is_meant = |found: &str| {
        found.strip_suffix(name).is_some_and(|prefix| prefix.is_empty() || prefix.ends_with('.'))
    };
    let tensors = source.tensors().iter().filter(|tensor| is_meant(tensor.name()));
    tensors.min_by_key(|tensor| tensor.name().len()).map(|tensor| tensor.shape())
}

impl Found {
    /// Loads the weights as f32 on the CPU, in the network's evaluation form.
    ///
    /// # Errors
    /// Where they are those of another network, or not finite.
    pub(super) fn load(&self) -> Result<ResNet> {
        let cpu = DeviceChoice::Cpu.select(0, 1)?.device;
        let network = Architecture::init(&self.config, &cpu);
        let options = LoadOptions::default().with_dtype(LoadDType::To(DType::F32));
        let (network, _) = load_source(&network, &self.source, &options).map_err(|error| {
            let (path, config) = (self.source.path().display(), &self.config);
            let what = format!("{path} is no {} with {} classes", config.depth, config.num_classes);
            RecipeError::records(what, error)
        })?;
        let network = network.valid();
        match not_finite(&network) {
            None => Ok(network),
            Some((parameter, value)) => Err(RecipeError::failure(
                format!("cannot export {}", self.source.path().display()),
                format!("`{parameter}` holds {value}: the training has diverged, or the file is damaged"),
                "export an earlier checkpoint",
            )),
        }
    }
}

/// The first parameter with a value that is no number, and that value.
fn not_finite(network: &ResNet) -> Option<(String, f32)> {
    #[derive(Default)]
    struct NotFinite(Option<(String, f32)>);
    impl Look for NotFinite {
        fn look<const D: usize>(&mut self, path: &str, param: &Param<Tensor<D>>) {
            if self.0.is_none() {
                let value = param.val().into_data().iter::<f32>().find(|value| !value.is_finite());
                self.0 = value.map(|value| (path.to_owned(), value));
            }
        }
    }
    let mut first = NotFinite::default();
    visit(network, &mut first);
    first.0
}
