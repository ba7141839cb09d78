//! Jobs of several nodes: launchers on one machine, each of which is a node.

use std::{
    fs,
    io::{BufRead, BufReader, Read, Write},
    net::{TcpListener, TcpStream},
    process::{Child, Command, Output, Stdio},
    time::{Duration, Instant},
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};

use crate::{
    DEADLINE, GONE, all_gone, burnrun, finish, is_alive, number_after, pids, port, sorted_lines, text,
    wait_for,
};

/// A warning that each launcher of several nodes without a secret begins with.
const WARNING: &str = "warning: the nodes have no secret";

const SECRET: &str = "00112233445566778899aabbccddeeff";

/// The launcher of one node of `nnodes`, with `ranks` ranks.
fn node(number: usize, nnodes: usize, ranks: usize, port: &str, options: &[&str], script: &str) -> Command {
    let (number, nnodes, ranks) = (number.to_string(), nnodes.to_string(), ranks.to_string());
    let place = ["--nnodes", &nnodes, "--node-rank", &number, "--nproc-per-node", &ranks];
    let address = ["--master-addr", "127.0.0.1", "--master-port", port];
    let mut command = burnrun(&[&place[..], &address, options].concat(), script);
    command.env_remove("BURN_NCCL_SECRET");
    command
}

fn piped(mut command: Command) -> Command {
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn start(mut command: Command) -> Child {
    command.spawn().expect("burnrun starts")
}

/// Two nodes with two ranks each.
fn two(port: &str, options: &[&str], script: &str) -> [Child; 2] {
    [1, 0].map(|number| start(node(number, 2, 2, port, options, script)))
}

/// Both outputs, node 0's first.
fn ends([one, zero]: [Child; 2]) -> [Output; 2] {
    let one = std::thread::spawn(move || finish(one));
    let zero = finish(zero);
    [zero, one.join().expect("no panic")]
}

/// The launcher's own lines, without those of the ranks and the warning of every job without a secret.
fn own_lines(output: &Output) -> Vec<String> {
    let stderr = text(&output.stderr);
    let is_own = |line: &&str| !line.starts_with("[rank ") && !line.starts_with(WARNING);
    stderr.lines().filter(is_own).map(str::to_owned).collect()
}

fn send(child: &Child, signal: Signal) {
    kill(Pid::from_raw(child.id() as i32), signal).expect("signalled");
}

/// Waits for the first line of a launcher without a secret, which comes when it handles signals.
fn wait_for_warning(child: &mut Child) {
    let stderr = child.stderr.as_mut().expect("a pipe");
    let (mut line, mut byte) = (Vec::new(), [0]);
    while byte != [b'\n'] {
        stderr.read_exact(&mut byte).expect("a line");
        line.push(byte[0]);
    }
    assert!(text(&line).starts_with(WARNING), "{}", text(&line));
}

#[test]
fn ranks_of_nodes_of_different_sizes_are_one_job() {
    let port = port();
    let script = "echo $RANK $LOCAL_RANK $WORLD_SIZE $LOCAL_WORLD_SIZE $GROUP_RANK $MASTER_ADDR \
        $BURN_NCCL_RESTART_COUNT $TORCHELASTIC_MAX_RESTARTS; echo $MASTER_PORT $BURN_NCCL_RUN_ID $BURN_NCCL_SECRET >&2";
    // The other nodes come first and wait for node 0.
    let children = [(2, 2), (1, 1), (0, 3)].map(|(number, ranks)| {
        let child = start(node(number, 3, ranks, &port, &["--max-restarts", "1"], script));
        std::thread::sleep(Duration::from_millis(300));
        child
    });
    let outputs = children.map(finish);
    assert!(outputs.iter().all(|output| output.status.success()), "{outputs:#?}");
    let expected = [
        "[rank 0] 0 0 6 3 0 127.0.0.1 0 1",
        "[rank 1] 1 1 6 3 0 127.0.0.1 0 1",
        "[rank 2] 2 2 6 3 0 127.0.0.1 0 1",
        "[rank 3] 3 0 6 1 1 127.0.0.1 0 1",
        "[rank 4] 4 0 6 2 2 127.0.0.1 0 1",
        "[rank 5] 5 1 6 2 2 127.0.0.1 0 1",
    ];
    let mut lines: Vec<String> = outputs.iter().flat_map(|output| sorted_lines(&output.stdout)).collect();
    lines.sort();
    assert_eq!(lines, expected);
    let shared: Vec<String> = outputs
        .iter()
        .flat_map(|output| sorted_lines(&output.stderr))
        .filter_map(|line| Some(line.strip_prefix("[rank ")?.split_once("] ")?.1.to_owned()))
        .collect();
    assert!(shared.len() == 6 && shared.iter().all(|line| *line == shared[0]), "{shared:?}");
    let words: Vec<&str> = shared[0].split(' ').collect();
    assert_eq!((words[1].len(), words[2].len()), (32, 64));
    assert_ne!(words[0], &*port, "the ranks must not meet at the launchers' port");
    // Nobody needs a secret, and everybody is told.
    assert!(outputs.iter().all(|output| text(&output.stderr).starts_with(WARNING)));
}

#[test]
fn a_failure_on_one_node_ends_all_and_every_launcher_tells_of_it() {
    let (port, folder) = (port(), tempfile::tempdir().expect("a temporary folder"));
    let logs = folder.path().join("logs");
    let report = folder.path().join("report.json");
    let options = ["--log-dir", logs.to_str().expect("UTF-8"), "--report", report.to_str().expect("UTF-8")];
    let script = "if [ $RANK = 3 ]; then echo loss is NaN >&2; exit 7; fi; sleep 60";
    let outputs = ends(two(&port, &options, script));
    let host = nix::unistd::gethostname().expect("a name").into_string().expect("UTF-8");
    for output in &outputs {
        assert_eq!(output.status.code(), Some(7), "{outputs:#?}");
        let lines = own_lines(output);
        let [notes @ .., error, cause, tail, help] = &lines[..] else { panic!("{lines:#?}") };
        assert!(error.starts_with("error: rank 3 (pid "), "{lines:#?}");
        assert!(error.ends_with(&format!(") on node 1 ({host}) failed first: exit code 7")), "{lines:#?}");
        assert_eq!((cause.as_str(), tail.as_str()), ("cause: its last lines on stderr are", "  loss is NaN"));
        let log = logs.join("rank-3.log");
        assert_eq!(help, &format!("help: its full output is in {} on {host}", log.display()));
        for (rank, node) in [(0, 0), (1, 0), (2, 1)] {
            let end =
                format!("on node {node} ({host}) ended as a consequence: SIGTERM, ended by the launcher");
            let note = format!("note: rank {rank} (pid ");
            assert!(notes.iter().any(|line| line.starts_with(&note) && line.ends_with(&end)), "{lines:#?}");
        }
        assert_eq!(notes.len(), 3, "{lines:#?}");
    }
    let report: serde_json::Value =
        serde_json::from_slice(&fs::read(report).expect("a report")).expect("JSON");
    assert_eq!((&report["outcome"], &report["exit_code"]), (&"failed".into(), &7.into()));
    let first = &report["first"];
    assert_eq!((&first["rank"], &first["local_rank"], &first["node"]), (&3.into(), &1.into(), &1.into()));
    assert_eq!(
        (&first["ending"], &first["stderr"]),
        (&serde_json::json!({"code": 7}), &["loss is NaN"].into())
    );
    assert_eq!(report["consequences"].as_array().map(Vec::len), Some(3));
}

#[test]
fn a_killed_rank_starts_all_ranks_again_with_a_new_run_and_logs_of_their_own() {
    let (port, folder) = (port(), tempfile::tempdir().expect("a temporary folder"));
    let logs = folder.path().join("logs");
    let options = ["--max-restarts", "2", "--log-dir", logs.to_str().expect("UTF-8")];
    let script = "echo attempt $BURN_NCCL_RESTART_COUNT $TORCHELASTIC_RESTART_COUNT $BURN_NCCL_FLIGHT_RECORD; \
        echo $BURN_NCCL_RUN_ID $BURN_NCCL_SECRET $MASTER_PORT >&2; \
        [ $BURN_NCCL_RESTART_COUNT = 1 ] && exit 0; [ $RANK = 2 ] && { sleep 0.3; kill -KILL $$; }; exec sleep 60";
    let outputs = ends(two(&port, &options, script));
    for output in &outputs {
        assert_eq!(output.status.code(), Some(0), "{outputs:#?}");
        let lines = own_lines(output);
        let [note] = &lines[..] else { panic!("{lines:#?}") };
        assert!(note.starts_with("note: rank 2 (pid ") && note.contains("failed first: SIGKILL"), "{note}");
        assert!(note.ends_with("; restart 1 of 2"), "{note}");
    }
    let log =
        |name: &str| fs::read_to_string(logs.join(name)).unwrap_or_else(|error| panic!("{name}: {error}"));
    // The two streams of a rank may come in either order.
    let run_of = |name: &str| {
        let log = log(name);
        log.lines().find(|line| !line.starts_with("attempt")).expect("a line").to_owned()
    };
    let runs = ["rank-", "restart-1/rank-"]
        .map(|name| (0..4).map(|rank| run_of(&format!("{name}{rank}.log"))).collect::<Vec<_>>());
    assert!(runs.iter().all(|run| run.iter().all(|line| *line == run[0])), "{runs:?}");
    for (first, second) in runs[0][0].split(' ').zip(runs[1][0].split(' ')).take(2) {
        assert_ne!(first, second, "a restart has a run id and a secret of its own");
    }
    assert!(log("rank-3.log").contains(&format!("attempt 0 0 {}\n", logs.display())));
    assert!(log("restart-1/rank-3.log").contains(&format!("attempt 1 1 {}/restart-1\n", logs.display())));
}

#[test]
fn restarts_end_with_the_last_failure_and_a_line_for_each_before() {
    let script = "echo attempt $BURN_NCCL_RESTART_COUNT >&2; [ $RANK = $BURN_NCCL_RESTART_COUNT ] && exit 3; exec sleep 60";
    let output = crate::run(&["--nproc-per-node", "3", "--max-restarts", "2"], script);
    assert_eq!(output.status.code(), Some(3));
    let lines = own_lines(&output);
    let starts = |start: &str| lines.iter().filter(|line| line.starts_with(start)).count();
    for restart in [1, 2] {
        let line = format!("note: before restart {restart}, rank {} (pid ", restart - 1);
        assert_eq!(starts(&line), 1, "{lines:#?}");
    }
    assert_eq!(starts("error: rank 2 (pid "), 1, "{lines:#?}");
    assert!(lines.contains(&"  attempt 2".to_owned()), "{lines:#?}");
}

#[test]
fn wrong_options_of_the_program_and_a_stop_are_not_worth_a_restart() {
    for (code, words) in [(2, "exit code 2 says that the options are wrong"), (75, "can be resumed")] {
        let script = format!("echo once; exit {code}");
        let output = crate::run(&["--nproc-per-node", "1", "--max-restarts", "3"], &script);
        assert_eq!((output.status.code(), text(&output.stdout)), (Some(code), "[rank 0] once\n".to_owned()));
        assert!(text(&output.stderr).contains(words), "{output:?}");
    }
}

#[test]
fn a_signal_to_one_launcher_reaches_the_ranks_of_all() {
    let (port, folder) = (port(), tempfile::tempdir().expect("a temporary folder"));
    let script = format!(
        "trap 'echo stopped; exit 75' TERM; echo $$ > {}/$RANK; while :; do sleep 0.1; done",
        folder.path().display()
    );
    let children = two(&port, &["--max-restarts", "1"], &script);
    pids(folder.path(), 4);
    send(&children[0], Signal::SIGTERM);
    let outputs = ends(children);
    for output in &outputs {
        assert_eq!(output.status.code(), Some(75), "{outputs:#?}");
        let note =
            "note: the job was stopped by SIGTERM and can be resumed: its ranks left with exit code 75";
        assert_eq!(own_lines(output), [note]);
        assert_eq!(text(&output.stdout).lines().count(), 2, "{output:?}");
    }
}

#[test]
fn a_second_signal_kills_the_ranks_of_all_nodes_at_once() {
    let (port, folder) = (port(), tempfile::tempdir().expect("a temporary folder"));
    let told = tempfile::tempdir().expect("a temporary folder");
    let script = format!(
        "trap 'echo > {}/$RANK' TERM; echo $$ > {}/$RANK; while :; do sleep 0.1; done",
        told.path().display(),
        folder.path().display()
    );
    let children = two(&port, &["--grace-seconds", "300"], &script);
    let ranks = pids(folder.path(), 4);
    send(&children[1], Signal::SIGTERM);
    let count = || fs::read_dir(told.path()).expect("listed").count();
    wait_for("the ranks to be told to end", || (count() == 4).then_some(()));
    // From here on the launcher has had the first one for long enough.
    std::thread::sleep(Duration::from_millis(1100));
    assert!(ranks.iter().all(|rank| is_alive(*rank)));
    send(&children[1], Signal::SIGTERM);
    for output in ends(children) {
        assert_eq!(output.status.code(), Some(143), "{output:?}");
        let last = "error: the job was ended by SIGTERM; killed after the grace: rank 0, 1, 2, 3";
        assert_eq!(own_lines(&output), [last]);
    }
    assert!(all_gone(&ranks, GONE));
}

#[test]
fn the_same_request_to_each_launcher_is_not_a_second_one() {
    let (port, folder) = (port(), tempfile::tempdir().expect("a temporary folder"));
    let script = format!(
        "trap 'sleep 3; exit 75' TERM; echo $$ > {}/$RANK; while :; do sleep 0.1; done",
        folder.path().display()
    );
    let children = two(&port, &[], &script);
    pids(folder.path(), 4);
    send(&children[0], Signal::SIGTERM);
    std::thread::sleep(Duration::from_millis(1300));
    send(&children[1], Signal::SIGTERM);
    for output in ends(children) {
        assert_eq!(output.status.code(), Some(75), "{output:?}");
    }
}

#[test]
fn other_signals_are_passed_on_and_end_nothing() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let script = format!(
        "trap 'echo got it; exit 0' USR1; echo $$ > {}/$RANK; while :; do sleep 0.1; done",
        folder.path().display()
    );
    let child = start(burnrun(&["--nproc-per-node", "2", "--standalone"], &script));
    pids(folder.path(), 2);
    send(&child, Signal::SIGUSR1);
    let output = finish(child);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert_eq!(sorted_lines(&output.stdout), ["[rank 0] got it", "[rank 1] got it"]);
}

#[test]
fn a_killed_launcher_is_named_with_its_ranks_and_leaves_none() {
    let (port, folder) = (port(), tempfile::tempdir().expect("a temporary folder"));
    let script = format!("echo $$ > {}/$RANK; exec sleep 60", folder.path().display());
    let [mut one, zero] = two(&port, &[], &script);
    let ranks = pids(folder.path(), 4);
    one.kill().expect("killed");
    one.wait().expect("reaped");
    let start = Instant::now();
    let output = finish(zero);
    assert!(start.elapsed() < Duration::from_secs(25), "{:?}", start.elapsed());
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let lines = own_lines(&output);
    let error = lines.iter().find(|line| line.starts_with("error: rank 2 (pid ")).expect("an error");
    assert!(
        error.contains(") on node 1 (") && error.ends_with("failed first: lost with its node"),
        "{lines:#?}"
    );
    assert!(
        lines.iter().any(|line| line.starts_with("cause: the launcher of node 1 on host ")),
        "{lines:#?}"
    );
    assert!(lines.iter().any(|line| line.starts_with("note: rank 3 (pid ")), "{lines:#?}");
    assert!(all_gone(&ranks, GONE));
}

#[test]
fn a_launcher_that_comes_back_brings_the_job_back() {
    let (port, folder) = (port(), tempfile::tempdir().expect("a temporary folder"));
    let script = format!(
        "[ $BURN_NCCL_RESTART_COUNT = 1 ] && {{ echo again; exit 0; }}; echo $$ > {}/$RANK; exec sleep 60",
        folder.path().display()
    );
    let options = ["--max-restarts", "1"];
    let [mut one, zero] = two(&port, &options, &script);
    pids(folder.path(), 4);
    one.kill().expect("killed");
    one.wait().expect("reaped");
    let again = start(node(1, 2, 2, &port, &options, &script));
    let outputs = ends([again, zero]);
    for (output, ranks) in outputs.iter().zip([["0", "1"], ["2", "3"]]) {
        assert_eq!(output.status.code(), Some(0), "{outputs:#?}");
        assert_eq!(sorted_lines(&output.stdout), ranks.map(|rank| format!("[rank {rank}] again")));
    }
    assert!(text(&outputs[0].stderr).contains("lost with its node"), "{outputs:#?}");
}

#[test]
fn a_launcher_that_comes_back_before_its_old_connection_is_missed_gets_its_place() {
    let (port, folder) = (port(), tempfile::tempdir().expect("a temporary folder"));
    let script = format!(
        "[ $BURN_NCCL_RESTART_COUNT = 1 ] && {{ echo again; exit 0; }}; echo $$ > {}/$RANK; exec sleep 60",
        folder.path().display()
    );
    let options = ["--max-restarts", "1", "--heartbeat-timeout-seconds", "3"];
    let [mut one, zero] = two(&port, &options, &script);
    pids(folder.path(), 4);
    // Its connection stays open and silent, as that of a host that has lost its power.
    send(&one, Signal::SIGSTOP);
    let again = start(node(1, 2, 2, &port, &options, &script));
    for output in ends([again, zero]) {
        assert_eq!(output.status.code(), Some(0), "{output:?}");
    }
    one.kill().expect("killed");
    one.wait().expect("reaped");
}

#[test]
fn a_signal_that_ends_nothing_does_not_end_the_search_for_node_0() {
    let port = port();
    let mut one = start(node(1, 2, 1, &port, &[], "echo up"));
    wait_for_warning(&mut one);
    send(&one, Signal::SIGUSR1);
    std::thread::sleep(Duration::from_millis(500));
    let zero = start(node(0, 2, 1, &port, &[], "echo up"));
    for output in ends([one, zero]) {
        assert_eq!((output.status.code(), text(&output.stdout).len()), (Some(0), 12), "{output:?}");
    }
}

#[test]
fn a_launcher_that_is_stopped_is_lost_when_it_gives_no_sign_of_life() {
    let (port, folder) = (port(), tempfile::tempdir().expect("a temporary folder"));
    let script = format!("echo $$ > {}/$RANK; exec sleep 60", folder.path().display());
    let [one, zero] = two(&port, &["--heartbeat-timeout-seconds", "2"], &script);
    let ranks = pids(folder.path(), 4);
    send(&one, Signal::SIGSTOP);
    let output = finish(zero);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let silent = number_after(&text(&output.stderr), "was lost: no sign of life for ");
    assert!(silent >= 2.0, "{output:?}");
    // When it goes on it finds that the job is over, and takes its ranks with it.
    send(&one, Signal::SIGCONT);
    let output = finish(one);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(text(&output.stderr).contains("error: the launcher of node 0 at 127.0.0.1:"), "{output:?}");
    assert!(all_gone(&ranks, GONE));
}

#[test]
fn losing_node_0_ends_the_ranks_of_the_others() {
    let (port, folder) = (port(), tempfile::tempdir().expect("a temporary folder"));
    let script = format!("echo $$ > {}/$RANK; exec sleep 60", folder.path().display());
    let [one, mut zero] = two(&port, &["--max-restarts", "3"], &script);
    let ranks = pids(folder.path(), 4);
    zero.kill().expect("killed");
    zero.wait().expect("reaped");
    let output = finish(one);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let stderr = text(&output.stderr);
    // How it is seen depends on what was under way.
    assert!(stderr.contains("error: the launcher of node 0 at 127.0.0.1:"), "{stderr}");
    assert!(stderr.contains("; the ranks of this node were ended; start the job again"), "{stderr}");
    assert!(all_gone(&ranks, GONE));
}

#[test]
fn who_does_not_belong_is_refused_on_its_side_and_the_job_goes_on_waiting() {
    let port = port();
    let mut zero = start(node(0, 2, 1, &port, &[], "echo up"));
    let refused = |number, nnodes, options: &[&str]| {
        let output = finish(start(node(number, nnodes, 1, &port, options, "echo up")));
        assert_eq!((output.status.code(), text(&output.stdout)), (Some(1), String::new()), "{output:?}");
        let lines = own_lines(&output);
        let [error] = &lines[..] else { panic!("{lines:#?}") };
        let start = format!("error: node 0 at 127.0.0.1:{port} refused node {number}: ");
        error.strip_prefix(&start).unwrap_or_else(|| panic!("{error}")).to_owned()
    };
    let folder = tempfile::tempdir().expect("a temporary folder");
    assert_eq!(refused(1, 3, &[]), "node 0 was started with --nnodes 2, node 1 with 3");
    assert_eq!(refused(2, 3, &[]), "node 0 was started with --nnodes 2, node 2 with 3");
    // Strangers who say nothing, or something else.
    let silent: Vec<_> =
        (0..100).map(|_| TcpStream::connect(("127.0.0.1", port.parse().expect("a port")))).collect();
    let mut other = TcpStream::connect(("127.0.0.1", port.parse().expect("a port"))).expect("connected");
    other.write_all(b"GET / HTTP/1.1\r\n\r\n").expect("written");
    other.set_read_timeout(Some(DEADLINE)).expect("set");
    assert!(matches!(other.read(&mut [0; 1]), Ok(0) | Err(_)), "a stranger is not answered");
    let script = format!("echo up; while [ ! -e {}/end ]; do sleep 0.1; done", folder.path().display());
    let one = start(node(1, 2, 1, &port, &[], &script));
    let mut shown = [0; 12];
    zero.stdout.as_mut().expect("a pipe").read_exact(&mut shown).expect("a line when node 1 has come");
    // It is asked to wait for as long as the one before it could be its own old connection.
    let began = Instant::now();
    let taken = refused(1, 2, &["--heartbeat-timeout-seconds", "1"]);
    assert!(taken.ends_with("is node 1 already") && began.elapsed() > Duration::from_secs(1), "{taken}");
    fs::write(folder.path().join("end"), "").expect("written");
    for output in ends([one, zero]) {
        assert!(output.status.success(), "{output:?}");
    }
    drop(silent);
}

#[test]
fn nodes_with_the_same_secret_meet_and_others_are_refused() {
    let (port, folder) = (port(), tempfile::tempdir().expect("a temporary folder"));
    let file = |name: &str, text: &str| {
        let path = folder.path().join(name);
        fs::write(&path, text).expect("written");
        path.to_str().expect("UTF-8").to_owned()
    };
    let (right, wrong) = (file("right", &format!("{SECRET}\n")), file("wrong", &SECRET.replace('0', "1")));
    let script = "echo $BURN_NCCL_SECRET";
    let zero = start(node(0, 2, 1, &port, &["--secret-file", &right], script));
    // Whoever answers without a proof is no reason to give up, but is named in the end.
    let limit = ["--rdzv-timeout-seconds", "2", "--secret-file"];
    let output = finish(start(node(1, 2, 1, &port, &[&limit[..], &[&wrong]].concat(), script)));
    assert_eq!(output.status.code(), Some(1));
    let error = text(&output.stderr);
    assert!(
        error.contains("did not reach node 0 at ") && error.contains(": node 0 does not know"),
        "{error}"
    );
    let refused = finish(start(node(1, 2, 1, &port, &[], script)));
    assert!(text(&refused.stderr).contains("refused node 1: node 0 has a secret"), "{refused:?}");
    // By the other way to give it.
    let one = start({
        let mut command = node(1, 2, 1, &port, &[], script);
        command.env("BURN_NCCL_SECRET", SECRET);
        command
    });
    let outputs = ends([one, zero]);
    let [zero, one] = outputs.map(|output| {
        assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
        text(&output.stdout).split_once("] ").expect("a prefix").1.to_owned()
    });
    // The ranks have a secret, and it is not the launchers'.
    assert!(zero == one && zero.len() == 65, "{zero} {one}");
}

#[test]
fn a_stranger_at_the_address_cannot_end_a_launcher_that_has_a_secret() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("bound").port().to_string();
    let mut command = node(1, 2, 1, &port, &["--rdzv-timeout-seconds", "2"], "echo up");
    let child = start({
        command.env("BURN_NCCL_SECRET", SECRET);
        command
    });
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let text = r#"{"Refused":{"reason":"go \u001b[2Jaway","is_final":true}}"#;
            let frame = [&(text.len() as u32).to_le_bytes()[..], text.as_bytes()].concat();
            let _ = stream.and_then(|mut stream| stream.write_all(&frame));
        }
    });
    let output = finish(child);
    let error = text(&output.stderr);
    assert!(error.contains("did not reach node 0") && !error.contains('\x1b'), "{error}");
}

#[test]
fn a_wrong_address_and_a_node_that_does_not_come_are_named_within_the_time_limit() {
    let port = port();
    let with_limit = |number| {
        let options = ["--rdzv-timeout-seconds", "2"];
        let began = Instant::now();
        let output = finish(start(node(number, 2, 1, &port, &options, "echo up")));
        assert!(began.elapsed() < Duration::from_secs(25), "{:?}", began.elapsed());
        assert_eq!((output.status.code(), text(&output.stdout)), (Some(1), String::new()), "{output:?}");
        own_lines(&output).join("\n")
    };
    let alone = with_limit(0);
    let waited = number_after(&alone, "error: node 1 did not come within ");
    assert!(waited >= 2.0 && alone.contains(" s: start burnrun on each node"), "{alone}");
    let lost = with_limit(1);
    let waited =
        number_after(&lost, &format!("error: node 1 did not reach node 0 at 127.0.0.1:{port} within "));
    assert!(waited >= 2.0 && lost.contains("Connection refused") && lost.contains("firewall"), "{lost}");
}

#[test]
fn a_node_that_cannot_reach_node_0_says_why_while_it_tries() {
    // A port that takes connections and never answers, which is the longest of all waits.
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("bound").port().to_string();
    let output = finish(start(node(1, 2, 1, &port, &["--rdzv-timeout-seconds", "3"], "echo up")));
    let error = text(&output.stderr);
    assert!(number_after(&error, " within ") >= 3.0 && error.contains("does not answer"), "{error}");
    let port = crate::port();
    let mut child = start(node(1, 2, 1, &port, &[], "echo up"));
    let mut lines = BufReader::new(child.stderr.take().expect("a pipe")).lines();
    let note = lines.nth(1).expect("a line").expect("text");
    let begin = format!("note: node 1 has not reached node 0 at 127.0.0.1:{port} yet: Connection refused");
    assert!(note.starts_with(&begin), "{note}");
    send(&child, Signal::SIGTERM);
    assert_eq!(finish(child).status.code(), Some(143));
}

#[test]
fn a_signal_ends_the_wait_for_other_nodes() {
    let port = port();
    for number in [0, 1] {
        let mut child = start(node(number, 2, 1, &port, &[], "echo up"));
        wait_for_warning(&mut child);
        send(&child, Signal::SIGINT);
        let output = finish(child);
        assert_eq!(output.status.code(), Some(130), "{output:?}");
        assert_eq!(own_lines(&output), ["error: the job was ended by SIGINT"]);
    }
}

#[test]
fn a_port_that_is_taken_is_named() {
    let other = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = other.local_addr().expect("bound").port().to_string();
    let output = finish(start(node(0, 2, 1, &port, &[], "echo up")));
    assert_eq!((output.status.code(), text(&output.stdout)), (Some(1), String::new()));
    assert!(own_lines(&output)[0].starts_with(&format!("error: cannot use port {port}")), "{output:?}");
}

#[test]
fn four_jobs_at_once_do_not_meet() {
    let jobs: Vec<_> = (0..4).map(|_| port()).collect();
    let children: Vec<_> =
        jobs.iter().map(|port| two(port, &[], &format!("echo {port}; sleep 0.5"))).collect();
    for (port, children) in jobs.iter().zip(children) {
        let outputs = ends(children);
        let lines: Vec<_> = outputs.iter().flat_map(|output| sorted_lines(&output.stdout)).collect();
        assert_eq!(lines, [0, 1, 2, 3].map(|rank| format!("[rank {rank}] {port}")), "{outputs:#?}");
    }
}

#[test]
fn a_program_that_one_node_does_not_have_ends_the_job_on_all() {
    let port = port();
    let place = node(1, 2, 1, &port, &["--max-restarts", "4"], "");
    let mut command = Command::new(env!("CARGO_BIN_EXE_burnrun"));
    command.args(place.get_args().take_while(|argument| *argument != "--")).args(["--", "/no/such/train"]);
    let one = start(piped(command));
    let zero = start(node(0, 2, 1, &port, &["--max-restarts", "4"], "exec sleep 60"));
    let [zero, one] = ends([one, zero]);
    assert_eq!((zero.status.code(), one.status.code()), (Some(1), Some(1)), "{zero:?} {one:?}");
    let (zero, one) = (own_lines(&zero), own_lines(&one));
    assert!(one[0].starts_with("error: cannot start ") && one[0].contains("as rank 1"), "{one:?}");
    assert!(zero[0].starts_with("error: node 1 on host ") && zero[0].contains("as rank 1"), "{zero:?}");
}

#[test]
fn only_the_chosen_ranks_are_shown_and_all_are_logged() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let options = ["--nproc-per-node", "3", "--local-ranks-filter", "0,2", "--log-dir"];
    let output = crate::run(
        &[&options[..], &[folder.path().to_str().expect("UTF-8")]].concat(),
        "echo out; [ $RANK = 1 ] && { echo hidden >&2; exit 4; }; sleep 60",
    );
    assert_eq!(output.status.code(), Some(4));
    assert_eq!(sorted_lines(&output.stdout), ["[rank 0] out", "[rank 2] out"]);
    assert!(!text(&output.stderr).contains("[rank 1]"), "{output:?}");
    // What is not shown is in the report of the failure.
    assert!(text(&output.stderr).contains("\n  hidden\n"), "{output:?}");
    let log = fs::read(folder.path().join("rank-1.log")).expect("a log");
    assert_eq!(sorted_lines(&log), ["hidden", "out"]);
}

#[test]
fn options_that_contradict_each_other_are_wrong() {
    let wrong: [&[&str]; 7] = [
        &["--nproc-per-node", "1", "--nnodes", "2", "--", "true"],
        &["--nproc-per-node", "1", "--nnodes", "0", "--", "true"],
        &["--nproc-per-node", "1", "--standalone", "--nnodes", "2", "--node-rank", "0", "--", "true"],
        &["--nproc-per-node", "1", "--standalone", "--master-port", "4000", "--", "true"],
        &["--nproc-per-node", "1", "--local-ranks-filter", "0", "--no-prefix", "--", "true"],
        &["--nproc-per-node", "1", "--rdzv-timeout-seconds", "0", "--", "true"],
        &["--nproc-per-node", "1", "--max-restarts", "-1", "--", "true"],
    ];
    for options in wrong {
        let output =
            Command::new(env!("CARGO_BIN_EXE_burnrun")).args(options).output().expect("burnrun starts");
        assert_eq!(output.status.code(), Some(2), "{options:?}: {output:?}");
    }
    let output = crate::run(&["--nproc-per-node", "1", "--nnodes", "2", "--node-rank", "2"], "true");
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("node 2 is not one of 2"), "{output:?}");
}
