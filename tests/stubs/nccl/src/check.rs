//! Checks the arguments of an operation when it is called.

use crate::{
    batch::{Item, Region},
    code,
    communicator::Communicator,
    datatype::{DataType, Reduction},
    library::{Outcome, library},
    wire::{Kind, Shape},
};

/// An operation as it was called. `op` is 0 where nothing is reduced; `peer` is the root or the other rank, else 0.
pub(crate) struct Call {
    pub(crate) function: &'static str,
    pub(crate) kind: Kind,
    pub(crate) send: u64,
    pub(crate) recv: u64,
    pub(crate) count: usize,
    pub(crate) dtype: i32,
    pub(crate) op: i32,
    pub(crate) peer: i32,
    pub(crate) stream: usize,
}

/// The operation, if all of its arguments are right; else a fault, and what the caller sees.
pub(crate) fn item(communicator: &Communicator, call: &Call) -> Outcome<Item> {
    checked(communicator, call).or_else(|reason| {
        let text = format!("{}: {reason}", call.function);
        communicator.say(text.clone());
        library().refuse(code::INVALID_ARGUMENT, text)
    })
}

fn checked(communicator: &Communicator, call: &Call) -> Result<Item, String> {
    let reduces = matches!(call.kind, Kind::AllReduce | Kind::Reduce | Kind::ReduceScatter);
    let size = element_size(call.dtype, reduces)?;
    if reduces && Reduction::of(call.op).is_none() {
        return Err(format!("{} is the code of no reduction", call.op));
    }
    let peer = usize::try_from(call.peer).ok().filter(|&peer| peer < communicator.ranks);
    let peer = peer.ok_or_else(|| format!("there is no rank {} of {}", call.peer, communicator.ranks))?;
    let (send, recv) = regions(communicator, call, peer, size)?;
    for region in [send, recv] {
        check_region(&region, size)?;
    }
    check_overlap(communicator, call, &send, &recv)?;
    let driver = library().driver().map_err(|_| "there is no driver")?;
    let device = driver.stream_device(call.stream);
    if device != communicator.device {
        return Err(format!(
            "stream {:#x} is of GPU {device}, the communicator of GPU {}",
            call.stream, communicator.device
        ));
    }
    let shape = Shape { kind: call.kind, dtype: call.dtype, op: call.op, peer, count: call.count };
    Ok(Item { function: call.function, shape, send, recv })
}

/// Types of 8-bit floats can be moved and, here, not reduced.
fn element_size(code: i32, reduces: bool) -> Result<usize, String> {
    match (DataType::of(code), code) {
        (Some(dtype), _) => Ok(dtype.size_bytes()),
        (None, 10 | 11) if !reduces => Ok(1),
        (None, 10 | 11) => Err("the double does not reduce 8-bit floats".into()),
        (None, code) => Err(format!("{code} is the code of no type")),
    }
}

/// What this rank brings, and what it gets.
fn regions(
    communicator: &Communicator,
    call: &Call,
    peer: usize,
    size: usize,
) -> Result<(Region, Region), String> {
    let bytes = call.count.checked_mul(size).filter(|bytes| bytes.checked_mul(communicator.ranks).is_some());
    let bytes = bytes.ok_or_else(|| format!("{} elements are too many", call.count))?;
    let all = bytes * communicator.ranks;
    let is_root = communicator.rank == peer;
    let (send, recv) = match call.kind {
        Kind::AllReduce => (bytes, bytes),
        Kind::Reduce => (bytes, if is_root { bytes } else { 0 }),
        Kind::Broadcast => (if is_root { bytes } else { 0 }, bytes),
        Kind::AllGather => (bytes, all),
        Kind::ReduceScatter => (all, bytes),
        Kind::Send => (bytes, 0),
        Kind::Receive => (0, bytes),
    };
    Ok((Region { address: call.send, len: send }, Region { address: call.recv, len: recv }))
}

fn check_region(region: &Region, size: usize) -> Result<(), String> {
    if region.len == 0 {
        return Ok(());
    }
    if !region.address.is_multiple_of(size as u64) {
        return Err(format!("{:#x} is not aligned to {size} bytes", region.address));
    }
    library().driver().map_err(|_| "there is no driver")?.check(region.address, region.len)
}

/// Send and receive memory may be the same in the ways that NCCL documents as in place, and not overlap otherwise.
fn check_overlap(
    communicator: &Communicator,
    call: &Call,
    send: &Region,
    recv: &Region,
) -> Result<(), String> {
    let rank = communicator.rank as u64;
    let in_place = match call.kind {
        Kind::AllGather => send.address == recv.address + rank * send.len as u64,
        Kind::ReduceScatter => recv.address == send.address + rank * recv.len as u64,
        _ => send.address == recv.address,
    };
    if send.overlaps(recv) && !in_place {
        return Err(format!(
            "send memory {send:x?} and receive memory {recv:x?} overlap and are not in place"
        ));
    }
    Ok(())
}
