//! Classes of operations: which change anything, which have records, and which workers carry them out.

use forebay_wire::nfs4::{self, Op, Opcode};

use crate::program::Kind;

/// Returns true for operations that change names, attributes or data.
pub(super) fn is_change(op: &Op<'_>) -> bool {
    match op {
        Op::Write(_) | Op::Commit(_) | Op::Setattr(_) | Op::Create(_) => true,
        Op::Remove(_) | Op::Rename(_) | Op::Link(_) => true,
        Op::Setxattr(_) | Op::Removexattr(_) => true,
        Op::Allocate(_) | Op::Deallocate(_) | Op::Copy(_) | Op::Clone(_) => true,
        Op::Open(open) => matches!(open.how, nfs4::OpenHow::Create(_)),
        _ => false,
    }
}

/// Returns true for the operations that minor version 2 has added.
pub(super) fn is_of_version_2(number: Opcode) -> bool {
    (Opcode::Allocate as u32..=Opcode::Removexattr as u32).contains(&(number as u32))
}

/// Returns true for operations that change the state of clients: the log gets records of them.
pub(super) fn has_records(op: &Op<'_>) -> bool {
    let of_client = matches!(op, Op::ExchangeId(_) | Op::CreateSession(_) | Op::ReclaimComplete(_))
        || matches!(op, Op::DestroySession(_) | Op::DestroyClientid(_));
    let of_file = matches!(op, Op::Open(_) | Op::OpenDowngrade(_) | Op::Close(_) | Op::Delegreturn(_))
        || matches!(op, Op::Lock(_) | Op::Locku(_) | Op::FreeStateid(_))
        || matches!(op, Op::Copy(_) | Op::OffloadCancel(_));
    of_client || of_file
}

/// Returns the kind of work that the operation is for the workers.
pub(super) fn kind(number: Opcode) -> Kind {
    match number {
        Opcode::Read | Opcode::Commit | Opcode::Seek => Kind::Data,
        Opcode::Write | Opcode::Allocate | Opcode::Deallocate | Opcode::Copy | Opcode::Clone => Kind::Writes,
        Opcode::OffloadCancel => Kind::Writes,
        _ => Kind::Names,
    }
}
