//! What the parent asks of the ranks, and what they answer; a line of text each, so that a peer in Python speaks it too.

use std::fmt;
use std::str::FromStr;

use super::{AnyError, median};

/// How the bytes move.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Variant {
    /// Shared memory, the buffer lives in the segment.
    SharedResident,
    /// Shared memory, the buffer is the program's own and is copied in and out.
    SharedCopies,
    /// TCP over the loopback interface.
    Tcp,
    /// The machine's MPI library.
    Mpi,
    /// torch.distributed with gloo.
    Gloo,
}

impl Variant {
    const ALL: [Self; 5] = [Self::SharedResident, Self::SharedCopies, Self::Tcp, Self::Mpi, Self::Gloo];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::SharedResident => "shm-resident",
            Self::SharedCopies => "shm-copies",
            Self::Tcp => "tcp",
            Self::Mpi => "mpi",
            Self::Gloo => "gloo",
        }
    }
}

impl FromStr for Variant {
    type Err = AnyError;

    fn from_str(text: &str) -> Result<Self, AnyError> {
        let found = Self::ALL.into_iter().find(|variant| variant.name() == text);
        found.ok_or_else(|| format!("`{text}` is no variant").into())
    }
}

/// One measurement: `samples` times the mean of `calls` calls in a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Order {
    /// All-reduces (sum, f32) of a buffer of this many bytes.
    AllReduce { variant: Variant, bytes: usize, samples: usize, calls: usize },
    /// The triad of STREAM (McCalpin 1995), `a = b + s c`, on three arrays of this many bytes.
    Triad { bytes: usize, samples: usize },
}

impl Order {
    /// An all-reduce with as many samples and calls as its size needs for a steady median in about half a second.
    pub(crate) fn all_reduce(variant: Variant, bytes: usize) -> Self {
        let (samples, calls) = match bytes {
            0..=100_000 => (7, 200),
            100_001..=2_000_000 => (7, 20),
            2_000_001..=50_000_000 => (9, 1),
            _ => (5, 1),
        };
        Self::AllReduce { variant, bytes, samples, calls }
    }

    /// Three arrays that no cache holds.
    pub(crate) fn triad() -> Self {
        Self::Triad { bytes: 64_000_000, samples: 7 }
    }
}

impl fmt::Display for Order {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AllReduce { variant, bytes, samples, calls } => {
                write!(f, "all-reduce {} {bytes} {samples} {calls}", variant.name())
            }
            Self::Triad { bytes, samples } => write!(f, "triad {bytes} {samples}"),
        }
    }
}

impl FromStr for Order {
    type Err = AnyError;

    fn from_str(text: &str) -> Result<Self, AnyError> {
        match text.split_whitespace().collect::<Vec<_>>()[..] {
            ["all-reduce", variant, bytes, samples, calls] => Ok(Self::AllReduce {
                variant: variant.parse()?,
                bytes: bytes.parse()?,
                samples: samples.parse()?,
                calls: calls.parse()?,
            }),
            ["triad", bytes, samples] => Ok(Self::Triad { bytes: bytes.parse()?, samples: samples.parse()? }),
            _ => Err(format!("`{text}` is no order").into()),
        }
    }
}

/// What an order took on one rank.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Measured {
    /// Seconds of one call, each sample.
    pub(crate) seconds: Vec<f64>,
    /// Processor seconds of one call, of all threads of the rank, in user and kernel mode.
    pub(crate) cpu_seconds: f64,
}

impl Measured {
    /// Seconds of one call on the slowest rank, the median of the samples.
    pub(crate) fn slowest(ranks: &[Self]) -> f64 {
        let samples = ranks.iter().map(|rank| rank.seconds.len()).min().unwrap_or(0);
        let slowest = |sample: usize| ranks.iter().map(|rank| rank.seconds[sample]).fold(0.0, f64::max);
        median((0..samples).map(slowest))
    }

    /// Processor seconds of one call on one rank, the mean of the ranks.
    pub(crate) fn cpu_per_rank(ranks: &[Self]) -> f64 {
        ranks.iter().map(|rank| rank.cpu_seconds).sum::<f64>() / ranks.len() as f64
    }
}

impl fmt::Display for Measured {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.cpu_seconds)?;
        self.seconds.iter().try_for_each(|seconds| write!(f, " {seconds}"))
    }
}

impl FromStr for Measured {
    type Err = AnyError;

    fn from_str(text: &str) -> Result<Self, AnyError> {
        let numbers = text.split_whitespace().map(str::parse).collect::<Result<Vec<f64>, _>>();
        match numbers.map_err(|error| format!("`{text}` is no answer: {error}"))?.as_slice() {
            [cpu_seconds, seconds @ ..] if !seconds.is_empty() => {
                Ok(Self { seconds: seconds.to_vec(), cpu_seconds: *cpu_seconds })
            }
            _ => Err(format!("`{text}` is no answer").into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn orders_and_answers_read_back_as_they_were_written() {
        let orders = Variant::ALL.map(|variant| Order::all_reduce(variant, 26_000_000));
        for order in orders.into_iter().chain([Order::triad()]) {
            assert_eq!(order.to_string().parse::<Order>().unwrap(), order);
        }
        let measured = Measured { seconds: vec![0.1, 1.0 / 3.0], cpu_seconds: 1e-7 };
        assert_eq!(measured.to_string().parse::<Measured>().unwrap(), measured);
    }

    #[test]
    fn what_is_no_order_or_no_answer_is_an_error() {
        for text in ["", "all-reduce tcp 4 1", "all-reduce udp 4 1 1", "triad -1 1", "rm 1 2"] {
            assert!(text.parse::<Order>().is_err(), "{text}");
        }
        assert!(["", "1", "1 x"].iter().all(|text| text.parse::<Measured>().is_err()));
    }

    #[test]
    fn a_call_takes_as_long_as_on_its_slowest_rank_and_the_processor_the_mean() {
        let ranks = [([1.0, 5.0, 2.0], 1.0), ([3.0, 1.0, 1.0], 2.0)]
            .map(|(seconds, cpu_seconds)| Measured { seconds: seconds.into(), cpu_seconds });
        // The slowest of each sample are 3, 5 and 2.
        assert_eq!((Measured::slowest(&ranks), Measured::cpu_per_rank(&ranks)), (3.0, 1.5));
    }
}
