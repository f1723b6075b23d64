//! Classes of operations: which change anything, which have records, and which workers carry them out.

use forebay_wire::nfs4::{Opcode, OpenArgs, OpenHow};

use super::Arguments;
use crate::program::Kind;

/// Returns true for operations that change names, attributes or data. An OPEN does so if it may make a file.
pub(super) fn is_change(number: Opcode, mut arguments: Arguments<'_>) -> bool {
    match number {
        Opcode::Write | Opcode::Commit | Opcode::Setattr | Opcode::Create => true,
        Opcode::Remove | Opcode::Rename | Opcode::Link => true,
        Opcode::Setxattr | Opcode::Removexattr => true,
        Opcode::Allocate | Opcode::Deallocate | Opcode::Copy | Opcode::Clone => true,
        Opcode::Open => {
            arguments.arguments::<OpenArgs<'_>>().is_ok_and(|open| matches!(open.how, OpenHow::Create(_)))
        }
        _ => false,
    }
}

/// Returns true for operations that change the state of clients: the log gets records of them.
pub(super) fn has_records(number: Opcode) -> bool {
    use Opcode::{Close, Copy, CreateSession, Delegreturn, DestroyClientid, DestroySession, ExchangeId};
    use Opcode::{FreeStateid, Lock, Locku, OffloadCancel, Open, OpenDowngrade, ReclaimComplete};
    let of_client = matches!(number, ExchangeId | CreateSession | ReclaimComplete)
        || matches!(number, DestroySession | DestroyClientid);
    let of_file = matches!(number, Open | OpenDowngrade | Close | Delegreturn)
        || matches!(number, Lock | Locku | FreeStateid)
        || matches!(number, Copy | OffloadCancel);
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
