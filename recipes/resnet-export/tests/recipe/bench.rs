//! `bench`: every engine is measured, and only what computes the same is compared.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use burn_nccl_models::Depth;
use serde_json::Value;

use crate::fixtures::*;

const QUICK: &str = "bench --from out --rounds 2 --seconds 0.01 --batch-size 3 --json figures.json";

fn figures(folder: &std::path::Path) -> Value {
    serde_json::from_slice(&fs::read(folder.join("figures.json")).unwrap()).unwrap()
}

fn exported() -> tempfile::TempDir {
    let folder = folder();
    network(folder.path(), Depth::ResNet18, 10);
    export(folder.path(), "");
    folder
}

#[test]
fn every_engine_is_measured_with_each_number_of_threads_and_the_service_beside_them() {
    let folder = exported();
    let said = succeeds(folder.path(), &format!("{QUICK} --serve 2 --markdown table.md"));
    let figures = figures(folder.path());
    let rows = figures["rows"].as_array().unwrap();
    let of = |engine: &str, threads: u64| {
        let found = rows
            .iter()
            .find(|row| row["engine"].as_str().unwrap().starts_with(engine) && row["threads"] == threads);
        found.unwrap_or_else(|| panic!("no {engine} with {threads} threads: {said}"))
    };
    for engine in ["burn", "native", "tract"] {
        for threads in [1, 2] {
            let row = of(engine, threads);
            // Two rounds, of one run at least.
            let rounds: Vec<usize> = ["latency_seconds", "batch_seconds"]
                .iter()
                .flat_map(|key| {
                    row[key].as_array().unwrap().iter().map(|round| round.as_array().unwrap().len())
                })
                .collect();
            assert!(rounds.len() == 4 && !rounds.contains(&0), "{row}");
            assert!(row["latency_seconds_p50"].as_f64() <= row["latency_seconds_p99"].as_f64(), "{row}");
            // The weights alone are 45 MB.
            assert!(row["peak_bytes"].as_u64().unwrap() > 45_000_000, "{row}");
            assert!(row["onnxruntime_ratio_median"].is_null(), "{row}");
        }
    }
    let service = &figures["service"];
    assert!(service["rounds"][0]["answered"].as_u64().unwrap() > 0, "{service}");
    assert_eq!(service["rounds"][0]["failed"], 0, "{service}");
    assert_eq!(fs::read_to_string(folder.path().join("table.md")).unwrap(), said);
}

#[test]
fn python_is_measured_on_the_same_weights() {
    let Some(python) = python("python_is_measured_on_the_same_weights") else { return };
    let folder = exported();
    succeeds(folder.path(), &format!("{QUICK} --threads 1 --peer-python {}", python.display()));
    let figures = figures(folder.path());
    let names: Vec<&str> =
        figures["rows"].as_array().unwrap().iter().map(|row| row["engine"].as_str().unwrap()).collect();
    for start in ["onnxruntime", "torch"] {
        assert!(names.iter().any(|name| name.starts_with(start)), "{names:?}");
    }
    assert!(names.iter().any(|name| name.ends_with("TorchScript")), "{names:?}");
    assert!(figures["rows"][0]["onnxruntime_ratio_median"].is_f64(), "{figures}");
}

#[test]
fn a_peer_that_computes_something_else_or_dies_is_named_and_not_compared() {
    let folder = exported();
    // Speaks as the peer does, until it is asked for logits.
    let speaks =
        "#!/bin/sh\necho '{\"name\": \"x\", \"load_seconds\": 0, \"deploy_bytes\": 0}'\nread order\n";
    let cases = [
        (
            "echo '{\"logits\": [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]}'",
            "of the largest one away from those of Burn with 1 thread",
        ),
        ("echo '{\"error\": \"no luck\"}'", "no luck"),
        ("echo hello", "it answered `hello`"),
        ("head -c 70000000 /dev/zero | tr '\\0' x; exec sleep 100", "a line of more than 67108864 bytes"),
        ("exit 3", "its process ended without an answer"),
        ("echo Traceback >&2; echo 'OSError: no torch' >&2; exit 3", "without an answer: OSError: no torch"),
    ];
    for (answer, expected) in cases {
        let path = folder.path().join("python");
        fs::write(&path, format!("{speaks}{answer}\n")).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        let [error, cause, help] =
            refuses(folder.path(), &format!("{QUICK} --threads 1 --peer-python ./python"), 1);
        assert!(error.contains("onnxruntime (Python) with 1 thread"), "{error}");
        assert!(cause.contains(expected), "{cause}");
        assert!(help.contains("--peer-python"), "{help}");
    }
}

#[test]
fn a_python_that_is_not_there_and_a_file_that_cannot_be_written_are_refused() {
    let folder = exported();
    let [error, ..] = refuses(folder.path(), &format!("{QUICK} --peer-python ./no-python"), 1);
    assert!(error.contains("(Python)"), "{error}");
    let [error, ..] = refuses(folder.path(), "bench --from out --json no/such/folder.json", 1);
    assert!(error.contains("no/such/folder.json"), "{error}");
    let [error, ..] = refuses(folder.path(), "bench --from nothing", 1);
    assert!(error.contains("nothing"), "{error}");
}
