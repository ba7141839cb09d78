use super::{
    agent::Agent,
    config::LaunchConfig,
    connect::{Reached, connect},
    coordinator::{Coordinator, Plan, Supplies, Supply},
    error::LaunchError,
    link::{Connected, Link},
    members::Newcomer,
    outcome::Outcome,
    port::MasterPort,
    protocol::MAX_MESSAGE_BYTES,
    report_file,
    secret::random_hex,
    serve::{self, Server},
    signals::Signals,
    watch::show,
    wire::Wire,
};
use crate::rendezvous::host_name;
use std::time::Instant;

/// Digits of a run id, of the 64 that are drawn.
const RUN_ID_DIGITS: usize = 32;
/// Digits at its start that are the same for all starts of a job.
pub(super) const JOB_ID_DIGITS: usize = 16;

/// Starts the ranks of `config` on this node and returns when the job has ended on all of them; see the
/// [module](super).
///
/// For that time the process's handlers of `SIGTERM`, `SIGINT`, `SIGHUP`, `SIGQUIT`, `SIGUSR1`, `SIGUSR2` and `SIGCHLD`
/// are replaced, and no other part of the program may wait for any child. The outcome is not printed: it is the
/// caller's last line.
///
/// # Errors
/// [`LaunchError`] where the job cannot be started or watched, or its report could not be written; ranks that had started are killed before it returns.
pub fn run(config: &LaunchConfig) -> Result<Outcome, LaunchError> {
    config.validate()?;
    config.report.as_deref().map_or(Ok(()), report_file::check)?;
    let signals = Signals::install()?;
    let host = host_name();
    let outcome = match (config.nnodes, config.node_rank) {
        (1, _) => alone(config, &host, &signals),
        (_, 0) => first_of_many(config, &host, &signals),
        (_, _) => one_of_many(config, &host, &signals),
    }?;
    if let Some(path) = &config.report {
        // How the job ended matters more than the file.
        report_file::write(path, &outcome).unwrap_or_else(|error| show(&format!("warning: {error}")));
    }
    Ok(outcome)
}

fn alone(config: &LaunchConfig, host: &str, signals: &Signals) -> Result<Outcome, LaunchError> {
    let link = Link::alone(coordinator(config, config.master_port), newcomer(config, host));
    Agent::new(config, host, signals, link).run()
}

/// Serves the coordinator of a job of several nodes, and runs node 0 of it.
fn first_of_many(config: &LaunchConfig, host: &str, signals: &Signals) -> Result<Outcome, LaunchError> {
    const ACTION: &str = "connect with the coordinator";
    warn_without_secret(config);
    let listener = serve::listen(&config.master_addr, config.coordinator_port())?;
    let (own, other) = Wire::pair(MAX_MESSAGE_BYTES).map_err(LaunchError::system(ACTION))?;
    let link = Connected::new(own, config.heartbeat_timeout).map_err(LaunchError::system(ACTION))?;
    // The ranks have a port of their own, a free one.
    let coordinator = coordinator(config, None);
    let limits = (config.nnodes, config.heartbeat_timeout);
    let own = (other, newcomer(config, host));
    let server = Server::start(coordinator, limits, listener, config.secret, own)?;
    let result = Agent::new(config, host, signals, Link::Connected(Box::new(link))).run();
    // The connection is closed by now, so that the server ends once the other nodes have left, too.
    match (result, server.join()) {
        (Err(LaunchError::OtherNode { node: 0, .. }), Ok(Some(error))) => Err(error),
        (result, _) => result,
    }
}

fn one_of_many(config: &LaunchConfig, host: &str, signals: &Signals) -> Result<Outcome, LaunchError> {
    warn_without_secret(config);
    let wire = match connect(config, host, signals)? {
        Reached::Admitted(wire) => *wire,
        Reached::Signalled(signal) => {
            return Ok(Outcome::Interrupted { signal: signal as i32, killed: Vec::new() });
        }
    };
    let link = Connected::new(wire, config.heartbeat_timeout)
        .map_err(LaunchError::system("connect with the coordinator"))?;
    Agent::new(config, host, signals, Link::Connected(Box::new(link))).run()
}

fn warn_without_secret(config: &LaunchConfig) {
    if config.secret.is_none() {
        show(
            "warning: the nodes have no secret, so that whoever reaches the master port can take part in the job; give \
             all of them the same --secret-file or BURN_NCCL_SECRET",
        );
    }
}

fn newcomer(config: &LaunchConfig, host: &str) -> Newcomer {
    Newcomer { host: host.to_owned(), nproc: config.nproc_per_node }
}

/// The coordinator of a job whose ranks meet at `port`, or at a free one.
fn coordinator(config: &LaunchConfig, port: Option<u16>) -> Coordinator {
    let plan =
        Plan { nnodes: config.nnodes, max_restarts: config.max_restarts, timeout: config.rendezvous_timeout };
    let address = config.master_addr.clone();
    let mut held: Option<MasterPort> = None;
    let mut job_id: Option<String> = None;
    let supply: Supply = Box::new(move || {
        // The same port may be asked for again.
        held.take();
        let master_port = held.insert(MasterPort::reserve(&address, port)?).number;
        // The first half is the job's and stays, the second is this start's.
        let digits = |count| random_hex().map(|digits| digits[..count].to_owned());
        let job_id = match &job_id {
            Some(job_id) => job_id.clone(),
            None => job_id.insert(digits(JOB_ID_DIGITS)?).clone(),
        };
        let run_id = job_id + &digits(RUN_ID_DIGITS - JOB_ID_DIGITS)?;
        Ok(Supplies { run_id, seed: random_hex()?, master_port })
    });
    Coordinator::new(plan, supply, Instant::now())
}
