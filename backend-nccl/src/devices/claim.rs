//! Ranks that look for a free GPU at the same time, so that no two of them take the same.

use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};

/// A GPU that this process has marked as its own for other processes of this crate, until it is dropped or the process ends.
///
/// Memory alone would not tell: a process that has chosen a GPU has none of its memory yet. The mark is a name in the kernel
/// (an abstract socket), so it is atomic, leaves no file behind and ends with the process. It holds among the processes of
/// one machine and one network namespace; between containers with networks of their own, memory has to tell.
#[derive(Debug)]
pub struct GpuClaim {
    _name: UnixListener,
}

impl GpuClaim {
    /// Marks the GPU with this UUID; `None` where another process, or another claim of this one, has it.
    ///
    /// # Errors
    ///
    /// Where the kernel has no such names for this process.
    pub fn take(uuid: &str) -> io::Result<Option<Self>> {
        let name = SocketAddr::from_abstract_name(format!("burn-nccl/gpu/{uuid}"))?;
        match UnixListener::bind_addr(&name) {
            Ok(listener) => Ok(Some(Self { _name: listener })),
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => Ok(None),
            Err(error) => Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gpu_is_claimed_once_until_the_claim_is_dropped() {
        let uuid = format!("GPU-test-{}", std::process::id());
        let claim = GpuClaim::take(&uuid).unwrap().unwrap();
        assert!(GpuClaim::take(&uuid).unwrap().is_none());
        assert!(GpuClaim::take(&format!("{uuid}-other")).unwrap().is_some());
        drop(claim);
        assert!(GpuClaim::take(&uuid).unwrap().is_some());
    }

    #[test]
    fn of_many_that_ask_at_once_each_gets_another_gpu() {
        let uuids: Vec<String> = (0..4).map(|gpu| format!("GPU-race-{}-{gpu}", std::process::id())).collect();
        let barrier = std::sync::Barrier::new(4);
        let rank = || {
            barrier.wait();
            let found =
                uuids.iter().enumerate().find_map(|(gpu, uuid)| Some((gpu, GpuClaim::take(uuid).unwrap()?)));
            found.unwrap()
        };
        let claims: Vec<(usize, GpuClaim)> = std::thread::scope(|scope| {
            let ranks: Vec<_> = (0..4).map(|_| scope.spawn(rank)).collect();
            ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
        });
        let mut taken: Vec<usize> = claims.iter().map(|(gpu, _)| *gpu).collect();
        taken.sort_unstable();
        assert_eq!(taken, [0, 1, 2, 3]);
    }
}
