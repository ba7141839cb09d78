#!/usr/bin/env python3
"""The changes that tests/stubs/mutations.sh makes: `mutations.py --list`, `mutations.py NAME FOLDER` to make one, and
`mutations.py --copy TREE FOLDER` to make a copy as it should be, in which nothing looks new that is as it was."""

import pathlib
import subprocess
import sys

NCCL = "backend-nccl/src/transport/nccl/"

# Name, what it takes away, and the edits: file, what is there, what comes instead.
MUTATIONS = [
    (
        "ready-event",
        "the stream does not wait for the computation (context events)",
        [(NCCL + "thread.rs", "Ready::Event(ready) => self.stream.wait_for(&ready).map_err(refused)?,", "Ready::Event(_) => {}")],
    ),
    (
        "ready-record",
        "the computation so far is not recorded at the start (context events)",
        [(NCCL + "engine.rs", "        ready.record_context()?;\n", "")],
    ),
    (
        "ready-fence",
        "the thread does not wait for the computation (host fence)",
        [(NCCL + "thread.rs", "shared.comm.away(fence)", "shared.comm.away(|| { drop(fence); Ok::<(), String>(()) })")],
    ),
    (
        "done-before-drop",
        "memory is given back without a wait for the end on the device",
        [(NCCL + "thread.rs", "if !front.done.is_reached().map_err(|refused| shared.failure_of(refused))? {", "if false {")],
    ),
    (
        "hold-context",
        "`join` does not let the computation wait (context events)",
        [(NCCL + "shared.rs", "        done.hold_context()?;\n", "        let _ = done;\n")],
    ),
    (
        "enqueued-before-hold",
        "`join` does not wait until the device has the operation (context events)",
        [(NCCL + "engine.rs", "let Self { shared, number, done, deadline, ordering } = self;", "let Self { shared, number, done, deadline, ordering } = self;\n        if ordering == StreamOrdering::ContextEvents {\n            return shared.hold(number, &done).map_err(|refused| shared.fail(shared.failure_of(refused)));\n        }")],
    ),
    (
        "ended-before-return",
        "`join` does not wait for the end (host fence)",
        [
            (NCCL + "engine.rs", "StreamOrdering::HostFence => Stage::Ended,", "StreamOrdering::HostFence => Stage::Enqueued,"),
            (NCCL + "engine.rs", "if stage == Stage::Enqueued {", "if ordering == StreamOrdering::ContextEvents {"),
        ],
    ),
    (
        "settled-before-done",
        "the end is recorded before NCCL has enqueued the operation",
        [(NCCL + "thread.rs", "while !shared.comm.is_settled(\"start a collective\").map_err(refused)? {", "while false {")],
    ),
    (
        "copies-before-reduce",
        "a bucket is reduced before its parts are copied",
        [(NCCL + "issue.rs", "                unsafe { self.fill(parts, *bucket) }?;\n                self.all_reduce(*bucket, *bucket, dtype, *op)", "                self.all_reduce(*bucket, *bucket, dtype, *op)?;\n                // SAFETY: as it was.\n                unsafe { self.fill(parts, *bucket) }")],
    ),
    (
        "zeroed-gaps",
        "what is between the parts of a bucket is not zeroed",
        [(NCCL + "issue.rs", "unsafe { self.stream.fill(bucket.address + offset as u64, 0, len) }?;", "let _ = (offset, len);")],
    ),
    (
        "settle-after-abort",
        "after a failure memory is given back without a wait for the stream",
        [
            (NCCL + "thread.rs", "while !self.stream.is_idle() && Instant::now() < limit {", "while false && Instant::now() < limit {"),
            (NCCL + "thread.rs", "let is_idle = self.stream.is_idle();", "let is_idle = true;"),
        ],
    ),
    (
        "drain-before-leave",
        "the communicator is left while operations are under way",
        [(NCCL + "thread.rs", "while is_open || !self.flying.is_empty() {", "while is_open {")],
    ),
    (
        "leave-together",
        "a rank leaves without waiting for the others",
        [(NCCL + "leave.rs", "shared.group.gather(&label(shared), &tally, barrier)", "{ let _ = (barrier, &tally); Ok::<(), crate::Failure>(()) }")],
    ),
    (
        "deadline",
        "no operation has a deadline",
        [(NCCL + "shared.rs", "        shared.progress.overdue()\n", "        None\n")],
    ),
    (
        "watchdog",
        "nobody looks while the thread is inside NCCL",
        [(NCCL + "watch.rs", "if !shared.comm.is_stuck(PATIENCE) {", "if true {")],
    ),
    (
        "abort",
        "a communicator that has failed is not aborted",
        [(NCCL + "thread.rs", "        self.shared.comm.abort();\n", "")],
    ),
    (
        "grace",
        "operations end at once when a rank has left",
        [(NCCL + "shared.rs", ".elapsed() >= GRACE", ".elapsed() >= GRACE * 0")],
    ),
    (
        "settled-before-destroy",
        "a communicator is destroyed before it has finished",
        [(NCCL + "leave.rs", "while !comm.is_settled(ACTION)? {", "while false {")],
    ),
    (
        "settled-before-use",
        "a communicator is used before it is made",
        [(NCCL + "life.rs", "while !shared.comm.is_settled(\"make its communicator\").map_err(refused)? {", "while false {")],
    ),
    (
        "end-of-group",
        "a group that has ended takes operations",
        [(NCCL + "shared.rs", "self.group.obstacle().filter(|failure| !matches!(failure, Failure::PeerLeft { .. }))", "None")],
    ),
    (
        "obstacle",
        "nobody looks for ranks that are lost or have left",
        [(NCCL + "shared.rs", "shared.group.obstacle().or_else(|| self.wish(shared))", "self.wish(shared)")],
    ),
    (
        "wish-to-leave",
        "nobody looks for ranks that wait to leave",
        [(NCCL + "shared.rs", ".or_else(|| self.wish(shared))", "")],
    ),
    (
        "cause",
        "what NCCL says of a lost rank is told and not what the group knows",
        [(NCCL + "thread.rs", "self.shared.fail(self.cause_of(failure))", "self.shared.fail(failure)")],
    ),
    (
        "context",
        "events of the context are used without a context of the thread",
        [(NCCL + "event.rs", "        let gpu = &self.home.gpu;\n        let _entered = gpu.enter()?;\n        let Some(record)", "        let gpu = &self.home.gpu;\n        let Some(record)")],
    ),
]


def copy(tree, folder):
    files = subprocess.run(["git", "-C", tree, "ls-files", "-z"], check=True, capture_output=True).stdout
    files = files.decode().split("\0")
    for old in pathlib.Path(folder).rglob("*.rs"):
        if str(old.relative_to(folder)) not in files:
            old.unlink()
    for file in files:
        source, target = pathlib.Path(tree, file), pathlib.Path(folder, file)
        if not file or not source.is_file():
            continue
        contents = source.read_bytes()
        if not target.is_file() or target.read_bytes() != contents:
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(contents)


def main():
    if sys.argv[1] == "--copy":
        copy(*sys.argv[2:])
        return
    if sys.argv[1:] == ["--list"]:
        print("\n".join(name for name, _, _ in MUTATIONS))
        return
    wanted, folder = sys.argv[1:]
    text, edits = next((text, edits) for name, text, edits in MUTATIONS if name == wanted)
    for file, before, after in edits:
        path = pathlib.Path(folder, file)
        source = path.read_text()
        if source.count(before) != 1:
            sys.exit(f"{wanted}: {file} has {before!r} {source.count(before)} times, expected once")
        path.write_text(source.replace(before, after))
    print(text)


main()
