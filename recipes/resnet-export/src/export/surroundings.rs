//! What stands around a network: the names of its classes, the preparation of its images, images to test it with.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use burn_nccl_datasets::DataSource;
use burn_nccl_models::ResNetConfig;
use clap::Args;
use clap::builder::{RangedU64ValueParser, TypedValueParser};
use recipe_common::{RecipeError, Result};

use super::run_settings::RunSettings;
use crate::package::{MAX_SIDE, Preprocess, parse_labels};
use crate::test_images::TestImages;

/// More than the names of any data's classes.
const MAX_LABELS_BYTES: u64 = 16 << 20;

/// The images of the network, where no run tells, or they are elsewhere now.
#[derive(Args)]
pub(super) struct DataOptions {
    /// Images: digits, cifar10:PATH, cifar100:PATH or folder:PATH. They give the transforms, the names of the classes and
    /// the accuracy [default: the run's; without a run ImageNet's transforms, and no accuracy]
    #[arg(long, value_name = "DATA")]
    data: Option<DataSource>,
    /// Height and width of the network's images in pixels [default: the run's]
    #[arg(long, value_name = "N", value_parser = side())]
    image_size: Option<usize>,
    /// A file with the name of each class, one a line [default: the names of the data's classes]
    #[arg(long, value_name = "FILE")]
    labels: Option<PathBuf>,
    /// Test images of which the accuracy is taken, spread evenly over all of them; 0 for none
    #[arg(long, value_name = "N", default_value_t = 1000)]
    test_images: usize,
}

fn side() -> impl TypedValueParser<Value = usize> {
    RangedU64ValueParser::<u64>::new().range(1..=MAX_SIDE as u64).map(|side| side as usize)
}

/// What an export writes beside the network.
pub(super) struct Surroundings {
    pub(super) data: Option<DataSource>,
    pub(super) labels: Vec<String>,
    pub(super) preprocess: Preprocess,
    /// None where there are none or none are wanted.
    pub(super) images: Option<TestImages>,
}

impl Surroundings {
    /// Brings together what the options and the run say.
    ///
    /// # Errors
    /// Where something is missing, cannot be read, or does not fit the network.
    pub(super) fn find(options: &DataOptions, run: &RunSettings, network: &ResNetConfig) -> Result<Self> {
        let data = options.data.clone().or_else(|| run.data.clone());
        let preprocess = preprocess(options, run, data.as_ref(), network)?;
        let (classes, labels) = (network.num_classes, options.labels.as_deref());
        let labels = labels.map(|file| read_labels(file, classes)).transpose()?;
        let images = match (&data, &labels) {
            (None, None) => {
                return Err(missing(
                    "the names of its classes are not known",
                    "give --labels FILE, or --data",
                ));
            }
            (None, Some(_)) => None,
            (Some(data), _) => open_images(data, options, labels.is_some())?,
        };
        if let (Some(images), Some(data)) = (&images, &data) {
            check_classes(data, images.class_names().len(), classes)?;
        }
        let of_data = images.as_ref().map(TestImages::class_names).unwrap_or_default();
        let labels = labels.unwrap_or_else(|| of_data.to_vec());
        let images =
            images.map(|images| images.spread(options.test_images)).filter(|images| images.len() > 0);
        Ok(Self { data, labels, preprocess, images })
    }
}

fn preprocess(
    options: &DataOptions,
    run: &RunSettings,
    data: Option<&DataSource>,
    network: &ResNetConfig,
) -> Result<Preprocess> {
    let size = options.image_size.or(run.image_size).ok_or_else(|| {
        missing("the size of its images is not known", "give --image-size, such as --image-size 224")
    })?;
    // What a folder of photographs is prepared by is what the networks for ImageNet want.
    let photographs = DataSource::Folder(PathBuf::new());
    let preprocess = Preprocess {
        input: [network.input_channels, size, size],
        transforms: data.unwrap_or(&photographs).eval_transforms(size),
    };
    preprocess.check().map_err(|why| {
        RecipeError::usage("cannot prepare images for the network", why, "give the --data it was trained on")
    })?;
    Ok(preprocess)
}

/// The test images; none where the run's are not here, and nothing but the accuracy is lost by it.
fn open_images(data: &DataSource, options: &DataOptions, has_labels: bool) -> Result<Option<TestImages>> {
    match TestImages::open(data) {
        Ok(images) => Ok(Some(images)),
        Err(error) if options.data.is_none() && has_labels => {
            log::warn!("{error}: the accuracy is not measured");
            Ok(None)
        }
        Err(error) if options.data.is_none() => Err(RecipeError {
            remedy: "give --data with the place of the run's images, or --labels FILE".into(),
            ..error
        }),
        Err(error) => Err(error),
    }
}

fn check_classes(data: &DataSource, found: usize, expected: usize) -> Result<()> {
    if found == expected {
        return Ok(());
    }
    Err(RecipeError::usage(
        format!("the images of {data} are not those of the network"),
        format!("they have {found} classes, and the network tells {expected} apart"),
        "give the --data it was trained on",
    ))
}

fn read_labels(file: &Path, classes: usize) -> Result<Vec<String>> {
    let mut text = String::new();
    let read = File::open(file).and_then(|open| open.take(MAX_LABELS_BYTES).read_to_string(&mut text));
    read.map_err(|error| RecipeError::file("read", file, error))?;
    let named = |error: RecipeError| RecipeError { what: format!("cannot use {}", file.display()), ..error };
    parse_labels(&text, classes).map_err(named)
}

fn missing(cause: &str, remedy: &str) -> RecipeError {
    RecipeError::usage("cannot export the network", cause, remedy)
}
