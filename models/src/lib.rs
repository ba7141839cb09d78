//! The ResNet family.
