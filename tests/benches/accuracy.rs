//! What a normalisation, an element type or a communication hook does to the accuracy: trains the digits to the end, several seeds each.
//!
//! ```text
//! cargo build --release --workspace --bins
//! cargo bench --workspace --bench accuracy -- norm|precision PROGRAMS-FOLDER [PICTURE.svg]
//! cargo bench --workspace --bench accuracy -- communication
//! ```
//!
//! Cargo runs a bench in its package's folder, so give whole paths.
//!
//! Prints a table in Markdown, and draws the test accuracy after each epoch.

use std::error::Error;
use std::path::Path;
use std::process::Command;

use burn_nccl::ddp::{Communication, PowerSgdConfig};
use burn_nccl_tests::digits::Digits;
use plotters::prelude::*;
use serde_json::Value;

type AnyError = Box<dyn Error>;

const SEEDS: u64 = 3;
/// Passes over the digits with each communication hook.
const EPOCHS: usize = 20;
/// The step at which PowerSGD begins there: a tenth of the training.
const COMPRESSED_FROM: usize = 92;

/// One way to train.
struct Case {
    name: &'static str,
    program: &'static str,
    args: &'static [&'static str],
    color: RGBColor,
}

/// Two ranks with batches too small for batch normalisation, and what they are measured against.
const NORM: [Case; 3] = [
    Case {
        name: "2 ranks x 4 images, local batch norm",
        program: "recipe-resnet-ddp",
        args: &["--nproc-per-node=2", "--batch-size=4", "--epochs=6", "--norm=batch"],
        color: RGBColor(217, 95, 14),
    },
    Case {
        name: "2 ranks x 4 images, SyncBatchNorm",
        program: "recipe-resnet-ddp",
        args: &["--nproc-per-node=2", "--batch-size=4", "--epochs=6", "--norm=sync-batch"],
        color: RGBColor(31, 111, 180),
    },
    Case {
        name: "1 process, 8 images",
        program: "recipe-resnet-single",
        args: &["--batch-size=8", "--epochs=6"],
        color: RGBColor(60, 60, 60),
    },
];

const PRECISION: [Case; 3] = [
    Case {
        name: "f32",
        program: "recipe-resnet-amp",
        args: &["--nproc-per-node=2", "--batch-size=32", "--epochs=12", "--precision=f32"],
        color: RGBColor(60, 60, 60),
    },
    Case {
        name: "bf16",
        program: "recipe-resnet-amp",
        args: &["--nproc-per-node=2", "--batch-size=32", "--epochs=12", "--precision=bf16"],
        color: RGBColor(31, 111, 180),
    },
    Case {
        name: "f16 with loss scaling",
        program: "recipe-resnet-amp",
        args: &["--nproc-per-node=2", "--batch-size=32", "--epochs=12", "--precision=f16"],
        color: RGBColor(217, 95, 14),
    },
];

/// Test accuracy in percent after each epoch, and the seconds of the run.
struct Trained {
    accuracies: Vec<f64>,
    seconds: f64,
    skipped: Option<u64>,
}

fn main() -> Result<(), AnyError> {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|argument| argument != "--bench").collect();
    if arguments.first().is_some_and(|what| what == "communication") {
        return communication();
    }
    let [what, programs, picture @ ..] = arguments.as_slice() else {
        return Err("give norm or precision and the folder of the built programs, or communication".into());
    };
    let (title, cases) = match what.as_str() {
        "norm" => ("ResNet-18 on digits, global batch 8", &NORM),
        "precision" => ("ResNet-18 on digits, 2 ranks x 32 images", &PRECISION),
        other => return Err(format!("`{other}` is neither norm nor precision").into()),
    };
    println!("| | test accuracy, seeds 0 to {} | mean | skipped steps | seconds a run |", SEEDS - 1);
    println!("|---|---|---|---|---|");
    let mut curves = Vec::new();
    for case in cases {
        let runs =
            (0..SEEDS).map(|seed| train(case, Path::new(programs), seed)).collect::<Result<Vec<_>, _>>()?;
        let finals: Vec<f64> = runs.iter().filter_map(|run| run.accuracies.last().copied()).collect();
        let each: Vec<String> = finals.iter().map(|accuracy| format!("{accuracy:.2}")).collect();
        let seconds = runs.iter().map(|run| run.seconds).sum::<f64>() / runs.len() as f64;
        let skipped: Option<u64> = runs.iter().map(|run| run.skipped).sum();
        let skipped = skipped.map_or("-".into(), |steps| steps.to_string());
        println!(
            "| {} | {} | {:.2}% | {skipped} | {seconds:.0} |",
            case.name,
            each.join(", "),
            mean(&finals)
        );
        curves.push((case, runs));
    }
    match picture {
        [path, ..] => draw(Path::new(path), title, &curves),
        [] => Ok(()),
    }
}

/// A small classifier by two ranks of this process, with each communication hook.
fn communication() -> Result<(), AnyError> {
    let power_sgd = |rank| PowerSgdConfig::new().with_rank(rank).with_start_step(COMPRESSED_FROM);
    let without = |rank| power_sgd(rank).with_error_feedback(false);
    let cases = [
        ("all-reduce in f32", Communication::AllReduce),
        ("f16", Communication::F16),
        ("bf16", Communication::BF16),
        ("PowerSGD, rank 1", Communication::PowerSgd(power_sgd(1))),
        ("PowerSGD, rank 2", Communication::PowerSgd(power_sgd(2))),
        ("PowerSGD, rank 4", Communication::PowerSgd(power_sgd(4))),
        ("rank 1 without error feedback", Communication::PowerSgd(without(1))),
        ("rank 4 without error feedback", Communication::PowerSgd(without(4))),
    ];
    println!("| | training loss | test accuracy, seeds 0 to {} | mean |", SEEDS - 1);
    println!("|---|---|---|---|");
    for (name, communication) in cases {
        let runs = (0..SEEDS).map(|seed| {
            let digits = Digits { communication: communication.clone(), epochs: EPOCHS, seed };
            digits.train().map(|mut ranks| ranks.swap_remove(0))
        });
        let runs = runs.collect::<Result<Vec<_>, _>>()?;
        let losses: Vec<f64> = runs.iter().map(|run| run.loss).collect();
        let accuracies: Vec<f64> = runs.iter().map(|run| run.accuracy).collect();
        let each: Vec<String> = accuracies.iter().map(|accuracy| format!("{accuracy:.2}")).collect();
        println!("| {name} | {:.4} | {} | {:.2}% |", mean(&losses), each.join(", "), mean(&accuracies));
    }
    Ok(())
}

fn train(case: &Case, programs: &Path, seed: u64) -> Result<Trained, AnyError> {
    let folder = tempfile::tempdir()?;
    let out = folder.path().join("run");
    let output = Command::new(programs.join(case.program))
        .args(["--model=resnet18", "--device=cpu", "--progress=plain"])
        .args([format!("--seed={seed}"), format!("--out={}", out.display())])
        .args(case.args)
        .output()?;
    let text = String::from_utf8(output.stdout)?;
    if !output.status.success() {
        return Err(format!("{}: {}", case.name, String::from_utf8_lossy(&output.stderr)).into());
    }
    // epoch 3: test accuracy 97.32%, test loss 0.1
    let accuracies = text
        .lines()
        .filter_map(|line| line.split_once(": test accuracy ")?.1.split_once('%')?.0.parse().ok())
        .collect();
    let summary: Value = serde_json::from_slice(&std::fs::read(out.join("summary.json"))?)?;
    Ok(Trained {
        accuracies,
        seconds: summary["seconds_total"].as_f64().unwrap_or(f64::NAN),
        skipped: summary["skipped_steps"].as_u64(),
    })
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

/// Thin lines for the seeds, a thick one for their mean.
fn draw(path: &Path, title: &str, curves: &[(&Case, Vec<Trained>)]) -> Result<(), AnyError> {
    let root = SVGBackend::new(path, (900, 480)).into_drawing_area();
    let text = |size: i32| ("sans-serif", size).into_font().color(&RGBColor(60, 60, 60));
    let epochs = curves.iter().flat_map(|(_, runs)| runs).map(|run| run.accuracies.len()).max().unwrap_or(1);
    let all = curves.iter().flat_map(|(_, runs)| runs).flat_map(|run| &run.accuracies);
    // The first epochs would press everything else against the top.
    let lowest = all.fold(95.0, |lowest: f64, &accuracy| lowest.min(accuracy)).max(60.0);
    root.fill(&WHITE).map_err(boxed)?;
    let mut chart = ChartBuilder::on(&root)
        .margin(14)
        .caption(title, text(25))
        .x_label_area_size(50)
        .y_label_area_size(78)
        .build_cartesian_2d(1..epochs, lowest..100.0)
        .map_err(boxed)?;
    chart
        .configure_mesh()
        .disable_x_mesh()
        .light_line_style(TRANSPARENT)
        .bold_line_style(BLACK.mix(0.1))
        .axis_style(BLACK.mix(0.4))
        .label_style(text(17))
        .axis_desc_style(text(19))
        .x_desc("epoch")
        .y_desc("test accuracy")
        .y_label_formatter(&|value| format!("{value:.0} %"))
        .draw()
        .map_err(boxed)?;
    for (case, runs) in curves {
        let color = case.color;
        for run in runs {
            let points = (1..).zip(run.accuracies.iter().copied());
            chart.draw_series(LineSeries::new(points, color.mix(0.35).stroke_width(1))).map_err(boxed)?;
        }
        let means = (0..epochs).map(|epoch| {
            let at: Vec<f64> = runs.iter().filter_map(|run| run.accuracies.get(epoch).copied()).collect();
            (epoch + 1, mean(&at))
        });
        chart
            .draw_series(LineSeries::new(means, color.stroke_width(3)))
            .map_err(boxed)?
            .label(case.name)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 22, y)], color.stroke_width(3)));
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::LowerRight)
        .margin(16)
        .label_font(text(19))
        .background_style(WHITE.mix(0.85))
        .border_style(BLACK.mix(0.2))
        .draw()
        .map_err(boxed)?;
    root.present().map_err(boxed)
}

/// The drawing library's errors borrow from what they were drawing.
fn boxed(error: impl Error) -> AnyError {
    error.to_string().into()
}
