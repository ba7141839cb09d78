//! A cable between two hosts that delays what goes through it and loses some of it.
//!
//! It does what `tc netem` does and works where the kernel has no netem, as those of micro VMs: the two ends are TAP
//! devices, and a thread carries the frames from one to the other.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::{AsFd, AsRawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::libc;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sched::{CloneFlags, setns};

/// What happens to frames on their way.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Conditions {
    /// How long each is under way.
    pub(crate) delay: Duration,
    /// How much more or less that may be.
    pub(crate) jitter: Duration,
    /// How many of a thousand are lost.
    pub(crate) lost_per_mille: u64,
}

impl Conditions {
    /// A network within one room.
    pub(crate) const GOOD: Self = Self { delay: Duration::ZERO, jitter: Duration::ZERO, lost_per_mille: 0 };
    /// A long way with loss.
    pub(crate) const POOR: Self =
        Self { delay: Duration::from_millis(10), jitter: Duration::from_millis(2), lost_per_mille: 10 };
}

/// Ethernet with the largest frame that an interface of 1500 bytes gives.
const FRAME_BYTES: usize = 1600;
/// How often the thread looks whether it should end, in milliseconds.
const TICK_MS: u16 = 20;

/// A cable that carries until it is dropped.
#[derive(Debug)]
pub(crate) struct Wire {
    shared: Arc<Shared>,
    carrier: Option<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct Shared {
    ended: AtomicBool,
    frames: AtomicU64,
    lost: AtomicU64,
}

impl Wire {
    /// Joins the TAP devices `ends`, which exist in the network namespace at `namespace`.
    pub(crate) fn new(namespace: &str, ends: [&str; 2], conditions: Conditions) -> io::Result<Self> {
        let [one, other] = open(namespace, ends)?;
        let shared = Arc::new(Shared::default());
        let carrier = std::thread::spawn({
            let shared = shared.clone();
            move || carry([one, other], conditions, &shared)
        });
        Ok(Self { shared, carrier: Some(carrier) })
    }

    /// How many frames have gone through it.
    pub(crate) fn frames(&self) -> u64 {
        self.shared.frames.load(Ordering::Relaxed)
    }

    /// How many of them were lost on the way.
    pub(crate) fn lost(&self) -> u64 {
        self.shared.lost.load(Ordering::Relaxed)
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        self.shared.ended.store(true, Ordering::Relaxed);
        if let Some(carrier) = self.carrier.take() {
            let _ = carrier.join();
        }
    }
}

/// Opens the devices on a thread of its own, because entering a namespace changes the thread.
fn open(namespace: &str, ends: [&str; 2]) -> io::Result<[File; 2]> {
    let namespace = File::open(namespace)?;
    std::thread::scope(|scope| {
        let opening = scope.spawn(|| {
            setns(&namespace, CloneFlags::CLONE_NEWNET)?;
            Ok([attach(ends[0])?, attach(ends[1])?])
        });
        opening.join().expect("opening a device does not panic")
    })
}

fn attach(name: &str) -> io::Result<File> {
    let device = File::options().read(true).write(true).open("/dev/net/tun")?;
    // SAFETY: all bytes zero are a valid ifreq.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
        *to = from as libc::c_char;
    }
    request.ifr_ifru.ifru_flags = (libc::IFF_TAP | libc::IFF_NO_PI) as i16;
    // SAFETY: the descriptor is open, and TUNSETIFF reads an ifreq that lives for the call.
    if unsafe { libc::ioctl(device.as_raw_fd(), libc::TUNSETIFF as _, &raw mut request) } < 0 {
        return Err(io::Error::last_os_error());
    }
    fcntl(&device, FcntlArg::F_SETFL(OFlag::O_NONBLOCK))?;
    Ok(device)
}

/// The frames on their way to one end, the earliest first.
type Queue = VecDeque<(Instant, Vec<u8>)>;

fn carry(mut ends: [File; 2], conditions: Conditions, shared: &Shared) {
    let mut queues = [Queue::new(), Queue::new()];
    let mut chance = Chance(0x2545_f491_4f6c_dd1d);
    while !shared.ended.load(Ordering::Relaxed) {
        wait(&ends, &queues);
        for from in 0..2 {
            while let Some(frame) = receive(&mut ends[from]) {
                shared.frames.fetch_add(1, Ordering::Relaxed);
                if chance.below(1000) < conditions.lost_per_mille {
                    shared.lost.fetch_add(1, Ordering::Relaxed);
                } else {
                    let queue = &mut queues[1 - from];
                    // None overtakes another.
                    let earliest = queue.back().map_or_else(Instant::now, |(due, _)| *due);
                    queue.push_back((earliest.max(Instant::now() + chance.way(conditions)), frame));
                }
            }
        }
        for (end, queue) in ends.iter_mut().zip(&mut queues) {
            while queue.front().is_some_and(|(due, _)| *due <= Instant::now()) {
                // A device that is full or down loses the frame, as a real one does.
                let _ = queue.pop_front().map(|(_, frame)| end.write(&frame));
            }
        }
    }
}

fn wait(ends: &[File; 2], queues: &[Queue; 2]) {
    let due = queues.iter().filter_map(|queue| queue.front()).map(|(due, _)| *due).min();
    let until = due.map_or(u128::from(TICK_MS), |due| {
        due.saturating_duration_since(Instant::now()).as_micros().div_ceil(1000)
    });
    let mut fds = [0, 1].map(|end| PollFd::new(ends[end].as_fd(), PollFlags::POLLIN));
    let _ = poll(&mut fds, PollTimeout::from(u16::try_from(until).unwrap_or(TICK_MS).min(TICK_MS)));
}

fn receive(end: &mut File) -> Option<Vec<u8>> {
    let mut frame = vec![0; FRAME_BYTES];
    loop {
        match end.read(&mut frame) {
            Ok(count) => {
                frame.truncate(count);
                return Some(frame);
            }
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(_) => return None,
        }
    }
}

/// The same chances in each run (xorshift64).
struct Chance(u64);

impl Chance {
    fn below(&mut self, count: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % count
    }

    fn way(&mut self, conditions: Conditions) -> Duration {
        let jitter = conditions.jitter.as_micros() as u64;
        let more = Duration::from_micros(self.below(2 * jitter + 1));
        (conditions.delay + more).saturating_sub(conditions.jitter)
    }
}
