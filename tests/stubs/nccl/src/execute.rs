//! Does operations when their stream has come to them: reads the inputs, meets the other ranks, and writes the outputs. Looks
//! meanwhile that nobody else writes to either.

use std::time::Duration;

use stubs::PeerLoss;

use crate::{
    batch::{Item, Region},
    code,
    communicator::Communicator,
    library::library,
    wire::{self, Kind, Message},
};

/// What outputs are filled with until the result is there.
const UNFINISHED: u8 = 0xa7;

/// Does the operations of a batch, or returns when the communicator is aborted.
pub(crate) fn run(communicator: &Communicator, items: &[Item], numbers: &[u64]) {
    let config = library().config();
    let hangs = |hang: &stubs::Operation| hang.rank == communicator.rank && numbers.contains(&hang.operation);
    if config.hangs.iter().any(hangs) {
        return communicator.wait_for_abort();
    }
    if items.iter().any(|item| !is_live(item, "when its stream came to it")) {
        return communicator.wait_for_abort();
    }
    let inputs: Vec<Vec<u8>> = items.iter().map(|item| read(&item.send)).collect();
    for item in items.iter().filter(|item| !item.send.overlaps(&item.recv)) {
        write(&item.recv, &vec![UNFINISHED; item.recv.len]);
    }
    pause(&config, communicator, numbers);
    let Some(results) = exchange(communicator, items, &inputs) else { return };
    pause(&config, communicator, numbers);
    for ((item, input), result) in items.iter().zip(&inputs).zip(&results) {
        finish(item, input, result);
    }
}

/// A delay that depends on the seed, the rank and the operation alone.
fn pause(config: &stubs::Nccl, communicator: &Communicator, numbers: &[u64]) {
    if config.max_delay_us > 0 {
        let mixed = config.seed ^ (communicator.rank as u64) << 32 ^ numbers.first().copied().unwrap_or(0);
        let random = mixed.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 20;
        std::thread::sleep(Duration::from_micros(random % (config.max_delay_us + 1)));
    }
}

fn is_live(item: &Item, when: &str) -> bool {
    let live = |region: &Region| match library().driver() {
        Ok(driver) if region.len > 0 => driver.check(region.address, region.len),
        _ => Ok(()),
    };
    let checked = live(&item.send).and_then(|()| live(&item.recv));
    checked
        .inspect_err(|reason| library().double.fault(format!("{}: {reason}, {when}", item.function)))
        .is_ok()
}

/// Brings the inputs to the hub and waits for all results. None if the communicator was aborted meanwhile.
fn exchange(communicator: &Communicator, items: &[Item], inputs: &[Vec<u8>]) -> Option<Vec<Vec<u8>>> {
    let mut differ = false;
    let results = communicator.socket().and_then(|socket| {
        for (item, (operation, input)) in items.iter().zip(inputs).enumerate() {
            wire::write(&socket, &Message::Start { item, shape: operation.shape.clone() }, input).ok()?;
        }
        let mut results = vec![None; items.len()];
        while results.iter().any(Option::is_none) {
            match wire::read(&socket).ok()? {
                (Message::Done { item }, bytes) => *results.get_mut(item)? = Some(bytes),
                (Message::Differ { text }, _) => {
                    library().double.fault(text);
                    differ = true;
                    return None;
                }
                // A rank is lost.
                _ => return None,
            }
        }
        Some(results.into_iter().flatten().collect())
    });
    if results.is_none() {
        // As on a GPU: what cannot end is there until it is aborted.
        if !differ && !communicator.is_aborted() && library().config().peer_loss == PeerLoss::RemoteError {
            communicator.fail(code::REMOTE_ERROR);
        }
        communicator.wait_for_abort();
    }
    results
}

/// Writes a result, if the memory is still what it was at the start.
fn finish(item: &Item, input: &[u8], result: &[u8]) {
    if !is_live(item, "while it ran") {
        return;
    }
    if read(&item.send) != input {
        library().double.fault(format!("{}: its input was written while it ran", item.function));
    }
    if !item.send.overlaps(&item.recv) && read(&item.recv).iter().any(|&byte| byte != UNFINISHED) {
        library()
            .double
            .fault(format!("{}: its output was written by somebody else while it ran", item.function));
    }
    if item.recv.len > 0 && result.len() == item.recv.len {
        write(&item.recv, result);
    } else if item.recv.len > 0 || item.shape.kind == Kind::Receive {
        library().double.fault(format!(
            "{}: {} bytes came for {}",
            item.function,
            result.len(),
            item.recv.len
        ));
    }
}

fn read(region: &Region) -> Vec<u8> {
    let mut bytes = vec![0; region.len];
    // SAFETY: the region was found live in the driver's double, which never gives memory back while poisoning is on.
    unsafe { std::ptr::copy_nonoverlapping(region.address as *const u8, bytes.as_mut_ptr(), region.len) };
    bytes
}

fn write(region: &Region, bytes: &[u8]) {
    // SAFETY: as in `read`; the bytes are as many as the region's.
    unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), region.address as *mut u8, bytes.len()) };
}
