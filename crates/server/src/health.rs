//! The health of the disks below the cache devices: read every ten minutes, and reported as events when it gets worse.
//!
//! NVMe and SATA disks answer only a process with CAP_SYS_ADMIN or CAP_SYS_RAWIO at the moment of the request. The
//! server gives up these capabilities before it serves clients. A separate process keeps them, and only asks disks by
//! name.

use std::collections::HashMap;
use std::io::Read;
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use forebay_common::lock::Mutex;
use forebay_control::{EventLog, Severity};
use forebay_disk::{CacheDevice, Health};
use forebay_engine::io::Device;
use rustix::thread::{CapabilitySet, CapabilitySets, capabilities, set_capabilities};

use crate::cache::CacheMonitor;
use crate::sandbox;

/// The hidden verb of the `forebay` command that runs [`answer_health`].
pub const HEALTH_VERB: &str = "answer-disk-health";

/// The time between two checks.
const LOOK: Duration = Duration::from_secs(600);
/// The time after which a disk without an answer is given up.
const PATIENCE: Duration = Duration::from_secs(10);
/// The capabilities that asking disks needs.
const ASKING: CapabilitySet = CapabilitySet::SYS_ADMIN.union(CapabilitySet::SYS_RAWIO);
/// The size of an answer in bytes.
const ANSWER: usize = 12;
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

/// The process that may ask disks.
#[derive(Debug)]
pub(crate) struct Asker {
    process: Child,
    /// The connection to the process; `None` once it failed.
    line: Mutex<Option<UnixStream>>,
}

impl Asker {
    /// Starts the process while the server still has its privileges; `None` if the server has no helpful privilege.
    pub(crate) fn start() -> Option<Self> {
        if !capabilities(None).is_ok_and(|held| held.effective.intersects(ASKING)) {
            return None;
        }
        let (ours, theirs) = UnixStream::pair().ok()?;
        ours.set_read_timeout(Some(PATIENCE)).ok()?;
        let mut command = Command::new("/proc/self/exe");
        command.arg(HEALTH_VERB).stdin(std::os::fd::OwnedFd::from(theirs));
        // The process must hold no descriptor of the server open, nor a directory.
        command.stdout(Stdio::null()).stderr(Stdio::null()).current_dir("/");
        match command.spawn() {
            Ok(process) => Some(Asker { process, line: Mutex::new(Some(ours)) }),
            Err(error) => {
                tracing::warn!("the health of the cache's disks is not known: {error}");
                None
            }
        }
    }

    /// Asks the process about a disk, and waits up to `PATIENCE`. After a failure the process is not asked again, and
    /// every answer is `None`.
    fn ask(&self, disk: &str) -> Option<Health> {
        let mut line = self.line.lock();
        let answer = line.as_mut().and_then(|line| exchange(line, disk));
        if answer.is_none() {
            // A late answer would be taken for the answer to the next question.
            *line = None;
        }
        decode(&answer?)
    }
}

impl Drop for Asker {
    fn drop(&mut self) {
        // The process ends with the connection. A process that waits for its disk may do so alone.
        *self.line.lock() = None;
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Sends the name of a disk and reads the answer. Returns `None` after an error or a timeout: the line is useless
/// then.
fn exchange(line: &mut UnixStream, disk: &str) -> Option<[u8; ANSWER]> {
    use std::io::Write;
    let len = u8::try_from(disk.len()).ok()?;
    line.write_all(&[&[len], disk.as_bytes()].concat()).ok()?;
    let mut answer = [0; ANSWER];
    line.read_exact(&mut answer).ok()?;
    Some(answer)
}

/// Answers the server's questions on standard input, which is a socket, until the socket is closed.
pub fn answer_health() -> std::io::Result<()> {
    let sets = CapabilitySets { effective: ASKING, permitted: ASKING, inheritable: CapabilitySet::empty() };
    let held = capabilities(None)?.permitted;
    let kept = held & sets.permitted;
    set_capabilities(None, CapabilitySets { effective: kept, permitted: kept, ..sets })?;
    // The process has more privileges than the server, so it makes no system call that the server does not make.
    sandbox::confine()?;
    let line = UnixStream::from(rustix::io::dup(std::io::stdin())?);
    answer_all(line, forebay_disk::ask_health)
}

/// Answers each question on the line with `ask`, until the server closes the line.
fn answer_all(mut line: UnixStream, ask: impl Fn(&str) -> Option<Health>) -> std::io::Result<()> {
    use std::io::Write;
    let mut len = [0];
    while line.read(&mut len)? == 1 {
        let mut name = vec![0; usize::from(len[0])];
        line.read_exact(&mut name)?;
        let health = String::from_utf8(name).ok().and_then(|name| ask(&name));
        line.write_all(&encode(health))?;
    }
    Ok(())
}

/// Returns an answer as bytes. The first byte has a bit for each value that is known.
fn encode(health: Option<Health>) -> [u8; ANSWER] {
    let mut bytes = [0; ANSWER];
    let Some(health) = health else { return bytes };
    let Health { life_used, spare, media_errors, warnings } = health;
    let known = [true, life_used.is_some(), spare.is_some(), warnings.is_some(), media_errors.is_some()];
    bytes[0] = known.iter().enumerate().fold(0, |bits, (at, known)| bits | u8::from(*known) << at);
    bytes[1..4].copy_from_slice(&[life_used, spare, warnings].map(Option::unwrap_or_default));
    bytes[4..].copy_from_slice(&media_errors.unwrap_or_default().to_le_bytes());
    bytes
}

/// Decodes an answer. Returns `None` if the process learned nothing from the disk.
fn decode(bytes: &[u8; ANSWER]) -> Option<Health> {
    let has = |bit: usize| bytes[0] >> bit & 1 == 1;
    let [_, life_used, spare, warnings, errors @ ..] = *bytes;
    has(0).then(|| Health {
        life_used: has(1).then_some(life_used),
        spare: has(2).then_some(spare),
        warnings: has(3).then_some(warnings),
        media_errors: has(4).then_some(u64::from_le_bytes(errors)),
    })
}

/// The known health of the cache devices, by name.
pub(crate) type Known = Mutex<HashMap<String, Health>>;

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
fn look(watch: &CacheMonitor, events: &EventLog, ask: impl Fn(&str) -> Option<Health>) {
    let devices: Vec<Arc<CacheDevice>> = watch.devices();
    watch.health.lock().retain(|name, _| devices.iter().any(|device| device.name() == name));
    for device in devices {
        let Some(now) = device.disk().and_then(|disk| ask(&disk)) else { continue };
        let before = watch.health.lock().insert(device.name().to_owned(), now);
        for (severity, message) in judge(device.name(), before, now) {
            events.add(severity, "device-health", message, &[("device", &device.name())]);
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
pub(crate) fn prediction(name: &str, health: &Health) -> Option<String> {
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
    fn what_the_other_process_answers_is_what_the_disk_said() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let some = Health { spare: None, warnings: None, ..WELL };
        let answering = std::thread::spawn(move || {
            answer_all(theirs, |disk| match disk {
                "nvme0n1" => Some(WELL),
                "sda" => Some(some),
                _ => None,
            })
        });
        let process = Command::new("true").spawn().unwrap();
        let asker = Asker { process, line: Mutex::new(Some(ours)) };
        assert_eq!(asker.ask("nvme0n1"), Some(WELL));
        assert_eq!(asker.ask("vda"), None);
        assert_eq!(asker.ask("sda"), Some(some));
        drop(asker);
        answering.join().unwrap().unwrap();
    }

    #[test]
    fn an_asker_that_died_is_no_trouble() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        drop(theirs);
        let process = Command::new("true").spawn().unwrap();
        let asker = Asker { process, line: Mutex::new(Some(ours)) };
        assert_eq!((asker.ask("nvme0n1"), asker.ask("nvme0n1")), (None, None));
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
