//! A thousand jobs, each with one fault at a random place.
//!
//! Every choice of a run comes from its seed; only the moments of the operating system do not. The assertion is always
//! the same: no rank hangs, every survivor returns a typed error within its deadline, the error names the faulty rank or
//! a rank at the faulty connection, and no socket, thread, mapping or process is left. A fault that every deadline allows
//! must not show at all.
//!
//! `BURN_NCCL_FAULT_RUNS=100000` plays more runs, `BURN_NCCL_FAULT_SEED=123` that one alone.

mod flow;
mod listeners;
mod plan;
mod proxy;
mod records;
mod runner;
mod verdict;

use std::collections::BTreeMap;
use std::io::Write;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Instant;

use self::plan::Plan;
use self::verdict::Shown;

const RUNS: u64 = 1000;
/// Most runs wait for a deadline or for each other, so more of them fit than there are processors.
const AT_ONCE: usize = 12;
const SHOWN: [(Shown, &str); 4] = [
    (Shown::Named, "named"),
    (Shown::Harmless, "harmless"),
    (Shown::NotReached, "not reached"),
    (Shown::Unchecked, "wrong, unchecked"),
];

type Tally = BTreeMap<String, BTreeMap<Shown, usize>>;

#[test]
fn random_faults_are_named_by_every_survivor_in_time_and_leave_nothing_behind() {
    let seeds = match number("BURN_NCCL_FAULT_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("BURN_NCCL_FAULT_RUNS").unwrap_or(RUNS),
    };
    let start = Instant::now();
    let (next, tally, wrong) =
        (AtomicU64::new(seeds.start), Mutex::new(Tally::new()), Mutex::new(Vec::new()));
    let slots = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..AT_ONCE {
            scope.spawn(|| {
                let slot = slots.fetch_add(1, Ordering::SeqCst);
                loop {
                    let seed = next.fetch_add(1, Ordering::SeqCst);
                    if seed >= seeds.end {
                        return;
                    }
                    match play(seed, slot) {
                        Ok((name, shown)) => {
                            *tally.lock().unwrap().entry(name).or_default().entry(shown).or_default() += 1;
                        }
                        Err(text) => wrong.lock().unwrap().push(text),
                    }
                }
            });
        }
    });
    let wrong = wrong.into_inner().unwrap();
    let runs = seeds.end - seeds.start;
    print(&format!(
        "{runs} runs in {:.1} s\n{}",
        start.elapsed().as_secs_f64(),
        table(&tally.into_inner().unwrap())
    ));
    assert!(wrong.is_empty(), "{} of {runs} runs went wrong:\n\n{}", wrong.len(), wrong.join("\n\n"));
}

/// Plays the run of a seed; its name in the tally and how its fault showed.
fn play(seed: u64, slot: usize) -> Result<(String, Shown), String> {
    let plan = Plan::new(seed);
    let run = runner::play(&plan, slot);
    match verdict::judge(&plan, &run) {
        Ok(shown) => Ok((format!("{}, {}", plan.fault.name(), plan.job.transport), shown)),
        Err(wrong) => {
            Err(format!("BURN_NCCL_FAULT_SEED={seed}: {wrong}\n  {:?}\n  {:?}\n{run}", plan.fault, plan.job))
        }
    }
}

fn number(name: &str) -> Option<u64> {
    let value = std::env::var(name).ok()?;
    Some(value.parse().unwrap_or_else(|_| panic!("{name} is `{value}`, expected a number")))
}

fn table(tally: &Tally) -> String {
    let mut lines = vec![format!("{:37}{:>8}", "fault", "runs")];
    lines[0].extend(SHOWN.map(|(_, name)| format!("{name:>18}")));
    for (name, shown) in tally {
        let mut line = format!("{name:37}{:>8}", shown.values().sum::<usize>());
        line.extend(SHOWN.map(|(kind, _)| format!("{:>18}", shown.get(&kind).copied().unwrap_or_default())));
        lines.push(line);
    }
    lines.join("\n")
}

/// On the terminal even where the output of tests that pass is kept back.
fn print(text: &str) {
    let _ = writeln!(std::io::stderr(), "{text}");
}
