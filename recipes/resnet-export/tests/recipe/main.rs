//! The built recipe, run as a user runs it.

mod bundle;
mod classify;
mod fuzz;
mod page;
mod serve;
mod support;
