//! The service as a process of its own.

use std::ffi::OsStr;
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use super::client::{Client, Reply};
use super::{RECIPE, wait_for_line};

/// No answer takes longer, whatever the machine is doing.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// A service that is killed when the test ends.
pub(crate) struct Server {
    child: Child,
    pub(crate) address: SocketAddr,
    /// What it said when it was ready.
    pub(crate) line: String,
}

impl Server {
    /// Starts the built recipe on the folder.
    pub(crate) fn start(from: &Path, args: &[&str]) -> Self {
        let from = ["--from", from.to_str().unwrap()];
        Self::of(RECIPE, &[&from, args].concat())
    }

    /// Starts this program with these arguments of `serve`.
    pub(crate) fn of(program: impl AsRef<OsStr>, args: &[&str]) -> Self {
        let mut command = Command::new(program);
        command.args(["serve", "--address", "127.0.0.1:0"]).args(args);
        let child = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut server = Self { child, address: SocketAddr::from(([0, 0, 0, 0], 0)), line: String::new() };
        let output = server.child.stdout.take().unwrap();
        // Until then the server is one that is killed where this fails.
        server.line = wait_for_line(output, |line| Some(line.to_owned())).unwrap();
        let address = server.line.split_once("http://").and_then(|(_, rest)| rest.split_once('/'));
        server.address =
            address.unwrap_or_else(|| panic!("no address in {:?}", server.line)).0.parse().unwrap();
        server
    }

    pub(crate) fn client(&self) -> Client {
        Client::open(self.address, PATIENCE).unwrap()
    }

    pub(crate) fn send(&self, method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) -> Reply {
        self.client().send(method, path, headers, body).unwrap()
    }

    pub(crate) fn classify(&self, body: &[u8]) -> Reply {
        self.send("POST", "/classify", &[("Content-Type", "image/jpeg")], body)
    }

    /// A figure of `GET /metrics`.
    pub(crate) fn figure(&self, name: &str) -> f64 {
        let text = String::from_utf8(self.send("GET", "/metrics", &[], &[]).body).unwrap();
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        line.unwrap_or_else(|| panic!("no {name} in {text}")).parse().unwrap()
    }

    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn signal(&self, name: &str) {
        let status =
            Command::new("kill").args([&format!("-{name}"), &self.id().to_string()]).status().unwrap();
        assert!(status.success());
    }

    /// Waits for its end.
    pub(crate) fn wait(&mut self) -> ExitStatus {
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status;
            }
            assert!(Instant::now() < deadline, "the service does not end");
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub(crate) fn json(reply: &Reply) -> Value {
    serde_json::from_slice(&reply.body).unwrap_or_else(|error| panic!("{error}: {reply:?}"))
}

/// The reason and the remedy that an answer gives.
pub(crate) fn refusal(reply: &Reply) -> (u16, String) {
    let body = json(reply);
    assert!(body["help"].as_str().is_some_and(|help| !help.is_empty()), "{body}");
    (reply.status, body["error"].as_str().unwrap().to_owned())
}
