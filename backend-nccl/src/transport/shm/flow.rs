//! One collective: announce, compare, and move the bytes, round by round where they must be staged.

use super::{
    Reader, Shm, State,
    layout::Counter,
    post::{Found, Location, Post},
    rounds::{Buffers, Rounds},
    shape::Shape,
    wait::Wait,
};
use crate::{
    failure::Failure,
    transport::{Call, Collective, Signature, control::Control, members::Members},
};

impl Buffers {
    fn of(collective: Collective<'_>, shape: &Shape, own: usize) -> Self {
        let (source, source_len, target, target_len) = match collective {
            Collective::AllReduce { buffer, .. } | Collective::Broadcast { buffer, .. } => {
                let (start, len) = (buffer.as_mut_ptr(), buffer.len());
                (start.cast_const(), len, start, len)
            }
            Collective::AllGather { send, recv, .. }
            | Collective::ReduceScatter { send, recv, .. }
            | Collective::AllToAll { send, recv, .. } => {
                (send.as_ptr(), send.len(), recv.as_mut_ptr(), recv.len())
            }
            Collective::Gather { send, recv, .. } => {
                let recv = recv.unwrap_or_default();
                (send.as_ptr(), send.len(), recv.as_mut_ptr(), recv.len())
            }
            Collective::Scatter { send, recv, .. } => {
                let send = send.unwrap_or_default();
                (send.as_ptr(), send.len(), recv.as_mut_ptr(), recv.len())
            }
            Collective::Barrier | Collective::Exchange { .. } => {
                let empty: &mut [u8] = &mut [];
                (empty.as_ptr(), 0, empty.as_mut_ptr(), 0)
            }
        };
        // What others do not read need not be where they can read it.
        let source_len = source_len.min(shape.source_bytes(own));
        Self { source, source_len, target, target_len }
    }
}

/// Runs one collective to its end.
pub(super) fn run(
    shm: &Shm,
    state: &mut State,
    control: &Control,
    among: &Members,
    call: Call,
    collective: Collective<'_>,
) -> Result<(), Failure> {
    let shape = Shape::new(&collective, among.len());
    let (signature, tag) = (call.signatures(&collective, among).0, tag(among));
    let buffers = Buffers::of(collective, &shape, among.own());
    let members = shm.indices(among);
    let others: Vec<usize> = members.iter().copied().filter(|member| *member != shm.own).collect();
    look_for_obstacles(shm, state, control, call, &others)?;
    let last: Vec<Option<Signature>> = state.peers.iter().map(|peer| peer.last).collect();
    let wait = Wait { shm, control, call, sequence: Some(call.sequence), needed: &others, last: &last };

    let location = {
        // SAFETY: the caller's buffer, which nobody else touches before this rank has announced it.
        let source = unsafe { std::slice::from_raw_parts(buffers.source, buffers.source_len) };
        let reads_itself_only = others.is_empty();
        if reads_itself_only {
            Location::Nowhere
        } else {
            shm.locate(state, &wait, source, shape.needs_copy())?
        }
    };
    let own = Post { signature, location, base: state.rounds };
    announce(shm, state, &others, tag, own);
    let posts = compare(shm, state, &wait, &shape, &members, &others, (own, tag))?;

    // All have come, so that one that is lost from here on may have done its part.
    let wait = Wait { needed: &[], ..wait };
    state.rounds += Rounds::new(shm, shape, among.own(), &members, &posts, buffers).run(&wait)?;
    finish(shm, state, &wait, &others, location)
}

/// Refuses a collective that another rank has already given up, even if that rank announced it and its bytes are there:
/// it would end well here and badly there. Nobody can have finished it before this rank has come.
fn look_for_obstacles(
    shm: &Shm,
    state: &mut State,
    control: &Control,
    call: Call,
    others: &[usize],
) -> Result<(), Failure> {
    let changes = control.changes();
    if changes == state.changes {
        return Ok(());
    }
    let ranks = || others.iter().map(|member| shm.members[*member]);
    if let Some(obstacle) = control.obstacle_among(Some(call.sequence), ranks()) {
        return Err(obstacle.failure());
    }
    // Only with none among all, since another call is among others; and none to any later call, since a rank that has
    // left after this one is one to the next.
    let is_among_all = others.len() + 1 == shm.members.len();
    if is_among_all && control.obstacle_among(Some(u64::MAX), ranks()).is_none() {
        state.changes = changes;
    }
    Ok(())
}

/// Tells the others what this rank calls.
fn announce(shm: &Shm, state: &mut State, others: &[usize], tag: u32, post: Post) {
    for &member in others {
        let count = &mut state.peers[member].posted;
        *count += 1;
        post.write(&shm.segments[shm.own], shm.layout.post(member, *count), *count, tag);
    }
    shm.notify(others);
}

/// Waits for what the others call, and compares it. By place.
fn compare(
    shm: &Shm,
    state: &mut State,
    wait: &Wait<'_>,
    shape: &Shape,
    members: &[usize],
    others: &[usize],
    own: (Post, u32),
) -> Result<Vec<Post>, Failure> {
    let (own, tag) = own;
    let mut posts = vec![own; members.len()];
    let place_of = |member: usize| members.iter().position(|other| *other == member).unwrap_or_default();
    wait.for_all(others, |member| {
        let segment = &shm.segments[member];
        let count = state.peers[member].posted;
        let rank = shm.members[member];
        let wrong = |detail| Failure::Protocol { rank, detail };
        let offset = shm.layout.post(shm.own, count);
        let Some(found) = Found::at(segment, offset, count).map_err(wrong)? else { return Ok(false) };
        let theirs = found.signature(tag).map_err(wrong)?;
        state.peers[member].last = Some(theirs);
        if theirs != own.signature {
            let (call, rank) = (own.signature, shm.members[shm.own]);
            return Err(Failure::mismatch(rank, call, shm.members[member], theirs));
        }
        let place = place_of(member);
        posts[place] = found.accept(theirs, shape.source_bytes(place), segment).map_err(wrong)?;
        Ok(true)
    })?;
    Ok(posts)
}

/// Tells the others that this rank touches nothing of theirs any more, and sees that they touch nothing of its own that
/// its caller may change.
fn finish(
    shm: &Shm,
    state: &mut State,
    wait: &Wait<'_>,
    others: &[usize],
    location: Location,
) -> Result<(), Failure> {
    others.iter().for_each(|member| shm.tell(*member, Counter::Finished, state.peers[*member].posted));
    shm.notify(others);
    match location {
        Location::Nowhere => Ok(()),
        Location::Inline { slot } => {
            state.slots[slot].extend(others.iter().map(|&member| {
                let count = state.peers[member].posted;
                Reader { member, counter: Counter::Finished, count }
            }));
            Ok(())
        }
        Location::Resident { .. } | Location::Staged => wait
            .for_all(others, |member| Ok(shm.told(member, Counter::Finished) >= state.peers[member].posted)),
    }
}

/// Distinguishes the announcements of calls among other ranks.
pub(super) fn tag(among: &Members) -> u32 {
    // FNV-1a, over whole ranks.
    among.ranks().iter().fold(0x811c_9dc5, |hash, rank| (hash ^ *rank as u32).wrapping_mul(0x0100_0193))
}
