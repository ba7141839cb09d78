use super::{config::LaunchConfig, cores::threads_per_rank};
use std::{
    collections::hash_map::RandomState,
    ffi::{OsStr, OsString},
    hash::{BuildHasher, Hasher},
    path::Path,
};

/// Variables that compute libraries take their number of threads from.
const THREAD_VARIABLES: [&str; 2] = ["RAYON_NUM_THREADS", "OMP_NUM_THREADS"];

/// What is the same for all ranks of one launch.
pub(super) struct Job<'a> {
    pub(super) config: &'a LaunchConfig,
    pub(super) port: u16,
    pub(super) run_id: String,
    /// Cores that the ranks share.
    pub(super) cores: usize,
}

/// A token that tells this launch from every other, so that a rank of another job is refused at the rendezvous.
pub(super) fn new_run_id() -> String {
    // Each `RandomState` holds keys from the system's random source.
    let word = || RandomState::new().build_hasher().finish();
    format!("{:016x}{:016x}", word(), word())
}

/// The variables that rank `rank` gets over those it inherits; a later one replaces an earlier one.
pub(super) fn rank_variables(
    job: &Job,
    rank: usize,
    error_file: &Path,
    is_inherited: impl Fn(&OsStr) -> bool,
) -> Vec<(OsString, OsString)> {
    let config = job.config;
    let world_size = config.nproc_per_node.to_string();
    let mut variables = Vec::new();
    for name in THREAD_VARIABLES {
        if config.threads_per_rank.is_some() || !is_inherited(name.as_ref()) {
            let threads =
                config.threads_per_rank.unwrap_or(threads_per_rank(job.cores, config.nproc_per_node));
            variables.push((name.into(), threads.to_string().into()));
        }
    }
    variables.extend(config.env.iter().cloned());
    variables.extend(config.rank_env.get(rank).into_iter().flatten().cloned());
    let identity: [(&str, OsString); 8] = [
        ("RANK", rank.to_string().into()),
        ("LOCAL_RANK", rank.to_string().into()),
        ("WORLD_SIZE", world_size.clone().into()),
        ("LOCAL_WORLD_SIZE", world_size.into()),
        ("MASTER_ADDR", config.master_addr.clone().into()),
        ("MASTER_PORT", job.port.to_string().into()),
        ("BURN_NCCL_RUN_ID", job.run_id.clone().into()),
        (super::report::ERROR_FILE_VARIABLE, error_file.into()),
    ];
    variables.extend(identity.map(|(name, value)| (name.into(), value)));
    variables
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashMap;

    fn variables(change: impl FnOnce(&mut LaunchConfig), inherited: &[&str]) -> HashMap<String, String> {
        let mut config = LaunchConfig::new("train", 4);
        change(&mut config);
        let job = Job { config: &config, port: 4711, run_id: "cafe".into(), cores: 8 };
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
            ("RANK", "1"),
            ("LOCAL_RANK", "1"),
            ("WORLD_SIZE", "4"),
            ("LOCAL_WORLD_SIZE", "4"),
            ("MASTER_ADDR", "127.0.0.1"),
            ("MASTER_PORT", "4711"),
            ("BURN_NCCL_RUN_ID", "cafe"),
            ("BURN_NCCL_ERROR_FILE", "/tmp/e"),
            ("RAYON_NUM_THREADS", "2"),
            ("OMP_NUM_THREADS", "2"),
        ];
        let expected: HashMap<_, _> =
            expected.map(|(name, value)| (name.to_owned(), value.to_owned())).into();
        assert_eq!(variables(|_| (), &[]), expected);
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
        assert_eq!((mixed["A"].as_str(), mixed["RANK"].as_str()), ("r1", "1"));
    }

    #[test]
    fn run_ids_differ() {
        let (a, b) = (new_run_id(), new_run_id());
        assert_eq!(a.len(), 32);
        assert_ne!(a, b);
    }
}
