use super::{
    course::Course,
    error::LaunchError,
    members::{Newcomer, Participant},
    outcome::Outcome,
    protocol::{Attempt, Finish, News, NodeEnd, Order, Stop},
};
use std::time::{Duration, Instant};

/// Nodes that wait for others are told so once, after this long.
const NOTE_AFTER: Duration = Duration::from_secs(5);

/// What a job is allowed.
#[derive(Debug, Clone)]
pub(super) struct Plan {
    pub(super) nnodes: usize,
    pub(super) max_restarts: usize,
    /// Time that all nodes have to come, at first and after each failure.
    pub(super) timeout: Duration,
}

/// What is new for each attempt.
#[derive(Debug)]
pub(super) struct Supplies {
    pub(super) run_id: String,
    pub(super) seed: String,
    pub(super) master_port: u16,
}

/// Where an attempt's run id, secret and port come from.
pub(super) type Supply = Box<dyn FnMut() -> Result<Supplies, LaunchError> + Send>;

/// An order for one node.
pub(super) type Command = (usize, Order);

/// Decides for all nodes of a job: when their ranks start, when they stop, and whether they start once more.
///
/// It makes no system call and reads no clock; what happens comes in with its time, and what is to be done goes out.
pub(super) struct Coordinator {
    pub(super) plan: Plan,
    supply: Supply,
    /// The nodes that are connected.
    nodes: Vec<Option<Newcomer>>,
    pub(super) phase: Phase,
    /// A line for each failure that the ranks were started again after.
    pub(super) earlier: Vec<String>,
    /// The outcome of the attempt before, while nodes are awaited for the next one.
    pub(super) last: Option<Outcome>,
    error: Option<LaunchError>,
}

/// Why a node cannot take part.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Rejection {
    pub(super) reason: String,
    /// Whether this would be so if it asked again.
    pub(super) is_final: bool,
}

pub(super) enum Phase {
    /// Nodes are awaited.
    Gathering {
        since: Instant,
        is_told: bool,
    },
    /// Ranks run, or end.
    Running(Box<Course>),
    Finished,
}

impl Coordinator {
    pub(super) fn new(plan: Plan, supply: Supply, now: Instant) -> Self {
        let nodes = (0..plan.nnodes).map(|_| None).collect();
        let phase = Phase::Gathering { since: now, is_told: false };
        Self { plan, supply, nodes, phase, earlier: Vec::new(), last: None, error: None }
    }

    pub(super) fn is_finished(&self) -> bool {
        matches!(self.phase, Phase::Finished)
    }

    /// The error of this host that ended the job, where one did.
    pub(super) fn take_error(&mut self) -> Option<LaunchError> {
        self.error.take()
    }

    /// A node has come.
    ///
    /// # Errors
    /// Why it cannot take part; the job goes on as if it had not come.
    pub(super) fn join(
        &mut self,
        node: usize,
        nnodes: usize,
        newcomer: Newcomer,
    ) -> Result<Vec<Command>, Rejection> {
        let expected = self.plan.nnodes;
        let never = |reason: String| Err(Rejection { reason, is_final: true });
        if nnodes != expected {
            return never(format!("node 0 was started with --nnodes {expected}, node {node} with {nnodes}"));
        }
        match self.nodes.get(node) {
            None => return never(format!("there is no node {node} among {expected}")),
            // It may be the same node, whose old connection has gone without a word.
            Some(Some(taken)) => {
                let reason = format!("host {} is node {node} already", taken.host);
                return Err(Rejection { reason, is_final: false });
            }
            Some(None) if newcomer.nproc == 0 => return never("a node needs at least one rank".to_owned()),
            Some(None) if self.is_finished() => return never("the job has ended".to_owned()),
            Some(None) => {}
        }
        self.nodes[node] = Some(newcomer);
        Ok(self.start_if_complete())
    }

    /// A node has gone, `why` being how that was seen, as in "it closed the connection".
    pub(super) fn lose(&mut self, node: usize, why: &str, at: f64, now: Instant) -> Vec<Command> {
        self.nodes[node] = None;
        let Phase::Running(run) = &mut self.phase else { return Vec::new() };
        if !run.lose(node, why, at) {
            return Vec::new();
        }
        let mut commands = run.fail(node);
        commands.extend(self.conclude_if_ended(now));
        commands
    }

    /// A node has told something at the time `at` of this host, in seconds since 1970-01-01 UTC.
    pub(super) fn hear(&mut self, node: usize, news: News, at: f64, now: Instant) -> Vec<Command> {
        match news {
            News::Heartbeat => Vec::new(),
            News::Started { pids } => {
                if let Phase::Running(run) = &mut self.phase {
                    run.nodes[node].pids = pids;
                }
                Vec::new()
            }
            News::Failed => self.fail(node),
            News::Leaving => self.leave(node),
            News::Signalled { signal, is_cause } => self.signal(node, signal, is_cause),
            News::Kill => match &self.phase {
                Phase::Running(run) => run.stop_all(Stop::Kill),
                _ => Vec::new(),
            },
            News::Ended(end) => {
                let end = end.on_clock_of_receiver(at);
                let has_failed = end.ends.iter().any(|end| end.ending.is_failure());
                self.end(node, end, has_failed, now)
            }
            News::CannotStart { reason } => {
                if let Phase::Running(run) = &mut self.phase {
                    run.not_started.get_or_insert((node, reason));
                }
                self.end(node, NodeEnd::default(), true, now)
            }
        }
    }

    /// Time has passed.
    pub(super) fn tick(&mut self, now: Instant) -> Vec<Command> {
        let Phase::Gathering { since, is_told } = &mut self.phase else { return Vec::new() };
        let waited = now.saturating_duration_since(*since);
        if waited >= self.plan.timeout {
            return self.give_up(waited);
        }
        if waited < NOTE_AFTER || *is_told {
            return Vec::new();
        }
        *is_told = true;
        let left = (self.plan.timeout - waited).as_secs_f64();
        let note = format!("note: waiting for {}, at most {left:.0} s more", nodes(&self.missing()));
        self.to_all(|| Order::Note(note.clone()))
    }

    /// When `tick` has something to do.
    pub(super) fn next_tick(&self) -> Option<Instant> {
        match self.phase {
            Phase::Gathering { since, is_told: false } => Some(since + NOTE_AFTER.min(self.plan.timeout)),
            Phase::Gathering { since, is_told: true } => Some(since + self.plan.timeout),
            Phase::Running(_) | Phase::Finished => None,
        }
    }

    pub(super) fn missing(&self) -> Vec<usize> {
        (0..self.nodes.len()).filter(|&node| self.nodes[node].is_none()).collect()
    }

    pub(super) fn start_if_complete(&mut self) -> Vec<Command> {
        if !matches!(self.phase, Phase::Gathering { .. }) || self.nodes.iter().any(Option::is_none) {
            return Vec::new();
        }
        match (self.supply)() {
            Ok(supplies) => self.start(supplies),
            Err(error) => {
                let host = self.nodes[0].as_ref().map(|node| node.host.clone()).unwrap_or_default();
                let finish = Finish::NotStarted { node: 0, host, reason: error.to_string() };
                self.error = Some(error);
                self.finish(finish)
            }
        }
    }

    fn start(&mut self, supplies: Supplies) -> Vec<Command> {
        let nodes: Vec<_> = Participant::all(self.nodes.iter().flatten());
        let world_size = nodes.iter().map(|node| node.nproc).sum();
        let order = |node: &Participant| {
            Order::Start(Attempt {
                restart: self.earlier.len(),
                max_restarts: self.plan.max_restarts,
                run_id: supplies.run_id.clone(),
                seed: supplies.seed.clone(),
                world_size,
                first_rank: node.first_rank,
                master_port: supplies.master_port,
            })
        };
        let commands = nodes.iter().map(order).enumerate().collect();
        self.phase = Phase::Running(Box::new(Course::new(nodes)));
        commands
    }

    /// A rank of `node` has failed.
    fn fail(&mut self, node: usize) -> Vec<Command> {
        match &mut self.phase {
            Phase::Running(run) => run.fail(node),
            _ => Vec::new(),
        }
    }

    /// A rank of `node` has left to go on later.
    fn leave(&mut self, node: usize) -> Vec<Command> {
        match &mut self.phase {
            Phase::Running(run) => run.leave(node),
            _ => Vec::new(),
        }
    }

    fn signal(&mut self, node: usize, signal: i32, is_cause: bool) -> Vec<Command> {
        match &mut self.phase {
            Phase::Running(run) => run.signal(node, signal, is_cause),
            // There is nothing to wait for any more, and no rank to end.
            Phase::Gathering { .. } => {
                self.finish(Finish::Outcome(Outcome::Interrupted { signal, killed: Vec::new() }))
            }
            Phase::Finished => Vec::new(),
        }
    }

    fn end(&mut self, node: usize, end: NodeEnd, has_failed: bool, now: Instant) -> Vec<Command> {
        let has_left = end.ends.iter().any(|end| end.failed());
        let mut commands = match (has_failed, has_left) {
            (true, _) => self.fail(node),
            (false, true) => self.leave(node),
            (false, false) => Vec::new(),
        };
        if let Phase::Running(run) = &mut self.phase {
            run.nodes[node].end.get_or_insert(end);
        }
        commands.extend(self.conclude_if_ended(now));
        commands
    }

    pub(super) fn finish(&mut self, finish: Finish) -> Vec<Command> {
        self.phase = Phase::Finished;
        self.to_all(|| Order::Finish(finish.clone()))
    }

    pub(super) fn to_all(&self, order: impl Fn() -> Order) -> Vec<Command> {
        let here = self.nodes.iter().enumerate().filter(|(_, node)| node.is_some());
        here.map(|(node, _)| (node, order())).collect()
    }
}

/// The nodes for a sentence.
pub(super) fn nodes(numbers: &[usize]) -> String {
    let list: Vec<String> = numbers.iter().map(usize::to_string).collect();
    format!("node{} {}", if list.len() == 1 { "" } else { "s" }, list.join(", "))
}

#[cfg(test)]
mod tests {
    use super::super::{
        failure::Failure,
        outcome::{Ending, RankEnd},
        report::ErrorReport,
    };
    use super::*;

    const TIMEOUT: Duration = Duration::from_secs(60);
    /// The times of what happens do not matter where nothing else is said.
    const AT: f64 = 1000.0;

    struct Job {
        coordinator: Coordinator,
        start: Instant,
    }

    impl Job {
        fn new(nnodes: usize, max_restarts: usize) -> Self {
            let start = Instant::now();
            let mut count = 0;
            let supply = move || {
                count += 1;
                Ok(Supplies {
                    run_id: format!("run-{count}"),
                    seed: String::new(),
                    master_port: 4000 + count,
                })
            };
            let plan = Plan { nnodes, max_restarts, timeout: TIMEOUT };
            Self { coordinator: Coordinator::new(plan, Box::new(supply), start), start }
        }

        /// A job with this many ranks on each node, which run.
        fn running(ranks: &[usize], max_restarts: usize) -> Self {
            let mut job = Self::new(ranks.len(), max_restarts);
            ranks.iter().enumerate().for_each(|(node, nproc)| drop(job.join(node, *nproc)));
            job
        }

        fn join(&mut self, node: usize, nproc: usize) -> Vec<Command> {
            let newcomer = Newcomer { host: format!("host-{node}"), nproc };
            self.coordinator.join(node, self.coordinator.plan.nnodes, newcomer).expect("admitted")
        }

        fn hear(&mut self, node: usize, news: News) -> Vec<Command> {
            self.coordinator.hear(node, news, AT, self.start)
        }

        fn lose(&mut self, node: usize) -> Vec<Command> {
            self.coordinator.lose(node, "it closed the connection", AT, self.start)
        }

        /// The ranks of `node` have all ended like this, seen at `seen_at` by a clock that shows `sent_at` now.
        fn end(&mut self, node: usize, endings: &[Ending], [seen_at, sent_at]: [f64; 2]) -> Vec<Command> {
            let Phase::Running(run) = &self.coordinator.phase else { panic!("nothing runs") };
            let first_rank = run.nodes[node].first_rank;
            let end = |(local_rank, ending): (usize, &Ending)| RankEnd {
                rank: first_rank + local_rank,
                local_rank,
                node,
                host: format!("host-{node}"),
                pid: 7,
                ending: *ending,
                seen_at,
                was_signalled: false,
                report: None,
                stderr: Vec::new(),
                log: None,
            };
            let ends = endings.iter().enumerate().map(end).collect();
            self.hear(node, News::Ended(NodeEnd { ends, sent_at }))
        }
    }

    const NOW: [f64; 2] = [AT, AT];
    const DONE: Ending = Ending::Code(0);
    const FAILED: Ending = Ending::Code(7);

    fn finished(commands: &[Command], nodes: &[usize]) -> Finish {
        let told: Vec<usize> = commands.iter().map(|(node, _)| *node).collect();
        assert_eq!(told, nodes, "{commands:?}");
        match &commands[0].1 {
            Order::Finish(finish) => finish.clone(),
            other => panic!("not the end: {other:?}"),
        }
    }

    fn failure(finish: Finish) -> Failure {
        match finish {
            Finish::Outcome(Outcome::Failed(failure)) => *failure,
            other => panic!("not a failure: {other:?}"),
        }
    }

    /// The places that each node is told to start.
    fn starts(commands: &[Command]) -> Vec<(usize, usize, usize, usize, String, u16)> {
        let start = |(node, order): &Command| match order {
            Order::Start(a) => {
                Some((*node, a.first_rank, a.world_size, a.restart, a.run_id.clone(), a.master_port))
            }
            _ => None,
        };
        commands.iter().filter_map(start).collect()
    }

    #[test]
    fn ranks_are_numbered_by_node_once_all_nodes_are_there() {
        let mut job = Job::new(3, 0);
        assert_eq!(job.join(2, 1), []);
        assert_eq!(job.join(0, 2), []);
        let commands = job.join(1, 4);
        let run = || "run-1".to_owned();
        let expected = [(0, 0, 7, 0, run(), 4001), (1, 2, 7, 0, run(), 4001), (2, 6, 7, 0, run(), 4001)];
        assert_eq!(starts(&commands), expected);
    }

    #[test]
    fn who_does_not_belong_is_refused_and_the_others_go_on_waiting() {
        let mut job = Job::new(2, 0);
        job.join(0, 1);
        let refused = |job: &mut Job, node, nnodes, nproc| {
            job.coordinator
                .join(node, nnodes, Newcomer { host: "stranger".into(), nproc })
                .expect_err("refused")
                .reason
        };
        let table = [
            ((0, 2, 1), "host host-0 is node 0 already"),
            ((2, 2, 1), "there is no node 2 among 2"),
            ((1, 3, 1), "node 0 was started with --nnodes 2, node 1 with 3"),
            ((1, 2, 0), "a node needs at least one rank"),
        ];
        for ((node, nnodes, nproc), reason) in table {
            assert_eq!(refused(&mut job, node, nnodes, nproc), reason);
        }
        assert_eq!(starts(&job.join(1, 1)).len(), 2);
        assert_eq!(refused(&mut job, 1, 2, 1), "host host-1 is node 1 already");
        let again = job.coordinator.join(1, 2, Newcomer { host: "host-1".into(), nproc: 1 });
        assert!(!again.expect_err("refused").is_final, "its own old connection may still be there");
    }

    #[test]
    fn nodes_that_do_not_come_are_named_once_and_then_end_the_job() {
        let mut job = Job::new(3, 2);
        job.join(0, 1);
        let after = |seconds| job.start + Duration::from_secs(seconds);
        let (early, noted, late) = (after(4), after(5), after(60));
        assert_eq!(job.coordinator.tick(early), []);
        let note = "note: waiting for nodes 1, 2, at most 55 s more".to_owned();
        assert_eq!(job.coordinator.next_tick(), Some(noted));
        assert_eq!(job.coordinator.tick(noted), [(0, Order::Note(note))]);
        assert_eq!(job.coordinator.tick(noted), []);
        job.join(2, 1);
        let finish = finished(&job.coordinator.tick(late), &[0, 2]);
        assert_eq!(finish, Finish::Incomplete { missing: vec![1], seconds: 60.0 });
        assert!(job.coordinator.is_finished() && job.coordinator.next_tick().is_none());
    }

    #[test]
    fn success_is_that_of_all_nodes() {
        let mut job = Job::running(&[1, 2], 0);
        assert_eq!(job.end(1, &[DONE, DONE], NOW), []);
        assert_eq!(finished(&job.end(0, &[DONE], NOW), &[0, 1]), Finish::Outcome(Outcome::Success));
    }

    #[test]
    fn the_other_nodes_are_told_once_of_a_failure_and_the_earliest_is_the_cause() {
        let mut job = Job::running(&[1, 1, 1], 0);
        let stop = |node| (node, Order::Stop(Stop::Failure));
        assert_eq!(job.hear(1, News::Failed), [stop(0), stop(2)]);
        assert_eq!(job.hear(2, News::Failed), []);
        // The clock of node 2 is an hour behind, so that its failure looks the earliest.
        assert_eq!(job.end(2, &[FAILED], [AT - 3600.5, AT - 3600.0]), []);
        assert_eq!(job.end(1, &[FAILED], [AT - 2.0, AT]), []);
        let failure = failure(finished(&job.end(0, &[DONE], NOW), &[0, 1, 2]));
        assert_eq!((failure.first.rank, failure.first.seen_at), (1, AT - 2.0));
        let consequences: Vec<_> = failure.consequences.iter().map(|end| (end.rank, end.seen_at)).collect();
        assert_eq!(consequences, [(2, AT - 0.5)]);
    }

    #[test]
    fn a_failure_starts_all_ranks_again_until_the_restarts_are_used_up() {
        let mut job = Job::running(&[1, 1], 2);
        for restart in 1..=2 {
            job.end(1, &[FAILED], NOW);
            let commands = job.end(0, &[Ending::Signal(15)], NOW);
            let note = format!(
                "note: rank 0 (pid 7) on node 0 (host-0) failed first: SIGTERM; restart {restart} of 2"
            );
            assert_eq!(commands[..2], [(0, Order::Note(note.clone())), (1, Order::Note(note))]);
            let run = format!("run-{}", restart + 1);
            let port = 4001 + restart as u16;
            let expected = [(0, 0, 2, restart, run.clone(), port), (1, 1, 2, restart, run, port)];
            assert_eq!(starts(&commands), expected);
        }
        job.end(1, &[FAILED], NOW);
        let failure = failure(finished(&job.end(0, &[DONE], NOW), &[0, 1]));
        assert_eq!((failure.first.rank, failure.earlier.len(), failure.not_restarted), (1, 2, None));
    }

    #[test]
    fn wrong_options_and_signals_are_no_reason_to_start_again() {
        let mut job = Job::running(&[1], 3);
        let failure_of = |commands: Vec<Command>| failure(finished(&commands, &[0]));
        let end = failure_of(job.end(0, &[Ending::Code(2)], NOW));
        assert_eq!(end.not_restarted.as_deref(), Some("exit code 2 says that the options are wrong"));
        let mut job = Job::running(&[1], 3);
        job.hear(0, News::Failed);
        job.hear(0, News::Signalled { signal: 2, is_cause: false });
        assert_eq!(failure_of(job.end(0, &[FAILED], NOW)).not_restarted.as_deref(), Some("a signal came"));
        let mut job = Job::running(&[1], 3);
        let stopped = finished(&job.end(0, &[Ending::Code(75)], NOW), &[0]);
        assert_eq!(stopped, Finish::Outcome(Outcome::Stopped { signal: None }));
    }

    #[test]
    fn ranks_that_leave_to_go_on_later_give_the_others_time_and_start_nothing_again() {
        let mut job = Job::running(&[1, 1, 1], 3);
        let leaving = |node| (node, Order::Stop(Stop::Leaving));
        assert_eq!(job.hear(1, News::Leaving), [leaving(0), leaving(2)]);
        assert_eq!(job.end(1, &[Ending::Code(75)], [AT - 1.0, AT]), []);
        // This one has seen its peer go.
        assert_eq!(job.hear(2, News::Failed), [(0, Order::Stop(Stop::Failure))]);
        job.end(2, &[FAILED], NOW);
        let stopped = finished(&job.end(0, &[Ending::Code(75)], NOW), &[0, 1, 2]);
        assert_eq!(stopped, Finish::Outcome(Outcome::Stopped { signal: None }));
    }

    #[test]
    fn a_signal_on_one_node_stops_all_and_is_the_cause_unless_another_node_failed_before() {
        let mut job = Job::running(&[1, 1], 1);
        // Its sender is told as well: it may have got the order to start after it got the signal.
        let all = |stop| [0, 1].map(|node| (node, Order::Stop(stop)));
        assert_eq!(job.hear(1, News::Signalled { signal: 15, is_cause: true }), all(Stop::Signal(15)));
        assert_eq!(job.hear(1, News::Kill), all(Stop::Kill));
        job.end(1, &[Ending::Signal(15)], NOW);
        let finish = finished(&job.end(0, &[Ending::Signal(9)], NOW), &[0, 1]);
        assert_eq!(finish, Finish::Outcome(Outcome::Interrupted { signal: 15, killed: vec![0] }));

        let mut job = Job::running(&[1, 1], 0);
        job.hear(0, News::Failed);
        job.hear(1, News::Signalled { signal: 15, is_cause: true });
        job.end(1, &[DONE], NOW);
        assert_eq!(failure(finished(&job.end(0, &[FAILED], NOW), &[0, 1])).first.rank, 0);

        let mut job = Job::new(2, 0);
        job.join(0, 1);
        let finish = finished(&job.hear(0, News::Signalled { signal: 2, is_cause: true }), &[0]);
        assert_eq!(finish, Finish::Outcome(Outcome::Interrupted { signal: 2, killed: vec![] }));
    }

    #[test]
    fn a_lost_node_is_the_failure_of_all_its_ranks_and_may_come_back() {
        let mut job = Job::running(&[1, 2], 1);
        job.hear(1, News::Started { pids: vec![41, 42] });
        assert_eq!(job.lose(1), [(0, Order::Stop(Stop::Failure))]);
        let commands = job.end(0, &[FAILED], NOW);
        let [(0, Order::Note(note))] = &commands[..] else { panic!("{commands:?}") };
        assert_eq!(
            note,
            "note: rank 1 (pid 41) on node 1 (host-1) failed first: lost with its node: the launcher of node 1 on host \
             host-1 was lost: it closed the connection; restart 1 of 1 when node 1 came back, at most 60 s"
        );
        // It may come with another number of ranks.
        let places: Vec<_> = starts(&job.join(1, 3)).into_iter().map(|s| (s.0, s.1, s.2, s.3)).collect();
        assert_eq!(places, [(0, 0, 4, 1), (1, 1, 4, 1)]);
    }

    #[test]
    fn a_lost_node_that_is_back_before_the_others_have_ended_waits_for_them() {
        let mut job = Job::running(&[1, 1], 1);
        job.lose(1);
        assert_eq!(job.join(1, 1), []);
        assert_eq!(starts(&job.end(0, &[FAILED], NOW)).len(), 2);
    }

    #[test]
    fn a_lost_node_that_does_not_come_back_ends_the_job_with_its_loss() {
        let mut job = Job::running(&[1, 1], 1);
        job.lose(1);
        job.end(0, &[FAILED], NOW);
        let late = job.start + TIMEOUT;
        let end = failure(finished(&job.coordinator.tick(late), &[0]));
        assert_eq!((end.first.rank, end.first.ending, end.earlier.len()), (1, Ending::NodeLost, 0));
        assert_eq!(end.not_restarted.as_deref(), Some("node 1 did not come back within 60 s"));
    }

    #[test]
    fn a_node_that_is_lost_after_another_failure_is_a_consequence() {
        let mut job = Job::running(&[1, 1], 0);
        job.hear(0, News::Failed);
        assert_eq!(job.lose(1), []);
        let end = failure(finished(&job.end(0, &[FAILED], NOW), &[0]));
        let report = |end: &RankEnd| end.report.as_ref().map(|report: &ErrorReport| report.consequence);
        assert_eq!((end.first.rank, report(&end.consequences[0])), (0, Some(true)));
    }

    #[test]
    fn a_node_that_cannot_start_its_ranks_ends_the_job_whatever_restarts_are_left() {
        let mut job = Job::running(&[1, 1], 5);
        let reason = "cannot start \"x\"".to_owned();
        let commands = job.hear(1, News::CannotStart { reason: reason.clone() });
        assert_eq!(commands, [(0, Order::Stop(Stop::Failure))]);
        let finish = finished(&job.end(0, &[Ending::Signal(15)], NOW), &[0, 1]);
        assert_eq!(finish, Finish::NotStarted { node: 1, host: "host-1".into(), reason });
    }
}
