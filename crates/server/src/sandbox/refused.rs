//! The system calls that a filter around the server forbids: a filter of the service manager, or of a container.
//!
//! A forbidden call fails with EPERM, which a probe would read as "this file system lacks the feature". Therefore each
//! call that a feature depends on is made once at the start. Its arguments make the kernel refuse it with another error
//! before the call has any effect.

use rustix::io::Errno;
use rustix::thread::{CapabilitySet, capabilities};

/// A forbidden system call, and how the server works without it.
#[derive(Debug)]
pub(crate) struct Refused {
    pub(crate) call: &'static str,
    pub(crate) consequence: &'static str,
}

struct Probe {
    call: &'static str,
    number: libc::c_long,
    arguments: [libc::c_long; 6],
    /// Without these capabilities the kernel itself returns EPERM.
    needs: CapabilitySet,
    consequence: &'static str,
}

/// No file is open under this number.
const NONE: libc::c_long = -1;

/// Returns a probe that needs no capability.
fn probe(
    call: &'static str,
    number: libc::c_long,
    arguments: [libc::c_long; 6],
    consequence: &'static str,
) -> Probe {
    Probe { call, number, arguments, needs: CapabilitySet::empty(), consequence }
}

/// Returns every call without an equal replacement. `fchmodat2` is left out: the server has an equal replacement.
fn probes() -> Vec<Probe> {
    let names = "clients cannot change names";
    let identities = "the server cannot act as its clients, and refuses what they ask for";
    let rings = "cache devices are read and written one request after the other";
    let contents = "reads and writes fail";
    vec![
        probe(
            "quotactl_fd",
            libc::SYS_quotactl_fd,
            [NONE, 0, 0, 0, 0, 0],
            "quotas cannot be seen: writes of all users but root go to the backing file and not to the cache",
        ),
        // The address is not the start of a page.
        probe("mincore", libc::SYS_mincore, [1, 0, 0, 0, 0, 0], "large reads are copied, by worker threads"),
        probe("splice", libc::SYS_splice, [NONE, 0, NONE, 0, 1, 0], "large reads are copied"),
        probe("preadv2", libc::SYS_preadv2, [NONE, 0, 0, 0, 0, 0], contents),
        probe("pwritev2", libc::SYS_pwritev2, [NONE, 0, 0, 0, 0, 0], contents),
        probe("fallocate", libc::SYS_fallocate, [NONE, 0, 0, 1, 0, 0], "cache files cannot be made"),
        probe(
            "sync_file_range",
            libc::SYS_sync_file_range,
            [NONE, 0, 0, 0, 0, 0],
            "writes cannot be made durable",
        ),
        probe("syncfs", libc::SYS_syncfs, [NONE, 0, 0, 0, 0, 0], "nothing can be made durable after a crash"),
        probe("flock", libc::SYS_flock, [NONE, 0, 0, 0, 0, 0], "another server is not noticed"),
        probe("openat2", libc::SYS_openat2, [NONE, 0, 0, 0, 0, 0], "names cannot be looked up"),
        probe("statx", libc::SYS_statx, [NONE, 0, -1, 0, 0, 0], "attributes cannot be read"),
        probe("faccessat2", libc::SYS_faccessat2, [NONE, 0, -1, 0, 0, 0], "permissions cannot be asked for"),
        probe("renameat2", libc::SYS_renameat2, [NONE, 0, NONE, 0, -1, 0], names),
        probe("mknodat", libc::SYS_mknodat, [NONE, 0, libc::S_IFMT as libc::c_long, 0, 0, 0], names),
        probe("fchownat", libc::SYS_fchownat, [NONE, 0, -1, -1, -1, 0], "owners cannot be changed"),
        probe("fgetxattr", libc::SYS_fgetxattr, [NONE, 0, 0, 0, 0, 0], "access control lists cannot be read"),
        probe(
            "fsetxattr",
            libc::SYS_fsetxattr,
            [NONE, 0, 0, 0, 0, 0],
            "access control lists are lost at recovery",
        ),
        // Each argument means "no change".
        probe("setresuid", libc::SYS_setresuid, [-1, -1, -1, 0, 0, 0], identities),
        probe("setresgid", libc::SYS_setresgid, [-1, -1, -1, 0, 0, 0], identities),
        // The number of groups is larger than the kernel allows.
        Probe {
            needs: CapabilitySet::SETGID,
            ..probe("setgroups", libc::SYS_setgroups, [1 << 20, 0, 0, 0, 0, 0], identities)
        },
        probe("io_uring_setup", libc::SYS_io_uring_setup, [0, 0, 0, 0, 0, 0], rings),
        probe("io_uring_enter", libc::SYS_io_uring_enter, [NONE, 0, 0, 0, 0, 0], rings),
        probe("io_uring_register", libc::SYS_io_uring_register, [NONE, 0xffff, 0, 0, 0, 0], rings),
        probe(
            "name_to_handle_at",
            libc::SYS_name_to_handle_at,
            [NONE, 0, 0, 0, -1, 0],
            "file handles are not the kernel's: handles that clients have are stale if they were, and a rename on the host breaks others",
        ),
        Probe {
            needs: CapabilitySet::DAC_READ_SEARCH,
            ..probe(
                "open_by_handle_at",
                libc::SYS_open_by_handle_at,
                [NONE, 0, 0, 0, 0, 0],
                "file handles are not the kernel's: handles that clients have are stale if they were, and a rename on the host breaks others",
            )
        },
        Probe {
            needs: CapabilitySet::SYS_ADMIN,
            ..probe(
                "fanotify_init",
                libc::SYS_fanotify_init,
                [-1, 0, 0, 0, 0, 0],
                "changes on the host are not told by the kernel, and fewer answers come from memory",
            )
        },
    ]
}

/// Returns the calls that fail with EPERM or EACCES although nothing in the kernel forbids them. Must be called while
/// the process still has its privileges. In a container with its own user ids no call is probed: the kernel itself
/// returns EPERM there.
pub(crate) fn refused() -> Vec<Refused> {
    if in_user_namespace() {
        return Vec::new();
    }
    let held = capabilities(None).map_or(CapabilitySet::empty(), |sets| sets.effective);
    let asked = probes().into_iter().filter(|probe| held.contains(probe.needs));
    let refused = asked.filter(|probe| matches!(ask(probe), Err(Errno::PERM | Errno::ACCESS)));
    refused.map(|Probe { call, consequence, .. }| Refused { call, consequence }).collect()
}

/// Makes the call of a probe. The arguments keep the call from having an effect, so an error is the normal result.
fn ask(probe: &Probe) -> Result<(), Errno> {
    let [a, b, c, d, e, f] = probe.arguments;
    // SAFETY: no argument is the address of an object: every pointer is null, 1 or a flag. If the kernel reads from
    // such an address, the call fails with EFAULT.
    let result = unsafe { libc::syscall(probe.number, a, b, c, d, e, f) };
    match result {
        0.. => Ok(()),
        _ => Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)),
    }
}

/// Returns true if user ids here differ from those outside (user_namespaces(7)).
fn in_user_namespace() -> bool {
    let Ok(map) = std::fs::read_to_string("/proc/self/uid_map") else { return false };
    map.split_whitespace().collect::<Vec<_>>() != ["0", "0", "4294967295"]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_refused_where_nobody_filters() {
        let filtered = std::fs::read_to_string("/proc/self/status").unwrap().contains("Seccomp:\t2");
        assert!(filtered || refused().is_empty(), "{:?}", refused());
    }

    #[test]
    fn a_probe_changes_nothing_and_fails_before_it_does_anything() {
        for probe in probes() {
            let done = ask(&probe);
            let harmless = ["setresuid", "setresgid"].contains(&probe.call);
            assert_eq!(done.is_ok(), harmless, "{}: {done:?}", probe.call);
        }
    }
}
