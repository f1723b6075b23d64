//! The system calls that the server makes after it has given up its privileges. The server's filter is made of this
//! list, and a test compares the filter of `packaging/forebay.service` with it.
//!
//! The list leaves out the calls that no code of the server, of its crates or of the C library needs. For example, the
//! server executes no program, traces no process, mounts nothing, and touches no module, key, namespace or clock.

/// Numbers of system calls, from their constants.
macro_rules! calls {
    ($($call:ident)*) => { &[$(libc::$call),*] };
}

/// The system calls that every architecture has.
const COMMON: &[libc::c_long] = calls! {
    // Memory.
    SYS_brk SYS_madvise SYS_membarrier SYS_mincore SYS_mmap SYS_mprotect SYS_mremap SYS_munmap
    // Threads and time.
    SYS_clock_getres SYS_clock_gettime SYS_clock_nanosleep SYS_clone SYS_clone3 SYS_exit SYS_exit_group SYS_futex
    SYS_get_robust_list SYS_getcpu SYS_getpid SYS_getppid SYS_getrandom SYS_gettid SYS_gettimeofday SYS_nanosleep SYS_prctl
    SYS_restart_syscall SYS_rseq SYS_sched_getaffinity SYS_sched_getparam SYS_sched_getscheduler SYS_sched_yield
    SYS_set_robust_list SYS_set_tid_address SYS_uname SYS_sysinfo
    // Signals, and the process that asks disks for their health.
    SYS_kill SYS_pidfd_open SYS_pidfd_send_signal SYS_rt_sigaction SYS_rt_sigpending SYS_rt_sigprocmask SYS_rt_sigreturn
    SYS_rt_sigsuspend SYS_rt_sigtimedwait SYS_sigaltstack SYS_tgkill SYS_tkill SYS_wait4 SYS_waitid
    // Limits and use.
    SYS_getrlimit SYS_getrusage SYS_prlimit64 SYS_times
    // Contents of files.
    SYS_close SYS_close_range SYS_copy_file_range SYS_dup SYS_dup3 SYS_fadvise64 SYS_fallocate SYS_fcntl SYS_fdatasync
    SYS_flock SYS_fsync SYS_ftruncate SYS_ioctl SYS_lseek SYS_openat SYS_openat2 SYS_pread64 SYS_preadv SYS_preadv2
    SYS_pwrite64 SYS_pwritev SYS_pwritev2 SYS_read SYS_readahead SYS_readv SYS_sendfile SYS_splice SYS_sync SYS_sync_file_range
    SYS_syncfs SYS_tee SYS_truncate SYS_vmsplice SYS_write SYS_writev
    // Names and attributes of files.
    SYS_chdir SYS_faccessat SYS_faccessat2 SYS_fchmod SYS_fchmodat SYS_fchmodat2 SYS_fchown SYS_fchownat SYS_fgetxattr
    SYS_flistxattr SYS_fremovexattr SYS_fsetxattr SYS_fstat SYS_fstatfs SYS_getcwd SYS_getdents64 SYS_getxattr SYS_lgetxattr
    SYS_linkat SYS_listxattr SYS_llistxattr SYS_lremovexattr SYS_lsetxattr SYS_mkdirat SYS_mknodat SYS_name_to_handle_at
    SYS_newfstatat SYS_open_by_handle_at SYS_readlinkat SYS_removexattr SYS_renameat SYS_renameat2 SYS_setxattr SYS_statfs
    SYS_statx SYS_symlinkat SYS_umask SYS_unlinkat SYS_utimensat
    // Notifications and quotas.
    SYS_fanotify_init SYS_fanotify_mark SYS_inotify_add_watch SYS_inotify_init1 SYS_inotify_rm_watch SYS_quotactl_fd
    // Identities of callers.
    SYS_capget SYS_capset SYS_getegid SYS_geteuid SYS_getgid SYS_getgroups SYS_getresgid SYS_getresuid SYS_getuid
    SYS_setgroups SYS_setresgid SYS_setresuid
    // Sockets and waiting.
    SYS_accept SYS_accept4 SYS_bind SYS_connect SYS_epoll_create1 SYS_epoll_ctl SYS_epoll_pwait SYS_epoll_pwait2 SYS_eventfd2
    SYS_getpeername SYS_getsockname SYS_getsockopt SYS_listen SYS_pipe2 SYS_ppoll SYS_pselect6 SYS_recvfrom SYS_recvmmsg
    SYS_recvmsg SYS_sendmmsg SYS_sendmsg SYS_sendto SYS_setsockopt SYS_shutdown SYS_socket SYS_socketpair SYS_timerfd_create
    SYS_timerfd_settime
    // Cache devices. An operation on a ring is not a system call: no filter sees it.
    SYS_io_uring_enter SYS_io_uring_register SYS_io_uring_setup
};

/// Older system calls that newer architectures do not have.
#[cfg(target_arch = "x86_64")]
const OLDER: &[libc::c_long] = calls! {
    SYS_access SYS_alarm SYS_arch_prctl SYS_chmod SYS_chown SYS_creat SYS_dup2 SYS_epoll_create SYS_epoll_wait SYS_eventfd
    SYS_futimesat SYS_getdents SYS_lchown SYS_link SYS_lstat SYS_mkdir SYS_mknod SYS_open SYS_pause SYS_pipe SYS_poll SYS_readlink
    SYS_rename SYS_rmdir SYS_select SYS_stat SYS_symlink SYS_time SYS_unlink SYS_utime SYS_utimes
};
#[cfg(not(target_arch = "x86_64"))]
const OLDER: &[libc::c_long] = &[];

/// Returns the numbers of the allowed system calls, ascending, each once.
pub(crate) fn allowed() -> Vec<u32> {
    let all = COMMON.iter().chain(OLDER).filter_map(|number| u32::try_from(*number).ok());
    let mut all: Vec<_> = all.collect();
    all.sort_unstable();
    all.dedup();
    all
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use std::collections::{HashMap, HashSet};
    use std::process::Command;

    /// Returns the names in the sets of system calls of this machine's systemd, with nested sets resolved.
    fn sets() -> Option<HashMap<String, Vec<String>>> {
        let listed = Command::new("systemd-analyze").args(["syscall-filter", "--no-pager"]).output().ok()?;
        let mut sets: HashMap<String, Vec<String>> = HashMap::new();
        let mut set = String::new();
        for line in String::from_utf8(listed.stdout).ok()?.lines() {
            match line.split_whitespace().next() {
                Some(name) if line.starts_with('@') => name.clone_into(&mut set),
                Some(name) if line.starts_with(' ') && !name.starts_with('#') => {
                    sets.entry(set.clone()).or_default().push(name.to_owned());
                }
                _ => {}
            }
        }
        Some(sets)
    }

    fn expand(name: &str, sets: &HashMap<String, Vec<String>>, into: &mut HashSet<String>) {
        match sets.get(name) {
            Some(names) => names.iter().for_each(|name| expand(name, sets, into)),
            None => drop(into.insert(name.to_owned())),
        }
    }

    /// Returns the calls that a unit allows.
    fn allowed_by(unit: &str, sets: &HashMap<String, Vec<String>>) -> HashSet<String> {
        let mut allowed = HashSet::new();
        for line in unit.lines().filter_map(|line| line.strip_prefix("SystemCallFilter=")) {
            let mut named = HashSet::new();
            let (names, is_removal) = line.strip_prefix('~').map_or((line, false), |names| (names, true));
            names.split_whitespace().for_each(|name| expand(name, sets, &mut named));
            match is_removal {
                true => allowed.retain(|name| !named.contains(name)),
                false => allowed.extend(named),
            }
        }
        allowed
    }

    #[test]
    fn the_shipped_units_allow_every_call_of_the_server_and_of_its_helpers() {
        let (Some(sets), Ok(header)) =
            (sets(), std::fs::read_to_string("/usr/include/x86_64-linux-gnu/asm/unistd_64.h"))
        else {
            eprintln!("not run: it needs systemd-analyze and the kernel's headers");
            return;
        };
        let numbers = header.lines().filter_map(|line| line.strip_prefix("#define __NR_")?.split_once(' '));
        let names: HashMap<u32, &str> =
            numbers.filter_map(|(name, number)| Some((number.trim().parse().ok()?, name))).collect();
        // Calls made before the server's own filter holds: for the filter itself, and for the process that asks disks.
        let mut early = vec!["seccomp", "execve", "vfork", "chdir", "setsid", "umask"];
        // Calls of the process that sends notifications, which has no filter of its own.
        early.extend(["memfd_create", "pidfd_open", "setpgid"]);
        let server = include_str!("../../../../packaging/forebay.service");
        let helper = include_str!("../../../../packaging/forebay-privileged@.service");
        // A helper opens no file by its handle, and makes no device file.
        let not_of_helpers =
            ["name_to_handle_at", "open_by_handle_at", "mknod", "mknodat", "mincore", "quotactl_fd"];
        for (unit, left_out) in [(server, &[][..]), (helper, &not_of_helpers)] {
            let allowed = allowed_by(unit, &sets);
            let listed = super::allowed();
            let wanted =
                early.iter().copied().chain(listed.iter().filter_map(|number| names.get(number).copied()));
            let lacking: Vec<_> =
                wanted.filter(|name| !allowed.contains(*name) && !left_out.contains(name)).collect();
            assert!(lacking.is_empty(), "a unit of packaging/ forbids {lacking:?}");
        }
    }
}
