//! Saving and loading ResNet-50 beside PyTorch and safetensors, and what smaller files cost.
//!
//! ```text
//! cargo bench --workspace --bench records -- [--peer-python PYTHON] [--rounds N] [--folder DIR]
//!                                            [--weights FILE [--model resnet50] [--image-size N]]
//! ```
//!
//! Each round runs what is compared in turn, and a ratio is the median of the rounds' ratios. Files are written and read
//! through the page cache, as the peers do, unless a row says `durable`. With weights of a network that was trained on the
//! bundled digits, the second table tells the accuracy that each form of them has left; `--model` is for a file that does
//! not describe its network, then one with the CIFAR stem.

mod support;

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Instant;

use burn::module::Module;
use burn::tensor::Device;
use burn_nccl_datasets::{DataSource, LoaderConfig, Sampling, Split};
use burn_nccl_models::{Depth, ResNet, ResNetConfig, Stem};
use burn_nccl_records::{
    Error as RecordError, LoadOptions, Names, SaveDType, SaveFormat, SaveOptions, Zstd, load, load_model,
    save, save_model, snapshot,
};
use support::{AnyError, median};

const DEFAULT_ROUNDS: usize = 9;
const DIGITS: usize = 10;
const DIGIT_PIXELS: usize = 8;
const BATCH: usize = 64;

fn main() -> Result<(), AnyError> {
    let options = Options::parse()?;
    let scratch = tempfile::tempdir()?;
    let folder = options.folder.clone().unwrap_or_else(|| scratch.path().into());
    if let Some(python) = &options.peer_python {
        compare(Peer::start(python, &folder)?, &folder, options.rounds)?;
    } else {
        println!("skipped: no comparison without --peer-python\n");
    }
    sizes(&options, &folder)
}

#[derive(Default)]
struct Options {
    peer_python: Option<PathBuf>,
    folder: Option<PathBuf>,
    rounds: usize,
    weights: Option<PathBuf>,
    model: Option<Depth>,
    image_size: usize,
}

impl Options {
    fn parse() -> Result<Self, AnyError> {
        let mut options = Self { rounds: DEFAULT_ROUNDS, image_size: DIGIT_PIXELS, ..Self::default() };
        // Cargo adds `--bench` itself.
        let mut arguments = std::env::args().skip(1).filter(|argument| argument != "--bench");
        while let Some(name) = arguments.next() {
            let value = arguments.next().ok_or_else(|| format!("{name} needs a value"))?;
            match name.as_str() {
                "--peer-python" => options.peer_python = Some(value.into()),
                "--folder" => options.folder = Some(value.into()),
                "--rounds" => options.rounds = value.parse()?,
                "--weights" => options.weights = Some(value.into()),
                "--image-size" => options.image_size = value.parse()?,
                "--model" => options.model = Some(value.parse()?),
                _ => {
                    return Err(
                        format!("unknown option {name}; see the top of tests/benches/records.rs").into()
                    );
                }
            }
        }
        Ok(options)
    }
}

impl Options {
    /// The network of the second table.
    fn network(&self, device: &Device) -> Result<(ResNetConfig, ResNet), AnyError> {
        let Some(weights) = &self.weights else {
            let config = ResNetConfig::new(self.model.unwrap_or(Depth::ResNet50), 1000);
            let model = config.init(device);
            return Ok((config, model));
        };
        match (load_model::<ResNetConfig>(weights, device), self.model) {
            (Err(RecordError::NoArchitecture { .. }), Some(depth)) => {
                let config = ResNetConfig::new(depth, DIGITS).with_stem(Stem::Cifar);
                let (model, _) = load(&config.init(device), weights, &LoadOptions::default())?;
                Ok((config, model))
            }
            (described, _) => Ok(described?),
        }
    }
}

/// Python beside us, which does a step when it is told to.
struct Peer {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Peer {
    fn start(python: &Path, folder: &Path) -> Result<Self, AnyError> {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("benches/records_peer.py");
        let mut command = Command::new(python);
        command.arg(script).arg(folder).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn()?;
        let input = child.stdin.take().ok_or("no pipe to the peer")?;
        let output = BufReader::new(child.stdout.take().ok_or("no pipe from the peer")?);
        Ok(Self { child, input, output })
    }

    /// The seconds of a step.
    fn run(&mut self, step: &str) -> Result<f64, AnyError> {
        writeln!(self.input, "{step}")?;
        let mut answer = String::new();
        self.output.read_line(&mut answer)?;
        Ok(answer.trim().parse().map_err(|_| format!("the peer answers `{step}` with `{answer}`"))?)
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// One way of ours to save or load.
struct Ours<'a> {
    name: &'static str,
    peer_step: &'static str,
    run: Box<dyn Fn() -> Result<(), AnyError> + 'a>,
}

fn seconds<T>(run: impl FnOnce() -> Result<T, AnyError>) -> Result<f64, AnyError> {
    let start = Instant::now();
    let result = run()?;
    let seconds = start.elapsed().as_secs_f64();
    drop(result);
    Ok(seconds)
}

fn compare(mut peer: Peer, folder: &Path, rounds: usize) -> Result<(), AnyError> {
    let device = Device::flex();
    let config = ResNetConfig::new(Depth::ResNet50, 1000);
    let model = config.init(&device);
    drop(snapshot(&model));
    let cases = cases(&model, &config, folder);
    // A peer's load needs its file, and its first step still imports.
    for step in ["save torch", "save safetensors", "load torch", "load safetensors"] {
        peer.run(step)?;
    }
    println!("ResNet-50 ({} parameters), {rounds} rounds\n", model.num_params());
    println!("| | ours | peer | ours / peer |\n|---|---|---|---|");
    let mut times = vec![Vec::new(); cases.len()];
    for round in 0..=rounds {
        for (case, times) in cases.iter().zip(&mut times) {
            // What was saved is still being written back, which takes a core from the loads.
            if case.peer_step.starts_with("load") {
                flush(folder)?;
            }
            let pair = (seconds(&case.run)?, peer.run(case.peer_step)?);
            // The first round is for the caches.
            if round > 0 {
                times.push(pair);
            }
        }
    }
    for (case, times) in cases.iter().zip(times) {
        let ratio = median(times.iter().map(|(ours, theirs)| ours / theirs));
        let (ours, theirs) = times.into_iter().unzip::<_, _, Vec<f64>, Vec<f64>>();
        let [ours, theirs] = [ours, theirs].map(|times| 1e3 * median(times));
        println!("| {} | {ours:.1} ms | {}: {theirs:.1} ms | {ratio:.2} |", case.name, case.peer_step);
    }
    println!();
    Ok(())
}

/// Returns once all files in `folder` are on the disk.
fn flush(folder: &Path) -> Result<(), AnyError> {
    for entry in std::fs::read_dir(folder)? {
        std::fs::File::open(entry?.path())?.sync_all()?;
    }
    Ok(())
}

fn cases<'a>(model: &'a ResNet, config: &'a ResNetConfig, folder: &Path) -> Vec<Ours<'a>> {
    let quick = SaveOptions::default().with_durable(false);
    let safetensors = quick.clone().with_format(SaveFormat::Safetensors);
    let saving = |name, peer_step, file: &str, options: SaveOptions| {
        let path = folder.join(file);
        let run = move || save(model, &path, &options).map(drop).map_err(AnyError::from);
        Ours { name, peer_step, run: Box::new(run) }
    };
    let loading = |name, peer_step, file: &str| {
        let path = folder.join(file);
        let run = move || {
            let empty = config.init(&Device::flex());
            load(&empty, &path, &LoadOptions::default()).map(drop).map_err(AnyError::from)
        };
        Ours { name, peer_step, run: Box::new(run) }
    };
    // Each with a file of its own, which every round replaces: what replacing costs depends on where the old one is.
    vec![
        saving("save burnpack", "save torch", "first.bpk", quick.clone()),
        saving("save burnpack", "save safetensors", "second.bpk", quick),
        saving("save safetensors", "save safetensors", "our.safetensors", safetensors.clone()),
        saving(
            "save safetensors with torch names",
            "save safetensors",
            "torch.safetensors",
            safetensors.with_names(Names::Torch),
        ),
        saving("save burnpack, durable", "save torch", "durable.bpk", SaveOptions::default()),
        loading("load burnpack", "load safetensors", "first.bpk"),
        loading("load safetensors", "load safetensors", "our.safetensors"),
        loading("load safetensors of the peer", "load safetensors", "peer.safetensors"),
        loading("load .pth of the peer", "load torch", "peer.pth"),
    ]
}

/// The table of smaller files.
fn sizes(options: &Options, folder: &Path) -> Result<(), AnyError> {
    let device = Device::flex();
    let (config, model) = options.network(&device)?;
    let trained = options.weights.is_some();
    let (what, accuracy_column) =
        if trained { ("trained on the digits", " test accuracy |") } else { ("as it starts", "") };
    println!(
        "{}, {what}, {} parameters, median of {} rounds\n",
        config.depth,
        model.num_params(),
        options.rounds
    );
    println!("| stored as | size | save | load | largest error |{accuracy_column}");
    println!("|---|---|---|---|---|{}", if trained { "---|" } else { "" });
    for (name, stored, level) in FORMS {
        let mut save_options = SaveOptions::default().with_durable(false).with_dtype(stored);
        if let Some(level) = level {
            save_options = save_options.with_compression(Zstd { level, threads: 0 });
        }
        let path = folder.join("form.bpk");
        let report = save_model(&config, &model, &path, &save_options)?;
        let (mut saves, mut loads) = (Vec::new(), Vec::new());
        for _ in 0..options.rounds {
            saves.push(seconds(|| Ok(save_model(&config, &model, &path, &save_options)?))?);
            loads.push(seconds(|| Ok(load_model::<ResNetConfig>(&path, &device)?))?);
        }
        let [save, load] = [saves, loads].map(|times| 1e3 * median(times));
        let size = report.bytes as f64 / 1e6;
        print!("| {name} | {size:.1} MB | {save:.0} ms | {load:.0} ms | {:.1e} |", report.largest_error);
        if trained {
            let (_, stored) = load_model::<ResNetConfig>(&path, &device)?;
            print!(" {:.2}% |", 100.0 * accuracy(&stored, options.image_size, &device)?);
        }
        println!();
    }
    Ok(())
}

const FORMS: [(&str, SaveDType, Option<i32>); 10] = [
    ("f32", SaveDType::Keep, None),
    ("f16", SaveDType::F16, None),
    ("bf16", SaveDType::BF16, None),
    ("f32, zstd 1", SaveDType::Keep, Some(1)),
    ("f32, zstd 3", SaveDType::Keep, Some(3)),
    ("f32, zstd 9", SaveDType::Keep, Some(9)),
    ("f16, zstd 1", SaveDType::F16, Some(1)),
    ("f16, zstd 3", SaveDType::F16, Some(3)),
    ("f16, zstd 9", SaveDType::F16, Some(9)),
    ("bf16, zstd 3", SaveDType::BF16, Some(3)),
];

/// The share of the digits' test images that `model` names right.
fn accuracy(model: &ResNet, image_size: usize, device: &Device) -> Result<f64, AnyError> {
    let loader = LoaderConfig::new(BATCH)
        .with_sampling(Sampling::Exact)
        .with_transforms(DataSource::Digits.eval_transforms(image_size))
        .init(DataSource::Digits.load(Split::Test)?, device)?;
    let (mut right, mut all) = (0, 0);
    for batch in loader.epoch(0) {
        let batch = batch?;
        all += batch.indices.len();
        let answers = model.forward(batch.images).argmax(1).squeeze_dim::<1>(1);
        right += answers.equal(batch.labels).into_data().iter::<bool>().filter(|right| *right).count();
    }
    Ok(right as f64 / all as f64)
}
