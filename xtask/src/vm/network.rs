//! A network of a guest and this host alone, in which the host has every port.

use anyhow::{Context, Result};
use rustix::thread::{UnshareFlags, unshare_unsafe};

use crate::process::{command, run};

/// The network of the thread that made it, and of the programs and threads that this thread starts.
pub(crate) struct Network(());

impl Network {
    /// Puts this thread into a network of its own.
    ///
    /// # Errors
    /// The caller is not root, or the kernel has no tap devices.
    pub(crate) fn new() -> Result<Self> {
        // SAFETY: no memory or file descriptor is shared or unshared by a network namespace.
        unsafe { unshare_unsafe(UnshareFlags::NEWNET) }.context("cannot make a network (as root?)")?;
        let steps = [
            "link set lo up",
            "tuntap add tap0 mode tap",
            "link set tap0 up",
            "address add 10.0.2.2/24 dev tap0",
        ];
        for step in steps {
            run(&mut command("ip", step.split(' ')))?;
        }
        Ok(Self(()))
    }

    /// Returns this host's address.
    #[expect(clippy::unused_self, reason = "there is an address only where there is a network")]
    pub(crate) fn host(&self) -> &'static str {
        "10.0.2.2"
    }

    /// Returns the network of the guest.
    #[expect(clippy::unused_self, reason = "there is an address only where there is a network")]
    pub(crate) fn clients(&self) -> &'static str {
        "10.0.2.0/24"
    }

    /// Returns the arguments of qemu.
    #[expect(clippy::unused_self, reason = "there is a device only where there is a network")]
    pub(super) fn arguments(&self) -> [&'static str; 2] {
        ["-nic", "tap,ifname=tap0,script=no,downscript=no,model=virtio-net-pci"]
    }
}
