//! Changes of the members. Each change is a new epoch. The top of `pool/mod.rs` explains the two steps.

use std::sync::Arc;

use xxhash_rust::xxh3::xxh3_128;

use super::candidate::Candidate;
use super::error::PoolError;
use super::geometry::{Copy, SEGMENTS_MIN, segments, size_for};
use super::identify::Contents;
use super::make::{check_size, read_back};
use super::superblock::{Entry, State, Superblock};
use super::table::{Member, Pool};
use crate::buffer::{Buffer, Slice};
use crate::format::DEVICES_MAX;
use crate::io::{Device, DeviceError, Durability};
use crate::planted_bugs;
use crate::segments::Reach;
use crate::wait::all;

/// Members that failed while a change was written, by index. The change includes their loss.
pub type AlsoLost = Vec<u16>;

/// A member that is being added.
struct Newcomer {
    index: u16,
    /// True if the pool has only one other member now, and former members have left after a drain.
    second: bool,
    /// The member that had the index before.
    before: Option<Member>,
}

impl Pool {
    /// Begins a new epoch. Active members that are missing become lost.
    ///
    /// The following holds for every change of the pool that returns `Ok`. Each active member carries the change and
    /// the new epoch durably, in both copies of its superblock. It also knows that the other active members do. Every
    /// other member is recorded as lost or removed, and is not used if it comes back. Members that could not be
    /// written become lost, too, and are returned. The pool can continue with one member.
    ///
    /// The witness has recorded the new epoch as well.
    ///
    /// # Errors
    /// [`PoolError::NoMemberLeft`]. [`PoolError::Unnoted`] may come with every change: the devices may carry the
    /// change, but the witness does not. Nothing may be acknowledged any more then.
    pub async fn open_epoch(&mut self) -> Result<AlsoLost, PoolError> {
        self.pass_over_given();
        self.change().await
    }

    /// Records that member `index` is lost: it failed. Has no effect if the member is not active. Durable as
    /// described at [`Pool::open_epoch`].
    ///
    /// # Errors
    /// [`PoolError::NoMemberLeft`].
    pub async fn lose(&mut self, index: u16) -> Result<AlsoLost, PoolError> {
        match self.members.get(usize::from(index)) {
            Some(member) if member.state == State::Active => self.leave(index, State::Lost),
            _ => return Ok(AlsoLost::new()),
        }
        self.change().await
    }

    /// Records durably how far back the pool reaches. Returns the members that could not be written.
    pub(crate) async fn save_reach(&mut self, reach: Reach) -> AlsoLost {
        self.reach = reach;
        self.tell_all(2).await
    }

    /// Records durably that log segment `seq` was opened, and frame `durable` written. The segment's header must be
    /// durable before. Returns the members that could not be written.
    pub(crate) async fn save_newest(&mut self, seq: u64, durable: u64) -> AlsoLost {
        (self.newest, self.durable) = (seq, durable);
        // The other copy of the superblock names the segment before.
        self.tell_all(1).await
    }

    /// Records durably, in both copies, that frame `durable` was written. Returns the members that could not be
    /// written.
    pub(crate) async fn save_durable(&mut self, durable: u64) -> AlsoLost {
        self.durable = durable;
        self.tell_all(2).await
    }

    /// Writes the superblocks of all present members. Returns the members for which it failed.
    async fn tell_all(&mut self, copies: usize) -> AlsoLost {
        let present: Vec<_> = self.present().map(|(member, _)| usize::from(member.index)).collect();
        let failed = self.write_copies(&present, copies).await;
        failed.into_iter().map(|(at, _)| self.members[at].index).collect()
    }

    /// Removes member `index`, active or lost, from the pool and blanks its device. Its data must not be needed any
    /// more, but must be complete until this returns. If all other members fail meanwhile, they are lost and the
    /// member stays. Durable as described at [`Pool::open_epoch`]. A device that cannot be blanked is not used
    /// either.
    ///
    /// # Errors
    /// [`PoolError::LastMember`], also if the member became the last one meanwhile; [`PoolError::NoSuchMember`],
    /// [`PoolError::NoMemberLeft`].
    pub async fn remove(&mut self, index: u16) -> Result<AlsoLost, PoolError> {
        let member = self.members.get(usize::from(index)).filter(|member| member.state != State::Removed);
        let before = member.ok_or(PoolError::NoSuchMember(index))?.clone();
        let device = before.device.clone();
        let name = device.as_ref().map_or("this", |device| device.name()).to_owned();
        if !self.present().any(|(other, _)| other.index != index) {
            return Err(PoolError::LastMember(name));
        }
        self.leave(index, State::Removed);
        let also_lost = match self.change().await {
            Err(PoolError::NoMemberLeft) if device.is_some() => {
                // Some of the other members may carry the removal. The member's own epoch is newer than theirs.
                self.members[usize::from(index)] = before;
                self.change().await?;
                return Err(PoolError::LastMember(name));
            }
            changed => changed?,
        };
        if let Some(device) = device {
            for copy in [Copy::A, Copy::B] {
                let zeros = Slice::from(Buffer::zeroed(1));
                // This may fail on a broken device. The other members know that it is no member.
                let _ = device.write(copy.offset(device.size()), zeros, Durability::Now).await;
            }
        }
        Ok(also_lost)
    }

    /// Makes `device` a member with no segments in use: reads it, erases it, and joins it ([`Pool::join`]). The former
    /// contents of the device are lost, also after an error of [`Pool::join`].
    ///
    /// # Errors
    /// Those of [`Candidate::look`], [`Pool::may_join`], [`Candidate::erase`] and [`Pool::join`].
    pub async fn add(&mut self, device: Arc<dyn Device>, force: bool) -> Result<(u16, AlsoLost), PoolError> {
        let candidate = Candidate::look(device).await?;
        self.may_join(&candidate, force)?;
        candidate.erase().await?;
        self.join(&candidate, force).await
    }

    /// Checks that the device can become a member and may be erased. A blank device, one with an unfinished format, or
    /// a former member of this pool is accepted; any other device only with `force`. Writes nothing.
    ///
    /// # Errors
    /// [`PoolError::InUse`], [`PoolError::Duplicate`], [`PoolError::Full`], a size out of range.
    pub fn may_join(&self, candidate: &Candidate, force: bool) -> Result<(), PoolError> {
        let device = candidate.device.as_ref();
        check_size(device)?;
        if segments(device.size(), self.segment_size) < SEGMENTS_MIN {
            let needed = size_for(SEGMENTS_MIN, self.segment_size);
            let device = device.name().to_owned();
            return Err(PoolError::TooSmall { device, size: candidate.device.size(), needed });
        }
        self.index_for(candidate, force).map(drop)
    }

    /// Makes an erased device a member with no segments in use. Its index is its own former one, or else an unused
    /// one, or that of a removed or lost member. Durable as described at [`Pool::open_epoch`]. Also returns the other
    /// members lost meanwhile.
    ///
    /// # Errors
    /// Those of [`Pool::may_join`]. After [`PoolError::Unreadable`] or [`PoolError::Unwritable`] of the device, the
    /// pool has its former members, in an epoch that the device does not know. So nothing that the device may still
    /// write counts. [`PoolError::NoMemberLeft`], also if all other members are lost meanwhile, which may hold the
    /// only copy of some data.
    pub async fn join(&mut self, candidate: &Candidate, force: bool) -> Result<(u16, AlsoLost), PoolError> {
        self.may_join(candidate, force)?;
        let index = self.index_for(candidate, force)?;
        let device = &candidate.device;
        let at = usize::from(index);
        let others = self.members.iter().filter(|member| member.state != State::Removed).count();
        let newcomer = Newcomer { index, second: others == 1, before: self.members.get(at).cloned() };
        let uuid = self.fresh_uuid(index);
        let member = Member {
            uuid,
            index,
            segments: segments(device.size(), self.segment_size),
            state: State::Active,
            since_epoch: self.epoch + 1,
            device: Some(device.clone()),
            write_first: Copy::A,
        };
        match self.members.get_mut(at) {
            Some(place) => *place = member,
            None => self.members.push(member),
        }
        // The newcomer is written first. If the other members knew of it before it knows itself, a crash would leave
        // a blank member.
        self.epoch += 1;
        let written = match self.write(&[at]).await.pop() {
            Some((_, error)) => Err(PoolError::Unwritable { device: device.name().to_owned(), error }),
            None => read_back(&self.members[at], &self.members).await,
        };
        if let Err(error) = written {
            self.put_back(&newcomer);
            // Only the newcomer may carry this epoch, so nothing may be written in it.
            if !planted_bugs::active("a device that was not added leaves its epoch") {
                self.change().await?;
            }
            return Err(error);
        }
        let changed = self.change_with(Some(newcomer)).await;
        // A newcomer that is left alone is no member. The other members may come back, and it must not declare them
        // out of date.
        let leave_alone = |member: &mut Member| member.device = None;
        let changed = changed.inspect_err(|_| {
            self.members.iter_mut().filter(|member| member.uuid == uuid).for_each(leave_alone);
        });
        changed.map(|also_lost| (index, also_lost))
    }

    /// Restores the members as they were before the newcomer.
    fn put_back(&mut self, newcomer: &Newcomer) {
        self.refused.extend(self.members.get(usize::from(newcomer.index)).map(|member| member.uuid));
        match (&newcomer.before, self.members.get_mut(usize::from(newcomer.index))) {
            (Some(before), Some(place)) => *place = before.clone(),
            // The newcomer is behind all other members.
            _ => self.members.truncate(usize::from(newcomer.index)),
        }
    }

    /// Returns the index that the device gets, if its contents may be overwritten.
    fn index_for(&self, candidate: &Candidate, force: bool) -> Result<u16, PoolError> {
        let Candidate { device, contents } = candidate;
        let name = || device.name().to_owned();
        let (mut before, mut is_free) = (None, matches!(contents, Contents::Blank | Contents::Unfinished));
        if let Contents::Pool(superblock) = contents
            && superblock.pool == self.uuid
        {
            before = self.members.iter().find(|member| member.uuid == superblock.device);
            match before.map(|member| (member.state, &member.device)) {
                Some((State::Active, Some(twin))) => {
                    return Err(PoolError::Duplicate { first: twin.name().to_owned(), second: name() });
                }
                Some((State::Active, None)) => before = None,
                None => is_free = self.is_refused(superblock),
                // A member that continued without the others may hold data that they lack.
                Some(_) => before = before.filter(|member| superblock.in_use < member.since_epoch),
            }
        }
        if before.is_none() && !is_free && !force {
            return Err(PoolError::InUse { device: name(), what: contents.to_string() });
        }
        let with =
            |state| self.members.iter().find(|member| member.state == state).map(|member| member.index);
        let own = before.map(|member| member.index);
        let unused = (self.members.len() < DEVICES_MAX).then_some(self.members.len() as u16);
        own.or(unused).or(with(State::Removed)).or(with(State::Lost)).ok_or(PoolError::Full)
    }

    /// Returns true if a device that the table does not name was never a member: a failed attempt to add it wrote this
    /// superblock.
    fn is_refused(&self, superblock: &Superblock) -> bool {
        let own = superblock.members.get(usize::from(superblock.index));
        let never_in_use = own.is_some_and(|own| own.since_epoch > superblock.in_use);
        never_in_use || self.refused.contains(&superblock.device)
    }

    /// Returns a UUID that no other device has. The pool's own UUID is random, and its devices differ within it.
    fn fresh_uuid(&self, index: u16) -> u128 {
        let mut unique = [0; 34];
        unique[..16].copy_from_slice(&self.uuid.to_le_bytes());
        unique[16..24].copy_from_slice(&self.epoch.to_le_bytes());
        unique[24..32].copy_from_slice(&self.generation.to_le_bytes());
        unique[32..].copy_from_slice(&index.to_le_bytes());
        xxh3_128(&unique)
    }

    /// Marks a member as lost or removed from the next epoch on.
    fn leave(&mut self, index: u16, state: State) {
        let member = &mut self.members[usize::from(index)];
        member.state = state;
        member.since_epoch = self.epoch + 1;
        member.device = None;
    }

    /// Makes the current table of members durable in a new epoch.
    pub(super) async fn change(&mut self) -> Result<AlsoLost, PoolError> {
        self.change_with(None).await
    }

    /// Makes the present table of members durable in a new epoch, with the members that fail meanwhile marked as lost.
    /// A newcomer that fails is left out, and is then the error.
    async fn change_with(&mut self, mut newcomer: Option<Newcomer>) -> Result<AlsoLost, PoolError> {
        let (mut also_lost, mut refused) = (AlsoLost::new(), None);
        loop {
            for at in 0..self.members.len() {
                let Member { index, state, ref device, .. } = self.members[at];
                if state == State::Active && device.is_none() {
                    self.leave(index, State::Lost);
                    also_lost.push(index);
                }
            }
            let is_new =
                |at: usize| newcomer.as_ref().is_some_and(|newcomer| usize::from(newcomer.index) == at);
            let present = self.present().map(|(member, _)| usize::from(member.index));
            // The newcomer comes last: it may not declare members out of date before one of them does.
            let (new, old): (Vec<_>, Vec<_>) = present.partition(|at| is_new(*at));
            match &newcomer {
                _ if !old.is_empty() => {}
                // The log is lost with the only other member, but no data that the backing store lacks. A new log
                // will begin.
                Some(Newcomer { second: true, .. }) if !new.is_empty() => {
                    (self.newest, self.durable) = (0, 0)
                }
                _ => return Err(PoolError::NoMemberLeft),
            }
            self.ask_for_epoch().await?;
            self.epoch += 1;
            let mut failed = self.write_in_turn(&[&old, &new]).await;
            if failed.is_empty() {
                self.in_use = self.epoch;
                failed = self.write_in_turn(&[&old, &new]).await;
            }
            if failed.is_empty() {
                self.tell_witness().await?;
                return refused.map_or(Ok(also_lost), Err);
            }
            for (at, error) in failed {
                match newcomer.take_if(|newcomer| usize::from(newcomer.index) == at) {
                    // The other members may carry a table with the newcomer. The next epoch has a table without it.
                    Some(newcomer) => {
                        refused = self.members[at]
                            .device
                            .as_ref()
                            .map(|device| PoolError::Unwritable { device: device.name().to_owned(), error });
                        self.put_back(&newcomer);
                    }
                    None => self.members[at].device = None,
                }
            }
        }
    }

    /// Writes these members in groups, one group after another. Stops after the first group with a failure.
    async fn write_in_turn(&mut self, turns: &[&[usize]]) -> Vec<(usize, DeviceError)> {
        for which in turns.iter().filter(|which| !which.is_empty()) {
            let failed = self.write(which).await;
            if !failed.is_empty() {
                return failed;
            }
        }
        Vec::new()
    }

    /// Writes both superblock copies of these members, one after the other, durably. Returns the members that failed,
    /// with their errors.
    pub(super) async fn write(&mut self, which: &[usize]) -> Vec<(usize, DeviceError)> {
        self.write_copies(which, 2).await
    }

    /// Writes superblock copies of some members, one copy after the other. Returns the members for which it failed.
    async fn write_copies(&mut self, which: &[usize], copies: usize) -> Vec<(usize, DeviceError)> {
        self.generation += 1;
        let mut failed: Vec<(usize, DeviceError)> = Vec::new();
        for _ in 0..copies {
            // All devices are written at once: a write begins when it is made.
            let writes: Vec<_> = which
                .iter()
                .filter(|at| failed.iter().all(|(other, _)| other != *at))
                .filter_map(|&at| {
                    let device = self.members[at].device.as_ref()?;
                    let offset = self.members[at].write_first.offset(device.size());
                    let block = Slice::from(self.superblock(at).encode());
                    Some((at, device.write(offset, block, Durability::Now)))
                })
                .collect();
            // All answers are awaited together. If they were awaited in turn, a device that has answered would look
            // late behind one that hangs.
            let (members, writes): (Vec<_>, Vec<_>) = writes.into_iter().unzip();
            for (at, result) in members.into_iter().zip(all(writes).await) {
                match result {
                    Ok(()) => self.members[at].write_first = self.members[at].write_first.other(),
                    Err(error) => failed.push((at, error)),
                }
            }
        }
        failed
    }

    /// Returns the superblock of a member, with the present membership.
    fn superblock(&self, at: usize) -> Superblock {
        let entry = |member: &Member| Entry {
            uuid: member.uuid,
            segments: member.segments,
            state: member.state,
            since_epoch: member.since_epoch,
        };
        Superblock {
            pool: self.uuid,
            device: self.members[at].uuid,
            index: self.members[at].index,
            segment_size: self.segment_size,
            epoch: self.epoch,
            in_use: self.in_use,
            generation: self.generation,
            optional: self.optional,
            reach: self.reach,
            newest: self.newest,
            durable: self.durable,
            owner: self.owner.clone(),
            members: self.members.iter().map(entry).collect(),
        }
    }
}
