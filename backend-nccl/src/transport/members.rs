//! Who takes part in a call.

/// The ranks of a group that take part in one call, ascending, and this rank's place among them.
///
/// Plans and roots count in places, so that a part of a group, such as the ranks of one host, can run a collective of
/// its own over the group's connections.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Members {
    ranks: Vec<usize>,
    own: usize,
}

impl Members {
    /// All ranks of a group, seen from `rank`: places are ranks.
    pub(crate) fn all(rank: usize, world_size: usize) -> Self {
        Self { ranks: (0..world_size).collect(), own: rank }
    }

    /// These ranks, seen from `rank`; `None` where it is not one of them.
    pub(crate) fn new(mut ranks: Vec<usize>, rank: usize) -> Option<Self> {
        ranks.sort_unstable();
        ranks.dedup();
        let own = ranks.iter().position(|member| *member == rank)?;
        Some(Self { ranks, own })
    }

    pub(crate) fn len(&self) -> usize {
        self.ranks.len()
    }

    /// This rank's place.
    pub(crate) fn own(&self) -> usize {
        self.own
    }

    /// The group's rank at `place`.
    pub(crate) fn rank(&self, place: usize) -> usize {
        self.ranks[place]
    }

    /// The ranks in order of their places, without this one.
    pub(crate) fn others(&self) -> Vec<usize> {
        let own = self.ranks[self.own];
        self.ranks.iter().copied().filter(|rank| *rank != own).collect()
    }

    /// The ranks in order of their places.
    pub(crate) fn ranks(&self) -> &[usize] {
        &self.ranks
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_follow_the_order_of_ranks() {
        let members = Members::new(vec![7, 2, 5, 2], 5).unwrap();
        assert_eq!((members.len(), members.own(), members.ranks()), (3, 1, [2, 5, 7].as_slice()));
        assert_eq!(members.rank(members.own()), 5);
        assert_eq!(Members::new(vec![1, 2], 0), None);
        assert_eq!(Members::all(1, 3), Members::new(vec![0, 1, 2], 1).unwrap());
    }
}
