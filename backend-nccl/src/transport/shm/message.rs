//! Messages: one rank writes or shows, one reads, and nobody else knows.

use super::{Shm, State, flow::tag, receiving::Receiving, sending::Sending, wait::Wait};
use crate::{
    failure::Failure,
    transport::{Call, DType, Incoming, Outgoing, Signature, control::Control, members::Members},
};

/// Sends and receives one message each, if there is one, at the same time.
#[allow(clippy::too_many_arguments)]
pub(super) fn run(
    shm: &Shm,
    state: &mut State,
    control: &Control,
    among: &Members,
    call: Call,
    dtype: DType,
    send: Option<Outgoing<'_>>,
    receive: Option<Incoming<'_>>,
) -> Result<(), Failure> {
    let last: Vec<Option<Signature>> = state.peers.iter().map(|peer| peer.last).collect();
    let wait = Wait { shm, control, call, sequence: None, needed: &[], last: &last };
    let (members, tag) = (shm.indices(among), tag(among));
    let mut sending = send.map(|message| {
        let signature = message.signature(dtype, among.own());
        Sending::new(state, members[message.to], message.buffer, signature, tag)
    });
    let mut receiving = receive.map(|message| {
        let signature = message.signature(dtype);
        Receiving::new(state, members[message.from], message.buffer, signature, tag)
    });
    loop {
        let mut moved = false;
        if let Some(sending) = &mut sending {
            moved |= sending.go_on(shm, state);
        }
        if let Some(receiving) = &mut receiving {
            moved |= receiving.go_on(shm)?;
        }
        let sends = sending.as_ref().filter(|sending| !sending.is_over(shm));
        let receives = receiving.as_ref().filter(|receiving| !receiving.is_over());
        if sends.is_none() && receives.is_none() {
            break;
        }
        if !moved {
            wait.until(|_| {
                // What one side waits for must not keep the other from going on.
                let sends = sends.map_or(Some(vec![]), |sending| sending.waits_for(shm, state));
                let receives = match receives {
                    Some(receiving) => receiving.waits_for(shm)?,
                    None => Some(vec![]),
                };
                Ok(sends.zip(receives).map(|(sends, receives)| [sends, receives].concat().into()))
            })?;
        }
    }
    if let Some(sending) = sending {
        sending.finish(state);
    }
    if let Some(receiving) = receiving {
        receiving.finish(state);
    }
    Ok(())
}
