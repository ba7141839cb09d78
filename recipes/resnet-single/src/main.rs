//! ResNet on one device.
fn main() {}
