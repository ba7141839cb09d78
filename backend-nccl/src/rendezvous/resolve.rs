//! Host names to addresses, with a deadline: the system's own lookup has none.

use std::{
    io::{self, ErrorKind},
    net::{IpAddr, SocketAddr, ToSocketAddrs},
    sync::mpsc::channel,
};

use crate::deadline::Deadline;

/// The addresses of `host`.
pub(super) fn resolve(host: &str, port: u16, deadline: Deadline) -> io::Result<Vec<SocketAddr>> {
    if let Ok(ip) = host.parse::<IpAddr>() {
        return Ok(vec![SocketAddr::new(ip, port)]);
    }
    let name = host.to_owned();
    within(deadline, move || Ok((name.as_str(), port).to_socket_addrs()?.collect()))
}

/// The answer of `lookup`, which cannot be ended: where it takes too long its thread stays until it does end.
fn within(
    deadline: Deadline,
    lookup: impl FnOnce() -> io::Result<Vec<SocketAddr>> + Send + 'static,
) -> io::Result<Vec<SocketAddr>> {
    let (sender, answer) = channel();
    std::thread::Builder::new().name("burn-nccl-resolve".into()).spawn(move || sender.send(lookup()))?;
    answer.recv_timeout(deadline.remaining()).unwrap_or_else(|_| {
        Err(io::Error::new(ErrorKind::TimedOut, "the name service does not answer; use an address"))
    })
}

/// This host's name, for people.
pub(crate) fn host_name() -> String {
    nix::unistd::gethostname().map_or_else(|_| "unknown".into(), |name| name.to_string_lossy().into_owned())
}

#[cfg(test)]
mod tests {
    use std::{sync::mpsc, time::Duration};

    use super::*;

    #[test]
    fn a_name_service_that_does_not_answer_is_an_error_at_the_deadline() {
        let (answer, silence) = mpsc::channel::<()>();
        let lookup = move || {
            // Ends with the test, and never by itself.
            let _ = silence.recv();
            Ok(Vec::new())
        };
        let error = within(Deadline::after(Duration::from_millis(20)), lookup).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::TimedOut);
        drop(answer);
    }

    #[test]
    fn literal_addresses_need_no_name_service() {
        let none_left = Deadline::after(Duration::ZERO);
        for (host, address) in [("10.0.0.1", "10.0.0.1:80"), ("::1", "[::1]:80")] {
            assert_eq!(resolve(host, 80, none_left).unwrap(), [address.parse().unwrap()]);
        }
    }
}
