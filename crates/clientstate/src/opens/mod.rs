//! Opens and share reservations: OPEN, OPEN_DOWNGRADE, CLOSE.

mod close;

use crate::record::Record;
use crate::state::{Ref, State};
use crate::stateid::next;
use crate::tables::{Holder, OwnerKey, OwnerKind};
use crate::{
    ClientId, Delegated, Durability, Effects, Error, FileKey, Now, OwnerName, RequestId, Share, StateId,
    Want, planted_bugs,
};

/// An open: one for each open owner and file.
#[derive(Debug)]
pub(crate) struct Open {
    pub(crate) stateid: StateId,
    pub(crate) client: ClientId,
    pub(crate) owner: u32,
    pub(crate) file: u32,
    pub(crate) share: Share,
    /// The values of access, and of deny, to which OPEN_DOWNGRADE may return: a bit for each.
    pub(crate) seen: (u8, u8),
    pub(crate) is_revoked: bool,
}

/// The arguments of OPEN that concern state. The executor has resolved the name.
#[derive(Clone, Debug)]
pub struct OpenArgs {
    /// The client.
    pub client: ClientId,
    /// The open owner.
    pub owner: OwnerName,
    /// The file.
    pub file: FileKey,
    /// The share.
    pub share: Share,
    /// The claim.
    pub claim: Claim,
    /// The client's wish about a delegation.
    pub want: Want,
    /// The request. The recall of a delegation refers to it.
    pub request: Option<RequestId>,
}

/// The claim of an OPEN. The claims by name and by handle do not differ here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Claim {
    /// A new open (CLAIM_NULL, CLAIM_FH).
    New,
    /// A reclaim in a grace period (CLAIM_PREVIOUS), and the delegation that the client had: true for writing.
    Previous(Option<bool>),
    /// An open that the client made by itself under its delegation (CLAIM_DELEGATE_CUR, CLAIM_DELEG_CUR_FH).
    Delegated(StateId),
}

/// The result of OPEN.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Opened {
    /// The open.
    pub stateid: StateId,
    /// The delegation, if one was granted.
    pub delegation: Option<Delegated>,
}

impl State {
    /// Carries out the part of OPEN that concerns state.
    ///
    /// | case | result |
    /// |---|---|
    /// | a new open in a grace period, or before the client's RECLAIM_COMPLETE | `Grace` |
    /// | a reclaim outside of a grace period, or after RECLAIM_COMPLETE | `NoGrace` |
    /// | the file is losing its last name | `Delay` |
    /// | a delegation of another client is in the way | `Delay`, and a recall |
    /// | another open or an NLM share denies it, or is denied by it | `ShareDenied`; `ReclaimConflict` for a reclaim |
    /// | only expired clients are in the way | they lose their state, then as below |
    /// | the owner has an open of this file | that open gets both shares, and the next version |
    /// | else | a new open |
    ///
    /// A new plain open goes to the log without a wait: a client that finds it lost opens again. An open that denies
    /// anything, and a delegation, are durable before the reply. The next version of an open is durable as well. So no
    /// client has a later version than a restarted server.
    pub fn open(&mut self, args: &OpenArgs, now: Now, fx: &mut Effects) -> Result<Opened, Error> {
        let result = self.open_unsettled(args, now, fx);
        self.settle(now, fx);
        result
    }

    /// Opens a file. The caller calls [`State::settle`] afterwards.
    fn open_unsettled(&mut self, args: &OpenArgs, now: Now, fx: &mut Effects) -> Result<Opened, Error> {
        self.may_claim(args.client, matches!(args.claim, Claim::Previous(_)), now)?;
        if self.removals.is_going(&args.file) {
            return Err(Error::Delay);
        }
        let share = Share::new(args.share.access.into(), args.share.deny.into())?;
        if let Claim::Delegated(stateid) = args.claim {
            let held = self.find_delegation(args.client, stateid)?;
            if self.files.at(self.delegations[held as usize].file).key != args.file {
                return Err(Error::BadStateid);
            }
        }
        self.make_way(args.client, &args.owner, &args.file, share, now, fx).map_err(|error| {
            match args.claim {
                Claim::Previous(_) if error == Error::ShareDenied => Error::ReclaimConflict,
                _ => error,
            }
        })?;
        let key = open_owner(args.client, &args.owner);
        if let Some(revoked) =
            self.find_own(&key, &args.file).filter(|open| self.opens[*open as usize].is_revoked)
        {
            self.remove_open(revoked, fx);
        }
        let is_new = self.find_own(&key, &args.file).is_none();
        if is_new {
            self.admit_state(args.client, now, fx)?;
        }
        let number = self.put_open(args.client, &key, &args.file, share, None);
        let open = &self.opens[number as usize];
        let (stateid, denies) = (open.stateid, open.share.deny != 0);
        let durability = if denies || !is_new { Durability::BeforeReply } else { Durability::Loose };
        fx.log(durability, self.describe_open(number));
        let delegation = self.delegate(args, number, now, fx);
        Ok(Opened { stateid, delegation })
    }

    /// Returns an error if a client may not claim opens or locks now. The request proves that the client lives.
    pub(crate) fn may_claim(&self, client: ClientId, is_reclaim: bool, now: Now) -> Result<(), Error> {
        let record = self.client(client)?;
        record.lease.renew(now);
        let complete = record.reclaim_complete;
        match (is_reclaim, self.in_grace(now)) {
            (true, true) if !complete => Ok(()),
            (true, _) => Err(Error::NoGrace),
            (false, false) if complete => Ok(()),
            (false, _) => Err(Error::Grace),
        }
    }

    /// Recalls delegations, and ends expired clients, that are in the way of an open.
    fn make_way(
        &mut self,
        client: ClientId,
        owner: &OwnerName,
        file: &FileKey,
        share: Share,
        now: Now,
        fx: &mut Effects,
    ) -> Result<(), Error> {
        let own = self.find_own(&open_owner(client, owner), file);
        let own = own.map(|open| self.opens[open as usize].share).unwrap_or_default();
        self.admit_share(file, share, own, now, fx)?;
        let writes = share.access & crate::WRITE != 0 || share.deny & crate::READ != 0;
        match self.files.find(file) {
            Some(number) if self.recall(number, Some((client, file.handle())), writes, now, fx) => {
                Err(Error::Delay)
            }
            _ => Ok(()),
        }
    }

    /// Returns `ShareDenied` if shares of a live client are in the way. `own` is the share that the owner has already.
    pub(crate) fn admit_share(
        &mut self,
        file: &FileKey,
        share: Share,
        own: Share,
        now: Now,
        fx: &mut Effects,
    ) -> Result<(), Error> {
        while let Some(number) = self.files.find(file)
            && self.files.at(number).excludes(share, own)
            && !planted_bugs::active("shares are not compared")
        {
            let Some(expired) = self.expired_sharer(number, share, now) else {
                return Err(Error::ShareDenied);
            };
            self.remove_client(expired, fx);
        }
        Ok(())
    }

    /// Returns an expired client whose open conflicts with a share.
    fn expired_sharer(&self, file: u32, share: Share, now: Now) -> Option<ClientId> {
        let opens =
            self.open_index.range((file, 0)..=(file, u32::MAX)).map(|(_, open)| &self.opens[*open as usize]);
        let mut conflicts =
            opens.filter(|open| open.share.deny & share.access != 0 || share.deny & open.share.access != 0);
        conflicts.find(|open| self.is_courtesy(open.client, now)).map(|open| open.client)
    }

    /// Returns the number of an owner's open of a file.
    pub(crate) fn find_own(&self, key: &OwnerKey, file: &FileKey) -> Option<u32> {
        let (owner, file) = (self.owners.find(key)?, self.files.find(file)?);
        self.open_index.get(&(file, owner)).copied()
    }

    /// Adds a share to an owner's open of a file. `recovered` has the name, the version and the history of a record,
    /// whose share replaces the present one.
    pub(crate) fn put_open(
        &mut self,
        client: ClientId,
        key: &OwnerKey,
        file: &FileKey,
        share: Share,
        recovered: Option<(StateId, (u8, u8))>,
    ) -> u32 {
        let (owner, file) = (self.owners.get_or_add(key), self.files.get_or_add(file));
        let bits = (1 << share.access, 1 << share.deny);
        if let Some(number) = self.open_index.get(&(file, owner)).copied() {
            let open = &mut self.opens[number as usize];
            self.files.at_mut(file).count(open.share, false);
            match recovered {
                None => {
                    open.share = open.share.union(share);
                    open.seen = (open.seen.0 | bits.0, open.seen.1 | bits.1);
                    open.stateid.seqid = next(open.stateid.seqid);
                }
                Some((stateid, seen)) => (open.share, open.seen, open.stateid) = (share, seen, stateid),
            }
            self.files.at_mut(file).count(open.share, true);
            return number;
        }
        let (stateid, seen) =
            recovered.unwrap_or_else(|| (StateId { seqid: 1, other: self.next_other() }, bits));
        let open = Open { stateid, client, owner, file, share, seen, is_revoked: false };
        let number = self.opens.insert(open) as u32;
        self.open_index.insert((file, owner), number);
        self.owners.add_use(owner);
        let at = self.files.at_mut(file);
        at.opens += 1;
        at.count(share, true);
        self.attach(client, stateid, Ref::Open(number));
        number
    }

    /// Returns the record of an open in its present version.
    pub(crate) fn describe_open(&self, number: u32) -> Record {
        let open = &self.opens[number as usize];
        Record::Open {
            other: open.stateid.other,
            seqid: open.stateid.seqid,
            client: open.client,
            owner: self.owners.key(open.owner).name.clone(),
            file: self.files.at(open.file).key.clone(),
            share: open.share,
            seen: open.seen,
        }
    }
}

pub(crate) fn open_owner(client: ClientId, owner: &OwnerName) -> OwnerKey {
    OwnerKey { holder: Holder::Client(client), kind: OwnerKind::Open, name: owner.clone() }
}
