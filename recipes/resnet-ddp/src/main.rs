//! ResNet on several ranks.
fn main() {}
