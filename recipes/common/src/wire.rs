//! How gradients travel, as an option.

use std::fmt;
use std::str::FromStr;

use burn_nccl::ddp::{Communication, PowerSgdConfig};

const DEFAULT_RANK: usize = 1;
/// Steps before gradients are approximated: the first ones suffer most from it.
const DEFAULT_START: usize = 100;
/// Beyond any matrix of these models: a larger one is a slip of the finger.
const MOST_RANK: usize = 4096;

/// How gradients travel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Wire {
    /// As they are.
    #[default]
    F32,
    /// In IEEE half precision.
    F16,
    /// In bfloat16.
    Bf16,
    /// As products of thin matrices.
    PowerSgd {
        /// Their columns.
        rank: usize,
        /// Steps before that.
        start: usize,
    },
}

impl Wire {
    /// The library's option for it.
    pub fn communication(self) -> Communication {
        match self {
            Self::F32 => Communication::AllReduce,
            Self::F16 => Communication::F16,
            Self::Bf16 => Communication::BF16,
            Self::PowerSgd { rank, start } => {
                Communication::PowerSgd(PowerSgdConfig::new().with_rank(rank).with_start_step(start))
            }
        }
    }
}

impl fmt::Display for Wire {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::F32 => f.write_str("f32"),
            Self::F16 => f.write_str("f16"),
            Self::Bf16 => f.write_str("bf16"),
            Self::PowerSgd { rank, start } => write!(f, "powersgd:{rank}:{start}"),
        }
    }
}

impl FromStr for Wire {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || {
            format!("`{text}` is no way to send gradients: give f32, f16, bf16 or powersgd[:RANK[:START]]")
        };
        let mut parts = text.split(':');
        let wire = match parts.next().unwrap_or_default() {
            "f32" => Self::F32,
            "f16" => Self::F16,
            "bf16" => Self::Bf16,
            "powersgd" => {
                let mut number =
                    |default| parts.next().map_or(Ok(default), |part| part.parse().map_err(|_| wrong()));
                Self::PowerSgd { rank: number(DEFAULT_RANK)?, start: number(DEFAULT_START)? }
            }
            _ => return Err(wrong()),
        };
        match wire {
            _ if parts.next().is_some() => Err(wrong()),
            Self::PowerSgd { rank, .. } if !(1..=MOST_RANK).contains(&rank) => {
                Err(format!("`{text}` has a rank of {rank}: give 1 to {MOST_RANK}"))
            }
            wire => Ok(wire),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_what_was_read_with_the_defaults_filled_in() {
        let written = |text: &str| text.parse::<Wire>().map(|wire| wire.to_string());
        for text in ["f32", "f16", "bf16", "powersgd:4:20"] {
            assert_eq!(written(text), Ok(text.into()));
        }
        assert_eq!(written("powersgd"), Ok("powersgd:1:100".into()));
        assert_eq!(written("powersgd:2"), Ok("powersgd:2:100".into()));
    }

    #[test]
    fn anything_else_is_refused() {
        let refused = [
            "",
            "F16",
            "f16:2",
            "powersgd:",
            "powersgd:0",
            "powersgd:5000",
            "powersgd:1:-1",
            "powersgd:1:2:3",
        ];
        for text in refused {
            assert!(text.parse::<Wire>().is_err(), "{text}");
        }
    }
}
