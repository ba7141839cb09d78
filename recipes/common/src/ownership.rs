//! Whose run a folder holds: ranks that are started again go on with the run of their own job, and with no other.

use std::ffi::OsString;
use std::fs;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::error::Result;
use crate::run_folder::{JOB, RunFolder};

/// Options that take a value and may differ between the ranks of one job, which run on several machines.
const MAY_DIFFER: [&str; 11] = [
    "--config",
    "--data",
    "--device",
    "--master-addr",
    "--node-rank",
    "--nproc-per-node",
    "--out",
    "--progress",
    "--resume",
    "--weights",
    "--workers",
];

/// A launcher's job: the same for all ranks and all starts of them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Job {
    /// The launcher's name for it; empty where the launcher has one for each start only.
    id: String,
    /// What the ranks were asked to do. It tells jobs apart whose launcher gives all of them one name, as torchrun does
    /// without `--standalone` and `--rdzv-id`.
    options: Vec<String>,
}

impl Job {
    /// The job of which this process is a rank; none without a launcher that starts ranks again.
    pub(crate) fn current() -> Option<Self> {
        Self::read(|name| std::env::var(name).ok(), std::env::args_os().skip(1))
    }

    fn read(variable: impl Fn(&str) -> Option<String>, args: impl Iterator<Item = OsString>) -> Option<Self> {
        let id = variable("BURN_NCCL_JOB_ID").or_else(|| {
            let run = variable("TORCHELASTIC_RUN_ID")?;
            // burnrun's differs from start to start. It does not start ranks again that have refused their options.
            Some(variable("BURN_NCCL_RESTART_COUNT").map_or(run, |_| String::new()))
        })?;
        let mut options = Vec::new();
        let mut args = args.map(|arg| arg.to_string_lossy().into_owned());
        while let Some(arg) = args.next() {
            let name = arg.split('=').next().unwrap_or_default();
            match MAY_DIFFER.contains(&name) {
                true if arg == name => drop(args.next()),
                true => {}
                false => options.push(arg),
            }
        }
        Some(Self { id, options })
    }

    /// Whether the run in `out` is this job's.
    pub(crate) fn owns(&self, out: &Path) -> bool {
        let mark = fs::read(out.join(JOB)).ok();
        mark.and_then(|mark| serde_json::from_slice::<Self>(&mark).ok()).as_ref() == Some(self)
    }
}

/// Makes the run in `folder` that of `job`; or nobody's, who would go on with it without being asked.
///
/// # Errors
/// Where the mark cannot be written, or that of another job not be removed.
pub(crate) fn mark(folder: &RunFolder, job: Option<&Job>) -> Result<()> {
    job.map_or_else(|| folder.remove(JOB), |job| folder.write_json(JOB, job))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(variables: &[(&str, &str)], args: &[&str]) -> Option<Job> {
        let value =
            |name: &str| variables.iter().find(|(it, _)| *it == name).map(|(_, value)| (*value).into());
        Job::read(value, args.iter().map(OsString::from))
    }

    #[test]
    fn a_job_is_told_by_its_launchers_name_for_it_and_by_what_it_was_asked_to_do() {
        let folder = tempfile::tempdir().unwrap();
        let run = RunFolder::existing(folder.path());
        let torchrun = [("TORCHELASTIC_RUN_ID", "a"), ("TORCHELASTIC_RESTART_COUNT", "0")];
        let args = ["--lr", "0.1", "--node-rank", "0", "--out=/a", "--no-overlap"];
        let own = job(&torchrun, &args).unwrap();
        assert!(!own.owns(folder.path()));
        mark(&run, Some(&own)).unwrap();
        assert!(RunFolder::check_unused(folder.path()).is_ok());
        let cases = [
            (["a", "1"], &args[..], true),
            (["a", "1"], &["--lr", "0.1", "--no-overlap", "--out", "/b", "--node-rank=1"], true),
            (["b", "1"], &args, false),
            (["a", "1"], &["--lr", "0.2", "--no-overlap"], false),
        ];
        for ([id, restart], args, expected) in cases {
            let variables = [("TORCHELASTIC_RUN_ID", id), ("TORCHELASTIC_RESTART_COUNT", restart)];
            assert_eq!(job(&variables, args).unwrap().owns(folder.path()), expected, "{id} {args:?}");
        }
        mark(&run, None).unwrap();
        assert!(!own.owns(folder.path()));
    }

    #[test]
    fn a_job_of_burnrun_has_one_name_for_all_starts() {
        let start = |restart, run| {
            let restarts = [("TORCHELASTIC_RUN_ID", run), ("BURN_NCCL_RESTART_COUNT", restart)];
            let named = [&restarts[..], &[("BURN_NCCL_JOB_ID", "job")]].concat();
            (job(&restarts, &[]), job(&named, &[]))
        };
        assert_eq!(start("0", "a"), start("1", "b"));
        assert_eq!(start("0", "a").1.unwrap().id, "job");
        assert_eq!(job(&[], &[]), None);
    }
}
