//! The activity of clients for the control socket: the profile with names in place of numbers.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use forebay_control::{
    Activity, ActivityEntry, ActivityGroup, Counters, DeviceActivity, NewFilesActivity, TraceBatch,
    TracedOperation, WorkingSetActivity,
};
use forebay_profile::{
    Counted, FileCounted, NO_EXPORT, NO_USER, NewFiles, Snapshot, WorkingSet, new_size_bounds,
};
use forebay_vfs::Vfs;

use super::Control;

/// The name of an entry that stands for none, such as operations outside of every export.
const NONE: &str = "-";

/// Time between two batches of a trace.
const BATCH: Duration = Duration::from_millis(100);

/// Records the operations of clients until `batch` returns false.
pub(super) fn trace(control: &Control, batch: &mut dyn FnMut(TraceBatch) -> bool) -> Result<(), String> {
    let nfs = &control.parts.nfs;
    if !nfs.has_profile() {
        return Err(
            "nothing is counted: the configuration has `profile = false`; set it to true first".into()
        );
    }
    let recording = nfs.record_trace().ok_or("a trace is being recorded already; end that one first")?;
    loop {
        std::thread::sleep(BATCH);
        let (operations, lost) = recording.take();
        let operations = operations.iter().map(TracedOperation::from).collect();
        if !batch(TraceBatch { operations, lost }) {
            return Ok(());
        }
    }
}

/// Returns what clients did, with the `top` busiest entries of each group.
pub(super) fn activity(control: &Control, top: usize) -> Activity {
    let (snapshot, began) = control.parts.nfs.profile(top);
    let clock = Clock::now(began);
    let names = Names(&control.parts.vfs);
    let Snapshot { since, total, clients, exports, users, files, other_files, working_sets, new_files } =
        snapshot;
    let user = |user: u32| if user == NO_USER { NONE.to_owned() } else { user.to_string() };
    Activity {
        time_ns: clock.now_ns,
        since_ns: clock.at(since),
        enabled: control.parts.nfs.has_profile(),
        total,
        clients: group(clients, |address| address.to_string()),
        exports: group(exports, |id| names.export(id)),
        users: group(users, user),
        files: ActivityGroup {
            entries: files.into_iter().map(|file| names.file(file)).collect(),
            others: other_files,
        },
        devices: devices(control),
        working_sets: working_sets.into_iter().map(|set| working_set(set, &clock, &names)).collect(),
        new_files: files_made(&new_files, &clock),
    }
}

/// Turns times since the begin of the profile into times since 1970.
struct Clock {
    now_ns: u64,
    began_ns: u64,
}

impl Clock {
    /// Reads the system's clock. `began` is the time at which the profile began.
    fn now(began: Instant) -> Self {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let began_ns = now.saturating_sub(began.elapsed()).as_nanos() as u64;
        Clock { now_ns: now.as_nanos() as u64, began_ns }
    }

    fn at(&self, since: Duration) -> u64 {
        self.began_ns.saturating_add(since.as_nanos() as u64)
    }
}

/// The names of exports and files.
struct Names<'a>(&'a Vfs);

impl Names<'_> {
    /// Returns the name of an export, or its number if the export is no longer served.
    fn export(&self, id: u32) -> String {
        let export = self.0.exports().find(id);
        match export {
            Some(export) => export.name.clone(),
            None if id == NO_EXPORT => NONE.to_owned(),
            None => format!("#{id}"),
        }
    }

    /// Returns the entry of a file in the report. A file whose path is not known appears with the hash of its handle.
    fn file(&self, file: FileCounted) -> ActivityEntry {
        let FileCounted { key, id, export, is_shared, counters } = file;
        let path = id.and_then(|id| self.0.shown_path(id.as_bytes()));
        let name = match path {
            Some(path) if path.as_os_str().is_empty() => "/".to_owned(),
            Some(path) => path.display().to_string(),
            None => format!("#{key:016x}"),
        };
        ActivityEntry { name, export: Some(self.export(export)), shared: is_shared, counters }
    }
}

/// Returns counters of clients, exports or users for the report, named by `name`. The order stays.
fn group<K>(counted: Counted<K>, name: impl Fn(K) -> String) -> ActivityGroup {
    let entry = |(key, counters): (K, Counters)| ActivityEntry {
        name: name(key),
        counters,
        ..ActivityEntry::default()
    };
    ActivityGroup { entries: counted.most.into_iter().map(entry).collect(), others: counted.others }
}

/// Returns the operations and bytes of each cache device since the start. The list is empty without a cache.
fn devices(control: &Control) -> Vec<DeviceActivity> {
    let devices = control.cache().map(|cache| cache.devices()).unwrap_or_default();
    let activity = |device: &std::sync::Arc<forebay_disk::CacheDevice>| {
        let traffic = device.traffic();
        DeviceActivity {
            name: forebay_engine::io::Device::name(&**device).to_owned(),
            reads: traffic.reads,
            bytes_read: traffic.bytes_read,
            writes: traffic.writes,
            bytes_written: traffic.bytes_written,
            flushes: traffic.flushes,
        }
    };
    devices.iter().map(activity).collect()
}

/// Returns a working set for the report, with its bytes by export name.
fn working_set(set: WorkingSet, clock: &Clock, names: &Names<'_>) -> WorkingSetActivity {
    let WorkingSet { begin, complete, bytes, exports } = set;
    let exports = exports.into_iter().map(|(id, bytes)| (names.export(id), bytes)).collect();
    WorkingSetActivity { begin_ns: clock.at(begin), complete, bytes, exports }
}

/// Returns the counts of new files for the report, by size. The last size class has no upper bound.
fn files_made(files: &NewFiles, clock: &Clock) -> NewFilesActivity {
    let bounds = new_size_bounds().into_iter().map(Some).chain([None]);
    NewFilesActivity {
        made: files.made,
        sizes: bounds.zip(files.sizes).collect(),
        in_busiest_minute: files.in_busiest_minute,
        busiest_minute_ns: if files.made == 0 { 0 } else { clock.at(files.busiest_minute) },
    }
}
