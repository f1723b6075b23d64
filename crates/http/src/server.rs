//! The listener: one thread accepts, and each connection has a thread of its own.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use forebay_common::lock::{Condvar, Mutex};
use forebay_config::Http;
use forebay_control::{Handler, Severity};
use forebay_tls::Keyring;

use crate::access::Door;
use crate::channel::Channel;
use crate::live;
use crate::request::Request;
use crate::response::Response;
use crate::routes::{Answer, answer};
use crate::web::Web;

/// Most connections served at once. A further connection gets an error.
const MOST: usize = 64;
/// Of these, connections of one address. One client leaves places for others.
const MOST_OF_ONE: usize = 48;
/// Streams of events.
const MOST_LIVE: usize = 24;
/// Of these, streams of one address.
const MOST_LIVE_OF_ONE: usize = 18;
/// Time between two attempts to listen on an address in use.
const RETRY: Duration = Duration::from_secs(5);
/// Longest time that a stop waits for requests in progress.
const LAST: Duration = Duration::from_secs(2);

/// The parts that every request reads.
pub(crate) struct Served {
    pub(crate) web: Arc<Web>,
    pub(crate) handler: Arc<dyn Handler>,
    /// The certificate in force, for HTTPS.
    keyring: Arc<Keyring>,
    shared: Arc<Shared>,
}

impl Served {
    /// Returns true if the server stops.
    pub(crate) fn is_stopping(&self) -> bool {
        self.shared.stopping.load(Ordering::SeqCst)
    }
}

#[derive(Debug, Default)]
struct Shared {
    stopping: AtomicBool,
    live: Mutex<Places>,
    connections: Mutex<Places>,
    changed: Condvar,
    /// The socket in service, which a stop shuts down.
    listener: Mutex<Option<TcpListener>>,
}

/// HTTP in service. Dropping it ends the service, after up to 2 seconds for requests in progress.
#[derive(Debug)]
pub struct Listener {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl Listener {
    /// Serves `web` at the address of its settings, with the certificate of `keyring` if they ask for HTTPS. Returns
    /// at once, and never fails for the address: while it is in use, an event and [`Web::trouble`] say so, and it is
    /// tried again every 5 seconds. Without settings, serves nothing.
    ///
    /// # Errors
    /// The system refuses a thread.
    pub fn start(web: &Arc<Web>, handler: Arc<dyn Handler>, keyring: Arc<Keyring>) -> io::Result<Listener> {
        let shared = Arc::new(Shared::default());
        let Some(settings) = web.settings.clone() else { return Ok(Listener { shared, thread: None }) };
        let served = Arc::new(Served { web: web.clone(), handler, keyring, shared: shared.clone() });
        let run = move || listen(&settings, &served);
        let thread = std::thread::Builder::new().name("forebay-http".into()).spawn(run)?;
        Ok(Listener { shared, thread: Some(thread) })
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.shared.stopping.store(true, Ordering::SeqCst);
        if let Some(listener) = &*self.shared.listener.lock() {
            // Wakes the accepting thread.
            let _ = rustix::net::shutdown(listener, rustix::net::Shutdown::Both);
        }
        let connections = self.shared.connections.lock();
        self.shared.changed.notify_all();
        drop(self.shared.changed.wait_while_for(connections, LAST, |places| places.taken > 0));
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Listens until the stop.
fn listen(settings: &Http, served: &Arc<Served>) {
    let shared = &served.shared;
    while !served.is_stopping() {
        match open(settings, served) {
            Ok((listener, door)) => {
                if served.web.listening(Ok(door.address)) {
                    let message =
                        format!("metrics and the page are served at {}{}/", door.scheme, door.address);
                    served.handler.events().add(Severity::Info, "http", message, &[]);
                }
                accept(&listener, &Arc::new(door), served);
                return;
            }
            Err(trouble) => {
                if served.web.listening(Err(trouble.clone())) {
                    served.handler.events().add(Severity::Warning, "http", trouble, &[]);
                }
            }
        }
        let connections = shared.connections.lock();
        drop(shared.changed.wait_while_for(connections, RETRY, |_| !shared.stopping.load(Ordering::SeqCst)));
    }
}

/// Opens the listening socket. The error is a sentence.
fn open(settings: &Http, served: &Served) -> Result<(TcpListener, Door), String> {
    let wanted = settings.listen;
    let failed = |error: io::Error| match error.kind() {
        io::ErrorKind::AddrInUse => format!(
            "HTTP is not served: port {} on {} is in use; stop the program that uses it, or set `listen` under [http]",
            wanted.port(),
            wanted.ip()
        ),
        _ => format!("HTTP is not served: cannot listen on {wanted}: {error}; set `listen` under [http]"),
    };
    let listener = TcpListener::bind(wanted).map_err(failed)?;
    let door = served.web.door(settings, listener.local_addr().map_err(failed)?)?;
    *served.shared.listener.lock() = Some(listener.try_clone().map_err(failed)?);
    Ok((listener, door))
}

/// Accepts connections until the server stops, and starts a thread for each. A connection beyond the limits gets the
/// status 503.
fn accept(listener: &TcpListener, door: &Arc<Door>, served: &Arc<Served>) {
    while !served.is_stopping() {
        let (stream, from) = match listener.accept() {
            Ok(accepted) => accepted,
            Err(_) if served.is_stopping() => return,
            Err(_) => {
                // The usual cause is a lack of file descriptors. Without a pause the loop would spin until one is free.
                std::thread::sleep(Duration::from_millis(100));
                continue;
            }
        };
        let Some(connection) = Connection::enter(served, from.ip()) else {
            // A handshake would hold up other clients.
            if !is_secured(served) {
                let full = Response::error(503, "too many requests are served already; ask again");
                let _ = full.send(&mut Channel::plain(&stream), true);
            }
            continue;
        };
        let door = door.clone();
        let serve = move || serve(&stream, from, &door, &connection);
        let _ = std::thread::Builder::new().name("forebay-http-one".into()).spawn(serve);
    }
}

/// Places that are taken, by address.
#[derive(Debug, Default)]
struct Places {
    taken: usize,
    by: HashMap<IpAddr, usize>,
}

impl Places {
    /// Takes a place for `address`. Returns false if all of `most` places are taken, or `most_of_one` by this address.
    fn take(&mut self, address: IpAddr, most: usize, most_of_one: usize) -> bool {
        let of_one = self.by.get(&address).copied().unwrap_or(0);
        let has_room = self.taken < most && of_one < most_of_one;
        if has_room {
            self.taken += 1;
            self.by.insert(address, of_one + 1);
        }
        has_room
    }

    /// Frees the place of a connection that has ended.
    fn give_back(&mut self, address: IpAddr) {
        self.taken -= 1;
        match self.by.get_mut(&address) {
            Some(count @ 2..) => *count -= 1,
            _ => drop(self.by.remove(&address)),
        }
    }
}

/// A connection that is counted until this value is dropped.
struct Connection {
    served: Arc<Served>,
    address: IpAddr,
}

impl Connection {
    /// Takes a place for a connection. `None` if all places are taken, or this address has taken its share.
    fn enter(served: &Arc<Served>, address: IpAddr) -> Option<Self> {
        let has_room = served.shared.connections.lock().take(address, MOST, MOST_OF_ONE);
        has_room.then(|| Connection { served: served.clone(), address })
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.served.shared.connections.lock().give_back(self.address);
        self.served.shared.changed.notify_all();
    }
}

/// Reads one request from the connection and answers it. The live stream goes on for at most an hour, or until the
/// client hangs up or the server stops.
fn is_secured(served: &Served) -> bool {
    served.web.settings.as_ref().is_some_and(|settings| settings.tls)
}

fn serve(stream: &TcpStream, from: SocketAddr, door: &Door, connection: &Connection) {
    let served = &connection.served;
    let channel = match is_secured(served) {
        true => served.keyring.http_session().and_then(|session| Channel::secured(stream, session)),
        false => Some(Channel::plain(stream)),
    };
    let Some(mut channel) = channel else { return };
    // A client that has gone away is no fault.
    let _ = match Request::read(&mut channel) {
        Err(refused) => refused.map_or(Ok(()), |refused| refused.send(&mut channel, true)),
        Ok(request) => match answer(&request, from, door, served) {
            Answer::Whole(response) => response.send(&mut channel, request.method != "HEAD"),
            Answer::Live => follow(&mut channel, from.ip(), served),
        },
    };
    channel.end();
}

/// Sends the stream of events, if there are not too many streams.
fn follow(channel: &mut Channel<'_>, address: IpAddr, served: &Served) -> io::Result<()> {
    let live = &served.shared.live;
    if !live.lock().take(address, MOST_LIVE, MOST_LIVE_OF_ONE) {
        return Response::error(503, "too many pages are open already; close one").send(channel, true);
    }
    let result = live::follow(channel, served);
    live.lock().give_back(address);
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_address_leaves_places_for_others_and_gives_its_own_back() {
        let mut places = Places::default();
        let [one, other] = [IpAddr::from([192, 0, 2, 1]), IpAddr::from([192, 0, 2, 2])];
        let mut fill = |address| (0..).take_while(|_| places.take(address, MOST, MOST_OF_ONE)).count();
        assert_eq!((fill(one), fill(other)), (48, 16));
        (0..48).for_each(|_| places.give_back(one));
        assert!(places.take(other, MOST, MOST_OF_ONE));
        (0..17).for_each(|_| places.give_back(other));
        assert!(places.taken == 0 && places.by.is_empty());
    }
}
