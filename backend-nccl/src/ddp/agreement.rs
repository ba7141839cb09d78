//! Agreement on which parameters were used in a step.

use super::config::UnusedParameters;
use crate::error::{Error, Result};
use crate::group::ProcessGroup;
use crate::site::{self, Purpose};
use crate::transport::DType;

/// What a rank tells the others about one parameter in one step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Use {
    /// It had a batch and no gradient for the parameter.
    Unused = 0,
    /// It had a gradient.
    Used = 1,
    /// It has run out of data and takes part with zeros, which is no misuse of the parameter.
    NoBatch = 2,
}

impl Use {
    pub(crate) fn of(has_gradient: bool, has_batch: bool) -> Self {
        match (has_gradient, has_batch) {
            (true, _) => Self::Used,
            (false, true) => Self::Unused,
            (false, false) => Self::NoBatch,
        }
    }
}

/// Tells the other ranks which parameters had a gradient here, and returns which had one anywhere.
///
/// Every rank does so in every step, so that an unused parameter is an error on all ranks in the step where it happens,
/// not a wrong sum or a hang in a later one.
///
/// # Errors
/// [`Error::UnusedParameters`], on every rank, where the policy refuses them.
pub(crate) fn exchange(
    group: &ProcessGroup,
    own: &[Use],
    names: &[String],
    policy: UnusedParameters,
) -> Result<Vec<bool>> {
    let own: Vec<u8> = own.iter().map(|&own| own as u8).collect();
    let mut all = vec![0; own.len() * group.world_size()];
    let _site = site::on_behalf_of(Purpose::Of("the agreement on which parameters were used"));
    group.all_gather(&own, &mut all, DType::U8)?;
    let by_rank: Vec<&[u8]> = all.chunks_exact(own.len().max(1)).collect();
    decide(&by_rank, names, policy)
}

fn decide(by_rank: &[&[u8]], names: &[String], policy: UnusedParameters) -> Result<Vec<bool>> {
    let any_unused = by_rank.iter().any(|uses| uses.contains(&(Use::Unused as u8)));
    if policy == UnusedParameters::Refuse && any_unused {
        return Err(Error::UnusedParameters { details: describe(by_rank, names) });
    }
    let used = |parameter: usize| by_rank.iter().any(|uses| uses[parameter] == Use::Used as u8);
    Ok((0..names.len()).map(used).collect())
}

fn describe(by_rank: &[&[u8]], names: &[String]) -> String {
    let on_rank = |(rank, uses): (usize, &&[u8])| {
        let unused: Vec<&str> = names
            .iter()
            .zip(uses.iter())
            .filter(|(_, used)| **used == Use::Unused as u8)
            .map(|(name, _)| name.as_str())
            .collect();
        (!unused.is_empty()).then(|| format!("rank {rank}: {}", unused.join(", ")))
    };
    by_rank.iter().enumerate().filter_map(on_rank).collect::<Vec<_>>().join("; ")
}

#[cfg(test)]
mod tests {
    use super::*;

    const UNUSED: u8 = Use::Unused as u8;
    const USED: u8 = Use::Used as u8;
    const NO_BATCH: u8 = Use::NoBatch as u8;

    fn names() -> Vec<String> {
        vec!["a".into(), "b".into()]
    }

    #[test]
    fn an_unused_parameter_is_refused_with_its_ranks_and_names() {
        let error =
            decide(&[&[USED, USED], &[UNUSED, UNUSED]], &names(), UnusedParameters::Refuse).unwrap_err();
        assert!(matches!(error, Error::UnusedParameters { details } if details == "rank 1: a, b"));
    }

    #[test]
    fn a_rank_without_a_batch_does_not_count_as_one_that_left_its_parameters_unused() {
        let used =
            decide(&[&[NO_BATCH, NO_BATCH], &[USED, USED]], &names(), UnusedParameters::Refuse).unwrap();
        assert_eq!(used, [true, true]);
    }

    #[test]
    fn a_parameter_counts_as_used_where_any_rank_used_it() {
        let used = decide(&[&[USED, UNUSED], &[UNUSED, UNUSED]], &names(), UnusedParameters::Allow).unwrap();
        assert_eq!(used, [true, false]);
    }
}
