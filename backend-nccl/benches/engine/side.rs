//! A set of ranks under a launcher, seen from the parent.

use std::fmt;
use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::{AnyError, Measured, Order};

/// Longer than `import torch` takes on a busy machine.
const START_TIMEOUT: Duration = Duration::from_secs(120);
/// Longer than any order takes.
const ORDER_TIMEOUT: Duration = Duration::from_secs(120);
/// How long the launcher has to end after its ranks, before it is killed.
const END_TIMEOUT: Duration = Duration::from_secs(5);
const POLL: Duration = Duration::from_millis(5);

/// A side that could not be measured.
#[derive(Debug)]
pub(crate) struct SideError {
    /// Which.
    pub(crate) side: String,
    /// Why, with the last line that its processes wrote to stderr.
    pub(crate) cause: String,
}

impl fmt::Display for SideError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.side, self.cause)
    }
}

impl std::error::Error for SideError {}

/// Running ranks that wait for orders. They end when it is dropped.
#[derive(Debug)]
pub(crate) struct Side {
    name: String,
    /// In rank order. Its closing is what ends the ranks.
    ranks: Vec<BufReader<TcpStream>>,
    launcher: Launcher,
}

impl Side {
    /// Starts `ranks` ranks of this program.
    ///
    /// # Errors
    /// Ranks that do not come, with what their launcher says.
    pub(crate) fn own(name: &str, ranks: usize) -> Result<Self, SideError> {
        Self::start(name, ranks, |address| {
            let mut command = Command::new(std::env::current_exe()?);
            command.args([super::rank::LAUNCH, &ranks.to_string(), address]);
            Ok(command)
        })
    }

    /// Starts `ranks` ranks by the command that is made for the address where they have to come.
    ///
    /// # Errors
    /// Ranks that do not come, with what their launcher says.
    pub(crate) fn start(
        name: &str,
        ranks: usize,
        command: impl FnOnce(&str) -> std::io::Result<Command>,
    ) -> Result<Self, SideError> {
        let failed = |cause: String| SideError { side: name.to_owned(), cause };
        let listener =
            TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).map_err(|error| failed(error.to_string()))?;
        let address = listener.local_addr().map_err(|error| failed(error.to_string()))?.to_string();
        let command = command(&address).map_err(|error| failed(error.to_string()))?;
        let mut launcher = Launcher::start(command).map_err(|error| failed(error.to_string()))?;
        match accept(&listener, ranks, &mut launcher) {
            Ok(ranks) => Ok(Self { name: name.to_owned(), ranks, launcher }),
            Err(error) => Err(failed(launcher.explain(&error.to_string()))),
        }
    }

    /// What its ranks say about one order, in rank order.
    ///
    /// # Errors
    /// A rank that ends or does not answer.
    pub(crate) fn measure(&mut self, order: Order) -> Result<Vec<Measured>, SideError> {
        self.exchange(order).map_err(|error| SideError {
            side: self.name.clone(),
            cause: self.launcher.explain(&format!("`{order}` failed: {error}")),
        })
    }

    fn exchange(&mut self, order: Order) -> Result<Vec<Measured>, AnyError> {
        for rank in &self.ranks {
            writeln!(rank.get_ref(), "{order}")?;
        }
        self.ranks.iter_mut().map(|rank| line(rank)?.parse()).collect()
    }
}

impl Drop for Side {
    fn drop(&mut self) {
        self.ranks.clear();
    }
}

fn line(rank: &mut BufReader<TcpStream>) -> Result<String, AnyError> {
    let mut line = String::new();
    match rank.read_line(&mut line)? {
        0 => Err("a rank has ended".into()),
        _ => Ok(line),
    }
}

/// Waits for all ranks to come and say which they are.
fn accept(
    listener: &TcpListener,
    ranks: usize,
    launcher: &mut Launcher,
) -> Result<Vec<BufReader<TcpStream>>, AnyError> {
    listener.set_nonblocking(true)?;
    let start = Instant::now();
    let mut found: Vec<Option<BufReader<TcpStream>>> = (0..ranks).map(|_| None).collect();
    while found.iter().any(Option::is_none) {
        match listener.accept() {
            Ok((stream, _)) => {
                stream.set_nonblocking(false)?;
                stream.set_nodelay(true)?;
                stream.set_read_timeout(Some(ORDER_TIMEOUT))?;
                let mut reader = BufReader::new(stream);
                let rank: usize = line(&mut reader)?.trim().parse()?;
                *found.get_mut(rank).ok_or("a rank came that does not belong here")? = Some(reader);
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                if launcher.has_ended() {
                    return Err("the ranks ended before they had come".into());
                }
                if start.elapsed() > START_TIMEOUT {
                    return Err("the ranks did not come in time".into());
                }
                std::thread::sleep(POLL);
            }
            Err(error) => return Err(error.into()),
        }
    }
    Ok(found.into_iter().flatten().collect())
}

/// The process that has started the ranks.
#[derive(Debug)]
struct Launcher {
    child: Child,
    stderr: Option<JoinHandle<String>>,
}

impl Launcher {
    fn start(mut command: Command) -> std::io::Result<Self> {
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child = command.spawn()?;
        let mut stderr = child.stderr.take();
        let read = move || {
            let mut bytes = Vec::new();
            let _ = stderr.as_mut().map(|stderr| stderr.read_to_end(&mut bytes));
            String::from_utf8_lossy(&bytes).into_owned()
        };
        Ok(Self { child, stderr: Some(std::thread::spawn(read)) })
    }

    fn has_ended(&mut self) -> bool {
        !matches!(self.child.try_wait(), Ok(None))
    }

    fn end(&mut self) {
        let start = Instant::now();
        while !self.has_ended() && start.elapsed() < END_TIMEOUT {
            std::thread::sleep(POLL);
        }
        // Fails where it has ended, which is what is wanted.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// `cause` with the last words of the processes.
    fn explain(&mut self, cause: &str) -> String {
        self.end();
        // Who still holds the pipe is waited for no longer than a moment.
        let start = Instant::now();
        while self.stderr.as_ref().is_some_and(|it| !it.is_finished()) && start.elapsed() < END_TIMEOUT {
            std::thread::sleep(POLL);
        }
        let finished = self.stderr.take().filter(JoinHandle::is_finished);
        let text = finished.and_then(|thread| thread.join().ok()).unwrap_or_default();
        match text.lines().rev().find(|line| !line.trim().is_empty()) {
            Some(last) => format!("{cause}: {}", last.trim()),
            None => cause.to_owned(),
        }
    }
}

impl Drop for Launcher {
    fn drop(&mut self) {
        self.end();
    }
}
