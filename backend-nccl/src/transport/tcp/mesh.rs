//! Connects every pair of ranks: each calls the lower ranks and is called by the higher ones.

use std::{net::TcpStream, sync::Arc, time::Duration};

use super::{Link, Tcp};
use crate::{
    Error, Result,
    deadline::Deadline,
    rendezvous::{Admission, Hello, Refusal, Rendezvous, Role, address_key, call},
};

/// How long one look at the listener may take before the deadline is looked at.
const TICK: Duration = Duration::from_millis(100);

/// The connections to one peer as they come.
#[derive(Debug, Default)]
struct Half {
    data: Option<TcpStream>,
    control: Option<TcpStream>,
}

impl Half {
    fn slot(&mut self, role: Role) -> Result<&mut Option<TcpStream>, Refusal> {
        match role {
            Role::Data => Ok(&mut self.data),
            Role::Control => Ok(&mut self.control),
            Role::Store => Err(Refusal::Stranger),
        }
    }
}

/// Builds the mesh of one rank through the rendezvous.
pub(crate) fn connect(rendezvous: &Rendezvous, deadline: Deadline) -> Result<Tcp> {
    let identity = rendezvous.identity;
    let (rank, world_size) = (identity.rank, identity.world_size);
    let (listener, published) = rendezvous.listen()?;
    rendezvous.store.set(&address_key(rank), published.as_bytes(), deadline)?;
    rendezvous.wait_for_all(deadline)?;

    let mut halves: Vec<Half> = (0..world_size).map(|_| Half::default()).collect();
    for (peer, half) in halves.iter_mut().enumerate().take(rank) {
        let published = rendezvous.store.get(&address_key(peer), deadline)?;
        let (host, port) = rendezvous.locate(peer, &published)?;
        for role in [Role::Data, Role::Control] {
            let target = format!("rank {peer}");
            let stream = call((&host, port), &target, &Hello::new(identity, role, peer)?, deadline)?;
            *half.slot(role).expect("data and control have slots") = Some(stream);
        }
    }
    accept_higher(&mut halves, Admission::new(listener, identity), rendezvous, deadline)?;

    let mut links = Vec::with_capacity(world_size - 1);
    for (peer, half) in halves.into_iter().enumerate() {
        if let Half { data: Some(data), control: Some(control) } = half {
            links.push(prepare(Link { rank: peer, data, control }).map_err(|source| Error::Listen {
                address: rendezvous.address.clone(),
                source: Arc::new(source),
            })?);
        }
    }
    Ok(Tcp::new(rank, world_size, identity.tag(), links))
}

/// Takes calls until every higher rank has made both of its.
fn accept_higher(
    halves: &mut [Half],
    mut admission: Admission,
    rendezvous: &Rendezvous,
    deadline: Deadline,
) -> Result<()> {
    let rank = rendezvous.identity.rank;
    loop {
        let missing: Vec<usize> = (rank + 1..halves.len())
            .filter(|peer| halves[*peer].data.is_none() || halves[*peer].control.is_none())
            .collect();
        if missing.is_empty() {
            return Ok(());
        }
        if deadline.expired() {
            let (world_size, address) = (halves.len(), rendezvous.address.clone());
            return Err(Error::MissingRanks { missing, world_size, address, waited: deadline.elapsed() });
        }
        let admitted = admission.admit(deadline.remaining_at_most(TICK), |hello| {
            let peer = hello.identity.rank;
            let free = halves[peer].slot(hello.role)?.is_none() && peer > rank;
            if free { Ok(()) } else { Err(Refusal::DuplicateRank) }
        });
        for (stream, hello) in admitted {
            if let Ok(slot) = halves[hello.identity.rank].slot(hello.role) {
                *slot = Some(stream);
            }
        }
    }
}

fn prepare(link: Link) -> std::io::Result<Link> {
    for stream in [&link.data, &link.control] {
        stream.set_nonblocking(true)?;
        stream.set_nodelay(true)?;
        unpace(stream);
    }
    Ok(link)
}

/// Takes pacing off a connection within one machine.
///
/// Where the system's congestion control paces what it sends (bbr), a loopback connection would wait for timers although
/// nothing on it can be congested. Not being allowed to change it costs speed only.
fn unpace(stream: &TcpStream) {
    if stream.peer_addr().is_ok_and(|peer| peer.ip().is_loopback()) {
        #[cfg(target_os = "linux")]
        let _ = socket2::SockRef::from(stream).set_tcp_congestion(b"reno");
    }
}
