//! Starting the ranks of a job on one machine, and ending them together.
//!
//! [`run`] starts `nproc_per_node` copies of a program, gives each the environment that `torchrun` would
//! give it, shows their output line by line, and comes back when all have ended. The command `burnrun` is a thin
//! layer over it, and a program that finds no rank in its environment can start copies of itself:
//!
//! ```no_run
//! use burn_nccl::launch::{LaunchConfig, run};
//!
//! # fn main() -> Result<(), burn_nccl::launch::LaunchError> {
//! if std::env::var_os("RANK").is_none() {
//!     let mut config = LaunchConfig::this_program(2)?;
//!     config.args = std::env::args_os().skip(1).collect();
//!     let outcome = run(&config)?;
//!     eprint!("{outcome}");
//!     std::process::exit(outcome.exit_code());
//! }
//! burn_nccl::launch::install_panic_hook();
//! // ... join the process group and train ...
//! # Ok(())
//! # }
//! ```
//!
//! # What a rank finds in its environment
//!
//! | variable | value |
//! |---|---|
//! | `RANK`, `LOCAL_RANK` | 0 .. ranks - 1 |
//! | `WORLD_SIZE`, `LOCAL_WORLD_SIZE` | the number of ranks |
//! | `MASTER_ADDR`, `MASTER_PORT` | where rank 0 serves the rendezvous |
//! | `BURN_NCCL_RUN_ID` | 32 hexadecimal digits, new for each launch |
//! | `BURN_NCCL_ERROR_FILE` | where [`report_error`] writes, one file per rank |
//! | `RAYON_NUM_THREADS`, `OMP_NUM_THREADS` | the cores divided by the ranks, where the user has set none |
//!
//! The launcher's own `RANK`, `WORLD_SIZE` and so on are replaced, not refused: cluster operators put the number
//! of the *node* there before they start a launcher, as users of `torchrun` know.
//!
//! # How a job ends
//!
//! - All ranks end with exit code 0: [`Outcome::Success`].
//! - A rank fails: the others have half a second to end by themselves, because a lost peer makes each of them
//!   return an error that is worth reading. Then they get `SIGTERM`, and after the grace `SIGKILL`.
//! - The launcher gets `SIGTERM`, `SIGINT`, `SIGHUP` or `SIGQUIT`: all ranks get the same signal, and after the
//!   grace `SIGKILL`. A second signal, a second or more after the first, ends the grace. A signal that was ignored
//!   when the launcher started (`nohup`) stays ignored.
//! - The launcher is killed: a guard process kills the ranks and all that they started, except a process that has
//!   left its rank's process group of its own accord, as daemons do.
//!
//! Each rank is the leader of a process group of its own, so that a signal reaches what the rank has started and
//! nothing that it has not. So Ctrl-Z stops the launcher alone, and the ranks train on until it is continued or
//! killed.

mod admission;
mod agent;
mod attempt;
mod config;
mod connect;
mod coordinator;
mod cores;
mod environment;
mod error;
mod guard;
mod lines;
mod link;
mod members;
mod outcome;
mod output;
mod port;
mod protocol;
mod report;
mod report_file;
mod run;
mod secret;
mod serve;
mod signals;
mod spawn;
mod watch;
mod wire;

pub use config::{LaunchConfig, RankOutput};
pub use cores::{NprocPerNode, threads_per_rank, visible_gpu_count};
pub use environment::restart_count;
pub use error::LaunchError;
pub use outcome::{Ending, Failure, Outcome, RankEnd, STOPPED_EXIT_CODE};
pub use report::{ERROR_FILE_VARIABLE, ErrorReport, install_panic_hook, report_consequence, report_error};
pub use run::run;
pub use secret::Secret;
