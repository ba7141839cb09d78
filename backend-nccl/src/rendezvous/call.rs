//! The caller's side of a connection: tries until the callee answers, proves itself and lets it in.

use std::{
    io::{self, ErrorKind, Read, Write},
    net::{SocketAddr, TcpStream},
    time::Duration,
};

use super::hello::{
    ANSWER_BYTES, CALLEE_MAGIC, CONFIRMATION, GREETING_BYTES, Hello, Identity, Opening, REFUSED,
};
use super::{refusal::Refusal, resolve::resolve};
use crate::{Error, Result, deadline::Deadline};

/// How long one attempt to connect or one opening may take, within the deadline of the whole.
const ATTEMPT: Duration = Duration::from_secs(5);
const FOREIGN: &str = "what answers there is not burn-nccl";
const FIRST_PAUSE: Duration = Duration::from_millis(10);
const LONGEST_PAUSE: Duration = Duration::from_millis(500);

/// Calls `host:port` until it answers, is certain to refuse, or the deadline has passed.
///
/// The callee may start later, and its name may be known later, so both are tried again with growing pauses.
pub(crate) fn call(place: (&str, u16), target: &str, hello: &Hello, deadline: Deadline) -> Result<TcpStream> {
    call_in_attempts(place, target, hello, deadline, ATTEMPT)
}

/// As [`call`], with the longest time for one attempt.
pub(super) fn call_in_attempts(
    (host, port): (&str, u16),
    target: &str,
    hello: &Hello,
    deadline: Deadline,
    limit: Duration,
) -> Result<TcpStream> {
    let mut pause = FIRST_PAUSE;
    let address = join_host_port(host, port);
    loop {
        let last = match resolve(host, port, deadline) {
            Err(error) => format!("the name cannot be resolved ({error})"),
            Ok(candidates) => {
                let mut last = "the name has no address".to_owned();
                for candidate in candidates {
                    match attempt(candidate, hello, deadline.remaining_at_most(limit)) {
                        Ok(stream) => return Ok(stream),
                        Err(Attempt::Refused(refusal)) => {
                            let Identity { rank, world_size, .. } = hello.identity;
                            return Err(Error::Refused { rank, world_size, address, refusal });
                        }
                        Err(Attempt::Failed(error)) => return Err(error),
                        Err(Attempt::Again(reason)) => last = reason,
                    }
                }
                last
            }
        };
        if deadline.remaining() <= pause {
            let (rank, target) = (hello.identity.rank, target.to_owned());
            return Err(Error::Connect { rank, target, address, waited: deadline.elapsed(), last });
        }
        std::thread::sleep(pause);
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

enum Attempt {
    Refused(Refusal),
    Again(String),
    Failed(Error),
}

impl From<io::Error> for Attempt {
    fn from(error: io::Error) -> Self {
        Self::Again(match error.kind() {
            ErrorKind::UnexpectedEof | ErrorKind::ConnectionReset => {
                "it closes the connection without an answer".to_owned()
            }
            ErrorKind::WouldBlock | ErrorKind::TimedOut => {
                "it accepts the connection but does not answer".to_owned()
            }
            ErrorKind::InvalidData => FOREIGN.to_owned(),
            _ => error.to_string(),
        })
    }
}

fn attempt(address: SocketAddr, hello: &Hello, limit: Duration) -> Result<TcpStream, Attempt> {
    let stream = TcpStream::connect_timeout(&address, limit)?;
    // A port that nobody listens on can be handed to this very socket, which then talks to itself.
    if stream.local_addr()? == stream.peer_addr()? {
        return Err(Attempt::Again("nobody listens there".to_owned()));
    }
    stream.set_nodelay(true)?;
    stream.set_write_timeout(Some(limit))?;
    introduce(&stream, hello, Deadline::after(limit))?;
    stream.set_read_timeout(None)?;
    Ok(stream)
}

/// Goes through the opening with whoever answers.
fn introduce(mut stream: &TcpStream, hello: &Hello, deadline: Deadline) -> Result<(), Attempt> {
    let foreign = || Attempt::Again(FOREIGN.to_owned());
    let mut opening = Opening::call().map_err(Attempt::Failed)?;
    stream.write_all(opening.caller_greeting())?;
    let greeting: [u8; GREETING_BYTES] = read_message(stream, deadline)?.ok_or_else(foreign)?;
    match opening.hear(&greeting) {
        Ok(()) => {}
        Err(Refusal::Stranger) => return Err(foreign()),
        Err(refusal) => return Err(Attempt::Refused(refusal)),
    }
    stream.write_all(&opening.petition(hello))?;
    let answer: Option<[u8; ANSWER_BYTES]> = read_message(stream, deadline)?;
    let Some(answer) = answer else { return Err(Attempt::Refused(hello.identity.bare_refusal())) };
    match opening.judge(hello, &answer) {
        Some(Ok(())) => Ok(stream.write_all(&CONFIRMATION)?),
        Some(Err(refusal)) => Err(Attempt::Refused(refusal)),
        None => Err(Attempt::Again("what answers there does not know the job's secret".to_owned())),
    }
}

/// Reads one message of the callee; `None` if it is the bare refusal.
fn read_message<const BYTES: usize>(
    stream: &TcpStream,
    deadline: Deadline,
) -> io::Result<Option<[u8; BYTES]>> {
    let mut bytes = [0; BYTES];
    let (head, rest) = bytes.split_at_mut(REFUSED.len());
    read_exact(stream, head, deadline)?;
    if head == REFUSED {
        return Ok(None);
    }
    if *head != CALLEE_MAGIC {
        return Err(ErrorKind::InvalidData.into());
    }
    read_exact(stream, rest, deadline)?;
    Ok(Some(bytes))
}

/// Reads until the deadline, and not a moment longer for one who sends a byte at a time.
fn read_exact(mut stream: &TcpStream, mut bytes: &mut [u8], deadline: Deadline) -> io::Result<()> {
    while !bytes.is_empty() {
        if deadline.expired() {
            return Err(ErrorKind::TimedOut.into());
        }
        stream.set_read_timeout(Some(deadline.remaining_at_most(deadline.limit())))?;
        match stream.read(bytes) {
            Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
            Ok(count) => bytes = &mut bytes[count..],
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// `host:port`, with brackets where an IPv6 address needs them.
pub(crate) fn join_host_port(host: &str, port: u16) -> String {
    if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
}

#[cfg(test)]
mod tests {
    use std::{net::TcpListener, time::Instant};

    use super::super::hello::Role;
    use super::*;

    const LIMIT: Duration = Duration::from_secs(5);

    fn identity(rank: usize) -> Identity {
        Identity::new(rank, 2, "job", None)
    }

    /// How a call ends whose callee says what `speak` makes of a right greeting and answer.
    fn called(
        limit: Duration,
        speak: impl FnOnce(&TcpStream, Vec<u8>, &mut dyn FnMut() -> Vec<u8>) + Send,
    ) -> Option<Attempt> {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let hello = Hello::new(identity(1), Role::Data, 0).unwrap();
        let caller = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        std::thread::scope(|scope| {
            let callee = scope.spawn(move || {
                let (mut stream, _) = listener.accept().unwrap();
                let mut greeting = [0; GREETING_BYTES];
                stream.read_exact(&mut greeting).unwrap();
                let (opening, _) = Opening::answer_call(&greeting).unwrap();
                let own = opening.callee_greeting().to_vec();
                let mut reader = stream.try_clone().unwrap();
                let mut answer = move || {
                    let mut petition = [0; super::super::hello::PETITION_BYTES];
                    // A caller that does not like the greeting says nothing more.
                    if reader.read_exact(&mut petition).is_err() {
                        return Vec::new();
                    }
                    let answer = opening.decide(&petition, &identity(0), |_| Ok(()));
                    answer.map_or(REFUSED.to_vec(), |answer| answer.bytes.to_vec())
                };
                speak(&stream, own, &mut answer);
                // Kept open until the caller goes, so that only what was said decides.
                let _ = io::copy(&mut stream, &mut io::sink());
            });
            let outcome = introduce(&caller, &hello, Deadline::after(limit)).err();
            drop(caller);
            callee.join().unwrap();
            outcome
        })
    }

    fn say(mut stream: &TcpStream, bytes: &[u8]) {
        // The caller may have gone.
        let _ = stream.write_all(bytes);
    }

    #[test]
    fn a_callee_that_says_the_right_things_is_believed() {
        let ended = called(LIMIT, |stream, greeting, answer| {
            say(stream, &greeting);
            say(stream, &answer());
        });
        assert!(ended.is_none());
    }

    #[test]
    fn every_bit_that_a_callee_gets_wrong_ends_the_call_at_once() {
        let start = Instant::now();
        for bit in 0..8 * GREETING_BYTES {
            let ended = called(LIMIT, |stream, mut greeting, answer| {
                greeting[bit / 8] ^= 1 << (bit % 8);
                say(stream, &greeting);
                say(stream, &answer());
            });
            assert!(
                matches!(ended, Some(Attempt::Refused(_) | Attempt::Again(_))),
                "bit {bit} of the greeting"
            );
        }
        for bit in 0..8 * ANSWER_BYTES {
            let ended = called(LIMIT, |stream, greeting, answer| {
                say(stream, &greeting);
                let mut answer = answer();
                answer[bit / 8] ^= 1 << (bit % 8);
                say(stream, &answer);
            });
            assert!(matches!(ended, Some(Attempt::Again(_))), "bit {bit} of the answer");
        }
        assert!(start.elapsed() < LIMIT, "some of the calls waited");
    }

    #[test]
    fn a_callee_that_stops_in_the_middle_or_drips_is_left_at_the_deadline() {
        let limit = Duration::from_millis(50);
        for cut in [0, 1, 7, 8, 9, GREETING_BYTES - 1, GREETING_BYTES, GREETING_BYTES + 47] {
            let start = Instant::now();
            let ended = called(limit, |stream, greeting, answer| {
                say(stream, &greeting[..cut.min(GREETING_BYTES)]);
                if cut >= GREETING_BYTES {
                    say(stream, &answer()[..cut - GREETING_BYTES]);
                }
            });
            assert!(matches!(ended, Some(Attempt::Again(_))), "cut at {cut}");
            assert!(start.elapsed() < 20 * limit, "cut at {cut}: {:?}", start.elapsed());
        }
        let start = Instant::now();
        let ended = called(limit, |stream, greeting, _| {
            for byte in greeting {
                say(stream, &[byte]);
                std::thread::sleep(limit / 5);
            }
        });
        assert!(matches!(ended, Some(Attempt::Again(_))));
        assert!(start.elapsed() < 20 * limit, "{:?}", start.elapsed());
    }

    #[test]
    fn a_callee_that_refuses_or_answers_with_noise_is_told_apart() {
        let refused = called(LIMIT, |stream, greeting, answer| {
            say(stream, &greeting);
            answer();
            say(stream, &REFUSED);
        });
        // Without a secret it is the run token that must differ.
        assert!(matches!(refused, Some(Attempt::Refused(Refusal::Token))));
        for noise in [&b"HTTP/1.1 400 Bad Request\r\n\r\n"[..], &REFUSED, &[0; 500], &[255; 500]] {
            let ended = called(LIMIT, |stream, _, _| say(stream, noise));
            assert!(matches!(&ended, Some(Attempt::Again(reason)) if reason == FOREIGN), "{noise:?}");
        }
    }
}
