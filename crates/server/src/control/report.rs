//! The sections of a status and of a sample.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use forebay_control::{
    CachedFiles, ClientStateStatus, ClientStatus, DurabilityStatus, ExportStatus, Health, MetadataStatus,
    OperationSample, PoolStatus, ProcedureStatus, RefusedStatus, Snapshot,
};
use forebay_nfs::{Nfs, ProcedureStats, StateNumbers};
use forebay_rpc::Stats as TransportStats;
use forebay_vfs::{Export, Holdings, NAME_COST, lost_files};
use forebay_wire::nfs3::Procedure;
use forebay_wire::nfs4::Opcode;

use super::{Control, StateDir};
use crate::cache::Cache;
use crate::event_report::{elsewhere, stuck_exports};
use crate::front::still_starting;
use crate::pool::{health, pool_status};
use crate::space::{export_troubles, free_space, state_trouble};

/// The largest number of clients in a status.
const MAX_CLIENTS: usize = 1000;
/// The least time between two scans of everything that is cached.
const SCAN: Duration = Duration::from_secs(10);

/// Every procedure except READ, WRITE and COMMIT, which `stat` shows separately.
pub(super) const LOOKS: [Procedure; 10] = [
    Procedure::Null,
    Procedure::Getattr,
    Procedure::Lookup,
    Procedure::Access,
    Procedure::Readlink,
    Procedure::Readdir,
    Procedure::Readdirplus,
    Procedure::Fsstat,
    Procedure::Fsinfo,
    Procedure::Pathconf,
];
pub(super) const CHANGES: [Procedure; 9] = [
    Procedure::Setattr,
    Procedure::Create,
    Procedure::Mkdir,
    Procedure::Symlink,
    Procedure::Mknod,
    Procedure::Remove,
    Procedure::Rmdir,
    Procedure::Rename,
    Procedure::Link,
];

/// The operations of NFSv4 that `stat` counts with [`LOOKS`]. Those that only prepare others are left out: SEQUENCE,
/// PUTFH, GETFH and the like.
pub(super) const LOOK_OPERATIONS: [Opcode; 13] = [
    Opcode::Getattr,
    Opcode::Lookup,
    Opcode::Lookupp,
    Opcode::Access,
    Opcode::Readlink,
    Opcode::Readdir,
    Opcode::Verify,
    Opcode::Nverify,
    Opcode::Lockt,
    Opcode::TestStateid,
    Opcode::Getxattr,
    Opcode::Listxattrs,
    Opcode::Seek,
];
/// The operations of NFSv4 that `stat` counts with [`CHANGES`].
pub(super) const CHANGE_OPERATIONS: [Opcode; 17] = [
    Opcode::Setattr,
    Opcode::Create,
    Opcode::Remove,
    Opcode::Rename,
    Opcode::Link,
    Opcode::Open,
    Opcode::OpenDowngrade,
    Opcode::Close,
    Opcode::Delegreturn,
    Opcode::Lock,
    Opcode::Locku,
    Opcode::Setxattr,
    Opcode::Removexattr,
    Opcode::Allocate,
    Opcode::Deallocate,
    Opcode::Copy,
    Opcode::Clone,
];

impl Control {
    pub(super) fn transport(&self) -> TransportStats {
        self.serving.get().map(|serving| serving.transport.read()).unwrap_or_default()
    }

    /// Sums the durability counters over the backing file systems.
    pub(super) fn durability(&self) -> DurabilityStatus {
        let mut total = DurabilityStatus::default();
        let mut latency = Snapshot::default();
        for filesystem in self.parts.vfs.served_filesystems() {
            let stats = &filesystem.journal().stats;
            total.batches += stats.batches.load(Relaxed);
            total.operations += stats.operations.load(Relaxed);
            total.failures += stats.failures.load(Relaxed);
            latency.merge(&stats.latency.snapshot());
        }
        total.latency = latency.summary();
        total
    }

    /// Returns the refusals of clients since the start, by reason.
    pub(super) fn refused(&self) -> RefusedStatus {
        let [strangers, crowded, full, exports, ports, auth, tls] = self.parts.nfs.refusals().counts();
        RefusedStatus { strangers, crowded, full, exports, ports, auth, tls }
    }

    /// Returns the use of the memory for names and attributes, in bytes, and its hits and misses since the start.
    pub(super) fn metadata(&self) -> MetadataStatus {
        let budget = &self.parts.vfs.budget;
        let (listings, known, names) = (budget.listings(), budget.known(), budget.names());
        MetadataStatus {
            listed: listings.entries() as u64,
            files: known.len() as u64,
            names: names as u64,
            bytes: (listings.bytes() + known.bytes() + names * NAME_COST) as u64,
            limit_bytes: self.settings.limits.metadata_memory,
            listing_hits: listings.hits.load(Relaxed),
            listing_misses: listings.misses.load(Relaxed),
            file_hits: known.hits.load(Relaxed),
            file_misses: known.misses.load(Relaxed),
        }
    }

    /// Returns the status of each export that is served, with space in bytes as far as the file system has answered.
    /// Asks no disk.
    pub(super) fn exports(&self) -> Vec<ExportStatus> {
        // A file system whose disks do not answer does not delay the status.
        let configured = self.now.lock().exports.clone();
        let served = self.parts.vfs.spaces().into_iter();
        served
            .map(|(export, known)| {
                let configured = configured.iter().find(|configured| configured.id == export.id);
                let space = known.answer.and_then(Result::ok);
                let (bytes, files) = space.map_or(((0, 0, 0), (0, 0, 0)), |space| (space.bytes, space.files));
                ExportStatus {
                    name: export.name.clone(),
                    aliases: configured.map(|configured| configured.aliases.clone()).unwrap_or_default(),
                    path: export.path.clone(),
                    id: export.id,
                    fs_type: export.fs_type().into(),
                    ordered: export.ordered(),
                    total_bytes: bytes.0,
                    free_bytes: bytes.2,
                    total_inodes: files.0,
                    free_inodes: files.2,
                    silent_ns: known.late.as_nanos() as u64,
                }
            })
            .collect()
    }

    /// Returns the clients with the most operations, `MAX_CLIENTS` at most.
    pub(super) fn clients(&self) -> Vec<ClientStatus> {
        let mut clients: Vec<_> = self
            .parts
            .nfs
            .clients()
            .into_iter()
            .map(|(address, client)| ClientStatus {
                address,
                connections: client.connections.load(Relaxed),
                operations: client.operations.load(Relaxed),
                bytes_read: client.bytes_read.load(Relaxed),
                bytes_written: client.bytes_written.load(Relaxed),
                last_seen_ns: client.last_seen_ns.load(Relaxed),
            })
            .collect();
        clients.sort_by_key(|client| std::cmp::Reverse(client.operations));
        clients.truncate(MAX_CLIENTS);
        clients
    }

    /// Returns OK, or every reason for which the server is DEGRADED. Asks no disk that could make the status wait.
    pub(super) fn health(&self, durability: &DurabilityStatus, exports: &[ExportStatus]) -> Health {
        let mut reasons = self.cache().map(health).unwrap_or_default();
        reasons.extend(self.cache().map(|cache| cache.volumes.troubles()).unwrap_or_default());
        if durability.failures > 0 {
            reasons.push(format!(
                "{} requests failed to become durable on the backing file system; see the kernel's log",
                durability.failures
            ));
        }
        let stuck = |late| stuck_exports(&self.parts.vfs, late).join(", ");
        let (failing, late) = (stuck(false), stuck(true));
        if !failing.is_empty() {
            reasons.push(format!("the journal fails, nothing can be changed: {failing}"));
        }
        if !late.is_empty() {
            reasons.push(format!("the journal does not answer, changes wait: {late}"));
        }
        let mounts = self.serving.get().map(|serving| &serving.mounts);
        let leads = |export: &Arc<Export>| Some(elsewhere(export, &mounts?.elsewhere(export)?));
        reasons.extend(self.parts.vfs.exports().iter().filter_map(leads));
        let path = self.settings.state_dir.clone();
        let state = self.state.ask(Duration::ZERO, move || StateDir {
            space: free_space(&path),
            lost: lost_files(&path).map_or(0, |files| files.len()),
        });
        let StateDir { space, lost } = state.answer.unwrap_or_default();
        if lost > 0 {
            reasons.push(format!(
                "what only the cache had of {lost} files is set aside: look at `forebay lost list`, restore it or drop it"
            ));
        }
        reasons.extend(exports.iter().flat_map(export_troubles));
        reasons.extend(state_trouble(&self.settings.state_dir, space, self.parts.events.trouble()));
        if let Some(starting) = self.starting() {
            reasons.push(still_starting(&starting));
        }
        if reasons.is_empty() { Health::Ok } else { Health::Degraded { reasons } }
    }

    /// Returns the status of the cache. Counts from a scan of the whole index may be ten seconds old.
    pub(super) fn pool_status(&self, cache: &Cache) -> PoolStatus {
        let engine = cache.engine.clone();
        // The scan reads the whole index, which takes a while.
        let index = self.index.ask(SCAN, move || engine.scan()).answer;
        pool_status(cache, index.unwrap_or_default())
    }

    /// Returns the counters of a group of procedures and operations.
    pub(super) fn group(
        &self,
        procedures: &[Procedure],
        operations: &[Opcode],
        bytes: u64,
    ) -> OperationSample {
        let mut sample = OperationSample { bytes, ..OperationSample::default() };
        let stats = self.parts.nfs.stats();
        let operations = operations.iter().map(|operation| stats.operation(*operation));
        for stats in procedures.iter().map(|procedure| stats.procedure(*procedure)).chain(operations) {
            sample.errors += stats.errors.load(Relaxed);
            sample.latency.merge(&stats.latency.snapshot());
        }
        sample
    }
}

/// Converts the counts of the file system layer to those of the control protocol.
pub(super) fn cached_files(found: Holdings) -> CachedFiles {
    let Holdings { files, cached_files, dirty_files, ssd_bytes, dirty_bytes, ram_bytes, kept_files } = found;
    CachedFiles {
        files,
        cached_files,
        dirty_files,
        ssd_bytes,
        dirty_bytes,
        ram_bytes,
        kept_files,
        policy: None,
    }
}

/// Returns the counters of all procedures and operations that were called.
pub(super) fn procedures(nfs: &Nfs) -> Vec<ProcedureStatus> {
    let stats = nfs.stats();
    let all = (0..Procedure::COUNT as u32).filter_map(|number| Procedure::try_from(number).ok());
    let all = all.map(|procedure| (procedure.name().to_owned(), stats.procedure(procedure)));
    let operations = Opcode::ALL.iter();
    let operations = operations.map(|one| (format!("NFS4.{}", one.name()), stats.operation(*one)));
    let status = |(name, stats): (String, &ProcedureStats)| {
        let latency = stats.latency.snapshot();
        let (count, errors) = (latency.count(), stats.errors.load(Relaxed));
        ProcedureStatus { name, count, errors, latency: latency.summary(), latencies: latency }
    };
    all.chain(operations).map(status).filter(|procedure| procedure.count > 0).collect()
}

/// Converts the numbers of the clients' state to those of the control protocol.
pub(super) fn client_state(numbers: StateNumbers) -> ClientStateStatus {
    let StateNumbers { counts, recalls, revoked, .. } = numbers;
    ClientStateStatus {
        clients: counts.clients as u64,
        sessions: counts.sessions as u64,
        opens: counts.opens as u64,
        locks: counts.locks as u64,
        delegations: counts.delegations as u64,
        hosts: counts.hosts as u64,
        shares: counts.shares as u64,
        blocked: counts.waiters as u64,
        copies: counts.copies as u64,
        recalls,
        revoked,
        callbacks: numbers.callbacks_answered,
        callbacks_given_up: numbers.callbacks_given_up,
        callbacks_waiting: numbers.callbacks_waiting,
    }
}

/// Returns the resident memory of this process in bytes; 0 if the system does not report it.
pub(crate) fn resident_bytes() -> u64 {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages: Option<u64> = text.split(' ').nth(1).and_then(|pages| pages.parse().ok());
    pages.unwrap_or(0) * rustix::param::page_size() as u64
}

/// Returns the CPU time of the process so far, in nanoseconds.
pub(crate) fn cpu_ns() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}
