//! Starting the ranks of a job on one node or several, ending them together, and starting them again.
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
//! | `RANK`, `WORLD_SIZE` | the rank, from 0, and the number of ranks of all nodes |
//! | `LOCAL_RANK`, `LOCAL_WORLD_SIZE` | the same among those of its node |
//! | `ROLE_RANK`, `ROLE_WORLD_SIZE` | the same as `RANK` and `WORLD_SIZE`: all ranks have one role |
//! | `GROUP_RANK` | the node's number |
//! | `MASTER_ADDR`, `MASTER_PORT` | where rank 0 serves the rendezvous |
//! | `BURN_NCCL_RUN_ID` | 32 hexadecimal digits, new for each start of the ranks |
//! | `TORCHELASTIC_RUN_ID` | the first 16 of them, which all starts of a job share |
//! | `BURN_NCCL_SECRET` | 64 hexadecimal digits that the ranks prove to each other, new for each start |
//! | `BURN_NCCL_RESTART_COUNT`, `TORCHELASTIC_RESTART_COUNT` | how often the ranks were started before: [`restart_count`] |
//! | `TORCHELASTIC_MAX_RESTARTS` | how often they may be started again |
//! | `BURN_NCCL_ERROR_FILE` | where [`report_error`] writes, one file per rank |
//! | `BURN_NCCL_FLIGHT_RECORD` | the folder of the logs, where there is one and the user has set no other |
//! | `RAYON_NUM_THREADS`, `OMP_NUM_THREADS` | the node's cores divided by its ranks, where the user has set none |
//!
//! The launcher's own `RANK`, `WORLD_SIZE` and so on are replaced, not refused: cluster operators put the number
//! of the *node* there before they start a launcher, as users of `torchrun` know.
//!
//! # How a job ends
//!
//! - All ranks end with exit code 0: [`Outcome::Success`].
//! - A rank fails: the others have half a second to end by themselves, because a lost peer makes each of them
//!   return an error that is worth reading. Then they get `SIGTERM`, and after the grace `SIGKILL`. With restarts left, all
//!   ranks start again; those of a program that has checkpoints can go on from the newest. Exit code 2 is the exception: it
//!   says that the options are wrong, which another start would not change.
//! - A rank ends with [`STOPPED_EXIT_CODE`]: it was asked to stop and can go on later. The others have the grace to do the
//!   same before they get `SIGTERM`; nothing starts again: [`Outcome::Stopped`].
//! - The launcher gets `SIGTERM`, `SIGINT`, `SIGHUP` or `SIGQUIT`: all ranks get the same signal, and after the
//!   grace `SIGKILL`. A second signal, a second or more after the first, ends the grace. A signal that was ignored
//!   when the launcher started (`nohup`) stays ignored. `SIGUSR1` and `SIGUSR2` are passed on and end nothing by themselves.
//! - The launcher is killed: a guard process kills the ranks and all that they started, except a process that has
//!   left its rank's process group of its own accord, as daemons do.
//!
//! Each rank is the leader of a process group of its own, so that a signal reaches what the rank has started and
//! nothing that it has not. So Ctrl-Z stops the launcher alone, and the ranks train on until it is continued or
//! killed.
//!
//! # Several nodes
//!
//! A launcher runs on each node. That of node 0 listens at the master port and decides for all: the ranks start when all
//! nodes are there, numbered in the order of the nodes, and stop on all nodes when one fails or one launcher gets a signal.
//! Every launcher ends with the same outcome and the same report.
//!
//! - A launcher that is refused, because its number is taken or its number of nodes is another, is told why; the job goes on
//!   waiting. A taken number may be that of its own old connection, so that it asks again until that would have been missed.
//!   One that has a secret takes no answer for final that comes without a proof of the same secret, and tries until
//!   [`LaunchConfig::rendezvous_timeout`] is over.
//! - A node whose connection ends, or from which nothing comes for [`LaunchConfig::heartbeat_timeout`], is lost, and so are
//!   its ranks. So Ctrl-Z must not stop one launcher of several for longer. With restarts left the others wait for
//!   [`LaunchConfig::rendezvous_timeout`] for its launcher to be started again. Without node 0 nobody decides: the ranks of
//!   all nodes end, and the job has to be started again.
//! - The ranks meet at a free port of node 0, another one for each start.
//! - With [`LaunchConfig::secret`] the launchers prove to each other that they know it, and the ranks' secret is derived from
//!   it. Without, whoever reaches the master port can take part and learns the ranks' secret, as with `torchrun`.
//! - The first failure is the one with the smallest timestamp on the clock of node 0: each node tells how long ago things
//!   happened, so that its clock need not be right, and what is compared is off by the time of one message.

mod admission;
mod agent;
mod attempt;
mod conclusion;
mod config;
mod connect;
mod coordinator;
mod cores;
mod course;
mod environment;
mod error;
mod error_folder;
mod failure;
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
mod strangers;
mod watch;
mod wire;

pub use config::{LaunchConfig, RankOutput};
pub use cores::{NprocPerNode, threads_per_rank, visible_gpu_count};
pub use environment::restart_count;
pub use error::LaunchError;
pub use failure::Failure;
pub use outcome::{Ending, Outcome, RankEnd, STOPPED_EXIT_CODE};
pub use report::{ERROR_FILE_VARIABLE, ErrorReport, install_panic_hook, report_consequence, report_error};
pub use run::run;
pub use secret::{secret_from_environment, secret_from_file};
