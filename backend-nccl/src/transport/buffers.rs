//! The caller's buffers as the plan sees them: a source and a target, which may be one.

use super::Collective;

/// The caller's buffers.
pub(crate) enum Buffers<'a> {
    InPlace(&'a mut [u8]),
    Apart { source: &'a [u8], target: &'a mut [u8] },
}

impl<'a> Buffers<'a> {
    /// The buffers of a collective for the member at `own` of `members`, with what stays on this rank copied.
    pub(crate) fn new(collective: Collective<'a>, own: usize, members: usize) -> Self {
        match collective {
            Collective::AllReduce { buffer, .. } | Collective::Broadcast { buffer, .. } => {
                Self::InPlace(buffer)
            }
            Collective::AllGather { send, recv, .. } => {
                recv[own * send.len()..][..send.len()].copy_from_slice(send);
                Self::Apart { source: send, target: recv }
            }
            Collective::ReduceScatter { send, recv, .. } => Self::Apart { source: send, target: recv },
            Collective::Gather { send, recv, .. } => {
                let target = recv.unwrap_or_default();
                if let Some(part) = target.get_mut(own * send.len()..(own + 1) * send.len()) {
                    part.copy_from_slice(send);
                }
                Self::Apart { source: send, target }
            }
            Collective::Scatter { send, recv, .. } => {
                let source = send.unwrap_or_default();
                if let Some(part) = source.get(own * recv.len()..(own + 1) * recv.len()) {
                    recv.copy_from_slice(part);
                }
                Self::Apart { source, target: recv }
            }
            Collective::AllToAll { send, recv, .. } => {
                let part = send.len() / members;
                let own = own * part..(own + 1) * part;
                recv[own.clone()].copy_from_slice(&send[own]);
                Self::Apart { source: send, target: recv }
            }
            Collective::Exchange { send, receive, .. } => Self::Apart {
                source: send.map_or(&[], |message| message.buffer),
                target: receive.map_or(&mut [], |message| message.buffer),
            },
            Collective::Barrier => Self::InPlace(&mut []),
        }
    }

    pub(crate) fn source(&self) -> &[u8] {
        match self {
            Self::InPlace(buffer) => buffer,
            Self::Apart { source, .. } => source,
        }
    }

    pub(crate) fn target(&self) -> &[u8] {
        match self {
            Self::InPlace(buffer) => buffer,
            Self::Apart { target, .. } => target,
        }
    }

    pub(crate) fn target_mut(&mut self) -> &mut [u8] {
        match self {
            Self::InPlace(buffer) => buffer,
            Self::Apart { target, .. } => target,
        }
    }
}
