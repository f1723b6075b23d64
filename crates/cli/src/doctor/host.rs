//! Checks of the host: privileges, limits, buffers, memory, clock.

use std::path::Path;

use forebay_config::{Limits, format_size};
use rustix::process::{Resource, getrlimit};

use super::Check;
use super::machine::Machine;
use super::step::Step;

/// Checks the host for a server with these limits.
pub(crate) fn check(limits: &Limits, host: &Machine) -> Vec<Check> {
    let mut checks = vec![privileges(), open_files(limits)];
    checks.extend(socket_buffers("tcp_rmem", "4096 131072 16777216"));
    checks.extend(socket_buffers("tcp_wmem", "4096 65536 16777216"));
    checks.extend(backlog());
    checks.extend(memory(limits));
    checks.extend(super::memory::check());
    checks.extend(dirty_pages());
    checks.extend(clock());
    checks.extend(time_sync(host));
    checks.extend(numa_balancing());
    checks.extend(super::governor::check(host));
    checks
}

fn read(path: &str) -> Option<String> {
    Some(std::fs::read_to_string(path).ok()?.trim().to_owned())
}

/// Capabilities (capabilities(7)) that a server needs to act for many users, with their numbers.
const CAPABILITIES: [(&str, u32); 8] = [
    ("CAP_CHOWN", 0),
    ("CAP_DAC_OVERRIDE", 1),
    ("CAP_DAC_READ_SEARCH", 2),
    ("CAP_FOWNER", 3),
    ("CAP_FSETID", 4),
    ("CAP_SETGID", 6),
    ("CAP_SETUID", 7),
    ("CAP_MKNOD", 27),
];

/// Returns the effective capabilities of this process, as a set of bits.
fn capabilities() -> u64 {
    let status = read("/proc/self/status").unwrap_or_default();
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    effective.and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok()).unwrap_or(0)
}

/// Checks that this process has the capabilities with which a server acts for all users.
fn privileges() -> Check {
    let held = capabilities();
    let lacks = |(_, bit): &&(&str, u32)| held & (1 << bit) == 0;
    let missing: Vec<&str> = CAPABILITIES.iter().filter(lacks).map(|(name, _)| *name).collect();
    if missing.is_empty() {
        return Check::ok("privileges", "enough to act for every user and to use the kernel's file handles");
    }
    let finding = format!(
        "this user lacks {}: clients act as one user, and old file handles are found by walking the tree",
        missing.join(", ")
    );
    Check::warn("privileges", finding).mend(
        "run the server as root, for instance by packaging/forebay.service",
        "only you know whether this user is the one that is to serve",
    )
}

/// Checks that the server may open as many files as its limits need, given that it raises its own limit.
fn open_files(limits: &Limits) -> Check {
    // The constant covers the listeners, the state directory, libraries and the control socket.
    let needed = (limits.connections + limits.open_files + 256) as u64;
    let hard = getrlimit(Resource::Nofile).maximum.unwrap_or(u64::MAX);
    // The server raises its own limit. With CAP_SYS_RESOURCE (24) it may exceed the hard limit.
    let may_raise = capabilities() & (1 << 24) != 0;
    let system = read("/proc/sys/fs/nr_open").and_then(|text| text.parse().ok()).unwrap_or(hard);
    let maximum = if may_raise { hard.max(system) } else { hard };
    if maximum >= needed {
        return Check::ok("open files", format!("the server may open {maximum}, and needs at most {needed}"));
    }
    let finding = format!("at most {maximum}, but connections and cached files may need {needed}");
    let check = Check::warn("open files", finding);
    if may_raise {
        return check.mend_by_writing("/proc/sys/fs/nr_open", needed.next_power_of_two().to_string());
    }
    check.mend(
        "ulimit -Hn 1048576, or LimitNOFILE=1048576 in the systemd unit",
        "a limit counts from the next start of the server on; run as root, the server raises its own",
    )
}

/// Checks the largest buffer that TCP's autotuning may use (tcp(7)).
pub(super) fn socket_buffers(name: &str, wanted: &str) -> Option<Check> {
    let path = format!("/proc/sys/net/ipv4/{name}");
    let largest: u64 = read(&path)?.split_whitespace().nth(2)?.parse().ok()?;
    let subject = format!("socket buffers ({name})");
    if largest >= 4 << 20 {
        return Some(Check::ok(subject, format!("up to {}", format_size(largest))));
    }
    let finding = format!(
        "up to {} only: requests of 1 MiB from distant clients wait for the window",
        format_size(largest)
    );
    Some(Check::warn(subject, finding).mend_by_writing(path, wanted))
}

/// Checks that the kernel lets enough connections wait to be accepted. Returns `None` if the value cannot be read.
fn backlog() -> Option<Check> {
    let path = "/proc/sys/net/core/somaxconn";
    let backlog: u64 = read(path)?.parse().ok()?;
    if backlog >= 1024 {
        return Some(Check::ok("connection backlog", backlog.to_string()));
    }
    let finding = format!("{backlog}: when many clients come back at once, some are refused");
    Some(Check::warn("connection backlog", finding).mend_by_writing(path, "4096"))
}

/// Returns a figure of /proc/meminfo in bytes.
pub(super) fn meminfo(key: &str) -> Option<u64> {
    let table = read("/proc/meminfo")?;
    let line = table.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':'))?;
    line.split_whitespace().next()?.parse::<u64>().ok()?.checked_mul(1024)
}

/// Checks that the host has the memory that the server may use by its limits. Returns `None` if the kernel does not
/// tell.
fn memory(limits: &Limits) -> Option<Check> {
    let available = meminfo("MemAvailable")?;
    let needed = limits.memory + limits.reply_cache_memory + limits.metadata_memory;
    let finding = format!("{} available, the server may use {}", format_size(available), format_size(needed));
    Some(match available > needed {
        true => Check::ok("memory", finding),
        false => Check::warn("memory", finding).mend(
            "lower --memory or --metadata-memory, or free memory",
            "only you know which program has to do with less",
        ),
    })
}

/// Checks the amount of dirty pages at which the kernel begins to write back. A COMMIT may have to wait for all of
/// them.
fn dirty_pages() -> Option<Check> {
    let path = "/proc/sys/vm/dirty_background_bytes";
    let bytes: u64 = read(path)?.parse().ok()?;
    let ratio: u64 = read("/proc/sys/vm/dirty_background_ratio")?.parse().ok()?;
    let threshold = if bytes > 0 { bytes } else { meminfo("MemAvailable")? / 100 * ratio };
    let shown = format_size(threshold);
    if threshold <= 2 << 30 {
        return Some(Check::ok("write-back", format!("begins at {shown} of written pages")));
    }
    let finding = format!("begins only at {shown} of written pages: a COMMIT may wait for all of them");
    Some(Check::warn("write-back", finding).mend_by_writing(path, (512 << 20).to_string()))
}

/// Checks that reading the time needs no slow device. Returns `None` if the kernel does not name its clock source.
fn clock() -> Option<Check> {
    let source = read("/sys/devices/system/clocksource/clocksource0/current_clocksource")?;
    let slow = matches!(source.as_str(), "hpet" | "acpi_pm" | "jiffies" | "refined-jiffies");
    if !slow {
        return Some(Check::ok("clock source", source));
    }
    let finding = format!("{source}: reading the time costs a microsecond or more, several times a request");
    Some(Check::warn("clock source", finding).mend(
        "see why the kernel distrusts the TSC: dmesg | grep -i -e tsc -e clocksource",
        "a clock that the kernel has found wrong must not be forced upon it",
    ))
}

/// Checks that the clock follows a time server. Kerberos, certificates and the times of files need that.
pub(super) fn time_sync(host: &Machine) -> Option<Check> {
    // SAFETY: zeros are a valid value, which asks for the state and sets nothing.
    let mut state: libc::timex = unsafe { std::mem::zeroed() };
    // SAFETY: the value is live.
    let result = unsafe { libc::adjtimex(&raw mut state) };
    (result >= 0).then(|| judge_time(state.status & libc::STA_UNSYNC == 0, host))
}

/// Services that keep the time, the preferred ones first. Another name of one of them comes after it.
const CLOCKS: [&str; 5] =
    ["chrony.service", "chronyd.service", "systemd-timesyncd.service", "ntpsec.service", "ntpd.service"];

/// Returns the finding about the host's clock. `--apply` starts a service that is installed, unless one runs.
fn judge_time(is_synchronised: bool, host: &Machine) -> Check {
    if is_synchronised {
        return Check::ok("time", "follows a time server");
    }
    let finding =
        "follows no time server: the times of files differ between hosts, and Kerberos may refuse clients";
    let check = Check::warn("time", finding);
    let services: Vec<_> = CLOCKS.iter().filter_map(|name| Some((*name, host.unit(name)?))).collect();
    if let Some((name, _)) = services.iter().find(|(_, state)| state.is_active) {
        let command =
            format!("see its servers with `chronyc sources` or `timedatectl timesync-status`; {name}");
        return check.mend(command, "a time service runs, and has reached no server yet");
    }
    match services.first() {
        Some((name, _)) => check
            .mend_by(format!("systemctl enable --now {name}"), vec![Step::Unit { name: (*name).to_owned() }]),
        None => check.mend(
            "install chrony, then systemctl enable --now chrony",
            "no time service is installed, or systemd does not run this host",
        ),
    }
}

/// Checks that the kernel can encrypt connections with TLS.
pub(super) fn kernel_tls() -> Check {
    // The file is there while the module is loaded.
    judge_tls(Path::new("/proc/net/tls_stat").exists())
}

/// Returns the finding about the kernel's TLS.
fn judge_tls(is_loaded: bool) -> Check {
    let subject = "encryption (TLS)";
    if is_loaded {
        return Check::ok(subject, "the kernel encrypts connections");
    }
    let finding =
        "the kernel's module tls is not loaded: the server itself encrypts, and large READs are copied";
    Check::warn(subject, finding).mend_by(
        "modprobe tls, before the server starts; packaging/forebay.service does so",
        vec![Step::Module { name: "tls".to_owned() }, Step::module_at_each_start("tls")],
    )
}

/// Checks that the kernel does not move the server's memory between NUMA nodes.
fn numa_balancing() -> Option<Check> {
    let path = "/proc/sys/kernel/numa_balancing";
    let nodes = std::fs::read_dir("/sys/devices/system/node").ok()?.flatten();
    let nodes = nodes.filter(|entry| {
        let name = entry.file_name().to_string_lossy().into_owned();
        name.strip_prefix("node").is_some_and(|number| number.parse::<u32>().is_ok())
    });
    judge_numa(nodes.count(), read(path)? != "0", path)
}

/// Returns the finding about NUMA balancing on a host with this number of nodes. A host with one node has none.
fn judge_numa(nodes: usize, is_balancing: bool, path: &str) -> Option<Check> {
    let subject = "NUMA balancing";
    match (nodes, is_balancing) {
        (0 | 1, _) => None,
        (_, false) => Some(Check::ok(subject, format!("off, on {nodes} nodes"))),
        (_, true) => {
            let finding = format!("on, with {nodes} nodes: threads stop while the kernel moves their memory");
            Some(Check::warn(subject, finding).mend_by_writing(path, "0"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::State;
    use super::super::apply::tests::program;
    use super::*;

    #[test]
    fn encryption_without_the_module_is_a_warning() {
        assert!(judge_tls(true).state == State::Ok && judge_tls(true).fix.is_none());
        let missing = judge_tls(false);
        let fix = missing.fix.unwrap();
        assert!(missing.state == State::Warn && fix.command.contains("modprobe tls"));
        assert_eq!(fix.steps.len(), 2, "now, and at each start");
    }

    #[test]
    fn a_time_service_that_is_installed_is_started() {
        let dir = tempfile::TempDir::new().unwrap();
        let host = Machine::below(dir.path());
        let judged = || judge_time(false, &host).fix.unwrap();
        assert!(judge_time(true, &host).fix.is_none());
        assert!(judged().command.starts_with("install chrony"), "systemd does not run the host");
        std::fs::create_dir_all(dir.path().join("run/systemd/system")).unwrap();
        let systemctl = |active: bool| {
            let script = format!(
                "case \"$*\" in *LoadState*timesyncd*) echo loaded;; *LoadState*) echo not-found;; is-enabled*) exit 1;; \
                 is-active*) {active};; esac"
            );
            program(dir.path(), "systemctl", &script);
        };
        systemctl(false);
        assert_eq!(judged().steps, [Step::Unit { name: "systemd-timesyncd.service".to_owned() }]);
        systemctl(true);
        assert!(judged().steps.is_empty(), "it runs already");
    }
}
