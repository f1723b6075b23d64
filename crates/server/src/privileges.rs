//! The limits of the process: as many open files as allowed, and no privilege that the server does not use.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
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
