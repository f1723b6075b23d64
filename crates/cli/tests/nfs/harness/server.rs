//! A `forebay serve` for one test.

use std::ffi::OsString;
use std::io::{BufRead, BufReader, Write as _};
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

/// Path of the program under test.
pub(crate) const FOREBAY: &str = env!("CARGO_BIN_EXE_forebay");

/// Longest wait for readiness and exit. A working server needs milliseconds, so this bounds a failing test only.
const PATIENCE: Duration = Duration::from_secs(60);

/// The parameters of a server.
#[derive(Default)]
pub(crate) struct Serve {
    flags: Vec<String>,
    exports: Option<String>,
    data: Option<PathBuf>,
    uid: Option<u32>,
    forbidden: Vec<libc::c_long>,
    /// Contents of /etc/passwd and /etc/group.
    users: Option<[String; 2]>,
    /// The configuration of Kerberos.
    kerberos: Option<PathBuf>,
}

impl Serve {
    pub(crate) fn new() -> Self {
        Self::default()
    }

    /// Returns a server without squashing.
    pub(crate) fn unsquashed() -> Self {
        Self::new().flags(&["--squash", "none"])
    }

    /// Adds words to the command line.
    pub(crate) fn flags(mut self, flags: &[&str]) -> Self {
        self.flags.extend(flags.iter().map(|flag| flag.to_string()));
        self
    }

    /// Selects mode pass-through, regardless of the mode of other tests. For tests that examine or break the served
    /// directory.
    pub(crate) fn plain(self) -> Self {
        self.flags(&["--mode", "pass-through"])
    }

    /// Selects write-back with two small cache files in a directory of their own, [`Server::caches`].
    pub(crate) fn cached(self) -> Self {
        self.flags(&["--mode", "write-back"])
    }

    /// Serves the exports of a configuration file instead of one directory. In the text `@` stands for the test's
    /// directory.
    pub(crate) fn exports(mut self, toml: &str) -> Self {
        self.exports = Some(toml.to_owned());
        self
    }

    /// Sets the path that [`Server::data`] has if the export is elsewhere.
    pub(crate) fn data_at(mut self, path: &Path) -> Self {
        self.data = Some(path.to_owned());
        self
    }

    /// Runs the server as this user.
    pub(crate) fn run_as(mut self, uid: u32) -> Self {
        self.uid = Some(uid);
        self
    }

    /// Makes system calls fail with EPERM, as a service manager's filter does.
    pub(crate) fn forbid(mut self, calls: &[libc::c_long]) -> Self {
        self.forbidden = calls.to_vec();
        self
    }

    /// Sets the configuration of Kerberos.
    pub(crate) fn kerberos(mut self, config: &Path) -> Self {
        self.kerberos = Some(config.to_owned());
        self
    }

    /// Sets the contents of /etc/passwd and /etc/group that the server sees. Needs root.
    pub(crate) fn users(mut self, passwd: &str, group: &str) -> Self {
        self.users = Some([passwd.to_owned(), group.to_owned()]);
        self
    }

    /// Starts the server on a new directory.
    pub(crate) fn start(self) -> Server {
        self.start_on(|_| {})
    }

    /// Starts the server on a new directory after `prepare` has filled it. `prepare` gets the served directory.
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
            // Every caller may create objects in the root, unless a test changes that.
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
            kerberos: self.kerberos,
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
    /// Sends all output of stderr when the server has ended.
    said: Mutex<Receiver<String>>,
}

/// A running server and its directories. It ends when this value is dropped.
pub(crate) struct Server {
    home: TempDir,
    /// The served directory.
    pub(crate) data: PathBuf,
    /// The state directory.
    pub(crate) state: PathBuf,
    config: Option<PathBuf>,
    flags: Vec<String>,
    uid: Option<u32>,
    forbidden: Vec<libc::c_long>,
    notify: Option<PathBuf>,
    /// True if the server sees a user database of the test.
    has_users: bool,
    kerberos: Option<PathBuf>,
    running: Option<Running>,
}

/// A client of the control socket that works from another thread, also while the server starts.
pub(crate) struct Asker {
    state: PathBuf,
}

impl Asker {
    /// Runs a verb that must succeed and returns its output.
    #[track_caller]
    pub(crate) fn ask(&self, words: &[&str]) -> String {
        let output = self.try_ask(words);
        assert!(output.status.success(), "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }

    /// Runs a verb and returns its result.
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

/// Adds the running test to the file in `FOREBAY_TEST_RECORD`, for a run in another mode. A thread without the name of
/// a test adds `*`.
fn record_test() {
    let Some(path) = std::env::var_os("FOREBAY_TEST_RECORD") else { return };
    let thread = std::thread::current();
    let name = thread.name().filter(|name| name.contains("::")).unwrap_or("*");
    let mut file = std::fs::File::options().create(true).append(true).open(path).unwrap();
    file.write_all(format!("{name}\n").as_bytes()).unwrap();
}

impl Server {
    /// Returns a directory for the test, beside the served one.
    pub(crate) fn home(&self) -> &Path {
        self.home.path()
    }

    /// Returns the server to start: on a new state directory the older version in `FOREBAY_TEST_FIRST`, if that is set.
    fn binary(&self) -> OsString {
        let first = std::env::var_os("FOREBAY_TEST_FIRST");
        first.filter(|_| !self.state.join("verifier").exists()).unwrap_or_else(|| FOREBAY.into())
    }

    fn command(&self) -> Command {
        let mut command = Command::new(self.binary());
        command.args(["serve", "--listen", "127.0.0.1:0", "--state-dir"]).arg(&self.state);
        match &self.config {
            Some(config) => command.arg("--config").arg(config),
            None => command.arg(&self.data),
        };
        // A system call that is not on the server's list ends the server, and the test fails.
        command.args(["--sandbox", "strict"]).args(&self.flags);
        self.add_mode(&mut command);
        // Some hosts have TMPDIR on tmpfs.
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
        if let Some(config) = &self.kerberos {
            command.env("KRB5_CONFIG", config);
        }
        if let Some(socket) = &self.notify {
            command.env("NOTIFY_SOCKET", socket);
        }
        command.stdin(Stdio::null());
        command
    }

    /// Adds the mode for tests that do not set one: pass-through, or the mode in `FOREBAY_TEST_MODE`. A mode with a
    /// cache gets two small files.
    fn add_mode(&self, command: &mut Command) {
        let told = self.flags.iter().position(|flag| flag == "--mode").map(|at| self.flags[at + 1].clone());
        let mode = told.clone().or_else(|| std::env::var("FOREBAY_TEST_MODE").ok());
        let mode = mode.unwrap_or_else(|| "pass-through".to_owned());
        if told.is_none() {
            command.args(["--mode", &mode]);
            record_test();
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

    /// Replaces the exports of the configuration file, as [`Serve::exports`] has them.
    pub(crate) fn configure(&self, toml: &str) {
        let config = self.config.as_ref().unwrap();
        std::fs::write(config, toml.replace('@', self.home.path().to_str().unwrap())).unwrap();
    }

    /// Replaces the words of the command line, from the next start on.
    pub(crate) fn set_flags(&mut self, flags: &[&str]) {
        self.flags = flags.iter().map(|flag| flag.to_string()).collect();
    }

    /// Starts the server, which must refuse, and returns its message.
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

    /// Returns the two cache files of a server with a cache.
    pub(crate) fn caches(&self) -> [PathBuf; 2] {
        ["a", "b"].map(|name| self.home.path().join("caches").join(name))
    }

    /// Sets the socket of a service manager, from the next start on.
    pub(crate) fn notify(&mut self, socket: &Path) {
        self.notify = Some(socket.to_owned());
    }

    /// Returns a client of the control socket for use from another thread.
    pub(crate) fn asker(&self) -> Asker {
        Asker { state: self.state.clone() }
    }

    /// Runs a verb that must succeed and returns its output.
    #[track_caller]
    pub(crate) fn ask(&self, words: &[&str]) -> String {
        self.asker().ask(words)
    }

    /// Runs a verb and returns its result.
    pub(crate) fn try_ask(&self, words: &[&str]) -> std::process::Output {
        self.asker().try_ask(words)
    }

    /// Destages everything to the served directory.
    #[track_caller]
    pub(crate) fn flush(&self) {
        self.ask(&["flush", "--wait"]);
    }

    /// Starts the server on its directories, the first time or again.
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

    /// Returns the address on which the server listens.
    pub(crate) fn address(&self) -> SocketAddr {
        self.running().address
    }

    /// Returns a new connection that acts as root.
    pub(crate) fn connect(&self) -> Client {
        Client::connect(self.address())
    }

    /// Returns a new connection from another address of this host.
    pub(crate) fn connect_from(&self, from: [u8; 4]) -> Client {
        self.try_connect_from((from, 0).into()).unwrap()
    }

    /// Returns a new connection from an address and port of this host. Returns `None` if the port is in use.
    pub(crate) fn try_connect_from(&self, from: SocketAddr) -> Option<Client> {
        use rustix::net::{AddressFamily, SocketType, bind, connect, socket};
        let fd = socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
        bind(&fd, &from).ok()?;
        connect(&fd, &self.address()).ok()?;
        Some(Client::over(fd.into()))
    }

    /// Returns the server's process id.
    pub(crate) fn pid(&self) -> u32 {
        self.running().child.id()
    }

    /// Sends a signal to the server.
    pub(crate) fn signal(&self, signal: Signal) {
        let pid = Pid::from_child(&self.running().child);
        kill_process(pid, signal).unwrap();
    }

    /// Waits for the end. Returns the exit status and the output of stderr.
    pub(crate) fn wait(&mut self) -> (ExitStatus, String) {
        let mut running = self.running.take().unwrap();
        // The output ends when the process ends.
        let said = running.said.into_inner().unwrap().recv_timeout(PATIENCE).expect("the server did not end");
        (running.child.wait().unwrap(), said)
    }

    /// Stops the server as an administrator does.
    pub(crate) fn stop(&mut self) {
        self.signal(Signal::TERM);
        let (status, said) = self.wait();
        assert!(status.success(), "{status}: {said}");
    }

    /// Kills the server as a crash does.
    pub(crate) fn kill(&mut self) {
        self.signal(Signal::KILL);
        self.wait();
    }

    /// Stops and starts the server.
    pub(crate) fn restart(&mut self) {
        self.stop();
        self.start();
    }

    /// Returns the output of `forebay status --json`.
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

/// A guard that kills the server when it is dropped.
pub(crate) struct Killed<'a>(pub(crate) &'a Server);

impl Drop for Killed<'_> {
    fn drop(&mut self) {
        self.0.signal(Signal::KILL);
    }
}
