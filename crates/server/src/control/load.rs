//! The load of exports and network links, for advice.

use std::path::Path;

use forebay_config::{Export, Keep, Priority, Settings};
use forebay_control::{Activity, ExportLoad, Link};

use crate::cache::Cache;

/// The interfaces of this host.
const INTERFACES: &str = "/sys/class/net";

/// Returns the load of each export since the start, with the policy in force for its directory.
pub(super) fn exports(activity: &Activity, settings: &Settings, cache: &Cache) -> Vec<ExportLoad> {
    let load = |export: &Export| {
        let entry = activity.exports.entries.iter().find(|entry| entry.name == export.name)?;
        let policy = cache.policies.in_force(&export.path).ok()?;
        let writes = entry.counters.sized().1.max(1);
        let gives_way = policy.cache.value == Keep::Never || policy.priority.value == Priority::Low;
        Some(ExportLoad {
            name: export.name.clone(),
            path: export.path.display().to_string(),
            mode: policy.mode.value,
            bytes_read: entry.counters.bytes_read,
            bytes_written: entry.counters.bytes_written,
            sequential: entry.counters.sequential_writes as f64 / writes as f64,
            gives_way,
        })
    };
    settings.exports.iter().filter_map(load).collect()
}

/// Returns the interfaces that are hardware and up.
pub(super) fn links() -> Vec<Link> {
    links_in(Path::new(INTERFACES))
}

/// Returns the interfaces of a directory that has the form of sysfs.
fn links_in(directory: &Path) -> Vec<Link> {
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    let link = |path: &Path| {
        let text = |file: &str| Some(std::fs::read_to_string(path.join(file)).ok()?.trim().to_owned());
        let number = |file: &str| text(file)?.parse::<u64>().ok();
        let is_up = path.join("device").exists() && text("operstate").as_deref() != Some("down");
        let name = path.file_name()?.to_string_lossy().into_owned();
        is_up.then_some(Link { name, mtu: number("mtu")?, speed: number("speed")? })
    };
    let mut links: Vec<Link> = entries.filter_map(|entry| link(&entry.path())).collect();
    links.sort_by(|a, b| a.name.cmp(&b.name));
    links
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_are_interfaces_of_hardware_that_are_up() {
        let dir = tempfile::tempdir().unwrap();
        let interface = |name: &str, files: &[(&str, &str)]| {
            std::fs::create_dir_all(dir.path().join(name)).unwrap();
            files.iter().for_each(|(file, text)| {
                std::fs::write(dir.path().join(name).join(file), text).unwrap();
            });
        };
        let up = [("device", ""), ("operstate", "up\n"), ("mtu", "1500\n"), ("speed", "25000\n")];
        interface("eth1", &up);
        interface("eth0", &[("device", ""), ("operstate", "down\n"), ("mtu", "1500\n"), ("speed", "-1\n")]);
        interface("br0", &up[1..]);
        interface("eth2", &[("device", ""), ("operstate", "up\n"), ("mtu", "9000\n"), ("speed", "-1\n")]);
        assert_eq!(links_in(dir.path()), [Link { name: "eth1".to_owned(), mtu: 1500, speed: 25_000 }]);
        assert_eq!(links_in(&dir.path().join("missing")), []);
    }
}
