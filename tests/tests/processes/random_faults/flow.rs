//! What passes through the proxy, as its fault leaves it.

use std::collections::VecDeque;
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::plan::{Direction, WireFault, WireKind};

const CHUNK_BYTES: usize = 64 * 1024;

/// Both directions of one connection.
pub(super) struct Pair {
    pub(super) flows: [Flow; 2],
}

impl Pair {
    pub(super) fn new(caller: TcpStream, callee: TcpStream, fault: Option<WireFault>) -> Self {
        for stream in [&caller, &callee] {
            stream.set_nonblocking(true).expect("a socket can be made not to block");
            let _ = stream.set_nodelay(true);
        }
        let (caller, callee) = (Arc::new(caller), Arc::new(callee));
        let of = |direction| {
            fault.filter(|fault| fault.direction == direction).map(|fault| (fault.offset, fault.kind))
        };
        let out = Flow::new(caller.clone(), callee.clone(), of(Direction::FromVictim));
        let back = Flow::new(callee, caller, of(Direction::ToVictim));
        Self { flows: [out, back] }
    }

    pub(super) fn pump(&mut self, fired: &AtomicBool) {
        for flow in &mut self.flows {
            flow.pump(fired);
        }
        if self.flows.iter().any(|flow| flow.cut) {
            for flow in &self.flows {
                let _ = flow.from.shutdown(Shutdown::Both);
            }
            self.flows.iter_mut().for_each(|flow| flow.over = true);
        }
    }

    pub(super) fn is_over(&self) -> bool {
        self.flows.iter().all(|flow| flow.over)
    }
}

/// One direction.
pub(super) struct Flow {
    pub(super) from: Arc<TcpStream>,
    pub(super) to: Arc<TcpStream>,
    /// Where the fault is and what it is, until it is over.
    fault: Option<(u64, WireKind)>,
    /// Bytes that have come.
    come: u64,
    pending: VecDeque<u8>,
    stalled_until: Option<Instant>,
    from_ended: bool,
    cut: bool,
    over: bool,
}

impl Flow {
    fn new(from: Arc<TcpStream>, to: Arc<TcpStream>, fault: Option<(u64, WireKind)>) -> Self {
        Self {
            from,
            to,
            fault,
            come: 0,
            pending: VecDeque::new(),
            stalled_until: None,
            from_ended: false,
            cut: false,
            over: false,
        }
    }

    fn is_stalled(&self) -> bool {
        self.stalled_until.is_some_and(|until| Instant::now() < until)
    }

    pub(super) fn wants_input(&self) -> bool {
        !self.over && !self.from_ended && !self.is_stalled() && self.pending.is_empty()
    }

    pub(super) fn wants_output(&self) -> bool {
        !self.over && !self.is_stalled() && !self.pending.is_empty()
    }

    /// Moves what can be moved now.
    fn pump(&mut self, fired: &AtomicBool) {
        let mut bytes = vec![0; CHUNK_BYTES];
        loop {
            if self.wants_input() {
                match (&*self.from).read(&mut bytes) {
                    Ok(0) => self.from_ended = true,
                    Ok(count) => self.take(bytes[..count].to_vec(), fired),
                    Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                    Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                    // A reset passes through the proxy as an end.
                    Err(_) => self.from_ended = true,
                }
            }
            if self.over || self.cut || self.is_stalled() {
                return;
            }
            while !self.pending.is_empty() {
                let (head, _) = self.pending.as_slices();
                match (&*self.to).write(head) {
                    Ok(count) => drop(self.pending.drain(..count)),
                    Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                    Err(error) if error.kind() == ErrorKind::Interrupted => {}
                    Err(_) => {
                        // Nobody reads any more, so nobody should write.
                        let _ = self.from.shutdown(Shutdown::Read);
                        self.over = true;
                        return;
                    }
                }
            }
            if self.from_ended {
                let _ = self.to.shutdown(Shutdown::Write);
                self.over = true;
                return;
            }
        }
    }

    /// Takes bytes that have come, as the fault leaves them.
    fn take(&mut self, mut bytes: Vec<u8>, fired: &AtomicBool) {
        let start = self.come;
        self.come += bytes.len() as u64;
        if let Some((offset, kind)) = self.fault
            && let Ok(at) = usize::try_from(offset.saturating_sub(start))
            && at < bytes.len()
        {
            fired.store(true, Ordering::SeqCst);
            self.fault = self.spoil(&mut bytes, at, kind);
        }
        self.pending.extend(bytes);
    }

    /// Spoils the bytes from `at` on; returns what of the fault is still to come.
    fn spoil(&mut self, bytes: &mut Vec<u8>, at: usize, kind: WireKind) -> Option<(u64, WireKind)> {
        let rest = bytes.len() - at;
        match kind {
            WireKind::Cut => {
                // What was before arrives, as it does when the other end dies.
                let head = bytes[..at].to_vec();
                let _ = (&*self.to).write(&head);
                bytes.clear();
                self.cut = true;
            }
            WireKind::Corrupt(mask) => bytes[at] ^= mask,
            WireKind::Drop(count) => {
                bytes.drain(at..at + count.min(rest));
                if count > rest {
                    return Some((self.come, WireKind::Drop(count - rest)));
                }
            }
            WireKind::Duplicate(count) => {
                let copy = bytes[at..at + count.min(rest)].to_vec();
                bytes.splice(at..at, copy);
            }
            WireKind::Reorder(_) if rest < 2 => return Some((self.come, kind)),
            WireKind::Reorder(count) => {
                let count = count.min(rest / 2);
                bytes[at..at + 2 * count].rotate_left(count);
            }
            WireKind::Stall(milliseconds) => {
                self.stalled_until = Some(Instant::now() + Duration::from_millis(milliseconds));
            }
        }
        None
    }
}
