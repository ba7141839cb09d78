//! Saving and loading weights, beside PyTorch.

fn main() {}
