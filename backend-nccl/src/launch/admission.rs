use super::{
    config::MAX_RANKS,
    coordinator::Rejection,
    protocol::{Answer, Hello, MAGIC, MAX_GREETING_BYTES, PROTOCOL, Proof, Side},
    secret::random_hex,
    wire::Wire,
};
use crate::rendezvous::Secret;
use socket2::Socket;
use std::{
    io,
    os::fd::{AsFd, BorrowedFd},
    time::{Duration, Instant},
};

/// Time in which a launcher must have proved itself.
const GREETING_LIMIT: Duration = Duration::from_secs(10);

/// Longest name of a host that is repeated in messages.
const MAX_HOST_BYTES: usize = 255;

/// A connection that has not been admitted. It costs a few hundred bytes and one descriptor.
pub(super) struct Stranger {
    wire: Wire,
    since: Instant,
    greeting: Option<(Hello, String)>,
}

/// What has become of a stranger.
pub(super) enum Stage {
    /// It has more to say.
    Stranger(Stranger),
    /// It has proved itself, and is to be welcomed or refused.
    Proved(Wire, Hello),
    /// It is no launcher of this job.
    Gone,
}

impl Stranger {
    pub(super) fn new(socket: Socket, now: Instant) -> io::Result<Self> {
        Ok(Self { wire: Wire::new(socket, MAX_GREETING_BYTES)?, since: now, greeting: None })
    }

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.wire.as_fd()
    }

    pub(super) fn has_greeted(&self) -> bool {
        self.greeting.is_some()
    }

    /// Reads what it has sent.
    pub(super) fn advance(mut self, secret: Option<&Secret>, now: Instant) -> Stage {
        self.wire.fill();
        if self.greeting.is_none()
            && let Some(hello) = self.wire.take::<Hello>()
            && let Err(reason) = self.challenge(secret, hello)
        {
            return refuse(&self.wire, Rejection { reason, is_final: true });
        }
        if let Some((hello, nonce)) = &self.greeting
            && let Some(Proof { proof }) = self.wire.take()
        {
            if !Side::Agent.is_proved(secret, hello, nonce, proof.as_deref()) {
                let reason = "its secret is not that of node 0".to_owned();
                return refuse(&self.wire, Rejection { reason, is_final: true });
            }
            let hello = hello.clone();
            return Stage::Proved(self.wire, hello);
        }
        match self.wire.closed() {
            None if now.saturating_duration_since(self.since) < GREETING_LIMIT => Stage::Stranger(self),
            _ => Stage::Gone,
        }
    }

    /// Proves this side and asks for the other's proof.
    fn challenge(&mut self, secret: Option<&Secret>, hello: Hello) -> Result<(), String> {
        check(&hello, secret.is_some())?;
        let nonce = random_hex().map_err(|error| error.to_string())?;
        let proof = Side::Coordinator.prove(secret, &hello, &nonce);
        self.wire
            .send(&Answer::Challenge { nonce: nonce.clone(), proof })
            .map_err(|error| error.to_string())?;
        self.greeting = Some((hello, nonce));
        Ok(())
    }
}

/// Says why somebody cannot take part.
pub(super) fn refuse(wire: &Wire, Rejection { reason, is_final }: Rejection) -> Stage {
    // Who does not listen learns it from the closed connection.
    let _ = wire.send(&Answer::Refused { reason, is_final });
    wire.shutdown();
    Stage::Gone
}

/// What can be wrong with a greeting whatever the job is doing.
fn check(hello: &Hello, secured: bool) -> Result<(), String> {
    if hello.magic != MAGIC || hello.protocol != PROTOCOL {
        return Err("it is another version of burnrun; use the same one on all nodes".to_owned());
    }
    if hello.nproc > MAX_RANKS {
        return Err(format!("a node can have at most {MAX_RANKS} ranks, not {}", hello.nproc));
    }
    if hello.node >= hello.nnodes {
        return Err(format!("there is no node {} among {}", hello.node, hello.nnodes));
    }
    if hello.host.len() > MAX_HOST_BYTES {
        return Err("its host has too long a name".to_owned());
    }
    match (secured, hello.secured) {
        (true, false) => Err("node 0 has a secret and this node has none; give it the same one".to_owned()),
        (false, true) => Err("this node has a secret and node 0 has none; give it the same one".to_owned()),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{io::Write, thread};

    fn hello(secured: bool) -> Hello {
        Hello {
            magic: MAGIC.into(),
            protocol: PROTOCOL,
            node: 1,
            nnodes: 2,
            nproc: 3,
            host: "there".into(),
            nonce: "00".into(),
            secured,
        }
    }

    fn secret(text: &str) -> Option<Secret> {
        Some(Secret::from_hex(&text.repeat(32)).expect("a secret"))
    }

    /// Advances a stranger until it is decided about.
    fn decide(mut stranger: Stranger, secret: Option<Secret>) -> Option<Hello> {
        loop {
            match stranger.advance(secret.as_ref(), Instant::now()) {
                Stage::Stranger(again) => stranger = again,
                Stage::Proved(_, hello) => return Some(hello),
                Stage::Gone => return None,
            }
            thread::sleep(Duration::from_millis(1));
        }
    }

    fn stranger() -> (Stranger, Wire) {
        let (one, other) = Wire::pair(MAX_GREETING_BYTES).expect("sockets");
        (Stranger { wire: one, since: Instant::now(), greeting: None }, other)
    }

    /// A launcher with a secret meets a coordinator with another or the same. Returns what each makes of it.
    fn meet(agent: Option<Secret>, coordinator: Option<Secret>) -> (Option<Hello>, Result<bool, String>) {
        let (stranger, mut wire) = stranger();
        let hello = hello(agent.is_some());
        wire.send(&hello).expect("sent");
        let server = thread::spawn(move || decide(stranger, coordinator));
        let answer = wire.wait::<Answer>(GREETING_LIMIT).expect("an answer");
        let told = match answer {
            Answer::Challenge { nonce, proof } => {
                let is_proved = Side::Coordinator.is_proved(agent.as_ref(), &hello, &nonce, proof.as_deref());
                wire.send(&Proof { proof: Side::Agent.prove(agent.as_ref(), &hello, &nonce) }).expect("sent");
                Ok(is_proved)
            }
            Answer::Refused { reason, .. } => Err(reason),
            Answer::Welcome => panic!("welcomed without a proof"),
        };
        (server.join().expect("no panic"), told)
    }

    #[test]
    fn both_sides_prove_the_secret() {
        assert_eq!(meet(None, None), (Some(hello(false)), Ok(true)));
        assert_eq!(meet(secret("a"), secret("a")), (Some(hello(true)), Ok(true)));
        assert_eq!(meet(secret("a"), secret("b")), (None, Ok(false)));
        let reason = |result: (Option<Hello>, Result<bool, String>)| result.1.expect_err("refused");
        assert!(reason(meet(secret("a"), None)).starts_with("this node has a secret"));
        assert!(reason(meet(None, secret("a"))).starts_with("node 0 has a secret"));
    }

    #[test]
    fn numbers_that_no_node_can_have_are_refused_before_they_are_counted() {
        let refused = |hello: Hello| check(&hello, false).err().unwrap_or_default();
        assert_eq!(refused(hello(false)), "");
        let huge = Hello { nproc: usize::MAX, ..hello(false) };
        assert!(refused(huge).starts_with("a node can have at most 4096 ranks"));
        assert_eq!(refused(Hello { nproc: 4096, ..hello(false) }), "");
        assert_eq!(refused(Hello { node: 2, ..hello(false) }), "there is no node 2 among 2");
    }

    #[test]
    fn a_greeting_whose_rank_was_changed_on_the_way_is_not_proved() {
        let nonce = "11";
        let proof = Side::Agent.prove(secret("a").as_ref(), &hello(true), nonce);
        let changed = Hello { node: 0, ..hello(true) };
        let key = secret("a");
        assert!(Side::Agent.is_proved(key.as_ref(), &hello(true), nonce, proof.as_deref()));
        assert!(!Side::Agent.is_proved(key.as_ref(), &changed, nonce, proof.as_deref()));
        assert!(!Side::Coordinator.is_proved(key.as_ref(), &hello(true), nonce, proof.as_deref()));
        assert!(!Side::Agent.is_proved(key.as_ref(), &hello(true), "12", proof.as_deref()));
    }

    #[test]
    fn who_speaks_something_else_or_nothing_is_gone() {
        let (stranger, _silent) = stranger();
        let late = Instant::now() + GREETING_LIMIT;
        assert!(matches!(stranger.advance(None, late), Stage::Gone));
        let (one, other) =
            socket2::Socket::pair(socket2::Domain::UNIX, socket2::Type::STREAM, None).expect("ok");
        let stranger = Stranger::new(one, Instant::now()).expect("a stranger");
        (&other).write_all(b"GET / HTTP/1.1\r\n\r\n").expect("written");
        assert_eq!(decide(stranger, None), None);
    }
}
