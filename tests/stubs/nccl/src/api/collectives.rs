//! The operations.

use crate::{
    batch::submit,
    check::{Call, item},
    library::{code_of, library},
    wire::Kind,
};

fn start(communicator: usize, call: Call) -> i32 {
    let found = library().enter(call.function, communicator, false);
    code_of(found.and_then(|found| {
        // NCCL, too, starts nothing for nothing.
        let checked = item(&found, &call);
        if call.count == 0 && checked.is_ok() { Ok(()) } else { submit(&found, call.stream, checked) }
    }))
}

#[unsafe(no_mangle)]
extern "C" fn ncclAllReduce(
    send: u64,
    recv: u64,
    count: usize,
    dtype: i32,
    op: i32,
    communicator: usize,
    stream: usize,
) -> i32 {
    let function = "ncclAllReduce";
    start(
        communicator,
        Call { function, kind: Kind::AllReduce, send, recv, count, dtype, op, peer: 0, stream },
    )
}

#[unsafe(no_mangle)]
extern "C" fn ncclReduce(
    send: u64,
    recv: u64,
    count: usize,
    dtype: i32,
    op: i32,
    root: i32,
    communicator: usize,
    stream: usize,
) -> i32 {
    let function = "ncclReduce";
    start(
        communicator,
        Call { function, kind: Kind::Reduce, send, recv, count, dtype, op, peer: root, stream },
    )
}

#[unsafe(no_mangle)]
extern "C" fn ncclBroadcast(
    send: u64,
    recv: u64,
    count: usize,
    dtype: i32,
    root: i32,
    communicator: usize,
    stream: usize,
) -> i32 {
    let function = "ncclBroadcast";
    start(
        communicator,
        Call { function, kind: Kind::Broadcast, send, recv, count, dtype, op: 0, peer: root, stream },
    )
}

#[unsafe(no_mangle)]
extern "C" fn ncclAllGather(
    send: u64,
    recv: u64,
    count: usize,
    dtype: i32,
    communicator: usize,
    stream: usize,
) -> i32 {
    let function = "ncclAllGather";
    start(
        communicator,
        Call { function, kind: Kind::AllGather, send, recv, count, dtype, op: 0, peer: 0, stream },
    )
}

#[unsafe(no_mangle)]
extern "C" fn ncclReduceScatter(
    send: u64,
    recv: u64,
    count: usize,
    dtype: i32,
    op: i32,
    communicator: usize,
    stream: usize,
) -> i32 {
    let function = "ncclReduceScatter";
    start(
        communicator,
        Call { function, kind: Kind::ReduceScatter, send, recv, count, dtype, op, peer: 0, stream },
    )
}

#[unsafe(no_mangle)]
extern "C" fn ncclSend(
    send: u64,
    count: usize,
    dtype: i32,
    peer: i32,
    communicator: usize,
    stream: usize,
) -> i32 {
    let function = "ncclSend";
    start(communicator, Call { function, kind: Kind::Send, send, recv: 0, count, dtype, op: 0, peer, stream })
}

#[unsafe(no_mangle)]
extern "C" fn ncclRecv(
    recv: u64,
    count: usize,
    dtype: i32,
    peer: i32,
    communicator: usize,
    stream: usize,
) -> i32 {
    let function = "ncclRecv";
    start(
        communicator,
        Call { function, kind: Kind::Receive, send: 0, recv, count, dtype, op: 0, peer, stream },
    )
}
