//! Computes the expected rates and the size to buy from measured figures. This module measures nothing.

use serde::Serialize;

use super::probe::Figures;

const GIB: u64 = 1 << 30;
/// Hit rates for which the expected rate is computed.
const HIT_RATES: [f64; 5] = [0.5, 0.8, 0.9, 0.95, 0.99];
/// Factor by which the devices exceed the working set: room for second copies of dirty data, and for the log.
const HEADROOM: f64 = 1.15;
/// Sizes that SSDs are sold in, in GB of 1000^3 bytes.
const SOLD: [u64; 11] = [120, 240, 480, 960, 1920, 3840, 7680, 15_360, 30_720, 61_440, 122_880];
/// Most bytes of memory for each cached block of 4 KiB.
const INDEX: u64 = 16;
/// Factor by which SSDs must be faster than the disks to be worth their price.
const WORTH: f64 = 2.0;

/// The expected rates and the recommended devices.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Advice {
    /// Bytes in use, as given or as found by the scan.
    pub(crate) working_set: u64,
    /// Bytes of each cache device, so that all together hold the working set.
    pub(crate) device_bytes: u64,
    /// Smallest size on the market that suffices, in GB; `None` if none does.
    pub(crate) buy_gb: Option<u64>,
    /// Number of cache devices.
    pub(crate) devices: u64,
    /// Most bytes of memory for the index.
    pub(crate) index_bytes: u64,
    /// Expected random reads per second for several hit rates.
    pub(crate) reads: Vec<Expected>,
    /// Stable random writes per second with write-back while the log has room. Both copies go to SSDs.
    pub(crate) burst_writes: f64,
    /// Duration of such a burst in seconds, until half of the pool is dirty on both devices.
    pub(crate) burst_seconds: f64,
    /// Stable random writes per second without a time limit: at least the rate of the disks.
    pub(crate) lasting_writes: f64,
    /// Speed relative to the disks alone, for reads with 90 % hits and for writes in a burst.
    pub(crate) gain: (f64, f64),
    /// Remarks, one sentence each.
    pub(crate) remarks: Vec<String>,
}

/// The expected rate for one hit rate.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub(crate) struct Expected {
    /// Fraction of reads that hit, 0 to 1.
    pub(crate) hits: f64,
    /// Reads per second.
    pub(crate) reads: f64,
}

/// Computes the expected rates for a cache on `ssds` in front of `array`.
pub(super) fn advise(array: &Figures, ssds: &[Figures], working_set: u64) -> Advice {
    let devices = (ssds.len() as u64).max(2);
    // Directories on one device share its speed. If only one directory was measured, its figures stand for all
    // devices.
    let real = if ssds.len() > 1 { distinct(ssds) as f64 } else { devices as f64 };
    let sum =
        |value: fn(&Figures) -> f64| ssds.iter().map(value).sum::<f64>() / ssds.len().max(1) as f64 * real;
    let ssd_reads = sum(|ssd| ssd.random_reads);
    let reads = HIT_RATES.map(|hits| Expected { hits, reads: mixed(hits, ssd_reads, array.random_reads) });
    // Every write goes to two devices.
    let burst_writes = sum(|ssd| ssd.random_writes) / 2.0;
    let device_bytes = (working_set as f64 * HEADROOM / devices as f64) as u64;
    let buy_gb = SOLD.into_iter().find(|size| size * 1_000_000_000 >= device_bytes);
    let dirty = device_bytes as f64 * devices as f64 / 2.0;
    let gain =
        (mixed(0.9, ssd_reads, array.random_reads) / array.random_reads, burst_writes / array.random_writes);
    let mut advice = Advice {
        working_set,
        device_bytes,
        buy_gb,
        devices,
        index_bytes: device_bytes * devices / 4096 * INDEX,
        reads: reads.to_vec(),
        burst_writes,
        burst_seconds: dirty / (burst_writes - array.random_writes).max(1.0) / 4096.0,
        lasting_writes: array.random_writes,
        gain,
        remarks: Vec::new(),
    };
    advice.remarks = remarks(&advice, array, ssds, ssd_reads);
    advice
}

/// Returns the number of distinct devices behind the directories.
fn distinct(ssds: &[Figures]) -> usize {
    let mut devices: Vec<u64> = ssds.iter().map(|ssd| ssd.device).collect();
    devices.sort_unstable();
    devices.dedup();
    devices.len()
}

/// Returns the reads per second if a fraction of them hits. The times of hits and misses add up, not the rates.
fn mixed(hits: f64, fast: f64, slow: f64) -> f64 {
    1.0 / (hits / fast.max(1.0) + (1.0 - hits) / slow.max(1.0))
}

/// Returns warnings about the measured devices and their use, a sentence each. Empty if nothing is unusual.
fn remarks(advice: &Advice, array: &Figures, ssds: &[Figures], ssd_reads: f64) -> Vec<String> {
    let mut remarks = Vec::new();
    let mut say = |remark: &str| remarks.push(remark.to_owned());
    if ssd_reads < WORTH * array.random_reads && advice.burst_writes < WORTH * array.random_writes {
        say("These SSDs are hardly faster than the disks: a cache will bring little here.");
    }
    if advice.burst_writes < array.random_writes {
        say(
            "Durable writes are slower on these SSDs than on the disks; take SSDs with power-loss protection, or use write-through.",
        );
    }
    let stream: f64 = ssds.iter().map(|ssd| ssd.sequential_write).sum::<f64>() / 2.0;
    if stream < array.sequential_write {
        say(
            "Two copies of a stream are written more slowly than the disks take it: large sequential writes are better sent past the cache.",
        );
    }
    if ssds.len() < 2 {
        say(
            "One device was measured; write-back needs two, so that every write that was acknowledged is there twice.",
        );
    }
    if distinct(ssds) < ssds.len() {
        say(
            "Some of the cache directories share a device: they share its speed, and both copies are lost with it.",
        );
    }
    if ssds.iter().any(|ssd| ssd.device == array.device) {
        say("A cache directory is on the same file system as the data: that is no cache.");
    }
    if !array.direct || ssds.iter().any(|ssd| !ssd.direct) {
        say("O_DIRECT is not possible on one of the file systems: its figures may be those of memory.");
    }
    if advice.working_set < GIB / 4 {
        say("The working set is small: memory alone may hold it.");
    }
    remarks
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figures(device: u64, reads: f64, writes: f64, stream: f64) -> Figures {
        Figures {
            path: "/x".into(),
            device,
            size: GIB,
            direct: true,
            random_reads: reads,
            random_writes: writes,
            single_writes: writes / 10.0,
            sequential_read: stream,
            sequential_write: stream,
        }
    }

    #[test]
    fn misses_decide_the_rate() {
        let advice = advise(
            &figures(1, 800.0, 200.0, 2e8),
            &[figures(2, 5e4, 2e4, 1e9), figures(3, 5e4, 2e4, 1e9)],
            100 * GIB,
        );
        let at = |hits: f64| advice.reads.iter().find(|one| one.hits == hits).unwrap().reads;
        assert!(
            (at(0.5) - 1587.0).abs() < 1.0 && (at(0.99) - 44_643.0).abs() < 1.0,
            "{} {}",
            at(0.5),
            at(0.99)
        );
        assert_eq!((advice.burst_writes, advice.lasting_writes, advice.devices), (20_000.0, 200.0, 2));
        assert!((advice.gain.1 - 100.0).abs() < 1e-9);
        assert_eq!(advice.buy_gb, Some(120), "1.15 x 100 GiB over two devices");
        assert!(advice.remarks.is_empty(), "{:?}", advice.remarks);
    }

    #[test]
    fn what_does_not_help_is_said() {
        let slow = advise(&figures(1, 5e4, 2e4, 1e9), &[figures(1, 4e4, 100.0, 1e8)], GIB / 8);
        for part in [
            "hardly faster",
            "power-loss",
            "past the cache",
            "write-back needs two",
            "memory alone",
            "no cache",
        ] {
            assert!(slow.remarks.iter().any(|remark| remark.contains(part)), "{part}: {:?}", slow.remarks);
        }
        let twice = advise(
            &figures(1, 800.0, 200.0, 2e8),
            &[figures(2, 5e4, 2e4, 1e9), figures(2, 5e4, 2e4, 1e9)],
            GIB,
        );
        assert_eq!(twice.burst_writes, 10_000.0, "two halves of one device");
        assert!(twice.remarks.iter().any(|remark| remark.contains("share a device")));
        assert_eq!(advise(&figures(1, 1.0, 1.0, 1.0), &[], u64::MAX / 4).buy_gb, None);
    }
}
