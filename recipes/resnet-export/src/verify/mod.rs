//! `verify`: whether an export computes what the network does.

mod python;
mod rows;

use std::path::{Path, PathBuf};
use std::time::Duration;

use burn_nccl_datasets::DataSource;
use burn_nccl_inference::{Engine, EngineChoice, EngineKind, Error, WeightType, load, present};
use clap::Args;
use recipe_common::output::print;
use recipe_common::{RecipeError, Result};

use self::rows::{Images, Row, run_all, table};
use crate::burn_engine::BurnEngine;
use crate::comparison::{self, BATCHES, Difference};
use crate::engine_options::{EngineMeans, in_options, inference};
use crate::export::tolerance;
use crate::package::{BURN_FILE, FILES, MODEL_FILE, Package, check_files, read_manifest};
use crate::test_images::{TestImages, random_values};

/// Check an export: its files by their hashes, and its network by every engine that is here against Burn, on test images and
/// on random ones, in batches of 1, 3 and 8. The exit code is 1 where something differs.
#[derive(Args)]
pub(crate) struct Options {
    /// The folder that export has written
    #[arg(long, value_name = "DIR")]
    from: PathBuf,
    /// Images to run: digits, cifar10:PATH, cifar100:PATH or folder:PATH [default: those of the run, where they are here]
    #[arg(long, value_name = "DATA")]
    data: Option<DataSource>,
    /// How many test images, and as many random ones
    #[arg(long, value_name = "N", default_value_t = 24, value_parser = clap::value_parser!(u16).range(1..))]
    images: u16,
    /// An engine to run: native, onnxruntime or tract; once or more [default: all that are here]
    #[arg(long, value_name = "ENGINE")]
    engine: Vec<EngineChoice>,
    #[command(flatten)]
    means: EngineMeans,
    /// Largest difference from Burn's logits, in parts of the largest one [default: 1e-4, with f16 1e-2, with int8 0.2]
    #[arg(long, value_name = "X", value_parser = tolerance)]
    tolerance: Option<f64>,
    /// A Python with onnx and onnxruntime: checks the file with onnx.checker and runs it there as well
    #[arg(long, value_name = "PATH")]
    against_python: Option<PathBuf>,
    /// Seconds after which that Python is ended
    #[arg(long, value_name = "N", default_value_t = 300, value_parser = clap::value_parser!(u64).range(1..))]
    timeout_seconds: u64,
}

pub(crate) fn run(options: &Options) -> Result<()> {
    let folder = &options.from;
    check_files(folder, &read_manifest(folder, &FILES)?, |_| true)?;
    let package = Package::open(folder)?;
    let mut burn = BurnEngine::open(&folder.join(BURN_FILE), package.preprocess.input)?;
    let engines = engines(options, &package)?;
    let images = images(options, &package, &mut burn)?;
    let mut rows = compare(&mut burn, &package, &images)?;
    // Its memory is of use to the others.
    drop(burn);
    for mut engine in engines {
        rows.extend(compare(engine.as_mut(), &package, &images)?);
    }
    if let Some(python) = &options.against_python {
        rows.extend(against_python(python, options, &package, &images)?);
    }
    judge(options, &package, &rows)
}

/// The engines that are asked for, or all that are here; of the others it is said why not.
fn engines(options: &Options, package: &Package) -> Result<Vec<Box<dyn Engine>>> {
    let engine_options = options.means.options();
    let asked: Vec<EngineKind> = options.engine.iter().filter_map(only).collect();
    if !asked.is_empty() {
        let open = |kind: &EngineKind| load(&package.onnx, EngineChoice::Only(*kind), &engine_options);
        let failed = |error| inference("cannot run the export", &error);
        return asked.iter().map(|kind| open(kind).map_err(failed)).collect();
    }
    let mut engines = Vec::new();
    for (kind, present) in present(&engine_options) {
        match present.and_then(|()| load(&package.onnx, EngineChoice::Only(kind), &engine_options)) {
            Ok(engine) => engines.push(engine),
            Err(error @ (Error::Unavailable { .. } | Error::Unsupported { .. })) => {
                print(&format!("without {kind}: {}\n", in_options(&error)))?;
            }
            Err(error) => return Err(inference(format!("{kind} cannot run the export"), &error)),
        }
    }
    if engines.is_empty() && options.against_python.is_none() {
        let remedy = "give --onnxruntime the path of its library, or --against-python that of a Python";
        return Err(RecipeError::failure("cannot verify", "no engine is here", remedy));
    }
    Ok(engines)
}

fn only(choice: &EngineChoice) -> Option<EngineKind> {
    match choice {
        EngineChoice::Auto => None,
        EngineChoice::Only(kind) => Some(*kind),
    }
}

/// Test images, where there are some, and random ones, with Burn's logits of each alone.
fn images(options: &Options, package: &Package, burn: &mut BurnEngine) -> Result<Vec<Images>> {
    let (count, image) = (usize::from(options.images), package.onnx.signature().image_values());
    let mut sets = vec![("random", random_values(count * image))];
    match test_images(options, package)? {
        Ok(test) => {
            let test = test.spread(count);
            sets.insert(0, ("test", test.prepare(0..test.len(), &package.preprocess)?.values));
        }
        Err(why) => print(&format!("without test images: {why}\n"))?,
    }
    let with_reference = |(name, values): (&'static str, Vec<f32>)| {
        let reference = run_all(burn, &values, image, 1)?;
        Ok(Images { name, values, reference })
    };
    sets.into_iter().map(with_reference).collect()
}

/// The test images, or why there are none.
///
/// # Errors
/// Where those that were asked for are not there.
fn test_images(options: &Options, package: &Package) -> Result<Result<TestImages, String>> {
    if let Some(data) = &options.data {
        return TestImages::open(data).map(Ok);
    }
    let Some(data) = &package.info.data else {
        return Ok(Err("the export does not say which; give --data".into()));
    };
    let data: DataSource = match data.parse() {
        Ok(data) => data,
        Err(error) => return Ok(Err(format!("{error}"))),
    };
    Ok(TestImages::open(&data).map_err(|error| format!("{error}")))
}

/// An engine on all images in batches of each size.
fn compare(engine: &mut dyn Engine, package: &Package, images: &[Images]) -> Result<Vec<Row>> {
    let signature = package.onnx.signature();
    let mut rows = Vec::new();
    for images in images {
        for batch in BATCHES {
            let logits = run_all(engine, &images.values, signature.image_values(), batch)?;
            let difference = Difference::of(&images.reference, &logits, signature.classes);
            rows.push(Row { engine: engine.name(), images: images.name, batch, difference });
        }
    }
    Ok(rows)
}

fn against_python(
    python: &Path,
    options: &Options,
    package: &Package,
    images: &[Images],
) -> Result<Vec<Row>> {
    let signature = package.onnx.signature();
    let mut rows = Vec::new();
    for images in images {
        let count = images.values.len() / signature.image_values();
        let found = python::run(
            python,
            &python::Job {
                model: &options.from.join(MODEL_FILE),
                shape: [count, signature.channels, signature.height, signature.width],
                images: &images.values,
                classes: signature.classes,
                batches: &BATCHES,
                threads: options.means.threads.map_or(0, usize::from),
                deadline: Duration::from_secs(options.timeout_seconds),
            },
        )?;
        if rows.is_empty() {
            print(&format!("onnx.checker {} has no objection\n", found.onnx))?;
        }
        rows.extend(BATCHES.into_iter().zip(&found.logits).map(|(batch, logits)| {
            let difference = Difference::of(&images.reference, logits, signature.classes);
            Row { engine: found.engine.clone(), images: images.name, batch, difference }
        }));
    }
    Ok(rows)
}

/// Prints what was found.
///
/// # Errors
/// Where something is above the tolerance.
fn judge(options: &Options, package: &Package, rows: &[Row]) -> Result<()> {
    let weights = package.info.weights.parse::<WeightType>().unwrap_or_default();
    let tolerance = options.tolerance.unwrap_or(comparison::tolerance(weights));
    print(&table(rows, tolerance))?;
    let wrong: Vec<_> = rows.iter().filter(|row| !row.fits(tolerance)).collect();
    let Some(first) = wrong.first() else {
        return print(&format!(
            "{}: whole, and no logit is further from Burn's than {tolerance:.0e} of the largest\n",
            options.from.display()
        ));
    };
    Err(RecipeError::failure(
        format!("{} does not compute what the network does", options.from.display()),
        format!(
            "{} of {} rows are too far from Burn, the first that of {}",
            wrong.len(),
            rows.len(),
            first.engine
        ),
        "export the network again; an engine that is alone with it may be at fault",
    ))
}
