//! Files of weights and checkpoints, on real files.

mod checkpoints;
