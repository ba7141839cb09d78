use super::{
    error::LaunchError,
    lines::{LineBuffer, Tail},
};
use nix::{
    errno::Errno,
    poll::{PollFd, PollFlags, PollTimeout, poll},
};
use std::{
    fs::File,
    io::{self, PipeReader, PipeWriter, Read, Write},
    os::fd::{AsFd, OwnedFd},
    sync::{
        Arc, Mutex, PoisonError,
        mpsc::{Receiver, channel},
    },
    thread,
    time::{Duration, Instant},
};

/// Time to read what the ranks have left in their pipes; only a process that left its rank's group can use it up.
const DRAIN_LIMIT: Duration = Duration::from_secs(2);

/// The two streams of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Channel {
    Stdout,
    Stderr,
}

/// One captured stream of one rank.
pub(super) struct Stream {
    rank: usize,
    /// The rank's place among those of this node.
    slot: usize,
    channel: Channel,
    source: File,
    prefix: Option<Vec<u8>>,
    log: Option<Arc<File>>,
    lines: LineBuffer,
}

impl Stream {
    /// A stream of a rank, given with its place on this node, that is read from `source`, shown with the rank's prefix if
    /// it `is_shown`, and added to `log`.
    pub(super) fn new(
        (rank, slot): (usize, usize),
        channel: Channel,
        source: impl Into<OwnedFd>,
        is_shown: bool,
        log: Option<Arc<File>>,
    ) -> Self {
        let prefix = is_shown.then(|| format!("[rank {rank}] ").into_bytes());
        Self {
            rank,
            slot,
            channel,
            source: File::from(source.into()),
            prefix,
            log,
            lines: LineBuffer::default(),
        }
    }
}

type Tails = Arc<Mutex<Vec<Tail>>>;

/// Passes the ranks' lines on, on a thread of its own: a terminal that does not read must not keep the launcher from
/// its signals.
///
/// One thread for all streams, and each line in one write, so that no line is cut by another.
pub(super) struct Output {
    tails: Tails,
    stop: PipeWriter,
    done: Receiver<()>,
}

impl Output {
    /// Starts the thread for `streams` of `ranks` ranks on this node.
    pub(super) fn start(streams: Vec<Stream>, ranks: usize) -> Result<Self, LaunchError> {
        const ACTION: &str = "start the thread that shows the ranks' output";
        let tails: Tails = Arc::new(Mutex::new((0..ranks).map(|_| Tail::default()).collect()));
        let (stopped, stop) = io::pipe().map_err(LaunchError::system(ACTION))?;
        let (ended, done) = channel();
        let mut forwarder = Forwarder { streams, stopped: Some(stopped), tails: Arc::clone(&tails) };
        thread::Builder::new()
            .name("rank-output".to_owned())
            .spawn(move || {
                forwarder.forward();
                // The receiver is gone when the launcher did not want to wait any longer.
                let _ = ended.send(());
            })
            .map_err(LaunchError::system(ACTION))?;
        Ok(Self { tails, stop, done })
    }

    /// Waits until all that the ended ranks wrote is passed on, but not longer than `limit` for whoever reads it.
    /// Returns each rank's last lines on stderr.
    pub(super) fn finish(self, limit: Duration) -> Vec<Vec<String>> {
        drop(self.stop);
        let _ = self.done.recv_timeout(DRAIN_LIMIT + limit);
        let mut tails = self.tails.lock().unwrap_or_else(PoisonError::into_inner);
        tails.iter_mut().map(Tail::take).collect()
    }
}

struct Forwarder {
    streams: Vec<Stream>,
    /// Closes when all ranks have ended; `None` after that.
    stopped: Option<PipeReader>,
    tails: Tails,
}

impl Forwarder {
    fn forward(&mut self) {
        let mut chunk = vec![0; 64 << 10];
        let mut drain_until = None;
        while !self.streams.is_empty() && drain_until.is_none_or(|limit| Instant::now() < limit) {
            let Ok((ready, stopped)) = self.wait() else { break };
            if stopped {
                self.stopped = None;
                drain_until = Some(Instant::now() + DRAIN_LIMIT);
            } else if self.stopped.is_none() && ready.is_empty() {
                break;
            }
            // From the back, so that a stream that has ended can be removed.
            for index in ready.into_iter().rev() {
                let stream = &mut self.streams[index];
                match stream.source.read(&mut chunk) {
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                    Ok(0) | Err(_) => {
                        let mut ended = self.streams.remove(index);
                        pass_on(&mut ended, None, &self.tails);
                    }
                    Ok(count) => pass_on(stream, Some(&chunk[..count]), &self.tails),
                }
            }
        }
        for stream in &mut self.streams {
            pass_on(stream, None, &self.tails);
        }
    }

    /// The streams that have something to read, and whether the ranks have just ended.
    fn wait(&self) -> nix::Result<(Vec<usize>, bool)> {
        let watched = |fd| PollFd::new(fd, PollFlags::POLLIN);
        let mut fds: Vec<_> = self.streams.iter().map(|stream| watched(stream.source.as_fd())).collect();
        fds.extend(self.stopped.iter().map(|pipe| watched(pipe.as_fd())));
        let limit = if self.stopped.is_some() { PollTimeout::NONE } else { PollTimeout::ZERO };
        while let Err(error) = poll(&mut fds, limit) {
            if error != Errno::EINTR {
                return Err(error);
            }
        }
        let is_ready = |fd: &PollFd| fd.revents().is_none_or(|events| !events.is_empty());
        let count = self.streams.len();
        let ready = (0..count).filter(|index| is_ready(&fds[*index])).collect();
        Ok((ready, fds.get(count).is_some_and(is_ready)))
    }
}

/// Passes on the lines that `bytes` complete, or at the end of the stream (`None`) the unfinished one.
fn pass_on(stream: &mut Stream, bytes: Option<&[u8]>, tails: &Tails) {
    let (mut shown, mut logged) = (Vec::new(), Vec::new());
    let mut tails =
        (stream.channel == Channel::Stderr).then(|| tails.lock().unwrap_or_else(PoisonError::into_inner));
    let take = |line: &[u8]| {
        if let Some(prefix) = &stream.prefix {
            for part in [prefix.as_slice(), line, b"\n"] {
                shown.extend_from_slice(part);
            }
        }
        if stream.log.is_some() {
            logged.extend_from_slice(line);
            logged.push(b'\n');
        }
        if let Some(tail) = tails.as_mut().and_then(|tails| tails.get_mut(stream.slot)) {
            tail.push(line);
        }
    };
    match bytes {
        Some(bytes) => stream.lines.push(bytes, take),
        None => stream.lines.finish(take),
    }
    drop(tails);
    if let Some(mut log) = stream.log.as_deref()
        && let Err(error) = log.write_all(&logged)
    {
        stream.log = None;
        show(
            Channel::Stderr,
            format!("cannot write the log of rank {}: {error}; it ends here\n", stream.rank).as_bytes(),
        );
    }
    show(stream.channel, &shown);
}

/// Nobody may be reading any more (`burnrun … | head`): the ranks train on, and the log files are still written.
fn show(channel: Channel, bytes: &[u8]) {
    let _ = match channel {
        _ if bytes.is_empty() => Ok(()),
        Channel::Stdout => {
            let mut stdout = io::stdout().lock();
            stdout.write_all(bytes).and_then(|()| stdout.flush())
        }
        Channel::Stderr => io::stderr().lock().write_all(bytes),
    };
}
