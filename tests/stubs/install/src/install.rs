//! Gives a test doubles of its own: copies in a folder of their own, so that each is loaded anew and knows no other test.

use std::{
    ffi::OsString,
    io::{self, Read, Seek},
    path::{Path, PathBuf},
    process::{Command, ExitStatus},
    time::{Duration, Instant},
};

use libloading::{Library, Symbol};
use tempfile::TempDir;

use crate::{Config, elf};

/// Tells a process which doubles it was started with.
const FOLDER: &str = "BURN_NCCL_STUBS_FOLDER";
/// Where the loader looks for libraries that are loaded by name.
const LIBRARY_PATH: &str = "LD_LIBRARY_PATH";
/// The longest that a test in a process of its own may take.
const LONGEST: Duration = Duration::from_secs(120);

/// Why the doubles cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum InstallError {
    /// The libraries have not been built.
    #[error("{file} is not built (looked in {}); run cargo test --workspace, or build burn-nccl-stub-cuda and burn-nccl-stub-nccl", folders.join(", "))]
    NotBuilt {
        /// The file.
        file: String,
        /// Where it was looked for.
        folders: Vec<String>,
    },
    /// A function that is to be missing was never there.
    #[error("{file} has no function {symbol} that could be taken out")]
    NoSymbol {
        /// The file.
        file: String,
        /// The function.
        symbol: String,
    },
    /// The folder cannot be filled.
    #[error("cannot install the doubles: {0}")]
    Io(#[from] io::Error),
    /// A double cannot be loaded or asked.
    #[error("cannot ask the double at {path}: {reason}")]
    Ask {
        /// The library.
        path: PathBuf,
        /// Why.
        reason: String,
    },
}

/// Doubles of the driver and of NCCL in a folder of their own, which goes when this is dropped.
///
/// `libcuda.so.1` and `libcuda.so`, `libnccl.so.2` and `libnccl.so`, and `stub.json`. A process that loads them by path, or by
/// name with the folder in `LD_LIBRARY_PATH`, has one instance of each, however often it loads them.
#[derive(Debug)]
pub struct Stubs {
    folder: PathBuf,
    _own: Option<TempDir>,
}

impl Stubs {
    /// Copies the doubles to a new folder, with what they are told.
    ///
    /// # Errors
    ///
    /// [`InstallError`].
    pub fn install(config: &Config) -> Result<Self, InstallError> {
        let own = tempfile::Builder::new().prefix("burn-nccl-stubs-").tempdir()?;
        let folder = own.path().to_owned();
        copy("libstub_cuda.so", &folder, "libcuda.so.1", &config.cuda.missing)?;
        copy("libstub_nccl.so", &folder, "libnccl.so.2", &config.nccl.missing)?;
        std::os::unix::fs::symlink("libcuda.so.1", folder.join("libcuda.so"))?;
        std::os::unix::fs::symlink("libnccl.so.2", folder.join("libnccl.so"))?;
        std::fs::write(folder.join("stub.json"), text(config)?)?;
        Ok(Self { folder, _own: Some(own) })
    }

    /// Those that another process has installed; they stay its own.
    pub fn open(folder: &Path) -> Self {
        Self { folder: folder.to_owned(), _own: None }
    }

    /// Those that this process was started with by [`Self::run_test`]; none where it was started otherwise.
    pub fn of_process() -> Option<Self> {
        std::env::var_os(FOLDER).map(|folder| Self::open(Path::new(&folder)))
    }

    /// Runs an ignored test of this program in a process of its own, where libraries that are loaded by name are the doubles:
    /// for code that does not let itself be told a path, and that keeps what it has loaded. What the process said, if the
    /// test did not run or did not pass.
    ///
    /// # Errors
    ///
    /// What the process said; or why it could not be started.
    pub fn run_test(&self, name: &str) -> Result<(), String> {
        let program = std::env::current_exe().map_err(|error| error.to_string())?;
        let mut command = Command::new(program);
        command.args(["--ignored", "--exact", "--nocapture", name]).envs(self.environment());
        let (status, said) = ended(command).map_err(|error| error.to_string())?;
        // Without the count, a name that no test has would pass.
        match status.is_some_and(|status| status.success()) && said.contains("test result: ok. 1 passed") {
            true => Ok(()),
            false => Err(match status {
                Some(status) => format!("{name}: {status}\n{said}"),
                None => format!("{name}: killed after {} s\n{said}", LONGEST.as_secs()),
            }),
        }
    }

    /// The variables of a process where libraries that are loaded by name are the doubles; `of_process` finds them there.
    pub fn environment(&self) -> [(&'static str, OsString); 2] {
        let mut libraries = self.folder.clone().into_os_string();
        if let Some(others) = std::env::var_os(LIBRARY_PATH) {
            libraries.push(":");
            libraries.push(others);
        }
        [(LIBRARY_PATH, libraries), (FOLDER, self.folder.clone().into_os_string())]
    }

    /// The folder, for `LD_LIBRARY_PATH`.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// The double of the driver.
    pub fn cuda_path(&self) -> PathBuf {
        self.folder.join("libcuda.so.1")
    }

    /// The double of NCCL.
    pub fn nccl_path(&self) -> PathBuf {
        self.folder.join("libnccl.so.2")
    }

    /// What this process has done wrong with the doubles since the last call. Empty where all was right.
    ///
    /// # Errors
    ///
    /// [`InstallError::Ask`].
    pub fn faults(&self) -> Result<Vec<String>, InstallError> {
        let mut faults = taken(&self.cuda_path(), b"stub_cuda_faults\0")?;
        faults.extend(taken(&self.nccl_path(), b"stub_nccl_faults\0")?);
        Ok(faults)
    }

    /// Tells the doubles of this process something else from now on, and counts the calls of functions anew. The GPUs and the
    /// missing functions stay as installed.
    ///
    /// # Errors
    ///
    /// [`InstallError::Ask`].
    pub fn configure(&self, config: &Config) -> Result<(), InstallError> {
        let text = text(config)?;
        tell(&self.cuda_path(), b"stub_cuda_configure\0", &text)?;
        tell(&self.nccl_path(), b"stub_nccl_configure\0", &text)
    }
}

/// Runs a program to its end, or kills it when it takes too long; what it said on both outputs.
fn ended(mut command: Command) -> io::Result<(Option<ExitStatus>, String)> {
    // A file, and not pipes: they would stop a program that nobody reads.
    let mut said = tempfile::tempfile()?;
    let mut program = command.stdout(said.try_clone()?).stderr(said.try_clone()?).spawn()?;
    let start = Instant::now();
    let status = loop {
        match program.try_wait()? {
            Some(status) => break Some(status),
            None if start.elapsed() > LONGEST => break None,
            None => std::thread::sleep(Duration::from_millis(5)),
        }
    };
    if status.is_none() {
        program.kill()?;
        program.wait()?;
    }
    let mut text = Vec::new();
    said.rewind()?;
    said.read_to_end(&mut text)?;
    Ok((status, String::from_utf8_lossy(&text).into_owned()))
}

fn text(config: &Config) -> Result<Vec<u8>, InstallError> {
    serde_json::to_vec_pretty(config).map_err(|error| InstallError::Io(error.into()))
}

/// Copies a library that cargo has built, without some functions.
fn copy(built: &str, folder: &Path, name: &str, missing: &[String]) -> Result<(), InstallError> {
    let mut library = std::fs::read(find(built)?)?;
    for symbol in missing {
        if !elf::hide(&mut library, symbol) {
            return Err(InstallError::NoSymbol { file: built.to_owned(), symbol: symbol.clone() });
        }
    }
    std::fs::write(folder.join(name), library)?;
    Ok(())
}

/// Cargo puts the libraries of dependencies in `deps`, where tests are; programs and examples are beside that folder.
fn find(file: &str) -> Result<PathBuf, InstallError> {
    let program = std::env::current_exe()?;
    let beside = program.parent().unwrap_or(Path::new("."));
    let folders = [beside.to_owned(), beside.join("deps"), beside.join("../deps")];
    let found = folders.iter().map(|folder| folder.join(file)).find(|path| path.is_file());
    found.ok_or_else(|| InstallError::NotBuilt {
        file: file.to_owned(),
        folders: folders.iter().map(|folder| folder.display().to_string()).collect(),
    })
}

/// Loads a double and gives one of its functions to `ask`.
fn with<F, R>(
    path: &Path,
    function: &[u8],
    ask: impl FnOnce(&Symbol<'_, F>) -> R,
) -> Result<R, InstallError> {
    let refused =
        |error: libloading::Error| InstallError::Ask { path: path.to_owned(), reason: error.to_string() };
    // SAFETY: the doubles run nothing when they are loaded.
    let library = unsafe { Library::new(path) }.map_err(refused)?;
    // SAFETY: the callers below name the functions' types as the doubles define them.
    let function = unsafe { library.get::<F>(function) }.map_err(refused)?;
    Ok(ask(&function))
}

fn taken(path: &Path, function: &[u8]) -> Result<Vec<String>, InstallError> {
    type Faults = unsafe extern "C" fn(*mut u8, usize) -> usize;
    let mut buffer = vec![0_u8; 1 << 20];
    let len = with::<Faults, _>(path, function, |faults| {
        // SAFETY: the buffer is valid for its length.
        unsafe { faults(buffer.as_mut_ptr(), buffer.len()) }
    })?;
    let unread = |reason: String| InstallError::Ask { path: path.to_owned(), reason };
    let text = buffer.get(..len).ok_or_else(|| unread(format!("{len} bytes of faults")))?;
    serde_json::from_slice(text).map_err(|error| unread(error.to_string()))
}

fn tell(path: &Path, function: &[u8], text: &[u8]) -> Result<(), InstallError> {
    type Configure = unsafe extern "C" fn(*const u8, usize) -> i32;
    // SAFETY: the text is valid for its length.
    let code =
        with::<Configure, _>(path, function, |configure| unsafe { configure(text.as_ptr(), text.len()) })?;
    match code {
        0 => Ok(()),
        code => Err(InstallError::Ask { path: path.to_owned(), reason: format!("code {code}") }),
    }
}
