//! The HTTP service under load.
