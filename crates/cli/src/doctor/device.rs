//! Checks of the block devices below a file system, from sysfs.

use std::collections::BTreeSet;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::Check;
use super::step::Step;

/// Read-ahead in KiB below which streams from spinning disks are slow.
const READ_AHEAD_KIB: u64 = 1024;
/// Read-ahead in KiB that the check proposes.
const READ_AHEAD_WANTED_KIB: u64 = 4096;

/// Checks the device of a file system, and the disks below it.
pub(crate) fn check(node: &Path) -> Vec<Check> {
    let Some(device) = sysfs_of(node) else {
        let finding = "not found in sysfs, so its queue cannot be judged";
        return vec![Check::warn(node.display().to_string(), finding)];
    };
    let mut checks = vec![read_ahead(&device)];
    let mut disks = BTreeSet::new();
    collect_disks(&device, &mut disks);
    checks.extend(disks.iter().filter_map(|disk| scheduler(disk)));
    checks
}

/// Returns the whole device in sysfs. For a partition, this is its disk.
pub(super) fn sysfs_of(node: &Path) -> Option<PathBuf> {
    let number = node.metadata().ok()?.rdev();
    let (major, minor) = (rustix::fs::major(number), rustix::fs::minor(number));
    let path = Path::new("/sys/dev/block").join(format!("{major}:{minor}")).canonicalize().ok()?;
    if path.join("partition").exists() { path.parent().map(Path::to_owned) } else { Some(path) }
}

/// Collects the disks below device-mapper and MD devices.
fn collect_disks(device: &Path, disks: &mut BTreeSet<PathBuf>) {
    let below: Vec<PathBuf> = std::fs::read_dir(device.join("slaves"))
        .into_iter()
        .flatten()
        .filter_map(|entry| entry.ok()?.path().canonicalize().ok())
        .map(|path| match path.join("partition").exists() {
            true => path.parent().map_or(path.clone(), Path::to_owned),
            false => path,
        })
        .collect();
    if below.is_empty() {
        disks.insert(device.to_owned());
    }
    below.iter().for_each(|path| collect_disks(path, disks));
}

/// Returns the trimmed text of a file in a device's `queue` directory of sysfs.
pub(super) fn queue(device: &Path, name: &str) -> Option<String> {
    let text = std::fs::read_to_string(device.join("queue").join(name)).ok()?;
    Some(text.trim().to_owned())
}

pub(super) fn is_rotational(device: &Path) -> bool {
    queue(device, "rotational").is_some_and(|text| text == "1")
}

pub(super) fn name(device: &Path) -> String {
    device.file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned())
}

/// Checks that the read-ahead of a spinning disk is large enough for streams. Proposes to write a larger one.
fn read_ahead(device: &Path) -> Check {
    let subject = format!("{}: read-ahead", name(device));
    let kib = queue(device, "read_ahead_kb").and_then(|text| text.parse::<u64>().ok());
    match kib {
        None => Check::warn(subject, "cannot be read from sysfs"),
        Some(kib) if is_rotational(device) && kib < READ_AHEAD_KIB => {
            let path = device.join("queue/read_ahead_kb");
            let wanted = READ_AHEAD_WANTED_KIB.to_string();
            let keep = Step::device_rule(device, "read_ahead_kb", &wanted);
            Check::warn(subject, format!("{kib} KiB on spinning disks: streams wait for every rotation"))
                .mend_by_keeping(path, wanted, keep)
        }
        Some(kib) => Check::ok(subject, format!("{kib} KiB")),
    }
}

/// Checks the I/O scheduler. Returns `None` for a device without a queue of its own.
fn scheduler(disk: &Path) -> Option<Check> {
    let subject = format!("{}: I/O scheduler", name(disk));
    let choice = queue(disk, "scheduler")?;
    Some(judge_scheduler(subject, &choice, is_rotational(disk), disk))
}

/// Judges the I/O scheduler. `choice` has the form of sysfs: `none [mq-deadline] bfq`.
fn judge_scheduler(subject: String, choice: &str, rotational: bool, disk: &Path) -> Check {
    let current = choice.split(['[', ']']).nth(1).unwrap_or(choice).to_owned();
    let offered = |wanted: &str| choice.split(['[', ']', ' ']).any(|name| name == wanted);
    let path = disk.join("queue/scheduler");
    let keep = |wanted: &str| Step::device_rule(disk, "scheduler", wanted);
    match (rotational, current.as_str()) {
        (true, "none") if offered("mq-deadline") => Check::warn(
            subject,
            "none on a spinning disk: requests are not ordered, a stream starves small reads",
        )
        .mend_by_keeping(path, "mq-deadline", keep("mq-deadline")),
        (false, "bfq") => Check::warn(subject, "bfq costs more CPU than an SSD's seeks").mend_by_keeping(
            path,
            "none",
            keep("none"),
        ),
        _ => Check::ok(
            subject,
            format!("{current} on {} device", if rotational { "a rotating" } else { "a non-rotating" }),
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::super::State;
    use super::*;

    #[test]
    fn schedulers_are_judged_by_what_the_disk_is() {
        let judge = |choice, rotational| {
            let check = judge_scheduler("x".into(), choice, rotational, Path::new("/sys/block/sda"));
            let value = match check.fix.map(|fix| fix.steps).unwrap_or_default().pop() {
                Some(Step::Write { value, .. }) => Some(value),
                _ => None,
            };
            (check.state, value)
        };
        assert_eq!(judge("[none] mq-deadline bfq", true), (State::Warn, Some("mq-deadline".into())));
        assert_eq!(judge("none [mq-deadline]", true), (State::Ok, None));
        assert_eq!(judge("[none]", true), (State::Ok, None), "nothing better is offered");
        assert_eq!(judge("none [bfq]", false), (State::Warn, Some("none".into())));
        assert_eq!(judge("[none] mq-deadline", false), (State::Ok, None));
    }
}
