//! PyTorch's files, through `pytorch-reader`, which interprets the pickle and runs nothing of it.

mod open;
mod select;
mod temporary;
mod zip_end;

pub(super) use open::open;
