//! A `forebay serve` of a test's own.

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Mutex;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use super::Client;

/// The program under test.
pub(crate) const FOREBAY: &str = env!("CARGO_BIN_EXE_forebay");

/// Only a bound on readiness and exit: a working server needs milliseconds.
const PATIENCE: Duration = Duration::from_secs(60);

/// How to start a server.
#[derive(Default)]
pub(crate) struct Serve {
    flags: Vec<String>,
    exports: Option<String>,
    data: Option<PathBuf>,
    uid: Option<u32>,
    forbidden: Vec<libc::c_long>,
    /// Contents of /etc/passwd and /etc/group.
    users: Option<[String; 2]>,
}

impl Serve {
    pub(crate) fn new() -> Self {
        Self::default()
    }

    /// A server at which root is root.
    pub(crate) fn unsquashed() -> Self {
        Self::new().flags(&["--squash", "none"])
    }

    /// Further words on the command line.
    pub(crate) fn flags(mut self, flags: &[&str]) -> Self {
        self.flags.extend(flags.iter().map(|flag| flag.to_string()));
        self
    }

    /// In mode pass-through whatever the other tests run in: for what looks at, or breaks, the served directory itself.
    pub(crate) fn plain(self) -> Self {
        self.flags(&["--mode", "pass-through"])
    }

    /// In write-back with two small cache files in a directory of their own, [`Server::caches`].
    pub(crate) fn cached(self) -> Self {
        self.flags(&["--mode", "write-back"])
    }

    /// The exports of a configuration file instead of one directory; `@` stands for the test's directory.
    pub(crate) fn exports(mut self, toml: &str) -> Self {
        self.exports = Some(toml.to_owned());
        self
    }

    /// What the test finds as [`Server::data`] where the export is elsewhere.
    pub(crate) fn data_at(mut self, path: &Path) -> Self {
        self.data = Some(path.to_owned());
        self
    }

    /// Runs the server as this user.
    pub(crate) fn run_as(mut self, uid: u32) -> Self {
        self.uid = Some(uid);
        self
    }

    /// System calls that fail with EPERM, as a service manager's filter has it.
    pub(crate) fn forbid(mut self, calls: &[libc::c_long]) -> Self {
        self.forbidden = calls.to_vec();
        self
    }

    /// The contents of /etc/passwd and /etc/group as the server sees them; needs root.
    pub(crate) fn users(mut self, passwd: &str, group: &str) -> Self {
        self.users = Some([passwd.to_owned(), group.to_owned()]);
        self
    }

    /// Starts it on a fresh directory.
    pub(crate) fn start(self) -> Server {
        self.start_on(|_| {})
    }

    /// Starts it on a directory that `prepare` has filled; it is given the served directory.
    pub(crate) fn start_on(self, prepare: impl FnOnce(&Path)) -> Server {
        let mut server = self.prepared_on(prepare);
        server.start();
        server
    }

    /// Makes its directories, and does not start it.
    pub(crate) fn prepared(self) -> Server {
        self.prepared_on(|_| {})
    }

    fn prepared_on(self, prepare: impl FnOnce(&Path)) -> Server {
        let home = tempfile::tempdir().unwrap();
        let state = home.path().join("state");
        std::fs::create_dir(&state).unwrap();
        std::fs::set_permissions(home.path(), PermissionsExt::from_mode(0o755)).unwrap();
        let data = self.data.unwrap_or_else(|| {
            let data = home.path().join("data");
            std::fs::create_dir(&data).unwrap();
            // Every caller may create in the root; tests that want otherwise say so.
            std::fs::set_permissions(&data, PermissionsExt::from_mode(0o777)).unwrap();
            data
        });
        if let Some(uid) = self.uid {
            for dir in [&data, &state] {
                std::os::unix::fs::chown(dir, Some(uid), Some(uid)).unwrap();
            }
        }
        prepare(&data);
        let config = self.exports.map(|toml| {
            let path = home.path().join("forebay.toml");
            std::fs::write(&path, toml.replace('@', home.path().to_str().unwrap())).unwrap();
            path
        });
        for (name, text) in ["passwd", "group"].iter().zip(self.users.iter().flatten()) {
            std::fs::write(home.path().join(name), text).unwrap();
        }
        Server {
            has_users: self.users.is_some(),
            home,
            data,
            state,
            config,
            flags: self.flags,
            uid: self.uid,
            forbidden: self.forbidden,
            notify: None,
            running: None,
        }
    }
}

fn is_in_memory(path: &Path) -> bool {
    const TMPFS: i64 = 0x0102_1994;
    rustix::fs::statfs(path).unwrap().f_type == TMPFS
}

struct Running {
    child: Child,
    address: SocketAddr,
    /// Everything said on stderr, once it has ended.
    said: Mutex<Receiver<String>>,
}

/// A running server and its directories; ends with the value.
pub(crate) struct Server {
    home: TempDir,
    /// The served directory.
    pub(crate) data: PathBuf,
    /// Its state directory.
    pub(crate) state: PathBuf,
    config: Option<PathBuf>,
    flags: Vec<String>,
    uid: Option<u32>,
    forbidden: Vec<libc::c_long>,
    notify: Option<PathBuf>,
    /// The server sees a user database of its own.
    has_users: bool,
    running: Option<Running>,
}

/// Asks a server with verbs from another thread, also while it starts.
pub(crate) struct Asker {
    state: PathBuf,
}

impl Asker {
    /// Asks with a verb; returns what it printed.
    #[track_caller]
    pub(crate) fn ask(&self, words: &[&str]) -> String {
        let output = self.try_ask(words);
        assert!(output.status.success(), "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }

    /// Asks with a verb, whatever comes of it.
    pub(crate) fn try_ask(&self, words: &[&str]) -> std::process::Output {
        Command::new(FOREBAY).args(words).arg("--state-dir").arg(&self.state).output().unwrap()
    }
}

/// A start that may not come to its end; killed with the value.
pub(crate) struct Starting(Child);

impl Starting {
    /// Ends it as an administrator does; returns the exit status and everything said on stderr.
    #[track_caller]
    pub(crate) fn end(mut self) -> (ExitStatus, String) {
        kill_process(Pid::from_child(&self.0), Signal::TERM).unwrap();
        let begun = std::time::Instant::now();
        let status = loop {
            match self.0.try_wait().unwrap() {
                Some(status) => break status,
                None => assert!(begun.elapsed() < PATIENCE, "the start does not end"),
            }
            std::thread::sleep(Duration::from_millis(10));
        };
        let said = std::io::read_to_string(self.0.stderr.take().unwrap()).unwrap();
        (status, said)
    }
}

impl Drop for Starting {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Server {
    /// A directory for the test's own use, beside the served one.
    pub(crate) fn home(&self) -> &Path {
        self.home.path()
    }

    fn command(&self) -> Command {
        let mut command = Command::new(FOREBAY);
        command.args(["serve", "--listen", "127.0.0.1:0", "--state-dir"]).arg(&self.state);
        match &self.config {
            Some(config) => command.arg("--config").arg(config),
            None => command.arg(&self.data),
        };
        // A system call that is not on the server's list ends it, and the test fails.
        command.args(["--sandbox", "strict"]).args(&self.flags);
        self.add_mode(&mut command);
        // Some run with TMPDIR on tmpfs.
        if is_in_memory(self.home.path()) {
            command.arg("--cache-in-memory");
        }
        if let Some(uid) = self.uid {
            command.uid(uid).gid(uid);
        }
        if self.has_users {
            super::database::show(&mut command, self.home());
        }
        super::filter::forbid(&mut command, &self.forbidden);
        if let Some(socket) = &self.notify {
            command.env("NOTIFY_SOCKET", socket);
        }
        command.stdin(Stdio::null());
        command
    }

    /// The mode of tests that do not care: pass-through, or with a cache of two small files, what
    /// `FOREBAY_TEST_MODE` says.
    fn add_mode(&self, command: &mut Command) {
        let told = self.flags.iter().position(|flag| flag == "--mode").map(|at| self.flags[at + 1].clone());
        let mode = told.clone().or_else(|| std::env::var("FOREBAY_TEST_MODE").ok());
        let mode = mode.unwrap_or_else(|| "pass-through".to_owned());
        if told.is_none() {
            command.args(["--mode", &mode]);
        }
        if mode == "pass-through" || self.flags.iter().any(|flag| flag == "--cache") {
            return;
        }
        let caches = self.caches();
        std::fs::create_dir_all(caches[0].parent().unwrap()).unwrap();
        if let Some(uid) = self.uid {
            std::os::unix::fs::chown(caches[0].parent().unwrap(), Some(uid), Some(uid)).unwrap();
        }
        command.args(["--cache-size", "64MiB", "--ram", "16MiB"]);
        for cache in caches {
            command.arg("--cache").arg(cache);
        }
    }

    /// Other words on the command line, from the next start on.
    pub(crate) fn set_flags(&mut self, flags: &[&str]) {
        self.flags = flags.iter().map(|flag| flag.to_string()).collect();
    }

    /// What is said instead of starting.
    pub(crate) fn refusal(&self) -> String {
        let mut child = self.command().stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        let mut stderr = BufReader::new(child.stderr.take().unwrap());
        let mut said = String::new();
        while stderr.read_line(&mut said).unwrap() > 0 {
            if said.contains("Listening on ") {
                child.kill().unwrap();
            }
        }
        assert_eq!(child.wait().unwrap().code(), Some(1), "{said}");
        said
    }

    /// The two cache files of a server with a cache.
    pub(crate) fn caches(&self) -> [PathBuf; 2] {
        ["a", "b"].map(|name| self.home.path().join("caches").join(name))
    }

    /// From the next start on, a service manager listens at this socket.
    pub(crate) fn notify(&mut self, socket: &Path) {
        self.notify = Some(socket.to_owned());
    }

    /// Returns a client of the control socket that can ask from another thread.
    pub(crate) fn asker(&self) -> Asker {
        Asker { state: self.state.clone() }
    }

    /// Asks it with a verb; returns what it printed.
    #[track_caller]
    pub(crate) fn ask(&self, words: &[&str]) -> String {
        self.asker().ask(words)
    }

    /// The same, whatever comes of it.
    pub(crate) fn try_ask(&self, words: &[&str]) -> std::process::Output {
        self.asker().try_ask(words)
    }

    /// Lets the served directory have everything.
    #[track_caller]
    pub(crate) fn flush(&self) {
        self.ask(&["flush", "--wait"]);
    }

    /// Starts the server (again) on the same directories.
    pub(crate) fn start(&mut self) {
        assert!(self.running.is_none());
        let mut child = self.command().stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        let stderr = BufReader::new(child.stderr.take().unwrap());
        let (send_address, address) = channel();
        let (send_said, said) = channel();
        std::thread::spawn(move || {
            let mut all = String::new();
            for line in stderr.lines().map_while(Result::ok) {
                let listening = line.strip_prefix("Listening on ").and_then(|line| line.split(", ").next());
                if let Some(address) = listening.and_then(|address| address.parse::<SocketAddr>().ok()) {
                    let _ = send_address.send(address);
                }
                all.push_str(&line);
                all.push('\n');
            }
            drop(send_address);
            let _ = send_said.send(all);
        });
        let Ok(address) = address.recv_timeout(PATIENCE) else {
            let _ = child.kill();
            panic!("the server did not start: {}", said.recv().unwrap_or_default());
        };
        self.running = Some(Running { child, address, said: Mutex::new(said) });
    }

    /// Begins to start it, and does not wait for anything.
    pub(crate) fn begin_to_start(&self) -> Starting {
        Starting(self.command().stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap())
    }

    fn running(&self) -> &Running {
        self.running.as_ref().unwrap()
    }

    /// Where it listens.
    pub(crate) fn address(&self) -> SocketAddr {
        self.running().address
    }

    /// A new connection, acting as root.
    pub(crate) fn connect(&self) -> Client {
        Client::connect(self.address())
    }

    /// A new connection from another address of this host.
    pub(crate) fn connect_from(&self, from: [u8; 4]) -> Client {
        use rustix::net::{AddressFamily, SocketType, bind, connect, socket};
        let fd = socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
        bind(&fd, &SocketAddr::from((from, 0))).unwrap();
        connect(&fd, &self.address()).unwrap();
        Client::over(fd.into())
    }

    /// Its process.
    pub(crate) fn pid(&self) -> u32 {
        self.running().child.id()
    }

    /// Sends a signal.
    pub(crate) fn signal(&self, signal: Signal) {
        let pid = Pid::from_child(&self.running().child);
        kill_process(pid, signal).unwrap();
    }

    /// Waits for the end; returns the exit status and what was said on stderr.
    pub(crate) fn wait(&mut self) -> (ExitStatus, String) {
        let mut running = self.running.take().unwrap();
        // stderr ends with the process.
        let said = running.said.into_inner().unwrap().recv_timeout(PATIENCE).expect("the server did not end");
        (running.child.wait().unwrap(), said)
    }

    /// Stops it as an administrator does.
    pub(crate) fn stop(&mut self) {
        self.signal(Signal::TERM);
        let (status, said) = self.wait();
        assert!(status.success(), "{status}: {said}");
    }

    /// Kills it as a crash does.
    pub(crate) fn kill(&mut self) {
        self.signal(Signal::KILL);
        self.wait();
    }

    /// Stops and starts it.
    pub(crate) fn restart(&mut self) {
        self.stop();
        self.start();
    }

    /// What `forebay status --json` says.
    pub(crate) fn status(&self) -> serde_json::Value {
        serde_json::from_str(&self.ask(&["status", "--json"])).unwrap()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Some(mut running) = self.running.take() {
            let _ = running.child.kill();
            let _ = running.child.wait();
            if std::thread::panicking() {
                eprintln!(
                    "server: {}",
                    running.said.into_inner().unwrap().recv_timeout(PATIENCE).unwrap_or_default()
                );
            }
        }
    }
}
