use super::{
    coordinator::{Command, Coordinator, Phase, nodes},
    failure::Failure,
    outcome::Outcome,
    protocol::{Finish, Order},
};
use std::time::{Duration, Instant};

impl Coordinator {
    /// Judges an attempt whose ranks have all ended.
    pub(super) fn conclude_if_ended(&mut self, now: Instant) -> Vec<Command> {
        let Phase::Running(run) = &mut self.phase else { return Vec::new() };
        if !run.has_ended() {
            return Vec::new();
        }
        let run = std::mem::take(&mut **run);
        if let Some((node, reason)) = run.not_started {
            let host = run.nodes[node].host.clone();
            return self.finish(Finish::NotStarted { node, host, reason });
        }
        let ends = run.nodes.into_iter().filter_map(|node| node.end).flat_map(|end| end.ends).collect();
        let outcome = Outcome::judge(ends, run.interrupted, self.plan.nnodes);
        match outcome {
            Outcome::Failed(failure) if self.earlier.len() < self.plan.max_restarts => {
                let hopeless = failure.hopeless();
                let given_up = hopeless.or_else(|| run.is_signalled.then(|| "a signal came".to_owned()));
                match given_up {
                    None => self.restart(failure, now),
                    why => self.finish_failed(Outcome::Failed(failure), why),
                }
            }
            outcome => self.finish_failed(outcome, None),
        }
    }

    /// Starts over, as soon as all nodes are there.
    fn restart(&mut self, failure: Box<Failure>, now: Instant) -> Vec<Command> {
        let (restart, of) = (self.earlier.len() + 1, self.plan.max_restarts);
        let line = failure.line();
        let cause = failure.cause();
        let missing = self.missing();
        let awaited = if missing.is_empty() {
            String::new()
        } else {
            format!(" when {} came back, at most {:.0} s", nodes(&missing), self.plan.timeout.as_secs_f64())
        };
        let note = format!("note: {line}{cause}; restart {restart} of {of}{awaited}");
        let mut commands = self.to_all(|| Order::Note(note.clone()));
        self.earlier.push(line);
        self.last = Some(Outcome::Failed(failure));
        self.phase = Phase::Gathering { since: now, is_told: true };
        commands.extend(self.start_if_complete());
        commands
    }

    /// Not all nodes have come in time.
    pub(super) fn give_up(&mut self, waited: Duration) -> Vec<Command> {
        let (missing, seconds) = (self.missing(), waited.as_secs_f64());
        match self.last.take() {
            None => self.finish(Finish::Incomplete { missing, seconds }),
            Some(last) => {
                // It is the one that is told of, not one of the earlier ones.
                self.earlier.pop();
                let why = format!("{} did not come back within {seconds:.0} s", nodes(&missing));
                self.finish_failed(last, Some(why))
            }
        }
    }

    fn finish_failed(&mut self, mut outcome: Outcome, why: Option<String>) -> Vec<Command> {
        if let Outcome::Failed(failure) = &mut outcome {
            failure.earlier = std::mem::take(&mut self.earlier);
            failure.not_restarted = why;
        }
        self.finish(Finish::Outcome(outcome))
    }
}
