//! Files of weights and checkpoints, on real files.

mod hostile;
mod manifest;
mod saving;
mod saving_faults;
mod saving_python;
