//! Metrics of block volumes.

use std::fmt::Error;

use forebay_control::VolumeStatus;
use prometheus_client::registry::Unit;

use crate::encode::{Out, label};

/// Volumes shown at most. Volumes above the limit are left out: an administrator makes them one by one.
const MOST: usize = 64;

/// Writes the figures of the first `MOST` block volumes. Writes nothing without a volume.
pub(super) fn encode(out: &mut Out<'_>, volumes: &[VolumeStatus]) -> Result<(), Error> {
    if volumes.is_empty() {
        return Ok(());
    }
    let of = |value: fn(&VolumeStatus) -> u64| {
        volumes.iter().take(MOST).map(move |volume| (label("volume", &volume.name), value(volume)))
    };
    let bytes = || Some(Unit::Bytes);
    out.gauges("volume_size", "Size of a volume.", bytes(), of(|volume| volume.size_bytes))?;
    let about = "Data that the backing device of a volume lacks.";
    out.gauges("volume_dirty", about, bytes(), of(|volume| volume.dirty_bytes))?;
    let serving = of(|volume| u64::from(volume.state == "serving"));
    out.gauges("volume_serving", "1 if the volume is served.", None, serving)?;
    out.counters("volume_read", "Data read from a volume.", bytes(), of(|volume| volume.read_bytes))?;
    out.counters("volume_written", "Data written to a volume.", bytes(), of(|volume| volume.written_bytes))?;
    out.counters("volume_flushes", "Flushes of a volume.", None, of(|volume| volume.flushes))?;
    out.counters("volume_errors", "Requests to a volume that failed.", None, of(|volume| volume.errors))
}
