//! Groups.

use crate::{
    batch::{end_group, start_group},
    library::{code_of, library},
};

#[unsafe(no_mangle)]
extern "C" fn ncclGroupStart() -> i32 {
    code_of(library().inject("ncclGroupStart", None).map(|()| start_group()))
}

/// An end that is to fail ends the group all the same, and starts nothing of it.
#[unsafe(no_mangle)]
extern "C" fn ncclGroupEnd() -> i32 {
    code_of(match library().inject("ncclGroupEnd", None) {
        Ok(()) => end_group(),
        Err(code) => {
            crate::batch::forget_group();
            Err(code)
        }
    })
}
