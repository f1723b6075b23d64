//! User-mode Linux: Debian's kernel as a process of this host. Its programs run at the host's speed, and its system
//! calls cost some microseconds. It has one processor and no ublk.

use std::{
    ffi::OsString,
    fs,
    path::{Path, PathBuf},
    process::Command,
    sync::atomic::{AtomicUsize, Ordering},
    time::Duration,
};

use anyhow::{Context, Result, ensure};

use super::{
    Kernel,
    kernel::{IMAGE, download, take_modules, unpack},
};
use crate::process::{bounded, command, run};

/// Runs the kernel with a relay of its connections to the host's loopback.
const RELAYED: &str = include_str!("relayed.sh");

/// Source of a library that the kernel needs on a processor with AMX.
const WHOLE_STATE: &str = include_str!("../../assets/whole_state.c");

/// Runs the kernel with its processes on one processor, where they wake each other several times faster than on two.
/// All of them end with the kernel.
const ALONE: [&str; 6] = ["unshare", "--pid", "--fork", "--kill-child", "taskset", "--cpu-list"];

/// The settings of a guest.
pub(super) struct Settings<'a> {
    pub(super) kernel: &'a Kernel,
    /// Directory with the initramfs.
    pub(super) work: &'a Path,
    /// Memory in MiB.
    pub(super) memory: u32,
    /// True if the calling thread has a network for the guest alone. Otherwise connections are relayed.
    pub(super) has_network: bool,
    /// Time after which the guest is killed.
    pub(super) limit: Duration,
}

impl Settings<'_> {
    /// Returns the command that runs the guest. Its console is the file `console` in `work`, its output is stdout, and
    /// its exit status the file `status` in `work`. Further arguments are parameters of the kernel.
    pub(super) fn command(&self) -> Result<Command> {
        let mut arguments = self.arguments()?.into_iter();
        let mut machine = bounded(Some(self.limit), arguments.next().unwrap_or_default(), arguments);
        // The kernel has its memory in a file there.
        machine.env("TMPDIR", "/dev/shm").stderr(fs::File::create(self.work.join("console"))?);
        machine.env("LD_PRELOAD", self.whole_state()?);
        Ok(machine)
    }

    /// Compiles the library for processors with AMX. Returns its path.
    fn whole_state(&self) -> Result<PathBuf> {
        let (source, library) = (self.work.join("whole_state.c"), self.work.join("whole_state.so"));
        fs::write(&source, WHOLE_STATE)?;
        let mut compile = command("cc", ["-O2", "-Wall", "-Werror", "-shared", "-fPIC", "-o"]);
        run(compile.arg(&library).arg(&source))?;
        Ok(library)
    }

    /// Returns the program and its arguments.
    fn arguments(&self) -> Result<Vec<OsString>> {
        let text = self.work.to_string_lossy();
        ensure!(!text.contains(' '), "{text}: user-mode Linux needs a path without spaces");
        let processor = processor().to_string();
        let mut arguments: Vec<OsString> = Vec::new();
        let interface = if self.has_network {
            arguments.extend(ALONE.map(OsString::from));
            arguments.push(processor.into());
            "tap0"
        } else {
            arguments.extend(["sh", "-c", RELAYED, "sh", &processor].map(OsString::from));
            "tap1"
        };
        arguments.push(self.kernel.image.clone().into());
        // Without `depth` and `gro` the relayed network was seen to stop for ever. The cause is not known.
        let network = format!("vec0:transport=tap,ifname={interface},depth=128,gro=1");
        let settings = [
            format!("mem={}M", self.memory),
            format!("work={text}"),
            format!("initrd={text}/initramfs"),
            network,
        ];
        arguments.extend(settings.map(OsString::from));
        arguments.extend(
            ["con=null", "con0=null,fd:2", "ssl=null", "ssl0=null,fd:1", "quiet", "panic=-1", "seccomp=auto"]
                .map(OsString::from),
        );
        // A guest that cuts its power by a reboot ends, and is not run a second time.
        arguments.push("noreboot".into());
        Ok(arguments)
    }
}

/// Returns a processor of the host. Guests of one run have different ones.
fn processor() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    let count = std::thread::available_parallelism().map_or(1, usize::from);
    (count - 1 + NEXT.fetch_add(1, Ordering::Relaxed)) % count
}

/// Puts the kernel and its modules into `work/kernel`, which later becomes `dir`. A kernel of a release of Debian newer
/// than this machine's (`is_newer`) gets its own C library.
pub(super) fn fetch(
    options: &[OsString],
    wanted: &[&str],
    is_newer: bool,
    work: &Path,
    dir: &Path,
) -> Result<()> {
    let packages: &[&str] = if is_newer { &["user-mode-linux", "libc6"] } else { &["user-mode-linux"] };
    download(packages, options, work)?;
    unpack(work)?;
    let files = work.join("files/usr");
    let version =
        fs::read_dir(files.join("lib/uml/modules"))?.next().context("the package has no modules")??;
    take_modules(wanted, &version.path(), work)?;
    let image = work.join("kernel").join(IMAGE);
    fs::copy(files.join("bin/linux.uml"), &image)?;
    if is_newer {
        let library = work.join("kernel/lib");
        fs::rename(files.join("lib/x86_64-linux-gnu"), &library)?;
        let (library, loader) = (dir.join("lib"), dir.join("lib/ld-linux-x86-64.so.2"));
        let mut patch = command("patchelf", ["--set-interpreter"]);
        run(patch.arg(loader).arg("--set-rpath").arg(library).arg(image))?;
    }
    Ok(())
}
