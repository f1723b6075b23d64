//! The activity of clients: operations of the busiest clients and exports by kind, and of cache devices. All
//! other clients and exports are summed under the name `other`.

use std::fmt::Error;

use forebay_control::{Activity, ActivityGroup, Counters, DeviceActivity, Kind};
use prometheus_client::registry::Unit;

use crate::encode::{Labels, Out, label};

/// The largest number of clients, and of exports, with series of their own.
pub(super) const MOST: usize = 20;

/// The groups of kinds of operations that a client or an export has a series for.
const GROUPS: [(&str, &[Kind]); 7] = [
    ("read", &[Kind::Read]),
    ("write", &[Kind::Write]),
    ("commit", &[Kind::Commit]),
    ("look", &[Kind::Getattr, Kind::Lookup, Kind::Access, Kind::Readdir]),
    ("change", &[Kind::Setattr, Kind::Create, Kind::Remove, Kind::Rename]),
    ("open", &[Kind::Open, Kind::Lock]),
    ("other", &[Kind::Other]),
];

/// Writes the counters of cache devices. Those of clients and exports follow if the server counts the activity of
/// clients.
pub(super) fn encode(out: &mut Out<'_>, activity: &Activity) -> Result<(), Error> {
    devices(out, &activity.devices)?;
    if !activity.enabled {
        return Ok(());
    }
    let about = "Operations of a client by kind; see `client_operations_total` about `other`.";
    kinds(out, "client_kind_operations", about, "client", &activity.clients)?;
    let about = "Operations in an export by kind.";
    kinds(out, "export_kind_operations", about, "export", &activity.exports)?;
    let of = |value: fn(&Counters) -> u64| {
        rows(&activity.exports)
            .into_iter()
            .map(move |(name, counters)| (label("export", name), value(counters)))
    };
    let bytes = || Some(Unit::Bytes);
    out.counters("export_read", "Payload read in an export.", bytes(), of(|counters| counters.bytes_read))?;
    out.counters(
        "export_written",
        "Payload written in an export.",
        bytes(),
        of(|counters| counters.bytes_written),
    )?;
    out.counters(
        "export_errors",
        "Operations in an export that failed.",
        None,
        of(|counters| counters.errors),
    )?;
    patterns(out, &activity.total)?;
    let hour = activity.working_sets.last().map_or(0, |hour| hour.bytes);
    out.gauge("working_set", "Distinct data used since the hour began, estimated.", bytes(), hour)?;
    out.counter("new_files", "Files that clients made.", None, activity.new_files.made)
}

/// Writes the READs and WRITEs by access pattern, and the WRITEs by stability.
fn patterns(out: &mut Out<'_>, total: &Counters) -> Result<(), Error> {
    let (reads, writes) = total.sized();
    let of = |kind: &str, pattern: &str| -> Labels {
        vec![("kind", kind.to_owned()), ("pattern", pattern.to_owned())]
    };
    let values = [
        (of("read", "sequential"), total.sequential_reads),
        (of("read", "random"), reads.saturating_sub(total.sequential_reads)),
        (of("write", "sequential"), total.sequential_writes),
        (of("write", "random"), writes.saturating_sub(total.sequential_writes)),
    ];
    out.counters("pattern_requests", "READs and WRITEs by access pattern.", None, values)?;
    let values = [
        (label("stable", "true"), total.stable_writes),
        (label("stable", "false"), writes.saturating_sub(total.stable_writes)),
    ];
    out.counters("stable_writes", "WRITEs with FILE_SYNC or DATA_SYNC, and UNSTABLE ones.", None, values)
}

/// Adds the operations of each row of a group by kind.
fn kinds(
    out: &mut Out<'_>,
    name: &str,
    about: &str,
    key: &'static str,
    group: &ActivityGroup,
) -> Result<(), Error> {
    let values = rows(group).into_iter().flat_map(|(row, counters)| {
        GROUPS.into_iter().map(move |(kind, kinds)| {
            let labels: Labels = vec![(key, row.clone()), ("kind", kind.to_owned())];
            (labels, kinds.iter().map(|kind| counters.of(*kind)).sum::<u64>())
        })
    });
    out.counters(name, about, None, values)
}

/// Returns the names and counters of the busiest rows of a group, and of the rest if there is any.
fn rows(group: &ActivityGroup) -> Vec<(String, &Counters)> {
    let shown = group.entries.iter().take(MOST).map(|entry| (entry.name.clone(), &entry.counters));
    let others = Some(&group.others).filter(|others| !others.is_empty());
    shown.chain(others.map(|others| ("other".to_owned(), others))).collect()
}

/// Writes the reads, writes and flushes of each cache device, and their bytes.
fn devices(out: &mut Out<'_>, devices: &[DeviceActivity]) -> Result<(), Error> {
    let of = |value: fn(&DeviceActivity) -> u64| {
        devices.iter().map(move |device| (label("device", &device.name), value(device)))
    };
    let bytes = || Some(Unit::Bytes);
    out.counters("cache_device_reads", "Reads of a device.", None, of(|device| device.reads))?;
    out.counters("cache_device_read", "Data read from a device.", bytes(), of(|device| device.bytes_read))?;
    out.counters("cache_device_writes", "Writes to a device.", None, of(|device| device.writes))?;
    let about = "Data written to a device.";
    out.counters("cache_device_written", about, bytes(), of(|device| device.bytes_written))?;
    out.counters("cache_device_flushes", "Flushes of a device.", None, of(|device| device.flushes))
}
