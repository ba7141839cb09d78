//! `test-rank`: one rank of a process test, or the launcher of several.

use burn_nccl::Error;
use burn_nccl::launch::{install_panic_hook, report_consequence, report_error, run};
use burn_nccl_tests::report::{ERROR_EXIT_CODE, Failed, Report};
use burn_nccl_tests::scenario::Scenario;

fn main() {
    let argument = std::env::args().nth(1).expect("a scenario as JSON is the only argument");
    let scenario: Scenario = serde_json::from_str(&argument).expect("the argument is a scenario");
    std::process::exit(match scenario.launch_config() {
        Some(config) => {
            let outcome = run(&config).expect("the ranks start");
            eprint!("{outcome}");
            outcome.exit_code()
        }
        None => play(&scenario),
    });
}

fn play(scenario: &Scenario) -> i32 {
    install_panic_hook();
    match scenario.play() {
        Ok(report) => {
            print(&report);
            0
        }
        Err(error) => {
            tell(&error);
            eprintln!("error: {error}");
            print(&Report::Failed(Failed::from(&error)));
            ERROR_EXIT_CODE
        }
    }
}

/// The failure of a group began elsewhere, whereas any other error is this rank's own.
fn tell(error: &Error) {
    match error.failure() {
        Some(_) => report_consequence(&error.to_string()),
        None => report_error(&error.to_string()),
    }
}

fn print(report: &Report) {
    println!("{}", serde_json::to_string(report).expect("a report is plain data"));
}
