//! The doubles themselves: what they compute, what they order, and that they find what they are to find.

mod collectives;
mod cuda;
mod faults;
mod injections;
mod libraries;
mod processes;
mod streams;
