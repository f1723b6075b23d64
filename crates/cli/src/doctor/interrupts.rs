//! Checks which processors handle the interrupts of network interfaces, from sysfs and procfs.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use super::Check;
use super::interface::interfaces;
use super::machine::Machine;
use super::step::Step;

/// The directory with a directory for each interrupt.
const IRQS: &str = "/proc/irq";

/// The service that moves interrupts between processors.
const BALANCER: &str = "irqbalance.service";

/// Checks the interrupts of all interfaces that are hardware.
pub(super) fn check(host: &Machine) -> Vec<Check> {
    let online = host.text("/sys/devices/system/cpu/online").map(|text| cpus(&text)).unwrap_or_default();
    interfaces().into_iter().filter_map(|interface| judge(&interface, &online, host)).collect()
}

/// Judges an interface. Returns `None` for an interface with a single interrupt, and on a host with one processor.
fn judge(interface: &Path, online: &BTreeSet<u32>, host: &Machine) -> Option<Check> {
    let name = interface.file_name()?.to_string_lossy().into_owned();
    let device = interface.join("device");
    let numbers = std::fs::read_dir(device.join("msi_irqs")).ok()?.flatten();
    let numbers = numbers.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let places: BTreeMap<u32, BTreeSet<u32>> = numbers
        .filter_map(|number| {
            let text = host.text(format!("{IRQS}/{number}/effective_affinity_list")).ok()?;
            Some((number, cpus(&text))).filter(|(_, cpus)| !cpus.is_empty())
        })
        .collect();
    if places.len() < 2 || online.len() < 2 {
        return None;
    }
    let used: BTreeSet<u32> = places.values().flatten().copied().collect();
    let near =
        std::fs::read_to_string(device.join("local_cpulist")).map(|text| cpus(&text)).unwrap_or_default();
    let (subject, count) = (format!("{name}: interrupts"), places.len());
    if used.len() == 1 {
        let finding =
            format!("all {count} on processor {}: it alone takes in what clients send", shown(&used));
        return Some(spread(Check::warn(subject, finding), places.keys(), &near, online, host));
    }
    let far: BTreeSet<u32> = used.difference(&near).copied().collect();
    if !near.is_empty() && !far.is_empty() {
        let finding =
            format!("some on processors {}, which are on another NUMA node than the card", shown(&far));
        return Some(spread(Check::warn(subject, finding), places.keys(), &near, online, host));
    }
    Some(Check::ok(subject, format!("{count} on {} processors", used.len())))
}

/// Sets the remedy: a service that spreads interrupts, if it is installed, or a processor near the card for each.
fn spread<'a>(
    check: Check,
    irqs: impl Iterator<Item = &'a u32>,
    near: &BTreeSet<u32>,
    online: &BTreeSet<u32>,
    host: &Machine,
) -> Check {
    match host.unit(BALANCER) {
        Some(state) if state.is_active => {
            let command = "see what irqbalance is told in /etc/default/irqbalance";
            return check.mend(command, "irqbalance runs, and would move them again");
        }
        Some(_) => {
            let step = Step::Unit { name: BALANCER.to_owned() };
            return check.mend_by(format!("systemctl enable --now {BALANCER}"), vec![step]);
        }
        None => {}
    }
    let local: Vec<u32> = near.intersection(online).copied().collect();
    let processors = if local.is_empty() { online.iter().copied().collect() } else { local };
    let command = format!(
        "write processors of {} to /proc/irq/N/smp_affinity_list, or install irqbalance",
        shown(&processors.iter().copied().collect())
    );
    let steps = irqs.zip(processors.iter().cycle()).map(|(number, processor)| {
        Step::write(format!("{IRQS}/{number}/smp_affinity_list"), processor.to_string())
    });
    check.mend_by(command, steps.collect())
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
    use super::super::apply::tests::program;
    use super::*;

    /// Returns a host with an interface whose interrupts are on these processors.
    fn host(dir: &Path, places: &[&str], near: Option<&str>) -> Machine {
        let host = Machine::below(dir);
        let interface = dir.join("eth0");
        std::fs::create_dir_all(interface.join("device/msi_irqs")).unwrap();
        for (number, place) in places.iter().enumerate() {
            std::fs::write(interface.join(format!("device/msi_irqs/{number}")), "msix\n").unwrap();
            let irq = host.at(Path::new(IRQS)).join(number.to_string());
            std::fs::create_dir_all(&irq).unwrap();
            std::fs::write(irq.join("effective_affinity_list"), format!("{place}\n")).unwrap();
        }
        if let Some(near) = near {
            std::fs::write(interface.join("device/local_cpulist"), format!("{near}\n")).unwrap();
        }
        host
    }

    fn judged(places: &[&str], near: Option<&str>, processors: u32) -> Option<(State, String)> {
        let dir = tempfile::TempDir::new().unwrap();
        let host = host(dir.path(), places, near);
        let check = judge(&dir.path().join("eth0"), &(0..processors).collect(), &host)?;
        Some((check.state, check.finding))
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

    #[test]
    fn interrupts_are_spread_near_their_card_or_by_a_service_that_is_installed() {
        let dir = tempfile::TempDir::new().unwrap();
        let host = host(dir.path(), &["7", "7", "7"], Some("2-3"));
        let fix = || judge(&dir.path().join("eth0"), &(0..8).collect(), &host).unwrap().fix.unwrap();
        let to = |number: u32, processor: &str| {
            Step::write(format!("{IRQS}/{number}/smp_affinity_list"), processor)
        };
        assert_eq!(fix().steps, [to(0, "2"), to(1, "3"), to(2, "2")]);
        std::fs::create_dir_all(dir.path().join("run/systemd/system")).unwrap();
        let systemctl = |active: bool| {
            let script = format!("case \"$1\" in show) echo loaded;; is-active) {active};; *) exit 1;; esac");
            program(dir.path(), "systemctl", &script);
        };
        systemctl(false);
        assert_eq!(fix().steps, [Step::Unit { name: BALANCER.to_owned() }]);
        systemctl(true);
        assert!(fix().by_hand.is_some_and(|reason| reason.contains("would move them again")));
    }
}
