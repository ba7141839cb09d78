//! Which transport a group gets: a decision on what every rank says of itself, the same on all.

use serde::{Deserialize, Serialize};

use super::TransportKind;
use crate::{Error, Result};

/// What a rank says of itself before a transport is chosen.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Seat {
    /// What it has in common with the ranks that it can share memory with.
    pub(super) host: String,
    /// What it was asked to use.
    pub(super) kind: TransportKind,
    /// Its place in MPI's world, or why it has none.
    pub(super) mpi: Result<World, String>,
}

/// A place in MPI's world.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct World {
    pub(super) rank: usize,
    pub(super) size: usize,
}

/// What carries the data of a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Choice {
    /// One engine between all ranks.
    Flat(Across),
    /// A segment that all ranks map.
    Shared,
    /// Segments within hosts, and an engine between them.
    Layered(Hosts, Across),
}

/// What joins ranks that share no memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Across {
    Tcp,
    /// MPI, with its rank of each rank of the group.
    Mpi(Vec<usize>),
}

/// The ranks of each host, ascending; hosts in the order of their first ranks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Hosts(Vec<Vec<usize>>);

impl Hosts {
    fn of(seats: &[Seat]) -> Self {
        let mut hosts: Vec<(&str, Vec<usize>)> = Vec::new();
        for (rank, seat) in seats.iter().enumerate() {
            match hosts.iter_mut().find(|(host, _)| *host == seat.host) {
                Some((_, ranks)) => ranks.push(rank),
                None => hosts.push((&seat.host, vec![rank])),
            }
        }
        Self(hosts.into_iter().map(|(_, ranks)| ranks).collect())
    }

    #[cfg(test)]
    pub(super) fn new(ranks: Vec<Vec<usize>>) -> Self {
        Self(ranks)
    }

    pub(super) fn ranks(&self) -> &[Vec<usize>] {
        &self.0
    }

    /// The host of a rank.
    pub(super) fn of_rank(&self, rank: usize) -> usize {
        self.0.iter().position(|ranks| ranks.contains(&rank)).unwrap_or(0)
    }
}

/// The transport for ranks that say this of themselves, in rank order.
///
/// # Errors
///
/// [`Error::TransportDiffers`] where they were asked for different ones, [`Error::TransportUnavailable`] where what was
/// asked for by name cannot serve them.
pub(super) fn choose(seats: &[Seat]) -> Result<Choice> {
    let kind = seats[0].kind;
    if let Some(rank) = seats.iter().position(|seat| seat.kind != kind) {
        return Err(Error::TransportDiffers { first: kind, rank, other: seats[rank].kind });
    }
    let hosts = Hosts::of(seats);
    match kind {
        TransportKind::Tcp => Ok(Choice::Flat(Across::Tcp)),
        TransportKind::Mpi => match world_ranks(seats) {
            Ok(ranks) => Ok(Choice::Flat(Across::Mpi(ranks))),
            Err(reason) => Err(Error::TransportUnavailable { kind, reason }),
        },
        TransportKind::SharedMemory if hosts.0.len() > 1 => {
            let first = |host: usize| hosts.0[host][0];
            let reason = format!(
                "it joins ranks of one host, and ranks {} and {} are on different ones",
                first(0),
                first(1)
            );
            Err(Error::TransportUnavailable { kind, reason })
        }
        TransportKind::SharedMemory => Ok(Choice::Shared),
        TransportKind::Auto if hosts.0.len() == 1 => Ok(Choice::Shared),
        TransportKind::Auto => {
            let across = world_ranks(seats).map_or(Across::Tcp, Across::Mpi);
            if hosts.0.iter().any(|ranks| ranks.len() > 1) {
                Ok(Choice::Layered(hosts, across))
            } else {
                Ok(Choice::Flat(across))
            }
        }
    }
}

/// MPI's rank of each rank, if all of them are different ranks of one world; else why not.
fn world_ranks(seats: &[Seat]) -> Result<Vec<usize>, String> {
    let mut ranks = Vec::with_capacity(seats.len());
    let size = seats[0].mpi.as_ref().map_or(0, |world| world.size);
    for (rank, seat) in seats.iter().enumerate() {
        let world = seat.mpi.as_ref().map_err(|reason| format!("rank {rank} has no MPI: {reason}"))?;
        if world.size != size || world.rank >= size || ranks.contains(&world.rank) {
            return Err(format!(
                "MPI takes rank {rank} for rank {} of {}; start all ranks with the one mpirun of the MPI that the \
                 program was built with",
                world.rank, world.size
            ));
        }
        ranks.push(world.rank);
    }
    Ok(ranks)
}

#[cfg(test)]
mod tests {
    use super::*;
    use TransportKind::{Auto, Mpi, SharedMemory};

    /// Ranks on these hosts, with MPI or without.
    fn seats(kind: TransportKind, hosts: &str, mpi: bool) -> Vec<Seat> {
        let size = hosts.len();
        let seat = |(rank, host): (usize, char)| Seat {
            host: host.to_string(),
            kind,
            mpi: if mpi { Ok(World { rank, size }) } else { Err("no launcher of MPI".into()) },
        };
        hosts.chars().enumerate().map(seat).collect()
    }

    fn layered(hosts: &[&[usize]], across: Across) -> Choice {
        Choice::Layered(Hosts(hosts.iter().map(|ranks| ranks.to_vec()).collect()), across)
    }

    #[test]
    fn what_ranks_get_follows_from_where_they_are_and_what_they_have() {
        let mpi = |ranks: usize| Across::Mpi((0..ranks).collect());
        for (kind, hosts, with_mpi, expected) in [
            (Auto, "aa", false, Choice::Shared),
            (Auto, "aaaa", true, Choice::Shared),
            (Auto, "ab", false, Choice::Flat(Across::Tcp)),
            (Auto, "abc", true, Choice::Flat(mpi(3))),
            (Auto, "aabb", false, layered(&[&[0, 1], &[2, 3]], Across::Tcp)),
            (Auto, "aabb", true, layered(&[&[0, 1], &[2, 3]], mpi(4))),
            (Auto, "abab", false, layered(&[&[0, 2], &[1, 3]], Across::Tcp)),
            (Auto, "aaab", false, layered(&[&[0, 1, 2], &[3]], Across::Tcp)),
            (Auto, "abcc", false, layered(&[&[0], &[1], &[2, 3]], Across::Tcp)),
            (TransportKind::Tcp, "aabb", true, Choice::Flat(Across::Tcp)),
            (TransportKind::Tcp, "aa", false, Choice::Flat(Across::Tcp)),
            (SharedMemory, "aaa", false, Choice::Shared),
            (Mpi, "aabb", true, Choice::Flat(mpi(4))),
            (Mpi, "aa", true, Choice::Flat(mpi(2))),
        ] {
            assert_eq!(choose(&seats(kind, hosts, with_mpi)).unwrap(), expected, "{kind} {hosts} {with_mpi}");
        }
    }

    #[test]
    fn a_part_of_a_job_keeps_its_ranks_in_mpis_world() {
        let part = &seats(Mpi, "aabb", true)[2..];
        assert_eq!(choose(part).unwrap(), Choice::Flat(Across::Mpi(vec![2, 3])));
    }

    #[test]
    fn what_was_asked_for_by_name_and_cannot_be_is_an_error_that_says_why() {
        let text = |seats: &[Seat]| choose(seats).unwrap_err().to_string();
        let far = text(&seats(SharedMemory, "aab", false));
        assert!(far.contains("shm") && far.contains("ranks 0 and 2 are on different ones"), "{far}");
        let mut some = seats(Mpi, "ab", true);
        some[1].mpi = Err("no launcher of MPI".into());
        assert!(text(&some).contains("rank 1 has no MPI: no launcher of MPI"), "{}", text(&some));
        let mut alone = seats(Mpi, "ab", true);
        alone.iter_mut().for_each(|seat| seat.mpi = Ok(World { rank: 0, size: 1 }));
        assert!(text(&alone).contains("rank 1 for rank 0 of 1"), "{}", text(&alone));
        // Nobody asked for it by name.
        alone.iter_mut().for_each(|seat| seat.kind = Auto);
        assert_eq!(choose(&alone).unwrap(), Choice::Flat(Across::Tcp));
    }

    #[test]
    fn ranks_that_were_asked_for_different_transports_are_told() {
        let mut seats = seats(Auto, "aaa", false);
        seats[2].kind = TransportKind::Tcp;
        let text = choose(&seats).unwrap_err().to_string();
        assert!(text.contains("rank 0 asks for auto and rank 2 for tcp"), "{text}");
    }

    #[test]
    fn a_seat_survives_the_way_to_the_other_ranks() {
        for seat in [seats(Auto, "a", true), seats(Mpi, "a", false)].concat() {
            let json = serde_json::to_vec(&seat).unwrap();
            assert_eq!(serde_json::from_slice::<Seat>(&json).unwrap(), seat);
        }
    }
}
