//! OPEN, OPEN_DOWNGRADE, CLOSE and the return of delegations (RFC 8881 sections 18.16, 18.18, 18.2, 18.6).

use forebay_clientstate::{
    Claim, Delegated, OpenArgs as StateOpen, Opened, OwnerName, READ, Share, WRITE, Want,
};
use forebay_rpc::Reply;
use forebay_vfs::{Access, Create, FileType, SetAttr, Wcc};
use forebay_wire::nfs4::{
    Bitmap, CloseArgs, CreateHow, Fattr, Nfsstat4, Opcode, OpenArgs, OpenClaim, OpenDowngradeArgs, OpenHow,
    OpenOk, Stateid, StateidOk, attr, open_result, share,
};

use super::acl::{self, set_attr_of_new};
use super::attrs::EXCLUSIVE_CREATE;
use super::compound::{Change, Compound, Context, InSlot, Stop, put};
use super::convert::{change, state_id, wire_id};
use super::delegation::answer;
use super::entries::change_info;
use super::io::require_file;
use super::names::check;
use super::place::{Place, Reached, may_wait};
use super::set_attrs::{set_attr, set_mask};
use crate::caller::At;
use crate::convert::handle;

/// A file that an OPEN has found or made.
struct OpenedFile {
    place: Place,
    wcc: Wcc,
    attrset: Bitmap,
    /// True if the OPEN has made the file: its maker may open it whatever the mode says.
    made: bool,
    /// The size that an existing file gets once it is open. A denied OPEN changes nothing.
    size: Option<u64>,
    change: Option<Change>,
}

impl Compound {
    /// Executes OPEN: finds or makes the file, records the open, and may grant a delegation.
    pub(super) fn open(
        &mut self,
        cx: &Context<'_>,
        args: &OpenArgs<'_>,
        reply: &mut Reply<'_>,
    ) -> Result<Option<Change>, Stop> {
        if matches!(args.how, OpenHow::Create(_)) {
            may_wait(cx)?;
        }
        let access = args.share_access & share::BOTH;
        let share = Share::new(access, args.share_deny)?;
        let want = want(args.share_access)?;
        let client = self.client()?;
        let owner = OwnerName::new(args.owner.owner.0).ok_or(Stop::Fail(Nfsstat4::Badxdr))?;
        let claim = claim(&args.claim)?;
        if matches!(claim, Claim::New) && cx.server.state().in_grace(cx.now) {
            return Err(Stop::Fail(Nfsstat4::Grace));
        }
        let mut found = self.find_to_open(cx, args)?;
        let file = cx.file_key(found.place.handle(cx).as_bytes())?;
        let in_slot = self.slot.as_ref().map(InSlot::id);
        let request = StateOpen { client, owner, file, share, claim, want, request: in_slot };
        let Opened { stateid, delegation } = match self.open_found(cx, &request, &mut found) {
            Ok(opened) => opened,
            Err(stop) => {
                found.change.into_iter().for_each(|change| change.abandon(cx));
                return Err(stop);
            }
        };
        if let Some(Delegated { stateid, write: true }) = delegation {
            // The client takes this value as that of its delegation.
            let attr = cx.shared.vfs.getattr(&found.place.resolve(cx)?.target);
            let change = attr.map(|attr| change(&attr)).ok();
            change.into_iter().for_each(|change| cx.server.state().note_change(client, stateid, change));
        }
        let has_path = self.slot.as_ref().is_some_and(|slot| slot.session.lease().has_back_channel());
        let delegation = answer(delegation, args.share_access, has_path);
        let notifies = if has_path { open_result::MAY_NOTIFY_LOCK } else { 0 };
        let export = &found.place.resolve(cx)?.target.export;
        let keeps = if cx.shared.vfs.keeps_removed(export) { open_result::PRESERVE_UNLINKED } else { 0 };
        let body = OpenOk {
            stateid: wire_id(stateid),
            cinfo: change_info(&found.wcc),
            rflags: open_result::LOCKTYPE_POSIX | notifies | keeps,
            attrset: found.attrset,
            delegation,
        };
        put(&mut self.reply, reply.head(), Opcode::Open, &body);
        if found.made {
            self.has_made = true;
            if share.access & WRITE != 0 {
                cx.shared.vfs.expect_writes(&found.place.resolve(cx)?.target);
            }
            cx.shared.profiled.made(found.place.handle(cx).as_bytes());
        }
        self.set_place(found.place);
        self.set_stateid(wire_id(stateid));
        Ok(found.change)
    }

    /// Opens a file that was found or made, and truncates it if the OPEN says so.
    fn open_found(
        &mut self,
        cx: &Context<'_>,
        request: &StateOpen,
        found: &mut OpenedFile,
    ) -> Result<Opened, Stop> {
        require_file(&mut found.place, cx)?;
        let at = found.place.resolve(cx)?.clone();
        let writes = if found.size.is_some() { WRITE } else { 0 };
        permit(cx, &at, request.share.access | writes, found.made)?;
        // An open that truncates gets no delegation itself.
        let handle = found.size.map(|_| found.place.handle(cx));
        let _changing = handle.map(|handle| self.begin_change(cx, handle.as_bytes())).transpose()?;
        let opened = {
            let mut state = cx.server.state();
            // Under the lock: a reload that ends delegations of the export finds one that is granted before.
            let delegates = cx.shared.rules.delegates(at.target.export.id);
            let request = if delegates { request } else { &undelegated(request) };
            state.open(request, cx.now, &mut self.effects)?
        };
        match use_opened(cx, &at, found.size) {
            Ok(change) => found.change = change.or(found.change.take()),
            Err(stop) => {
                self.undo_open(cx, request, &opened)?;
                return Err(stop);
            }
        }
        Ok(opened)
    }

    /// Takes back an open that failed afterwards: the client learns of no open and no delegation. An open that it had
    /// before stays.
    fn undo_open(&mut self, cx: &Context<'_>, request: &StateOpen, opened: &Opened) -> Result<(), Stop> {
        let (client, fx) = (request.client, &mut self.effects);
        let mut state = cx.server.state();
        if let Some(granted) = opened.delegation {
            state.return_delegation(client, granted.stateid, cx.now, fx)?;
        }
        if opened.stateid.seqid == 1 {
            state.close(client, opened.stateid, &request.file, cx.now, fx)?;
        }
        Ok(())
    }

    /// Finds or makes the file of an OPEN.
    fn find_to_open(&mut self, cx: &Context<'_>, args: &OpenArgs<'_>) -> Result<OpenedFile, Stop> {
        let name = match args.claim {
            OpenClaim::Null(name) => name,
            OpenClaim::DelegateCur(claim) => claim.file,
            OpenClaim::DelegatePrev(name) => name,
            OpenClaim::Previous(_) | OpenClaim::Fh | OpenClaim::DelegCurFh(_) | OpenClaim::DelegPrevFh => {
                if matches!(args.how, OpenHow::Create(_)) {
                    return Err(Stop::Fail(Nfsstat4::Inval));
                }
                let place = self.place()?.clone();
                return Ok(OpenedFile::existing(place, Wcc::default()));
            }
        };
        check(name)?;
        let OpenHow::Create(how) = args.how else {
            let wcc = self.unchanged(cx)?;
            let place = self.find(cx, name, false)?;
            return Ok(OpenedFile::existing(place, wcc));
        };
        self.make(cx, name, &how)
    }

    /// Makes a regular file for OPEN, or finds the one that an earlier execution of the request has made.
    fn make(&mut self, cx: &Context<'_>, name: &[u8], how: &CreateHow<'_>) -> Result<OpenedFile, Stop> {
        if self.was_carried_out(cx)
            && let Some(mut found) = self.find_existing(cx, name, &SetAttr::default())?
        {
            // The attributes before the request that made the file are unknown.
            found.wcc.before = None;
            (found.made, found.attrset) = (true, attrset(how));
            return Ok(found);
        }
        let at = self.dir_to_change(cx)?;
        let exclusive = |attributes: &Fattr<'_>| match attributes.mask.is_subset(&EXCLUSIVE_CREATE) {
            true => Ok(()),
            false => Err(Stop::Fail(Nfsstat4::Inval)),
        };
        let mut unchecked = None;
        let acls = match how {
            CreateHow::Unchecked(wire) | CreateHow::Guarded(wire) => {
                acl::wanted(cx, wire, &at.target, FileType::RegularFile)?
            }
            CreateHow::Exclusive(_) | CreateHow::Exclusive41(_) => None,
        };
        let (how, attrset, then) = match how {
            CreateHow::Unchecked(wire) => {
                let set = *unchecked.insert(set_attr_of_new(cx, wire)?);
                if let Some(found) = self.find_existing(cx, name, &set)? {
                    return Ok(found);
                }
                (Create::Guarded(set), set_mask(wire), None)
            }
            CreateHow::Guarded(wire) => (Create::Guarded(set_attr_of_new(cx, wire)?), set_mask(wire), None),
            CreateHow::Exclusive(verifier) => (Create::Exclusive(*verifier), times(), None),
            CreateHow::Exclusive41(both) => {
                exclusive(&both.attributes)?;
                let set = set_attr(cx, &both.attributes)?;
                let attrset = set_mask(&both.attributes) | times();
                (Create::Exclusive(both.verifier), attrset, Some(set))
            }
        };
        let asked = self.logged_reply(cx, true);
        let changed = cx.shared.vfs.create(&at.target, name, how, &at.caller.cred, asked.as_ref());
        let made = Change::of(cx, &at.target.export, changed.result, changed.intent);
        if let (Err(Stop::Fail(Nfsstat4::Exist)), Some(set)) = (&made, unchecked)
            // Another client has made the file meanwhile.
            && let Some(found) = self.find_existing(cx, name, &set)?
        {
            return Ok(found);
        }
        let ((target, _), mut change) = made?;
        if let Some(set) = then.filter(|set| !set.is_empty()) {
            change = set_after(cx, &at, &target, &set, change)?;
        }
        change = acl::set_after(cx, &at, &target, acls, change)?;
        let place = Place::Inode(
            handle(&cx.shared.vfs.handle(&target)),
            Reached::Open(At { target, caller: at.caller }),
        );
        Ok(OpenedFile { place, wcc: changed.wcc, attrset, made: true, size: None, change })
    }

    /// Finds the file of an OPEN that takes an existing file. Of the attributes only the size counts then.
    fn find_existing(
        &mut self,
        cx: &Context<'_>,
        name: &[u8],
        set: &SetAttr,
    ) -> Result<Option<OpenedFile>, Stop> {
        let wcc = self.unchanged(cx)?;
        match self.find(cx, name, false) {
            Ok(place) => {
                let attrset = if set.size.is_some() { Bitmap::of(&[attr::SIZE]) } else { Bitmap::EMPTY };
                Ok(Some(OpenedFile { attrset, size: set.size, ..OpenedFile::existing(place, wcc) }))
            }
            Err(Stop::Fail(Nfsstat4::Noent)) => Ok(None),
            Err(stop) => Err(stop),
        }
    }

    /// Returns the attributes around an OPEN that does not change its directory.
    pub(super) fn unchanged(&mut self, cx: &Context<'_>) -> Result<Wcc, Stop> {
        match self.place()? {
            Place::Above(_) => Ok(Wcc::default()),
            place => {
                let attr = cx.shared.vfs.getattr(&place.resolve(cx)?.target)?;
                Ok(Wcc { before: Some(attr), after: Some(attr) })
            }
        }
    }

    /// Carries out OPEN_DOWNGRADE: reduces the access and the denials of an open, and appends its state id.
    pub(super) fn open_downgrade(
        &mut self,
        cx: &Context<'_>,
        args: &OpenDowngradeArgs,
        reply: &mut Reply<'_>,
    ) -> Result<(), Stop> {
        let (client, file) = (self.client()?, self.file(cx)?);
        let stateid = state_id(self.resolve_stateid(args.open_stateid)?);
        let share = Share::new(args.share_access & share::BOTH, args.share_deny)?;
        let stateid = cx.server.state().open_downgrade(client, stateid, &file, share, &mut self.effects)?;
        self.put_stateid(Opcode::OpenDowngrade, wire_id(stateid), reply);
        Ok(())
    }

    /// Carries out CLOSE: ends an open. The reply has the invalid state id, as RFC 8881 section 18.2.4 asks.
    pub(super) fn close(
        &mut self,
        cx: &Context<'_>,
        args: &CloseArgs,
        reply: &mut Reply<'_>,
    ) -> Result<(), Stop> {
        let (client, file) = (self.client()?, self.file(cx)?);
        let stateid = state_id(self.resolve_stateid(args.open_stateid)?);
        cx.server.state().close(client, stateid, &file, cx.now, &mut self.effects)?;
        cx.shared.vfs.was_closed(self.place()?.handle(cx).as_bytes());
        self.put_stateid(Opcode::Close, Stateid::INVALID, reply);
        Ok(())
    }

    /// Carries out DELEGRETURN: ends a delegation of the current file, which lets requests that wait for its recall
    /// go on.
    pub(super) fn return_delegation(
        &mut self,
        cx: &Context<'_>,
        stateid: Stateid,
        reply: &mut Reply<'_>,
    ) -> Result<(), Stop> {
        let client = self.client()?;
        self.place()?;
        let stateid = state_id(self.resolve_stateid(stateid)?);
        cx.server.state().return_delegation(client, stateid, cx.now, &mut self.effects)?;
        self.reply.start(reply.head(), Opcode::Delegreturn);
        Ok(())
    }

    /// Appends a state id as the result of an operation, and makes it the current one.
    pub(super) fn put_stateid(&mut self, number: Opcode, stateid: Stateid, reply: &mut Reply<'_>) {
        put(&mut self.reply, reply.head(), number, &StateidOk { stateid });
        self.set_stateid(stateid);
    }

    /// Returns the key of the current file.
    pub(super) fn file(&mut self, cx: &Context<'_>) -> Result<forebay_clientstate::FileKey, Stop> {
        cx.file_key(self.place()?.handle(cx).as_bytes())
    }
}

impl OpenedFile {
    fn existing(place: Place, wcc: Wcc) -> Self {
        OpenedFile { place, wcc, attrset: Bitmap::EMPTY, made: false, size: None, change: None }
    }
}

/// Returns the attributes that a create has set, for a reply of which only the request is known.
fn attrset(how: &CreateHow<'_>) -> Bitmap {
    match how {
        CreateHow::Unchecked(wire) | CreateHow::Guarded(wire) => set_mask(wire),
        CreateHow::Exclusive(_) => times(),
        CreateHow::Exclusive41(both) => set_mask(&both.attributes) | times(),
    }
}

/// The attributes that hold the verifier of an exclusive create: the client sets them afterwards.
fn times() -> Bitmap {
    Bitmap::of(&[attr::TIME_ACCESS_SET, attr::TIME_MODIFY_SET])
}

/// Sets the attributes of a file that an exclusive create has made. The change of the create comes first.
fn set_after(
    cx: &Context<'_>,
    at: &At,
    target: &forebay_vfs::Target,
    set: &SetAttr,
    change: Option<Change>,
) -> Result<Option<Change>, Stop> {
    if let Some(change) = change {
        change.wait(cx)?;
    }
    let changed = cx.shared.vfs.setattr(target, &at.caller.cred, set, None);
    let ((), change) = Change::of(cx, &target.export, changed.result, changed.intent)?;
    Ok(change)
}

/// Truncates an open file to `size`, if the OPEN says so. Fails if the file lost its last name before it was open. From
/// the open on its removal leaves the contents to the client.
fn use_opened(cx: &Context<'_>, at: &At, size: Option<u64>) -> Result<Option<Change>, Stop> {
    let Some(size) = size else {
        cx.shared.vfs.getattr(&at.target)?;
        return Ok(None);
    };
    let set = SetAttr { size: Some(size), ..SetAttr::default() };
    let changed = cx.shared.vfs.setattr(&at.target, &at.caller.cred, &set, None);
    let ((), change) = Change::of(cx, &at.target.export, changed.result, changed.intent)?;
    Ok(change)
}

/// Checks that the caller may open a file, as open(2) does: the owner has no privilege over its mode.
fn permit(cx: &Context<'_>, at: &At, access: u8, made: bool) -> Result<(), Stop> {
    if at.caller.read_only && access & WRITE != 0 {
        return Err(Stop::Fail(Nfsstat4::Rofs));
    }
    if made {
        return Ok(());
    }
    let asked = Access { read: access & READ != 0, write: access & WRITE != 0, execute: false };
    let (may, _) = cx.shared.vfs.access(&at.target, &at.caller.cred, asked, cx.wait)?;
    // A file that may be executed is opened for reading to execute it.
    let may_read = may.read || !asked.read || {
        let execute = Access { read: false, write: false, execute: true };
        cx.shared.vfs.access(&at.target, &at.caller.cred, execute, cx.wait)?.0.execute
    };
    if may_read && (may.write || !asked.write) { Ok(()) } else { Err(Stop::Fail(Nfsstat4::Access)) }
}

/// Returns an open that gets no delegation, nor reclaims one.
fn undelegated(request: &StateOpen) -> StateOpen {
    let claim = if let Claim::Previous(_) = request.claim { Claim::Previous(None) } else { request.claim };
    StateOpen { claim, want: Want::None, ..request.clone() }
}

/// Returns the claim of an OPEN in terms of the clients' state. Fails with NFS4ERR_NOTSUPP for a claim on delegations
/// of an earlier instance of the client.
fn claim(claim: &OpenClaim<'_>) -> Result<Claim, Stop> {
    use forebay_wire::nfs4::DelegationType;
    match claim {
        OpenClaim::Null(_) | OpenClaim::Fh => Ok(Claim::New),
        OpenClaim::Previous(kind) => Ok(Claim::Previous(match kind {
            DelegationType::Read | DelegationType::ReadAttrs => Some(false),
            DelegationType::Write | DelegationType::WriteAttrs => Some(true),
            DelegationType::None | DelegationType::NoneExt => None,
        })),
        OpenClaim::DelegateCur(cur) => Ok(Claim::Delegated(state_id(cur.delegate_stateid))),
        OpenClaim::DelegCurFh(stateid) => Ok(Claim::Delegated(state_id(*stateid))),
        // Delegations end with the client's instance.
        OpenClaim::DelegatePrev(_) | OpenClaim::DelegPrevFh => Err(Stop::Fail(Nfsstat4::Notsupp)),
    }
}

/// Returns the client's wish for a delegation from the access bits of OPEN. Fails with NFS4ERR_INVAL for a wish that
/// RFC 8881 does not define.
fn want(access: u32) -> Result<Want, Stop> {
    match access & share::WANT_DELEG_MASK {
        share::WANT_NO_PREFERENCE => Ok(Want::NoPreference),
        share::WANT_READ_DELEG => Ok(Want::Read),
        share::WANT_WRITE_DELEG => Ok(Want::Write),
        share::WANT_ANY_DELEG => Ok(Want::Any),
        share::WANT_NO_DELEG | share::WANT_CANCEL => Ok(Want::None),
        _ => Err(Stop::Fail(Nfsstat4::Inval)),
    }
}
