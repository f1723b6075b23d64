//! Checks of the network interfaces that clients come in by, from sysfs.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use super::Check;

/// The speed in Mbit/s from which a small MTU costs processors.
const FAST: u64 = 10_000;
/// The MTU of jumbo frames in bytes.
const JUMBO: u64 = 9000;

/// Checks the interfaces of this host, unless the server listens on loopback only.
pub(super) fn check(listen: &[SocketAddr]) -> Vec<Check> {
    if listen.iter().all(|address| address.ip().is_loopback()) {
        return Vec::new();
    }
    interfaces().iter().flat_map(|path| judge(path)).collect()
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
fn judge(interface: &Path) -> Vec<Check> {
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
            Check::fail(format!("{name}: link"), finding).mend("see the cable and the port of the switch"),
        );
    }
    let lost = ["rx_missed_errors", "rx_fifo_errors"]
        .iter()
        .filter_map(|file| number(&format!("statistics/{file}")));
    checks.push(lost_of(&name, lost.sum()));
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
        .mend(format!("ip link set {name} mtu {JUMBO}, then ping -M do -s 8972 CLIENT"))
}

/// Checks that the interface has lost no packet for lack of room in its receive ring.
fn lost_of(name: &str, lost: u64) -> Check {
    let subject = format!("{name}: receive ring");
    if lost == 0 {
        return Check::ok(subject, "has lost no packet");
    }
    let finding = format!("has lost {lost} packets since it came up: the ring was full");
    Check::warn(subject, finding)
        .mend(format!("ethtool -g {name} shows the largest ring; ethtool -G {name} rx MAXIMUM"))
}

#[cfg(test)]
mod tests {
    use super::super::State;
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
        let states: Vec<_> = judge(&path).into_iter().map(|check| (check.subject, check.state)).collect();
        assert_eq!(
            states,
            [
                ("eth0: MTU".to_owned(), State::Warn),
                ("eth0: link".to_owned(), State::Fail),
                ("eth0: receive ring".to_owned(), State::Warn)
            ]
        );
        std::fs::write(path.join("operstate"), "down").unwrap();
        assert!(judge(&path).is_empty());
    }
}
