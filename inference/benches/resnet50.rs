//! ResNet-50 on an image of 224 by 224 by each engine that is present: time at one and two threads, and peak memory.
//!
//! `ORT_DYLIB_PATH=/path/to/libonnxruntime.so cargo bench -p burn-nccl-inference`. The network has random weights and is
//! made here, so that nothing else is needed. Engines take turns, so that what else the machine does is the same for all;
//! the figures to trust are the ratios, each the median of those of all rounds.

#[path = "../src/testing.rs"]
#[allow(dead_code, reason = "the benchmark uses a part")]
mod testing;

use std::error::Error;
use std::path::Path;
use std::process::Command;
use std::time::Instant;

use burn_nccl_inference::{Engine, EngineChoice, EngineKind, EngineOptions, Onnx, load, present};
use testing::{Conv, Net, ints};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

const ROUNDS: usize = 25;

fn main() -> Result<()> {
    let arguments: Vec<_> = std::env::args().skip(1).filter(|argument| argument != "--bench").collect();
    if let [path, engine] = &arguments[..] {
        return in_process(Path::new(path), engine.parse()?);
    }
    let bytes = resnet50().bytes();
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("resnet50.onnx");
    std::fs::write(&path, &bytes)?;
    let onnx = Onnx::from_bytes(&bytes)?;
    drop(bytes);
    for threads in [1, 2] {
        let options = EngineOptions::default().with_threads(threads);
        let mut engines = Vec::new();
        for (kind, presence) in present(&options) {
            match presence {
                Ok(()) => engines.push(load(&onnx, EngineChoice::Only(kind), &options)?),
                Err(reason) => println!("without {kind}: {reason}"),
            }
        }
        compare(threads, &mut engines)?;
    }
    for kind in EngineKind::ALL {
        let child = Command::new(std::env::current_exe()?).arg(&path).arg(kind.name()).output()?;
        if child.status.success() {
            print!("{}", String::from_utf8_lossy(&child.stdout));
        }
    }
    Ok(())
}

/// Times engines in turns. The others are told as parts of ONNX Runtime's time, or of the last engine's without it.
fn compare(threads: usize, engines: &mut [Box<dyn Engine>]) -> Result<()> {
    let image: Vec<_> = (0..3 * 224 * 224).map(|at| ((at * 37 % 255) as f32 - 127.) / 64.).collect();
    let mut rounds = vec![Vec::with_capacity(ROUNDS); engines.len()];
    let mut logits = Vec::new();
    for _ in 0..ROUNDS {
        for (engine, times) in engines.iter_mut().zip(&mut rounds) {
            // What ran before has taken the caches.
            engine.run(1, &image, &mut logits)?;
            let start = Instant::now();
            engine.run(1, &image, &mut logits)?;
            times.push(start.elapsed().as_secs_f64() * 1e3);
        }
    }
    let names: Vec<_> = engines.iter().map(|engine| engine.name()).collect();
    let base = names.iter().position(|name| name.starts_with("onnxruntime")).unwrap_or(names.len() - 1);
    for (name, times) in names.iter().zip(&rounds) {
        let ratios: Vec<_> = times.iter().zip(&rounds[base]).map(|(time, base)| time / base).collect();
        let (time, ratio) = (median(times), median(&ratios));
        println!("{threads} thread(s)  {name:<28} {time:7.2} ms  {ratio:.3} of {}", names[base]);
    }
    Ok(())
}

fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted[sorted.len() / 2]
}

/// Loads the file and runs it, as a process of its own, whose peak memory is told.
fn in_process(path: &Path, choice: EngineChoice) -> Result<()> {
    let options = EngineOptions::default().with_threads(2);
    let start = Instant::now();
    let mut engine = load(&Onnx::open(path)?, choice, &options)?;
    let loaded = start.elapsed().as_secs_f64();
    let mut logits = Vec::new();
    engine.run(1, &vec![0.5; 3 * 224 * 224], &mut logits)?;
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap_or("unknown").trim();
    println!("peak memory  {:<28} {peak}, loaded in {loaded:.2} s", engine.name());
    Ok(())
}

/// The network of torchvision's `resnet50`, its normalisations folded, with random weights.
fn resnet50() -> Net {
    let mut net = Net::new(3, 224, 224);
    let conv = |net: &mut Net, input: &str, [inputs, outputs, kernel, stride]: [usize; 4]| {
        net.conv(input, Conv { stride, bias: true, ..Conv::same(inputs, outputs, kernel) })
    };
    let relu = |net: &mut Net, input: &str| net.node("Relu", &[input], vec![]);
    let stem = conv(&mut net, "input", [3, 64, 7, 2]);
    let stem = relu(&mut net, &stem);
    let pool = vec![ints("kernel_shape", &[3, 3]), ints("pads", &[1; 4]), ints("strides", &[2, 2])];
    let mut last = net.node("MaxPool", &[&stem], pool);
    let mut channels = 64;
    for (stage, blocks) in [3, 4, 6, 3].into_iter().enumerate() {
        let width = 64 << stage;
        for block in 0..blocks {
            let stride = if stage > 0 && block == 0 { 2 } else { 1 };
            let one = conv(&mut net, &last, [channels, width, 1, 1]);
            let one = relu(&mut net, &one);
            let two = conv(&mut net, &one, [width, width, 3, stride]);
            let two = relu(&mut net, &two);
            let three = conv(&mut net, &two, [width, 4 * width, 1, 1]);
            if block == 0 {
                last = conv(&mut net, &last, [channels, 4 * width, 1, stride]);
            }
            let sum = net.node("Add", &[&three, &last], vec![]);
            last = relu(&mut net, &sum);
            channels = 4 * width;
        }
    }
    let output = net.head(&last, channels, 1000);
    net.output(&output, 1000);
    net
}
