//! The lists of the tabs, made from two moments of the server.

use std::collections::HashMap;

use forebay_config::format_size;
use forebay_control::{
    Activity, ActivityEntry, ActivityGroup, ClientStatus, Counters, DeviceActivity, ExportStatus, PoolDevice,
    Status, VolumeStatus,
};

use super::list::{Cell, List};
use crate::output::{Align, count, printable};
use crate::stat::{mebibytes, rate};

const LEFT: Align = Align::Left;
const RIGHT: Align = Align::Right;

/// The largest difference of two answers about the beginning of the counters, in nanoseconds.
const SAME_NS: u64 = 100_000_000;

/// The span between two moments of a server. Without an earlier moment of this start, rates are those since the start.
pub(super) struct Span<'a> {
    pub(super) earlier: Option<&'a Status>,
    pub(super) status: &'a Status,
    /// The activity of clients until an earlier moment; absent if it was not asked for.
    pub(super) did: Option<&'a Activity>,
    /// The activity of clients until now; absent if it was not asked for.
    pub(super) activity: Option<&'a Activity>,
}

/// A length of time by which counters are divided.
#[derive(Clone, Copy)]
struct Seconds(f64);

impl Seconds {
    fn of_nanos(nanos: u64) -> Self {
        Seconds((nanos as f64 / 1e9).max(1e-6))
    }

    /// Returns the growth of a counter in each second.
    fn rate(self, now: u64, earlier: Option<u64>) -> f64 {
        now.saturating_sub(earlier.unwrap_or(0)) as f64 / self.0
    }
}

fn per_second(figure: f64) -> Cell {
    Cell::figure(figure, rate(figure))
}

fn bytes_per_second(figure: f64) -> Cell {
    Cell::figure(figure, mebibytes(figure))
}

fn size(bytes: u64) -> Cell {
    Cell::figure(bytes as f64, format_size(bytes))
}

/// Returns the cell of a figure that there is not. It is sorted below every figure.
fn none() -> Cell {
    Cell::figure(-1.0, "-".to_owned())
}

impl<'a> Span<'a> {
    /// Returns the lists of the tabs clients, exports, files and devices.
    pub(super) fn lists(&self) -> [List; 4] {
        [self.clients(), self.exports(), self.files(), self.devices()]
    }

    /// Returns the earlier state, if it is of this start, and the time since.
    fn since_state(&self) -> (Option<&'a Status>, Seconds) {
        let earlier = self.earlier.filter(|earlier| earlier.started_ns == self.status.started_ns);
        let before = earlier.map_or(0, |status| status.uptime_ns);
        (earlier, Seconds::of_nanos(self.status.uptime_ns.saturating_sub(before)))
    }

    /// Returns the earlier activity, if its counters began when the present ones did, and the time since.
    fn since_activity(&self, now: &Activity) -> (Option<&'a Activity>, Seconds) {
        // Two answers about one beginning differ a little, since each reads two clocks.
        let is_one =
            |did: &&Activity| did.since_ns.abs_diff(now.since_ns) < SAME_NS && did.time_ns < now.time_ns;
        let earlier = self.did.filter(is_one);
        let before = earlier.map_or(now.since_ns, |did| did.time_ns);
        (earlier, Seconds::of_nanos(now.time_ns.saturating_sub(before)))
    }

    /// Returns the list of clients, with rates since the earlier answer of the server.
    fn clients(&self) -> List {
        let (earlier, seconds) = self.since_state();
        let before = earlier.iter().flat_map(|status| &status.clients);
        let before: HashMap<_, _> = before.map(|client| (client.address, client)).collect();
        let row = |client: &ClientStatus| {
            let old = before.get(&client.address);
            vec![
                Cell::text(client.address.to_string()),
                per_second(seconds.rate(client.operations, old.map(|old| old.operations))),
                bytes_per_second(seconds.rate(client.bytes_read, old.map(|old| old.bytes_read))),
                bytes_per_second(seconds.rate(client.bytes_written, old.map(|old| old.bytes_written))),
                Cell::figure(client.connections as f64, client.connections.to_string()),
                Cell::figure(client.operations as f64, count(client.operations)),
            ]
        };
        List {
            columns: vec![
                ("CLIENT", LEFT),
                ("OPS/s", RIGHT),
                ("READ MiB/s", RIGHT),
                ("WRITE MiB/s", RIGHT),
                ("CONN", RIGHT),
                ("OPERATIONS", RIGHT),
            ],
            rows: self.status.clients.iter().map(row).collect(),
            empty: "No client has connected since the server started.",
        }
    }

    /// Returns a function that gives the cells of an entry by its name: operations, bytes read and written, errors.
    fn done(&self, group: fn(&Activity) -> &ActivityGroup) -> impl Fn(&str, Option<&str>) -> [Cell; 4] {
        type Key = (String, Option<String>);
        let key = |entry: &ActivityEntry| -> Key { (entry.name.clone(), entry.export.clone()) };
        let map = |activity: &Activity| -> HashMap<Key, Counters> {
            group(activity).entries.iter().map(|entry| (key(entry), entry.counters.clone())).collect()
        };
        let now = self.activity.map(map).unwrap_or_default();
        let since = self.activity.map(|activity| self.since_activity(activity));
        let before = since.and_then(|(earlier, _)| earlier).map(map).unwrap_or_default();
        move |name, export| {
            let key = (name.to_owned(), export.map(str::to_owned));
            let (Some(counters), Some((_, seconds))) = (now.get(&key), since) else {
                return [none(), none(), none(), none()];
            };
            let counters = before.get(&key).map_or_else(|| counters.clone(), |before| counters.since(before));
            [
                per_second(seconds.rate(counters.total(), None)),
                bytes_per_second(seconds.rate(counters.bytes_read, None)),
                bytes_per_second(seconds.rate(counters.bytes_written, None)),
                per_second(seconds.rate(counters.errors, None)),
            ]
        }
    }

    /// Returns the list of exports, with rates since the earlier answer of the server and the space of their file
    /// systems.
    fn exports(&self) -> List {
        let done = self.done(|activity| &activity.exports);
        let row = |export: &ExportStatus| {
            let used = export.total_bytes.saturating_sub(export.free_bytes);
            let percent = used as f64 / export.total_bytes.max(1) as f64 * 100.0;
            let [operations, read, written, errors] = done(&export.name, None);
            vec![
                Cell::text(printable(&export.name)),
                operations,
                read,
                written,
                errors,
                size(export.free_bytes),
                Cell::figure(percent, format!("{percent:.0} %")),
                Cell::text(printable(&export.path.to_string_lossy())),
            ]
        };
        List {
            columns: vec![
                ("EXPORT", LEFT),
                ("OPS/s", RIGHT),
                ("READ MiB/s", RIGHT),
                ("WRITE MiB/s", RIGHT),
                ("ERR/s", RIGHT),
                ("FREE", RIGHT),
                ("USED", RIGHT),
                ("DIRECTORY", LEFT),
            ],
            rows: self.status.exports.iter().map(row).collect(),
            empty: "The server has no export.",
        }
    }

    /// Returns the list of the busiest files. The sentence for an empty list says why there is none.
    fn files(&self) -> List {
        let done = self.done(|activity| &activity.files);
        let row = |entry: &ActivityEntry| {
            let [operations, read, written, errors] = done(&entry.name, entry.export.as_deref());
            let total = entry.counters.total();
            vec![
                Cell::text(printable(&entry.name)),
                operations,
                read,
                written,
                errors,
                Cell::figure(total as f64, count(total)),
                Cell::text(printable(entry.export.as_deref().unwrap_or("-"))),
            ]
        };
        let entries = self.activity.iter().flat_map(|activity| &activity.files.entries);
        List {
            columns: vec![
                ("FILE", LEFT),
                ("OPS/s", RIGHT),
                ("READ MiB/s", RIGHT),
                ("WRITE MiB/s", RIGHT),
                ("ERR/s", RIGHT),
                ("TOTAL", RIGHT),
                ("EXPORT", LEFT),
            ],
            rows: entries.map(row).collect(),
            empty: match self.activity {
                None => "The server does not say what is done to which file.",
                Some(activity) if !activity.enabled => {
                    "The server counts nothing by file: its configuration has `profile = false`."
                }
                Some(_) => "No file has been used since the server started.",
            },
        }
    }

    /// Returns cache devices and block volumes with their rates.
    fn devices(&self) -> List {
        let since = self.activity.map(|activity| (activity, self.since_activity(activity)));
        let cache = |device: &PoolDevice| {
            let did = |activity: &Activity| -> Option<DeviceActivity> {
                let is_own = |one: &&DeviceActivity| device.path.as_os_str() == one.name.as_str();
                activity.devices.iter().find(is_own).cloned()
            };
            let rates = since.and_then(|(now, (earlier, seconds))| {
                let (now, old) = (did(now)?, did(earlier?)?);
                Some([
                    seconds.rate(now.bytes_read, Some(old.bytes_read)),
                    seconds.rate(now.bytes_written, Some(old.bytes_written)),
                ])
            });
            cache_device(device, rates)
        };
        let (earlier, seconds) = self.since_state();
        let before = earlier.iter().flat_map(|status| &status.volumes);
        let before: HashMap<_, _> = before.map(|volume| (volume.uuid.as_str(), volume)).collect();
        let volume = |volume: &VolumeStatus| {
            let old = before.get(volume.uuid.as_str());
            let read = seconds.rate(volume.read_bytes, old.map(|old| old.read_bytes));
            let written = seconds.rate(volume.written_bytes, old.map(|old| old.written_bytes));
            vec![
                Cell::text(printable(&volume.name)),
                Cell::text("volume"),
                Cell::text(printable(&volume.state)),
                size(volume.size_bytes),
                none(),
                none(),
                Cell::figure(volume.errors as f64, count(volume.errors)),
                bytes_per_second(read),
                bytes_per_second(written),
            ]
        };
        let pool = self.status.pool.iter().flat_map(|pool| &pool.devices);
        List {
            columns: vec![
                ("DEVICE", LEFT),
                ("KIND", LEFT),
                ("STATE", LEFT),
                ("SIZE", RIGHT),
                ("LIFE", RIGHT),
                ("SPARE", RIGHT),
                ("ERRORS", RIGHT),
                ("RD MiB/s", RIGHT),
                ("WR MiB/s", RIGHT),
            ],
            rows: pool.map(cache).chain(self.status.volumes.iter().map(volume)).collect(),
            empty: "The server has neither cache devices nor block volumes.",
        }
    }
}

/// Returns the row of a cache device, with the bytes that it reads and writes in a second.
fn cache_device(device: &PoolDevice, rates: Option<[f64; 2]>) -> Vec<Cell> {
    let wear = device.wear.unwrap_or_default();
    let percent = |value: Option<u8>| {
        value.map_or_else(none, |value| Cell::figure(f64::from(value), format!("{value} %")))
    };
    let errors = |errors: u64| Cell::figure(errors as f64, count(errors));
    let [read, written] = rates.map_or_else(|| [none(), none()], |rates| rates.map(bytes_per_second));
    vec![
        Cell::text(printable(&device.path.to_string_lossy())),
        Cell::text("cache"),
        Cell::text(printable(&device.state)),
        size(device.size_bytes),
        percent(wear.life_used_percent),
        percent(wear.spare_percent),
        wear.media_errors.map_or_else(none, errors),
        read,
        written,
    ]
}
