//! Parts of a group that are groups of their own.

use std::sync::atomic::Ordering;

use super::{Place, ProcessGroup};
use crate::{
    Error, Result,
    deadline::Deadline,
    failure::Failure,
    transport::{self, Single},
};

/// What a rank says when its group is split.
#[derive(Debug, serde::Serialize, serde::Deserialize)]
struct Choice {
    color: Option<u32>,
    key: i64,
    /// Where it listens for the ranks of its part; a rank that cannot has a reason instead.
    port: std::result::Result<u16, String>,
}

impl ProcessGroup {
    /// Splits the group: ranks that give the same `color` form a group of their own, in which they are numbered by `key`,
    /// then by their rank here. A rank that gives no color joins none and gets `None`. Every rank of this group must
    /// make the call.
    ///
    /// The new group has its own connections, order and failures: its collectives may run at the same time as those of
    /// this group and of other parts, and a failure in one ends that one alone (a rank that dies ends every group it
    /// is in). Either may be dropped before the other. Options, local rank and local world size are this group's.
    /// (MPI: `MPI_Comm_split`; PyTorch: `new_group`.)
    ///
    /// # Errors
    ///
    /// What [`all_gather_bytes`](Self::all_gather_bytes) returns; as [`connect`](Self::connect) for the new group, and
    /// then this group is as it was.
    #[track_caller]
    pub fn split(&self, color: Option<u32>, key: i64) -> Result<Option<Self>> {
        let (inner, core) = (&self.inner, &self.inner.core);
        let place = |rank, world_size| Place {
            rank,
            world_size,
            local_rank: inner.local_rank,
            local_world_size: inner.local_world_size,
        };
        let options = core.options.clone();
        let name = |split, color| format!("{}.{split}-{color}", self.name());
        let Some(mesh) = core.transport.mesh() else {
            let split = inner.splits.fetch_add(1, Ordering::Relaxed);
            let part =
                |color| Self::new(name(split, color), Box::new(Single::default()), place(0, 1), options);
            return Ok(color.map(part));
        };
        let (listener, port) = match mesh.listen() {
            Ok((listener, port)) => (Some(listener), Ok(port)),
            // The others are about to wait for this rank, so it tells them.
            Err(error) => (None, Err(error.to_string())),
        };
        let own = serde_json::to_vec(&Choice { color, key, port }).expect("a choice is plain data");
        let choices = self.all_gather_bytes(&own)?;
        let split = inner.splits.fetch_add(1, Ordering::Relaxed);
        let Some(color) = color else { return Ok(None) };
        let members = self.members(&choices, color)?;
        let Some(listener) = listener else { unreachable!("a rank without a listener is not a member") };
        let wish = options.wish(core.rank)?;
        let label = format!("{split}/{color}");
        let name = name(split, color);
        let Some((mesh, connecting)) = mesh.part(&label, &members, listener) else {
            unreachable!("this rank has chosen this color")
        };
        let (rank, world_size) = (mesh.identity.rank, mesh.identity.world_size);
        if world_size == 1 {
            return Ok(Some(Self::new(name, Box::new(Single::default()), place(0, 1), options)));
        }
        let deadline = Deadline::after(options.connect_timeout);
        let transport = transport::connect(mesh, connecting, wish, deadline)?;
        Ok(Some(Self::new(name, Box::new(transport), place(rank, world_size), options)))
    }

    /// The ranks of one color with their ports, in the order of their new ranks.
    fn members(&self, choices: &[Vec<u8>], color: u32) -> Result<Vec<(usize, u16)>> {
        let failed = |rank, failure| Error::SetUp { rank, world_size: self.world_size(), failure };
        let mut members = Vec::new();
        for (rank, choice) in choices.iter().enumerate() {
            let choice: Choice = serde_json::from_slice(choice).map_err(|error| {
                failed(self.rank(), Failure::Protocol { rank, detail: error.to_string() })
            })?;
            if choice.color != Some(color) {
                continue;
            }
            let port = choice.port.map_err(|detail| {
                let action = "listen for the ranks of its new group".to_owned();
                failed(self.rank(), Failure::System { rank, action, detail })
            })?;
            members.push((choice.key, rank, port));
        }
        members.sort_unstable();
        Ok(members.into_iter().map(|(_, rank, port)| (rank, port)).collect())
    }
}
