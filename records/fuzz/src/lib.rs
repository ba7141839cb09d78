//! What the fuzz targets do with their input; `records/tests/records/hostile.rs` does the same in every test run.

pub mod readers;

pub use libfuzzer_sys::fuzz_target;
pub use tempfile;

/// The fuzz target of one of [`readers`].
#[macro_export]
macro_rules! target {
    ($reader:ident) => {
        static FOLDER: std::sync::LazyLock<$crate::tempfile::TempDir> = std::sync::LazyLock::new(|| {
            // In memory where there is such a folder: each input becomes a file.
            let shared_memory = std::path::Path::new("/dev/shm");
            let folder = if shared_memory.is_dir() { shared_memory.into() } else { std::env::temp_dir() };
            $crate::tempfile::tempdir_in(folder).expect("a temporary folder")
        });

        $crate::fuzz_target!(|bytes: &[u8]| $crate::readers::$reader(bytes, FOLDER.path()));
    };
}
