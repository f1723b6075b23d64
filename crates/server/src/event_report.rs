//! The engine's events as an administrator reads them.

use std::sync::Weak;
use std::sync::atomic::Ordering;
use std::time::Duration;

use forebay_config::format_size;
use forebay_control::{EventLog, Severity};
use forebay_engine::Event;
use forebay_engine::buffer::BLOCK;
use forebay_vfs::{Checkpointed, Error, Export, LostFile, ServedFilesystem, Vfs};
use forebay_volume::key::uuid_of;

use crate::cache::CacheMonitor;
use crate::under_way::UnderWay;

/// The remedy for the loss of the last cache device: no device can be added to a pool without one.
pub(crate) const NO_DEVICE: &str = "Check the devices, and start the server again";

/// Reports an engine event to the administrator and to the parts of the server that act on it.
pub(crate) fn report(log: &EventLog, watch: &CacheMonitor, vfs: &Weak<Vfs>, event: &Event) {
    let (severity, kind, message) = match event {
        Event::DeviceLost { device, left, data_lost } => {
            watch.lose(device);
            match vfs.upgrade() {
                Some(vfs) if *left == 0 => vfs.log_broke(),
                // Clients still have what they have not committed of it.
                Some(vfs) if *data_lost => vfs.verifier.lost(),
                _ => {}
            }
            let device = watch.roster.describe(device);
            let lost = if *data_lost {
                " It had the last copies of data that the backing store lacks: reading that data fails until a device \
                 with a copy is back at a later start, or the data is written again."
            } else {
                ""
            };
            let remedy = if *left == 0 { NO_DEVICE } else { "Replace it, then run `forebay pool add`" };
            let message =
                format!("cache device {device} failed and is not used any more; {left} left.{lost} {remedy}");
            (Severity::Error, "device-lost", message)
        }
        Event::DeviceLate { device, after } => (Severity::Error, "device-late", late(device, *after)),
        Event::DeviceAwaited { device, after } => {
            (Severity::Error, "device-awaited", awaited(device, *after))
        }
        Event::DeviceAdded { device } => {
            let device = watch.roster.describe(device);
            (Severity::Info, "device-added", format!("cache device {device} is in use"))
        }
        Event::DeviceRemoved { device } => {
            watch.remove(device);
            let name = watch.roster.describe(device);
            watch.roster.removed(device);
            (Severity::Info, "device-removed", format!("cache device {name} is not used any more"))
        }
        Event::DeviceKept { device } => {
            let message =
                format!("the removal of cache device {device} was given up; it is in use as before");
            (Severity::Warning, "device-kept", message)
        }
        Event::Repaired { device } => {
            let device = watch.roster.describe(device);
            let message =
                format!("a damaged block on cache device {device} was rewritten from its other copy");
            (Severity::Warning, "repaired", message)
        }
        Event::Dropped { device } => {
            let device = watch.roster.describe(device);
            let message = format!(
                "a damaged block on cache device {device} was dropped; the backing store has its contents"
            );
            (Severity::Warning, "dropped", message)
        }
        Event::LogDropped => {
            let message = "the log of the only cache device is damaged: what was cached was dropped, no data is lost, \
                           and clients may reclaim their opens and locks";
            (Severity::Warning, "log-dropped", message.to_owned())
        }
        Event::Warm { clean_blocks } => {
            let clean = format_size(clean_blocks * BLOCK as u64);
            let message = format!("the cache is as warm as before the start: {clean} clean on its devices");
            (Severity::Info, "warm", message)
        }
        Event::Damaged { volume, object, offset } => {
            watch.damaged.fetch_add(1, Ordering::Relaxed);
            let vfs = vfs.upgrade();
            // A client that has not committed the data still has it.
            vfs.iter().for_each(|vfs| vfs.verifier.lost());
            let name = match vfs {
                Some(vfs) if uuid_of(object).is_none() => vfs.described(object, volume),
                _ => volume.clone(),
            };
            let message = format!(
                "every copy of a block that only the cache had is damaged: {name}, byte {offset}; reading it fails: restore the data"
            );
            (Severity::Error, "damaged", message)
        }
        Event::BackingFailed { volume, error } => {
            let message = format!(
                "writing to the backing store of {volume} fails ({error}); the data stays cached and is retried"
            );
            (Severity::Error, "backing-failed", message)
        }
        Event::BackingLate { volume, after } => {
            let message = format!(
                "the backing store of {volume} has not answered for {} seconds; the data stays cached, and others go on: see \
                 whether its disks do",
                after.as_secs()
            );
            (Severity::Error, "backing-late", message)
        }
        Event::BackingHealed { volume } => {
            let message = format!("writing to the backing store of {volume} works again");
            (Severity::Info, "backing-healed", message)
        }
        Event::Degraded { left: 0 } => {
            let message =
                format!("no cache device is left: writes go through to the backing store. {NO_DEVICE}");
            (Severity::Error, "degraded", message)
        }
        Event::Degraded { left: 1 } => {
            let message = "fewer than two cache devices are left: writes go through to the backing store; add a device \
                           with `forebay pool add`";
            (Severity::Error, "degraded", message.to_owned())
        }
        Event::Degraded { .. } => {
            let message = "some data that only the cache has is on one device: writes go through to the backing store \
                           until it is on two again";
            (Severity::Error, "degraded", message.to_owned())
        }
        Event::Restored => {
            let message =
                "everything that only the cache has is on two devices again: writes are cached again";
            (Severity::Info, "restored", message.to_owned())
        }
    };
    log.add(severity, kind, message, &[]);
}

/// Reports cache devices that do not answer while the pool is opened.
pub(crate) fn tell_opening(log: &EventLog, under_way: &UnderWay, event: &Event) {
    let (kind, device, message) = match event {
        Event::DeviceLate { device, after } => ("device-late", device, late(device, *after)),
        Event::DeviceAwaited { device, after } => ("device-awaited", device, awaited(device, *after)),
        // No other event happens before the engine runs.
        _ => return,
    };
    under_way.silent(device);
    log.add(Severity::Error, kind, message, &[]);
}

/// Returns the message about a cache device that has kept a request waiting for this time.
fn late(device: &str, after: Duration) -> String {
    format!(
        "cache device {device} has not answered for {} s; it is given up if another one answers. See the kernel's log",
        after.as_secs()
    )
}

/// Returns the message about a cache device that keeps the start waiting. No other device can replace it there.
fn awaited(device: &str, after: Duration) -> String {
    format!(
        "the start waits for cache device {device}, which has not answered for {} s, since the cache cannot be opened without it. \
         See the kernel's log",
        after.as_secs()
    )
}

/// Reports cached data that belongs to no file any more.
pub(crate) fn tell_lost(log: &EventLog, file: &LostFile) {
    let what = if file.path.is_empty() { "a file without a known name" } else { &file.path };
    let message = format!(
        "what only the cache had of {what} is set aside, since {}: see `forebay lost show {}`",
        file.why, file.id
    );
    log.add(Severity::Error, "lost", message, &[("id", &file.id), ("path", &file.path)]);
}

/// Reports that the path of an export leads to something other than the served directory, or (`None`) back to it.
pub(crate) fn tell_elsewhere(log: &EventLog, export: &Export, there: Option<&str>) {
    let path = export.path.display();
    let (severity, message) = match there {
        Some(_) => (Severity::Error, elsewhere(export, there.unwrap_or_default())),
        None => (Severity::Info, format!("{path} leads to what is served again")),
    };
    log.add(severity, "mounts", message, &[("export", &export.name)]);
}

/// Returns the notice for an export whose path leads to `there`.
pub(crate) fn elsewhere(export: &Export, there: &str) -> String {
    format!(
        "{} leads to {there} now, no longer to {}, which is served on and written to: mount it there again, or stop the server",
        export.path.display(),
        export.identity
    )
}

/// Reports the result of the checkpoints of a file system.
pub(crate) fn tell_checkpoint(log: &EventLog, vfs: &Weak<Vfs>, news: Checkpointed) {
    let stuck = |late| vfs.upgrade().map(|vfs| stuck_exports(&vfs, late).join(", ")).unwrap_or_default();
    let failing = stuck(false);
    let (severity, kind, message) = match news {
        Checkpointed::Failed(error) => {
            let message = format!(
                "the journal of a served file system fails ({error}): nothing can be changed in {failing} until a restart, and \
                 what the cache has of it stays there"
            );
            (Severity::Error, "checkpoint-failed", message)
        }
        Checkpointed::Refused(error) => {
            let message = format!(
                "the journal of a served file system takes no commit ({error}): nothing can be changed in {failing}, and what \
                 the cache has of it stays there; it is tried again every 5 seconds"
            );
            (Severity::Error, "checkpoint-refused", message)
        }
        Checkpointed::Late(time) => {
            let message = format!(
                "the journal of a served file system has not answered for {} seconds: what clients want to change in {} waits, \
                 and others go on; see whether its disks do",
                time.as_secs(),
                stuck(true)
            );
            (Severity::Error, "checkpoint-late", message)
        }
        Checkpointed::Healed => {
            let message = "the journal of a served file system works again".to_owned();
            (Severity::Info, "checkpoint-healed", message)
        }
    };
    log.add(severity, kind, message, &[]);
}

/// Returns the served directories in which nothing can be changed: their journal fails, or (`late`) does not answer.
pub(crate) fn stuck_exports(vfs: &Vfs, late: bool) -> Vec<String> {
    let is_stuck = |error: Error| (error == Error::Busy) == late;
    let stuck = vfs.served_filesystems().filter(|filesystem| filesystem.can_change().is_err_and(is_stuck));
    stuck.map(|filesystem| directories(&filesystem)).collect()
}

/// Returns the served directories of a file system, for people.
pub(crate) fn directories(filesystem: &ServedFilesystem<'_>) -> String {
    let directories: Vec<_> =
        filesystem.directories().iter().map(|directory| directory.display().to_string()).collect();
    directories.join(", ")
}
