//! The miss-ratio curve. The number of sizes is fixed.

use std::fmt::Error;

use forebay_control::Curve;

use crate::encode::{Out, label};

/// Writes the miss-ratio curve and the coalescing curve, with a point for each size. Before the estimate has enough
/// samples, writes only the counts of samples.
pub(super) fn encode(out: &mut Out<'_>, curve: &Curve) -> Result<(), Error> {
    let about = "Requests for blocks that the estimate of the miss-ratio curve has sampled.";
    out.counter("miss_ratio_samples", about, None, curve.sampled)?;
    let about = "Samples that were lost because a buffer was full.";
    out.counter("miss_ratio_samples_lost", about, None, curve.lost)?;
    if !curve.enough {
        // A gauge without a value is better than a wrong one.
        return Ok(());
    }
    let values =
        curve.points.iter().map(|point| (label("size_bytes", point.cache_bytes), 1.0 - point.hit_ratio));
    let about = "Estimated part of block reads that a cache of a size would not serve.";
    out.gauges("miss_ratio_curve", about, None, values)?;
    let values = curve.points.iter().map(|point| (label("size_bytes", point.cache_bytes), point.coalescing));
    let about = "Estimated blocks written for each block destaged with a cache of a size.";
    out.gauges("coalescing_curve", about, None, values)
}
