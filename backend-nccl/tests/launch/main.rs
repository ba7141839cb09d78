//! The launcher with real processes: shell scripts as ranks under the `burnrun` command.

mod ending;
mod library;
mod nodes;
mod starting;

use std::{
    fmt::{self, Display, Formatter},
    fs,
    net::{Ipv4Addr, SocketAddr},
    ops::Deref,
    os::unix::process::{CommandExt, ExitStatusExt},
    path::Path,
    process::{Child, Command, Output, Stdio},
    time::{Duration, Instant},
};

use nix::{
    errno::Errno,
    sys::signal::{SigHandler, Signal, kill, signal},
    unistd::Pid,
};
use socket2::{Domain, Protocol, Socket, Type};

/// Time in which killed processes disappear even on a busy machine.
const GONE: Duration = Duration::from_secs(10);

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

/// A port for launchers to meet at, which the system gives to nobody else while the value lives: a socket is bound to it and
/// does not listen. Somebody who asks for this very port, and sets `SO_REUSEADDR` as listeners do, can still listen.
struct Port {
    number: String,
    _held: Socket,
}

impl Deref for Port {
    type Target = str;

    fn deref(&self) -> &str {
        &self.number
    }
}

impl Display for Port {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(&self.number)
    }
}

fn port() -> Port {
    let held = Socket::new(Domain::IPV4, Type::STREAM, Some(Protocol::TCP)).expect("a socket");
    held.set_reuse_address(true).expect("set");
    held.bind(&SocketAddr::from((Ipv4Addr::LOCALHOST, 0)).into()).expect("a port");
    let address = held.local_addr().expect("bound").as_socket().expect("an address");
    Port { number: address.port().to_string(), _held: held }
}

/// The number that follows `words` in `text`.
fn number_after(text: &str, words: &str) -> f64 {
    let (_, rest) = text.split_once(words).unwrap_or_else(|| panic!("no {words:?} in {text}"));
    let number = rest.split(|character: char| !character.is_ascii_digit() && character != '.').next();
    number
        .and_then(|number| number.parse().ok())
        .unwrap_or_else(|| panic!("no number after {words:?} in {text}"))
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
