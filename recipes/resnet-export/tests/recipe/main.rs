//! The built recipe, run as a user runs it.

mod import;
