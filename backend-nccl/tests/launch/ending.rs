//! How a job ends: failures, signals, and what must not be left behind.

use std::os::unix::process::CommandExt;

use nix::{
    sys::signal::{SigHandler, Signal, kill, signal},
    unistd::Pid,
};

use crate::{GONE, all_gone, burnrun, finish, is_alive, pids, run, sorted_lines, text, wait_for};

#[test]
fn the_first_failing_rank_gives_the_exit_code_and_the_last_lines() {
    let script = "if [ $RANK = 2 ]; then echo loss is NaN >&2; exit 7; fi; sleep 60";
    let output = run(&["--nproc-per-node", "4"], script);
    assert_eq!(output.status.code(), Some(7));
    let stderr = text(&output.stderr);
    let lines: Vec<_> = stderr.lines().collect();
    let [error, cause, tail, help] = lines[lines.len() - 4..] else { panic!("{stderr}") };
    assert!(
        error.starts_with("error: rank 2 (pid ") && error.ends_with(") failed first: exit code 7"),
        "{stderr}"
    );
    assert_eq!((cause, tail), ("cause: its last lines on stderr are", "  loss is NaN"));
    assert!(help.starts_with("help: "), "{stderr}");
    for rank in [0, 1, 3] {
        let note = format!("note: rank {rank} (pid ");
        let line = lines.iter().find(|line| line.starts_with(&note)).unwrap_or_else(|| panic!("{stderr}"));
        assert!(line.ends_with("as a consequence: SIGTERM, ended by the launcher"), "{line}");
    }
}

#[test]
fn ranks_that_end_by_themselves_after_a_failure_are_not_signalled() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let script = format!(
        "cd {}; if [ $RANK = 1 ]; then echo > gone; exit 3; fi; \
         until [ -e gone ]; do sleep 0.01; done; sleep 0.1; echo peer 1 is gone >&2; exit 4",
        folder.path().display()
    );
    let output = run(&["--nproc-per-node", "2"], &script);
    assert_eq!(output.status.code(), Some(3));
    let stderr = text(&output.stderr);
    assert!(stderr.contains("ended as a consequence: exit code 4\n"), "{stderr}");
}

#[test]
fn a_deadly_signal_is_named() {
    let output = run(&["--nproc-per-node", "2"], "if [ $RANK = 1 ]; then kill -KILL $$; fi; sleep 60");
    assert_eq!(output.status.code(), Some(128 + 9));
    let stderr = text(&output.stderr);
    assert!(
        stderr.contains("error: rank 1 (pid ") && stderr.contains(") failed first: SIGKILL\n"),
        "{stderr}"
    );
    assert!(stderr.lines().last().is_some_and(|line| line.contains("memory")), "{stderr}");
}

#[test]
fn the_smallest_timestamp_of_the_error_files_is_the_first_cause() {
    // Rank 0 fails first and ends last.
    let script = r#"
        report() { printf '{"message": "%s", "timestamp": %s}' "$1" "$2" > "$BURN_NCCL_ERROR_FILE"; }
        if [ $RANK = 0 ]; then report 'disk is full' 1000.25; sleep 0.05; exit 5; fi
        until [ -e "${BURN_NCCL_ERROR_FILE%1.json}0.json" ]; do sleep 0.01; done
        report 'lost peer 0' 1000.5; exit 6"#;
    let output = run(&["--nproc-per-node", "2"], script);
    assert_eq!(output.status.code(), Some(5));
    let stderr = text(&output.stderr);
    assert!(stderr.contains("exit code 6: lost peer 0\n"), "{stderr}");
    assert!(stderr.contains("failed first: exit code 5\ncause: disk is full\n"), "{stderr}");
}

#[test]
fn a_rank_that_ignores_sigterm_is_gone_after_the_grace() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let script =
        format!("trap '' TERM; echo $$ > {}/$RANK; while :; do sleep 0.1; done", folder.path().display());
    let child =
        burnrun(&["--nproc-per-node", "2", "--grace-seconds", "1"], &script).spawn().expect("burnrun starts");
    let ranks = pids(folder.path(), 2);
    kill(Pid::from_raw(child.id() as i32), Signal::SIGTERM).expect("signalled");
    let output = finish(child);
    assert_eq!(output.status.code(), Some(128 + 15));
    assert!(!ranks.iter().any(|pid| is_alive(*pid)));
    let last = "error: the job was ended by SIGTERM; killed after the grace: rank 0, 1";
    assert_eq!(text(&output.stderr).lines().last(), Some(last));
}

#[test]
fn signals_are_passed_on_and_become_the_exit_code() {
    for (sent, name, code) in
        [(Signal::SIGINT, "INT", 130), (Signal::SIGHUP, "HUP", 129), (Signal::SIGQUIT, "QUIT", 131)]
    {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let script = format!(
            "trap 'echo got {name}; exit 0' {name}; echo $$ > {}/$RANK; while :; do sleep 0.1; done",
            folder.path().display()
        );
        let child = burnrun(&["--nproc-per-node", "2"], &script).spawn().expect("burnrun starts");
        pids(folder.path(), 2);
        kill(Pid::from_raw(child.id() as i32), sent).expect("signalled");
        let output = finish(child);
        assert_eq!(output.status.code(), Some(code));
        let expected = [format!("[rank 0] got {name}"), format!("[rank 1] got {name}")];
        assert_eq!(sorted_lines(&output.stdout), expected);
    }
}

#[test]
fn a_signal_that_reaches_the_ranks_first_is_still_the_cause() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let script = format!("echo $$ > {}/$RANK; exec sleep 60", folder.path().display());
    let child = burnrun(&["--nproc-per-node", "2"], &script).spawn().expect("burnrun starts");
    let launcher = Pid::from_raw(child.id() as i32);
    for pid in [pids(folder.path(), 2)[0], launcher] {
        kill(pid, Signal::SIGTERM).expect("signalled");
    }
    let output = finish(child);
    assert_eq!(output.status.code(), Some(143));
    assert_eq!(text(&output.stderr), "error: the job was ended by SIGTERM\n");
}

#[test]
fn a_rank_that_leaves_to_go_on_later_gives_the_others_the_grace_to_do_the_same() {
    let script = "[ $BURN_NCCL_RESTART_COUNT = 0 ] || exit 9; [ $RANK = 1 ] && exit 75; \
        trap 'echo told; exit 9' TERM; for i in 1 2 3 4 5 6 7 8; do sleep 0.2; done; exit 75";
    let output = run(&["--nproc-per-node", "2", "--max-restarts", "2"], script);
    assert_eq!((output.status.code(), text(&output.stdout)), (Some(75), String::new()), "{output:?}");
    // One that does not come to an end is told to, and it is a stop all the same.
    let script = "[ $RANK = 1 ] && exit 75; trap 'echo told; exit 9' TERM; while :; do sleep 0.1; done";
    let output = run(&["--nproc-per-node", "2", "--max-restarts", "2", "--grace-seconds", "1"], script);
    assert_eq!((output.status.code(), text(&output.stdout)), (Some(75), "[rank 0] told\n".to_owned()));
}

#[test]
fn a_signal_while_a_failed_attempt_ends_is_the_last_word_on_restarts() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let told = folder.path().join("told");
    let script = format!(
        "[ $BURN_NCCL_RESTART_COUNT = 0 ] || exit 0; [ $RANK = 1 ] && exit 3; \
         trap 'echo > {}' TERM; while :; do sleep 0.1; done",
        told.display()
    );
    let options = ["--nproc-per-node", "2", "--max-restarts", "3", "--grace-seconds", "4"];
    let child = burnrun(&options, &script).spawn().expect("burnrun starts");
    wait_for("rank 0 to be told to end", || told.exists().then_some(()));
    kill(Pid::from_raw(child.id() as i32), Signal::SIGTERM).expect("signalled");
    let output = finish(child);
    assert_eq!(output.status.code(), Some(3), "{output:?}");
    assert!(text(&output.stderr).contains("were not started again: a signal came\n"), "{output:?}");
}

#[test]
fn a_signal_that_was_ignored_at_the_start_stays_ignored() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let script = format!("echo $$ > {}/$RANK; sleep 1; echo done", folder.path().display());
    let mut command = burnrun(&["--nproc-per-node", "1"], &script);
    // SAFETY: one system call between fork and exec.
    unsafe {
        command.pre_exec(|| {
            signal(Signal::SIGHUP, SigHandler::SigIgn)?;
            Ok(())
        })
    };
    let child = command.spawn().expect("burnrun starts");
    pids(folder.path(), 1);
    kill(Pid::from_raw(child.id() as i32), Signal::SIGHUP).expect("signalled");
    let output = finish(child);
    assert_eq!((output.status.code(), text(&output.stdout)), (Some(0), "[rank 0] done\n".into()));
}

#[test]
fn killing_the_launcher_leaves_neither_ranks_nor_what_they_started() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    // Each rank starts a child, which starts another; none of them reacts to a polite signal.
    let script = format!(
        "trap '' TERM HUP INT; cd {}; echo $$ > rank-$RANK; \
         sh -c 'trap \"\" TERM HUP; echo $$ > child-'$RANK'; sleep 300 & echo $! > grandchild-'$RANK'; wait' & \
         while :; do sleep 0.1; done",
        folder.path().display()
    );
    let mut child = burnrun(&["--nproc-per-node", "2"], &script).spawn().expect("burnrun starts");
    let started = pids(folder.path(), 6);
    assert!(started.iter().all(|pid| is_alive(*pid)));
    child.kill().expect("killed");
    child.wait().expect("reaped");
    assert!(all_gone(&started, GONE), "left behind: {started:?}");
}

#[test]
fn what_a_rank_leaves_behind_ends_with_the_job() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let script = format!("sleep 300 & echo $! > {}/$RANK", folder.path().display());
    let output = run(&["--nproc-per-node", "2"], &script);
    assert_eq!(output.status.code(), Some(0));
    assert!(all_gone(&pids(folder.path(), 2), GONE));
}
