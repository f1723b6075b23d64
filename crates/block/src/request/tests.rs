use std::sync::Arc;

use forebay_volume::disk::{Disk, DiskError, DiskFuture, Extent, Shape, Stability};
use forebay_wire::nbd::command_flags::{DF, FAST_ZERO, FUA, NO_HOLE, PAYLOAD_LEN, REQ_ONE};

use super::*;
use crate::export::Context;

/// A device without contents.
pub(crate) struct Empty(pub(crate) Shape);

pub(crate) const SHAPE: Shape = Shape {
    size: 1 << 20,
    read_only: false,
    minimum_block: 512,
    preferred_block: 4096,
    maximum_payload: 64 << 10,
    rotational: false,
};

impl Disk for Empty {
    fn shape(&self) -> Shape {
        self.0
    }

    fn try_read(&self, _: u64, _: &mut [u8]) -> Result<bool, DiskError> {
        Ok(false)
    }

    fn read<'a>(&'a self, _: u64, _: &'a mut [u8]) -> DiskFuture<'a, ()> {
        Box::pin(async { Ok(()) })
    }

    fn write<'a>(&'a self, _: u64, _: &'a [u8], _: Stability) -> DiskFuture<'a, ()> {
        Box::pin(async { Ok(()) })
    }

    fn flush(&self) -> DiskFuture<'_, ()> {
        Box::pin(async { Ok(()) })
    }

    fn discard(&self, _: u64, _: u64, _: Stability) -> DiskFuture<'_, ()> {
        Box::pin(async { Ok(()) })
    }

    fn write_zeroes(&self, _: u64, _: u64, _: bool, _: Stability) -> DiskFuture<'_, ()> {
        Box::pin(async { Ok(()) })
    }

    fn zeroes_fast(&self) -> DiskFuture<'_, bool> {
        Box::pin(async { Ok(true) })
    }

    fn prefetch(&self, _: u64, _: u64) -> DiskFuture<'_, ()> {
        Box::pin(async { Ok(()) })
    }

    fn extents(&self, _: u64, _: u64, _: usize) -> DiskFuture<'_, Vec<Extent>> {
        Box::pin(async { Ok(Vec::new()) })
    }
}

/// Checks a command with flags on a range of a device of [`SHAPE`].
fn checked(
    style: Style,
    shape: Shape,
    command: u16,
    flags: u16,
    range: (u64, u64),
) -> Result<Action, ErrorCode> {
    let export = Export::new(Arc::new(Empty(shape)), style, vec![Context::Cache]);
    let request = Request { flags, command, cookie: 1, offset: range.0, length: range.1 };
    check(&export, export.size(), &request).map_err(|(error, _)| error)
}

fn structured(command: Command, flags: u16, range: (u64, u64)) -> Result<Action, ErrorCode> {
    checked(Style::Structured, SHAPE, command as u16, flags, range)
}

#[test]
fn every_command_has_its_action() {
    use Command::{BlockStatus, Cache, Disc, Flush, Read, Trim, Write, WriteZeroes};
    let range = (512, 1024);
    let cases = [
        (Read, 0, range, Action::Read { len: 1024 }),
        (Read, DF | FUA, range, Action::Read { len: 1024 }),
        (Write, 0, range, Action::Write { fua: false }),
        (Write, FUA, range, Action::Write { fua: true }),
        (Flush, 0, (0, 0), Action::Flush),
        (Flush, FUA, (0, 0), Action::Flush),
        (Trim, FUA, range, Action::Discard { fua: true }),
        (WriteZeroes, 0, range, Action::WriteZeroes { keep: false, fast: false, fua: false }),
        (WriteZeroes, NO_HOLE | FUA, range, Action::WriteZeroes { keep: true, fast: false, fua: true }),
        (WriteZeroes, FAST_ZERO, range, Action::WriteZeroes { keep: false, fast: true, fua: false }),
        (WriteZeroes, 0, (0, 1 << 20), Action::WriteZeroes { keep: false, fast: false, fua: false }),
        (Cache, 0, range, Action::Prefetch),
        (BlockStatus, 0, (0, 1 << 20), Action::Status { is_one: false }),
        (BlockStatus, REQ_ONE, range, Action::Status { is_one: true }),
        (Disc, 0, (0, 0), Action::Disconnect),
    ];
    for (command, flags, range, action) in cases {
        assert_eq!(structured(command, flags, range), Ok(action), "{command:?} {flags}");
    }
    let write = |flags| checked(Style::Extended, SHAPE, Command::Write as u16, flags, range);
    assert_eq!(write(PAYLOAD_LEN), Ok(Action::Write { fua: false }));
    assert_eq!(write(0), Err(ErrorCode::Inval), "the length without the flag is not that of a payload");
}

#[test]
fn each_violation_has_the_error_that_the_protocol_names() {
    use Command::{BlockStatus, Cache, Flush, Read, Trim, Write, WriteZeroes};
    use ErrorCode::{Inval, NoSpc, NotSup, Overflow};
    let cases = [
        (Read, 0, (1 << 20, 512), Inval),
        (Read, 0, (u64::MAX - 511, 512), Inval),
        (Read, 0, (0, u64::from(u32::MAX)), Inval),
        (Trim, 0, (1 << 20, 512), Inval),
        (Cache, 0, (1 << 20, 512), Inval),
        (BlockStatus, 0, (512, 1 << 20), Inval),
        (Write, 0, (1 << 20, 512), NoSpc),
        (WriteZeroes, 0, (512, 1 << 20), NoSpc),
        (Read, 0, (1, 512), Inval),
        (Read, 0, (0, 511), Inval),
        (Write, 0, (256, 512), Inval),
        (Read, 0, (0, 0), Inval),
        (Write, 0, (0, 0), Inval),
        (Read, 0, (0, (64 << 10) + 512), Overflow),
        (Write, 0, (0, (64 << 10) + 512), Inval),
        (Read, NO_HOLE, (0, 512), Inval),
        (Write, DF, (0, 512), Inval),
        (Write, PAYLOAD_LEN, (0, 512), Inval),
        (Trim, FAST_ZERO, (0, 512), Inval),
        (Read, 1 << 9, (0, 512), Inval),
        (Flush, 0, (512, 0), Inval),
        (WriteZeroes, FAST_ZERO | NO_HOLE, (0, 512), NotSup),
    ];
    for (command, flags, range, error) in cases {
        assert_eq!(structured(command, flags, range), Err(error), "{command:?} {flags} {range:?}");
    }
    assert_eq!(checked(Style::Structured, SHAPE, 8, 0, (0, 512)), Err(Inval), "an unknown command");
    let simple = |flags, len| checked(Style::Simple, SHAPE, Read as u16, flags, (0, len));
    assert_eq!(simple(0, 128 << 10), Err(Inval), "simple replies do not have the error of a long READ");
    assert_eq!(simple(DF, 512), Err(Inval), "DF needs structured replies");
}

#[test]
fn a_read_only_volume_refuses_changes_and_nothing_else() {
    let shape = Shape { read_only: true, ..SHAPE };
    for command in Command::ALL {
        let range = if command == Command::Flush { (0, 0) } else { (0, 512) };
        let refused = checked(Style::Structured, shape, command as u16, 0, range).err();
        let changes = matches!(command, Command::Write | Command::Trim | Command::WriteZeroes);
        assert_eq!(refused, changes.then_some(ErrorCode::Perm), "{command:?}");
    }
}

#[test]
fn a_status_without_a_context_is_refused() {
    let export = Export::new(Arc::new(Empty(SHAPE)), Style::Structured, Vec::new());
    let request =
        Request { flags: 0, command: Command::BlockStatus as u16, cookie: 1, offset: 0, length: 512 };
    assert_eq!(check(&export, SHAPE.size, &request).map_err(|(error, _)| error), Err(ErrorCode::Inval));
}
