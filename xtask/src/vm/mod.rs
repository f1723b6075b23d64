//! A stock Linux client: Debian's kernel as user-mode Linux or in an emulated machine, with the host's root.
//!
//! The host's root comes read-only, under a tmpfs. Every program of the host runs in the guest, and its writes do not
//! last, except on NFS and in shares. The host's loopback is 10.0.2.2, and source ports are unprivileged. Emulation
//! without KVM is about ten times slower than the host, so it suits semantics and not figures.

mod cpio;
mod kernel;
mod network;
mod systemd;
mod user_mode;

pub(crate) use kernel::{Kernel, Release, unpacked};
pub(crate) use network::Network;
pub(crate) use systemd::{Booted, Disk};

use std::{
    ffi::OsString,
    fmt::Write as _,
    fs,
    path::{Path, PathBuf},
    process::ExitStatus,
    time::Duration,
};

use anyhow::{Context, Result, bail};
use clap::ValueEnum;

use crate::process::{self, TIMED_OUT, bounded, quoted};

/// Mount point of the export in the guest.
pub(crate) const MOUNT_POINT: &str = "/mnt";

/// Longest time until a guest has booted. An idle machine needs 4 s.
const BOOT: Duration = Duration::from_secs(120);

/// A kind of machine for a guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Machine {
    /// User-mode Linux: one processor, programs at the host's speed. Needs root and tap devices.
    #[value(name = "user-mode")]
    UserMode,
    /// Two processors emulated by qemu.
    #[value(name = "emulated")]
    Emulated,
}

impl Machine {
    /// Returns the faster kind that this host can run.
    pub(crate) fn here() -> Self {
        let is_able = rustix::process::geteuid().is_root() && Path::new("/dev/net/tun").exists();
        if is_able { Self::UserMode } else { Self::Emulated }
    }
}

/// Arguments of qemu for a network without privileges.
const USER_NETWORK: [&str; 2] = ["-nic", "user,model=virtio-net-pci,ipv6=off"];

/// Last line of `init.sh`.
const UP: &str = "The guest is up.";

/// A version of NFS.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Version {
    #[value(name = "3")]
    V3,
    #[value(name = "4.1")]
    V4_1,
    #[value(name = "4.2")]
    V4_2,
}

/// The export that the guest mounts at [`MOUNT_POINT`].
#[derive(Clone)]
pub(crate) struct NfsMount {
    pub(crate) version: Version,
    /// TCP port of NFS on the host's loopback.
    pub(crate) port: u16,
    /// TCP port of MOUNT; NFSv4 has none.
    pub(crate) mount_port: u16,
    pub(crate) export: String,
    /// Further mount options, separated by commas; empty for none.
    pub(crate) options: String,
}

/// One boot of the guest, for one command.
pub(crate) struct Guest {
    pub(crate) nfs: Option<NfsMount>,
    /// Directories of the host that the guest can write to, without caching, at the given path.
    pub(crate) shares: Vec<(PathBuf, String)>,
    /// Program and arguments, looked up in the host's root.
    pub(crate) command: Vec<String>,
    /// Time after which the guest is killed, including the boot.
    pub(crate) limit: Duration,
    /// Memory in MiB. It also contains everything written outside NFS.
    pub(crate) memory: u32,
    /// True if the guest needs file systems in images, or NFSv4. These modules are loaded in some seconds.
    pub(crate) all_modules: bool,
    pub(crate) machine: Machine,
    pub(crate) kernel: Release,
    /// The network between guest and host; without one, the guest's connections are relayed to the host's loopback.
    pub(crate) network: Option<Network>,
}

impl Guest {
    /// Boots, runs the command, and returns its exit status. `each` gets every line of its stdout and stderr.
    ///
    /// On a busy machine the emulation sometimes hangs, or the kernel panics, before the guest is up. The guest is
    /// then booted a second time.
    ///
    /// # Errors
    /// The guest did not boot, could not mount, was killed by its limit, or died.
    pub(crate) fn run(&self, mut each: impl FnMut(&[u8])) -> Result<i32> {
        let work = tempfile::Builder::new().prefix("guest-").tempdir_in(process::rigs_dir()?)?;
        let kernel = Kernel::ready(self.kernel, self.machine)?;
        fs::write(work.path().join("initramfs"), self.initramfs(&kernel)?)?;

        let ended = match self.boot(work.path(), &kernel, &mut each)? {
            Some(ended) => ended,
            None => {
                eprintln!("the guest did not come up within {} s: booting it again", BOOT.as_secs());
                let again = self.boot(work.path(), &kernel, &mut each)?;
                again
                    .with_context(|| format!("the guest did not boot; its console:\n{}", tail(work.path())))?
            }
        };
        let status = fs::read_to_string(work.path().join("status"))?;
        match status.trim().parse() {
            Ok(status) => Ok(status),
            Err(_) if ended.code() == Some(TIMED_OUT) => {
                bail!("the guest had not ended after {} s and was killed", self.limit.as_secs())
            }
            Err(_) => {
                bail!("the guest died ({} {ended}); its console:\n{}", status.trim(), tail(work.path()))
            }
        }
    }

    /// Runs the machine to its end. Returns `None` if the guest was not up in time.
    fn boot(&self, work: &Path, kernel: &Kernel, each: impl FnMut(&[u8])) -> Result<Option<ExitStatus>> {
        fs::write(work.join("status"), "")?;
        fs::write(work.join("console"), "")?;
        let up = || console(work).contains(UP);
        let mut machine = match self.machine {
            Machine::Emulated => bounded(Some(self.limit), "qemu-system-x86_64", self.arguments(kernel)),
            Machine::UserMode => {
                let (memory, limit, has_network) = (self.memory, self.limit, self.network.is_some());
                user_mode::Settings { kernel, work, memory, has_network, limit }.command()?
            }
        };
        let ended = process::lines_once_begun(machine.current_dir(work), BOOT, up, each)?;
        Ok(ended.filter(|_| up()))
    }

    /// Returns the initramfs: the script of the guest's start, the job, and the kernel's modules that the guest
    /// needs.
    fn initramfs(&self, kernel: &Kernel) -> Result<Vec<u8>> {
        let mut archive = cpio::Archive::new();
        archive.file("init", include_bytes!("init.sh"));
        archive.file("job", self.job().as_bytes());
        add_tools(&mut archive, kernel, self.all_modules)?;
        Ok(archive.finish())
    }

    /// Returns the script that the guest runs in its new root.
    fn job(&self) -> String {
        let mut job = String::from(
            "export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LC_ALL=C.UTF-8\n\
             cd /\n",
        );
        for (place, (directory, path)) in self.shares.iter().enumerate() {
            let path = quoted(path);
            let source = match self.machine {
                Machine::UserMode => format!("-t hostfs -o {} none", quoted(&directory.to_string_lossy())),
                Machine::Emulated => {
                    format!("-t 9p -o trans=virtio,version=9p2000.L,msize=262144,cache=none share{place}")
                }
            };
            let _ = writeln!(job, "mkdir -p {path} && mount {source} {path} || exit 1");
        }
        if let Some(nfs) = &self.nfs {
            let _ = writeln!(
                job,
                "mkdir -p {MOUNT_POINT} && mount -t nfs -o {} {} {MOUNT_POINT} || exit 1",
                quoted(&nfs.mount_options()),
                quoted(&format!("10.0.2.2:{}", nfs.export)),
            );
        }
        let words: Vec<_> = self.command.iter().map(|word| quoted(word)).collect();
        let _ = writeln!(job, "{}", words.join(" "));
        // An unmount waits for unwritten data, and its failure would be a finding.
        if self.nfs.is_some() {
            let _ = writeln!(
                job,
                "status=$?; cd /; umount {MOUNT_POINT} || {{ echo 'cannot unmount' >&2; exit 1; }}; exit $status"
            );
        }
        job
    }

    /// Returns the arguments of QEMU. The output of the job and its exit status come over serial ports of their own.
    fn arguments(&self, kernel: &Kernel) -> Vec<OsString> {
        let ports = [
            "-chardev file,id=output,path=/dev/stdout -device virtserialport,chardev=output,name=output",
            "-chardev file,id=status,path=status -device virtserialport,chardev=status,name=status",
        ];
        let mut arguments = machine(kernel, self.memory);
        let network = self.network.as_ref().map_or(USER_NETWORK, Network::arguments);
        arguments.extend(network.map(OsString::from));
        arguments.extend(ports.iter().flat_map(|words| words.split(' ')).map(OsString::from));
        for (place, (directory, _)) in self.shares.iter().enumerate() {
            let mut share = OsString::from("local,path=");
            share.push(directory);
            share.push(format!(",mount_tag=share{place},security_model=passthrough,multidevs=remap"));
            arguments.extend(["-virtfs".into(), share]);
        }
        arguments
    }
}

/// Adds the files that `init.sh` needs: busybox and the modules, all or only those for NFSv3.
fn add_tools(archive: &mut cpio::Archive, kernel: &Kernel, all_modules: bool) -> Result<()> {
    archive.directory("bin");
    archive.file("bin/busybox", &fs::read("/bin/busybox")?);
    archive.directory("modules");
    for module in kernel.modules(all_modules) {
        let name = module.file_name().unwrap_or_default().to_string_lossy();
        archive.file(&format!("modules/{name}"), &fs::read(module)?);
    }
    Ok(())
}

/// Returns the arguments of qemu for a machine with `memory` MiB whose root is the host's, without ports, shares and
/// disks.
fn machine(kernel: &Kernel, memory: u32) -> Vec<OsString> {
    let fixed = [
        "-nodefaults -no-user-config -display none -monitor none -no-reboot",
        "-machine q35 -accel tcg,thread=multi -cpu max,la57=off -smp 2 -rtc base=utc",
        "-initrd initramfs -serial file:console",
        "-device virtio-serial-pci",
        "-virtfs local,path=/,mount_tag=root,security_model=none,readonly=on,multidevs=remap",
    ];
    let mut arguments: Vec<OsString> = vec!["-m".into(), memory.to_string().into()];
    arguments.extend(["-kernel".into(), kernel.image.clone().into()]);
    arguments.extend(["-append", "console=ttyS0 quiet panic=-1 random.trust_cpu=on"].map(OsString::from));
    arguments.extend(fixed.iter().flat_map(|words| words.split(' ')).map(OsString::from));
    arguments
}

/// Returns the guest's console output, which does not include the command's output.
fn console(work: &Path) -> String {
    String::from_utf8_lossy(&fs::read(work.join("console")).unwrap_or_default()).into_owned()
}

/// Returns the last lines of the console output.
fn tail(work: &Path) -> String {
    let text = console(work);
    let lines: Vec<_> = text.lines().collect();
    lines[lines.len().saturating_sub(25)..].join("\n")
}

impl NfsMount {
    /// Returns the options of mount(8). Version and ports come first, so that further options may replace them.
    fn mount_options(&self) -> String {
        let Self { version, port, mount_port, options, .. } = self;
        let mut all = match version {
            Version::V3 => {
                format!("vers=3,proto=tcp,port={port},mountport={mount_port},mountproto=tcp,nolock")
            }
            Version::V4_1 => format!("vers=4.1,proto=tcp,port={port}"),
            Version::V4_2 => format!("vers=4.2,proto=tcp,port={port}"),
        };
        if !options.is_empty() {
            let _ = write!(all, ",{options}");
        }
        all
    }
}
