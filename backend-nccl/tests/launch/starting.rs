//! What ranks are given, how their output is shown, and what is refused before any of them starts.

use std::{
    fs,
    io::{BufRead, BufReader, Read},
    process::Command,
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};

use crate::{burnrun, finish, port, run, sorted_lines, text};

#[test]
fn each_rank_finds_its_place_in_its_environment() {
    let script = "echo $RANK $LOCAL_RANK $WORLD_SIZE $LOCAL_WORLD_SIZE $MASTER_ADDR $MASTER_PORT; \
        echo $BURN_NCCL_RUN_ID $RAYON_NUM_THREADS >&2";
    let port = port();
    let options = ["--nproc-per-node", "3", "--master-addr", "localhost", "--master-port", &port];
    let output = run(&options, script);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let expected = [0, 1, 2].map(|rank| format!("[rank {rank}] {rank} {rank} 3 3 localhost {port}"));
    assert_eq!(sorted_lines(&output.stdout), expected);
    let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get());
    let lines = sorted_lines(&output.stderr);
    let words: Vec<Vec<_>> = lines.iter().map(|line| line.split(' ').collect()).collect();
    assert_eq!(words.len(), 3);
    assert!(words.iter().all(|line| line[2].len() == 32 && line[2] == words[0][2]), "{lines:?}");
    assert!(words.iter().all(|line| line[3] == (cores / 3).max(1).to_string()), "{lines:?}");
}

#[test]
fn the_users_thread_count_and_the_nodes_rank_are_treated_as_documented() {
    let mut command = burnrun(&["--nproc-per-node", "1"], "echo $OMP_NUM_THREADS $RANK $WORLD_SIZE");
    let child = command.env("OMP_NUM_THREADS", "5").env("RANK", "7").env("WORLD_SIZE", "9").spawn();
    assert_eq!(text(&finish(child.expect("burnrun starts")).stdout), "[rank 0] 5 0 1\n");
}

#[test]
fn lines_stay_whole_whatever_their_length() {
    // Each rank writes 20 lines of 100 kB and one of 1 MB without an end, in pieces.
    let script = "c=$RANK; p=$(printf \"%1000s\" | tr ' ' $c); \
        line() { i=0; while [ $i -lt $1 ]; do printf %s $p; i=$((i+1)); done; }; \
        n=0; while [ $n -lt 20 ]; do line 100; echo; n=$((n+1)); done; line 1000";
    let output = run(&["--nproc-per-node", "2"], script);
    assert_eq!(output.status.code(), Some(0));
    let stdout = text(&output.stdout);
    assert!(stdout.ends_with('\n'));
    for rank in ["0", "1"] {
        let prefix = format!("[rank {rank}] ");
        let lines: Vec<_> = stdout.lines().filter_map(|line| line.strip_prefix(&prefix)).collect();
        let lengths: Vec<_> = lines.iter().map(|line| line.len()).collect();
        assert_eq!(lengths, [&[100_000; 20][..], &[1_000_000]].concat());
        assert!(
            lines.iter().all(|line| line.chars().all(|c| rank.starts_with(c))),
            "a line of rank {rank} is mixed"
        );
    }
    assert_eq!(stdout.lines().count(), 42);
}

#[test]
fn bytes_that_are_not_text_pass_through() {
    let output = run(&["--nproc-per-node", "1"], r"printf '\377\000\200\n\r\tend'");
    assert_eq!(output.stdout, b"[rank 0] \xff\x00\x80\n[rank 0] \r\tend\n");
}

#[test]
fn without_prefixes_the_ranks_write_as_they_are() {
    let output = run(&["--nproc-per-node", "1", "--no-prefix"], "printf 'no end'; printf error >&2");
    assert_eq!((text(&output.stdout), text(&output.stderr)), ("no end".into(), "error".into()));
}

#[test]
fn log_files_hold_each_ranks_lines_and_keep_those_of_an_earlier_run() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let logs = folder.path().join("new/logs");
    for _ in 0..2 {
        let options = ["--nproc-per-node", "2", "--log-dir", logs.to_str().expect("UTF-8")];
        assert!(run(&options, "echo out $RANK; sleep 0.2; echo err $RANK >&2").status.success());
    }
    for rank in 0..2 {
        let log = fs::read_to_string(logs.join(format!("rank-{rank}.log"))).expect("a log");
        assert_eq!(log, format!("out {rank}\nerr {rank}\n").repeat(2));
    }
}

#[test]
fn a_program_that_does_not_exist_is_one_clear_error() {
    let output = Command::new(env!("CARGO_BIN_EXE_burnrun"))
        .args(["--nproc-per-node", "2", "--", "/no/such/train"])
        .output()
        .expect("burnrun starts");
    assert_eq!(output.status.code(), Some(1));
    let stderr = text(&output.stderr);
    assert_eq!(stderr.lines().count(), 1, "{stderr}");
    for part in ["\"/no/such/train\"", "rank 0", "No such file or directory", "check the path"] {
        assert!(stderr.contains(part), "{part} is missing in {stderr}");
    }
}

#[test]
fn wrong_options_end_with_exit_code_2() {
    let wrong: [&[&str]; 6] = [
        &["--nproc-per-node", "0", "--", "true"],
        &["--nproc-per-node", "many", "--", "true"],
        &["--nproc-per-node", "2"],
        &["--nproc-per-node", "2", "--no-such-option", "--", "true"],
        &["--nproc-per-node", "2", "--master-port", "0", "--", "true"],
        &["--nproc-per-node", "2", "--log-dir", "logs", "--no-prefix", "--", "true"],
    ];
    for options in wrong {
        let output =
            Command::new(env!("CARGO_BIN_EXE_burnrun")).args(options).output().expect("burnrun starts");
        assert_eq!(output.status.code(), Some(2), "{options:?}: {output:?}");
    }
}

#[test]
fn a_port_that_is_served_is_refused_before_any_rank_starts() {
    let other = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = other.local_addr().expect("bound").port().to_string();
    let output = run(&["--nproc-per-node", "2", "--master-port", &port], "echo started");
    assert_eq!((output.status.code(), text(&output.stdout)), (Some(1), String::new()));
    assert!(text(&output.stderr).contains(&format!("cannot use port {port}")), "{output:?}");
}

#[test]
fn a_report_that_cannot_be_written_is_refused_at_the_start_and_does_not_hide_the_outcome_at_the_end() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let logs = folder.path().join("logs");
    let report = logs.join("report.json");
    let options = ["--nproc-per-node", "1", "--report", report.to_str().expect("UTF-8")];
    let output = run(&options, "echo up");
    assert_eq!((output.status.code(), text(&output.stdout)), (Some(1), String::new()), "{output:?}");
    assert!(text(&output.stderr).starts_with("error: cannot write "), "{output:?}");
    fs::create_dir(&logs).expect("made");
    let output = run(&options, &format!("rmdir {}; exit 5", logs.display()));
    assert_eq!(output.status.code(), Some(5), "{output:?}");
    let stderr = text(&output.stderr);
    assert!(stderr.starts_with("warning: cannot write ") && stderr.contains("exit code 5"), "{stderr}");
}

#[test]
fn four_launches_at_once_have_four_ports() {
    let launches: Vec<_> = (0..4)
        .map(|_| {
            burnrun(&["--nproc-per-node", "2"], "echo $MASTER_PORT; sleep 1").spawn().expect("burnrun starts")
        })
        .collect();
    let mut ports: Vec<_> = launches
        .into_iter()
        .map(|launch| {
            let lines = sorted_lines(&finish(launch).stdout);
            let port = |line: &str| line.split(' ').next_back().map(str::to_owned);
            assert_eq!((lines.len(), port(&lines[0])), (2, port(&lines[1])));
            port(&lines[0])
        })
        .collect();
    ports.sort();
    ports.dedup();
    assert_eq!(ports.len(), 4, "{ports:?}");
}

#[test]
fn ranks_go_on_when_nobody_reads_their_output() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let options = ["--nproc-per-node", "1", "--log-dir", folder.path().to_str().expect("UTF-8")];
    let mut child =
        burnrun(&options, "echo first; sleep 0.3; echo second; echo third").spawn().expect("burnrun starts");
    let mut reader = BufReader::new(child.stdout.take().expect("a pipe"));
    let mut line = String::new();
    reader.read_line(&mut line).expect("a line");
    drop(reader);
    assert_eq!(finish(child).status.code(), Some(0));
    let log = fs::read_to_string(folder.path().join("rank-0.log")).expect("a log");
    assert_eq!((line.as_str(), log.as_str()), ("[rank 0] first\n", "first\nsecond\nthird\n"));
}

#[test]
fn output_is_shown_while_the_ranks_run() {
    let mut child = burnrun(&["--nproc-per-node", "1"], "echo up; read never < /dev/stdin; sleep 60")
        .spawn()
        .expect("ok");
    let mut seen = [0; 12];
    child.stdout.as_mut().expect("a pipe").read_exact(&mut seen).expect("a line while the rank sleeps");
    assert_eq!(&seen, b"[rank 0] up\n");
    kill(Pid::from_raw(child.id() as i32), Signal::SIGTERM).expect("signalled");
    assert_eq!(finish(child).status.code(), Some(143));
}
