//! Signals that end the service.

use std::io;

use tokio::signal::unix::{Signal, SignalKind, signal};

/// SIGTERM, and SIGINT of a terminal.
pub(super) struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    /// From now on they do not end the process by themselves.
    pub(super) fn watch() -> io::Result<Self> {
        Ok(Self { terminate: signal(SignalKind::terminate())?, interrupt: signal(SignalKind::interrupt())? })
    }

    /// Waits for the first. The second ends the process at once, as it would have without this.
    pub(super) async fn stop(mut self) {
        self.next().await;
        tokio::spawn(async move {
            let signal = self.next().await;
            std::process::exit(128 + signal.as_raw_value());
        });
    }

    async fn next(&mut self) -> SignalKind {
        tokio::select! {
            _ = self.terminate.recv() => SignalKind::terminate(),
            _ = self.interrupt.recv() => SignalKind::interrupt(),
        }
    }
}
