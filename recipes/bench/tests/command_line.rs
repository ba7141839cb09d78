//! The built recipe, run as a user runs it, on sizes that take no time.

use std::ffi::OsStr;
use std::fs;
use std::io::Write;
use std::process::{Command, Output};

use serde_json::Value;

fn recipe<A: AsRef<OsStr>>(args: &[A]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_recipe-bench")).args(args).output().unwrap()
}

/// What it prints where it succeeds.
fn succeeds<A: AsRef<OsStr>>(args: &[A]) -> String {
    let output = recipe(args);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// The three lines of its error, where it ends with this exit code.
fn refuses<A: AsRef<OsStr>>(args: &[A], exit_code: i32) -> [String; 3] {
    let output = recipe(args);
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(exit_code), "{stderr}");
    ["error: ", "cause: ", "help:  "].map(|label| {
        let line = stderr.lines().find_map(|line| line.strip_prefix(label));
        line.unwrap_or_else(|| panic!("no {label:?} in {stderr}")).to_owned()
    })
}

/// A skip is said on the terminal even where the test harness keeps the output of tests that pass.
fn skip(test: &str, reason: &str) {
    let _ = writeln!(std::io::stderr(), "skipped: {test}: {reason}");
}

#[test]
fn all_transports_are_measured_and_written_as_markdown_and_json() {
    let folder = tempfile::tempdir().unwrap();
    let [json, markdown] = ["numbers.json", "tables.md"].map(|name| folder.path().join(name));
    let quick = ["all-reduce", "--sizes", "1KB,64KiB", "--rounds", "3"].map(OsStr::new);
    let files = ["--json".as_ref(), json.as_os_str(), "--markdown".as_ref(), markdown.as_os_str()];
    let stdout = succeeds(&[&quick[..], &files].concat());
    assert_eq!(stdout, fs::read_to_string(markdown).unwrap());
    let has_row = |size: &str| stdout.lines().any(|line| line.starts_with(&format!("| {size} | ")));
    assert!(has_row("1 KB") && has_row("64 KiB"), "{stdout}");
    let json: Value = serde_json::from_slice(&fs::read(json).unwrap()).unwrap();
    assert_eq!((json["ranks"].as_u64(), json["rounds"].as_u64()), (Some(2), Some(3)));
    assert!(json["memory_bytes_per_second"].as_f64().unwrap() > 1e8, "{json}");
    for transport in ["shm-resident", "shm-copies", "tcp"] {
        let cells = json["cells"].as_array().unwrap().iter().filter(|cell| cell["transport"] == transport);
        let cells: Vec<_> = cells.collect();
        assert_eq!(cells.len(), 2, "{transport}: {json}");
        for cell in cells {
            let seconds: Vec<f64> =
                cell["seconds"].as_array().unwrap().iter().filter_map(Value::as_f64).collect();
            assert_eq!(seconds.len(), 3, "{cell}");
            let median = cell["seconds_median"].as_f64().unwrap();
            assert!(seconds.contains(&median) && median > 1e-7, "{cell}");
            // Between two ranks, as many bytes cross the bus as the buffer has.
            let bus = cell["bus_bytes_per_second"].as_f64().unwrap();
            let bytes = cell["bytes"].as_f64().unwrap();
            assert!((bus / (bytes / median) - 1.0).abs() < 1e-9, "{cell}");
            assert!(cell["gloo_ratio_median"].is_null(), "{cell}");
        }
    }
}

#[test]
fn a_peer_that_is_not_there_or_has_no_torch_is_one_clear_error() {
    let quick = ["all-reduce", "--transport=tcp", "--sizes=1KB", "--rounds=1", "--peer-python"];
    for (python, words) in [("/nowhere/python", "No such file"), ("/bin/false", "ended before they had come")]
    {
        let [error, cause, help] = refuses(&[&quick[..], &[python]].concat(), 1);
        assert_eq!(error, "cannot measure the peer");
        assert!(cause.starts_with(&format!("{python}: ")) && cause.contains(words), "{cause}");
        assert!(help.contains("--peer-python"), "{help}");
    }
}

#[test]
fn gloo_is_measured_in_turn_with_the_others() {
    const TEST: &str = "gloo_is_measured_in_turn_with_the_others";
    let Some(python) = std::env::var_os("BURN_NCCL_PEER_PYTHON") else {
        return skip(TEST, "BURN_NCCL_PEER_PYTHON names no Python with torch");
    };
    let quick = ["all-reduce", "--transport=tcp", "--sizes=1KB", "--rounds=1", "--peer-python"];
    let quick = quick.map(OsStr::new);
    let stdout = succeeds(&[&quick[..], &[python.as_os_str()]].concat());
    assert!(stdout.contains("| size | tcp | gloo |"), "{stdout}");
    assert!(stdout.lines().any(|line| line.starts_with("| 1 KB | ") && line.contains("x) | ")), "{stdout}");
}

#[test]
fn a_file_that_cannot_be_written_is_refused_before_anything_is_measured() {
    let [error, ..] = refuses(&["all-reduce", "--json", "/nowhere/numbers.json"], 1);
    assert_eq!(error, "cannot write /nowhere/numbers.json");
}

#[test]
fn options_that_cannot_be_meant_are_refused() {
    for (args, words) in [
        (vec!["all-reduce", "--sizes", "3"], "multiple of 4"),
        (vec!["all-reduce", "--ranks", "1"], "1 is not in 2..=64"),
        (vec!["all-reduce", "--transport", "udp"], "udp"),
        (vec!["all-reduce", "--rounds", "0"], "0 is not in"),
        (vec!["model", "--gbit", "0"], "above 0"),
    ] {
        let [_, cause, help] = refuses(&args, 2);
        assert!(cause.contains(words) || help.contains(words), "{args:?}: {cause}: {help}");
    }
}

#[cfg(not(feature = "mpi"))]
#[test]
fn mpi_in_a_program_without_it_is_refused() {
    let [_, cause, help] = refuses(&["all-reduce", "--transport", "mpi"], 2);
    assert!(cause.contains("without it") && help.contains("--features mpi"), "{cause}; {help}");
}

#[test]
fn growth_is_shown_for_each_number_of_ranks() {
    let stdout = succeeds(&["scaling", "--ranks=2,3", "--transport=tcp", "--size=64KB", "--rounds=1"]);
    assert!(stdout.contains("| tcp | 2 | 1.00 | "), "{stdout}");
    assert!(stdout.contains("| tcp | 3 | 1.33 | "), "{stdout}");
}

#[test]
fn the_model_takes_the_figures_of_a_measurement() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("numbers.json");
    let path = file.to_str().unwrap();
    succeeds(&["all-reduce", "--transport=tcp", "--sizes=1KB,256KB,4MB", "--rounds=1", "--json", path]);
    let stdout = succeeds(&["model", "--hosts=50", "--measured", path]);
    assert!(stdout.contains("8 hosts x 8 GPUs") && stdout.contains("50 hosts, one rank each"), "{stdout}");
    fs::write(&file, "{}").unwrap();
    let [error, cause, _] = refuses(&["model", "--measured", path], 2);
    assert_eq!((error, cause.as_str()), (format!("cannot use {path}"), "it is not of two ranks"));
}
