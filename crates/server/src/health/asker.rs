//! The process that asks disks for their health, and the server's line to it.
//!
//! A question is a number (4 bytes, little-endian), the length of the disk's name (1 byte), and the name. An answer is
//! the number of its question, and 12 bytes. Each disk is asked on a thread of its own, so a disk that does not answer
//! holds up no other one.

use std::collections::HashSet;
use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use forebay_common::lock::Mutex;
use forebay_disk::Health;
use rustix::thread::{CapabilitySet, CapabilitySets, capabilities, set_capabilities};

use crate::privileged::{Work, helper};
use crate::sandbox;

/// The hidden verb of the `forebay` command that runs [`answer_health`].
pub const HEALTH_VERB: &str = "answer-disk-health";

/// The time after which a disk without an answer is given up until the next question.
pub(super) const PATIENCE: Duration = Duration::from_secs(10);
/// The capabilities that asking disks needs.
const ASKING: CapabilitySet = CapabilitySet::SYS_ADMIN.union(CapabilitySet::SYS_RAWIO);
/// The size of a question's number in bytes.
const NUMBER: usize = 4;
/// The size of a disk's health in an answer in bytes.
const HEALTH: usize = 12;
/// The size of an answer in bytes.
const ANSWER: usize = NUMBER + HEALTH;

/// The reason why a question has no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Failure {
    /// The disk did not answer in time.
    Silent,
    /// The process has ended. The server can start no other one.
    Ended,
}

/// The process that may ask disks.
#[derive(Debug)]
pub(crate) struct Asker {
    /// `None` for a helper of the service manager.
    process: Option<Child>,
    line: Mutex<Line>,
}

/// The connection to the process.
#[derive(Debug)]
struct Line {
    socket: UnixStream,
    /// The number of the last question.
    asked: u32,
    /// The bytes of an answer that is being received.
    answer: [u8; ANSWER],
    received: usize,
}

impl Asker {
    /// Starts the process while the server still has its privileges. A server without a helpful privilege has a helper
    /// of the service manager; `None` if there is no helper either.
    pub(crate) fn start() -> Option<Self> {
        if !capabilities(None).is_ok_and(|held| held.effective.intersects(ASKING)) {
            return Asker::new(None, helper(Work::Health).ok()?);
        }
        let (ours, theirs) = UnixStream::pair().ok()?;
        let mut command = Command::new("/proc/self/exe");
        command.arg(HEALTH_VERB).stdin(std::os::fd::OwnedFd::from(theirs));
        // The process must hold no descriptor of the server open, nor a directory.
        command.stdout(Stdio::null()).stderr(Stdio::null()).current_dir("/");
        match command.spawn() {
            Ok(process) => Asker::new(Some(process), ours),
            Err(error) => {
                tracing::warn!("the health of the cache's disks is not known: {error}");
                None
            }
        }
    }

    fn new(process: Option<Child>, socket: UnixStream) -> Option<Self> {
        socket.set_read_timeout(Some(PATIENCE)).ok()?;
        let line = Line { socket, asked: 0, answer: [0; ANSWER], received: 0 };
        Some(Asker { process, line: Mutex::new(line) })
    }

    /// Asks the process about a disk, and waits up to `PATIENCE`. Returns `None` if the disk tells nothing.
    pub(super) fn ask(&self, disk: &str) -> Result<Option<Health>, Failure> {
        self.line.lock().ask(disk).map_err(|error| match error.kind() {
            io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => Failure::Silent,
            _ => Failure::Ended,
        })
    }
}

impl Drop for Asker {
    fn drop(&mut self) {
        // A process that waits for its disk ends when the disk answers. The server does not wait for that. A helper
        // ends with its line.
        if let Some(process) = &mut self.process {
            let _ = process.kill();
            let _ = process.try_wait();
        }
    }
}

impl Line {
    /// Sends the name of a disk and waits for the answer. Late answers to earlier questions are dropped.
    fn ask(&mut self, disk: &str) -> io::Result<Option<Health>> {
        let Ok(len) = u8::try_from(disk.len()) else { return Ok(None) };
        self.asked = self.asked.wrapping_add(1);
        let number = self.asked.to_le_bytes();
        self.socket.write_all(&[&number[..], &[len], disk.as_bytes()].concat())?;
        loop {
            let [a, b, c, d, health @ ..] = self.receive()?;
            if [a, b, c, d] == number {
                return Ok(decode(&health));
            }
        }
    }

    /// Receives an answer. After a timeout the next call continues with the same answer.
    fn receive(&mut self) -> io::Result<[u8; ANSWER]> {
        while self.received < ANSWER {
            match self.socket.read(&mut self.answer[self.received..]) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(len) => self.received += len,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        self.received = 0;
        Ok(self.answer)
    }
}

/// Answers the server's questions on standard input, which is a socket, until the socket is closed.
pub fn answer_health() -> io::Result<()> {
    let sets = CapabilitySets { effective: ASKING, permitted: ASKING, inheritable: CapabilitySet::empty() };
    let held = capabilities(None)?.permitted;
    let kept = held & sets.permitted;
    set_capabilities(None, CapabilitySets { effective: kept, permitted: kept, ..sets })?;
    // The process has more privileges than the server, so it makes no system call that the server does not make.
    sandbox::confine()?;
    let line = UnixStream::from(rustix::io::dup(io::stdin())?);
    answer_all(line, forebay_disk::ask_health)
}

/// The parts that the threads of the process share.
struct Answering<F> {
    ask: F,
    line: Mutex<UnixStream>,
    /// The disks that have not answered yet.
    asking: Mutex<HashSet<String>>,
}

/// Answers each question on the line with `ask`, until the server closes the line. A disk that has not answered the
/// question before is not asked again.
fn answer_all(
    mut line: UnixStream,
    ask: impl Fn(&str) -> Option<Health> + Send + Sync + 'static,
) -> io::Result<()> {
    let shared = Arc::new(Answering { ask, line: Mutex::new(line.try_clone()?), asking: Mutex::default() });
    let mut head = [0; NUMBER + 1];
    loop {
        match line.read_exact(&mut head) {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(()),
            read => read?,
        }
        let [number @ .., len] = head;
        let mut name = vec![0; usize::from(len)];
        line.read_exact(&mut name)?;
        let Ok(name) = String::from_utf8(name) else { continue };
        if !shared.asking.lock().insert(name.clone()) {
            continue;
        }
        let (asking, disk) = (shared.clone(), name.clone());
        let started = std::thread::Builder::new().name("forebay-disk".into()).spawn(move || {
            let health = (asking.ask)(&disk);
            asking.asking.lock().remove(&disk);
            // A server that is gone needs no answer.
            let _ = asking.line.lock().write_all(&[&number[..], &encode(health)].concat());
        });
        if started.is_err() {
            shared.asking.lock().remove(&name);
        }
    }
}

/// Returns the health of a disk as bytes. The first byte has a bit for each value that is known.
fn encode(health: Option<Health>) -> [u8; HEALTH] {
    let mut bytes = [0; HEALTH];
    let Some(health) = health else { return bytes };
    let Health { life_used, spare, media_errors, warnings } = health;
    let known = [true, life_used.is_some(), spare.is_some(), warnings.is_some(), media_errors.is_some()];
    bytes[0] = known.iter().enumerate().fold(0, |bits, (at, known)| bits | u8::from(*known) << at);
    bytes[1..4].copy_from_slice(&[life_used, spare, warnings].map(Option::unwrap_or_default));
    bytes[4..].copy_from_slice(&media_errors.unwrap_or_default().to_le_bytes());
    bytes
}

/// Decodes the health of a disk. Returns `None` if the process learned nothing from the disk.
fn decode(bytes: &[u8; HEALTH]) -> Option<Health> {
    let has = |bit: usize| bytes[0] >> bit & 1 == 1;
    let [_, life_used, spare, warnings, errors @ ..] = *bytes;
    has(0).then(|| Health {
        life_used: has(1).then_some(life_used),
        spare: has(2).then_some(spare),
        warnings: has(3).then_some(warnings),
        media_errors: has(4).then_some(u64::from_le_bytes(errors)),
    })
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;

    const WELL: Health =
        Health { life_used: Some(3), spare: Some(100), media_errors: Some(7), warnings: Some(0) };

    fn asker(socket: UnixStream) -> Asker {
        Asker::new(None, socket).unwrap()
    }

    #[test]
    fn what_the_other_process_answers_is_what_the_disk_said() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let some = Health { spare: None, warnings: None, ..WELL };
        let answering = std::thread::spawn(move || {
            answer_all(theirs, move |disk| match disk {
                "nvme0n1" => Some(WELL),
                "sda" => Some(some),
                _ => None,
            })
        });
        let asker = asker(ours);
        assert_eq!(asker.ask("nvme0n1"), Ok(Some(WELL)));
        assert_eq!(asker.ask("vda"), Ok(None));
        assert_eq!(asker.ask("sda"), Ok(Some(some)));
        drop(asker);
        answering.join().unwrap().unwrap();
    }

    #[test]
    fn an_asker_that_died_is_told() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        drop(theirs);
        let asker = asker(ours);
        assert_eq!([asker.ask("nvme0n1"), asker.ask("nvme0n1")], [Err(Failure::Ended); 2]);
    }

    #[test]
    fn a_disk_that_does_not_answer_holds_up_no_other_disk_and_no_later_question() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let control = ours.try_clone().unwrap();
        let (hang, hanging) = channel::<()>();
        let hanging = Mutex::new(hanging);
        let answering = std::thread::spawn(move || {
            answer_all(theirs, move |disk| match disk {
                // The disk hangs until the other end of the channel is dropped.
                "sda" => hanging.lock().recv().err().map(|_| Health { life_used: Some(1), ..WELL }),
                _ => Some(WELL),
            })
        });
        let asker = asker(ours);
        control.set_read_timeout(Some(Duration::from_millis(1))).unwrap();
        assert_eq!([asker.ask("sda"), asker.ask("sda")], [Err(Failure::Silent); 2]);
        control.set_read_timeout(None).unwrap();
        assert_eq!(asker.ask("nvme0n1"), Ok(Some(WELL)));
        drop(hang);
        // The answer to the first question comes now, and is not taken for that of another disk.
        assert_eq!(asker.ask("nvme0n1"), Ok(Some(WELL)));
        let answers = std::iter::from_fn(|| Some(asker.ask("sdb")));
        assert!(answers.take(100).all(|answer| answer == Ok(Some(WELL))));
        drop((asker, control));
        answering.join().unwrap().unwrap();
    }
}
