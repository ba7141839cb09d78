use super::{
    attempt::run_ranks,
    config::LaunchConfig,
    cores::core_count,
    environment::Job,
    error::LaunchError,
    link::{Incoming, Link},
    outcome::Outcome,
    protocol::{Attempt, Finish, News, Order},
    secret::rank_secret,
    signals::{Request, Requests, Signals},
    watch::{LOOK_INTERVAL, show},
    wire::printable,
};
use std::time::Instant;

/// Runs one node: does what the coordinator says until the job is over.
pub(super) struct Agent<'a> {
    config: &'a LaunchConfig,
    host: &'a str,
    signals: &'a Signals,
    link: Link,
    /// Why this node could not start its ranks.
    error: Option<LaunchError>,
    requests: Requests,
}

impl<'a> Agent<'a> {
    pub(super) fn new(config: &'a LaunchConfig, host: &'a str, signals: &'a Signals, link: Link) -> Self {
        Self { config, host, signals, link, error: None, requests: Requests::default() }
    }

    /// Returns how the job ended.
    pub(super) fn run(&mut self) -> Result<Outcome, LaunchError> {
        loop {
            match self.link.next() {
                None => self.wait()?,
                Some(Incoming::Order(Order::Start(attempt))) => self.attempt(&attempt)?,
                Some(Incoming::Order(Order::Finish(finish))) => return self.finish(finish),
                Some(Incoming::Order(Order::Note(note))) => show(&note),
                // There is no rank to stop.
                Some(Incoming::Order(Order::Stop(_) | Order::Heartbeat)) => {}
                Some(Incoming::Lost(why)) => return Err(self.lost(why)),
            }
        }
    }

    /// Waits for an order.
    fn wait(&mut self) -> Result<(), LaunchError> {
        let received = self.signals.wait(LOOK_INTERVAL, self.link.fd());
        for signal in received.map_err(LaunchError::system("wait for signals"))? {
            if !signal.is_ending() {
                continue;
            }
            match self.requests.note(Instant::now()) {
                Request::End => {
                    self.link.send(News::Signalled { signal: signal.signal as i32, is_cause: true });
                }
                Request::Same => {}
                Request::Kill => self.link.send(News::Kill),
            }
        }
        Ok(())
    }

    fn attempt(&mut self, attempt: &Attempt) -> Result<(), LaunchError> {
        let secret = rank_secret(self.config.secret.as_ref(), &attempt.seed);
        let job = Job { config: self.config, attempt, secret: &secret, cores: core_count() };
        match run_ranks(&job, self.host, self.signals, &mut self.link, &mut self.requests) {
            Ok(done) => {
                self.link.send(News::Ended(done.end));
                done.lost.map_or(Ok(()), |why| Err(self.lost(why)))
            }
            Err(error) => {
                self.link.send(News::CannotStart { reason: error.to_string() });
                self.error = Some(error);
                Ok(())
            }
        }
    }

    fn finish(&mut self, finish: Finish) -> Result<Outcome, LaunchError> {
        match finish {
            Finish::Outcome(outcome) => Ok(outcome),
            Finish::Incomplete { missing, seconds } => Err(LaunchError::NodesMissing { missing, seconds }),
            Finish::NotStarted { node, host, reason } => {
                Err(self.error.take().or_else(|| self.link.take_error()).unwrap_or_else(|| {
                    let (host, reason) = (printable(&host), printable(&reason));
                    LaunchError::OtherNode { node, host, reason }
                }))
            }
        }
    }

    fn lost(&self, why: String) -> LaunchError {
        let address = self.config.coordinator_address();
        LaunchError::CoordinatorLost { address, why }
    }
}
