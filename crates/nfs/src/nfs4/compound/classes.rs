//! The classes of operations: which change anything, which have records, how each is counted, and which workers carry
//! it out.

use forebay_profile::Kind as Counted;
use forebay_wire::nfs4::{Opcode, OpenArgs, OpenHow};

use super::Arguments;
use crate::program::Kind;
use crate::stats::OPERATIONS;

/// The class of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::nfs4) struct Class {
    /// The changes of names, attributes or data.
    pub(super) changes: Changes,
    /// True if the operation changes the state of clients: the log gets records of it.
    pub(super) has_records: bool,
    /// True if the operation examines only memory, in front of the operation that the client wants.
    pub(in crate::nfs4) prepares: bool,
    /// The workers that carry out the operation if it has to wait.
    pub(super) workers: Kind,
    /// The kind under which the profile counts the operation; `None` for operations that only prepare others, and those
    /// of sessions.
    pub(super) counted: Option<Counted>,
}

/// The changes of names, attributes or data by an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Changes {
    Nothing,
    /// An OPEN changes a directory if it may make a file.
    IfItCreates,
    Something,
}

impl Class {
    /// Returns the class of an operation.
    #[inline]
    pub(in crate::nfs4) fn of(number: Opcode) -> &'static Self {
        &CLASSES[(number as usize).min(OPERATIONS - 1)]
    }

    /// Returns true if the operation, whose arguments are next, may change names, attributes or data.
    #[inline]
    pub(super) fn is_change(&self, mut arguments: Arguments<'_>) -> bool {
        match self.changes {
            Changes::Nothing => false,
            Changes::Something => true,
            Changes::IfItCreates => {
                arguments.arguments::<OpenArgs<'_>>().is_ok_and(|open| matches!(open.how, OpenHow::Create(_)))
            }
        }
    }

    /// Returns true if the operation may wait for the log or a file system before the reply.
    #[inline]
    pub(in crate::nfs4) fn ends_late(&self) -> bool {
        self.changes != Changes::Nothing || self.has_records
    }

    /// Returns the class of an operation that changes nothing.
    const fn look(counted: Counted) -> Self {
        Class { counted: Some(counted), ..OTHER }
    }

    /// Returns the class of an operation that changes names, attributes or data.
    const fn change(counted: Counted) -> Self {
        Class { changes: Changes::Something, ..Self::look(counted) }
    }

    /// Returns the class of an operation that changes the state of clients.
    const fn state(counted: Counted) -> Self {
        Class { has_records: true, ..Self::look(counted) }
    }

    /// Returns the class with other workers.
    const fn by(self, workers: Kind) -> Self {
        Class { workers, ..self }
    }
}

/// The class of operations that no other row has.
const OTHER: Class = Class {
    changes: Changes::Nothing,
    has_records: false,
    prepares: false,
    workers: Kind::Names,
    counted: None,
};

/// The classes by the numbers of their operations. ILLEGAL has the last place.
static CLASSES: [Class; OPERATIONS] = {
    let mut classes = [OTHER; OPERATIONS];
    let mut at = 0;
    while at < Opcode::ALL.len() {
        let number = Opcode::ALL[at] as usize;
        classes[if number < OPERATIONS { number } else { OPERATIONS - 1 }] = class(Opcode::ALL[at]);
        at += 1;
    }
    classes
};

const fn class(number: Opcode) -> Class {
    match number {
        Opcode::Sequence | Opcode::Putfh | Opcode::Putrootfh | Opcode::Putpubfh => {
            Class { prepares: true, ..OTHER }
        }
        Opcode::Savefh | Opcode::Restorefh => Class { prepares: true, ..OTHER },
        Opcode::ExchangeId | Opcode::CreateSession | Opcode::ReclaimComplete => {
            Class { has_records: true, ..OTHER }
        }
        Opcode::DestroySession | Opcode::DestroyClientid => Class { has_records: true, ..OTHER },
        Opcode::FreeStateid => Class { has_records: true, ..OTHER },
        Opcode::OffloadCancel => Class { has_records: true, ..OTHER }.by(Kind::Writes),

        Opcode::Read => Class::look(Counted::Read).by(Kind::Data),
        Opcode::Seek => Class::look(Counted::Other).by(Kind::Data),
        Opcode::Getattr | Opcode::Verify | Opcode::Nverify => Class::look(Counted::Getattr),
        Opcode::Lookup | Opcode::Lookupp | Opcode::Readlink => Class::look(Counted::Lookup),
        Opcode::Access => Class::look(Counted::Access),
        Opcode::Readdir => Class::look(Counted::Readdir),
        Opcode::Lockt => Class::look(Counted::Lock),
        Opcode::Getxattr | Opcode::Listxattrs | Opcode::IoAdvise => Class::look(Counted::Other),

        Opcode::Open => Class { changes: Changes::IfItCreates, ..Class::state(Counted::Open) },
        Opcode::OpenDowngrade | Opcode::Close | Opcode::Delegreturn => Class::state(Counted::Open),
        Opcode::Lock | Opcode::Locku => Class::state(Counted::Lock),

        Opcode::Write => Class::change(Counted::Write).by(Kind::Writes),
        Opcode::Commit => Class::change(Counted::Commit).by(Kind::Data),
        Opcode::Setattr | Opcode::Setxattr | Opcode::Removexattr => Class::change(Counted::Setattr),
        Opcode::Create | Opcode::Link => Class::change(Counted::Create),
        Opcode::Remove => Class::change(Counted::Remove),
        Opcode::Rename => Class::change(Counted::Rename),
        Opcode::Allocate | Opcode::Deallocate | Opcode::Clone => {
            Class::change(Counted::Other).by(Kind::Writes)
        }
        Opcode::Copy => Class { has_records: true, ..Class::change(Counted::Other) }.by(Kind::Writes),
        _ => OTHER,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operations_that_stat_shows_are_counted_and_those_of_sessions_are_not() {
        for session in [Opcode::Sequence, Opcode::Putfh, Opcode::Getfh, Opcode::ExchangeId, Opcode::Illegal] {
            assert_eq!(Class::of(session).counted, None, "{}", session.name());
        }
        assert_eq!(Class::of(Opcode::Open).counted, Some(Counted::Open));
    }

    #[test]
    fn a_result_waits_for_the_log_if_the_operation_changes_anything() {
        for number in Opcode::ALL {
            let class = Class::of(*number);
            assert!(!(class.prepares && class.ends_late()), "{}", number.name());
        }
        for late in [Opcode::Open, Opcode::Close, Opcode::Write, Opcode::Copy, Opcode::CreateSession] {
            assert!(Class::of(late).ends_late(), "{}", late.name());
        }
        for early in [Opcode::Read, Opcode::Sequence, Opcode::Getattr, Opcode::Illegal] {
            assert!(!Class::of(early).ends_late(), "{}", early.name());
        }
    }
}
