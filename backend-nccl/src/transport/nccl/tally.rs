//! What the operations of a rank need of the others, so that one that leaves can say what it has done its part of.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::operation::DeviceOperation;

/// How many operations of a communicator a rank has called.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Tally {
    /// Those that all ranks take part in.
    collectives: u64,
    /// Messages, by the other rank.
    sent: BTreeMap<usize, u64>,
    received: BTreeMap<usize, u64>,
}

/// The parts of others that one operation needs, each by its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Needs {
    Collective(u64),
    Messages { to: Option<(usize, u64)>, from: Option<(usize, u64)> },
}

impl Tally {
    /// Counts an operation.
    pub(super) fn count(&mut self, operation: &DeviceOperation) -> Needs {
        let next = |counts: &mut BTreeMap<usize, u64>, peer: usize| {
            let count = counts.entry(peer).or_default();
            *count += 1;
            (peer, *count)
        };
        match operation {
            DeviceOperation::Exchange { send, receive } => Needs::Messages {
                to: send.map(|(_, peer)| next(&mut self.sent, peer)),
                from: receive.map(|(_, peer)| next(&mut self.received, peer)),
            },
            _ => {
                self.collectives += 1;
                Needs::Collective(self.collectives)
            }
        }
    }

    /// Whether a rank that leaves with this tally has done all that an operation of `rank` needs of it.
    pub(super) fn meets(&self, needs: Needs, leaver: usize, rank: usize) -> bool {
        let covers = |counts: &BTreeMap<usize, u64>, message: Option<(usize, u64)>| {
            let number = message.filter(|(peer, _)| *peer == leaver).map_or(0, |(_, number)| number);
            counts.get(&rank).copied().unwrap_or(0) >= number
        };
        match needs {
            Needs::Collective(number) => self.collectives >= number,
            Needs::Messages { to, from } => covers(&self.received, to) && covers(&self.sent, from),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{super::Region, *};
    use crate::transport::ReduceOp;

    const REGION: Region = Region { address: 0, len_bytes: 0 };

    fn reduce() -> DeviceOperation {
        DeviceOperation::AllReduce { send: REGION, recv: REGION, op: ReduceOp::Sum }
    }

    fn message(to: Option<usize>, from: Option<usize>) -> DeviceOperation {
        let with = |peer: Option<usize>| peer.map(|peer| (REGION, peer));
        DeviceOperation::Exchange { send: with(to), receive: with(from) }
    }

    #[test]
    fn a_rank_that_leaves_has_done_its_part_of_what_it_has_called_and_of_nothing_else() {
        let (mut leaver, mut other) = (Tally::default(), Tally::default());
        // Rank 1 leaves after one reduction, a message to rank 0 and one from rank 2.
        for operation in [reduce(), message(Some(0), None), message(None, Some(2))] {
            leaver.count(&operation);
        }
        for (operation, rank, is_met) in [
            (reduce(), 0, true),
            (reduce(), 0, false),
            (message(None, Some(1)), 0, true),
            (message(None, Some(1)), 0, false),
            (message(Some(1), None), 0, false),
            (message(Some(2), Some(2)), 0, true),
            (message(Some(1), None), 2, false),
        ] {
            let needs = other.count(&operation);
            assert_eq!(leaver.meets(needs, 1, rank), is_met, "{operation:?} as {needs:?}");
        }
        assert!(leaver.meets(Tally::default().count(&message(Some(1), None)), 1, 2));
    }
}
