//! Collectives in rounds, each checked against what ranks and places give by arithmetic.

use std::path::PathBuf;
use std::time::Duration;

use burn_nccl::{DType, Environment, Error, GroupOptions, ProcessGroup, ReduceOp};
use serde::{Deserialize, Serialize};

use crate::report::Report;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(60);

/// Rounds of collectives.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Exchange {
    /// Rounds until the end.
    pub rounds: usize,
    /// Numbers that each rank gives.
    pub elements: usize,
    /// The limit of one collective, in seconds.
    pub timeout_seconds: f64,
    /// Rank R makes the file `joined-R` here after its first round.
    pub folder: Option<PathBuf>,
}

impl Exchange {
    /// Takes part as one of the ranks that the environment tells of.
    ///
    /// # Errors
    /// What the group returns.
    ///
    /// # Panics
    /// If a collective gives a wrong number.
    pub fn run(&self) -> Result<Report, Error> {
        let options = GroupOptions::default()
            .with_timeout(Duration::from_secs_f64(self.timeout_seconds))
            .with_connect_timeout(CONNECT_TIMEOUT);
        let environment = Environment::read()?.expect("a rank has the environment of one");
        let group = ProcessGroup::connect(&environment, options)?;
        for round in 0..self.rounds {
            self.round(&group, round)?;
            if let (0, Some(folder)) = (round, &self.folder) {
                std::fs::write(folder.join(format!("joined-{}", group.rank())), "")
                    .expect("a folder to write to");
            }
        }
        Ok(Report::Exchanged { rank: group.rank(), transport: group.transport_name().to_owned() })
    }

    fn round(&self, group: &ProcessGroup, round: usize) -> Result<(), Error> {
        let (rank, ranks) = (group.rank() as i64, group.world_size() as i64);
        let value = |rank: i64, place: usize| (rank + 1) * 1000 + (place + round) as i64 % 997;
        let numbers = |rank| -> Vec<u8> { encode((0..self.elements).map(|place| value(rank, place))) };
        let sum = |place| (0..ranks).map(|rank| value(rank, place)).sum::<i64>();

        let mut summed = numbers(rank);
        group.all_reduce(&mut summed, DType::I64, ReduceOp::Sum)?;
        assert_eq!(summed, encode((0..self.elements).map(sum)), "all_reduce in round {round}");

        let root = round % ranks as usize;
        let mut sent = numbers(rank);
        group.broadcast(&mut sent, DType::I64, root)?;
        assert_eq!(sent, numbers(root as i64), "broadcast in round {round}");

        let mut gathered = vec![0; summed.len() * ranks as usize];
        group.all_gather(&numbers(rank), &mut gathered, DType::I64)?;
        let all: Vec<u8> = (0..ranks).flat_map(numbers).collect();
        assert_eq!(gathered, all, "all_gather in round {round}");

        let mut part = vec![0; summed.len()];
        group.reduce_scatter(&all, &mut part, DType::I64, ReduceOp::Sum)?;
        let expected = (0..self.elements).map(|place| ranks * value(rank, place));
        assert_eq!(part, encode(expected), "reduce_scatter in round {round}");
        group.barrier()
    }
}

fn encode(numbers: impl Iterator<Item = i64>) -> Vec<u8> {
    numbers.flat_map(i64::to_ne_bytes).collect()
}
