//! A device in service: its start, its end, and its return after a crash of the server.

use std::fs::File;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::thread::JoinHandle;
use std::time::Duration;

use forebay_volume::disk::Disk;
use rustix::io::Errno;

use super::control::{Description, Order, State};
use super::queue::{Buffer, Queue, Stop};

/// The process that may give commands to the driver.
pub trait Driver: Send + Sync {
    /// Carries out a command: see [`Control::carry_out`](super::Control::carry_out).
    ///
    /// # Errors
    /// The kernel's error, or the process does not answer.
    fn carry_out(&self, order: Order) -> io::Result<Option<Description>>;
}

/// A device whose requests this process carries out.
pub struct Device {
    number: u32,
    stop: Arc<Stop>,
    thread: JoinHandle<Vec<Option<Buffer>>>,
}

/// Returns the block device with this number.
pub fn block_device(number: u32) -> PathBuf {
    format!("/dev/ublkb{number}").into()
}

impl Device {
    /// Serves a device that was just made, or that waits for its next server. `ended` is called if the device ends
    /// without a request of this process.
    ///
    /// # Errors
    /// The kernel's error. EBUSY: the former server has not ended yet, so the call may be repeated.
    pub fn serve(
        driver: &dyn Driver,
        disk: Arc<dyn Disk>,
        device: Description,
        ended: impl FnOnce() + Send + 'static,
    ) -> io::Result<Self> {
        let number = device.number;
        let is_new = device.state == State::Dead;
        if !is_new {
            driver.carry_out(Order::StartRecovery(number))?;
        }
        let file = File::options().read(true).write(true).open(format!("/dev/ublkc{number}"))?;
        let stop = Arc::new(Stop::default());
        let thread = Device::start_queue(disk, file, device, stop.clone(), ended)?;
        let served = Device { number, stop, thread };
        let process = std::process::id();
        let order = match is_new {
            true => Order::Start(number, process),
            false => Order::EndRecovery(number, process),
        };
        if let Err(error) = driver.carry_out(order) {
            served.leave(Duration::ZERO);
            return Err(error);
        }
        Ok(served)
    }

    /// Starts the thread of a device's queue, and waits until the thread has its ring. `ended` is called if the queue
    /// ends without being asked to.
    fn start_queue(
        disk: Arc<dyn Disk>,
        file: File,
        device: Description,
        stop: Arc<Stop>,
        ended: impl FnOnce() + Send + 'static,
    ) -> io::Result<JoinHandle<Vec<Option<Buffer>>>> {
        let (ready, opened) = channel();
        let builder = std::thread::Builder::new().name(format!("forebay-ublk{}", device.number));
        let thread = builder.spawn(move || {
            let queue = match Queue::open(disk, file, &device, stop.clone()) {
                Ok(queue) => queue,
                Err(error) => {
                    let _ = ready.send(Err(error));
                    return Vec::new();
                }
            };
            // The caller waits for this message.
            let _ = ready.send(Ok(()));
            let buffers = queue.run();
            if !stop.is_wanted() {
                ended();
            }
            buffers
        })?;
        let died = |_| io::Error::other("the thread of the device has ended");
        opened.recv().map_err(died)??;
        Ok(thread)
    }

    /// Returns the number of the device.
    pub fn number(&self) -> u32 {
        self.number
    }

    /// Ends the service, and leaves the device to the next server. Requests in progress have the time `patience` to
    /// end; the next server carries out the others.
    pub fn leave(self, patience: Duration) {
        self.stop.leave(patience);
        self.join();
    }

    /// Ends the device. Requests in progress end first; a file system on it gets errors from then on. `claim`, which
    /// keeps other users off the block device, is dropped when the device takes no requests. The kernel cannot forget a
    /// device that is open.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn remove(self, driver: &dyn Driver, claim: Option<File>) -> io::Result<()> {
        let number = self.number;
        let stopped = driver.carry_out(Order::Stop(number));
        if stopped.as_ref().is_err_and(|error| Errno::from_io_error(error) == Some(Errno::NODEV)) {
            // Another program has removed the device.
            self.join();
            return Ok(());
        }
        // The kernel ends all tags of a stopped device, and the thread with them.
        if stopped.is_err() {
            self.stop.leave(Duration::ZERO);
        }
        self.join();
        stopped?;
        drop(claim);
        driver.carry_out(Order::Delete(number)).map(|_| ())
    }

    /// Waits for the end of the thread. The buffers live until then, because the driver knows their addresses.
    fn join(self) {
        // A thread that panicked has already reported the panic.
        drop(self.thread.join());
    }
}
