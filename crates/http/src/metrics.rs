//! The figures of a server as metrics: OpenMetrics 1.0, and the older text format of Prometheus.

mod activity;
mod cache;
mod clients;
mod curve;
mod requests;
mod volumes;

use std::fmt::Error;
use std::sync::Arc;

use forebay_control::{Health, StatSample, Status};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, prometheus_text, text};
use prometheus_client::registry::{Registry, Unit};

use crate::encode::{Labels, Out, label, seconds};
use crate::gathered::Gathering;

/// A text format of metrics.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// OpenMetrics 1.0.
    OpenMetrics,
    /// The text format of Prometheus, version 0.0.4.
    Text,
}

impl Format {
    /// Returns the type of the text in HTTP.
    pub(crate) fn content_type(self) -> &'static str {
        match self {
            Format::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
            Format::Text => "text/plain; version=0.0.4; charset=utf-8",
        }
    }
}

/// Returns every figure. Counters count since the start of the server. Empty if the encoder fails, which it does only
/// without memory.
pub fn render(gathering: &Arc<Gathering>, format: Format) -> String {
    let mut registry = Registry::with_prefix("forebay");
    registry.register_collector(Box::new(gathering.clone()));
    let mut out = String::new();
    let encoded = match format {
        Format::OpenMetrics => text::encode(&mut out, &registry),
        Format::Text => prometheus_text::encode(&mut out, &registry),
    };
    encoded.map_or_else(|_| String::new(), |()| out)
}

impl Collector for Gathering {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> Result<(), Error> {
        let mut out = Out(encoder);
        let Gathering { status, sample, curve, activity } = self;
        server(&mut out, status, sample)?;
        requests::encode(&mut out, status, sample)?;
        clients::encode(&mut out, status)?;
        activity::encode(&mut out, activity)?;
        volumes::encode(&mut out, &status.volumes)?;
        curve.as_ref().map_or(Ok(()), |curve| curve::encode(&mut out, curve))?;
        match &status.pool {
            Some(pool) => cache::encode(&mut out, pool),
            None => Ok(()),
        }
    }
}

/// Writes the figures of the server as a whole: health, mode, memory and cached names. Those of its exports follow.
fn server(out: &mut Out<'_>, status: &Status, sample: &StatSample) -> Result<(), Error> {
    out.gauge("up", "1 if the server answers.", None, 1_u64)?;
    let reasons = match &status.health {
        Health::Ok => 0,
        Health::Degraded { reasons } => reasons.len() as u64,
    };
    out.gauge("degraded", "1 if the server is degraded: see its events.", None, reasons.min(1))?;
    out.gauge("degraded_reasons", "Reasons why the server is degraded.", None, reasons)?;
    let starting = u64::from(status.starting.is_some());
    out.gauge("starting", "1 if the server does not serve clients yet.", None, starting)?;
    out.gauges("build_info", "Version of the server.", None, [(label("version", &status.version), 1_u64)])?;
    let modes = |mode: forebay_config::Mode| [(label("mode", mode), 1_u64)];
    out.gauges("mode", "The mode in force.", None, modes(status.effective_mode))?;
    out.gauges("configured_mode", "The mode that is configured.", None, modes(status.mode))?;
    let about = "Time since the start.";
    out.gauge("uptime", about, Some(Unit::Seconds), seconds(status.uptime_ns))?;
    let about = "Time of the processors.";
    out.counter("cpu", about, Some(Unit::Seconds), seconds(sample.cpu_ns))?;
    let memory = &status.memory;
    out.gauge("resident", "Memory of the process.", Some(Unit::Bytes), memory.resident_bytes)?;
    let about = "Memory for requests and replies.";
    out.gauge("request_memory", about, Some(Unit::Bytes), memory.used_bytes)?;
    let about = "Most memory for requests and replies.";
    out.gauge("request_memory_limit", about, Some(Unit::Bytes), memory.limit_bytes)?;
    let metadata = &status.metadata;
    out.gauge("metadata", "Names and attributes in memory.", Some(Unit::Bytes), metadata.bytes)?;
    let from =
        |memory, directory| [(label("from", "memory"), memory), (label("from", "directory"), directory)];
    let values = from(metadata.listing_hits, metadata.listing_misses);
    out.counters("listings", "READDIRPLUS answered.", None, values)?;
    out.gauge("known_files", "Files not open whose attributes are kept.", None, metadata.files)?;
    let about = "GETATTR, LOOKUP and ACCESS of files that are not open.";
    out.counters("closed_looks", about, None, from(metadata.file_hits, metadata.file_misses))?;
    out.counter("log_lines_lost", "Lines of the log that were lost.", None, status.log_lines_lost)?;
    exports(out, status)
}

/// Adds the space of the file systems of exports. Exports above the limit are left out: their sum has no meaning.
fn exports(out: &mut Out<'_>, status: &Status) -> Result<(), Error> {
    const MOST: usize = 64;
    let shown = || status.exports.iter().take(MOST);
    let of = |name: &str| -> Labels { label("export", name) };
    let values = shown().map(|export| (of(&export.name), export.total_bytes));
    out.gauges("export_size", "Size of an export's file system.", Some(Unit::Bytes), values)?;
    let values = shown().map(|export| (of(&export.name), export.free_bytes));
    out.gauges("export_free", "Space that users other than root may fill.", Some(Unit::Bytes), values)?;
    let values = shown().map(|export| (of(&export.name), export.free_inodes));
    out.gauges("export_free_inodes", "Inodes that are free.", None, values)?;
    let values = shown().map(|export| (of(&export.name), seconds(export.silent_ns)));
    let about = "Time that an export's file system has owed an answer.";
    out.gauges("export_silent", about, Some(Unit::Seconds), values)
}

#[cfg(test)]
mod tests;
