//! The first bytes on every connection: who calls, of which job, the proofs, and whether the callee will have it.
//!
//! ```text
//! caller                          callee
//! greeting (nonce)           ->
//!                            <-   greeting (nonce)
//! claim, proof of the secret ->
//!                            <-   verdict, proof of the secret; to a stranger only `refused`
//! confirmation               ->
//! ```
//!
//! A caller proves itself before it is told anything about the job, and before it costs more than a few bytes; a callee
//! proves itself before it gets anything. All messages have one size, so nothing is allocated for a stranger.

use std::io::{self, Write};

use sha2::{Digest, Sha256};

use super::challenge::{NONCE_BYTES, PROOF_BYTES, Secret, nonce};
use super::refusal::Refusal;
use crate::Result;

/// Bytes of a greeting.
pub(super) const GREETING_BYTES: usize = 32;
/// Bytes of what a caller claims to be.
const CLAIM_BYTES: usize = 56;
/// Bytes of a claim with its proof.
pub(super) const PETITION_BYTES: usize = CLAIM_BYTES + PROOF_BYTES;
/// Bytes of a verdict without its proof.
const VERDICT_BYTES: usize = 16;
/// Bytes of a verdict with its proof.
pub(super) const ANSWER_BYTES: usize = VERDICT_BYTES + PROOF_BYTES;
/// All that a stranger is told.
pub(super) const REFUSED: [u8; 8] = *b"refused\n";
/// What the caller sends once it has its answer. Without it, a callee that was busy would take the connections that
/// the caller has given up for live ones.
pub(super) const CONFIRMATION: [u8; 1] = *b"!";

const CALLER_MAGIC: [u8; 8] = *b"BURNNCCL";
/// How each message of a callee begins, but for a refusal.
pub(super) const CALLEE_MAGIC: [u8; 8] = *b"burnnccl";
const VERSION: u16 = 2;
/// In the machine's own order, so that a machine of the other order is noticed: buffers travel as they lie in memory.
const BYTE_ORDER: [u8; 2] = 0x0102u16.to_ne_bytes();
const CALLER_PROOF: &str = "burn-nccl rank caller";
const CALLEE_PROOF: &str = "burn-nccl rank callee";

/// Who a rank is and which job it belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Identity {
    pub(crate) rank: usize,
    pub(crate) world_size: usize,
    /// SHA-256 of the run token: of one size, and the token itself stays off the wire.
    token: [u8; 32],
    secret: Secret,
    /// Whether the secret was given and not derived from the run token.
    is_secret: bool,
}

impl Identity {
    /// A rank of the run that has this token. Without a secret the run token takes its place.
    pub(crate) fn new(rank: usize, world_size: usize, run_id: &str, secret: Option<Secret>) -> Self {
        Self {
            rank,
            world_size,
            token: Sha256::digest(run_id.as_bytes()).into(),
            secret: secret.unwrap_or_else(|| Secret::derive(run_id)),
            is_secret: secret.is_some(),
        }
    }

    /// The identity of a rank of a part of this group; `label` tells the part from every other.
    pub(crate) fn part(&self, label: &str, rank: usize, world_size: usize) -> Self {
        let token = Sha256::new().chain_update(self.token).chain_update(label).finalize().into();
        Self { rank, world_size, token, ..*self }
    }

    /// A short number that all ranks of the group share.
    pub(crate) fn tag(&self) -> u32 {
        u32::from_le_bytes(self.token[..4].try_into().expect("four bytes"))
    }

    /// Whether strangers can be kept out: the ranks have a secret that no run token gives away.
    pub(super) fn has_secret(&self) -> bool {
        self.is_secret
    }

    /// What a bare refusal means to this rank. The callee cannot know: to it the caller is a stranger.
    pub(super) fn bare_refusal(&self) -> Refusal {
        if self.is_secret { Refusal::Secret } else { Refusal::Token }
    }
}

/// What a connection is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    Store,
    Data,
    Control,
}

impl Role {
    const ALL: [Self; 3] = [Self::Store, Self::Data, Self::Control];
}

/// Who calls, whom, and what for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Hello {
    pub(crate) identity: Identity,
    pub(crate) role: Role,
    /// The rank that is called.
    to: usize,
    /// Random, and the same in every attempt of one call.
    call: [u8; 8],
}

impl Hello {
    /// The opening of a new call to rank `to`, for all of its attempts.
    pub(crate) fn new(identity: Identity, role: Role, to: usize) -> Result<Self> {
        let call = *nonce()?.first_chunk().expect("a nonce is longer");
        Ok(Self { identity, role, to, call })
    }

    /// Whether the two are calls of different processes that both claim to be the same rank.
    pub(super) fn is_rival(&self, other: &Self) -> bool {
        (self.identity.rank, self.role) == (other.identity.rank, other.role) && self.call != other.call
    }

    fn encode(&self) -> [u8; CLAIM_BYTES] {
        let mut bytes = [0; CLAIM_BYTES];
        bytes[0] = Role::ALL.iter().position(|role| *role == self.role).expect("ALL lists every role") as u8;
        for (at, number) in [(4, self.identity.rank), (8, self.identity.world_size), (12, self.to)] {
            bytes[at..at + 4].copy_from_slice(&(number as u32).to_le_bytes());
        }
        bytes[16..24].copy_from_slice(&self.call);
        bytes[24..56].copy_from_slice(&self.identity.token);
        bytes
    }

    /// Reads a claim that is proven, and compares it with what the callee, `host`, is part of.
    fn check(claim: &[u8; CLAIM_BYTES], host: &Identity) -> Result<Self, Refusal> {
        let number = |at: usize| u32::from_le_bytes(claim[at..at + 4].try_into().expect("four bytes"));
        if claim[24..56] != host.token {
            return Err(Refusal::Token);
        }
        let (rank, world_size, to) = (number(4) as usize, number(8) as usize, number(12) as usize);
        if world_size != host.world_size {
            return Err(Refusal::WorldSize { expected: host.world_size as u32 });
        }
        if rank >= world_size {
            return Err(Refusal::RankOutOfRange);
        }
        if to != host.rank {
            return Err(Refusal::WrongRank { expected: host.rank as u32 });
        }
        let role = *Role::ALL.get(claim[0] as usize).ok_or(Refusal::Stranger)?;
        let call = claim[16..24].try_into().expect("eight bytes");
        Ok(Self { identity: Identity { rank, ..*host }, role, to, call })
    }
}

/// A greeting and the nonce in it.
fn greet(magic: [u8; 8], nonce: [u8; NONCE_BYTES]) -> [u8; GREETING_BYTES] {
    let mut bytes = [0; GREETING_BYTES];
    bytes[0..8].copy_from_slice(&magic);
    bytes[8..10].copy_from_slice(&VERSION.to_le_bytes());
    bytes[10..12].copy_from_slice(&BYTE_ORDER);
    bytes[16..32].copy_from_slice(&nonce);
    bytes
}

/// Whether two of one protocol meet. The first twelve bytes never change, so that versions can tell each other apart.
fn check_greeting(bytes: &[u8; GREETING_BYTES], magic: [u8; 8]) -> Result<(), Refusal> {
    if bytes[0..8] != magic {
        return Err(Refusal::Stranger);
    }
    if bytes[8..10] != VERSION.to_le_bytes() {
        let expected = u16::from_le_bytes(bytes[8..10].try_into().expect("two bytes"));
        return Err(Refusal::Version { expected: expected.into() });
    }
    if bytes[10..12] != BYTE_ORDER {
        return Err(Refusal::ByteOrder);
    }
    Ok(())
}

/// One side's view of a connection that is being opened.
#[derive(Clone, Debug)]
pub(super) struct Opening {
    caller: [u8; GREETING_BYTES],
    callee: [u8; GREETING_BYTES],
}

/// What a callee answers.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) bytes: [u8; ANSWER_BYTES],
    /// The caller, if it is who it should be.
    pub(super) verdict: Result<Hello, Refusal>,
}

impl Opening {
    /// The caller's part before the callee has greeted.
    pub(super) fn call() -> Result<Self> {
        Ok(Self { caller: greet(CALLER_MAGIC, nonce()?), callee: [0; GREETING_BYTES] })
    }

    /// The caller's greeting.
    pub(super) fn caller_greeting(&self) -> &[u8; GREETING_BYTES] {
        &self.caller
    }

    /// The caller has heard the callee's greeting; whether they can talk.
    pub(super) fn hear(&mut self, callee: &[u8; GREETING_BYTES]) -> Result<(), Refusal> {
        check_greeting(callee, CALLEE_MAGIC)?;
        self.callee = *callee;
        Ok(())
    }

    /// What the caller claims, and its proof.
    pub(super) fn petition(&self, hello: &Hello) -> [u8; PETITION_BYTES] {
        let claim = hello.encode();
        let proof = hello.identity.secret.prove(CALLER_PROOF, &[&self.caller, &self.callee, &claim]);
        let mut bytes = [0; PETITION_BYTES];
        bytes[..CLAIM_BYTES].copy_from_slice(&claim);
        bytes[CLAIM_BYTES..].copy_from_slice(&proof);
        bytes
    }

    /// Reads the callee's answer to `hello`; `None` if its proof is wrong or the bytes are no answer.
    pub(super) fn judge(&self, hello: &Hello, answer: &[u8; ANSWER_BYTES]) -> Option<Result<(), Refusal>> {
        let (verdict, proof) = answer.split_first_chunk::<VERDICT_BYTES>()?;
        let transcript: [&[u8]; 4] = [&self.caller, &self.callee, &hello.encode(), verdict];
        if verdict[0..8] != CALLEE_MAGIC
            || !hello.identity.secret.verify(CALLEE_PROOF, &transcript, proof.try_into().ok()?)
        {
            return None;
        }
        match verdict[8] {
            0 => Some(Ok(())),
            code => {
                let detail = u32::from_le_bytes(verdict[12..16].try_into().ok()?);
                Refusal::decode(code, detail).map(Err)
            }
        }
    }

    /// The callee's part, after the caller's greeting. With one of another version it still greets, which tells the
    /// caller what is the matter.
    pub(super) fn answer_call(caller: &[u8; GREETING_BYTES]) -> Result<(Self, Result<(), Refusal>)> {
        let opening = Self { caller: *caller, callee: greet(CALLEE_MAGIC, nonce()?) };
        Ok((opening, check_greeting(caller, CALLER_MAGIC)))
    }

    /// The callee's greeting.
    pub(super) fn callee_greeting(&self) -> &[u8; GREETING_BYTES] {
        &self.callee
    }

    /// What the callee, `host`, says to a petition; `None` if that proves nothing: a stranger is told nothing.
    ///
    /// `accepts` looks at callers that belong to the job.
    pub(super) fn decide(
        &self,
        petition: &[u8; PETITION_BYTES],
        host: &Identity,
        accepts: impl FnOnce(&Hello) -> Result<(), Refusal>,
    ) -> Option<Answer> {
        let (claim, proof) = petition.split_first_chunk::<CLAIM_BYTES>()?;
        let transcript: [&[u8]; 3] = [&self.caller, &self.callee, claim];
        if !host.secret.verify(CALLER_PROOF, &transcript, proof.try_into().ok()?) {
            return None;
        }
        let verdict = Hello::check(claim, host).and_then(|hello| accepts(&hello).map(|()| hello));
        let (code, detail) = verdict.err().map_or((0, 0), Refusal::encode);
        let mut bytes = [0; ANSWER_BYTES];
        bytes[0..8].copy_from_slice(&CALLEE_MAGIC);
        bytes[8] = code;
        bytes[12..16].copy_from_slice(&detail.to_le_bytes());
        let transcript: [&[u8]; 4] = [&self.caller, &self.callee, claim, &bytes[..VERDICT_BYTES]];
        let proof = host.secret.prove(CALLEE_PROOF, &transcript);
        bytes[VERDICT_BYTES..].copy_from_slice(&proof);
        Some(Answer { bytes, verdict })
    }
}

/// Sends a few bytes on a connection whose buffer is empty, so this does not block.
pub(super) fn tell(mut stream: impl Write, bytes: &[u8]) -> io::Result<()> {
    stream.write_all(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECRET: &str = "00112233445566778899aabbccddeeff";

    fn identity(rank: usize) -> Identity {
        Identity::new(rank, 4, "job", Some(Secret::from_hex(SECRET).unwrap()))
    }

    /// Both sides of an opening up to the petition.
    fn meet() -> (Opening, Opening) {
        let mut caller = Opening::call().unwrap();
        let (callee, greeted) = Opening::answer_call(caller.caller_greeting()).unwrap();
        assert_eq!(greeted, Ok(()));
        caller.hear(callee.callee_greeting()).unwrap();
        (caller, callee)
    }

    /// The whole opening between a caller and rank 0; `None` where the caller is taken for a stranger.
    fn open(hello: &Hello) -> Option<Result<(), Refusal>> {
        let (caller, callee) = meet();
        let answer = callee.decide(&caller.petition(hello), &identity(0), |_| Ok(()))?;
        let heard = caller.judge(hello, &answer.bytes).expect("the callee has proven itself");
        assert_eq!(heard.err(), answer.verdict.err(), "the caller is told what the callee decided");
        Some(heard)
    }

    fn hello(identity: Identity) -> Hello {
        Hello::new(identity, Role::Data, 0).unwrap()
    }

    #[test]
    fn only_a_rank_of_the_same_job_is_let_in_and_the_others_of_the_job_are_told_why() {
        assert_eq!(open(&hello(identity(2))), Some(Ok(())));
        let secret = Some(Secret::from_hex(SECRET).unwrap());
        let refused = |identity| open(&hello(identity)).map(|told| told.unwrap_err());
        assert_eq!(refused(Identity::new(2, 4, "other", secret)), Some(Refusal::Token));
        let expected = Refusal::WorldSize { expected: 4 };
        assert_eq!(refused(Identity::new(2, 3, "job", secret)), Some(expected));
        assert_eq!(refused(Identity { rank: 4, ..identity(2) }), Some(Refusal::RankOutOfRange));
        let elsewhere = Hello::new(identity(2), Role::Data, 1).unwrap();
        assert_eq!(open(&elsewhere), Some(Err(Refusal::WrongRank { expected: 0 })));
    }

    #[test]
    fn who_does_not_know_the_secret_is_a_stranger_whatever_it_claims() {
        let other = Secret::from_hex(&SECRET.replace('0', "1")).unwrap();
        for secret in [Some(other), None] {
            assert_eq!(open(&hello(Identity::new(2, 4, "job", secret))), None);
        }
    }

    #[test]
    fn a_caller_knows_version_byte_order_and_stranger_by_the_greeting() {
        type Change = fn(&mut [u8; GREETING_BYTES]);
        let greeting = |change: Change| {
            let (mut caller, callee) = meet();
            let mut bytes = *callee.callee_greeting();
            change(&mut bytes);
            let caller_says = caller.hear(&bytes);
            let mut bytes = *caller.caller_greeting();
            change(&mut bytes);
            (caller_says, Opening::answer_call(&bytes).unwrap().1)
        };
        let cases: [(Change, Refusal); 3] = [
            (|bytes| bytes[0] = b'G', Refusal::Stranger),
            (|bytes| bytes[8] = 9, Refusal::Version { expected: 9 }),
            (|bytes| bytes[10..12].reverse(), Refusal::ByteOrder),
        ];
        for (change, refusal) in cases {
            assert_eq!(greeting(change), (Err(refusal), Err(refusal)));
        }
    }

    #[test]
    fn a_recorded_petition_and_a_recorded_answer_are_worth_nothing_on_another_connection() {
        let hello = hello(identity(1));
        let (caller, callee) = meet();
        let petition = caller.petition(&hello);
        let answer = callee.decide(&petition, &identity(0), |_| Ok(())).unwrap();
        // The same caller's greeting again, as one who replays would send it.
        let (again, _) = Opening::answer_call(caller.caller_greeting()).unwrap();
        assert!(again.decide(&petition, &identity(0), |_| Ok(())).is_none());
        // The same callee's greeting again, to the next attempt of the same call.
        let mut next = Opening::call().unwrap();
        next.hear(callee.callee_greeting()).unwrap();
        assert!(next.judge(&hello, &answer.bytes).is_none());
    }

    #[test]
    fn what_a_side_has_said_itself_does_not_convince_it() {
        // Rank 0 is made to call rank 1's impostor, which lets rank 0 itself answer.
        let hello = Hello::new(identity(0), Role::Data, 0).unwrap();
        let (caller, callee) = meet();
        let petition = caller.petition(&hello);
        let mut answer = [0; ANSWER_BYTES];
        answer.copy_from_slice(&petition[PETITION_BYTES - ANSWER_BYTES..]);
        assert!(caller.judge(&hello, &answer).is_none());
        answer[..8].copy_from_slice(&CALLEE_MAGIC);
        answer[8..16].fill(0);
        assert!(caller.judge(&hello, &answer).is_none());
        let mut back = Opening::call().unwrap();
        assert_eq!(back.hear(caller.caller_greeting()), Err(Refusal::Stranger));
        // And an answer is no petition.
        let answer = callee.decide(&petition, &identity(0), |_| Ok(())).unwrap();
        let mut forged = petition;
        forged[CLAIM_BYTES..].copy_from_slice(&answer.bytes[VERDICT_BYTES..]);
        assert!(callee.decide(&forged, &identity(0), |_| Ok(())).is_none());
    }

    #[test]
    fn a_call_that_is_led_to_another_rank_is_refused_there() {
        let hello = Hello::new(identity(2), Role::Data, 0).unwrap();
        let (caller, callee) = meet();
        let answer = callee.decide(&caller.petition(&hello), &identity(1), |_| Ok(())).unwrap();
        assert_eq!(answer.verdict, Err(Refusal::WrongRank { expected: 1 }));
    }

    #[test]
    fn every_flipped_bit_makes_a_petition_a_strangers_and_an_answer_none() {
        let hello = hello(identity(3));
        let (caller, callee) = meet();
        let petition = caller.petition(&hello);
        let answer = callee.decide(&petition, &identity(0), |_| Ok(())).unwrap().bytes;
        for bit in 0..8 * PETITION_BYTES {
            let mut changed = petition;
            changed[bit / 8] ^= 1 << (bit % 8);
            assert!(callee.decide(&changed, &identity(0), |_| Ok(())).is_none(), "bit {bit}");
        }
        for bit in 0..8 * ANSWER_BYTES {
            let mut changed = answer;
            changed[bit / 8] ^= 1 << (bit % 8);
            assert!(caller.judge(&hello, &changed).is_none(), "bit {bit}");
        }
        for bit in 0..8 * GREETING_BYTES {
            let mut greeting = *callee.callee_greeting();
            greeting[bit / 8] ^= 1 << (bit % 8);
            let mut other = caller.clone();
            assert!(other.hear(&greeting).is_err() || other.judge(&hello, &answer).is_none(), "bit {bit}");
        }
    }
}
