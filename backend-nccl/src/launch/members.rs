use super::{
    outcome::{Ending, RankEnd},
    protocol::NodeEnd,
    report::ErrorReport,
};

/// A node whose launcher is connected.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Newcomer {
    pub(super) host: String,
    pub(super) nproc: usize,
}

/// A node in one attempt.
#[derive(Debug, Clone)]
pub(super) struct Participant {
    pub(super) host: String,
    pub(super) nproc: usize,
    pub(super) first_rank: usize,
    /// Its ranks' processes, once it has started them.
    pub(super) pids: Vec<u32>,
    /// How its ranks ended, once all have.
    pub(super) end: Option<NodeEnd>,
}

impl Participant {
    /// The nodes of an attempt, with the ranks one after another in the order of the nodes.
    pub(super) fn all<'a>(nodes: impl Iterator<Item = &'a Newcomer>) -> Vec<Self> {
        let mut first_rank = 0;
        nodes
            .map(|node| {
                let (host, nproc) = (node.host.clone(), node.nproc);
                let participant = Self { host, nproc, first_rank, pids: Vec::new(), end: None };
                // Admission lets in at most 4096 ranks of each node, so that the sum is exact.
                first_rank = first_rank.saturating_add(nproc);
                participant
            })
            .collect()
    }

    /// Makes the loss of this node at the time `at` the end of all its ranks. Returns whether they had not ended.
    pub(super) fn lose(&mut self, node: usize, why: &str, at: f64, consequence: bool) -> bool {
        if self.end.is_some() {
            return false;
        }
        let message = format!("the launcher of node {node} on host {} was lost: {why}", self.host);
        let report = ErrorReport { message, timestamp: at, consequence };
        let end = |local_rank| RankEnd {
            rank: self.first_rank + local_rank,
            local_rank,
            node,
            host: self.host.clone(),
            pid: self.pids.get(local_rank).copied().unwrap_or(0),
            ending: Ending::NodeLost,
            seen_at: at,
            was_signalled: false,
            report: Some(report.clone()),
            stderr: Vec::new(),
            log: None,
        };
        self.end = Some(NodeEnd { ends: (0..self.nproc).map(end).collect(), sent_at: at });
        true
    }
}
