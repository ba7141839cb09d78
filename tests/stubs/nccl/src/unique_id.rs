//! The 128 bytes that name a communicator: here, where its hub listens.

use std::{
    io,
    os::{
        linux::net::SocketAddrExt,
        unix::net::{SocketAddr, UnixListener, UnixStream},
    },
    sync::atomic::{AtomicU64, Ordering},
    time::{SystemTime, UNIX_EPOCH},
};

/// `NCCL_UNIQUE_ID_BYTES`.
pub(crate) const LEN: usize = 128;
const MAGIC: &[u8] = b"burn-nccl stub id\0";

/// `ncclUniqueId`: passed by value.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct UniqueId(pub(crate) [u8; LEN]);

/// A new id, with the socket it names. The name is in no folder, so nothing is left behind.
pub(crate) fn listen() -> io::Result<(UniqueId, UnixListener)> {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let next = NEXT.fetch_add(1, Ordering::Relaxed);
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos();
    let name = format!("burn-nccl-stub-{}-{next}-{now}", std::process::id());
    let listener = UnixListener::bind_addr(&SocketAddr::from_abstract_name(&name)?)?;
    let mut id = [0; LEN];
    id[..MAGIC.len()].copy_from_slice(MAGIC);
    id[MAGIC.len()..][..name.len()].copy_from_slice(name.as_bytes());
    // The last byte shows that all of them have come.
    id[LEN - 1] = 0x5a;
    Ok((UniqueId(id), listener))
}

impl UniqueId {
    /// What is wrong with it, if anything: every byte must be as it was made.
    pub(crate) fn check(&self) -> Result<(), String> {
        let name = self.0.strip_prefix(MAGIC).ok_or("it does not come from ncclGetUniqueId")?;
        let len = name.iter().position(|&byte| byte == 0).ok_or("its end is missing")?;
        match name[len..].split_last() {
            Some((0x5a, zeros)) if zeros.iter().all(|&byte| byte == 0) => Ok(()),
            _ => Err("its last bytes are not as they were made".into()),
        }
    }

    /// Connects to the hub.
    pub(crate) fn connect(&self) -> io::Result<UnixStream> {
        let name = &self.0[MAGIC.len()..];
        let len = name.iter().position(|&byte| byte == 0).unwrap_or_default();
        UnixStream::connect_addr(&SocketAddr::from_abstract_name(&name[..len])?)
    }
}
