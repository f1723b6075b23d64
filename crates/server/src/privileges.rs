//! The limits of the process: as many open files as allowed, and no privilege that the server does not use.

use rustix::process::{Resource, Rlimit, configure_io_flusher_behavior, getrlimit, setrlimit};
use rustix::thread::{CapabilitySet, CapabilitySets, capabilities, set_capabilities};

/// Raises the limit on open files as far as the system lets it; returns the limit in force.
pub(crate) fn raise_open_files() -> u64 {
    let now = getrlimit(Resource::Nofile);
    let system =
        std::fs::read_to_string("/proc/sys/fs/nr_open").ok().and_then(|text| text.trim().parse().ok());
    let wanted = system.unwrap_or(1 << 20).min(1 << 20);
    // A limit above the hard limit needs CAP_SYS_RESOURCE. Without it the hard limit is the maximum.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: Some(wanted), maximum: Some(wanted) })
        .or_else(|_| setrlimit(Resource::Nofile, Rlimit { current: now.maximum, maximum: now.maximum }));
    getrlimit(Resource::Nofile).current.unwrap_or(1 << 20)
}

/// Lets this thread, and each thread and process that it starts, allocate memory without waiting for block devices. A
/// host that is short of memory frees some by writing to its devices. If a device of the host is a volume of this
/// server, over ublk or its own NBD client, that write waits for the server. So the server must not wait for the write
/// when it allocates memory to carry the write out: PR_SET_IO_FLUSHER of prctl(2). Any thread of the server may have a
/// part in that: the log, destaging, and the event loops. Needs Linux 5.6, and CAP_SYS_RESOURCE until
/// [`drop_capabilities`].
pub(crate) fn serve_devices_of_host() {
    if let Err(errno) = configure_io_flusher_behavior(true) {
        tracing::debug!("memory for block devices of this host may have to wait for them: {errno}");
    }
}

/// Drops every capability except those for listening and for serving files on behalf of users. Must be called before
/// threads are started, because each thread has its own set. CAP_SYS_RESOURCE is dropped, so that quotas and the blocks
/// reserved for root hold for clients too.
pub(crate) fn drop_capabilities() {
    let keep = CapabilitySet::CHOWN
        | CapabilitySet::DAC_OVERRIDE
        | CapabilitySet::DAC_READ_SEARCH
        | CapabilitySet::FOWNER
        | CapabilitySet::FSETID
        | CapabilitySet::MKNOD
        | CapabilitySet::NET_BIND_SERVICE
        | CapabilitySet::SETGID
        | CapabilitySet::SETUID;
    let Ok(held) = capabilities(None) else { return };
    let kept = held.permitted & keep;
    let sets = CapabilitySets { effective: kept, permitted: kept, inheritable: CapabilitySet::empty() };
    if let Err(errno) = set_capabilities(None, sets) {
        tracing::warn!("cannot drop privileges that are not needed: {errno}");
    }
}
