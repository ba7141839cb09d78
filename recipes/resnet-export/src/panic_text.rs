//! What a panic of somebody else's code says.

use std::any::Any;

/// The panic's text; none where it is no text.
pub(crate) fn panic_text(panic: &(dyn Any + Send)) -> Option<&str> {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied())
}
