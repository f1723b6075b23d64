//! The health of the disks below the cache devices: read every ten minutes, and reported as events when it gets worse.
//!
//! NVMe and SATA disks answer only a process with CAP_SYS_ADMIN or CAP_SYS_RAWIO at the moment of the request. The
//! server gives up these capabilities before it serves clients. A separate process keeps them, and only asks disks by
//! name.

mod asker;

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use forebay_control::{EventLog, Severity};
use forebay_disk::{CacheDevice, Health};
use forebay_engine::io::Device;

use crate::cache::CacheMonitor;
use asker::{Failure, PATIENCE};

pub(crate) use asker::Asker;
pub use asker::{HEALTH_VERB, answer_health};

/// The time between two checks.
const LOOK: Duration = Duration::from_secs(600);
/// The percentage of the rated life from which a disk counts as worn.
const WORN: u8 = 90;
/// The warnings of NVMe disks, by bit (NVM Express Base Specification 2.0, figure 207).
const WARNINGS: [&str; 5] = [
    "it has few spare blocks left",
    "it is too hot or too cold",
    "it has become unreliable",
    "it has become read-only",
    "its own protection against power loss has failed",
];
/// The bit for a temperature that is too high or too low; the condition passes.
const TEMPERATURE: u8 = 2;

/// The knowledge about the disks of the cache devices.
#[derive(Debug, Default)]
pub(crate) struct Known {
    /// The last report of each device's disk, by device name.
    pub(crate) reports: HashMap<String, Health>,
    /// The devices whose disks did not answer the last question.
    silent: BTreeSet<String>,
    /// True if the process that asks has ended.
    has_ended: bool,
}

impl Known {
    /// Returns what an administrator has to do about the disks, one sentence each.
    pub(crate) fn troubles(&self) -> Vec<String> {
        let predicted = self.reports.iter().filter_map(|(name, health)| prediction(name, health));
        let silent = self.silent.iter().map(|name| silent(name));
        predicted.chain(silent).chain(self.has_ended.then(|| ENDED.to_owned())).collect()
    }

    /// Takes over the answer of a device's disk. Returns the changes that are worth an event.
    fn take(&mut self, name: &str, answer: Result<Option<Health>, Failure>) -> Vec<(Severity, String)> {
        let was_silent = self.silent.remove(name);
        match answer {
            Ok(health) => {
                let message = format!("the disk of cache device {name} tells its health again");
                let mut told: Vec<_> = was_silent.then_some((Severity::Info, message)).into_iter().collect();
                if let Some(now) = health {
                    let before = self.reports.insert(name.to_owned(), now);
                    told.extend(judge(name, before, now));
                }
                told
            }
            Err(Failure::Silent) => {
                self.silent.insert(name.to_owned());
                if was_silent { Vec::new() } else { vec![(Severity::Warning, silent(name))] }
            }
            Err(Failure::Ended) => match std::mem::replace(&mut self.has_ended, true) {
                true => Vec::new(),
                false => vec![(Severity::Warning, ENDED.to_owned())],
            },
        }
    }
}

/// The message that no disk is asked any more.
const ENDED: &str = "the health of the cache's disks is not checked: the process that asks them has ended; restart the server";

/// Returns the message about a device whose disk does not answer.
fn silent(name: &str) -> String {
    format!(
        "the disk of cache device {name} does not tell its health: it gave no answer within {} s; look for its errors in the \
         kernel's log",
        PATIENCE.as_secs()
    )
}

/// The task that watches the health of the cache devices until it is dropped.
#[derive(Debug)]
pub(crate) struct Monitor {
    wake: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Monitor {
    /// Checks at once, then every ten minutes.
    pub(crate) fn start(
        asker: Asker,
        watch: Arc<CacheMonitor>,
        events: Arc<EventLog>,
    ) -> std::io::Result<Self> {
        let (wake, woken) = channel();
        let thread = std::thread::Builder::new().name("forebay-health".into()).spawn(move || {
            loop {
                look(&watch, &events, |disk| asker.ask(disk));
                if woken.recv_timeout(LOOK) == Err(RecvTimeoutError::Disconnected) {
                    return;
                }
            }
        })?;
        Ok(Monitor { wake: Some(wake), thread: Some(thread) })
    }

    /// Checks now, because a device was added.
    pub(crate) fn look(&self) {
        if let Some(wake) = &self.wake {
            // The thread ends only after this channel is dropped.
            let _ = wake.send(());
        }
    }
}

impl Drop for Monitor {
    fn drop(&mut self) {
        self.wake = None;
        if let Some(thread) = self.thread.take() {
            // A thread that panicked has already reported the panic.
            let _ = thread.join();
        }
    }
}

/// Asks the disk of each cache device for its health, and adds events about changes for the worse. Waits for the
/// disks.
fn look(watch: &CacheMonitor, events: &EventLog, ask: impl Fn(&str) -> Result<Option<Health>, Failure>) {
    let devices: Vec<Arc<CacheDevice>> = watch.devices();
    let mut known = watch.health.lock();
    known.reports.retain(|name, _| devices.iter().any(|device| device.name() == name));
    known.silent.retain(|name| devices.iter().any(|device| device.name() == name));
    drop(known);
    for device in devices {
        let Some(answer) = device.disk().map(|disk| ask(&disk)) else { continue };
        let changes = watch.health.lock().take(device.name(), answer);
        for (severity, message) in changes {
            match answer {
                Err(Failure::Ended) => events.add(severity, "device-health", message, &[]),
                _ => events.add(severity, "device-health", message, &[("device", &device.name())]),
            }
        }
    }
}

/// Returns the changes of a device's health since the last check that are worth an event.
fn judge(name: &str, before: Option<Health>, now: Health) -> Vec<(Severity, String)> {
    let before = before.unwrap_or_default();
    let mut told = Vec::new();
    let (old, new) = (before.warnings.unwrap_or(0), now.warnings.unwrap_or(0));
    for (bit, what) in WARNINGS.iter().enumerate().filter(|(bit, _)| (new & !old) >> bit & 1 == 1) {
        match 1 << bit == TEMPERATURE {
            true => told
                .push((Severity::Warning, format!("the disk of cache device {name} warns: {what}; cool it"))),
            false => told.push((
                Severity::Error,
                format!("the disk of cache device {name} warns: {what}; {}", replace(name)),
            )),
        }
    }
    let used = |health: Health| health.life_used.unwrap_or(0);
    if used(before) < WORN && used(now) >= WORN {
        let message =
            format!("{} % of the rated life of cache device {name} is used; {}", used(now), replace(name));
        told.push((Severity::Warning, message));
    }
    if let (Some(old), Some(new)) = (before.media_errors, now.media_errors)
        && new > old
    {
        let message = format!(
            "the disk of cache device {name} could not give back what was stored on it {} times since the last look; \
             what the cache had there is taken from the other copy",
            new - old
        );
        told.push((Severity::Warning, message));
    }
    told
}

/// Returns why an administrator has to act, if a disk predicts its failure.
fn prediction(name: &str, health: &Health) -> Option<String> {
    let warnings = health.warnings.unwrap_or(0) & !TEMPERATURE;
    let first = WARNINGS.iter().enumerate().find(|(bit, _)| warnings >> bit & 1 == 1)?;
    Some(format!("the disk of cache device {name} warns: {}; {}", first.1, replace(name)))
}

/// Returns the advice to replace a cache device, as the end of a message.
fn replace(name: &str) -> String {
    format!(
        "add another with `forebay pool add PATH`, then take this one away with `forebay pool remove {name} --wait`"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    const WELL: Health =
        Health { life_used: Some(3), spare: Some(100), media_errors: Some(7), warnings: Some(0) };

    #[test]
    fn a_disk_that_is_not_checked_is_told_once_and_stays_in_the_health() {
        let mut known = Known::default();
        assert_eq!(known.take("d", Ok(Some(WELL))), []);
        let told = known.take("d", Err(Failure::Silent));
        assert!(told.len() == 1 && told[0].1.contains("d does not tell its health"), "{told:?}");
        assert_eq!(known.take("d", Err(Failure::Silent)), []);
        assert_eq!(known.take("e", Ok(None)), []);
        assert_eq!(known.troubles(), [silent("d")]);
        let worn = Health { life_used: Some(90), ..WELL };
        let told = known.take("d", Ok(Some(worn)));
        assert!(told[0].1.contains("again") && told[1].1.contains("90 %"), "{told:?}");
        assert_eq!(known.troubles(), [""; 0]);
        let told = ["d", "e"].map(|name| known.take(name, Err(Failure::Ended)).len());
        assert_eq!((told, known.troubles()), ([1, 0], vec![ENDED.to_owned()]));
    }

    #[test]
    fn what_gets_worse_is_told_once() {
        assert_eq!(judge("d", None, WELL), []);
        let failing = Health { warnings: Some(0b101), ..WELL };
        let told = judge("d", Some(WELL), failing);
        assert!(
            told.iter()
                .all(|(severity, text)| *severity == Severity::Error && text.contains("pool remove d"))
        );
        assert!(told.len() == 2 && told[1].1.contains("unreliable"), "{told:?}");
        assert_eq!(judge("d", Some(failing), failing), []);
        assert_eq!(judge("d", None, failing).len(), 2, "also at the first look");
        assert!(prediction("d", &failing).unwrap().contains("few spare blocks"));
        let hot = Health { warnings: Some(TEMPERATURE), ..WELL };
        assert!(judge("d", Some(WELL), hot)[0].1.contains("hot") && prediction("d", &hot).is_none());
        let worn = Health { life_used: Some(90), media_errors: Some(9), ..WELL };
        let told = judge("d", Some(WELL), worn);
        assert!(told[0].1.contains("90 %") && told[1].1.contains("2 times"), "{told:?}");
        assert_eq!(judge("d", None, Health { media_errors: Some(9), ..WELL }), [], "old ones are old");
    }
}
