//! The cache as its control verbs show it.

use std::path::Path;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

use forebay_config::{NbdUrl, format_size};
use forebay_control::{CacheCounters, DeviceWear, FlushProgress, PoolDevice, PoolStatus, ScrubStatus};
use forebay_engine::Usage;
use forebay_engine::buffer::BLOCK;
use forebay_engine::io::Device;
use forebay_runtime::block_on;

use crate::cache::Cache;
use crate::devices::Missing;
use crate::event_report::NO_DEVICE;
use crate::roster::Roster;

/// The time between two reports of a flush.
const REPORT: Duration = Duration::from_millis(200);

/// Returns devices, contents and counters; `index` is the result of a full scan some seconds ago.
pub(crate) fn pool_status(cache: &Cache, index: Usage) -> PoolStatus {
    let usage = cache.engine.usage();
    let leaving = cache.engine.leaving();
    let bytes = |blocks: u64| blocks * BLOCK as u64;
    let roster = &cache.watch.roster;
    let present = cache.devices().into_iter().map(|device| PoolDevice {
        size_bytes: device.size(),
        state: if leaving.as_deref() == Some(device.name()) { "leaving" } else { "healthy" }.into(),
        wear: cache.watch.health.lock().reports.get(device.name()).map(|health| DeviceWear {
            life_used_percent: health.life_used,
            spare_percent: health.spare,
            media_errors: health.media_errors,
            warnings: health.warnings,
        }),
        ..pool_device(roster, device.name())
    });
    let lost = cache
        .watch
        .lost
        .lock()
        .clone()
        .into_iter()
        .map(|name| PoolDevice { state: "lost".into(), ..pool_device(roster, &name) });
    let missing = cache
        .watch
        .missing()
        .into_iter()
        .map(|missing| PoolDevice { state: "missing".into(), ..pool_device(roster, &missing.name) });
    PoolStatus {
        configured: true,
        devices: present.chain(lost).chain(missing).collect(),
        notes: cache.notes(),
        clean_bytes: bytes(usage.ssd_blocks - usage.dirty_blocks.min(usage.ssd_blocks)),
        dirty_bytes: bytes(usage.dirty_blocks),
        loaded_percent: cache.engine.warming().map_or(100, |warming| {
            // The percentage stays below 100 until the loading ends.
            (warming.done * 100 / warming.segments.max(1)).min(99) as u8
        }),
        dirty_age_ns: cache.engine.dirty_age().as_nanos() as u64,
        ram_bytes: bytes(usage.ram_blocks),
        ram_limit_bytes: cache.ram,
        objects: usage.objects,
        index_bytes: index.index_bytes,
        index_bytes_per_block: index.index_bytes as f64 / index.ssd_blocks.max(1) as f64,
        scrub: scrub(cache),
        work: cache.progress.of(&cache.engine),
        counters: counters(cache),
    }
}

/// Returns the names of a device.
fn pool_device(roster: &Roster, name: &str) -> PoolDevice {
    let known = roster.member(Path::new(name)).unwrap_or_default();
    let some = |text: String| Some(text).filter(|text| !text.is_empty());
    PoolDevice {
        path: name.into(),
        stable_path: some(known.stable),
        serial: some(known.serial),
        uuid: some(known.uuid),
        size_bytes: 0,
        state: String::new(),
        wear: None,
    }
}

/// Returns the progress of the scrub in segments, and its results in blocks.
fn scrub(cache: &Cache) -> ScrubStatus {
    let scrub = cache.engine.scrub_status();
    ScrubStatus {
        number: scrub.number,
        running: scrub.running,
        segments_done: scrub.done,
        segments: scrub.segments,
        blocks_checked: scrub.checked,
        blocks_repaired: scrub.repaired,
        blocks_dropped: scrub.dropped,
        blocks_lost: scrub.lost,
    }
}

/// Returns the counters since the start.
pub(crate) fn counters(cache: &Cache) -> CacheCounters {
    let now = cache.engine.counters();
    CacheCounters {
        blocks_read_ram: now.read_ram,
        blocks_read_ssd: now.read_ssd,
        blocks_read_backing: now.read_backing,
        blocks_written: now.written,
        direct_bytes: now.direct,
        blocks_destaged: now.destaged,
        destage_writes: now.destage_writes,
        blocks_compacted: now.compacted,
        blocks_admitted: now.admitted,
        blocks_evicted: now.evicted,
        blocks_reinserted: now.reinserted,
        blocks_kept_by_priority: now.kept_by_priority,
        ssd_bytes_written: now.ssd_written,
        frames: now.frames,
        log_waits: now.log_waits,
        repaired: now.repaired,
        backing_errors: now.backing_errors,
        changed_outside: now.changed_outside,
    }
}

/// Returns the faults of the cache, each with its remedy.
pub(crate) fn health(cache: &Cache) -> Vec<String> {
    let mut reasons = Vec::new();
    let (mode, active) = (cache.engine.mode(), cache.engine.staying());
    if mode == forebay_engine::Mode::WriteBack && active < 2 {
        let (left, remedy) = match active {
            0 => ("no cache device is left", NO_DEVICE),
            _ => ("one cache device is left", "Add a device with `forebay pool add PATH`"),
        };
        reasons.push(format!("{left}: writes go through to the backing store. {remedy}"));
    } else if mode == forebay_engine::Mode::WriteBack && !cache.engine.is_mirrored() {
        reasons.push(
            "some data that only the cache has is on one device: it is being copied, and writes go through to the \
             backing store until it is on two; nothing needs to be done"
                .to_owned(),
        );
    }
    for lost in cache.watch.lost.lock().iter() {
        let described = cache.watch.roster.describe(lost);
        reasons.push(match NbdUrl::is_meant(Path::new(lost)) {
            _ if active == 0 => format!("cache device {described} was lost"),
            true => format!(
                "cache device {described} was lost; when its NBD server answers, add it again with `forebay pool add {lost}`"
            ),
            false => format!(
                "cache device {described} was lost; replace it and add the new one with `forebay pool add PATH`"
            ),
        });
    }
    reasons.extend(cache.watch.missing().iter().map(Missing::reason));
    reasons.extend(cache.watch.health.lock().troubles());
    for volume in cache.engine.volumes() {
        let (name, held) = (&volume.name, format_size(volume.dirty_blocks * BLOCK as u64));
        match volume.trouble {
            Some(forebay_engine::Error::Late) => reasons.push(format!(
                "the backing store of {name} does not answer; nothing is lost, and the cache keeps {held} for it: see whether \
                 its disks do"
            )),
            Some(error) => reasons.push(format!(
                "writing to the backing store of {name} fails ({error}); nothing is lost, the cache keeps {held} for it, and it \
                 is tried again: mend the store"
            )),
            None => {}
        }
    }
    let dirty = cache.engine.usage().dirty_blocks * BLOCK as u64;
    reasons.extend(cache.watch.behind.lock().trouble(cache.engine.dirty_part(), dirty));
    let damaged = cache.watch.damaged.load(Relaxed);
    if damaged > 0 {
        reasons.push(format!(
            "{damaged} blocks that only the cache had are damaged; `forebay events` names the files: restore them"
        ));
    }
    reasons
}

/// Destages everything that is dirty; returns the bytes destaged meanwhile.
pub(crate) fn destage(cache: &Cache, progress: &mut dyn FnMut(FlushProgress)) -> Result<u64, String> {
    let engine = &cache.engine;
    let destaged = || engine.counters().destaged * BLOCK as u64;
    let before = destaged();
    let (send, done) = channel();
    let flushed = std::thread::scope(|scope| {
        scope.spawn(move || {
            // The receiver waits for exactly this.
            let _ = send.send(block_on(engine.flush()));
        });
        loop {
            let done_bytes = destaged() - before;
            progress(FlushProgress {
                done: done_bytes,
                total: done_bytes + engine.dirty_bytes(),
                bytes: true,
            });
            match done.recv_timeout(REPORT) {
                Ok(result) => return result.map_err(|error| error.to_string()),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return Err("the flush ended by a fault".into()),
            }
        }
    });
    flushed.map_err(|error| {
        let troubled = engine.volumes().into_iter().filter(|volume| volume.trouble.is_some());
        let names: Vec<_> = troubled.map(|volume| volume.name).collect();
        let of = if names.is_empty() { String::new() } else { format!(" (of {})", names.join(", ")) };
        format!("not everything could be destaged: {error}{of}; what is left stays in the cache")
    })?;
    Ok(destaged() - before)
}
