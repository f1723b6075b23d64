//! A guest that boots like a present-day server: systemd and udev from the host's root, and disks. The disks are virtio
//! devices in qemu, and ubd devices in user-mode Linux.

use std::{
    ffi::OsString,
    fmt::Write as _,
    fs,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use anyhow::{Context, Result, bail};

use super::{BOOT, Kernel, Machine, Release, UP, console, cpio, tail, user_mode};
use crate::process::{self, bounded};

/// The message of `init.sh` if the script before systemd fails.
const UNPREPARED: &str = "The preparations failed.";

/// A disk of the guest: `/dev/disk/by-id/virtio-SERIAL`.
pub(crate) struct Disk {
    /// Image with the contents of the disk.
    pub(crate) image: PathBuf,
    /// Serial number, at most 20 characters.
    pub(crate) serial: String,
}

/// One boot into systemd. The guest ends the boot itself, possibly by cutting its power.
pub(crate) struct Booted {
    /// Disks in the order in which the guest finds them.
    pub(crate) disks: Vec<Disk>,
    /// Shell script that runs in the guest's root before systemd.
    pub(crate) prepare: String,
    /// Time after which the guest is killed, including the boot.
    pub(crate) limit: Duration,
    /// Memory in MiB.
    pub(crate) memory: u32,
    pub(crate) machine: Machine,
}

impl Booted {
    /// Boots, and returns when the guest has ended. `each` gets every line that the guest writes to
    /// `/run/output`.
    ///
    /// On a busy machine the emulation sometimes hangs before systemd starts. The guest is then booted a second time.
    ///
    /// # Errors
    /// The guest did not boot, or was killed by its limit.
    pub(crate) fn run(&self, mut each: impl FnMut(&str)) -> Result<()> {
        let work = tempfile::Builder::new().prefix("boot-").tempdir_in(process::rigs_dir()?)?;
        let kernel = Kernel::ready(Release::default(), self.machine)?;
        fs::write(work.path().join("initramfs"), self.initramfs(&kernel)?)?;
        for _ in 0..2 {
            fs::write(work.path().join("console"), "")?;
            let up = || console(work.path()).contains(UP);
            let mut machine = self.command(&kernel, work.path())?;
            let ended = process::lines_once_begun(machine.current_dir(work.path()), BOOT, up, |line| {
                each(String::from_utf8_lossy(line).trim_end());
            })?;
            match ended {
                Some(_) if console(work.path()).contains(UNPREPARED) => {
                    bail!("cannot prepare the guest; its console:\n{}", tail(work.path()))
                }
                Some(status) if up() && status.success() => return Ok(()),
                Some(status) if up() => {
                    bail!("the guest was killed ({status}); its console:\n{}", tail(work.path()))
                }
                _ => eprintln!("the guest did not come up within {} s", BOOT.as_secs()),
            }
        }
        bail!("the guest did not boot; its console:\n{}", tail(work.path()))
    }

    /// Returns the initramfs of a guest that goes on to systemd after the preparations.
    fn initramfs(&self, kernel: &Kernel) -> Result<Vec<u8>> {
        let mut archive = cpio::Archive::new();
        archive.file("init", include_bytes!("init.sh"));
        archive.file("job", self.job().as_bytes());
        archive.file("systemd", b"");
        super::add_tools(&mut archive, kernel, true).context("the guest's tools")?;
        Ok(archive.finish())
    }

    /// Returns the script that runs before systemd.
    fn job(&self) -> String {
        let mut job = String::new();
        if self.machine == Machine::UserMode {
            // Disks of user-mode Linux have no serial numbers from which udev makes the links.
            job.push_str("cat > /etc/udev/rules.d/61-disks.rules << END\n");
            for (Disk { serial, .. }, letter) in self.disks.iter().zip('a'..) {
                let _ = writeln!(
                    job,
                    "KERNEL==\"ubd{letter}\", TEST!=\"/run/late-{serial}\", SYMLINK+=\"disk/by-id/virtio-{serial}\""
                );
            }
            job.push_str("END\n");
        }
        job + &self.prepare
    }

    /// Returns the command that runs the guest, with the disks in the order in which the guest finds them. Writes of
    /// the guest stay in the host's page cache, which outlives the guest.
    fn command(&self, kernel: &Kernel, work: &Path) -> Result<Command> {
        let (memory, limit) = (self.memory, self.limit);
        Ok(match self.machine {
            Machine::Emulated => bounded(Some(limit), "qemu-system-x86_64", self.arguments(kernel)),
            Machine::UserMode => {
                let mut machine =
                    user_mode::Settings { kernel, work, memory, has_network: false, limit }.command()?;
                for (place, Disk { image, .. }) in self.disks.iter().enumerate() {
                    // The image is data, and not a file of differences to another one.
                    let mut disk = OsString::from(format!("ubd{place}d="));
                    disk.push(image);
                    machine.arg(disk);
                }
                machine
            }
        })
    }

    /// Returns the arguments of QEMU.
    fn arguments(&self, kernel: &Kernel) -> Vec<OsString> {
        let mut arguments = super::machine(kernel, self.memory);
        arguments.extend(super::USER_NETWORK.map(OsString::from));
        arguments.extend(["-chardev", "file,id=output,path=/dev/stdout"].map(OsString::from));
        arguments.extend(["-device", "virtserialport,chardev=output,name=output"].map(OsString::from));
        for (place, Disk { image, serial }) in self.disks.iter().enumerate() {
            let mut drive =
                OsString::from(format!("if=none,id=disk{place},format=raw,cache=writeback,file="));
            drive.push(image);
            arguments.extend(["-drive".into(), drive, "-device".into()]);
            arguments.push(format!("virtio-blk-pci,drive=disk{place},serial={serial}").into());
        }
        arguments
    }
}
