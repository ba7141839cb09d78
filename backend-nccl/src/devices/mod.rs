//! The GPUs of this machine: which one a rank takes, who holds them, and how far they are from each other.
