//! Who is compared.

use std::fmt;
use std::path::{Path, PathBuf};
use std::process::Command;

use burn_nccl_inference::{EngineChoice, EngineKind};

use super::peer;

/// The programs that can run the network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Program {
    /// Burn, with the weights of the export.
    Burn,
    /// An engine of the deployment.
    Engine(EngineKind),
    /// The one that a deployment takes by itself.
    Default,
    /// One of Python's: `onnxruntime`, `torch`, `torchscript`.
    Python(&'static str),
}

/// A program with a number of threads.
#[derive(Clone, Debug)]
pub(super) struct Side {
    pub(super) program: Program,
    pub(super) threads: usize,
    python: Option<PathBuf>,
    onnxruntime: Option<PathBuf>,
}

/// Every program with each number of threads.
pub(super) fn all(
    threads: &[u16],
    python: Option<&Path>,
    onnxruntime: Option<&Path>,
    folder: &Path,
) -> Vec<Side> {
    let mut programs = vec![Program::Burn];
    programs.extend(EngineKind::ALL.map(Program::Engine));
    if python.is_some() {
        programs.extend(peer::PROGRAMS.map(Program::Python));
    }
    // Only what `export` has written is known to torchvision.
    let knows = |program: &Program| match program {
        Program::Burn => folder.join(crate::package::BURN_FILE).exists(),
        Program::Python(name) if *name != peer::ONNXRUNTIME => {
            folder.join(crate::package::WEIGHTS_FILE).exists()
        }
        _ => true,
    };
    programs.retain(knows);
    let side = |program, threads: &u16| Side {
        program,
        threads: usize::from(*threads),
        python: python.map(Path::to_path_buf),
        onnxruntime: onnxruntime.map(Path::to_path_buf),
    };
    programs.iter().flat_map(|program| threads.iter().map(move |threads| side(*program, threads))).collect()
}

impl Side {
    /// The engine that `serve` takes.
    pub(super) fn default_engine(threads: usize, onnxruntime: Option<&Path>) -> Self {
        let onnxruntime = onnxruntime.map(Path::to_path_buf);
        Self { program: Program::Default, threads, python: None, onnxruntime }
    }

    /// Whether the user has asked for it by name; otherwise it may be absent.
    pub(super) fn is_wanted(&self) -> bool {
        match self.program {
            Program::Burn | Program::Default | Program::Python(_) => true,
            Program::Engine(EngineKind::OnnxRuntime) => self.onnxruntime.is_some(),
            Program::Engine(_) => false,
        }
    }

    /// The process that runs it on the export in `folder`.
    pub(super) fn command(&self, folder: &Path, script: &Path) -> std::io::Result<Command> {
        let threads = self.threads.to_string();
        let mut command = match (self.program, &self.python) {
            (Program::Python(name), Some(python)) => {
                let mut command = Command::new(python);
                command.arg(script).args([name, &threads]).arg(folder);
                command
            }
            _ => self.worker(folder)?,
        };
        // Burn's own threads, and those of Python's libraries before they are told.
        command.env("RAYON_NUM_THREADS", &threads).env("OMP_NUM_THREADS", &threads);
        Ok(command)
    }

    fn worker(&self, folder: &Path) -> std::io::Result<Command> {
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["bench-worker", "--threads", &self.threads.to_string(), "--from"]).arg(folder);
        match self.program {
            Program::Engine(kind) => command.args(["--engine", kind.name()]),
            Program::Default => command.args(["--engine", EngineChoice::Auto.to_string().as_str()]),
            Program::Burn | Program::Python(_) => &mut command,
        };
        if let Some(library) = &self.onnxruntime {
            command.arg("--onnxruntime").arg(library);
        }
        Ok(command)
    }

    /// What to do when it fails.
    pub(super) fn remedy(&self) -> &'static str {
        match self.program {
            Program::Python(_) => {
                "give --peer-python the Python of an environment with torch, torchvision, safetensors and onnxruntime"
            }
            Program::Engine(EngineKind::OnnxRuntime) => {
                "leave out --onnxruntime, or give the path of its library"
            }
            _ => "check the export with recipe-resnet-export verify",
        }
    }
}

impl fmt::Display for Side {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.program {
            Program::Burn => write!(f, "Burn"),
            Program::Engine(kind) => write!(f, "{kind}"),
            Program::Default => write!(f, "the default engine"),
            Program::Python(name) => write!(f, "{name} (Python)"),
        }?;
        write!(f, " with {} thread{}", self.threads, if self.threads == 1 { "" } else { "s" })
    }
}
