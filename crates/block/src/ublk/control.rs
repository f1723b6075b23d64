//! The commands that make, start and end a device. The driver takes them from processes with CAP_SYS_ADMIN only.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

use forebay_volume::disk::Shape;
use io_uring::{IoUring, cqueue, opcode, squeue, types};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use zerocopy::IntoBytes;

use super::interface::{
    Command, ControlCommand, Form, GET_FEATURES, Info, PARAMETER_TYPES, RawParameters, attribute,
    command_bytes, feature, state,
};
use super::request::SECTOR;

/// The device of the driver's commands. It is there if the module `ublk_drv` is loaded.
const CONTROL: &str = "/dev/ublk-control";
/// The number of requests that a device has in flight at once.
const DEPTH: u16 = 64;
/// The longest request in bytes. Each request in flight has a buffer of this size.
const BUFFER: u32 = 512 << 10;
/// The longest discard, and the longest run of zeros of one request, in bytes.
const LONGEST: u64 = 1 << 30;
/// The queue of a command that concerns no queue.
const NO_QUEUE: u16 = u16::MAX;
/// The number of a device that the driver is to choose.
const ANY: u32 = u32::MAX;

/// The properties of a block device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Parameters {
    /// Size in bytes; an incomplete sector at the end is not part of the device.
    pub size: u64,
    /// Bytes of a logical block: offsets and lengths of all requests are multiples of it. 512 to 4,096.
    pub logical_block: u32,
    /// True if the kernel refuses every change.
    pub read_only: bool,
    /// True if the device is slow at random access.
    pub rotational: bool,
}

impl Parameters {
    /// Returns the properties of a device for a disk of this shape.
    pub fn of(shape: &Shape, logical_block: u32) -> Self {
        let Shape { size, read_only, rotational, .. } = *shape;
        let logical_block = logical_block.clamp(SECTOR as u32, shape.preferred_block);
        Self { size, logical_block, read_only, rotational }
    }

    /// Returns the parameters as the driver takes them. The kernel passes flushes on to the server, because the
    /// device counts as one with a volatile cache.
    fn raw(self) -> RawParameters {
        let flag = |is_set: bool, flag| if is_set { flag } else { 0 };
        let changed = if self.read_only { 0 } else { (LONGEST / SECTOR) as u32 };
        let logical = u64::from(self.logical_block);
        RawParameters {
            len: size_of::<RawParameters>() as u32,
            types: PARAMETER_TYPES,
            attributes: attribute::VOLATILE_CACHE
                | attribute::FUA
                | flag(self.read_only, attribute::READ_ONLY)
                | flag(self.rotational, attribute::ROTATIONAL),
            logical_block_shift: self.logical_block.ilog2() as u8,
            physical_block_shift: 12,
            optimal_shift: 12,
            minimum_shift: 12,
            max_sectors: (u64::from(BUFFER) / SECTOR) as u32,
            sectors: self.size / logical * logical / SECTOR,
            discard_granularity: 4096,
            max_discard_sectors: changed,
            max_zeroes_sectors: changed,
            max_discard_segments: 1,
            ..RawParameters::default()
        }
    }
}

/// The state of a device in the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum State {
    /// The device was never started, or was stopped. It has no block device.
    Dead,
    /// A server has the device, or the kernel has not noticed the end of the server yet.
    Live,
    /// The device waits for its next server.
    Waiting,
    /// A state that this version does not know.
    Unknown,
}

/// A device as the kernel describes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Description {
    /// The number of the device: N in `/dev/ublkbN`.
    pub number: u32,
    /// The state.
    pub state: State,
    /// The mark that the server gave to the device when it was made.
    pub mark: u64,
    /// Requests in flight at once.
    pub depth: u16,
    /// Bytes of the longest request.
    pub buffer: u32,
    /// True if numbers of commands have the plain form, which only old kernels want.
    pub plain: bool,
}

/// A command, as the process with the privilege takes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Order {
    /// Describes the device with this number.
    Describe(u32),
    /// Makes a device without a block device, with this number if it is free, and with a mark of the server.
    Add(Option<u32>, u64, Parameters),
    /// Makes the block device of a new device. All tags must have been fetched. The second number is the server's
    /// process.
    Start(u32, u32),
    /// Begins to give a device to its next server. The former one must have ended.
    StartRecovery(u32),
    /// Ends that; all tags must have been fetched. The second number is the server's process.
    EndRecovery(u32, u32),
    /// Ends the block device.
    Stop(u32),
    /// Forgets a stopped device. The kernel waits until the last program has closed its block device.
    Delete(u32),
}

/// The open control device.
pub struct Control {
    file: File,
    ring: IoUring<squeue::Entry128, cqueue::Entry>,
    form: Form,
}

impl Control {
    /// Opens the control device.
    ///
    /// # Errors
    /// The kernel has no ublk or no io_uring, or refuses it to this process.
    pub fn open() -> io::Result<Self> {
        let file = File::options().read(true).write(true).open(CONTROL)?;
        let ring = ring()?;
        let mut control = Control { file, ring, form: Form::Ioctl };
        let mut features = 0_u64;
        let command = ControlCommand {
            queue: NO_QUEUE,
            len: size_of::<u64>() as u16,
            address: std::ptr::from_mut(&mut features) as u64,
            ..ControlCommand::default()
        };
        // SAFETY: the kernel stores 8 bytes in `features`, which lives until the command has ended.
        if unsafe { control.send(GET_FEATURES, &command) }.is_err() {
            control.form = Form::Plain;
        }
        Ok(control)
    }

    /// Returns a second one, for a command that may take long.
    ///
    /// # Errors
    /// The kernel refuses the memory.
    pub fn try_clone(&self) -> io::Result<Self> {
        Ok(Control { file: self.file.try_clone()?, ring: ring()?, form: self.form })
    }

    /// Carries out a command. Returns the device's description, except after it was deleted.
    ///
    /// # Errors
    /// The kernel's error: ENODEV for an unknown device, EBUSY for a device whose server has not ended yet.
    pub fn carry_out(&mut self, order: Order) -> io::Result<Option<Description>> {
        match order {
            Order::Describe(number) => return self.describe(number).map(Some),
            Order::Add(number, mark, parameters) => return self.add(number, mark, parameters).map(Some),
            Order::Delete(number) => return self.plain(Command::Delete, number, 0).map(|()| None),
            Order::Start(number, process) => self.plain(Command::Start, number, process)?,
            Order::StartRecovery(number) => self.plain(Command::StartRecovery, number, 0)?,
            Order::EndRecovery(number, process) => self.plain(Command::EndRecovery, number, process)?,
            Order::Stop(number) => self.plain(Command::Stop, number, 0)?,
        }
        let (Order::Start(number, _)
        | Order::StartRecovery(number)
        | Order::EndRecovery(number, _)
        | Order::Stop(number)) = order
        else {
            return Ok(None);
        };
        self.describe(number).map(Some)
    }

    /// Asks the driver for the state of a device. Fails with ENODEV for an unknown number.
    fn describe(&mut self, number: u32) -> io::Result<Description> {
        let mut info = Info::default();
        self.with(Command::GetInfo, number, info.as_mut_bytes())?;
        Ok(self.description(&info))
    }

    /// Adds a device that outlives its server, and sets its parameters. Fails with `Unsupported`, and adds nothing,
    /// if the kernel cannot hand devices over.
    fn add(&mut self, number: Option<u32>, mark: u64, parameters: Parameters) -> io::Result<Description> {
        let wanted = feature::USER_RECOVERY | feature::USER_RECOVERY_REISSUE;
        let number = number.unwrap_or(ANY);
        let mut info = Info {
            queues: 1,
            depth: DEPTH,
            buffer: BUFFER,
            device: number,
            features: wanted,
            own: mark,
            ..Info::default()
        };
        self.with(Command::Add, number, info.as_mut_bytes())?;
        let mut raw = parameters.raw().as_bytes().to_vec();
        let set = match info.features & wanted == wanted {
            true => self.with(Command::SetParameters, info.device, &mut raw),
            false => Err(io::ErrorKind::Unsupported.into()),
        };
        if let Err(error) = set {
            // The error of the parameters says more than an error here.
            let _ = self.plain(Command::Delete, info.device, 0);
            return Err(error);
        }
        Ok(self.description(&info))
    }

    /// Returns the driver's answer about a device in the terms of this crate.
    fn description(&self, info: &Info) -> Description {
        let state = match info.state {
            state::DEAD => State::Dead,
            state::LIVE => State::Live,
            state::QUIESCED => State::Waiting,
            _ => State::Unknown,
        };
        let plain = self.form == Form::Plain;
        let Info { device, own, depth, buffer, .. } = *info;
        Description { number: device, state, mark: own, depth, buffer, plain }
    }

    /// Sends a command with a buffer.
    fn with(&mut self, command: Command, number: u32, buffer: &mut [u8]) -> io::Result<()> {
        let sent = ControlCommand {
            device: number,
            queue: NO_QUEUE,
            len: buffer.len() as u16,
            address: buffer.as_mut_ptr() as u64,
            ..ControlCommand::default()
        };
        // SAFETY: the kernel uses the bytes of `buffer` alone, which lives until the command has ended.
        unsafe { self.send(self.form.control(command), &sent) }
    }

    /// Sends a command without a buffer.
    fn plain(&mut self, command: Command, number: u32, data: u32) -> io::Result<()> {
        let sent = ControlCommand {
            device: number,
            queue: NO_QUEUE,
            data: u64::from(data),
            ..ControlCommand::default()
        };
        // SAFETY: the command has no buffer.
        unsafe { self.send(self.form.control(command), &sent) }
    }

    /// Sends a command and waits for its end.
    ///
    /// # Safety
    /// The buffer that the command names, if any, is as long as the command says, and only used here.
    unsafe fn send(&mut self, number: u32, command: &ControlCommand) -> io::Result<()> {
        let file = types::Fd(self.file.as_raw_fd());
        let entry = opcode::UringCmd80::new(file, number).cmd(command_bytes(command)).build();
        // SAFETY: the file is open. The caller answers for the buffer, and this function waits for the end.
        unsafe { self.ring.submission().push(&entry) }.map_err(io::Error::other)?;
        loop {
            match self.ring.submit_and_wait(1) {
                Err(error) if Errno::from_io_error(&error) != Some(Errno::INTR) => {
                    // The kernel may still use the buffer.
                    tracing::error!("io_uring_enter fails with {error}; the process ends");
                    std::process::abort();
                }
                _ => {}
            }
            if let Some(completion) = self.ring.completion().next() {
                let result = completion.result();
                return if result < 0 { Err(io::Error::from_raw_os_error(-result)) } else { Ok(()) };
            }
        }
    }
}

fn ring() -> io::Result<IoUring<squeue::Entry128, cqueue::Entry>> {
    IoUring::<squeue::Entry128, cqueue::Entry>::builder().build(2)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_are_those_of_a_disk_with_a_volatile_cache() {
        let shape = Shape {
            size: (1 << 30) + 1536,
            read_only: false,
            minimum_block: 1,
            preferred_block: 4096,
            maximum_payload: 32 << 20,
            rotational: true,
        };
        let raw = Parameters::of(&shape, 512).raw();
        let (len, sectors, attributes) = (raw.len, raw.sectors, raw.attributes);
        assert_eq!((len, sectors), (60, (1 << 21) + 3));
        assert_eq!(attributes, 2 | 4 | 8);
        assert_eq!((raw.logical_block_shift, raw.physical_block_shift), (9, 12));
        let (longest, zeroes) = (raw.max_discard_sectors, raw.max_zeroes_sectors);
        assert_eq!((longest, zeroes), (2 << 20, 2 << 20));

        let read_only = Parameters::of(&Shape { read_only: true, rotational: false, ..shape }, 4096).raw();
        let (sectors, attributes, longest) =
            (read_only.sectors, read_only.attributes, read_only.max_discard_sectors);
        // A disk whose sectors have 4 KiB ends with a whole one.
        assert_eq!((sectors, attributes, longest), (1 << 21, 1 | 4 | 8, 0));
        assert_eq!(Parameters::of(&shape, 1).logical_block, 512);
        assert_eq!(Parameters::of(&shape, 64 << 10).logical_block, 4096);
    }
}
