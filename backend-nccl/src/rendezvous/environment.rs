//! The launch environment: the only reader of RANK, WORLD_SIZE and their kin. Nothing is ever written.
//!
//! Four families are known, each all or none: torchrun's names (which burnrun sets too), those of Open MPI and of
//! MPICH's Hydra, and those that SLURM's `srun` gives to a task.

use super::challenge::Secret;
use crate::{Error, Result};

/// The run token of jobs whose launcher gives none.
const DEFAULT_RUN_ID: &str = "default";
/// Where ports derived from a job's number start; 10000 ports from here are below the ephemeral range.
const DERIVED_PORT_BASE: u64 = 15_000;
const DERIVED_PORTS: u64 = 10_000;

/// What a launcher tells a process about its place in the job.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Environment {
    /// This process's number in the job, from 0.
    pub rank: usize,
    /// This process's number on its machine, from 0.
    pub local_rank: usize,
    /// How many processes the job has.
    pub world_size: usize,
    /// How many of them run on this machine.
    pub local_world_size: usize,
    /// Name or address of the machine of rank 0; empty where MPI has to tell it.
    pub master_addr: String,
    /// The port on which rank 0 serves the rendezvous; 0 where MPI has to tell it.
    pub master_port: u16,
    /// The token that all ranks of this run share, and no other run.
    pub run_id: String,
    /// What the ranks of the job know and nobody else does, from `BURN_NCCL_SECRET`: at least 16 bytes in hexadecimal
    /// digits, the same for all ranks. burnrun gives it to its ranks.
    ///
    /// A connection is let in only when both sides have proven that they know it. Without one, as under torchrun,
    /// mpirun and srun unless the user sets it, the run token takes its place: that keeps jobs apart that meet by
    /// mistake, but whoever knows or guesses the token can join. In neither case are the data encrypted: on a
    /// network that others can read or change, use a tunnel.
    pub secret: Option<Secret>,
    /// Whether a launcher of MPI started the process, so that MPI can be initialized.
    pub mpi: bool,
}

impl Environment {
    /// Reads the environment of torchrun or burnrun, Open MPI, MPICH or SLURM; `None` if none of them is set.
    ///
    /// # Errors
    ///
    /// [`Error::EnvironmentIncomplete`] names what is missing; [`Error::EnvironmentInvalid`] what cannot be meant;
    /// [`Error::Secret`] a secret that is none.
    pub fn read() -> Result<Option<Self>> {
        Self::from_lookup(|name| std::env::var_os(name).map(legible))
    }

    /// As [`read`](Self::read) from any source of variables. An empty value counts as not set.
    pub fn from_lookup(lookup: impl Fn(&str) -> Option<String>) -> Result<Option<Self>> {
        Self::from_variables(&Variables { lookup: &present(&lookup), mpi_tells: crate::HAS_MPI })
    }

    /// By the rules of each launcher.
    fn from_variables(variables: &Variables<'_>) -> Result<Option<Self>> {
        let environment = if variables.any(&TORCHRUN[..4]) {
            variables.torchrun()?
        } else if variables.any(&OPEN_MPI.names) {
            variables.mpi(&OPEN_MPI)?
        } else if variables.is_hydra_process() {
            variables.mpi(&MPICH)?
        } else if variables.is_slurm_task() {
            variables.slurm()?
        } else if variables.any(&TORCHRUN) {
            // MASTER_ADDR or MASTER_PORT alone: someone means to run several processes.
            variables.torchrun()?
        } else {
            return Ok(None);
        };
        let secret = variables.get("BURN_NCCL_SECRET").map(|digits| Secret::from_hex(&digits)).transpose()?;
        Self { secret, ..environment }.validate().map(Some)
    }

    /// A place in a job that runs in this process alone.
    pub(crate) fn in_this_process(rank: usize, world_size: usize, port: u16, secret: Secret) -> Self {
        Self {
            rank,
            local_rank: rank,
            world_size,
            local_world_size: world_size,
            master_addr: "127.0.0.1".to_owned(),
            master_port: port,
            run_id: DEFAULT_RUN_ID.to_owned(),
            secret: Some(secret),
            mpi: false,
        }
    }

    fn validate(self) -> Result<Self> {
        let invalid = |name: &str, value: usize, expected: String| {
            Err(Error::EnvironmentInvalid { name: name.into(), value: value.to_string(), expected })
        };
        for (name, count) in [("WORLD_SIZE", self.world_size), ("LOCAL_WORLD_SIZE", self.local_world_size)] {
            if count == 0 {
                return invalid(name, 0, "at least 1".into());
            }
        }
        if self.local_world_size > self.world_size {
            let expected = format!("at most the world size, {}", self.world_size);
            return invalid("LOCAL_WORLD_SIZE", self.local_world_size, expected);
        }
        for (name, index, of, count) in [
            ("RANK", self.rank, "world size", self.world_size),
            ("LOCAL_RANK", self.local_rank, "local world size", self.local_world_size),
        ] {
            if index >= count {
                return invalid(name, index, format!("a number below the {of}, {count}"));
            }
        }
        Ok(self)
    }
}

/// The text of a value. One that is no text is refused by whoever reads it, as it would not be if it counted as not set: a
/// job whose secret cannot be read must not go on without one.
fn legible(value: std::ffi::OsString) -> String {
    value.into_string().unwrap_or_else(|value| value.to_string_lossy().into_owned())
}

/// An empty value counts as not set.
fn present(lookup: &dyn Fn(&str) -> Option<String>) -> impl Fn(&str) -> Option<String> {
    |name| lookup(name).map(|value| value.trim().to_owned()).filter(|value| !value.is_empty())
}

/// The folder that `BURN_NCCL_FLIGHT_RECORD` names for flight records.
pub(crate) fn flight_record_folder() -> Option<std::path::PathBuf> {
    std::env::var_os("BURN_NCCL_FLIGHT_RECORD").filter(|folder| !folder.is_empty()).map(Into::into)
}

/// Whether `BURN_NCCL_DEBUG=1` asks for checks in a release build.
pub(crate) fn debug_requested() -> bool {
    std::env::var("BURN_NCCL_DEBUG").is_ok_and(|value| value == "1")
}

/// What a variable of this crate names, such as a transport; the default where it is not set.
///
/// # Errors
///
/// [`Error::EnvironmentInvalid`] for a name that is none.
pub(crate) fn requested<T: std::str::FromStr<Err = String> + Default>(name: &str) -> Result<T> {
    match std::env::var(name) {
        Ok(value) if !value.trim().is_empty() => value
            .trim()
            .parse()
            .map_err(|expected| Error::EnvironmentInvalid { name: name.to_owned(), value, expected }),
        _ => Ok(T::default()),
    }
}

/// A variable that names a file, such as a library.
#[cfg(feature = "nccl")]
pub(crate) fn named_file(name: &str) -> Option<std::path::PathBuf> {
    std::env::var_os(name).filter(|path| !path.is_empty()).map(Into::into)
}

/// A variable of CUDA as it is. An empty one is not the same as none: an empty `CUDA_VISIBLE_DEVICES` hides every GPU.
#[cfg(feature = "nccl")]
pub(crate) fn cuda_variable(name: &str) -> Option<String> {
    std::env::var_os(name).map(legible)
}

const TORCHRUN: [&str; 6] =
    ["RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"];

/// The names of one launcher of MPI.
struct MpiNames {
    launcher: &'static str,
    /// Rank, world size, local rank, local world size.
    names: [&'static str; 4],
    /// What all processes of a job share and no other job, the first that is set.
    job: &'static [&'static str],
}

const OPEN_MPI: MpiNames = MpiNames {
    launcher: "Open MPI",
    names: [
        "OMPI_COMM_WORLD_RANK",
        "OMPI_COMM_WORLD_SIZE",
        "OMPI_COMM_WORLD_LOCAL_RANK",
        "OMPI_COMM_WORLD_LOCAL_SIZE",
    ],
    job: &["PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid"],
};
/// Hydra is the launcher of MPICH and its kin. It names no job.
const MPICH: MpiNames = MpiNames {
    launcher: "MPICH",
    names: ["PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"],
    job: &[],
};
/// What tells a task its place. A job's own shell has most of them too: see [`Variables::is_slurm_task`].
const SLURM: [&str; 5] =
    ["SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", "SLURM_NODEID", "SLURM_TASKS_PER_NODE"];
/// The largest step number that `srun` gives; those above are SLURM's own, such as that of salloc's shell (slurm.h).
const SLURM_LAST_STEP: u32 = 0xffff_fff0;

/// A view of the variables with the rules of each launcher.
struct Variables<'a> {
    lookup: &'a dyn Fn(&str) -> Option<String>,
    /// Whether processes that MPI can join need not be told where rank 0 is.
    mpi_tells: bool,
}

impl Variables<'_> {
    fn get(&self, name: &str) -> Option<String> {
        (self.lookup)(name)
    }

    fn any(&self, names: &[&str]) -> bool {
        names.iter().any(|name| self.get(name).is_some())
    }

    /// All of the names, or an error that tells the set from the missing.
    fn require(&self, launcher: &'static str, names: &[&str]) -> Result<()> {
        let (found, missing): (Vec<&str>, Vec<&str>) =
            names.iter().partition(|name| self.get(name).is_some());
        if missing.is_empty() {
            return Ok(());
        }
        Err(Error::EnvironmentIncomplete { launcher, found: listed(&found), missing: listed(&missing) })
    }

    fn number<T: std::str::FromStr>(&self, name: &str, expected: &str) -> Result<T> {
        let value = self.get(name).unwrap_or_default();
        value.parse().map_err(|_| invalid(name, &value, expected))
    }

    fn count(&self, name: &str) -> Result<usize> {
        self.number(name, "a number from 0")
    }

    fn port(&self) -> Result<u16> {
        match self.number("MASTER_PORT", "a port from 1 to 65535")? {
            0 => Err(invalid("MASTER_PORT", "0", "a port from 1 to 65535")),
            port => Ok(port),
        }
    }

    fn torchrun(&self) -> Result<Environment> {
        self.require("torchrun", &TORCHRUN)?;
        let (mut master_port, run_id) = (self.port()?, self.run_id(None));
        // torchrun's agent serves its own store on MASTER_PORT then. The ports after it are no choice: the agent takes
        // any free port, and the system gives its neighbours to the agent's own connections.
        if self.get("TORCHELASTIC_USE_AGENT_STORE").is_some_and(|value| value.eq_ignore_ascii_case("true")) {
            master_port = derived_port(hash(&format!("{master_port}/{run_id}")));
        }
        Ok(Environment {
            rank: self.count("RANK")?,
            local_rank: self.count("LOCAL_RANK")?,
            world_size: self.count("WORLD_SIZE")?,
            local_world_size: self.count("LOCAL_WORLD_SIZE")?,
            master_addr: self.get("MASTER_ADDR").unwrap_or_default(),
            master_port,
            run_id,
            secret: None,
            mpi: false,
        })
    }

    /// Whether Hydra started this process. SLURM sets PMI_RANK and PMI_SIZE as well, for tasks of its own; the other two are
    /// Hydra's alone, and where it works within SLURM its processes are not the tasks.
    fn is_hydra_process(&self) -> bool {
        self.any(&MPICH.names[2..]) || self.any(&MPICH.names) && !self.is_slurm_task()
    }

    fn mpi(&self, MpiNames { launcher, names, job }: &MpiNames) -> Result<Environment> {
        self.require(launcher, names)?;
        let (world_size, local_world_size) = (self.count(names[1])?, self.count(names[3])?);
        let job = job.iter().find_map(|name| self.get(name));
        let one_machine = world_size == local_world_size;
        let given = (self.get("MASTER_ADDR"), self.get("MASTER_PORT"));
        let (master_addr, master_port) = match given {
            (address, port) if self.mpi_tells && (address.is_none() || port.is_none()) => {
                (address.unwrap_or_default(), port.map_or(Ok(0), |_| self.port())?)
            }
            (address, _) => {
                let address = address.or_else(|| one_machine.then(|| "127.0.0.1".to_owned()));
                self.master(launcher, address, job.as_deref().map(hash))?
            }
        };
        Ok(Environment {
            rank: self.count(names[0])?,
            local_rank: self.count(names[2])?,
            world_size,
            local_world_size,
            master_addr,
            master_port,
            run_id: self.run_id(job),
            secret: None,
            mpi: true,
        })
    }

    /// Whether `srun` started this process as one of its tasks.
    ///
    /// The shell of `sbatch` or `salloc` has SLURM_PROCID=0 and the job's SLURM_NTASKS as well, and is alone: taken for
    /// rank 0 it would wait for ranks that nobody starts. Only tasks are in a step of the job.
    fn is_slurm_task(&self) -> bool {
        let in_step = match self.get("SLURM_STEP_ID") {
            Some(step) => step.parse().is_ok_and(|step: u32| step <= SLURM_LAST_STEP),
            None => self.slurm_job().is_none(),
        };
        in_step && self.get("SLURM_PROCID").is_some()
    }

    fn slurm_job(&self) -> Option<String> {
        self.get("SLURM_JOB_ID").or_else(|| self.get("SLURM_JOBID"))
    }

    fn slurm(&self) -> Result<Environment> {
        // A step may have fewer tasks than its job, whose number SLURM_NTASKS can be.
        let [tasks, tasks_per_node] =
            [("SLURM_STEP_NUM_TASKS", SLURM[1]), ("SLURM_STEP_TASKS_PER_NODE", SLURM[4])]
                .map(|(step, job)| if self.get(step).is_some() { step } else { job });
        self.require("SLURM", &[SLURM[0], tasks, SLURM[2]])?;
        let world_size = self.count(tasks)?;
        let local_world_size = if self.any(&[SLURM[3], tasks_per_node]) {
            self.require("SLURM", &[SLURM[3], tasks_per_node])?;
            self.slurm_local_world_size(tasks_per_node)?
        } else {
            // srun always tells; who sets only the ranks by hand has one machine.
            world_size
        };
        let nodes = self.get("SLURM_STEP_NODELIST").or_else(|| self.get("SLURM_JOB_NODELIST"));
        let address = self.get("MASTER_ADDR").or_else(|| nodes.as_deref().and_then(first_host));
        let job = self.slurm_job().map(|job| match self.get("SLURM_STEP_ID") {
            Some(step) => format!("{job}.{step}"),
            None => job,
        });
        let (master_addr, master_port) = self.master("SLURM", address, job.as_deref().map(hash))?;
        Ok(Environment {
            rank: self.count("SLURM_PROCID")?,
            local_rank: self.count("SLURM_LOCALID")?,
            world_size,
            local_world_size,
            master_addr,
            master_port,
            run_id: self.run_id(job),
            secret: None,
            mpi: false,
        })
    }

    fn slurm_local_world_size(&self, tasks_per_node: &str) -> Result<usize> {
        let list = self.get(tasks_per_node).unwrap_or_default();
        let node = self.count("SLURM_NODEID")?;
        tasks_on_node(&list, node)
            .ok_or_else(|| invalid(tasks_per_node, &list, &format!("a list with node {node}")))
    }

    /// Address and port of rank 0: given, or else derived from what all ranks of the job share.
    fn master(
        &self,
        launcher: &'static str,
        address: Option<String>,
        job: Option<u64>,
    ) -> Result<(String, u16)> {
        let port = match (self.get("MASTER_PORT"), job) {
            (Some(_), _) => Some(self.port()?),
            (None, Some(job)) => Some(derived_port(job)),
            (None, None) => None,
        };
        match (address, port) {
            (Some(address), Some(port)) => Ok((address, port)),
            (address, port) => {
                let missing: Vec<&str> =
                    [address.is_none().then_some("MASTER_ADDR"), port.is_none().then_some("MASTER_PORT")]
                        .into_iter()
                        .flatten()
                        .collect();
                let found = format!("the ranks of {launcher} are");
                Err(Error::EnvironmentIncomplete { launcher, found, missing: listed(&missing) })
            }
        }
    }

    /// The run token. A restarted run is another run: a straggler of the attempt before must not join it.
    fn run_id(&self, job: Option<String>) -> String {
        let given = self.get("BURN_NCCL_RUN_ID").or_else(|| {
            let run = self.get("TORCHELASTIC_RUN_ID")?;
            Some(match self.get("TORCHELASTIC_RESTART_COUNT") {
                Some(restart) => format!("{run}/{restart}"),
                None => run,
            })
        });
        given.or(job).unwrap_or_else(|| DEFAULT_RUN_ID.to_owned())
    }
}

/// Names for a sentence, with its verb: `RANK is`, `RANK, WORLD_SIZE are`.
fn listed(names: &[&str]) -> String {
    format!("{} {}", names.join(", "), if names.len() == 1 { "is" } else { "are" })
}

fn invalid(name: &str, value: &str, expected: &str) -> Error {
    Error::EnvironmentInvalid {
        name: name.to_owned(),
        value: value.to_owned(),
        expected: expected.to_owned(),
    }
}

/// A port for a job that has a number but no port of its own.
fn derived_port(job: u64) -> u16 {
    (DERIVED_PORT_BASE + job % DERIVED_PORTS) as u16
}

/// FNV-1a: the same on every rank and build, which the standard hasher does not promise.
fn hash(text: &str) -> u64 {
    text.bytes()
        .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3))
}

/// The first host of a SLURM node list: `node[03-05,9],gpu1` is `node03`.
fn first_host(list: &str) -> Option<String> {
    let end = list.find([',', '[']).unwrap_or(list.len());
    let (prefix, rest) = list.split_at(end);
    let Some(ranges) = rest.strip_prefix('[') else {
        return (!prefix.is_empty()).then(|| prefix.to_owned());
    };
    let (ranges, suffix) = ranges.split_once(']')?;
    let number = ranges.split([',', '-']).next()?;
    let suffix = suffix.split(',').next().unwrap_or_default();
    // A second bracket (`rack[1-2]node[1-4]`) has a first host of its own.
    let suffix = if suffix.is_empty() { String::new() } else { first_host(&rest[rest.find(']')? + 1..])? };
    Some(format!("{prefix}{number}{suffix}"))
}

/// The tasks on one node of a SLURM list: `4(x2),3` is 4, 4, 3.
fn tasks_on_node(list: &str, node: usize) -> Option<usize> {
    let mut first = 0;
    for part in list.split(',') {
        let (tasks, nodes) = match part.split_once("(x") {
            Some((tasks, nodes)) => (tasks, nodes.strip_suffix(')')?.parse().ok()?),
            None => (part, 1),
        };
        first += nodes;
        if node < first {
            return tasks.parse().ok();
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(variables: &str) -> Result<Option<Environment>> {
        read_where(variables, false)
    }

    /// As a program with MPI reads it, or one without.
    fn read_where(variables: &str, mpi_tells: bool) -> Result<Option<Environment>> {
        let pairs: Vec<(&str, &str)> =
            variables.split_whitespace().map(|pair| pair.split_once('=').expect("NAME=value")).collect();
        let lookup =
            |name: &str| pairs.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned());
        Environment::from_variables(&Variables { lookup: &present(&lookup), mpi_tells })
    }

    #[test]
    fn a_secret_that_is_no_text_is_an_error_and_not_the_lack_of_one() {
        use std::os::unix::ffi::OsStringExt;
        let bytes = [b"00112233445566778899aabbccddeeff".as_slice(), b"\xff"].concat();
        let secret = legible(std::ffi::OsString::from_vec(bytes));
        let found = read(&format!("{RUN} BURN_NCCL_SECRET={secret}"));
        assert!(found.is_err_and(|error| matches!(error, Error::Secret { .. })));
    }

    fn environment(ranks: [usize; 4], address: &str, port: u16, run_id: &str) -> Environment {
        let [rank, local_rank, world_size, local_world_size] = ranks;
        let (master_addr, run_id) = (address.to_owned(), run_id.to_owned());
        let (master_port, mpi) = (port, false);
        Environment {
            rank,
            local_rank,
            world_size,
            local_world_size,
            master_addr,
            master_port,
            run_id,
            secret: None,
            mpi,
        }
    }

    fn by_mpi(environment: Environment) -> Option<Environment> {
        Some(Environment { mpi: true, ..environment })
    }

    const RUN: &str =
        "RANK=3 LOCAL_RANK=1 WORLD_SIZE=4 LOCAL_WORLD_SIZE=2 MASTER_ADDR=10.0.0.1 MASTER_PORT=29500";
    const OMPI: &str = "OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_LOCAL_RANK=1 \
                        OMPI_COMM_WORLD_LOCAL_SIZE=2";
    const HYDRA: &str = "PMI_RANK=3 PMI_SIZE=4 MPI_LOCALRANKID=1 MPI_LOCALNRANKS=2";
    const TASK: &str = "SLURM_PROCID=5 SLURM_NTASKS=7 SLURM_LOCALID=1 SLURM_NODEID=1 SLURM_TASKS_PER_NODE=4,3 \
                        SLURM_JOB_ID=77 SLURM_STEP_ID=0 SLURM_JOB_NODELIST=n[07-08]";

    #[test]
    fn each_launcher_is_understood() {
        let torchrun = [3, 1, 4, 2];
        let cases: Vec<(String, Option<Environment>)> = vec![
            (String::new(), None),
            ("PATH=/bin SLURM_NTASKS=4 SLURM_JOB_ID=1".into(), None),
            ("RANK= WORLD_SIZE=".into(), None),
            (RUN.into(), Some(environment(torchrun, "10.0.0.1", 29500, "default"))),
            (format!("{RUN} {OMPI} {TASK}"), Some(environment(torchrun, "10.0.0.1", 29500, "default"))),
            (
                format!("{RUN} TORCHELASTIC_USE_AGENT_STORE=True TORCHELASTIC_RUN_ID=job"),
                Some(environment(torchrun, "10.0.0.1", 22279, "job")),
            ),
            (
                format!("{RUN} TORCHELASTIC_RUN_ID=job TORCHELASTIC_RESTART_COUNT=2"),
                Some(environment(torchrun, "10.0.0.1", 29500, "job/2")),
            ),
            (
                format!("{RUN} TORCHELASTIC_RUN_ID=job BURN_NCCL_RUN_ID=ours"),
                Some(environment(torchrun, "10.0.0.1", 29500, "ours")),
            ),
            (
                format!("{OMPI} MASTER_ADDR=head MASTER_PORT=3000"),
                by_mpi(environment([1, 1, 2, 2], "head", 3000, "default")),
            ),
            (
                format!("{OMPI} MASTER_PORT=3000"),
                by_mpi(environment([1, 1, 2, 2], "127.0.0.1", 3000, "default")),
            ),
            (
                format!("{HYDRA} MASTER_ADDR=head MASTER_PORT=3000"),
                by_mpi(environment([3, 1, 4, 2], "head", 3000, "default")),
            ),
            (format!("{TASK} MASTER_PORT=3000"), Some(environment([5, 1, 7, 3], "n07", 3000, "77.0"))),
        ];
        for (variables, expected) in cases {
            assert_eq!(read(&variables).unwrap(), expected, "{variables}");
        }
    }

    #[test]
    fn a_program_in_the_shell_of_a_slurm_job_is_alone_and_only_a_task_of_a_step_has_a_rank() {
        let shell = TASK.replace("PROCID=5", "PROCID=0").replace("SLURM_STEP_ID=0", "");
        for variables in [
            shell.clone(),
            shell.replace("SLURM_NTASKS=7", ""),
            shell.replace("SLURM_JOB_ID", "SLURM_JOBID"),
            // Step numbers of slurm.h: SLURM_INTERACTIVE_STEP and SLURM_BATCH_SCRIPT.
            format!("{shell} SLURM_STEP_ID=4294967290"),
            format!("{shell} SLURM_STEP_ID=4294967291"),
        ] {
            assert_eq!(read(&variables).unwrap(), None, "{variables}");
        }
        let master = "MASTER_ADDR=n07 MASTER_PORT=3000";
        let step = format!("{TASK} SLURM_STEP_NUM_TASKS=6 SLURM_STEP_TASKS_PER_NODE=4,2 {master}");
        assert_eq!(read(&step).unwrap(), Some(environment([5, 1, 6, 2], "n07", 3000, "77.0")));
        let bare = TASK.replace("SLURM_JOB_ID=77 SLURM_STEP_ID=0", master);
        assert_eq!(read(&bare).unwrap(), Some(environment([5, 1, 7, 3], "n07", 3000, "default")));
    }

    #[test]
    fn jobs_without_a_port_derive_one_that_differs_between_jobs_and_not_between_ranks() {
        let port = |variables: &str| read(variables).unwrap().unwrap().master_port;
        assert_eq!(port(TASK), port(&TASK.replace("PROCID=5", "PROCID=4")));
        assert_ne!(port(TASK), port(&TASK.replace("STEP_ID=0", "STEP_ID=1")));
        let mpi = |job: &str| port(&format!("{OMPI} PMIX_NAMESPACE={job}"));
        assert_ne!(mpi("prterun-a@1"), mpi("prterun-b@1"));
        assert!((15_000..25_000).contains(&mpi("prterun-a@1")));
    }

    #[test]
    fn under_a_launcher_of_mpi_a_program_with_mpi_need_not_be_told_where_rank_0_is() {
        for (ranks, place) in [(OMPI, [1, 1, 2, 2]), (HYDRA, [3, 1, 4, 2])] {
            for (given, address, port) in [("", "", 0), ("MASTER_ADDR=a", "a", 0), ("MASTER_PORT=7", "", 7)] {
                let expected = by_mpi(environment(place, address, port, "default"));
                assert_eq!(
                    read_where(&format!("{ranks} {given}"), true).unwrap(),
                    expected,
                    "{ranks} {given}"
                );
            }
            let both = format!("{ranks} MASTER_ADDR=a MASTER_PORT=7");
            assert_eq!(read_where(&both, true).unwrap(), read(&both).unwrap());
            assert!(read_where(&format!("{ranks} MASTER_PORT=x"), true).is_err());
        }
        assert!(read_where("MASTER_ADDR=a", true).is_err(), "no launcher of MPI is at work");
    }

    #[test]
    fn hydra_within_slurm_is_told_from_tasks_of_slurm_that_know_pmi() {
        let place = |variables: &str| {
            let environment = read(&format!("{variables} MASTER_ADDR=a MASTER_PORT=5")).unwrap().unwrap();
            (environment.rank, environment.world_size, environment.mpi)
        };
        assert_eq!(place(&format!("{TASK} {HYDRA}")), (3, 4, true));
        assert_eq!(place(&format!("{TASK} PMI_RANK=5 PMI_SIZE=7")), (5, 7, false));
    }

    #[test]
    fn a_half_set_environment_names_what_is_missing() {
        for (variables, missing) in [
            ("RANK=0", "WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR, MASTER_PORT are"),
            ("MASTER_ADDR=a", "RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_PORT are"),
            (&RUN.replace("MASTER_PORT", "OTHER"), "MASTER_PORT is"),
            (&OMPI.replace("WORLD_SIZE", "OTHER"), "OMPI_COMM_WORLD_SIZE is"),
            (&HYDRA.replace("MPI_LOCALRANKID", "OTHER"), "MPI_LOCALRANKID is"),
            ("PMI_RANK=0 PMI_SIZE=2", "MPI_LOCALRANKID, MPI_LOCALNRANKS are"),
            (HYDRA, "MASTER_ADDR, MASTER_PORT are"),
            (OMPI, "MASTER_PORT is"),
            (
                &OMPI.replace("LOCAL_SIZE=2", "LOCAL_SIZE=1").replace("LOCAL_RANK=1", "LOCAL_RANK=0"),
                "MASTER_ADDR, MASTER_PORT are",
            ),
            (&TASK.replace("SLURM_LOCALID", "OTHER"), "SLURM_LOCALID is"),
            (&TASK.replace("SLURM_JOB_NODELIST", "OTHER"), "MASTER_ADDR is"),
        ] {
            let text = read(variables).unwrap_err().to_string();
            assert!(text.contains(&format!("incomplete: {missing} not set")), "{variables}: {text}");
        }
    }

    #[test]
    fn values_that_cannot_be_meant_are_named() {
        for (from, to, name) in [
            ("RANK=3", "RANK=four", "RANK is `four`"),
            ("RANK=3", "RANK=-1", "RANK is `-1`"),
            ("RANK=3", "RANK=4", "RANK is `4`, expected a number below the world size, 4"),
            ("WORLD_SIZE=4", "WORLD_SIZE=0", "WORLD_SIZE is `0`, expected at least 1"),
            ("PORT=29500", "PORT=0", "MASTER_PORT is `0`"),
            ("PORT=29500", "PORT=70000", "MASTER_PORT is `70000`"),
        ] {
            let text = read(&RUN.replacen(from, to, 1)).unwrap_err().to_string();
            assert!(text.contains(name), "{text}");
        }
        let text = read(&RUN.replace("LOCAL_RANK=1", "LOCAL_RANK=2")).unwrap_err().to_string();
        assert!(
            text.contains("LOCAL_RANK is `2`, expected a number below the local world size, 2"),
            "{text}"
        );
    }

    #[test]
    fn every_launchers_ranks_take_the_secret_and_never_show_it() {
        let digits = "0123456789abcdef0123456789ABCDEF";
        for variables in [RUN, &format!("{OMPI} MASTER_PORT=5"), TASK] {
            let environment = read(&format!("{variables} BURN_NCCL_SECRET={digits}")).unwrap().unwrap();
            assert_eq!(environment.secret, Some(Secret::from_hex(digits).unwrap()));
            let shown = format!("{environment:?}");
            assert!(shown.contains("secret: Some(Secret(..))") && !shown.contains("0123"), "{shown}");
            let short = &digits[2..];
            let text = read(&format!("{variables} BURN_NCCL_SECRET={short}")).unwrap_err().to_string();
            assert!(text.contains("BURN_NCCL_SECRET has 30 digits") && !text.contains(short), "{text}");
        }
        assert_eq!(
            read(&format!("BURN_NCCL_SECRET={digits}")).unwrap(),
            None,
            "a secret alone makes no rank"
        );
    }

    #[test]
    fn slurms_three_names_of_the_ranks_are_one_machine() {
        let by_hand = "SLURM_PROCID=1 SLURM_LOCALID=1 SLURM_NTASKS=2 MASTER_ADDR=a MASTER_PORT=5";
        let environment = read(by_hand).unwrap().unwrap();
        assert_eq!((environment.rank, environment.world_size, environment.local_world_size), (1, 2, 2));
        let half = format!("{by_hand} SLURM_NODEID=0");
        assert!(read(&half).unwrap_err().to_string().contains("SLURM_TASKS_PER_NODE is not set"));
    }

    #[test]
    fn slurm_lists_are_read() {
        for (list, host) in [
            ("n1", Some("n1")),
            ("n1,n2", Some("n1")),
            ("node[03-05,9],gpu1", Some("node03")),
            ("a[2,4]-ib", Some("a2-ib")),
            ("rack[1-2]n[3-4]", Some("rack1n3")),
            ("", None),
            ("n[1", None),
        ] {
            assert_eq!(first_host(list).as_deref(), host, "{list}");
        }
        let tasks = |node| tasks_on_node("4(x2),3", node);
        assert_eq!([tasks(0), tasks(1), tasks(2), tasks(3)], [Some(4), Some(4), Some(3), None]);
        assert_eq!(tasks_on_node("4(x", 0), None);
    }
}
