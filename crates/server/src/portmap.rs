//! Port 111: registers with the rpcbind of this host, or answers GETPORT itself.

use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Weak};
use std::time::Duration;

use forebay_config::{Portmap, is_loopback};
use forebay_control::{EventLog, Severity};
use forebay_nfs::{Nfs, Ports};
use forebay_rpc::{Config, Handled, Message, Reply, Running, Server, Service};
use forebay_wire::portmap::PORT;

use crate::error::Error;
use crate::rpcbind::{self, Registration};
use crate::serve::{listen_error, start_error};
use crate::udp;

/// The use of port 111 while clients are served.
pub(crate) enum PortmapRole {
    /// None.
    Nowhere,
    /// Programs are registered with rpcbind.
    Registered(Registration),
    /// The server answers.
    Answering(Running),
}

impl PortmapRole {
    /// Lets clients find the programs as `how` says. With `auto` a failure is an event.
    pub(crate) fn begin(
        how: Portmap,
        listen: &[SocketAddr],
        ports: Ports,
        nfs: &Arc<Nfs>,
        events: &EventLog,
    ) -> Result<Self, Error> {
        let answer = || answer(listen, Portmapper { ports, nfs: Arc::downgrade(nfs) });
        let register = || Registration::begin(listen, ports).map(PortmapRole::Registered);
        match how {
            Portmap::Off => Ok(PortmapRole::Nowhere),
            Portmap::Answer => answer(),
            Portmap::Register => register(),
            Portmap::Auto if listen.iter().all(is_loopback) => Ok(PortmapRole::Nowhere),
            Portmap::Auto => {
                let found = if rpcbind::runs() { register() } else { answer() };
                found.or_else(|error| {
                    let message = format!(
                        "clients do not find NFS and its locks on port 111: {error}; mount with port, mountport and \
                         nolock, or serve with --portmap=off"
                    );
                    events.add(Severity::Warning, "portmap", message, &[]);
                    Ok(PortmapRole::Nowhere)
                })
            }
        }
    }

    /// Ends this role: withdraws the registration with rpcbind, or closes the portmapper's connections, for which it
    /// waits a second at most.
    pub(crate) fn end(self) {
        match self {
            PortmapRole::Nowhere => {}
            PortmapRole::Registered(registration) => registration.end(),
            PortmapRole::Answering(tcp) => tcp.shutdown(Duration::from_secs(1)),
        }
    }
}

/// The server's portmapper. It answers the addresses to which some export is open: an answer over UDP may be longer
/// than its question, and a forged address must not direct it to another host.
#[derive(Clone)]
struct Portmapper {
    ports: Ports,
    nfs: Weak<Nfs>,
}

impl Service for Portmapper {
    fn handle(&self, message: Message<'_>, reply: &mut Reply<'_>) -> Handled {
        self.ports.handle(message, reply)
    }

    fn admits(&self, address: IpAddr) -> bool {
        self.nfs.upgrade().is_some_and(|nfs| nfs.admits(address))
    }
}

/// Starts to answer on the addresses that NFS listens on.
fn answer(listen: &[SocketAddr], portmapper: Portmapper) -> Result<PortmapRole, Error> {
    let addresses: Vec<_> = listen.iter().map(|address| SocketAddr::new(address.ip(), PORT)).collect();
    let bound = |address: &SocketAddr| udp::bound(*address).map_err(|source| listen_error(*address, source));
    let sockets = addresses.iter().map(bound).collect::<Result<Vec<_>, _>>()?;
    let config = Config { threads: 1, max_record: 4096, max_connections: 256, ..Config::default() };
    let server = Server::bind(&addresses, config, Arc::new(portmapper.clone()));
    let tcp = server.and_then(Server::spawn).map_err(start_error)?;
    for socket in sockets {
        let portmapper = portmapper.clone();
        udp::serve("portmap-udp", socket, move |call, from, reply| {
            if portmapper.admits(from.ip()) {
                portmapper.ports.answer(call, reply);
            }
            true
        })?;
    }
    Ok(PortmapRole::Answering(tcp))
}
