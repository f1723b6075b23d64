//! Checks that network interfaces and cache devices are on one NUMA node.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use super::Check;
use super::interface::interfaces;
use super::ssd::device_of;

/// Compares the nodes of the interfaces with those of the cache devices. Returns `None` on a host with one node.
pub(super) fn check(cache: &[PathBuf]) -> Option<Check> {
    let devices = cache.iter().filter_map(|path| device_of(path)).filter_map(|device| node_of(&device));
    let cards = interfaces().iter().filter_map(|interface| node_of(&interface.join("device"))).collect();
    judge(&cards, &devices.collect())
}

/// Returns the node of a device of sysfs: its own, or that of the bus above it.
fn node_of(device: &Path) -> Option<u32> {
    let real = device.canonicalize().ok()?;
    let text = real.ancestors().find_map(|above| std::fs::read_to_string(above.join("numa_node")).ok())?;
    // Without NUMA the kernel writes -1.
    text.trim().parse().ok()
}

/// Compares the NUMA nodes of network cards and cache devices. Returns `None` if all are on one node, or nodes are
/// not known.
fn judge(cards: &BTreeSet<u32>, devices: &BTreeSet<u32>) -> Option<Check> {
    let subject = "NUMA nodes";
    if cards.is_empty() || devices.is_empty() || cards.union(devices).count() == 1 {
        return None;
    }
    let shown = |nodes: &BTreeSet<u32>| nodes.iter().map(u32::to_string).collect::<Vec<_>>().join(", ");
    let finding = format!("interfaces are on {}, cache devices on {}", shown(cards), shown(devices));
    if cards == devices {
        return Some(Check::ok(subject, finding));
    }
    let finding = format!("{finding}: data crosses the link between processors");
    let node = cards.first().unwrap_or(&0);
    let mend = format!(
        "move the cards to slots of one processor, or bind the server to one: NUMAPolicy=preferred and NUMAMask={node} \
         under [Service] by `systemctl edit forebay`"
    );
    let by_hand = "only you know whether cards can move, or one processor is enough for the server";
    Some(Check::warn(subject, finding).mend(mend, by_hand))
}

#[cfg(test)]
mod tests {
    use super::super::State;
    use super::*;

    #[test]
    fn devices_on_other_nodes_than_interfaces_are_a_warning() {
        let state = |cards: &[u32], devices: &[u32]| {
            let set = |nodes: &[u32]| nodes.iter().copied().collect();
            judge(&set(cards), &set(devices)).map(|check| check.state)
        };
        assert_eq!(state(&[0], &[0]), None, "one node, or all on one");
        assert_eq!(state(&[], &[0, 1]), None);
        assert_eq!(state(&[0], &[1]), Some(State::Warn));
        assert_eq!(state(&[0, 1], &[0, 1]), Some(State::Ok));
    }

    #[test]
    fn a_node_is_that_of_the_bus_above() {
        let dir = tempfile::TempDir::new().unwrap();
        let device = dir.path().join("pci/nvme/nvme0/nvme0n1");
        std::fs::create_dir_all(&device).unwrap();
        assert_eq!(node_of(&device), None);
        std::fs::write(dir.path().join("pci/numa_node"), "1\n").unwrap();
        assert_eq!(node_of(&device), Some(1));
        std::fs::write(dir.path().join("pci/nvme/numa_node"), "-1\n").unwrap();
        assert_eq!(node_of(&device), None);
    }
}
