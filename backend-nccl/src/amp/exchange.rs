//! What ranks tell each other about their gradients, so that all skip a step or none does.

use crate::error::{Error, Result};
use crate::group::ProcessGroup;
use crate::site::{self, Purpose};
use crate::transport::DType;

/// One rank's gradients and scale. Twelve bytes, so one small collective per step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Checked {
    /// Whether it had any gradient.
    pub(crate) any: bool,
    /// Whether one of them has an infinity or a NaN.
    pub(crate) overflowed: bool,
    /// Its scale.
    pub(crate) scale: f32,
    /// Its steps in a row without overflow.
    pub(crate) growth_tracker: u32,
}

/// The length of a [`Checked`] on the wire.
const BYTES: usize = 12;

impl Checked {
    fn to_bytes(self) -> [u8; BYTES] {
        let flags = u32::from(self.any) | u32::from(self.overflowed) << 1;
        let words = [flags, self.scale.to_bits(), self.growth_tracker];
        bytemuck::cast(words.map(u32::to_ne_bytes))
    }

    fn from_bytes(bytes: &[u8]) -> Self {
        let word = |at: usize| u32::from_ne_bytes(bytes[at..at + 4].try_into().expect("four bytes"));
        let flags = word(0);
        Self {
            any: flags & 1 != 0,
            overflowed: flags & 2 != 0,
            scale: f32::from_bits(word(4)),
            growth_tracker: word(8),
        }
    }
}

/// Exchanges `own` with the other ranks and returns whether anything overflowed on any of them.
///
/// # Errors
/// On every rank alike: [`Error::LossScaleMismatch`], [`Error::NoGradients`]; what the collective returns.
pub(crate) fn exchange(group: Option<&ProcessGroup>, own: Checked, optimizer: usize) -> Result<bool> {
    let Some(group) = group else { return decide(&[own], optimizer) };
    let mut all = vec![0; BYTES * group.world_size()];
    let _site = site::on_behalf_of(Purpose::Of("the agreement on the loss scale"));
    group.all_gather(&own.to_bytes(), &mut all, DType::U8)?;
    let ranks: Vec<Checked> = all.chunks_exact(BYTES).map(Checked::from_bytes).collect();
    decide(&ranks, optimizer)
}

fn decide(ranks: &[Checked], optimizer: usize) -> Result<bool> {
    let scaling = |rank: &Checked| (rank.scale.to_bits(), rank.growth_tracker);
    if ranks.iter().any(|rank| scaling(rank) != scaling(&ranks[0])) {
        return Err(Error::LossScaleMismatch { ranks: describe(ranks) });
    }
    if !ranks.iter().any(|rank| rank.any) {
        return Err(Error::NoGradients { optimizer });
    }
    Ok(ranks.iter().any(|rank| rank.overflowed))
}

fn describe(ranks: &[Checked]) -> String {
    let one = |(rank, checked): (usize, &Checked)| {
        format!("rank {rank} has {} after {} steps without overflow", checked.scale, checked.growth_tracker)
    };
    ranks.iter().enumerate().map(one).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    const FINE: Checked = Checked { any: true, overflowed: false, scale: 65536.0, growth_tracker: 3 };

    #[test]
    fn what_a_rank_sends_is_what_the_others_read() {
        for (any, overflowed) in [(true, true), (true, false), (false, false)] {
            let own = Checked { any, overflowed, scale: 0.1, growth_tracker: u32::MAX };
            assert_eq!(Checked::from_bytes(&own.to_bytes()), own);
        }
    }

    #[test]
    fn an_overflow_on_one_rank_counts_for_all() {
        let bad = Checked { overflowed: true, ..FINE };
        assert!(!decide(&[FINE, FINE], 0).unwrap());
        assert!(decide(&[FINE, bad, FINE], 0).unwrap());
    }

    #[test]
    fn another_scale_or_tracker_is_an_error_that_shows_every_rank() {
        let error = decide(&[FINE, Checked { scale: 32768.0, ..FINE }], 0).unwrap_err().to_string();
        assert!(error.contains("rank 0 has 65536 after 3 steps"), "{error}");
        assert!(error.contains("rank 1 has 32768 after 3 steps"), "{error}");
        assert!(decide(&[FINE, Checked { growth_tracker: 4, ..FINE }], 0).is_err());
    }

    #[test]
    fn a_rank_without_gradients_takes_part_where_another_has_some() {
        let none = Checked { any: false, ..FINE };
        assert!(!decide(&[FINE, none], 0).unwrap());
        assert!(matches!(decide(&[none, none], 1), Err(Error::NoGradients { optimizer: 1 })));
    }
}
