//! The lists of the tabs, made from two states of the server.

use std::collections::HashMap;

use forebay_config::format_size;
use forebay_control::{ClientStatus, PoolDevice, Status};

use super::list::{Cell, List};
use crate::output::{Align, count, printable};
use crate::stat::{mebibytes, rate};

const LEFT: Align = Align::Left;
const RIGHT: Align = Align::Right;

/// The time between two states of a server.
struct Span<'a> {
    earlier: Option<&'a Status>,
    now: &'a Status,
    seconds: f64,
}

impl<'a> Span<'a> {
    /// Without an earlier state of this start, the span is the time since the start.
    fn new(earlier: Option<&'a Status>, now: &'a Status) -> Self {
        let earlier = earlier.filter(|earlier| earlier.started_ns == now.started_ns);
        let span = now.uptime_ns.saturating_sub(earlier.map_or(0, |status| status.uptime_ns));
        Span { earlier, now, seconds: (span as f64 / 1e9).max(1e-6) }
    }

    fn rate(&self, now: u64, earlier: Option<u64>) -> f64 {
        now.saturating_sub(earlier.unwrap_or(0)) as f64 / self.seconds
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

/// Returns the lists of the tabs clients, exports, files and devices.
pub(super) fn lists(earlier: Option<&Status>, now: &Status) -> [List; 4] {
    let span = Span::new(earlier, now);
    [clients(&span), exports(now), files(), devices(&span)]
}

fn clients(span: &Span<'_>) -> List {
    let before: HashMap<_, _> = span
        .earlier
        .iter()
        .flat_map(|status| &status.clients)
        .map(|client| (client.address, client))
        .collect();
    let row = |client: &ClientStatus| {
        let old = before.get(&client.address);
        vec![
            Cell::text(client.address.to_string()),
            per_second(span.rate(client.operations, old.map(|old| old.operations))),
            bytes_per_second(span.rate(client.bytes_read, old.map(|old| old.bytes_read))),
            bytes_per_second(span.rate(client.bytes_written, old.map(|old| old.bytes_written))),
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
        rows: span.now.clients.iter().map(row).collect(),
        empty: "No client has connected since the server started.",
    }
}

fn exports(now: &Status) -> List {
    let row = |export: &forebay_control::ExportStatus| {
        let used = export.total_bytes.saturating_sub(export.free_bytes);
        let percent = used as f64 / export.total_bytes.max(1) as f64 * 100.0;
        vec![
            Cell::text(printable(&export.name)),
            size(export.total_bytes),
            size(export.free_bytes),
            Cell::figure(percent, format!("{percent:.0} %")),
            Cell::text(printable(&export.fs_type)),
            Cell::text(printable(&export.path.to_string_lossy())),
        ]
    };
    List {
        columns: vec![
            ("EXPORT", LEFT),
            ("SIZE", RIGHT),
            ("FREE", RIGHT),
            ("USED", RIGHT),
            ("TYPE", LEFT),
            ("DIRECTORY", LEFT),
        ],
        rows: now.exports.iter().map(row).collect(),
        empty: "The server has no export.",
    }
}

fn files() -> List {
    List { columns: vec![("FILE", LEFT)], rows: Vec::new(), empty: "The server counts nothing by file." }
}

/// Returns cache devices, and block volumes with their rates.
fn devices(span: &Span<'_>) -> List {
    let device = |device: &PoolDevice| {
        let wear = device.wear.unwrap_or_default();
        let percent = |value: Option<u8>| match value {
            Some(value) => Cell::figure(f64::from(value), format!("{value} %")),
            None => Cell::figure(-1.0, "-".to_owned()),
        };
        let errors = wear.media_errors.map_or("-".to_owned(), count);
        vec![
            Cell::text(printable(&device.path.to_string_lossy())),
            Cell::text("cache"),
            Cell::text(printable(&device.state)),
            size(device.size_bytes),
            percent(wear.life_used_percent),
            percent(wear.spare_percent),
            Cell::figure(wear.media_errors.map_or(-1.0, |errors| errors as f64), errors),
            Cell::figure(-1.0, "-".to_owned()),
            Cell::figure(-1.0, "-".to_owned()),
        ]
    };
    let before: HashMap<_, _> = span
        .earlier
        .iter()
        .flat_map(|status| &status.volumes)
        .map(|volume| (volume.uuid.as_str(), volume))
        .collect();
    let volume = |volume: &forebay_control::VolumeStatus| {
        let old = before.get(volume.uuid.as_str());
        let none = || Cell::figure(-1.0, "-".to_owned());
        vec![
            Cell::text(printable(&volume.name)),
            Cell::text("volume"),
            Cell::text(printable(&volume.state)),
            size(volume.size_bytes),
            none(),
            none(),
            Cell::figure(volume.errors as f64, count(volume.errors)),
            bytes_per_second(span.rate(volume.read_bytes, old.map(|old| old.read_bytes))),
            bytes_per_second(span.rate(volume.written_bytes, old.map(|old| old.written_bytes))),
        ]
    };
    let pool = span.now.pool.iter().flat_map(|pool| &pool.devices);
    List {
        columns: vec![
            ("DEVICE", LEFT),
            ("KIND", LEFT),
            ("STATE", LEFT),
            ("SIZE", RIGHT),
            ("LIFE", RIGHT),
            ("SPARE", RIGHT),
            ("ERRORS", RIGHT),
            ("READ", RIGHT),
            ("WRITE", RIGHT),
        ],
        rows: pool.map(device).chain(span.now.volumes.iter().map(volume)).collect(),
        empty: "The server has neither cache devices nor block volumes.",
    }
}
