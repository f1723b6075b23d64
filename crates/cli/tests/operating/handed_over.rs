//! Tests of listening sockets that outlive a server: a service manager keeps them, and the next server answers the
//! clients that have connected meanwhile.

use std::io::{IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::net::{TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

/// A service manager for one server: it passes sockets to the server, and receives its notifications.
pub(crate) struct Manager {
    dir: TempDir,
    notifications: UnixDatagram,
}

impl Manager {
    pub(crate) fn new() -> Self {
        let dir = TempDir::new().unwrap();
        let notifications = UnixDatagram::bind(dir.path().join("notify")).unwrap();
        notifications.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        Manager { dir, notifications }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Starts a server without a cache that listens on `address`. `socket` is its descriptor 3.
    fn start(&self, address: &str, socket: Option<OwnedFd>) -> Server {
        let program = Path::new(env!("CARGO_BIN_EXE_forebay"));
        self.start_with(program, address, &["--mode", "pass-through", "--sandbox", "strict"], socket)
    }

    /// Starts a server of this program with these flags.
    pub(crate) fn start_with(
        &self,
        program: &Path,
        address: &str,
        flags: &[&str],
        socket: Option<OwnedFd>,
    ) -> Server {
        let script = match socket {
            Some(_) => "exec 3<&0 </dev/null; LISTEN_FDS=1 LISTEN_PID=$$ exec \"$@\"",
            None => "exec \"$@\"",
        };
        let mut command = Command::new("sh");
        command.args(["-c", script, "sh"]).arg(program).arg("serve").arg(self.path("data"));
        command.args(flags).args(["--listen", address, "--state-dir"]).arg(self.path("state"));
        command.env("NOTIFY_SOCKET", self.path("notify"));
        command.stdin(socket.map_or_else(Stdio::null, Stdio::from)).stdout(Stdio::null());
        Server(command.stderr(std::fs::File::create(self.path("log")).unwrap()).spawn().unwrap())
    }

    /// Waits for the notification that begins with `text`, and returns the descriptor that came last until then.
    pub(crate) fn wait_for(&self, text: &str) -> Option<OwnedFd> {
        let mut kept = None;
        loop {
            let (message, descriptor) = self.receive();
            kept = descriptor.or(kept);
            if message.starts_with(text) {
                return kept;
            }
        }
    }

    fn receive(&self) -> (String, Option<OwnedFd>) {
        let mut bytes = [0; 4096];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut parts = [IoSliceMut::new(&mut bytes)];
        let received = recvmsg(&self.notifications, &mut parts, &mut control, RecvFlags::CMSG_CLOEXEC);
        let length = received.unwrap_or_else(|error| panic!("{error}: {}", log(self.dir.path()))).bytes;
        let descriptor = control.drain().find_map(|message| match message {
            RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
            _ => None,
        });
        (String::from_utf8_lossy(&bytes[..length]).into_owned(), descriptor)
    }
}

fn log(dir: &Path) -> String {
    std::fs::read_to_string(dir.join("log")).unwrap_or_default()
}

/// A server process. It is killed when this value is dropped.
pub(crate) struct Server(Child);

impl Server {
    pub(crate) fn end(mut self, signal: Signal) {
        kill_process(Pid::from_child(&self.0), signal).unwrap();
        self.0.wait().unwrap();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Connects and sends the call NULL of NFSv3.
fn call(address: &str) -> TcpStream {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let call = [1 << 31 | 40, 7, 0, 2, 100_003, 3, 0, 0, 0, 0, 0].map(u32::to_be_bytes);
    stream.write_all(call.as_flattened()).unwrap();
    stream
}

/// Reads the reply to [`call`].
#[track_caller]
fn answer(mut stream: TcpStream) {
    let mut reply = [0; 28];
    stream.read_exact(&mut reply).unwrap();
    assert_eq!(&reply[4..8], 7_u32.to_be_bytes());
}

#[test]
fn a_client_that_connects_while_no_server_runs_is_answered_by_the_next_one() {
    let manager = Manager::new();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let socket = || OwnedFd::from(listener.try_clone().unwrap());
    let early = call(&address);
    let server = manager.start(&address, Some(socket()));
    manager.wait_for("READY=1");
    answer(early);
    server.end(Signal::TERM);
    let between = call(&address);
    let server = manager.start(&address, Some(socket()));
    manager.wait_for("READY=1");
    answer(between);
    server.end(Signal::KILL);
    let after = call(&address);
    let _server = manager.start(&address, Some(socket()));
    manager.wait_for("READY=1");
    answer(after);
}

#[test]
fn a_server_gives_its_own_socket_to_the_service_manager_for_the_next_one() {
    let manager = Manager::new();
    // A port that is free for the moment.
    let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let server = manager.start(&address, None);
    let kept = manager.wait_for("READY=1").unwrap();
    answer(call(&address));
    server.end(Signal::TERM);
    let between = call(&address);
    let _server = manager.start(&address, Some(kept));
    manager.wait_for("READY=1");
    answer(between);
    assert!(!log(manager.dir.path()).contains("is not used"), "{}", log(manager.dir.path()));
}

#[test]
fn a_socket_for_another_address_is_refused_and_given_back() {
    let manager = Manager::new();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let other = listener.local_addr().unwrap();
    let _server = manager.start("127.0.0.1:0", Some(listener.into()));
    manager.wait_for(&format!("FDSTOREREMOVE=1\nFDNAME=nfs-127.0.0.1_{}", other.port()));
    manager.wait_for("READY=1");
    assert!(log(manager.dir.path()).contains(&format!("{other} is not used")), "{}", log(manager.dir.path()));
    assert!(TcpStream::connect(other).is_err(), "nothing listens there any more");
}
