//! The interface of the ublk driver, as `include/uapi/linux/ublk_cmd.h` of Linux has it.

use rustix::ioctl::opcode;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// The letter of the driver's commands.
const GROUP: u8 = b'u';

/// A command for `/dev/ublk-control`, with its number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Command {
    GetInfo = 0x02,
    Add = 0x04,
    Delete = 0x05,
    Start = 0x06,
    Stop = 0x07,
    SetParameters = 0x08,
    StartRecovery = 0x10,
    EndRecovery = 0x11,
}

/// A command for `/dev/ublkcN`, with its number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Transfer {
    /// Waits for the first request of a tag.
    Fetch = 0x20,
    /// Answers a request, and waits for the next one of its tag.
    CommitAndFetch = 0x21,
}

/// The number of the command that asks for the driver's features; it exists in one form only.
pub(super) const GET_FEATURES: u32 = opcode::read::<ControlCommand>(GROUP, 0x13);

/// The form of a command's number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Form {
    /// The number alone: until Linux 6.4, and later if the kernel was built for it.
    Plain,
    /// The number as in ioctl(2).
    Ioctl,
}

impl Form {
    /// Returns the number of a command for `/dev/ublk-control` in this form.
    pub(super) fn control(self, command: Command) -> u32 {
        match self {
            Form::Plain => command as u32,
            Form::Ioctl => opcode::read_write::<ControlCommand>(GROUP, command as u8),
        }
    }

    /// Returns the number of a command for `/dev/ublkcN` in this form.
    pub(super) fn transfer(self, transfer: Transfer) -> u32 {
        match self {
            Form::Plain => transfer as u32,
            Form::Ioctl => opcode::read_write::<TransferCommand>(GROUP, transfer as u8),
        }
    }
}

/// Features of a device (`UBLK_F_*`).
pub(super) mod feature {
    /// The device stays when its server ends.
    pub(crate) const USER_RECOVERY: u64 = 1 << 3;
    /// Requests that the ended server had are sent to the next one.
    pub(crate) const USER_RECOVERY_REISSUE: u64 = 1 << 4;
}

/// States of a device (`UBLK_S_DEV_*`).
pub(super) mod state {
    pub(crate) const DEAD: u16 = 0;
    pub(crate) const LIVE: u16 = 1;
    pub(crate) const QUIESCED: u16 = 2;
}

/// Operations of a request (`UBLK_IO_OP_*`).
pub(super) mod operation {
    pub(crate) const READ: u32 = 0;
    pub(crate) const WRITE: u32 = 1;
    pub(crate) const FLUSH: u32 = 2;
    pub(crate) const DISCARD: u32 = 3;
    pub(crate) const WRITE_ZEROES: u32 = 5;
    /// The bits of the operation.
    pub(crate) const MASK: u32 = 0xff;
    /// Durable when answered.
    pub(crate) const FUA: u32 = 1 << 13;
    /// The space of zeros stays allocated.
    pub(crate) const NO_UNMAP: u32 = 1 << 15;
}

/// Attributes of a block device (`UBLK_ATTR_*`).
pub(super) mod attribute {
    pub(crate) const READ_ONLY: u32 = 1 << 0;
    pub(crate) const ROTATIONAL: u32 = 1 << 1;
    pub(crate) const VOLATILE_CACHE: u32 = 1 << 2;
    pub(crate) const FUA: u32 = 1 << 3;
}

/// `struct ublksrv_ctrl_cmd`.
#[derive(Debug, Clone, Copy, Default, IntoBytes, Immutable)]
#[repr(C)]
pub(super) struct ControlCommand {
    pub(super) device: u32,
    pub(super) queue: u16,
    pub(super) len: u16,
    pub(super) address: u64,
    pub(super) data: u64,
    pub(super) path_len: u16,
    pub(super) padding: u16,
    pub(super) reserved: u32,
}

/// `struct ublksrv_ctrl_dev_info`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(super) struct Info {
    pub(super) queues: u16,
    pub(super) depth: u16,
    pub(super) state: u16,
    pub(super) padding0: u16,
    pub(super) buffer: u32,
    pub(super) device: u32,
    pub(super) process: i32,
    pub(super) padding1: u32,
    pub(super) features: u64,
    /// A number for the server's own use, which the driver keeps.
    pub(super) own: u64,
    pub(super) owner: [u32; 2],
    pub(super) reserved: [u64; 2],
}

/// The front of `struct ublk_params`: the basic parameters, and those of discards.
#[derive(Debug, Clone, Copy, Default, IntoBytes, Immutable)]
#[repr(C, packed)]
pub(super) struct RawParameters {
    pub(super) len: u32,
    pub(super) types: u32,
    pub(super) attributes: u32,
    pub(super) logical_block_shift: u8,
    pub(super) physical_block_shift: u8,
    pub(super) optimal_shift: u8,
    pub(super) minimum_shift: u8,
    pub(super) max_sectors: u32,
    pub(super) chunk_sectors: u32,
    pub(super) sectors: u64,
    pub(super) boundary_mask: u64,
    pub(super) discard_alignment: u32,
    pub(super) discard_granularity: u32,
    pub(super) max_discard_sectors: u32,
    pub(super) max_zeroes_sectors: u32,
    pub(super) max_discard_segments: u16,
    pub(super) reserved: u16,
}

/// `UBLK_PARAM_TYPE_BASIC` and `UBLK_PARAM_TYPE_DISCARD`.
pub(super) const PARAMETER_TYPES: u32 = 3;

/// `struct ublksrv_io_desc`: a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub(super) struct Descriptor {
    pub(super) operation: u32,
    pub(super) sectors: u32,
    pub(super) start_sector: u64,
    pub(super) address: u64,
}

/// `struct ublksrv_io_cmd`.
#[derive(Debug, Clone, Copy, IntoBytes, Immutable)]
#[repr(C)]
pub(super) struct TransferCommand {
    pub(super) queue: u16,
    pub(super) tag: u16,
    pub(super) result: i32,
    pub(super) address: u64,
}

/// Returns the bytes that a command has in its entry of the ring.
pub(super) fn command_bytes(command: &impl AsCommand) -> [u8; 80] {
    let mut bytes = [0; 80];
    let given = command.given();
    bytes[..given.len()].copy_from_slice(given);
    bytes
}

/// A structure that is a command.
pub(super) trait AsCommand {
    fn given(&self) -> &[u8];
}

impl AsCommand for ControlCommand {
    fn given(&self) -> &[u8] {
        self.as_bytes()
    }
}

impl AsCommand for TransferCommand {
    fn given(&self) -> &[u8] {
        self.as_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn structures_and_numbers_are_those_of_the_kernel() {
        assert_eq!((size_of::<ControlCommand>(), size_of::<TransferCommand>()), (32, 16));
        assert_eq!((size_of::<Info>(), size_of::<Descriptor>()), (64, 24));
        // The kernel's structure goes on with other parameters from here.
        assert_eq!(size_of::<RawParameters>(), 60);
        // `UBLK_U_CMD_ADD_DEV`, `UBLK_U_IO_FETCH_REQ` and `UBLK_U_CMD_GET_FEATURES` as a C compiler gives them.
        assert_eq!(Form::Ioctl.control(Command::Add), 0xc020_7504);
        assert_eq!(Form::Ioctl.transfer(Transfer::Fetch), 0xc010_7520);
        assert_eq!(GET_FEATURES, 0x8020_7513);
        assert_eq!(
            (Form::Plain.control(Command::Stop), Form::Plain.transfer(Transfer::CommitAndFetch)),
            (7, 0x21)
        );
    }
}
