//! CPU time of this process and of a server on the same machine.

use std::fs;
use std::time::Duration;

/// CPU time that a process has used, all its threads, user and system; `None` where it is gone.
pub(crate) fn process_time(pid: u32) -> Option<Duration> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name in parentheses may hold anything: fields are counted behind it (proc(5): utime is 14, stime 15).
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_ascii_whitespace().collect();
    let ticks = fields.get(11)?.parse::<u64>().ok()? + fields.get(12)?.parse::<u64>().ok()?;
    Some(Duration::from_secs_f64(ticks as f64 / rustix::param::clock_ticks_per_second() as f64))
}

/// CPU time of this process.
pub(crate) fn own_time() -> Option<Duration> {
    process_time(std::process::id())
}

/// CPU time that everything on this machine has used, the kernel's own work included; `None` if the system does not tell.
pub(crate) fn machine_time() -> Option<Duration> {
    machine_ticks(&fs::read_to_string("/proc/stat").ok()?)
        .map(|ticks| Duration::from_secs_f64(ticks as f64 / rustix::param::clock_ticks_per_second() as f64))
}

/// The busy ticks in the first line of /proc/stat (proc(5)): all but idle, waiting for a disk, and the guests, which
/// count as user time already.
fn machine_ticks(stat: &str) -> Option<u64> {
    let line = stat.lines().next()?.strip_prefix("cpu ")?;
    let ticks: Vec<u64> = line.split_ascii_whitespace().map_while(|field| field.parse().ok()).collect();
    let busy = [0, 1, 2, 5, 6];
    busy.iter().map(|place| ticks.get(*place)).sum()
}

/// The process that listens on a local TCP port, as far as this user may see.
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

/// The inode in a line of /proc/net/tcp that is a socket listening on `port`.
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
