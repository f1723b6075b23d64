//! The check of a request: its header in, the action or an error out. No I/O.

use forebay_volume::disk::{EXTENT_MEMORY, LOGGED_ZEROS, PREFETCH};
use forebay_wire::nbd::{Command, ErrorCode, Request, Style, command_flags};

use crate::export::{Context, Export};

/// The action that a valid request asks for. Ranges lie inside the export.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Action {
    Read { len: usize },
    Write { fua: bool },
    Flush,
    Discard { fua: bool },
    WriteZeroes { keep: bool, fast: bool, fua: bool },
    Prefetch,
    Status { is_one: bool },
    Disconnect,
}

/// The largest number of extents in a reply to BLOCK_STATUS.
pub(crate) const EXTENTS: usize = 4096;
/// The memory in bytes for each extent of the reply itself: a run of one context, and for each context two numbers in
/// the reply. A buffer that grows may have twice the room that it needs.
const REPLY_MEMORY: u64 = 2 * ((1 + Context::ALL.len()) * size_of::<(u64, u64)>()) as u64;
/// The shortest extent in bytes, apart from the first and the last one of a request.
const SHORTEST_EXTENT: u64 = 512;

impl Action {
    /// Returns the bytes of memory that a request for `length` bytes needs beside its message. A READ needs a buffer
    /// for its data. A WRITE past the log needs a copy of its payload. [`Disk`](forebay_volume::disk::Disk) bounds the
    /// memory of the other requests.
    pub(crate) fn memory(self, length: u64) -> usize {
        let bytes = match self {
            Action::Read { len } => len as u64,
            Action::Write { .. } => length,
            Action::Prefetch => length.min(PREFETCH),
            Action::WriteZeroes { .. } => length.min(LOGGED_ZEROS),
            Action::Status { .. } => {
                (EXTENTS as u64).min(length / SHORTEST_EXTENT + 2) * (EXTENT_MEMORY + REPLY_MEMORY)
            }
            Action::Flush | Action::Discard { .. } | Action::Disconnect => 0,
        };
        bytes as usize
    }
}

/// An error with a text for a person.
pub(crate) type Refused = (ErrorCode, &'static str);

/// Returns the action of a request to `export`, whose size is `size` now.
pub(crate) fn check(export: &Export, size: u64, request: &Request) -> Result<Action, Refused> {
    let inval = |message| Err((ErrorCode::Inval, message));
    let Some(command) = Command::from_number(request.command) else { return inval("unknown command") };
    let has = |flag| request.flags & flag != 0;
    if request.flags & !allowed(command, export.style) != 0 {
        return inval("the command does not have this flag");
    }
    let (fua, shape) = (has(command_flags::FUA), &export.shape);
    let changes = matches!(command, Command::Write | Command::Trim | Command::WriteZeroes);
    if changes && shape.read_only {
        return Err((ErrorCode::Perm, "the volume is read-only"));
    }
    if matches!(command, Command::Disc) {
        return Ok(Action::Disconnect);
    }
    if matches!(command, Command::Flush) {
        let is_plain = request.offset == 0 && request.length == 0;
        return if is_plain { Ok(Action::Flush) } else { inval("FLUSH has neither offset nor length") };
    }
    if export.style.is_extended() && command == Command::Write && !has(command_flags::PAYLOAD_LEN) {
        return inval("WRITE has a payload");
    }
    in_range(export, size, command, request)?;
    Ok(match command {
        Command::Read => Action::Read { len: request.length as usize },
        Command::Write => Action::Write { fua },
        Command::Trim => Action::Discard { fua },
        Command::WriteZeroes => {
            let (keep, fast) = (has(command_flags::NO_HOLE), has(command_flags::FAST_ZERO));
            if keep && fast {
                return Err((ErrorCode::NotSup, "zeros with allocated space are not faster than a write"));
            }
            Action::WriteZeroes { keep, fast, fua }
        }
        Command::Cache => Action::Prefetch,
        Command::BlockStatus if export.contexts.is_empty() => {
            return inval("no metadata context was selected");
        }
        Command::BlockStatus => Action::Status { is_one: has(command_flags::REQ_ONE) },
        Command::Disc => Action::Disconnect,
        Command::Flush => Action::Flush,
    })
}

/// Returns the flags that a command may have. FUA is valid for every command.
fn allowed(command: Command, style: Style) -> u16 {
    let payload = if style.is_extended() { command_flags::PAYLOAD_LEN } else { 0 };
    let fragment = if style == Style::Simple { 0 } else { command_flags::DF };
    command_flags::FUA
        | match command {
            Command::Read => fragment,
            Command::Write => payload,
            Command::WriteZeroes => command_flags::NO_HOLE | command_flags::FAST_ZERO,
            Command::BlockStatus => command_flags::REQ_ONE,
            Command::Disc | Command::Flush | Command::Trim | Command::Cache => 0,
        }
}

/// Checks that the range of a request lies in the volume, has whole blocks, and has a payload that the server takes.
fn in_range(export: &Export, size: u64, command: Command, request: &Request) -> Result<(), Refused> {
    let Request { offset, length, .. } = *request;
    let beyond = match command {
        Command::Write | Command::WriteZeroes => ErrorCode::NoSpc,
        _ => ErrorCode::Inval,
    };
    if offset.checked_add(length).is_none_or(|end| end > size) {
        return Err((beyond, "the range passes the end of the volume"));
    }
    let block = u64::from(export.shape.minimum_block.max(1));
    if length == 0 || !offset.is_multiple_of(block) || !length.is_multiple_of(block) {
        return Err((ErrorCode::Inval, "offset and length have to be multiples of the smallest block"));
    }
    if length > export.maximum().into() && matches!(command, Command::Read | Command::Write) {
        let is_read = command == Command::Read && export.style != Style::Simple;
        let error = if is_read { ErrorCode::Overflow } else { ErrorCode::Inval };
        return Err((error, "the payload is too long"));
    }
    Ok(())
}

#[cfg(test)]
pub(crate) mod tests;
