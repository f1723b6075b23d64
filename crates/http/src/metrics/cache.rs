//! The pool: devices, contents, and the counters of the cache.

use std::fmt::Error;

use forebay_control::{PoolDevice, PoolStatus};
use prometheus_client::registry::Unit;

use crate::encode::{Labels, Out, label, seconds};

/// Writes the figures of the pool: its devices, its contents, the last scrub, and every counter of the engine under
/// the counter's own name.
pub(super) fn encode(out: &mut Out<'_>, pool: &PoolStatus) -> Result<(), Error> {
    devices(out, pool)?;
    let bytes = || Some(Unit::Bytes);
    out.gauge("cache_clean", "Clean data on the cache devices.", bytes(), pool.clean_bytes)?;
    out.gauge("cache_dirty", "Data that only the cache has.", bytes(), pool.dirty_bytes)?;
    let about = "Age of the oldest dirty data.";
    out.gauge("cache_dirty_age", about, Some(Unit::Seconds), seconds(pool.dirty_age_ns))?;
    out.gauge("cache_ram", "Data in memory.", bytes(), pool.ram_bytes)?;
    out.gauge("cache_ram_limit", "Most data in memory.", bytes(), pool.ram_limit_bytes)?;
    out.gauge("cache_index", "Memory of the index.", bytes(), pool.index_bytes)?;
    out.gauge("cache_objects", "Files in the index.", None, pool.objects)?;
    let loaded = f64::from(pool.loaded_percent) / 100.0;
    let about = "Part of the clean data that is loaded since the start.";
    out.gauge("cache_loaded", about, Some(ratio()), loaded)?;
    let scrub = &pool.scrub;
    out.gauge("scrub_running", "1 if a scrub is in progress.", None, u64::from(scrub.running))?;
    let results =
        [("repaired", scrub.blocks_repaired), ("dropped", scrub.blocks_dropped), ("lost", scrub.blocks_lost)];
    let values = results.map(|(result, count)| (label("result", result), count));
    out.gauges("scrub_blocks", "Bad blocks of this scrub, or of the last one.", None, values)?;
    for (name, value) in pool.counters.each() {
        let about = "See the counters of `forebay pool status --json`.";
        match name.strip_suffix("_bytes") {
            Some(name) => out.counter(&format!("cache_{name}"), about, bytes(), value)?,
            None => out.counter(&format!("cache_{name}"), about, None, value)?,
        }
    }
    Ok(())
}

/// Returns the unit of parts of a whole: Prometheus names it in the singular.
fn ratio() -> Unit {
    Unit::Other("ratio".to_owned())
}

/// Adds the devices. A pool has 16 of them at most.
fn devices(out: &mut Out<'_>, pool: &PoolStatus) -> Result<(), Error> {
    let in_use = |device: &&PoolDevice| matches!(&*device.state, "healthy" | "leaving");
    let count = pool.devices.iter().filter(in_use).count() as u64;
    out.gauge("cache_devices", "Cache devices in use.", None, count)?;
    let of = |device: &PoolDevice| -> Labels { label("device", device.path.display()) };
    let states = pool.devices.iter().map(|device| {
        let mut labels = of(device);
        labels.push(("state", device.state.clone()));
        (labels, 1_u64)
    });
    out.gauges("cache_device_state", "1 for the state of each device.", None, states)?;
    let values = pool.devices.iter().map(|device| (of(device), device.size_bytes));
    out.gauges("cache_device_size", "Size of a device.", Some(Unit::Bytes), values)?;
    let wear = || pool.devices.iter().filter_map(|device| Some((of(device), device.wear?)));
    let part = |percent: u8| f64::from(percent) / 100.0;
    let values = wear().filter_map(|(labels, wear)| Some((labels, part(wear.life_used_percent?))));
    let about = "Part of the rated life that is used; it may exceed 1.";
    out.gauges("cache_device_life_used", about, Some(ratio()), values)?;
    let values = wear().filter_map(|(labels, wear)| Some((labels, part(wear.spare_percent?))));
    let about = "Part of the spare blocks that is left.";
    out.gauges("cache_device_spare", about, Some(ratio()), values)?;
    let values = wear().filter_map(|(labels, wear)| Some((labels, wear.media_errors?)));
    let about = "Times that a device could not return stored data.";
    out.counters("cache_device_media_errors", about, None, values)?;
    let values = wear().filter_map(|(labels, wear)| Some((labels, u64::from(wear.warnings?))));
    out.gauges("cache_device_warnings", "Bits of a device's warnings.", None, values)
}
