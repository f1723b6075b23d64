//! The steps by which `--apply` mends a finding, and the files that keep a setting over the host's next start.

use std::path::{Path, PathBuf};

use super::machine::Machine;

/// The first line of each file that `--apply` makes.
pub(super) const HEADER: &str =
    "# Made by `forebay doctor --apply`. `forebay doctor --undo` removes it, unless it has been changed.\n";

/// One step. All steps are safe in a running host, and `--undo` takes them back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Step {
    /// Write this value to a file of /proc or /sys. It ends with the host's next start.
    Write { path: PathBuf, value: String },
    /// Make a file with this text, which sets a value at each start of the host.
    Keep { path: PathBuf, text: String },
    /// Give the receive ring of an interface this size. It ends with the host's next start.
    Ring { interface: String, size: u64 },
    /// Start a unit of systemd, now and with the host.
    Unit { name: String },
    /// Load a module of the kernel. It ends with the host's next start.
    Module { name: String },
}

impl Step {
    pub(super) fn write(path: impl Into<PathBuf>, value: impl Into<String>) -> Self {
        Self::Write { path: path.into(), value: value.into() }
    }

    /// Returns the step that keeps a value of /proc/sys over the next start; `None` for another path.
    pub(super) fn sysctl(path: &Path, value: &str) -> Option<Self> {
        let name = path.strip_prefix("/proc/sys").ok()?.to_str()?.replace('/', ".");
        let path = format!("/etc/sysctl.d/90-forebay-{name}.conf").into();
        Some(Self::Keep { path, text: format!("{HEADER}{name} = {value}\n") })
    }

    /// Returns the step that writes a value to all files that match a pattern, at each start (tmpfiles.d(5)).
    pub(super) fn at_each_start(what: &str, pattern: &str, value: &str) -> Self {
        let path = format!("/etc/tmpfiles.d/90-forebay-{what}.conf").into();
        Self::Keep { path, text: format!("{HEADER}w- {pattern} - - - - {value}\n") }
    }

    /// Returns the step that sets an attribute of a block device whenever it comes (udev(7)). The rule names the device
    /// by an identity that does not depend on the order of disks. Returns `None` if sysfs has none. `device` is in
    /// sysfs.
    pub(super) fn device_rule(device: &Path, attribute: &str, value: &str) -> Option<Self> {
        let identities =
            [("ATTR{dm/uuid}", "dm/uuid"), ("ATTR{md/uuid}", "md/uuid"), ("ATTRS{wwid}", "wwid")];
        let identities = identities.into_iter().chain([("ATTRS{wwid}", "device/wwid")]);
        // The rule must not have a pattern, nor the end of the text, in the identity.
        let is_plain = |c: char| c.is_ascii_alphanumeric() || " -_.:".contains(c);
        let (key, identity) = identities
            .filter_map(|(key, file)| Some((key, std::fs::read_to_string(device.join(file)).ok()?)))
            .map(|(key, text)| (key, text.trim().to_owned()))
            .find(|(_, text)| !text.is_empty() && text.chars().all(is_plain))?;
        let name = identity.split(|c: char| !c.is_ascii_alphanumeric()).filter(|part| !part.is_empty());
        let name = name.collect::<Vec<_>>().join("-");
        let path = format!("/etc/udev/rules.d/90-forebay-{attribute}-{name}.rules").into();
        let rule = format!(
            "ACTION==\"add|change\", SUBSYSTEM==\"block\", ENV{{DEVTYPE}}==\"disk\", {key}==\"{identity}\", \
             ATTR{{queue/{attribute}}}=\"{value}\"\n"
        );
        Some(Self::Keep { path, text: format!("{HEADER}{rule}") })
    }

    /// Returns the step that sets the ring of a network interface whenever the interface comes. The rule names the
    /// interface by its slot and port. `interface` is in sysfs.
    pub(super) fn ring_rule(machine: &Machine, interface: &Path, size: u64) -> Option<Self> {
        let ethtool = machine.program("ethtool")?;
        let device = interface.join("device").canonicalize().ok()?;
        let (slot, name) = (device.file_name()?.to_str()?, interface.file_name()?.to_str()?);
        let port = std::fs::read_to_string(interface.join("dev_port")).ok()?;
        let path = format!("/etc/udev/rules.d/90-forebay-ring-{name}.rules").into();
        let rule = format!(
            "ACTION==\"add\", SUBSYSTEM==\"net\", KERNELS==\"{slot}\", ATTR{{dev_port}}==\"{}\", \
             RUN+=\"{} -G $name rx {size}\"\n",
            port.trim(),
            ethtool.display()
        );
        Some(Self::Keep { path, text: format!("{HEADER}{rule}") })
    }

    /// Returns the step that loads a module at each start (modules-load.d(5)).
    pub(super) fn module_at_each_start(name: &str) -> Self {
        let path = format!("/etc/modules-load.d/90-forebay-{name}.conf").into();
        Self::Keep { path, text: format!("{HEADER}{name}\n") }
    }

    /// Returns the step that gives a module of the kernel a parameter whenever it is loaded (modprobe.d(5)).
    pub(super) fn module_parameter(module: &str, parameter: &str, value: &str) -> Self {
        let path = format!("/etc/modprobe.d/90-forebay-{module}-{parameter}.conf").into();
        Self::Keep { path, text: format!("{HEADER}options {module} {parameter}={value}\n") }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the path and the rule of a step, without the header.
    fn rule(step: Option<Step>) -> Option<(String, String)> {
        let Step::Keep { path, text } = step? else { panic!("no file") };
        Some((path.display().to_string(), text.strip_prefix(HEADER).unwrap().to_owned()))
    }

    #[test]
    fn a_sysctl_is_kept_in_a_file_of_its_own() {
        let (path, text) = rule(Step::sysctl(Path::new("/proc/sys/net/ipv4/tcp_rmem"), "1 2 3")).unwrap();
        assert_eq!(path, "/etc/sysctl.d/90-forebay-net.ipv4.tcp_rmem.conf");
        assert_eq!(text, "net.ipv4.tcp_rmem = 1 2 3\n");
        assert_eq!(Step::sysctl(Path::new("/sys/block/sda/queue/scheduler"), "bfq"), None);
    }

    #[test]
    fn a_disk_is_named_by_an_identity_that_stays() {
        let dir = tempfile::TempDir::new().unwrap();
        let kept = |file: &str, identity: &str| {
            let device = dir.path().join(file.replace('/', "_"));
            let file = device.join(file);
            std::fs::create_dir_all(file.parent().unwrap()).unwrap();
            std::fs::write(&file, format!("{identity}\n")).unwrap();
            rule(Step::device_rule(&device, "scheduler", "mq-deadline"))
        };
        let (path, text) = kept("device/wwid", "t10.ATA     WDC WD40").unwrap();
        assert_eq!(path, "/etc/udev/rules.d/90-forebay-scheduler-t10-ATA-WDC-WD40.rules");
        assert_eq!(
            text,
            "ACTION==\"add|change\", SUBSYSTEM==\"block\", ENV{DEVTYPE}==\"disk\", ATTRS{wwid}==\"t10.ATA     WDC WD40\", \
             ATTR{queue/scheduler}=\"mq-deadline\"\n"
        );
        assert!(kept("dm/uuid", "LVM-abc").unwrap().1.contains("ATTR{dm/uuid}==\"LVM-abc\""));
        assert!(kept("wwid", "eui.0025").unwrap().1.contains("ATTRS{wwid}==\"eui.0025\""));
        assert_eq!(kept("md/uuid", "a*"), None, "a pattern would name other disks too");
        assert_eq!(rule(Step::device_rule(dir.path(), "scheduler", "none")), None);
    }
}
