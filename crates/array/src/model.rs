//! Array models, read from TOML: the parameters of the disks, the RAID layout, the controller and its cache.

use serde::{Deserialize, Serialize};
use std::path::Path;

/// Size in bytes of the smallest unit that the array reads and writes. The block device has sectors of this size.
pub const BLOCK: u64 = 4096;

/// The models that are part of the program: name and TOML text.
pub const SHIPPED: [(&str, &str); 2] = [
    ("nl-sas-8", include_str!("../models/nl-sas-8.toml")),
    ("nl-sas-48", include_str!("../models/nl-sas-48.toml")),
];

/// The reason why a model cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ModelError {
    /// The name is neither a shipped model nor a readable file.
    #[error("cannot read the model file {0}: {1}; name a file, or one of: nl-sas-8, nl-sas-48")]
    Read(String, std::io::Error),
    /// The text is not TOML, or has an unknown key or lacks a key.
    #[error("cannot parse the model {0}: {1}")]
    Parse(String, Box<toml::de::Error>),
    /// A parameter is out of its range.
    #[error("model {model}: {key} = {value} is out of range; it must be {range}")]
    Range {
        /// The model's name.
        model: String,
        /// The parameter.
        key: &'static str,
        /// Value in the file.
        value: f64,
        /// Permitted values.
        range: &'static str,
    },
}

/// A whole array.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Model {
    /// Short name, used on the command line.
    pub name: String,
    /// One line for people.
    pub description: String,
    /// Layout of the disks.
    pub raid: Raid,
    /// The disks; all are alike.
    pub disk: Disk,
    /// The controller between the disks and the host.
    pub controller: Controller,
    /// The controller's write cache.
    pub cache: Cache,
    /// Settings of the host's block device.
    pub host: Host,
    /// Figures that `calibrate` compares with.
    pub goals: Goals,
}

/// The RAID layout: one RAID 6 span, or several spans striped over each other (RAID 60).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Raid {
    /// Number of RAID 6 groups, 1 to 16.
    pub spans: u32,
    /// Disks in each span, including two for parity, 4 to 32.
    pub disks_per_span: u32,
    /// Consecutive KiB on one disk, a multiple of 4, 4 to 4096.
    pub chunk_kib: u32,
}

/// The mechanics and the queue of one disk.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Disk {
    /// Revolutions per minute, 1,000 to 20,000.
    pub rpm: f64,
    /// Milliseconds of the shortest seek, settling included, 0 to 20.
    pub track_to_track_ms: f64,
    /// Milliseconds of the mean seek over the whole stroke, `track_to_track_ms` to 50.
    pub average_seek_ms: f64,
    /// Megabytes (10^6) per second under the head, 1 to 1,000.
    pub media_mb_s: f64,
    /// Microseconds from a command to the start of the seek on an idle disk, 0 to 10,000.
    pub command_us: f64,
    /// Fraction of the stroke that the emulated capacity is spread over, 0.001 to 1. A small image on a large disk
    /// has short seeks (0.02); with 1, seeks are as long as on a full disk.
    pub stroke: f64,
    /// Number of the oldest queued commands among which the disk chooses the nearest, 1 to 256.
    pub queue_window: u32,
    /// Milliseconds after which a queued command is served next, however far away it is, 1 to 60,000.
    pub max_wait_ms: f64,
    /// KiB that an idle disk reads ahead into its own buffer after a read, 0 to 65,536.
    pub buffer_kib: u32,
}

/// The host link and the read-ahead.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Controller {
    /// Megabytes (10^6) per second between array and host, both directions together, 1 to 100,000.
    pub link_mb_s: f64,
    /// Fixed latency of a request in microseconds, 0 to 10,000.
    pub command_us: f64,
    /// KiB read ahead of a sequential stream, 0 to 262,144; 0 turns it off.
    pub read_ahead_kib: u32,
    /// Most sequential streams that are followed at once, 1 to 1,024.
    pub streams: u32,
    /// Milliseconds that the unfinished stripe at the end of a sequential write waits for further data, 0 to 1,000.
    pub stripe_wait_ms: f64,
}

/// The kind of write cache: when a write is acknowledged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum CacheKind {
    /// A write is acknowledged when it is on the platters.
    None,
    /// A write is acknowledged in the cache, which survives a power cut.
    Battery,
    /// A write is acknowledged in the cache; a power cut loses unflushed data.
    Volatile,
}

/// The write cache.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Cache {
    /// Kind of the cache.
    pub kind: CacheKind,
    /// Size in MiB, 1 to 65,536.
    pub size_mib: u32,
    /// KiB of one cache line, a multiple of 4 that divides the chunk. A 4 KiB write takes a whole line.
    pub line_kib: u32,
    /// Most partial stripes written from the cache at once, 1 to 4,096. Full stripes are not counted.
    pub destage_stripes: u32,
    /// Milliseconds after which a dirty stripe is written even if the cache has room, 0 to 600,000.
    pub destage_after_ms: f64,
}

/// The settings of the host's block device, as a careful administrator makes them.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Host {
    /// Read-ahead of the kernel in KiB, 0 to 262,144.
    pub read_ahead_kib: u32,
}

/// The figures that the model should reach.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Goals {
    /// 4 KiB random reads per second.
    pub random_read_iops: f64,
    /// Requests in flight for the random reads, 1 to 128.
    pub random_read_depth: u32,
    /// 4 KiB random writes per second, once the write cache is full.
    pub random_write_iops: f64,
    /// Requests in flight for the random writes, 1 to 128.
    pub random_write_depth: u32,
    /// MiB per second of one sequential read.
    pub sequential_read_mib_s: f64,
    /// MiB per second of one sequential write.
    pub sequential_write_mib_s: f64,
}

impl Model {
    /// Loads a shipped model by name, or a model from a TOML file.
    ///
    /// # Errors
    /// [`ModelError`] if there is no such file, the file is not a model, or a parameter is out of range.
    pub fn load(name_or_path: &str) -> Result<Self, ModelError> {
        if let Some((_, text)) = SHIPPED.iter().find(|(name, _)| *name == name_or_path) {
            return Self::parse(name_or_path, text);
        }
        let text = std::fs::read_to_string(Path::new(name_or_path))
            .map_err(|e| ModelError::Read(name_or_path.to_owned(), e))?;
        Self::parse(name_or_path, &text)
    }

    /// Parses a model from TOML text. `origin` names the text in errors.
    ///
    /// # Errors
    /// [`ModelError`] if the text is not a model, or a parameter is out of range.
    pub fn parse(origin: &str, text: &str) -> Result<Self, ModelError> {
        let model: Self =
            toml::from_str(text).map_err(|e| ModelError::Parse(origin.to_owned(), Box::new(e)))?;
        model.check()?;
        Ok(model)
    }

    /// Returns the bytes of data in one stripe of one span.
    pub fn stripe_bytes(&self) -> u64 {
        u64::from(self.raid.disks_per_span - 2) * self.chunk_bytes()
    }

    /// Returns the bytes of one chunk.
    pub fn chunk_bytes(&self) -> u64 {
        u64::from(self.raid.chunk_kib) * 1024
    }

    /// Returns the number of disks, including parity.
    pub fn disks(&self) -> u32 {
        self.raid.spans * self.raid.disks_per_span
    }

    /// Checks that every parameter is within its range. The error names the first wrong key with the permitted range.
    fn check(&self) -> Result<(), ModelError> {
        let range = |key, value: f64, low: f64, high: f64, range| {
            // The negation also refuses NaN.
            if !(low..=high).contains(&value) {
                return Err(ModelError::Range { model: self.name.clone(), key, value, range });
            }
            Ok(())
        };
        let (raid, disk, control, cache, goals) =
            (&self.raid, &self.disk, &self.controller, &self.cache, &self.goals);
        range("raid.spans", raid.spans.into(), 1.0, 16.0, "1 to 16")?;
        range("raid.disks_per_span", raid.disks_per_span.into(), 4.0, 32.0, "4 to 32")?;
        range("raid.chunk_kib", raid.chunk_kib.into(), 4.0, 4096.0, "4 to 4096")?;
        multiple(self, "raid.chunk_kib", raid.chunk_kib, 4, "a multiple of 4")?;
        range("disk.rpm", disk.rpm, 1e3, 2e4, "1000 to 20000")?;
        range("disk.track_to_track_ms", disk.track_to_track_ms, 0.0, 20.0, "0 to 20")?;
        let seek = "track_to_track_ms to 50";
        range("disk.average_seek_ms", disk.average_seek_ms, disk.track_to_track_ms, 50.0, seek)?;
        range("disk.media_mb_s", disk.media_mb_s, 1.0, 1e3, "1 to 1000")?;
        range("disk.command_us", disk.command_us, 0.0, 1e4, "0 to 10000")?;
        range("disk.stroke", disk.stroke, 0.001, 1.0, "0.001 to 1")?;
        range("disk.queue_window", disk.queue_window.into(), 1.0, 256.0, "1 to 256")?;
        range("disk.max_wait_ms", disk.max_wait_ms, 1.0, 6e4, "1 to 60000")?;
        range("disk.buffer_kib", disk.buffer_kib.into(), 0.0, 65536.0, "0 to 65536")?;
        range("controller.link_mb_s", control.link_mb_s, 1.0, 1e5, "1 to 100000")?;
        range("controller.command_us", control.command_us, 0.0, 1e4, "0 to 10000")?;
        range("controller.read_ahead_kib", control.read_ahead_kib.into(), 0.0, 262_144.0, "0 to 262144")?;
        range("controller.streams", control.streams.into(), 1.0, 1024.0, "1 to 1024")?;
        range("controller.stripe_wait_ms", control.stripe_wait_ms, 0.0, 1e3, "0 to 1000")?;
        range("cache.size_mib", cache.size_mib.into(), 1.0, 65536.0, "1 to 65536")?;
        range("cache.line_kib", cache.line_kib.into(), 4.0, 4096.0, "4 to chunk_kib")?;
        multiple(self, "cache.line_kib", cache.line_kib, 4, "a multiple of 4")?;
        let divides = "a divisor of raid.chunk_kib";
        multiple(self, "cache.line_kib", raid.chunk_kib, cache.line_kib, divides)?;
        range("cache.destage_stripes", cache.destage_stripes.into(), 1.0, 4096.0, "1 to 4096")?;
        range("cache.destage_after_ms", cache.destage_after_ms, 0.0, 6e5, "0 to 600000")?;
        range("host.read_ahead_kib", self.host.read_ahead_kib.into(), 0.0, 262_144.0, "0 to 262144")?;
        range("goals.random_read_depth", goals.random_read_depth.into(), 1.0, 128.0, "1 to 128")?;
        range("goals.random_write_depth", goals.random_write_depth.into(), 1.0, 128.0, "1 to 128")
    }
}

/// Checks that the value of a key is a multiple of `of`. `range` is the condition in words, for the error.
fn multiple(
    model: &Model,
    key: &'static str,
    value: u32,
    of: u32,
    range: &'static str,
) -> Result<(), ModelError> {
    if !value.is_multiple_of(of) {
        return Err(ModelError::Range { model: model.name.clone(), key, value: value.into(), range });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shipped_models_parse_and_carry_their_name() {
        for (name, _) in SHIPPED {
            assert_eq!(Model::load(name).unwrap().name, name);
        }
    }

    #[test]
    fn a_bad_parameter_is_named_with_its_range() {
        let text = SHIPPED[0].1.replace("rpm = 7200", "rpm = 0");
        let message = Model::parse("x", &text).unwrap_err().to_string();
        assert_eq!(message, "model nl-sas-8: disk.rpm = 0 is out of range; it must be 1000 to 20000");
        let text = SHIPPED[0].1.replace("line_kib = 64", "line_kib = 48");
        assert!(Model::parse("x", &text).unwrap_err().to_string().contains("a divisor of raid.chunk_kib"));
        let text = SHIPPED[0].1.replace("rpm = 7200", "rpm = nan");
        assert!(Model::parse("x", &text).is_err());
    }

    #[test]
    fn an_unknown_key_is_refused() {
        let text = SHIPPED[0].1.replace("rpm = 7200", "rpm = 7200\nwings = 2");
        assert!(Model::parse("x", &text).unwrap_err().to_string().contains("wings"));
    }
}
