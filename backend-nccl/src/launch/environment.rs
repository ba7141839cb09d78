use super::{
    config::LaunchConfig, cores::threads_per_rank, protocol::Attempt, run::JOB_ID_DIGITS,
    secret::SECRET_VARIABLE,
};
use std::{
    ffi::{OsStr, OsString},
    path::{Path, PathBuf},
};

/// Variables that compute libraries take their number of threads from.
const THREAD_VARIABLES: [&str; 2] = ["RAYON_NUM_THREADS", "OMP_NUM_THREADS"];

/// Names the folder in which the ranks leave their last operations when they fail.
const FLIGHT_RECORD_VARIABLE: &str = "BURN_NCCL_FLIGHT_RECORD";

/// What a launcher around this one may have set and what would mislead the ranks of this one: who serves the rendezvous,
/// and where errors go.
pub(super) const NOT_INHERITED: [&str; 2] = ["TORCHELASTIC_USE_AGENT_STORE", "TORCHELASTIC_ERROR_FILE"];

/// What is the same for all ranks that one node starts in one attempt.
pub(super) struct Job<'a> {
    pub(super) config: &'a LaunchConfig,
    pub(super) attempt: &'a Attempt,
    /// The ranks' secret.
    pub(super) secret: &'a str,
    /// Cores that the ranks share.
    pub(super) cores: usize,
}

impl Job<'_> {
    /// Where the ranks' logs of this attempt go. Those of the first attempt are in the log folder itself, each
    /// restart has a folder of its own in it, so that the log of what failed is not mixed with what came after.
    pub(super) fn log_folder(&self) -> Option<PathBuf> {
        let folder = self.config.log_dir.as_ref()?;
        Some(match self.attempt.restart {
            0 => folder.clone(),
            restart => folder.join(format!("restart-{restart}")),
        })
    }
}

/// The variables that the node's rank `local_rank` gets over those it inherits; a later one replaces an earlier one.
pub(super) fn rank_variables(
    job: &Job,
    local_rank: usize,
    error_file: &Path,
    is_inherited: impl Fn(&OsStr) -> bool,
) -> Vec<(OsString, OsString)> {
    let config = job.config;
    let mut variables = Vec::new();
    for name in THREAD_VARIABLES {
        if config.threads_per_rank.is_some() || !is_inherited(name.as_ref()) {
            let threads =
                config.threads_per_rank.unwrap_or(threads_per_rank(job.cores, config.nproc_per_node));
            variables.push((name.into(), threads.to_string().into()));
        }
    }
    if let Some(folder) = job.log_folder().filter(|_| !is_inherited(FLIGHT_RECORD_VARIABLE.as_ref())) {
        variables.push((FLIGHT_RECORD_VARIABLE.into(), folder.into()));
    }
    variables.extend(config.env.iter().cloned());
    variables.extend(config.rank_env.get(local_rank).into_iter().flatten().cloned());
    variables.extend(identity(job, local_rank).map(|(name, value)| (name.into(), value.into())));
    variables.push((super::report::ERROR_FILE_VARIABLE.into(), error_file.into()));
    variables
}

/// What makes a process a rank. `torchrun` calls the node's number the rank of the group of its workers.
fn identity(job: &Job, local_rank: usize) -> [(&'static str, String); 15] {
    let (config, attempt) = (job.config, job.attempt);
    [
        ("RANK", (attempt.first_rank + local_rank).to_string()),
        // All ranks have the same role.
        ("ROLE_RANK", (attempt.first_rank + local_rank).to_string()),
        ("ROLE_WORLD_SIZE", attempt.world_size.to_string()),
        ("LOCAL_RANK", local_rank.to_string()),
        ("WORLD_SIZE", attempt.world_size.to_string()),
        ("LOCAL_WORLD_SIZE", config.nproc_per_node.to_string()),
        ("GROUP_RANK", config.node_rank.to_string()),
        // The address at which this node's launcher has reached node 0.
        ("MASTER_ADDR", config.master_addr.clone()),
        ("MASTER_PORT", attempt.master_port.to_string()),
        ("BURN_NCCL_RUN_ID", attempt.run_id.clone()),
        (SECRET_VARIABLE, job.secret.to_owned()),
        (RESTART_COUNT_VARIABLE, attempt.restart.to_string()),
        ("TORCHELASTIC_RESTART_COUNT", attempt.restart.to_string()),
        ("TORCHELASTIC_MAX_RESTARTS", attempt.max_restarts.to_string()),
        // As under torchrun, it outlives a restart: ranks tell by it whether a run folder is of their own job.
        ("TORCHELASTIC_RUN_ID", attempt.run_id.chars().take(JOB_ID_DIGITS).collect()),
    ]
}

/// Tells a rank how often the ranks have been started before.
const RESTART_COUNT_VARIABLE: &str = "BURN_NCCL_RESTART_COUNT";

/// How often this job's ranks were started again before this process, by `burnrun` or by `torchrun`; 0 without a launcher
/// and under one that does not tell.
pub fn restart_count() -> usize {
    let count = |name| std::env::var(name).ok()?.trim().parse().ok();
    count(RESTART_COUNT_VARIABLE).or_else(|| count("TORCHELASTIC_RESTART_COUNT")).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashMap;

    fn variables(change: impl FnOnce(&mut LaunchConfig), inherited: &[&str]) -> HashMap<String, String> {
        let mut config = LaunchConfig::new("train", 4);
        change(&mut config);
        let attempt = Attempt {
            restart: 2,
            max_restarts: 3,
            run_id: "cafe".into(),
            seed: String::new(),
            world_size: 6,
            first_rank: 2,
            master_port: 4711,
        };
        let job = Job { config: &config, attempt: &attempt, secret: "5ec2e7", cores: 8 };
        let is_inherited = |name: &OsStr| inherited.iter().any(|known| *known == name);
        let text = |value: OsString| value.into_string().expect("UTF-8");
        rank_variables(&job, 1, Path::new("/tmp/e"), is_inherited)
            .into_iter()
            .map(|(name, value)| (text(name), text(value)))
            .collect()
    }

    #[test]
    fn a_rank_gets_its_place_and_its_part_of_the_cores() {
        let expected = [
            ("RANK", "3"),
            ("ROLE_RANK", "3"),
            ("ROLE_WORLD_SIZE", "6"),
            ("LOCAL_RANK", "1"),
            ("WORLD_SIZE", "6"),
            ("LOCAL_WORLD_SIZE", "4"),
            ("GROUP_RANK", "1"),
            ("MASTER_ADDR", "127.0.0.1"),
            ("MASTER_PORT", "4711"),
            ("BURN_NCCL_RUN_ID", "cafe"),
            ("BURN_NCCL_SECRET", "5ec2e7"),
            ("BURN_NCCL_RESTART_COUNT", "2"),
            ("TORCHELASTIC_RESTART_COUNT", "2"),
            ("TORCHELASTIC_MAX_RESTARTS", "3"),
            ("TORCHELASTIC_RUN_ID", "cafe"),
            ("BURN_NCCL_ERROR_FILE", "/tmp/e"),
            ("RAYON_NUM_THREADS", "2"),
            ("OMP_NUM_THREADS", "2"),
        ];
        let expected: HashMap<_, _> =
            expected.map(|(name, value)| (name.to_owned(), value.to_owned())).into();
        assert_eq!(variables(|c| c.node_rank = 1, &[]), expected);
    }

    #[test]
    fn thread_counts_of_the_user_are_kept_unless_the_launch_sets_them() {
        let inherited = variables(|_| (), &["OMP_NUM_THREADS"]);
        assert_eq!((inherited.get("OMP_NUM_THREADS"), inherited["RAYON_NUM_THREADS"].as_str()), (None, "2"));
        let set = variables(|c| c.threads_per_rank = Some(3), &["OMP_NUM_THREADS"]);
        assert_eq!((set["OMP_NUM_THREADS"].as_str(), set["RAYON_NUM_THREADS"].as_str()), ("3", "3"));
        let own = variables(|c| c.env.push(("OMP_NUM_THREADS".into(), "7".into())), &[]);
        assert_eq!(own["OMP_NUM_THREADS"], "7");
    }

    #[test]
    fn a_rank_variable_wins_over_a_common_one_and_none_can_change_the_rank() {
        let mixed = variables(
            |c| {
                c.env = vec![("A".into(), "all".into()), ("RANK".into(), "9".into())];
                c.rank_env = (0..4).map(|r| vec![("A".into(), format!("r{r}").into())]).collect();
            },
            &[],
        );
        assert_eq!((mixed["A"].as_str(), mixed["RANK"].as_str()), ("r1", "3"));
    }

    #[test]
    fn flight_records_go_to_the_logs_of_their_attempt_unless_the_user_says_where() {
        let log_dir = |c: &mut LaunchConfig| c.log_dir = Some("logs".into());
        assert_eq!(variables(log_dir, &[])["BURN_NCCL_FLIGHT_RECORD"], "logs/restart-2");
        assert_eq!(variables(log_dir, &["BURN_NCCL_FLIGHT_RECORD"]).get("BURN_NCCL_FLIGHT_RECORD"), None);
    }
}
