//! nfs-ganesha with its VFS back end, as the independent baseline. It needs root and Debian's packages nfs-ganesha,
//! nfs-ganesha-vfs and rpcbind.
//!
//! nfs-ganesha requires a port mapper. So the whole process first moves into private namespaces for network, mounts
//! (with a private /run) and processes. All ports are free there, and no child outlives the process.

use std::net::TcpStream;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::protocol::Version;
use crate::session::{Identity, Session};
use crate::url::Target;

/// Environment variable that is set in the process in the private namespaces.
const MOVED: &str = "FOREBAY_BENCH_PRIVATE_NETWORK";
const PORT: u16 = 2049;
const MOUNT_PORT: u16 = 20048;
/// The path of the export in NFSv4.
const PSEUDO: &str = "/forebay";
const START_TIMEOUT: Duration = Duration::from_secs(60);

/// A running nfs-ganesha. It ends when this value is dropped.
pub struct Ganesha {
    children: Vec<Child>,
    target: Target,
    version: Version,
}

/// Starts this program again with its arguments in private namespaces. Returns only in the process that is in them.
///
/// # Errors
/// The system refuses the namespaces, which need root.
pub fn move_to_private_network() -> Result<()> {
    if std::env::var_os(MOVED).is_some() {
        return Ok(());
    }
    let program = std::env::current_exe().context("the path of this program cannot be found")?;
    let script = "ip link set lo up && mount -t tmpfs tmpfs /run && exec \"$0\" \"$@\"";
    let error = Command::new("unshare")
        .args(["--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "sh", "-c", script])
        .arg(program)
        .args(std::env::args_os().skip(1))
        .env(MOVED, "1")
        .exec();
    Err(error).context("unshare(1) cannot be run")
}

impl Ganesha {
    /// Serves `dir` and waits until the export can be mounted. The process must be in the private namespaces.
    ///
    /// # Errors
    /// A package is missing or the server does not start.
    pub fn start(dir: &Path, version: Version) -> Result<Self> {
        let dir =
            dir.canonicalize().with_context(|| format!("the directory {} cannot be used", dir.display()))?;
        let export = dir.to_str().context("nfs-ganesha needs a path in UTF-8")?.to_owned();
        for folder in ["/run/ganesha", "/var/lib/nfs/ganesha"] {
            std::fs::create_dir_all(folder).with_context(|| format!("{folder} cannot be made"))?;
        }
        let (config, log) = ("/run/ganesha/forebay.conf", "/run/ganesha/forebay.log");
        std::fs::write(config, configuration(&export)).context("the configuration cannot be written")?;
        // NFSv4 has one tree of names for all exports.
        let export = if version == Version::V3 { export } else { PSEUDO.to_owned() };
        let target = Target {
            host: "127.0.0.1".to_owned(),
            port: Some(PORT),
            mount_port: Some(MOUNT_PORT),
            export,
            tls: None,
        };
        let mut ganesha = Self { children: Vec::new(), target, version };
        ganesha.spawn(Command::new("rpcbind").args(["-f", "-w"]))?;
        // nfs-ganesha ends at once if it finds no port mapper.
        let start = Instant::now();
        while TcpStream::connect(("127.0.0.1", 111)).is_err() {
            if start.elapsed() > START_TIMEOUT {
                bail!("rpcbind does not answer on port 111");
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        ganesha.spawn(Command::new("ganesha.nfsd").args([
            "-F",
            "-f",
            config,
            "-L",
            log,
            "-p",
            "/run/ganesha/pid",
        ]))?;
        ganesha.wait().with_context(|| {
            let log = std::fs::read_to_string(log).unwrap_or_default();
            let last = log.lines().rev().find(|line| line.contains("CRIT") || line.contains("MAJ"));
            format!("nfs-ganesha does not come up: {}", last.unwrap_or("its log has no message"))
        })?;
        Ok(ganesha)
    }

    /// Starts a program with its output discarded. The end of this value kills it.
    fn spawn(&mut self, command: &mut Command) -> Result<()> {
        let program = command.get_program().to_string_lossy().into_owned();
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        let child = child.with_context(|| {
            format!("{program} cannot be started; install nfs-ganesha, nfs-ganesha-vfs and rpcbind")
        })?;
        self.children.push(child);
        Ok(())
    }

    /// Tries to mount until a mount succeeds.
    fn wait(&mut self) -> Result<()> {
        let identity = Identity { uid: 0, machine_name: "bench".to_owned() };
        let start = Instant::now();
        loop {
            match Session::open(&self.target, self.version, &identity) {
                Ok(session) => {
                    session.close();
                    return Ok(());
                }
                Err(error) if start.elapsed() > START_TIMEOUT => return Err(error),
                Err(_) => {}
            }
            for child in &mut self.children {
                if let Some(status) = child.try_wait()? {
                    bail!("a process of nfs-ganesha has ended: {status}");
                }
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Returns the address of the export.
    #[must_use]
    pub const fn target(&self) -> &Target {
        &self.target
    }
}

impl Drop for Ganesha {
    fn drop(&mut self) {
        for child in self.children.iter_mut().rev() {
            // The process may have ended already, so errors are ignored.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Returns the configuration of nfs-ganesha for one export: no locks, no delegations, and no grace period, which
/// would delay a measurement.
fn configuration(export: &str) -> String {
    format!(
        "NFS_CORE_PARAM {{ NFS_Port = {PORT}; MNT_Port = {MOUNT_PORT}; Protocols = 3, 4; Enable_NLM = false; \
         Enable_RQUOTA = false; }}\n\
         NFSV4 {{ Graceless = true; Delegations = false; Minor_Versions = 1, 2; RecoveryBackend = fs; }}\n\
         EXPORT_DEFAULTS {{ Access_Type = RW; Squash = No_Root_Squash; SecType = sys; Transports = TCP; Protocols = 3, 4; }}\n\
         EXPORT {{ Export_Id = 1; Path = \"{export}\"; Pseudo = \"{PSEUDO}\"; FSAL {{ Name = VFS; }} }}\n"
    )
}
