//! CPU time of this process, and of a server on this machine.

use std::fs;
use std::time::Duration;

/// Returns the CPU time of a process: all threads, user and system. `None` if the process is gone.
pub(crate) fn process_time(pid: u32) -> Option<Duration> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name in parentheses may contain any character, so fields are counted after it (proc(5): utime is 14, stime
    // 15).
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_ascii_whitespace().collect();
    let ticks = fields.get(11)?.parse::<u64>().ok()? + fields.get(12)?.parse::<u64>().ok()?;
    Some(Duration::from_secs_f64(ticks as f64 / rustix::param::clock_ticks_per_second() as f64))
}

/// Returns the CPU time of this process.
pub(crate) fn own_time() -> Option<Duration> {
    process_time(std::process::id())
}

/// Returns the CPU time of all processes and the kernel since the start of the machine; `None` if the system does not
/// report it.
pub(crate) fn machine_time() -> Option<Duration> {
    machine_ticks(&fs::read_to_string("/proc/stat").ok()?)
        .map(|ticks| Duration::from_secs_f64(ticks as f64 / rustix::param::clock_ticks_per_second() as f64))
}

/// Returns the busy ticks in the first line of /proc/stat (proc(5)). Idle time and disk waits are not busy. Guest
/// time is left out, because user time already includes it.
fn machine_ticks(stat: &str) -> Option<u64> {
    let line = stat.lines().next()?.strip_prefix("cpu ")?;
    let ticks: Vec<u64> = line.split_ascii_whitespace().map_while(|field| field.parse().ok()).collect();
    let busy = [0, 1, 2, 5, 6];
    busy.iter().map(|place| ticks.get(*place)).sum()
}

/// Returns the process that listens on a local TCP port, if this user may see it.
pub(crate) fn listener_of(port: u16) -> Option<u32> {
    let inodes: Vec<String> = ["/proc/net/tcp", "/proc/net/tcp6"]
        .iter()
        .filter_map(|path| fs::read_to_string(path).ok())
        .flat_map(|table| table.lines().filter_map(|line| listening_inode(line, port)).collect::<Vec<_>>())
        .collect();
    let wanted: Vec<String> = inodes.iter().map(|inode| format!("socket:[{inode}]")).collect();
    fs::read_dir("/proc").ok()?.flatten().find_map(|process| {
        let pid: u32 = process.file_name().to_str()?.parse().ok()?;
        let owns = fs::read_dir(process.path().join("fd")).ok()?.flatten().any(|fd| {
            fs::read_link(fd.path())
                .is_ok_and(|link| wanted.iter().any(|wanted| link.as_os_str() == wanted.as_str()))
        });
        owns.then_some(pid)
    })
}

/// Returns the inode of the socket in a line of /proc/net/tcp, if the socket listens on `port`.
fn listening_inode(line: &str, port: u16) -> Option<String> {
    const LISTEN: &str = "0A";
    let fields: Vec<&str> = line.split_ascii_whitespace().collect();
    let local = fields.get(1)?.rsplit_once(':')?.1;
    let matches = *fields.get(3)? == LISTEN && u16::from_str_radix(local, 16) == Ok(port);
    matches.then(|| fields.get(9).map(|inode| (*inode).to_owned()))?
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn what_is_idle_waits_or_is_stolen_is_not_busy() {
        let stat = "cpu  100 20 30 4000 500 6 7 800 90 10\ncpu0 1 2 3\n";
        assert_eq!(machine_ticks(stat), Some(163));
        assert_eq!(machine_ticks("intr 1 2"), None);
        assert!(machine_time() > own_time());
    }

    #[test]
    fn the_owner_of_a_port_is_found() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        assert_eq!(listener_of(listener.local_addr().unwrap().port()), Some(std::process::id()));
        assert!(own_time().is_some());
    }
}
