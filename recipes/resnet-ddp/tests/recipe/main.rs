//! The built recipe, run as a user runs it: two ranks on this machine.

mod elastic;
mod resume;

use std::fs;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;
use socket2::{Domain, Protocol, Socket, Type};
use tempfile::TempDir;

/// A folder for one test, and the run folder in it.
struct Place {
    folder: TempDir,
    out: PathBuf,
}

impl Place {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let out = folder.path().join("run");
        Self { folder, out }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_recipe-resnet-ddp"));
        command.args(["--out", self.out.to_str().unwrap(), "--device", "cpu", "--model", "resnet18"]);
        command.args(["--progress", "plain"]).args(args);
        command
    }

    fn run(&self, args: &[&str]) -> Output {
        self.command(args).output().unwrap()
    }

    fn json(&self, name: &str) -> Value {
        serde_json::from_slice(&fs::read(self.out.join(name)).unwrap()).unwrap()
    }

    /// What is in the run folder but the logs.
    fn written(&self) -> Vec<PathBuf> {
        let entries = fs::read_dir(&self.out).into_iter().flatten().flatten();
        entries.map(|entry| entry.path()).filter(|path| !path.ends_with("logs")).collect()
    }

    /// An image folder with these files under `train/` and `val/`.
    fn images(&self, train: &[&str], val: &[&str]) -> String {
        let root = self.path("images");
        for (split, files) in [("train", train), ("val", val)] {
            for file in files {
                let path = root.join(split).join(file);
                fs::create_dir_all(path.parent().unwrap()).unwrap();
                image::RgbImage::from_pixel(8, 8, image::Rgb([90, 20, 200])).save(path).unwrap();
            }
        }
        format!("folder:{}", root.display())
    }
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// A free port that rank 0 can listen on and the system gives to nobody else while the socket lives.
fn hold_free_port() -> (Socket, String) {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, Some(Protocol::TCP)).unwrap();
    socket.set_reuse_address(true).unwrap();
    socket.bind(&SocketAddr::from((Ipv4Addr::LOCALHOST, 0)).into()).unwrap();
    let port = socket.local_addr().unwrap().as_socket().expect("an IPv4 address").port().to_string();
    (socket, port)
}

/// Asserts the exit code, one error of three lines with these texts, and that nothing was written but logs.
fn assert_refused(place: &Place, output: &Output, code: i32, texts: &[&str]) {
    let stderr = stderr(output);
    assert_eq!(output.status.code(), Some(code), "{stderr}");
    for start in ["error: ", "cause: ", "help:  "] {
        assert_eq!(stderr.lines().filter(|line| line.starts_with(start)).count(), 1, "{start}: {stderr}");
    }
    for text in texts {
        assert!(stderr.contains(text), "`{text}` is not in: {stderr}");
    }
    assert!(!stderr.contains("panicked"), "{stderr}");
    assert_eq!(place.written(), Vec::<PathBuf>::new());
}

#[test]
fn two_ranks_leave_a_complete_run() {
    let place = Place::new();
    let output = place.run(&["--max-steps", "3", "--batch-size", "8", "--wire", "bf16"]);
    assert!(output.status.success(), "{}", stderr(&output));

    let summary = place.json("summary.json");
    let expected = [("recipe", "resnet-ddp".into()), ("device", "cpu".into()), ("world_size", 2.into())];
    for (key, value) in expected.into_iter().chain([("steps", Value::from(3)), ("test_examples", 299.into())])
    {
        assert_eq!(summary[key], value, "{key}");
    }
    // torchvision's ResNet-18 has 11,689,512 parameters with 1000 classes and a 7x7 stem.
    assert_eq!(summary["parameters"], 11_689_512 - 513 * 990 - 64 * 3 * (49 - 9));
    for key in ["data", "forward", "backward", "comm_exposed", "optimizer"] {
        assert!(summary["step_breakdown"][key].as_f64().unwrap() >= 0.0, "{key}");
    }
    for key in
        ["images_per_second", "step_seconds_median", "peak_memory_bytes", "seconds_total", "train_loss_final"]
    {
        assert!(summary[key].as_f64().unwrap() > 0.0, "{key}");
    }
    assert_eq!(summary["parameters_sha256"].as_str().unwrap().len(), 64);

    let metrics = fs::read_to_string(place.out.join("metrics.jsonl")).unwrap();
    let steps: Vec<Value> = metrics.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(steps.iter().map(|step| step["step"].as_u64().unwrap()).collect::<Vec<_>>(), [1, 2, 3]);
    assert_eq!(place.json("config.json")["wire"], "bf16");
    assert!(place.out.join("model.bpk").metadata().unwrap().len() > 4 * 11_000_000);
    assert!(fs::read_to_string(place.out.join("loss.svg")).unwrap().ends_with("</svg>\n"));
    assert!(place.out.join("logs/rank-1.log").exists());
    let is_events = |path: &PathBuf| path.to_str().unwrap().contains("tfevents");
    assert_eq!(place.written().iter().filter(|path| is_events(path)).count(), 1);
}

#[test]
fn a_run_repeats_from_its_own_configuration_to_the_same_bits() {
    let place = Place::new();
    let first = place.run(&["--max-steps", "2", "--batch-size", "4", "--seed", "7", "--progress", "none"]);
    assert!(first.status.success() && first.stdout.is_empty(), "{}", stderr(&first));
    let again = Place::new();
    let config = place.out.join("config.json");
    let second = again.run(&["--config", config.to_str().unwrap(), "--bucket-mb", "1"]);
    assert!(second.status.success(), "{}", stderr(&second));
    let hash = |place: &Place| place.json("summary.json")["parameters_sha256"].clone();
    assert_eq!(hash(&place), hash(&again));
}

#[test]
fn what_the_options_ask_for_and_cannot_have_is_a_usage_error() {
    let place = Place::new();
    let config = place.path("c.json");
    fs::write(&config, r#"{"epoch": 3}"#).unwrap();
    let config = config.to_str().unwrap();
    let cases: &[(&[&str], &[&str])] = &[
        (&["--epoch", "3"], &["unexpected argument '--epoch'", "--epochs"]),
        (&["--config", config], &["c.json", "unknown key `epoch`"]),
        (&["--model", "resnet51"], &["unknown model `resnet51`", "use resnet18, "]),
        (&["--batch-size", "0"], &["--batch-size", "at least 1"]),
        (&["--timeout-seconds", "1e20"], &["--timeout-seconds", "at most 1e9"]),
        (&["--data", "mnist"], &["unknown data source `mnist`"]),
        (&["--nproc-per-node", "0"], &["--nproc-per-node"]),
        #[cfg(not(feature = "cuda"))]
        (&["--device", "cuda"], &["built without CUDA", "--no-default-features --features cuda"]),
    ];
    for (args, texts) in cases {
        assert_refused(&place, &place.run(args), 2, texts);
    }
}

#[test]
fn data_that_is_missing_empty_or_too_little_is_named() {
    let place = Place::new();
    assert_refused(
        &place,
        &place.run(&["--data", "folder:/nowhere"]),
        1,
        &["/nowhere", "train images", "exists"],
    );
    let empty = place.path("empty");
    fs::create_dir(&empty).unwrap();
    let data = format!("folder:{}", empty.display());
    assert_refused(&place, &place.run(&["--data", &data]), 1, &["0 class folders", "one folder per class"]);
    let data = place.images(&["a/1.png", "b/1.png"], &["a/1.png", "b/1.png"]);
    let args = ["--data", &data, "--batch-size", "1", "--nproc-per-node", "3"];
    assert_refused(&place, &place.run(&args), 1, &["2 images for 3 ranks"]);
    let args = ["--batch-size", "5000"];
    assert_refused(&place, &place.run(&args), 1, &["one batch of 5000", "--batch-size 749"]);
}

#[test]
fn an_unreadable_image_ends_all_ranks_and_is_named() {
    let place = Place::new();
    let data = place.images(&["a/1.png", "b/1.png"], &["a/1.png", "b/1.png"]);
    fs::write(place.path("images/train/b/1.png"), b"not a picture").unwrap();
    let output = place.run(&["--data", &data, "--image-size", "16", "--batch-size", "1"]);
    let stderr = stderr(&output);
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    assert!(
        stderr.contains("images/train/b/1.png") && stderr.contains("replace or remove the file"),
        "{stderr}"
    );
    assert_eq!(place.written(), Vec::<PathBuf>::new());
}

#[test]
fn an_unreadable_image_in_the_middle_of_a_window_is_the_error_that_is_told() {
    let place = Place::new();
    let train: Vec<String> = (0..12).map(|image| format!("{}/{image}.png", ["a", "b"][image % 2])).collect();
    let train: Vec<&str> = train.iter().map(String::as_str).collect();
    let data = place.images(&train, &["a/1.png", "b/1.png"]);
    fs::write(place.path("images/train/a/2.png"), b"not a picture").unwrap();
    // Two windows of three batches on each rank: with some of the seeds the image comes within the second.
    for seed in ["0", "1", "2", "3", "4", "5"] {
        let args = ["--data", &data, "--image-size", "16", "--batch-size", "1", "--accumulate", "3"];
        let output = place.run(&[&args[..], &["--seed", seed]].concat());
        let log = fs::read_to_string(place.out.join("logs/rank-1.log")).unwrap();
        let all = stderr(&output) + &log;
        assert_eq!(output.status.code(), Some(1), "{all}");
        assert!(all.contains("images/train/a/2.png") && all.contains("replace or remove the file"), "{all}");
        fs::remove_dir_all(&place.out).unwrap();
    }
}

#[test]
fn a_run_folder_is_never_used_twice() {
    let place = Place::new();
    fs::create_dir(&place.out).unwrap();
    fs::write(place.out.join("summary.json"), "{}").unwrap();
    let output = place.run(&["--max-steps", "1"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("it holds summary.json"), "{}", stderr(&output));
    assert_eq!(fs::read(place.out.join("summary.json")).unwrap(), b"{}");
    assert!(!Path::new(&place.out).join("logs").exists());
}

#[test]
fn a_port_that_is_in_use_is_named() {
    let place = Place::new();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port().to_string();
    assert_refused(&place, &place.run(&["--master-port", &port]), 1, &[&port, "choose another master port"]);
}

#[test]
fn an_address_where_rank_0_is_not_is_named_within_the_time_limit() {
    let place = Place::new();
    // A network that is reserved for documentation: nobody is there (RFC 5737).
    let output = place.run(&["--master-addr", "192.0.2.1", "--timeout-seconds", "3"]);
    let stderr = stderr(&output);
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    assert!(stderr.contains("192.0.2.1") && stderr.contains("MASTER_ADDR"), "{stderr}");
    assert_eq!(place.written(), Vec::<PathBuf>::new());
}

#[test]
fn a_half_set_environment_is_refused_with_what_is_missing() {
    let place = Place::new();
    let output = place.command(&[]).env("RANK", "0").env("WORLD_SIZE", "2").output().unwrap();
    assert_refused(&place, &output, 2, &["MASTER_ADDR", "not set"]);
}

#[test]
fn a_loss_that_is_not_finite_ends_all_ranks_in_the_same_step() {
    let place = Place::new();
    let output = place.run(&["--lr", "1e30", "--warmup-epochs", "0", "--batch-size", "8"]);
    let stderr = stderr(&output);
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    assert!(stderr.contains("error: training diverged at step ") && stderr.contains("--lr"), "{stderr}");
    let log = fs::read_to_string(place.out.join("logs/rank-1.log")).unwrap();
    let line = |text: &str| text.lines().find(|line| line.contains("diverged")).unwrap().to_owned();
    assert!(line(&log).ends_with(&line(&stderr)), "{log}\n{stderr}");
}
