//! A thousand jobs, each with one fault at a random place.
//!
//! Every choice of a run comes from its seed; only the moments of the operating system do not. The assertion is always
//! the same: no rank hangs, every survivor returns a typed error within its deadline, the error names the faulty rank or
//! a rank at the faulty connection, and no socket, thread, mapping or process is left. A fault that every deadline allows
//! must not show at all.
//!
//! `BURN_NCCL_FAULT_RUNS=100000` plays more runs, `BURN_NCCL_FAULT_SEED=123` that one alone.

mod floors;
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
/// Most runs wait for a deadline or for each other, so more of them fit than there are processors. This many for each.
const AT_ONCE: usize = 4;
/// The slot of runs that are played once more, when all others have ended.
const SLOT_ALONE: usize = 9998;
const SHOWN: [(Shown, &str); 4] = [
    (Shown::Named, "named"),
    (Shown::Harmless, "harmless"),
    (Shown::NotReached, "not reached"),
    (Shown::Unchecked, "wrong, unchecked"),
];

type Tally = BTreeMap<String, BTreeMap<Shown, usize>>;

/// How a run went, of which the seed is known.
enum Played {
    Well(Kind, Shown),
    /// A deadline has passed though the fault did not make anybody late: the machine was too busy, or it is wrong.
    Late,
    Wrong(String),
}

/// What runs are counted by.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Kind {
    fault: &'static str,
    transport: String,
    checksums: bool,
}

#[test]
fn random_faults_are_named_by_every_survivor_in_time_and_leave_nothing_behind() {
    let seeds = match number("BURN_NCCL_FAULT_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("BURN_NCCL_FAULT_RUNS").unwrap_or(RUNS),
    };
    let start = Instant::now();
    let (next, played, slots) = (AtomicU64::new(seeds.start), Mutex::new(Vec::new()), AtomicUsize::new(0));
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..AT_ONCE * processors {
            scope.spawn(|| {
                let slot = slots.fetch_add(1, Ordering::SeqCst);
                loop {
                    let seed = next.fetch_add(1, Ordering::SeqCst);
                    if seed >= seeds.end {
                        return;
                    }
                    let end = play(seed, slot, true);
                    played.lock().unwrap().push((seed, end));
                }
            });
        }
    });
    let (mut counts, mut wrong) = (BTreeMap::<(Kind, Shown), usize>::new(), Vec::new());
    for (seed, end) in played.into_inner().unwrap() {
        let end = if matches!(end, Played::Late) { play(seed, SLOT_ALONE, false) } else { end };
        match end {
            Played::Well(kind, shown) => *counts.entry((kind, shown)).or_default() += 1,
            Played::Wrong(text) => wrong.push(text),
            Played::Late => unreachable!("it was the second time"),
        }
    }
    let runs = seeds.end - seeds.start;
    let mut tally = Tally::new();
    for ((kind, shown), count) in &counts {
        let name = format!("{}, {}", kind.fault, kind.transport);
        *tally.entry(name).or_default().entry(*shown).or_default() += count;
    }
    print(&format!("{runs} runs in {:.1} s\n{}", start.elapsed().as_secs_f64(), table(&tally)));
    assert!(wrong.is_empty(), "{} of {runs} runs went wrong:\n\n{}", wrong.len(), wrong.join("\n\n"));
    if runs >= RUNS {
        floors::check(&counts);
    }
}

/// Plays the run of a seed; a run that was late is said to be `Late` if it `may_be_late`.
fn play(seed: u64, slot: usize, may_be_late: bool) -> Played {
    let plan = Plan::new(seed);
    let run = runner::play(&plan, slot);
    match verdict::judge(&plan, &run) {
        Ok(shown) => {
            let (fault, transport) = (plan.fault.name(), plan.job.transport.to_string());
            Played::Well(Kind { fault, transport, checksums: plan.job.checksums }, shown)
        }
        Err(_) if may_be_late && plan.fault.is_harmless() && verdict::is_late(&run) => Played::Late,
        Err(wrong) => Played::Wrong(format!(
            "BURN_NCCL_FAULT_SEED={seed}: {wrong}\n  {:?}\n  {:?}\n{run}",
            plan.fault, plan.job
        )),
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
