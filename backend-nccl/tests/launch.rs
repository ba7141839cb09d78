//! The launcher with real processes: shell scripts as ranks under the `burnrun` command.

use std::{
    fs::{self, File},
    io::{BufRead, BufReader, Read, Write},
    os::{
        fd::{AsFd, FromRawFd, OwnedFd},
        unix::process::{CommandExt, ExitStatusExt},
    },
    path::Path,
    process::{Child, Command, Output, Stdio},
    time::{Duration, Instant},
};

use burn_nccl::launch::{self, LaunchConfig, LaunchError, RankOutput};
use nix::{
    errno::Errno,
    libc,
    poll::{PollFd, PollFlags, PollTimeout, poll},
    sys::signal::{SigHandler, Signal, kill, signal},
    unistd::{Pid, setsid},
};

/// Longer than anything here takes; only a test that hangs reaches it.
const DEADLINE: Duration = Duration::from_secs(30);

/// `burnrun` with `options`, and `script` as every rank.
fn burnrun(options: &[&str], script: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_burnrun"));
    command.args(options).args(["--", "/bin/sh", "-c", script]);
    for name in ["RANK", "RAYON_NUM_THREADS", "OMP_NUM_THREADS"] {
        command.env_remove(name);
    }
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    // The shell that runs the tests in the background may ignore SIGINT, and the launcher would then ignore it too.
    // SAFETY: one system call between fork and exec.
    unsafe {
        command.pre_exec(|| {
            signal(Signal::SIGINT, SigHandler::SigDfl)?;
            Ok(())
        })
    };
    command
}

fn run(options: &[&str], script: &str) -> Output {
    finish(burnrun(options, script).spawn().expect("burnrun starts"))
}

/// The output of `child`, which must end before the deadline.
fn finish(child: Child) -> Output {
    let pid = Pid::from_raw(child.id() as i32);
    let (done, ended) = std::sync::mpsc::channel::<()>();
    let watchdog = std::thread::spawn(move || {
        if ended.recv_timeout(DEADLINE) == Err(std::sync::mpsc::RecvTimeoutError::Timeout) {
            let _ = kill(pid, Signal::SIGKILL);
        }
    });
    let output = child.wait_with_output().expect("burnrun's output");
    drop(done);
    watchdog.join().expect("the watchdog");
    assert_ne!(output.status.signal(), Some(9), "burnrun did not end in time: {output:?}");
    output
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).expect("UTF-8")
}

fn sorted_lines(bytes: &[u8]) -> Vec<String> {
    let mut lines: Vec<_> = text(bytes).lines().map(str::to_owned).collect();
    lines.sort();
    lines
}

/// Waits until `ready` gives a value.
fn wait_for<T>(what: &str, mut ready: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(value) = ready() {
            return value;
        }
        assert!(start.elapsed() < DEADLINE, "waited in vain for {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// The process numbers in `folder`, one file each, once there are `count`.
fn pids(folder: &Path, count: usize) -> Vec<Pid> {
    wait_for("the ranks to write their process numbers", || {
        let files = fs::read_dir(folder).expect("listed").map(|file| file.expect("listed").path());
        let numbers = files.filter_map(|path| fs::read_to_string(path).ok()?.trim().parse().ok());
        let pids: Vec<_> = numbers.map(Pid::from_raw).collect();
        (pids.len() == count).then_some(pids)
    })
}

/// Whether the process is there and not only waiting to be reaped by the system's first process.
fn is_alive(pid: Pid) -> bool {
    let is_zombie = || {
        let status = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        status.rsplit(')').next().is_some_and(|rest| rest.trim_start().starts_with('Z'))
    };
    kill(pid, None) != Err(Errno::ESRCH) && !is_zombie()
}

fn all_gone(pids: &[Pid], limit: Duration) -> bool {
    let start = Instant::now();
    while start.elapsed() < limit {
        if !pids.iter().any(|pid| is_alive(*pid)) {
            return true;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    false
}

#[test]
fn each_rank_finds_its_place_in_its_environment() {
    let script = "echo $RANK $LOCAL_RANK $WORLD_SIZE $LOCAL_WORLD_SIZE $MASTER_ADDR $MASTER_PORT; \
        echo $BURN_NCCL_RUN_ID $RAYON_NUM_THREADS >&2";
    let options = ["--nproc-per-node", "3", "--master-addr", "localhost", "--master-port", "47113"];
    let output = run(&options, script);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let expected = [0, 1, 2].map(|rank| format!("[rank {rank}] {rank} {rank} 3 3 localhost 47113"));
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
    let script = "if [ $RANK = 1 ]; then exit 3; fi; sleep 0.05; echo peer 1 is gone >&2; exit 4";
    let output = run(&["--nproc-per-node", "2"], script);
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
    assert!(all_gone(&started, Duration::from_secs(2)), "left behind: {started:?}");
}

#[test]
fn what_a_rank_leaves_behind_ends_with_the_job() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let script = format!("sleep 300 & echo $! > {}/$RANK", folder.path().display());
    let output = run(&["--nproc-per-node", "2"], &script);
    assert_eq!(output.status.code(), Some(0));
    assert!(all_gone(&pids(folder.path(), 2), Duration::from_secs(2)));
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

/// Tells a copy of this test binary that it is to play a part in the test of this name.
const PART: &str = "LAUNCH_TEST_PART";

/// The arguments with which this binary runs only the test `name`.
fn only(name: &str) -> [&str; 3] {
    ["--exact", "--nocapture", name]
}

#[test]
fn a_panic_is_reported_in_the_ranks_own_words() {
    const NAME: &str = "a_panic_is_reported_in_the_ranks_own_words";
    if std::env::var_os(PART).is_some() {
        launch::install_panic_hook();
        launch::install_panic_hook();
        if std::env::var("RANK").as_deref() == Ok("0") {
            // Reported before the panic of rank 1, but by its own words a consequence.
            launch::report_consequence("lost peer 1");
            std::process::exit(9);
        }
        std::thread::sleep(Duration::from_millis(100));
        panic!("gradient of rank 1 is NaN");
    }
    let mut command = Command::new(env!("CARGO_BIN_EXE_burnrun"));
    command
        .args(["--nproc-per-node", "2", "--"])
        .arg(std::env::current_exe().expect("this program"))
        .args(only(NAME));
    command.env(PART, "rank").stdout(Stdio::piped()).stderr(Stdio::piped());
    let output = finish(command.spawn().expect("burnrun starts"));
    // The exit code of a test binary with a failed test.
    assert_eq!(output.status.code(), Some(101));
    let stderr = text(&output.stderr);
    assert!(stderr.contains("exit code 9: lost peer 1\n"), "{stderr}");
    let cause = stderr.lines().rev().nth(1).expect("a cause");
    assert!(
        cause.starts_with("cause: panicked at ") && cause.ends_with(": gradient of rank 1 is NaN"),
        "{stderr}"
    );
}

#[test]
fn a_program_can_launch_ranks_itself_one_job_at_a_time() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let mut config = LaunchConfig::new("/bin/sh", 2);
    config.args = ["-c", "echo $GREETING $WHO; sleep 1"].map(Into::into).into();
    config.env = vec![("GREETING".into(), "hello".into())];
    config.rank_env = ["zero", "one"].map(|who| vec![("WHO".into(), who.into())]).into();
    config.log_dir = Some(folder.path().to_owned());
    config.rank_zero_output = RankOutput::LogOnly;
    config.other_output = RankOutput::LogOnly;
    let handler = || {
        // SAFETY: reads and puts back the action of a signal that this test binary does not use otherwise.
        let previous = unsafe { signal(Signal::SIGQUIT, SigHandler::SigDfl) }.expect("read");
        matches!(previous, SigHandler::SigDfl)
    };
    assert!(handler());
    std::thread::scope(|scope| {
        let first = scope.spawn(|| launch::run(&config));
        let log = folder.path().join("rank-1.log");
        wait_for("rank 1 to write", || fs::read_to_string(&log).ok().filter(|text| !text.is_empty()));
        assert!(matches!(launch::run(&config), Err(LaunchError::AlreadyLaunching)));
        assert_eq!(first.join().expect("no panic").expect("launched").exit_code(), 0);
    });
    assert!(handler(), "the program's own handlers are back");
    for (rank, who) in ["zero", "one"].into_iter().enumerate() {
        let log = fs::read_to_string(folder.path().join(format!("rank-{rank}.log"))).expect("a log");
        assert_eq!(log, format!("hello {who}\n"));
    }
}

/// The two ends of a new terminal.
fn open_terminal() -> (File, OwnedFd) {
    let (mut master, mut slave) = (-1, -1);
    let (name, settings, size) = (std::ptr::null_mut(), std::ptr::null(), std::ptr::null());
    // SAFETY: both numbers are valid for writes, and null stands for the defaults.
    assert_eq!(unsafe { libc::openpty(&mut master, &mut slave, name, settings, size) }, 0);
    // SAFETY: `openpty` has just opened both.
    unsafe { (File::from_raw_fd(master), OwnedFd::from_raw_fd(slave)) }
}

/// Reads what `terminal` shows until it has shown `end`.
fn read_until(terminal: &mut File, end: &str) {
    let mut shown = Vec::new();
    while !String::from_utf8_lossy(&shown).contains(end) {
        let mut waiting = [PollFd::new(terminal.as_fd(), PollFlags::POLLIN)];
        let ready = poll(&mut waiting, PollTimeout::try_from(DEADLINE).expect("fits")).expect("polled");
        assert_eq!(ready, 1, "waited in vain for {end:?} after {}", String::from_utf8_lossy(&shown));
        let mut byte = [0];
        terminal
            .read_exact(&mut byte)
            .unwrap_or_else(|error| panic!("{error}: {}", String::from_utf8_lossy(&shown)));
        shown.push(byte[0]);
    }
}

#[test]
fn rank_zero_can_own_the_terminal() {
    const NAME: &str = "rank_zero_can_own_the_terminal";
    if std::env::var_os(PART).is_some() {
        // Changing the mode and reading would stop a process outside of the foreground group.
        let script = "[ $RANK = 1 ] && exec sleep 60; stty -echo; echo ready; read line; echo got $line; exec sleep 60";
        let mut config = LaunchConfig::new("/bin/sh", 2);
        config.args = ["-c", script].map(Into::into).into();
        config.rank_zero_output = RankOutput::Terminal;
        let outcome = launch::run(&config).expect("launched");
        eprint!("{outcome}");
        std::process::exit(outcome.exit_code());
    }
    let (mut terminal, slave) = open_terminal();
    let mut command = Command::new(std::env::current_exe().expect("this program"));
    let end = || Stdio::from(slave.try_clone().expect("a copy"));
    command.args(only(NAME)).env(PART, "launcher").stdin(end()).stdout(end()).stderr(end());
    // SAFETY: system calls only, between fork and exec.
    unsafe {
        command.pre_exec(|| {
            signal(Signal::SIGINT, SigHandler::SigDfl)?;
            setsid()?;
            Errno::result(libc::ioctl(0, libc::TIOCSCTTY, 0))?;
            Ok(())
        })
    };
    let child = command.spawn().expect("started");
    drop((command, slave));
    read_until(&mut terminal, "ready");
    terminal.write_all(b"hello\n").expect("typed");
    read_until(&mut terminal, "got hello");
    terminal.write_all(b"\x03").expect("typed Ctrl-C");
    read_until(&mut terminal, "error: the job was ended by SIGINT");
    assert_eq!(finish(child).status.code(), Some(130));
}
