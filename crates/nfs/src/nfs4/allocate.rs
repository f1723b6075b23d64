//! ALLOCATE and DEALLOCATE (RFC 7862 sections 15.1 and 15.4).

use forebay_rpc::Reply;
use forebay_vfs::{Changed, DataCaller, Outcome, Target, Vfs};
use forebay_wire::nfs4::{AllocateArgs, Nfsstat4, Opcode};

use super::compound::{Change, Compound, Context, Stop};
use super::io::require_file;
use super::place::{Place, may_wait};

/// Fails with NFS4ERR_WRONG_TYPE for an object that is no regular file. READ and SEEK tell directories and links apart.
pub(super) fn require_regular(place: &mut Place, cx: &Context<'_>) -> Result<(), Stop> {
    match require_file(place, cx) {
        Err(Stop::Fail(Nfsstat4::Isdir | Nfsstat4::Symlink)) => Err(Stop::Fail(Nfsstat4::WrongType)),
        result => result,
    }
}

/// A change of a range of a file.
type ChangeRange = fn(&Vfs, &Target, DataCaller<'_>, u64, u64) -> Outcome<Changed<()>>;

impl Compound {
    /// Carries out ALLOCATE: reserves space for a range of the current file. The reply may leave when the returned
    /// change is durable.
    pub(super) fn allocate(
        &mut self,
        cx: &Context<'_>,
        args: &AllocateArgs,
        reply: &mut Reply<'_>,
    ) -> Result<Option<Change>, Stop> {
        self.change_range(cx, args, Opcode::Allocate, Vfs::allocate, reply)
    }

    /// Carries out DEALLOCATE: makes a hole of a range of the current file. The reply may leave when the returned
    /// change is durable.
    pub(super) fn deallocate(
        &mut self,
        cx: &Context<'_>,
        args: &AllocateArgs,
        reply: &mut Reply<'_>,
    ) -> Result<Option<Change>, Stop> {
        self.change_range(cx, args, Opcode::Deallocate, Vfs::deallocate, reply)
    }

    /// Checks the state id and the range for ALLOCATE or DEALLOCATE, recalls delegations, and calls `change`. Fails
    /// with [`Stop::Later`] on an event loop.
    fn change_range(
        &mut self,
        cx: &Context<'_>,
        args: &AllocateArgs,
        number: Opcode,
        change: ChangeRange,
        reply: &mut Reply<'_>,
    ) -> Result<Option<Change>, Stop> {
        may_wait(cx)?;
        require_regular(self.place()?, cx)?;
        let (check, _changing) = self.begin_write(cx, args.stateid)?;
        let at = self.place()?.resolve(cx)?;
        if at.caller.read_only {
            return Err(Stop::Fail(Nfsstat4::Rofs));
        }
        if args.length == 0 || args.offset.checked_add(args.length).is_none() {
            return Err(Stop::Fail(Nfsstat4::Inval));
        }
        let caller = DataCaller::new(&at.caller.cred, check);
        let changed = change(&cx.shared.vfs, &at.target, caller, args.offset, args.length);
        let Outcome::Done(changed) = changed else { return Err(Stop::Later) };
        let ((), change) = Change::of(cx, &at.target.export, changed.result, changed.intent)?;
        self.reply.start(reply.head(), number);
        Ok(change)
    }
}
