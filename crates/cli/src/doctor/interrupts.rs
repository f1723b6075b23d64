//! Checks which processors handle the interrupts of network interfaces, from sysfs and procfs.

use std::collections::BTreeSet;
use std::path::Path;

use super::Check;
use super::interface::interfaces;

/// Checks the interrupts of all interfaces that are hardware.
pub(super) fn check() -> Vec<Check> {
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    let judged = interfaces()
        .into_iter()
        .filter_map(|interface| judge(&interface, Path::new("/proc/irq"), processors));
    judged.collect()
}

/// Judges an interface. Returns `None` for an interface with a single interrupt, and on a host with one processor.
fn judge(interface: &Path, irqs: &Path, processors: usize) -> Option<Check> {
    let name = interface.file_name()?.to_string_lossy().into_owned();
    let device = interface.join("device");
    let numbers = std::fs::read_dir(device.join("msi_irqs")).ok()?.flatten().map(|entry| entry.file_name());
    let places: Vec<BTreeSet<u32>> = numbers
        .filter_map(|number| {
            let text = std::fs::read_to_string(irqs.join(number).join("effective_affinity_list")).ok()?;
            Some(cpus(&text)).filter(|cpus| !cpus.is_empty())
        })
        .collect();
    if places.len() < 2 || processors < 2 {
        return None;
    }
    let used: BTreeSet<u32> = places.iter().flatten().copied().collect();
    let near =
        std::fs::read_to_string(device.join("local_cpulist")).map(|text| cpus(&text)).unwrap_or_default();
    let (subject, count) = (format!("{name}: interrupts"), places.len());
    if used.len() == 1 {
        let finding =
            format!("all {count} on processor {}: it alone takes in what clients send", shown(&used));
        let mend = "systemctl enable --now irqbalance, or spread them with /proc/irq/N/smp_affinity_list";
        return Some(Check::warn(subject, finding).mend(mend));
    }
    let far: BTreeSet<u32> = used.difference(&near).copied().collect();
    if !near.is_empty() && !far.is_empty() {
        let finding =
            format!("some on processors {}, which are on another NUMA node than the card", shown(&far));
        let mend = format!("write processors of {} to /proc/irq/N/smp_affinity_list", shown(&near));
        return Some(Check::warn(subject, finding).mend(mend));
    }
    Some(Check::ok(subject, format!("{count} on {} processors", used.len())))
}

/// Returns the processors of a list such as `0-3,8`. Skips what is no number.
fn cpus(list: &str) -> BTreeSet<u32> {
    let part = |part: &str| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        Some(first.trim().parse::<u32>().ok()?..=last.trim().parse::<u32>().ok()?)
    };
    list.split(',').filter_map(part).flatten().collect()
}

fn shown(cpus: &BTreeSet<u32>) -> String {
    cpus.iter().map(u32::to_string).collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::super::State;
    use super::*;

    /// Judges an interface whose interrupts are on these processors.
    fn judged(places: &[&str], near: Option<&str>, processors: usize) -> Option<(State, String)> {
        let dir = tempfile::TempDir::new().unwrap();
        let (interface, irqs) = (dir.path().join("eth0"), dir.path().join("irq"));
        std::fs::create_dir_all(interface.join("device/msi_irqs")).unwrap();
        for (number, place) in places.iter().enumerate() {
            std::fs::write(interface.join(format!("device/msi_irqs/{number}")), "msix\n").unwrap();
            std::fs::create_dir_all(irqs.join(number.to_string())).unwrap();
            let file = irqs.join(number.to_string()).join("effective_affinity_list");
            std::fs::write(file, format!("{place}\n")).unwrap();
        }
        if let Some(near) = near {
            std::fs::write(interface.join("device/local_cpulist"), format!("{near}\n")).unwrap();
        }
        judge(&interface, &irqs, processors).map(|check| (check.state, check.finding))
    }

    #[test]
    fn interrupts_on_one_processor_or_far_from_their_card_are_a_warning() {
        assert_eq!(
            judged(&["0", "1", "2-3"], Some("0-3"), 8),
            Some((State::Ok, "3 on 4 processors".to_owned()))
        );
        let (state, finding) = judged(&["2", "2"], Some("0-3"), 8).unwrap();
        assert!(state == State::Warn && finding.starts_with("all 2 on processor 2:"), "{finding}");
        let (state, finding) = judged(&["0", "4", "5"], Some("0-3"), 8).unwrap();
        assert!(state == State::Warn && finding.starts_with("some on processors 4,5,"), "{finding}");
        assert_eq!(judged(&["0", "4"], None, 8).unwrap().0, State::Ok, "the node is not known");
        assert_eq!(judged(&["0"], None, 8), None);
        assert_eq!(judged(&["0", "0"], None, 1), None);
        assert_eq!(judged(&["", ""], None, 8), None, "not in use yet");
    }
}
