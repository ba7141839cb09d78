//! Making the segments and opening each other's: all ranks can, or none uses them.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering, fence},
    },
    time::Duration,
};

use nix::{
    sched::{CpuSet, sched_getaffinity},
    sys::sysinfo,
    unistd::Pid,
};
use serde::{Deserialize, Serialize};

use super::{
    Peer, Shm, State,
    arena::Arena,
    layout::{INLINE_SLOTS, Layout, MAGIC, MESSAGE_SLOTS, TOKEN, TOKEN_WORDS},
    mapping::Mapping,
    wake,
};
use crate::{deadline::Deadline, failure::Failure, transport::control::Control};

/// The address range of all segments of a group together, as far as the machine's memory does not bound it: more than a
/// hundred groups fit what a process has. A buffer beyond a rank's part of it is an ordinary one.
const ADDRESS_SPACE: usize = 1 << 40;

/// How long the news of a rank's death may trail its segment's.
const MEMBER_GRACE: Duration = Duration::from_millis(250);

/// Where a rank's segment can be opened.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Place {
    pid: u32,
    fd: i32,
    span: usize,
    /// Random: who reads it from the file has opened the right one.
    token: [u64; TOKEN_WORDS],
}

/// Makes this rank's segment and opens those of `members`, all ranks of this host, this one among them. Every rank of
/// the group calls it, whatever its host.
///
/// The inner error says why shared memory is not to be had, the same on all of `members`.
///
/// # Errors
///
/// A rank that does not come, or fails.
pub(crate) fn connect(
    control: &Control,
    members: &[usize],
    deadline: Deadline,
) -> Result<Result<Shm, String>, Failure> {
    let rank = control.rank();
    let mut members = members.to_vec();
    members.sort_unstable();
    let layout = Layout::new(members.len());
    let own = create(&layout, members.len());
    let place = own.as_ref().map(|(_, place)| place.clone()).map_err(Clone::clone);
    let places = control.gather("shm-place", &encode(&place), deadline)?;

    let opened = own.and_then(|(own, _)| open_all(rank, &members, own, &places, &layout));
    let vote = opened.as_ref().map(|_| ()).map_err(Clone::clone);
    let votes = control.gather("shm-vote", &encode(&vote), deadline)?;
    for &member in &members {
        let vote: Result<(), String> = decode(&votes[member]);
        if let Err(reason) = vote {
            // A segment goes with its rank, whose end is the better reason and may be heard of a moment later.
            if let Some(failure) = control.failure_within(MEMBER_GRACE) {
                return Err(failure);
            }
            return Ok(Err(format!("rank {member}: {reason}")));
        }
    }
    Ok(opened.map(|segments| {
        let shm = Shm::new(rank, members, layout, segments);
        let own = Arc::downgrade(&shm.segments[shm.own]);
        control.on_change(Box::new(move || {
            if let Some(own) = own.upgrade() {
                // Between the change and the look at who sleeps, as in `notify`.
                fence(Ordering::SeqCst);
                wake(&own);
            }
        }));
        shm
    }))
}

/// This rank's segment, with its token in it.
fn create(layout: &Layout, members: usize) -> Result<(Mapping, Place), String> {
    let memory = sysinfo::sysinfo().map_or(usize::MAX, |info| info.ram_total() as usize);
    let span = memory.min(ADDRESS_SPACE / members.max(1));
    let mapping = Mapping::create(layout.arena(), span)?;
    let mut bytes = [0; 8 * TOKEN_WORDS];
    getrandom::fill(&mut bytes).map_err(|error| format!("no random numbers: {error}"))?;
    let mut token = [0; TOKEN_WORDS];
    for (index, (word, bytes)) in token.iter_mut().zip(bytes.chunks_exact(8)).enumerate() {
        *word = u64::from_ne_bytes(bytes.try_into().expect("eight bytes"));
        mapping.word(TOKEN + 8 * index).store(*word, Ordering::Relaxed);
    }
    mapping.word(0).store(MAGIC, Ordering::Release);
    mapping.populate(0, layout.arena());
    let place = Place { pid: std::process::id(), fd: mapping.fd(), span: mapping.span(), token };
    Ok((mapping, place))
}

/// All segments, by member.
fn open_all(
    rank: usize,
    members: &[usize],
    own: Mapping,
    places: &[Vec<u8>],
    layout: &Layout,
) -> Result<Vec<Arc<Mapping>>, String> {
    let mut own = Some(own);
    let mut segments = Vec::with_capacity(members.len());
    for &member in members {
        let segment = match own.take_if(|_| member == rank) {
            Some(own) => own,
            None => {
                let place: Result<Place, String> = decode(&places[member]);
                let place = place.map_err(|reason| format!("rank {member} has no segment: {reason}"))?;
                open(&place, layout)?
            }
        };
        segments.push(Arc::new(segment));
    }
    Ok(segments)
}

fn open(place: &Place, layout: &Layout) -> Result<Mapping, String> {
    let mapping = Mapping::open(place.pid, place.fd, place.span)?;
    let is_segment = mapping.span() == place.span
        && mapping.has(0, layout.arena() as u64)
        && mapping.word(0).load(Ordering::Acquire) == MAGIC
        && (0..TOKEN_WORDS).all(|i| mapping.word(TOKEN + 8 * i).load(Ordering::Relaxed) == place.token[i]);
    if !is_segment {
        return Err(format!("/proc/{}/fd/{} is another file, or too large to map", place.pid, place.fd));
    }
    mapping.populate(0, layout.arena());
    Ok(mapping)
}

fn encode<T: Serialize>(value: &Result<T, String>) -> Vec<u8> {
    serde_json::to_vec(value).unwrap_or_default()
}

fn decode<T: for<'a> Deserialize<'a>>(bytes: &[u8]) -> Result<T, String> {
    serde_json::from_slice::<Result<T, String>>(bytes).map_err(|error| error.to_string())?
}

impl Shm {
    fn new(rank: usize, members: Vec<usize>, layout: Layout, segments: Vec<Arc<Mapping>>) -> Self {
        let own = members.binary_search(&rank).expect("a rank is a member of its own host");
        let cores = sched_getaffinity(Pid::from_raw(0))
            .map_or(1, |set| (0..CpuSet::count()).filter(|core| set.is_set(*core).unwrap_or(false)).count());
        let state = State {
            peers: vec![Peer::default(); members.len()],
            changes: 0,
            rounds: 0,
            slots: [const { Vec::new() }; INLINE_SLOTS],
            next_slot: 0,
            letters: [None; MESSAGE_SLOTS],
        };
        let arena = Arena::new(segments[own].clone(), layout.arena());
        Self {
            crowded: members.len() > cores,
            members,
            own,
            layout,
            segments,
            arena,
            ended: AtomicBool::new(false),
            state: Mutex::new(state),
        }
    }
}
