use super::{
    coordinator::Command,
    members::Participant,
    protocol::{Order, Stop},
};

/// An attempt under way.
#[derive(Default)]
pub(super) struct Course {
    pub(super) nodes: Vec<Participant>,
    /// The node on which a rank failed first, as far as it was heard.
    failed: Option<usize>,
    /// A rank has left to go on later.
    is_leaving: bool,
    /// A launcher got a signal, so that there is no restart.
    pub(super) is_signalled: bool,
    /// The signal that is the cause of the end.
    pub(super) interrupted: Option<i32>,
    /// A node that could not start its ranks, and why.
    pub(super) not_started: Option<(usize, String)>,
}

impl Course {
    pub(super) fn new(nodes: Vec<Participant>) -> Self {
        Self { nodes, ..Self::default() }
    }

    /// Whether the ranks of all nodes have ended.
    pub(super) fn has_ended(&self) -> bool {
        self.nodes.iter().all(|node| node.end.is_some())
    }

    /// A rank of `node` has failed: the others are told, once.
    pub(super) fn fail(&mut self, node: usize) -> Vec<Command> {
        if self.failed.is_some() {
            return Vec::new();
        }
        self.failed = Some(node);
        self.stop_others(node, Stop::Failure)
    }

    /// A rank of `node` has left to go on later: the others are told, once.
    pub(super) fn leave(&mut self, node: usize) -> Vec<Command> {
        if self.failed.is_some() || std::mem::replace(&mut self.is_leaving, true) {
            return Vec::new();
        }
        self.stop_others(node, Stop::Leaving)
    }

    /// Takes note of the loss of `node` at the time `at`. Returns whether its ranks had not ended.
    pub(super) fn lose(&mut self, node: usize, why: &str, at: f64) -> bool {
        let is_consequence = self.failed.is_some() || self.is_signalled;
        self.nodes[node].lose(node, why, at, is_consequence)
    }

    /// The launcher of `node` got a signal, which is the cause of the end unless another node has failed before.
    pub(super) fn signal(&mut self, node: usize, signal: i32, is_cause: bool) -> Vec<Command> {
        self.is_signalled = true;
        // Of a node whose ranks have all ended it cannot be what ended them.
        let may_be_cause = |failed| failed == node && self.nodes[node].end.is_none();
        if is_cause && self.failed.is_none_or(may_be_cause) {
            self.interrupted.get_or_insert(signal);
        }
        // Its own ranks, too: it may have had none yet when the signal came, and the order to start them crossed the news.
        self.stop_all(Stop::Signal(signal))
    }

    /// Orders for all nodes whose ranks have not ended.
    pub(super) fn stop_all(&self, stop: Stop) -> Vec<Command> {
        self.stop_others(self.nodes.len(), stop)
    }

    /// Orders for all nodes but `node` whose ranks have not ended.
    pub(super) fn stop_others(&self, node: usize, stop: Stop) -> Vec<Command> {
        let others = self.nodes.iter().enumerate().filter(|(other, it)| *other != node && it.end.is_none());
        others.map(|(other, _)| (other, Order::Stop(stop))).collect()
    }
}
