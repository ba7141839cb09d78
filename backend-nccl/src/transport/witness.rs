//! Who knows what this rank does.

use std::fmt;

use super::{Signature, control::Control};
use crate::failure::Failure;

/// The longest account that a rank gives of itself, in bytes.
pub(crate) const MAX_ACCOUNT_BYTES: usize = 32 * 1024;

/// What a transport must know of the group above it when something goes wrong. The methods that the control thread
/// calls must not block.
pub(crate) trait Witness: Send + Sync + fmt::Debug {
    /// What this rank says of itself when rank `asker` asks, and of the operation that the asker knows by `about`. At
    /// most [`MAX_ACCOUNT_BYTES`]. The control thread calls it.
    fn account(&self, asker: usize, about: Option<Signature>) -> Vec<u8>;

    /// What a failure that this rank has met is, once the others have been asked. Before they are told of it, because
    /// nobody answers after that.
    fn examine(&self, failure: Failure, control: &Control) -> Failure;

    /// Takes the news that another rank has ended the group. The control thread calls it.
    fn hear(&self, failure: &Failure);
}
