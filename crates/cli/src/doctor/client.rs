//! Checks of a client host: its NFS mounts, their read-ahead, and TCP.

use std::net::{IpAddr, SocketAddr, TcpStream};
use std::os::fd::AsRawFd;
use std::path::Path;
use std::time::Duration;

use super::interface::MTU;
use super::machine::Machine;
use super::mounts::Mount;
use super::step::Step;
use super::{Check, host};

/// The read size and write size of a mount below which large requests are split, in bytes.
const LARGE: u64 = 1 << 20;
/// Read-ahead of a mount in KiB below which streams wait for each request.
const READ_AHEAD_KIB: u64 = 1024;
/// Read-ahead in KiB that the check proposes.
const READ_AHEAD_WANTED_KIB: u64 = 16_384;
/// Connections of a mount that the check proposes.
const CONNECTIONS: u32 = 8;
/// Port of NFS, unless a mount names another one.
const NFS_PORT: u16 = 2049;
/// Requests in flight that the check proposes: the kernel's default.
const SLOTS: &str = "65536";
/// The bytes of a segment that TCP's time stamps take.
const TIME_STAMPS: u64 = 12;

/// The reason why mounts are left to the administrator.
const MOUNTS: &str = "options of a mount change when it is unmounted, which ends the programs that use it";

/// Checks the NFS mounts and the network settings of this host.
pub(super) fn check(host: &Machine) -> Vec<Check> {
    let mounts: Vec<_> = Mount::all().into_iter().filter(|mount| mount.fs_type.starts_with("nfs")).collect();
    let mut checks: Vec<_> = mounts.iter().flat_map(mounted).collect();
    if mounts.is_empty() {
        let line = format!("mount -t nfs -o {} SERVER:/ /mnt", wanted("4.2"));
        checks.push(Check::ok("NFS mounts", "none on this host").mend(line, MOUNTS));
    }
    checks.extend(host::socket_buffers("tcp_rmem", "4096 131072 16777216"));
    checks.extend(host::socket_buffers("tcp_wmem", "4096 65536 16777216"));
    checks.extend(slots());
    checks.extend(host::time_sync(host));
    checks
}

/// Returns the mount options that are good for most clients.
fn wanted(version: &str) -> String {
    format!("vers={version},hard,nconnect={CONNECTIONS},noatime")
}

/// Returns the checks of a mount on this host: its options, and its read-ahead.
fn mounted(mount: &Mount) -> Vec<Check> {
    let mut checks = judge(mount);
    let read_ahead = format!("/sys/class/bdi/{}/read_ahead_kb", mount.device);
    checks.extend(judge_read_ahead(mount, Path::new(&read_ahead)));
    checks.extend(frames(mount));
    checks
}

/// Compares the largest frame of this host with that of the server, by a connection that is made for that. Returns
/// `None` if the server is on this host, or does not answer within half a second.
fn frames(mount: &Mount) -> Option<Check> {
    let address: IpAddr = mount.value("addr")?.parse().ok()?;
    if address.is_loopback() {
        return None;
    }
    let port = mount.value("port").and_then(|port| port.parse().ok()).filter(|port| *port > 0);
    let server = SocketAddr::new(address, port.unwrap_or(NFS_PORT));
    let stream = TcpStream::connect_timeout(&server, Duration::from_millis(500)).ok()?;
    let (level, name) = match address {
        IpAddr::V4(_) => (libc::IPPROTO_IP, libc::IP_MTU),
        IpAddr::V6(_) => (libc::IPPROTO_IPV6, libc::IPV6_MTU),
    };
    let mtu = option(&stream, level, name)?;
    let segment = option(&stream, libc::IPPROTO_TCP, libc::TCP_MAXSEG)?;
    Some(judge_frames(mount, address, mtu, segment))
}

/// Returns a socket option that is a number.
fn option(stream: &TcpStream, level: i32, name: i32) -> Option<u64> {
    let mut value: libc::c_int = 0;
    let mut size = size_of::<libc::c_int>() as libc::socklen_t;
    // SAFETY: value and size are live, and size is that of value.
    let result =
        unsafe { libc::getsockopt(stream.as_raw_fd(), level, name, (&raw mut value).cast(), &raw mut size) };
    u64::try_from(value).ok().filter(|_| result == 0)
}

/// Judges the frames between this host, with frames of up to `mtu` bytes, and the server, which takes up to `segment`
/// bytes of data in a segment of TCP.
fn judge_frames(mount: &Mount, server: IpAddr, mtu: u64, segment: u64) -> Check {
    let subject = format!("{}: MTU", mount.point.display());
    let headers = if server.is_ipv4() { 40 } else { 60 };
    let taken = segment + headers + TIME_STAMPS;
    let test = format!("ping -M do -s {} {server}", mtu.saturating_sub(headers - 12));
    // Without time stamps a segment has more data.
    if taken >= mtu {
        let finding = format!("frames of {mtu} bytes at both ends");
        return Check::ok(subject, finding).mend(
            format!("{test} shows if the switches pass them"),
            "it needs nothing, unless the switches drop such frames",
        );
    }
    let finding = format!("{mtu} bytes here, and {taken} at the server: each frame to it has less data");
    Check::warn(subject, finding)
        .mend(format!("give the server's interface and the switches an MTU of {mtu}; then {test}"), MTU)
}

/// Judges the options of a mount. The remedy is a line to paste.
fn judge(mount: &Mount) -> Vec<Check> {
    let subject = |what: &str| format!("{}: {what}", mount.point.display());
    let version = mount.value("vers").unwrap_or("3");
    let fstab = format!(
        "umount {point} && mount -t nfs -o {options} {source} {point}, and the same options in /etc/fstab",
        point = mount.point.display(),
        options = wanted(version),
        source = mount.source.display(),
    );
    let mut checks = Vec::new();
    if mount.has("soft") || mount.has("softerr") {
        let finding = "soft: programs get an error while the server restarts, and may lose data";
        checks.push(Check::fail(subject("soft or hard"), finding).mend(&fstab, MOUNTS));
    }
    if mount.value("proto").is_some_and(|proto| proto.starts_with("udp")) {
        let finding = "UDP: Forebay serves NFS over TCP only, and UDP may corrupt data on fast networks";
        checks.push(Check::fail(subject("transport"), finding).mend(&fstab, MOUNTS));
    }
    if mount.has("noac") || mount.value("actimeo") == Some("0") {
        let finding = "attributes are not cached: each access asks the server. Few programs need that";
        checks.push(Check::warn(subject("attribute cache"), finding).mend(&fstab, MOUNTS));
    }
    if mount.has("sync") {
        let finding = "sync: each write waits for the server alone, however large the file";
        checks.push(Check::warn(subject("sync"), finding).mend(&fstab, MOUNTS));
    }
    if let Some((name, size)) = small_size(mount) {
        let finding = format!("{name}={size}: large requests are split; without the option it is {LARGE}");
        checks.push(Check::warn(subject("request size"), finding).mend(&fstab, MOUNTS));
    }
    let connections = mount.value("nconnect").and_then(|count| count.parse().ok()).unwrap_or(1);
    if connections < 2 && !is_local(mount) {
        let finding =
            format!("{connections}: one TCP stream limits the mount to one processor and one window");
        checks.push(Check::warn(subject("connections"), finding).mend(&fstab, MOUNTS));
    }
    if checks.is_empty() {
        checks.push(Check::ok(
            subject("mount options"),
            format!("vers={version}, nothing endangers or slows it"),
        ));
    }
    checks
}

/// Returns the request size that is small, with its name.
fn small_size(mount: &Mount) -> Option<(&'static str, u64)> {
    let size = |name| Some((name, mount.value(name)?.parse::<u64>().ok()?));
    [size("rsize"), size("wsize")].into_iter().flatten().find(|(_, size)| *size < LARGE)
}

/// Returns true if the server is on this host.
fn is_local(mount: &Mount) -> bool {
    let address = mount.value("addr").and_then(|address| address.parse::<std::net::IpAddr>().ok());
    address.is_some_and(|address| address.is_loopback())
}

/// Judges the read-ahead of a mount, which is 128 KiB since Linux 5.4.
fn judge_read_ahead(mount: &Mount, path: &Path) -> Option<Check> {
    let kib: u64 = std::fs::read_to_string(path).ok()?.trim().parse().ok()?;
    let subject = format!("{}: read-ahead", mount.point.display());
    if kib >= READ_AHEAD_KIB {
        return Some(Check::ok(subject, format!("{kib} KiB")));
    }
    let finding = format!("{kib} KiB: a sequential reader waits for each request");
    Some(Check::warn(subject, finding).mend_by_writing(path, READ_AHEAD_WANTED_KIB.to_string()))
}

/// Checks the number of requests that a connection of NFSv3 may have in flight.
fn slots() -> Option<Check> {
    let path = "/proc/sys/sunrpc/tcp_max_slot_table_entries";
    let most: u64 = std::fs::read_to_string(path).ok()?.trim().parse().ok()?;
    if most >= 128 {
        return Some(Check::ok("requests in flight", format!("up to {most} for each connection")));
    }
    let finding = format!("up to {most} for each connection of NFSv3: further requests wait");
    let keep = Step::module_parameter("sunrpc", "tcp_max_slot_table_entries", SLOTS);
    Some(Check::warn("requests in flight", finding).mend_by_keeping(path, SLOTS, Some(keep)))
}

#[cfg(test)]
mod tests {
    use super::super::State;
    use super::*;

    fn mount(options: &str) -> Mount {
        let line = format!("36 35 0:52 / /mnt/a rw,relatime - nfs4 nas:/data rw,{options}");
        Mount::parse(line.as_bytes()).unwrap()
    }

    fn found(options: &str) -> Vec<(String, State)> {
        judge(&mount(options)).into_iter().map(|check| (check.subject, check.state)).collect()
    }

    #[test]
    fn a_good_mount_is_one_line() {
        let options = "vers=4.2,rsize=1048576,wsize=1048576,hard,proto=tcp,nconnect=8,addr=10.0.0.1";
        assert_eq!(found(options), [("/mnt/a: mount options".to_owned(), State::Ok)]);
        let local = "vers=3,rsize=1048576,wsize=1048576,hard,proto=tcp,addr=127.0.0.1";
        assert_eq!(found(local), [("/mnt/a: mount options".to_owned(), State::Ok)]);
    }

    #[test]
    fn each_bad_option_is_a_finding_with_a_line_to_paste() {
        let options = "vers=3,rsize=65536,wsize=1048576,soft,noac,sync,proto=udp,addr=10.0.0.1";
        let subjects: Vec<_> =
            found(options).into_iter().map(|(subject, state)| (subject[8..].to_owned(), state)).collect();
        let expected = [
            ("soft or hard", State::Fail),
            ("transport", State::Fail),
            ("attribute cache", State::Warn),
            ("sync", State::Warn),
            ("request size", State::Warn),
            ("connections", State::Warn),
        ];
        assert_eq!(subjects, expected.map(|(subject, state)| (subject.to_owned(), state)));
        let command = judge(&mount("soft,vers=4.1"))[0].fix.clone().unwrap().command;
        assert!(
            command.contains("mount -t nfs -o vers=4.1,hard,nconnect=8,noatime nas:/data /mnt/a"),
            "{command}"
        );
    }

    #[test]
    fn a_server_with_smaller_frames_is_a_warning() {
        let judged = |server: &str, mtu, segment| {
            let check = judge_frames(&mount("vers=4.2"), server.parse().unwrap(), mtu, segment);
            (check.state, check.finding, check.fix.unwrap().command)
        };
        let (state, finding, fix) = judged("10.0.0.1", 1500, 1448);
        assert_eq!((state, &*finding), (State::Ok, "frames of 1500 bytes at both ends"));
        assert!(fix.starts_with("ping -M do -s 1472 10.0.0.1"), "{fix}");
        assert_eq!(judged("10.0.0.1", 1500, 1460).0, State::Ok, "without time stamps");
        let (state, finding, fix) = judged("10.0.0.1", 9000, 1448);
        assert!(state == State::Warn && finding.starts_with("9000 bytes here, and 1500 at"), "{finding}");
        assert!(fix.contains("MTU of 9000; then ping -M do -s 8972"), "{fix}");
        assert_eq!(judged("fd00::1", 9000, 8928).0, State::Ok);
        assert!(judged("fd00::1", 9000, 8928).2.starts_with("ping -M do -s 8952"));
    }

    #[test]
    fn the_frames_to_a_server_are_asked_of_the_kernel() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let mtu = option(&stream, libc::IPPROTO_IP, libc::IP_MTU).unwrap();
        let segment = option(&stream, libc::IPPROTO_TCP, libc::TCP_MAXSEG).unwrap();
        assert!(mtu > 1000 && segment < mtu, "{mtu} {segment}");
        assert_eq!(option(&stream, libc::IPPROTO_TCP, -1), None);
    }

    #[test]
    fn a_small_read_ahead_is_mended_by_writing() {
        let dir = tempfile::TempDir::new().unwrap();
        let path = dir.path().join("read_ahead_kb");
        std::fs::write(&path, "128\n").unwrap();
        let check = judge_read_ahead(&mount("vers=4.2"), &path).unwrap();
        assert_eq!(check.state, State::Warn);
        assert_eq!(check.fix.unwrap().steps, [Step::write(path.clone(), "16384")]);
        std::fs::write(&path, "16384\n").unwrap();
        assert_eq!(judge_read_ahead(&mount("vers=4.2"), &path).unwrap().state, State::Ok);
    }
}
