//! The process behind an array. One thread takes block requests from FUSE, asks the model when each completes, and
//! answers at that time.

mod abi;
mod channel;
pub(crate) mod control;
mod credits;
mod faults;
mod image;
mod requests;

pub use control::Status;
pub use faults::{Fault, Hits};

use crate::model::{CacheKind, Model};
use crate::sim::{Array, Nanos};
use channel::{Channel, Received};
use control::{Answer, Ask};
use credits::Credits;
use faults::Faults;
use image::Image;
use requests::Pending;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::collections::HashMap;
use std::io;
use std::num::NonZeroU64;
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::time::Instant;

/// Name of the file below the FUSE mount that becomes the block device.
pub(crate) use abi::FILE_NAME;

/// Longest sleep, so that a lost wake-up costs at most this time, in nanoseconds.
const IDLE: Nanos = 1_000_000_000;

/// The parameters of a daemon.
#[derive(Debug)]
pub(crate) struct Setup<'a> {
    /// Directory of the control socket and the FUSE mount.
    pub(crate) directory: &'a Path,
    /// Existing directory at which FUSE is mounted.
    pub(crate) fuse: &'a Path,
    pub(crate) image: &'a Path,
    pub(crate) model: &'a Model,
    /// Size of the block device in bytes, a multiple of the model's stripes.
    pub(crate) size: u64,
}

pub(crate) struct Daemon {
    channel: Channel,
    control: UnixDatagram,
    image: Image,
    array: Array,
    faults: Faults,
    pending: HashMap<u64, Pending>,
    /// Requests that are complete but held back by [`Fault::Hang`]: numbers and due times.
    held: Vec<(u64, Nanos)>,
    credits: Credits,
    started: Instant,
    cut: bool,
    stop: bool,
}

impl Daemon {
    /// Mounts the file. Requests wait until [`Daemon::run`] is called.
    pub(crate) fn new(setup: &Setup<'_>) -> io::Result<Self> {
        // A battery-backed cache keeps all its data in a power cut, so no former content is needed.
        let tracks = setup.model.cache.kind != CacheKind::Battery;
        Ok(Self {
            image: Image::open(setup.image, setup.size, tracks)?,
            array: Array::new(setup.model, setup.size),
            control: control::listen(setup.directory)?,
            channel: Channel::mount(setup.fuse)?,
            faults: Faults::default(),
            pending: HashMap::new(),
            held: Vec::new(),
            credits: Credits::default(),
            started: Instant::now(),
            cut: false,
            stop: false,
        })
    }

    /// Serves requests until a stop is asked for or the file system is unmounted.
    pub(crate) fn run(mut self) -> io::Result<()> {
        let mut buffer = vec![0; abi::MAX_TRANSFER + 4096];
        while !self.stop {
            self.progress()?;
            let (request, question) = self.wait()?;
            self.progress()?;
            if request && !self.receive(&mut buffer)? {
                return Ok(());
            }
            if question && let Some((ask, from)) = control::next(&self.control)? {
                let answer = self.respond(ask)?;
                control::answer(&self.control, &from, &answer);
            }
        }
        Ok(())
    }

    /// Handles all requests that wait. Returns false if the file system has been unmounted.
    fn receive(&mut self, buffer: &mut [u8]) -> io::Result<bool> {
        loop {
            match self.channel.receive(buffer)? {
                Received::Request(length) => self.request(&buffer[..length])?,
                Received::Empty => return Ok(true),
                Received::Gone => return Ok(false),
            }
        }
    }

    /// Returns the time since the start, in nanoseconds.
    fn now(&self) -> Nanos {
        self.started.elapsed().as_nanos() as Nanos
    }

    /// Sleeps until a request, a question, or the model's next event. Returns true for a request and true for a
    /// question.
    fn wait(&mut self) -> io::Result<(bool, bool)> {
        let timeout = match self.array.next_event() {
            Some(at) => at.saturating_sub(self.now()).min(IDLE),
            None => IDLE,
        };
        let timeout = Timespec { tv_sec: 0, tv_nsec: timeout.min(999_999_999) as _ };
        let fuse = self.channel.fd();
        let mut fds = [PollFd::new(&fuse, PollFlags::IN), PollFd::new(&self.control, PollFlags::IN)];
        match poll(&mut fds, Some(&timeout)) {
            Ok(_) => Ok((!fds[0].revents().is_empty(), !fds[1].revents().is_empty())),
            Err(rustix::io::Errno::INTR) => Ok((false, false)),
            Err(e) => Err(e.into()),
        }
    }

    /// Carries out a request of a control client. A power cut fails all requests of the kernel and restores former
    /// contents.
    fn respond(&mut self, ask: Ask) -> io::Result<Answer> {
        Ok(match ask {
            Ask::Status => Answer::Status(Box::new(self.status())),
            Ask::Inject(fault) => self.inject(fault)?,
            Ask::Cut { seed } => {
                self.cut = true;
                self.fail_all()?;
                Answer::Cut(self.image.cut(seed)?)
            }
            Ask::Stop => {
                self.stop = true;
                Answer::Done
            }
        })
    }

    /// Applies a fault, or clears all faults. Returns a refusal if the fault makes no sense for the array's model.
    fn inject(&mut self, fault: Fault) -> io::Result<Answer> {
        match fault {
            Fault::Eio { offset, length, hits, count } => {
                if count == Some(0) || length == 0 {
                    return Ok(Answer::Refused(
                        "an error range needs a length and a count above 0".to_owned(),
                    ));
                }
                self.faults.fail_range(offset, length, hits, count);
            }
            Fault::Slow { factor, disk } => {
                let disks = self.array.model().disks() as usize;
                if !(0.01..=1e6).contains(&factor) || disk.is_some_and(|d| d >= disks) {
                    let why = format!("the factor must be 0.01 to 1000000 and the disk 0 to {}", disks - 1);
                    return Ok(Answer::Refused(why));
                }
                self.array.slow(disk, factor);
            }
            Fault::Hang => self.faults.hang = true,
            Fault::FlushNoop => {
                if self.array.model().cache.kind != CacheKind::Volatile {
                    let why = "flushes do nothing already: the write cache is not volatile; \
                               bring the array up with --write-cache volatile";
                    return Ok(Answer::Refused(why.to_owned()));
                }
                self.array.ignore_flushes(true);
            }
            Fault::Instant => self.faults.instant = true,
            Fault::Clear => {
                self.faults = Faults::default();
                self.array.slow(None, 1.0);
                self.array.ignore_flushes(false);
                self.release()?;
            }
        }
        Ok(Answer::Done)
    }

    /// Returns the counters of the array and its disks, the faults in force, and the daemon's processor time.
    fn status(&self) -> Status {
        let cpu = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
        Status {
            counters: self.array.counters(),
            disks: self.array.disks(),
            uptime_ns: self.now(),
            cpu_ns: cpu.tv_sec as u64 * 1_000_000_000 + cpu.tv_nsec as u64,
            blocks_at_risk: self.image.at_risk(),
            error_ranges: self.faults.error_ranges() as u64,
            hang: self.faults.hang,
            instant: self.faults.instant,
            cut: self.cut,
        }
    }
}

/// Prepares this process to act as a disk: prompt, safe from the out-of-memory killer, and never waiting for its own
/// array.
///
/// Each step helps but none is necessary, so errors are ignored.
pub(crate) fn become_hardware() {
    _ = rustix::thread::set_name(c"forebay-array");
    _ = rustix::process::setpriority_process(None, -20);
    _ = rustix::thread::set_current_timer_slack(NonZeroU64::new(1));
    // While reclaiming memory for this process, the kernel must not write back to the file system on the array.
    _ = rustix::process::configure_io_flusher_behavior(true);
    _ = std::fs::write("/proc/self/oom_score_adj", "-1000");
}
