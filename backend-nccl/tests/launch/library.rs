//! The launcher inside a program, and what a rank's program reports to it.

use std::{
    fs::{self, File},
    io::{Read, Write},
    os::{
        fd::{AsFd, FromRawFd, OwnedFd},
        unix::process::CommandExt,
    },
    process::{Command, Stdio},
    time::Duration,
};

use burn_nccl::launch::{self, LaunchConfig, LaunchError, RankOutput};
use nix::{
    errno::Errno,
    libc,
    poll::{PollFd, PollFlags, PollTimeout, poll},
    sys::signal::{SigHandler, Signal, signal},
    unistd::setsid,
};

use crate::{DEADLINE, finish, text, wait_for};

/// Tells a copy of this test binary that it is to play a part in the test of this name.
const PART: &str = "LAUNCH_TEST_PART";

/// The arguments with which this binary runs only the test `name`.
fn only(name: &str) -> [&str; 3] {
    ["--exact", "--nocapture", name]
}

#[test]
fn a_panic_is_reported_in_the_ranks_own_words() {
    const NAME: &str = "library::a_panic_is_reported_in_the_ranks_own_words";
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
    const NAME: &str = "library::rank_zero_can_own_the_terminal";
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
