//! The process that gives commands to the ublk driver.
//!
//! The driver wants CAP_SYS_ADMIN at the moment of a command. The server gives up this capability before it serves
//! clients. A separate process keeps it, and does nothing but these commands. Devices without the capability
//! (`UBLK_F_UNPRIVILEGED_DEV`) do not outlive their server, so they are no choice.

use std::collections::HashMap;
use std::io::{self, BufRead, BufReader, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::time::Duration;

use forebay_block::ublk::{Control, Description, Driver, Order};
use forebay_common::lock::Mutex;
use rustix::thread::{CapabilitySet, CapabilitySets, capabilities, set_capabilities};
use serde::{Deserialize, Serialize};

use crate::privileged::{Work, helper, holds};
use crate::sandbox;

/// The hidden verb of the `forebay` command that runs [`control_ublk`].
pub const UBLK_VERB: &str = "control-ublk";

/// The control device of the driver.
const CONTROL: &str = "/dev/ublk-control";

/// The time that the server waits until the kernel has forgotten a device. Afterwards the kernel goes on by itself.
const FORGETTING: Duration = Duration::from_secs(1);

/// The time that a command may take. A command for a device whose requests are not answered may not end.
const PATIENCE: Duration = Duration::from_secs(10);

/// The error after the end of the process.
const ENDED: &str = "the process for ublk has ended; restart the server";

/// An [`Order`] on the line, with the number that its answer repeats.
#[derive(Debug, Serialize, Deserialize)]
struct Numbered(u64, Order);

/// The number of an order, and the answer to it or the number of the kernel's error.
#[derive(Debug, Serialize, Deserialize)]
struct Answer(u64, Result<Option<Description>, i32>);

/// The process that may give commands to the driver, as the server has it. A command may wait for a silent backing
/// device, and holds up no command for another device.
#[derive(Debug)]
pub(crate) struct UblkDriver {
    /// `None` for a helper of the service manager.
    process: Option<Child>,
    line: Mutex<UnixStream>,
    waiting: Arc<Mutex<Waiting>>,
    patience: Duration,
}

/// The orders that are not answered yet.
#[derive(Debug, Default)]
struct Waiting {
    last: u64,
    answers: HashMap<u64, Sender<Result<Option<Description>, i32>>>,
    /// True once a thread reads the answers.
    is_read: bool,
    /// True once the process has ended.
    is_over: bool,
}

impl UblkDriver {
    /// Returns true if this host has ublk.
    pub(crate) fn is_there() -> bool {
        Path::new(CONTROL).exists()
    }

    /// Starts the process while the server still has its privileges. A server without the privilege has a helper of the
    /// service manager.
    ///
    /// # Errors
    /// A sentence: this host has no ublk, or the server lacks the privilege.
    pub(crate) fn start() -> Result<Self, String> {
        if !Self::is_there() {
            return Err(format!(
                "this host had no ublk ({CONTROL}) when the server started; with Linux 6.1 or later load it with `modprobe \
                 ublk_drv`, and restart the server"
            ));
        }
        if !holds(CapabilitySet::SYS_ADMIN) {
            let lacks = |error| {
                format!(
                    "ublk wants CAP_SYS_ADMIN, which this server was started without, and there is no helper \
                     (forebay-privileged.socket: {error}); start that socket, and restart the server"
                )
            };
            return helper(Work::Ublk).map(|line| UblkDriver::new(None, line)).map_err(lacks);
        }
        let failed = |error: io::Error| format!("the process for ublk cannot be started: {error}");
        let (ours, theirs) = UnixStream::pair().map_err(failed)?;
        let mut command = Command::new("/proc/self/exe");
        command.arg(UBLK_VERB).stdin(std::os::fd::OwnedFd::from(theirs));
        // The process must hold no descriptor of the server open, nor a directory.
        command.stdout(Stdio::null()).stderr(Stdio::null()).current_dir("/");
        let process = command.spawn().map_err(failed)?;
        Ok(UblkDriver::new(Some(process), ours))
    }

    fn new(process: Option<Child>, line: UnixStream) -> Self {
        UblkDriver { process, line: Mutex::new(line), waiting: Arc::default(), patience: PATIENCE }
    }

    /// Sends an order. The thread that reads the answers starts with the first order: by then the server has given up
    /// its privileges.
    fn send(&self, order: Order, answer: Sender<Result<Option<Description>, i32>>) -> io::Result<()> {
        let mut line = self.line.lock();
        let mut waiting = self.waiting.lock();
        if waiting.is_over {
            return Err(io::Error::other(ENDED));
        }
        if !waiting.is_read {
            let (answers, theirs) = (line.try_clone()?, self.waiting.clone());
            let reader = std::thread::Builder::new().name("forebay-ublk-ctl".into());
            reader.spawn(move || read_answers(answers, &theirs))?;
            waiting.is_read = true;
        }
        waiting.last += 1;
        let sent = serde_json::to_string(&Numbered(waiting.last, order))? + "\n";
        let number = waiting.last;
        waiting.answers.insert(number, answer);
        drop(waiting);
        line.write_all(sent.as_bytes()).map_err(|_| io::Error::other(ENDED))
    }
}

/// Passes each answer to the thread that waits for it, until the process ends.
fn read_answers(line: UnixStream, waiting: &Mutex<Waiting>) {
    // An answer cut short is no answer. Both mean that the process has ended, as an error of the line does.
    for answer in BufReader::new(line).lines().map_while(Result::ok) {
        let Ok(Answer(number, answer)) = serde_json::from_str(&answer) else { break };
        let sender = waiting.lock().answers.remove(&number);
        if let Some(sender) = sender {
            // The thread that waited may have given up.
            let _ = sender.send(answer);
        }
    }
    let mut waiting = waiting.lock();
    waiting.is_over = true;
    waiting.answers.clear();
}

impl Driver for UblkDriver {
    fn carry_out(&self, order: Order) -> io::Result<Option<Description>> {
        let (send, answer) = channel();
        self.send(order, send)?;
        let answer = answer.recv_timeout(self.patience).map_err(|error| match error {
            RecvTimeoutError::Timeout => io::Error::new(
                io::ErrorKind::TimedOut,
                format!("the ublk driver has not carried out a command within {:?}", self.patience),
            ),
            RecvTimeoutError::Disconnected => io::Error::other(ENDED),
        })?;
        answer.map_err(io::Error::from_raw_os_error)
    }
}

impl Drop for UblkDriver {
    fn drop(&mut self) {
        // The thread that reads the answers ends as well.
        let _ = self.line.get_mut().shutdown(Shutdown::Both);
        if let Some(process) = &mut self.process {
            let _ = process.kill();
            let _ = process.wait();
        }
    }
}

/// Carries out the server's orders, which arrive on standard input, a socket, until the socket is closed.
pub fn control_ublk() -> io::Result<()> {
    let kept = capabilities(None)?.permitted & CapabilitySet::SYS_ADMIN;
    let sets = CapabilitySets { effective: kept, permitted: kept, inheritable: CapabilitySet::empty() };
    set_capabilities(None, sets)?;
    let control = Control::open();
    // The process has more privileges than the server, so it makes no system call that the server does not make.
    sandbox::confine()?;
    let line = UnixStream::from(rustix::io::dup(io::stdin())?);
    answer_all(line, move |order| {
        let failed = |error: &io::Error| {
            error.raw_os_error().map_or(io::ErrorKind::Unsupported.into(), io::Error::from_raw_os_error)
        };
        let mut own = control.as_ref().map_err(failed)?.try_clone()?;
        match order {
            // The kernel ends this command when the last program closes the device.
            Order::Delete(_) => begun(move || own.carry_out(order)),
            _ => own.carry_out(order),
        }
    })
}

/// Carries out a command on a thread of its own. After the time `FORGETTING` the command counts as carried out.
fn begun(
    command: impl FnOnce() -> io::Result<Option<Description>> + Send + 'static,
) -> io::Result<Option<Description>> {
    let (send, ended) = channel();
    let run = move || {
        // The caller may not wait any more.
        let _ = send.send(command());
    };
    std::thread::Builder::new().name("forebay-ublk-end".into()).spawn(run)?;
    ended.recv_timeout(FORGETTING).unwrap_or(Ok(None))
}

/// Carries out each order on the line, on a thread of its own, and answers with its result or the number of its error,
/// until the server closes the line.
fn answer_all(
    line: UnixStream,
    carry_out: impl Fn(Order) -> io::Result<Option<Description>> + Send + Sync + 'static,
) -> io::Result<()> {
    let (answers, carry_out) = (Arc::new(Mutex::new(line.try_clone()?)), Arc::new(carry_out));
    for order in BufReader::new(line).lines() {
        let Numbered(number, order) = serde_json::from_str(&order?)?;
        let (answers, carry_out) = (answers.clone(), carry_out.clone());
        let run = move || {
            let done = carry_out(order).map_err(|error| error.raw_os_error().unwrap_or(libc::EOPNOTSUPP));
            let answer = serde_json::to_string(&Answer(number, done)).unwrap_or_default() + "\n";
            // The server may have closed the line.
            let _ = answers.lock().write_all(answer.as_bytes());
        };
        std::thread::Builder::new().name("forebay-ublk-order".into()).spawn(run)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use forebay_block::ublk::State;

    use super::*;

    #[test]
    fn orders_and_the_kernel_s_errors_pass_between_the_processes() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let device = Description {
            number: 7,
            state: State::Waiting,
            mark: u64::MAX,
            depth: 64,
            buffer: 4096,
            plain: false,
        };
        let answering = std::thread::spawn(move || {
            answer_all(theirs, move |order| match order {
                Order::Describe(7) => Ok(Some(device)),
                Order::Delete(7) => Ok(None),
                Order::Add(..) => Err(io::ErrorKind::Unsupported.into()),
                _ => Err(io::Error::from_raw_os_error(libc::EBUSY)),
            })
        });
        let driver = UblkDriver::new(None, ours);
        let error = |order| driver.carry_out(order).unwrap_err().raw_os_error();
        assert_eq!(driver.carry_out(Order::Describe(7)).unwrap(), Some(device));
        assert_eq!(error(Order::StartRecovery(7)), Some(libc::EBUSY));
        assert_eq!(driver.carry_out(Order::Delete(7)).unwrap(), None);
        drop(driver);
        answering.join().unwrap().unwrap();
    }

    #[test]
    fn a_command_that_waits_for_other_programs_holds_up_no_other_command() {
        let (close, closed) = channel::<()>();
        let waits = move || {
            let _ = closed.recv();
            Err(io::Error::from_raw_os_error(libc::EINTR))
        };
        assert_eq!(begun(waits).unwrap(), None);
        drop(close);
        let failed = begun(|| Err(io::Error::from_raw_os_error(libc::ENODEV)));
        assert_eq!(failed.unwrap_err().raw_os_error(), Some(libc::ENODEV));
    }

    #[test]
    fn an_order_that_waits_for_a_silent_device_holds_up_no_order_for_another_device() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let (answer, silent) = channel::<()>();
        let silent = Mutex::new(silent);
        let answering = std::thread::spawn(move || {
            answer_all(theirs, move |order| match order {
                Order::Stop(0) => Ok(silent.lock().recv().map_or(None, |()| None)),
                _ => Err(io::Error::from_raw_os_error(libc::EBUSY)),
            })
        });
        let driver = UblkDriver::new(None, ours);
        std::thread::scope(|scope| {
            let stopping = scope.spawn(|| driver.carry_out(Order::Stop(0)));
            let busy = driver.carry_out(Order::Stop(1)).unwrap_err();
            assert_eq!(busy.raw_os_error(), Some(libc::EBUSY));
            answer.send(()).unwrap();
            assert_eq!(stopping.join().unwrap().unwrap(), None);
        });
        drop(driver);
        answering.join().unwrap().unwrap();
    }

    #[test]
    fn an_order_that_does_not_end_is_given_up_and_the_next_one_is_answered() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let (end, silent) = channel::<()>();
        let silent = Mutex::new(silent);
        let answering = std::thread::spawn(move || {
            answer_all(theirs, move |order| match order {
                Order::Start(..) => Ok(silent.lock().recv().map_or(None, |()| None)),
                _ => Err(io::Error::from_raw_os_error(libc::EBUSY)),
            })
        });
        let mut driver = UblkDriver::new(None, ours);
        driver.patience = Duration::from_millis(50);
        let late = driver.carry_out(Order::Start(0, 1)).unwrap_err();
        assert_eq!(late.kind(), io::ErrorKind::TimedOut);
        assert!(late.to_string().contains("has not carried out a command"), "{late}");
        end.send(()).unwrap();
        driver.patience = PATIENCE;
        assert_eq!(driver.carry_out(Order::Stop(0)).unwrap_err().raw_os_error(), Some(libc::EBUSY));
        drop(driver);
        answering.join().unwrap().unwrap();
    }

    #[test]
    fn a_process_that_died_is_an_error() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        drop(theirs);
        let driver = UblkDriver::new(None, ours);
        assert_eq!(driver.carry_out(Order::Stop(0)).unwrap_err().to_string(), ENDED);
    }
}
