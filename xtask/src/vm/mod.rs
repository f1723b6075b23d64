//! A stock Linux client: Debian's kernel in an emulated machine whose root is the host's root.
//!
//! The host's root comes over 9p, read-only, under a tmpfs: every program of the host runs in the guest and nothing it
//! writes lasts, except on NFS and in shares. The host's loopback is 10.0.2.2 and source ports are unprivileged.
//! Emulation without KVM is about ten times slower than the host: good for semantics, not for figures.

mod cpio;
mod kernel;
mod systemd;

pub(crate) use kernel::Kernel;
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

use crate::process::{self, TIMED_OUT, bounded, quoted};

/// Where the guest mounts the export.
pub(crate) const MOUNT_POINT: &str = "/mnt";

/// A guest is given so long to come up; it takes 4 s on an idle machine.
const BOOT: Duration = Duration::from_secs(120);

/// What `init.sh` prints last.
const UP: &str = "The guest is up.";

/// What the guest mounts at [`MOUNT_POINT`].
#[derive(Clone)]
pub(crate) struct NfsMount {
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
    /// Directories of the host that the guest sees, writable and uncached, at the given path.
    pub(crate) shares: Vec<(PathBuf, String)>,
    /// Program and arguments, looked up in the host's root.
    pub(crate) command: Vec<String>,
    /// The guest is killed after this long, boot included.
    pub(crate) limit: Duration,
    /// Memory in MiB. Everything written outside NFS lives in it.
    pub(crate) memory: u32,
}

impl Guest {
    /// Boots, runs the command, and returns its exit status; `each` gets every line of its stdout and stderr.
    ///
    /// Emulation on a busy machine now and then hangs, or the kernel panics, before the guest is up; it is then booted once
    /// more.
    ///
    /// # Errors
    /// The guest did not boot, could not mount, was killed by its limit, or died.
    pub(crate) fn run(&self, mut each: impl FnMut(&[u8])) -> Result<i32> {
        let work = tempfile::Builder::new().prefix("guest-").tempdir_in(process::rigs_dir()?)?;
        let kernel = Kernel::ready()?;
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

    /// Runs the machine to its end; `None` if it was not up in time.
    fn boot(&self, work: &Path, kernel: &Kernel, each: impl FnMut(&[u8])) -> Result<Option<ExitStatus>> {
        fs::write(work.join("status"), "")?;
        fs::write(work.join("console"), "")?;
        let up = || console(work).contains(UP);
        let mut qemu = bounded(Some(self.limit), "qemu-system-x86_64", self.arguments(kernel));
        let ended = process::lines_once_begun(qemu.current_dir(work), BOOT, up, each)?;
        Ok(ended.filter(|_| up()))
    }

    fn initramfs(&self, kernel: &Kernel) -> Result<Vec<u8>> {
        let mut archive = cpio::Archive::new();
        archive.file("init", include_bytes!("init.sh"));
        archive.file("job", self.job().as_bytes());
        add_tools(&mut archive, kernel)?;
        Ok(archive.finish())
    }

    /// The script that the guest runs in its new root.
    fn job(&self) -> String {
        let mut job = String::from(
            "export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LC_ALL=C.UTF-8\n\
             cd /\n",
        );
        for (place, (_, path)) in self.shares.iter().enumerate() {
            let path = quoted(path);
            let _ = writeln!(
                job,
                "mkdir -p {path} && mount -t 9p -o trans=virtio,version=9p2000.L,msize=262144,cache=none share{place} \
                 {path} || exit 1",
            );
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
        // An unmount waits for what is still to be written, and its failure would be a finding.
        if self.nfs.is_some() {
            let _ = writeln!(
                job,
                "status=$?; cd /; umount {MOUNT_POINT} || {{ echo 'cannot unmount' >&2; exit 1; }}; exit $status"
            );
        }
        job
    }

    fn arguments(&self, kernel: &Kernel) -> Vec<OsString> {
        let ports = [
            "-chardev file,id=output,path=/dev/stdout -device virtserialport,chardev=output,name=output",
            "-chardev file,id=status,path=status -device virtserialport,chardev=status,name=status",
        ];
        let mut arguments = machine(kernel, self.memory);
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

/// Adds what `init.sh` needs: busybox, and the modules.
fn add_tools(archive: &mut cpio::Archive, kernel: &Kernel) -> Result<()> {
    archive.directory("bin");
    archive.file("bin/busybox", &fs::read("/bin/busybox")?);
    archive.directory("modules");
    for module in &kernel.modules {
        let name = module.file_name().unwrap_or_default().to_string_lossy();
        archive.file(&format!("modules/{name}"), &fs::read(module)?);
    }
    Ok(())
}

/// The arguments of qemu for a machine with `memory` MiB whose root is the host's, without ports, shares and disks.
fn machine(kernel: &Kernel, memory: u32) -> Vec<OsString> {
    let fixed = [
        "-nodefaults -no-user-config -display none -monitor none -no-reboot",
        "-machine q35 -accel tcg,thread=multi -cpu max,la57=off -smp 2 -rtc base=utc",
        "-initrd initramfs -serial file:console",
        "-nic user,model=virtio-net-pci,ipv6=off",
        "-device virtio-serial-pci",
        "-virtfs local,path=/,mount_tag=root,security_model=none,readonly=on,multidevs=remap",
    ];
    let mut arguments: Vec<OsString> = vec!["-m".into(), memory.to_string().into()];
    arguments.extend(["-kernel".into(), kernel.image.clone().into()]);
    arguments.extend(["-append", "console=ttyS0 quiet panic=-1 random.trust_cpu=on"].map(OsString::from));
    arguments.extend(fixed.iter().flat_map(|words| words.split(' ')).map(OsString::from));
    arguments
}

/// What the guest printed besides the command's output.
fn console(work: &Path) -> String {
    String::from_utf8_lossy(&fs::read(work.join("console")).unwrap_or_default()).into_owned()
}

/// The last lines of it.
fn tail(work: &Path) -> String {
    let text = console(work);
    let lines: Vec<_> = text.lines().collect();
    lines[lines.len().saturating_sub(25)..].join("\n")
}

impl NfsMount {
    fn mount_options(&self) -> String {
        let Self { port, mount_port, options, .. } = self;
        let mut all = format!("vers=3,proto=tcp,port={port},mountport={mount_port},mountproto=tcp,nolock");
        if !options.is_empty() {
            let _ = write!(all, ",{options}");
        }
        all
    }
}
