//! How communicators begin and end.

use std::time::Duration;

use super::{
    configuration::{self, Configuration},
    put,
};
use crate::{
    batch::in_group,
    code,
    communicator::Communicator,
    library::{Outcome, code_of, library},
    unique_id::UniqueId,
};

/// The first version whose thread has the handle by value.
const FIRST_WITHOUT_PLACE: i32 = 21800;
const PLACE_DELAY: Duration = Duration::from_millis(5);

/// Makes a communicator. One that does not block connects in a thread, and its handle is given at once.
unsafe fn init(
    function: &'static str,
    out: *mut usize,
    ranks: i32,
    id: UniqueId,
    rank: i32,
    blocking: bool,
) -> Outcome {
    library().inject(function, usize::try_from(rank).ok())?;
    let wrong = |code: i32, what: String| library().refuse(code, format!("{function}: {what}"));
    if ranks < 1 || !(0..ranks).contains(&rank) {
        return wrong(code::INVALID_ARGUMENT, format!("rank {rank} of {ranks}"));
    }
    if let Err(reason) = id.check() {
        return wrong(code::INVALID_ARGUMENT, format!("the id: {reason}"));
    }
    if in_group() {
        return wrong(code::INVALID_USAGE, "within a group, which the double does not do".into());
    }
    let device = library().driver()?.current_device();
    if device < 0 {
        return wrong(code::UNHANDLED_CUDA_ERROR, "no context is current".into());
    }
    let made =
        library().add(|handle| Communicator::new(handle, rank as usize, ranks as usize, device, blocking));
    // SAFETY: the caller's promise.
    unsafe { put(out, made.handle) }?;
    if blocking {
        return made.connect(&id).inspect_err(|_| {
            library().remove(made.handle);
            // SAFETY: it was written above.
            unsafe { out.write(0) };
        });
    }
    // What it finds is told by polls.
    let place = out.expose_provenance();
    std::thread::spawn(move || {
        keeps_place(function, place, made.handle);
        made.connect(&id)
    });
    Err(code::IN_PROGRESS)
}

/// Looks at the place of the handle while the communicator is made, as NCCL does up to 2.17: the caller must keep it.
fn keeps_place(function: &str, place: usize, handle: usize) {
    if library().config().version >= FIRST_WITHOUT_PLACE {
        return;
    }
    // Time for the caller to go on.
    std::thread::sleep(PLACE_DELAY);
    // SAFETY: the caller's promise, as in C. One that has broken it has most likely written something else there since.
    let found = unsafe { std::ptr::with_exposed_provenance::<usize>(place).read_volatile() };
    if found != handle {
        let text = format!("{function}: the handle's place was used for something else while it was needed");
        library().double.fault(text);
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ncclCommInitRank(out: *mut usize, ranks: i32, id: UniqueId, rank: i32) -> i32 {
    // SAFETY: the caller's pointer, as in C.
    code_of(unsafe { init("ncclCommInitRank", out, ranks, id, rank, true) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ncclCommInitRankConfig(
    out: *mut usize,
    ranks: i32,
    id: UniqueId,
    rank: i32,
    configuration: *const Configuration,
) -> i32 {
    // SAFETY: the caller's pointers, as in C.
    code_of(unsafe {
        configuration::blocking(configuration)
            .and_then(|blocking| init("ncclCommInitRankConfig", out, ranks, id, rank, blocking))
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ncclCommGetAsyncError(communicator: usize, out: *mut i32) -> i32 {
    let found = library().enter("ncclCommGetAsyncError", communicator, true);
    // SAFETY: the caller's pointer, as in C.
    code_of(found.and_then(|found| unsafe { put(out, found.poll()) }))
}

#[unsafe(no_mangle)]
extern "C" fn ncclCommFinalize(communicator: usize) -> i32 {
    code_of(library().enter("ncclCommFinalize", communicator, false).and_then(|found| found.finalize()))
}

#[unsafe(no_mangle)]
extern "C" fn ncclCommDestroy(communicator: usize) -> i32 {
    if communicator == 0 {
        return code::SUCCESS;
    }
    code_of(library().enter("ncclCommDestroy", communicator, false).map(|found| found.destroy()))
}

#[unsafe(no_mangle)]
extern "C" fn ncclCommAbort(communicator: usize) -> i32 {
    if communicator == 0 {
        return code::SUCCESS;
    }
    code_of(library().enter("ncclCommAbort", communicator, true).map(|found| found.abort()))
}
