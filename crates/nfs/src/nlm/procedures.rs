//! The procedures of NLM that the server carries out.
//!
//! LOCK, NM_LOCK, TEST and SHARE are for callers that may read or write the file, or own it, by the export's rules.
//! A host gives back its own locks without that, also when the file is removed or the rules of its export have changed.
//! It only needs a port from which some export may be used.

use forebay_clientstate::{
    Effects, FileKey, NlmAnswer, NlmLock, NlmOwner, OwnerName, Share as StateShare, State,
};
use forebay_vfs::{Access, FileType, Wait};
use forebay_wire::nfs3::{FileHandle, Nfsstat3};
use forebay_wire::nlm4::{
    CancelArgs, Lock, LockArgs, Netobj, Notify, Procedure, Res, ShareAccess, ShareArgs, ShareMode, ShareRes,
    Stats, TestArgs, TestReply, TestRes, UnlockArgs,
};

use super::convert::{holder, host, kind, owner, range, stat, stopped, test_reply};
use super::encoded;
use crate::caller::{At, client_address};
use crate::request::Call;
use crate::result::Stop;
use crate::shared::Shared;

impl Shared {
    /// Returns the result of a procedure as bytes. Fails only for arguments that cannot be decoded. A request that is
    /// turned away changes nothing.
    pub(super) fn nlm_result(
        &self,
        procedure: Procedure,
        call: &Call<'_>,
        is_turned_away: bool,
    ) -> Result<Vec<u8>, Stop> {
        let may = || if is_turned_away { Err(Stop::Later) } else { Ok(()) };
        let result =
            |cookie, stat: Result<Stats, Stop>| encoded(&Res { cookie, stat: stat.unwrap_or_else(stopped) });
        match procedure {
            Procedure::Test | Procedure::TestMsg => {
                let args: TestArgs<'_> = call.args()?;
                self.nlm_test(call, &args, may())
            }
            Procedure::Lock | Procedure::LockMsg | Procedure::NmLock => {
                let args: LockArgs<'_> = call.args()?;
                let is_monitored = procedure != Procedure::NmLock;
                result(args.cookie, may().and_then(|()| self.nlm_lock(call, &args, is_monitored)))
            }
            Procedure::Cancel | Procedure::CancelMsg => {
                let args: CancelArgs<'_> = call.args()?;
                result(args.cookie, may().and_then(|()| self.nlm_cancel(call, &args)))
            }
            Procedure::Unlock | Procedure::UnlockMsg => {
                let args: UnlockArgs<'_> = call.args()?;
                result(args.cookie, may().and_then(|()| self.nlm_unlock(call, &args.alock)))
            }
            // The server never waits for a lock of another server.
            Procedure::Granted | Procedure::GrantedMsg => {
                let args: TestArgs<'_> = call.args()?;
                result(args.cookie, Ok(Stats::Denied))
            }
            Procedure::Share | Procedure::Unshare => {
                let args: ShareArgs<'_> = call.args()?;
                let share = || match procedure {
                    Procedure::Share => self.nlm_share(call, &args),
                    _ => self.nlm_unshare(call, &args),
                };
                let stat = may().and_then(|()| share()).unwrap_or_else(stopped);
                encoded(&ShareRes { cookie: args.cookie, stat, sequence: 0 })
            }
            Procedure::FreeAll => {
                let args: Notify<'_> = call.args()?;
                if !is_turned_away {
                    self.host_freed(call.peer.addr, args.name.0);
                }
                Ok(Vec::new())
            }
            // The server sends GRANTED, whose answer is its reply. NSM_NOTIFY is for the status monitor of this host.
            Procedure::Null
            | Procedure::TestRes
            | Procedure::LockRes
            | Procedure::CancelRes
            | Procedure::UnlockRes
            | Procedure::GrantedRes
            | Procedure::NsmNotify => Ok(Vec::new()),
        }
    }

    /// Returns the key of the file with a handle. Handles of this server always fit.
    fn key_to_lock(&self, handle: Netobj<'_>) -> Result<FileKey, Stop> {
        self.file_key(handle.0).ok_or(Stop::Fail(Nfsstat3::Badhandle))
    }

    /// Returns the file of a handle, if the export's rules admit the caller.
    fn file_to_lock(&self, call: &Call<'_>, handle: Netobj<'_>) -> Result<(At, FileKey), Stop> {
        let key = self.key_to_lock(handle)?;
        let wire = FileHandle::new(handle.0).ok_or(Stop::Fail(Nfsstat3::Badhandle))?;
        let at = self.at(call, &wire, Wait::Yes)?;
        match at.target.object.kind() {
            FileType::RegularFile => Ok((at, key)),
            _ => Err(Stop::Fail(Nfsstat3::Inval)),
        }
    }

    /// Returns the file of a handle, if the caller may lock it.
    fn permitted(&self, call: &Call<'_>, handle: Netobj<'_>, writes: bool) -> Result<FileKey, Stop> {
        let (at, key) = self.file_to_lock(call, handle)?;
        if writes && at.caller.read_only {
            return Err(Stop::Fail(Nfsstat3::Rofs));
        }
        let asked = Access { read: true, write: true, execute: false };
        let (may, attr) = self.vfs.access(&at.target, &at.caller.cred, asked, Wait::Yes)?;
        let owns = attr.uid == at.caller.cred.uid();
        if may.read || may.write || owns { Ok(key) } else { Err(Stop::Fail(Nfsstat3::Acces)) }
    }

    /// Checks that a request to give something back comes from a port from which some export may be used.
    fn may_give_back(&self, call: &Call<'_>) -> Result<(), Stop> {
        if self.admits_from(call.peer.addr) { Ok(()) } else { Err(Stop::Fail(Nfsstat3::Acces)) }
    }

    /// Carries out TEST: returns the encoded reply, which describes a lock that would stand in the way. `may` is an
    /// error for a request that is turned away.
    fn nlm_test(&self, call: &Call<'_>, args: &TestArgs<'_>, may: Result<(), Stop>) -> Result<Vec<u8>, Stop> {
        let test = || {
            may?;
            let file = self.permitted(call, args.alock.fh, args.exclusive)?;
            let owner = owner_of(call, &args.alock)?;
            let (range, kind) = (range(&args.alock), kind(args.exclusive));
            let test = |state: &mut State, now, fx: &mut Effects| {
                state.nlm_test(&owner, &file, range, kind, now, fx)
            };
            self.change_state(test)
        };
        let answer = test();
        let stat = match &answer {
            Ok(NlmAnswer::Denied(Some(conflict))) => TestReply::Denied(holder(conflict)),
            Ok(answer) => test_reply(stat(answer)),
            Err(stop) => test_reply(stopped(*stop)),
        };
        encoded(&TestRes { cookie: args.cookie, stat })
    }

    /// Carries out LOCK or NM_LOCK: takes a lock, or waits in the clients' state for it, if the client asks for that.
    /// Without a log of client state, the host of LOCK is in the file of hosts before the lock is granted.
    fn nlm_lock(&self, call: &Call<'_>, args: &LockArgs<'_>, is_monitored: bool) -> Result<Stats, Stop> {
        let file = self.permitted(call, args.alock.fh, args.exclusive)?;
        let owner = owner_of(call, &args.alock)?;
        let cookie = forebay_clientstate::Cookie::new(args.cookie.0).ok_or(Stop::Garbage)?;
        if !self.knows_host(call.peer.addr.ip().to_canonical(), args.alock.caller_name.0, is_monitored) {
            return Ok(Stats::DeniedNolocks);
        }
        let request = NlmLock {
            owner,
            file,
            range: range(&args.alock),
            kind: kind(args.exclusive),
            blocks: args.block,
            is_reclaim: args.reclaim,
            cookie,
            state: args.state,
        };
        self.change_state(|state, now, fx| state.nlm_lock(&request, now, fx)).map(|answer| stat(&answer))
    }

    /// Carries out CANCEL: ends the wait for a lock. Returns `Denied` if no such request waits.
    fn nlm_cancel(&self, call: &Call<'_>, args: &CancelArgs<'_>) -> Result<Stats, Stop> {
        self.may_give_back(call)?;
        let (owner, file) = (owner_of(call, &args.alock)?, self.key_to_lock(args.alock.fh)?);
        let (range, kind) = (range(&args.alock), kind(args.exclusive));
        let cancelled =
            self.change_state(|state, now, fx| state.nlm_cancel(&owner, &file, range, kind, now, fx))?;
        self.file_to_lock(call, args.alock.fh)?;
        Ok(if cancelled { Stats::Granted } else { Stats::Denied })
    }

    /// Carries out UNLOCK. The lock is gone even if the file is removed or the caller has lost access; the status may
    /// still be an error.
    fn nlm_unlock(&self, call: &Call<'_>, lock: &Lock<'_>) -> Result<Stats, Stop> {
        self.may_give_back(call)?;
        let (owner, file, range) = (owner_of(call, lock)?, self.key_to_lock(lock.fh)?, range(lock));
        let answer = self.change_state(|state, now, fx| state.nlm_unlock(&owner, &file, range, now, fx))?;
        self.file_to_lock(call, lock.fh)?;
        Ok(stat(&answer))
    }

    /// Carries out SHARE: takes access to a file, and denies access to other owners, as DOS clients do. Returns
    /// `DeniedNolocks` if there are too many hosts.
    fn nlm_share(&self, call: &Call<'_>, args: &ShareArgs<'_>) -> Result<Stats, Stop> {
        let (access, deny) = (bits_of_access(args.share.access), bits_of_mode(args.share.mode));
        let file = self.permitted(call, args.share.fh, access & forebay_clientstate::WRITE != 0)?;
        let owner = share_owner(call, args)?;
        if !self.knows_host(client_address(call.peer), args.share.caller_name.0, true) {
            return Ok(Stats::DeniedNolocks);
        }
        let share = StateShare { access, deny };
        self.change_state(|state, now, fx| state.nlm_share(&owner, &file, share, args.reclaim, now, fx))
            .map(|answer| stat(&answer))
    }

    /// Carries out UNSHARE: gives back the share of an owner. The share is gone even if the caller has lost access to
    /// the file.
    fn nlm_unshare(&self, call: &Call<'_>, args: &ShareArgs<'_>) -> Result<Stats, Stop> {
        self.may_give_back(call)?;
        let (owner, file) = (share_owner(call, args)?, self.key_to_lock(args.share.fh)?);
        self.change_state(|state, now, fx| state.nlm_unshare(&owner, &file, now, fx))?;
        self.file_to_lock(call, args.share.fh)?;
        Ok(Stats::Granted)
    }
}

fn owner_of(call: &Call<'_>, lock: &Lock<'_>) -> Result<NlmOwner, Stop> {
    owner(lock, client_address(call.peer)).ok_or(Stop::Garbage)
}

/// Returns the owner of a share. Shares have no process number.
fn share_owner(call: &Call<'_>, args: &ShareArgs<'_>) -> Result<NlmOwner, Stop> {
    let host = host(args.share.caller_name.0, client_address(call.peer)).ok_or(Stop::Garbage)?;
    let opaque = OwnerName::new(args.share.oh.0).ok_or(Stop::Garbage)?;
    Ok(NlmOwner { host, opaque, svid: 0 })
}

/// Returns the access of a share as bits: the numbers of the protocol are bits already.
fn bits_of_access(access: ShareAccess) -> u8 {
    access as u32 as u8
}

/// Returns what a share denies, as bits.
fn bits_of_mode(mode: ShareMode) -> u8 {
    mode as u32 as u8
}
