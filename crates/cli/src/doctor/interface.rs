//! Checks of the network interfaces that clients come in by, from sysfs.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use super::Check;
use super::machine::Machine;
use super::step::Step;

/// The speed in Mbit/s from which a small MTU costs processors.
const FAST: u64 = 10_000;
/// The MTU of jumbo frames in bytes.
const JUMBO: u64 = 9000;

/// The reason why `--apply` does not change the MTU.
pub(super) const MTU: &str =
    "if a switch drops the larger frames, connections hang, and the one that you work by may be among them";

/// Checks the interfaces of this host, unless the server listens on loopback only.
pub(super) fn check(listen: &[SocketAddr], host: &Machine) -> Vec<Check> {
    if listen.iter().all(|address| address.ip().is_loopback()) {
        return Vec::new();
    }
    interfaces().iter().flat_map(|path| judge(path, host)).collect()
}

/// Returns the interfaces of this host that are hardware, in sysfs. Bridges and bonds consist of such interfaces.
pub(super) fn interfaces() -> Vec<PathBuf> {
    let entries = std::fs::read_dir("/sys/class/net").into_iter().flatten().flatten();
    let mut real: Vec<_> =
        entries.map(|entry| entry.path()).filter(|path| path.join("device").exists()).collect();
    real.sort();
    real
}

/// Returns the checks of one network interface of sysfs: frame size, duplex, lost packets. An interface that is down
/// has none.
fn judge(interface: &Path, host: &Machine) -> Vec<Check> {
    let name = interface.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    let text = |file: &str| Some(std::fs::read_to_string(interface.join(file)).ok()?.trim().to_owned());
    let number = |file: &str| text(file)?.parse::<u64>().ok();
    if text("operstate").as_deref() == Some("down") {
        return Vec::new();
    }
    let mut checks = Vec::new();
    if let (Some(mtu), Some(speed)) = (number("mtu"), number("speed")) {
        checks.push(mtu_of(&name, mtu, speed));
    }
    if text("duplex").as_deref() == Some("half") {
        let finding = "half duplex: the link has failed to negotiate";
        checks.push(
            Check::fail(format!("{name}: link"), finding)
                .mend("see the cable and the port of the switch", "the fault is outside of this host"),
        );
    }
    let lost = ["rx_missed_errors", "rx_fifo_errors"]
        .iter()
        .filter_map(|file| number(&format!("statistics/{file}")));
    checks.push(lost_of(interface, lost.sum(), host));
    checks
}

/// Checks that a fast interface has jumbo frames. `mtu` is in bytes, `speed` in Mbit/s.
fn mtu_of(name: &str, mtu: u64, speed: u64) -> Check {
    let (subject, finding) =
        (format!("{name}: MTU"), format!("{mtu} bytes at {} Gbit/s", speed as f64 / 1000.0));
    if mtu >= JUMBO || speed < FAST {
        return Check::ok(subject, finding);
    }
    let finding = format!(
        "{finding}: frames of {JUMBO} bytes cost fewer interrupts, if every switch and client has them"
    );
    Check::warn(subject, finding)
        .mend(format!("ip link set {name} mtu {JUMBO}, then ping -M do -s 8972 CLIENT"), MTU)
}

/// Checks that the interface has lost no packet for lack of room in its receive ring.
fn lost_of(interface: &Path, lost: u64, host: &Machine) -> Check {
    let name = interface.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    let subject = format!("{name}: receive ring");
    if lost == 0 {
        return Check::ok(subject, "has lost no packet");
    }
    let finding = format!("has lost {lost} packets since it came up: the ring was full");
    let Some(ring) = host.ring(&name) else {
        return Check::warn(subject, finding).mend(
            format!("ethtool -g {name} shows the largest ring; ethtool -G {name} rx MAXIMUM"),
            "ethtool is not installed, or the driver does not tell the size of the ring",
        );
    };
    if ring.now >= ring.largest {
        let finding = format!("{finding}; it has its largest size now, {} frames", ring.now);
        return Check::ok(subject, finding);
    }
    let steps = [Step::Ring { interface: name.clone(), size: ring.largest }].into_iter();
    let steps = steps.chain(Step::ring_rule(host, interface, ring.largest)).collect();
    let command = format!("ethtool -G {name} rx {}; the link pauses for a moment", ring.largest);
    Check::warn(subject, format!("{finding} at {} frames", ring.now)).mend_by(command, steps)
}

#[cfg(test)]
mod tests {
    use super::super::State;
    use super::super::apply::tests::program;
    use super::*;

    #[test]
    fn small_frames_are_a_finding_on_fast_links_only() {
        assert_eq!(mtu_of("eth0", 1500, 1000).state, State::Ok);
        assert_eq!(mtu_of("eth0", 1500, 25_000).state, State::Warn);
        assert_eq!(mtu_of("eth0", 9000, 100_000).state, State::Ok);
    }

    #[test]
    fn an_interface_is_judged_by_its_files() {
        let dir = tempfile::TempDir::new().unwrap();
        let path = dir.path().join("eth0");
        std::fs::create_dir_all(path.join("statistics")).unwrap();
        for (file, value) in [
            ("operstate", "up"),
            ("mtu", "1500"),
            ("speed", "10000"),
            ("duplex", "half"),
            ("statistics/rx_missed_errors", "7"),
        ] {
            std::fs::write(path.join(file), value).unwrap();
        }
        let host = Machine::below(dir.path());
        let states: Vec<_> =
            judge(&path, &host).into_iter().map(|check| (check.subject, check.state)).collect();
        assert_eq!(
            states,
            [
                ("eth0: MTU".to_owned(), State::Warn),
                ("eth0: link".to_owned(), State::Fail),
                ("eth0: receive ring".to_owned(), State::Warn)
            ]
        );
        std::fs::write(path.join("operstate"), "down").unwrap();
        assert!(judge(&path, &host).is_empty());
    }

    #[test]
    fn a_ring_that_was_full_gets_its_largest_size() {
        let dir = tempfile::TempDir::new().unwrap();
        let host = Machine::below(dir.path());
        let (slot, interface) = (dir.path().join("0000:01:00.0"), dir.path().join("eth0"));
        std::fs::create_dir_all(&slot).unwrap();
        std::fs::create_dir_all(&interface).unwrap();
        std::os::unix::fs::symlink(&slot, interface.join("device")).unwrap();
        std::fs::write(interface.join("dev_port"), "1\n").unwrap();
        assert!(lost_of(&interface, 7, &host).fix.unwrap().by_hand.unwrap().contains("not installed"));
        let ethtool =
            |now: u32| program(dir.path(), "ethtool", &format!("printf 'RX:\\t4096\\nRX:\\t{now}\\n'"));
        ethtool(256);
        let steps = lost_of(&interface, 7, &host).fix.unwrap().steps;
        assert_eq!(steps[0], Step::Ring { interface: "eth0".to_owned(), size: 4096 });
        let Step::Keep { text, .. } = &steps[1] else { panic!("{steps:?}") };
        let rule = format!(
            "KERNELS==\"0000:01:00.0\", ATTR{{dev_port}}==\"1\", RUN+=\"{}/bin/ethtool -G $name rx 4096\"\n",
            dir.path().display()
        );
        assert!(text.ends_with(&rule), "{text}");
        ethtool(4096);
        assert_eq!(lost_of(&interface, 7, &host).state, State::Ok, "nothing is left to do");
    }
}
