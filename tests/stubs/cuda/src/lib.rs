//! A test double of the library of the same name. Nothing outside of tests may load it.
