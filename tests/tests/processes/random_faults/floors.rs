//! How often a kind of fault must show in a full series of runs. A run alone may end before its fault comes, so that without
//! these a proxy beside the path, or a deadline that nobody keeps, would go unnoticed.

use std::collections::BTreeMap;

use super::Kind;
use super::verdict::Shown;

/// Which runs are counted.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Of {
    All,
    /// Those whose faulty connection may be one for data.
    Tcp,
    /// As before, with checksums.
    TcpWithChecksums,
}

/// The percentage of runs with a fault that must be named, well below what is seen: a place at random may be one where the
/// fault does no harm.
const NAMED: [(&str, Of, usize); 12] = [
    ("rank killed", Of::All, 75),
    ("rank exits", Of::All, 60),
    ("rank panics", Of::All, 75),
    ("rank stopped, woken too late", Of::All, 60),
    ("rank stopped, then killed", Of::All, 60),
    // It is late before an operation that all others need, whatever the place.
    ("rank late, past the deadline", Of::All, 100),
    ("connection cut", Of::Tcp, 30),
    ("bytes corrupted", Of::TcpWithChecksums, 30),
    ("bytes lost", Of::Tcp, 60),
    ("bytes twice", Of::Tcp, 40),
    ("bytes in another order", Of::TcpWithChecksums, 15),
    ("bytes late, past the deadline", Of::Tcp, 10),
];

/// The percentage of runs with a fault that does no harm in which it must have happened.
const HAPPENED: [(&str, Of, usize); 1] = [("bytes late, within the deadline", Of::Tcp, 70)];

/// Asserts that every kind of fault has shown often enough.
pub(super) fn check(counts: &BTreeMap<(Kind, Shown), usize>) {
    let mut few = Vec::new();
    let named = NAMED.map(|floor| (floor, Shown::Named));
    for ((fault, of, percent), expected) in
        named.into_iter().chain(HAPPENED.map(|floor| (floor, Shown::Harmless)))
    {
        let runs = |shown: Option<Shown>| -> usize {
            let counted = counts.iter().filter(|((kind, found), _)| {
                kind.fault == fault && is_counted(of, kind) && shown.is_none_or(|shown| *found == shown)
            });
            counted.map(|(_, count)| count).sum()
        };
        let (all, shown) = (runs(None), runs(Some(expected)));
        if all == 0 || shown * 100 < all * percent {
            few.push(format!("{fault}: {expected:?} in {shown} of {all} runs, expected {percent}%"));
        }
    }
    assert!(few.is_empty(), "faults that did not show as often as they must:\n{}", few.join("\n"));
}

fn is_counted(of: Of, kind: &Kind) -> bool {
    match of {
        Of::All => true,
        Of::Tcp => kind.transport == "tcp",
        Of::TcpWithChecksums => kind.transport == "tcp" && kind.checksums,
    }
}

#[test]
#[should_panic(expected = "connection cut: Named in 1 of 4 runs, expected 30%")]
fn a_fault_that_shows_too_seldom_is_named() {
    let kind = |fault| Kind { fault, transport: "tcp".into(), checksums: true };
    let named = NAMED.iter().map(|(fault, ..)| ((kind(*fault), Shown::Named), 1));
    let happened = HAPPENED.iter().map(|(fault, ..)| ((kind(*fault), Shown::Harmless), 1));
    let mut counts: BTreeMap<_, _> = named.chain(happened).collect();
    check(&counts);
    counts.insert((kind("connection cut"), Shown::NotReached), 3);
    check(&counts);
}
