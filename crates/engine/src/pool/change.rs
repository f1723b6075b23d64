//! Changes of the members, each a new epoch. See the top of `pool/mod.rs` for why there are two steps.

use std::sync::Arc;

use xxhash_rust::xxh3::xxh3_128;

use super::error::PoolError;
use super::geometry::{Copy, SEGMENTS_MIN, segments, size_for};
use super::identify::{Contents, identify};
use super::make::{check_size, read_back, wipe};
use super::superblock::{Entry, State, Superblock};
use super::{Member, Pool};
use crate::buffer::{Buffer, Slice};
use crate::format::DEVICES_MAX;
use crate::io::{Device, DeviceError, Durability};
use crate::segments::Reach;
use crate::wait::all;

/// Members that failed while a change was written, by index; the change includes that they are lost.
pub type AlsoLost = Vec<u16>;

/// A member that is being added.
#[derive(Clone, Copy)]
struct Newcomer {
    index: u16,
    /// There is only one other; those there were before have left, drained.
    second: bool,
}

impl Pool {
    /// Begins a new epoch. Active members that are missing become lost.
    ///
    /// This holds for every change of the pool: when it returns `Ok`, each active member carries the change and the new
    /// epoch durably, in both copies of its superblock, and knows that the others do; every other member is recorded
    /// there as lost or removed, and will not be used if it comes back. Members that could not be written on the way
    /// are lost, too: they are returned. The pool can go on with one member.
    ///
    /// The witness has noted the new epoch, too.
    ///
    /// # Errors
    /// [`PoolError::NoMemberLeft`]. [`PoolError::Unnoted`] comes with every change: the devices may carry it, the witness does
    /// not, and nothing may be acknowledged any more.
    pub async fn open_epoch(&mut self) -> Result<AlsoLost, PoolError> {
        self.pass_over_given();
        self.change().await
    }

    /// Records that member `index` is lost: it failed. No effect if it is not active. Durable as
    /// [`Pool::open_epoch`] says.
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

    /// Makes it durable how far back the pool reaches. Returns the members that could not be written.
    pub(crate) async fn save_reach(&mut self, reach: Reach) -> AlsoLost {
        self.reach = reach;
        self.tell_all(2).await
    }

    /// Makes it durable that log segment `seq` was opened, and frame `durable` written; the segment's header has to be durable
    /// before. Returns the members that could not be written.
    pub(crate) async fn save_newest(&mut self, seq: u64, durable: u64) -> AlsoLost {
        (self.newest, self.durable) = (seq, durable);
        // The other copy says it of the one before.
        self.tell_all(1).await
    }

    /// Makes it durable that frame `durable` was written, in both copies. Returns the members that could not be written.
    pub(crate) async fn save_durable(&mut self, durable: u64) -> AlsoLost {
        self.durable = durable;
        self.tell_all(2).await
    }

    async fn tell_all(&mut self, copies: usize) -> AlsoLost {
        let present: Vec<_> = self.present().map(|(member, _)| usize::from(member.index)).collect();
        let failed = self.write_copies(&present, copies).await;
        failed.into_iter().map(|(at, _)| self.members[at].index).collect()
    }

    /// Takes member `index`, active or lost, out of the pool and makes its device blank. What is on it must not be
    /// needed any more, and has to be complete until this returns: if all others fail over it, the member stays, and they are
    /// lost. Durable as [`Pool::open_epoch`] says; a device that cannot be made blank is not used all the same.
    ///
    /// # Errors
    /// [`PoolError::LastMember`], also if it became that; [`PoolError::NoSuchMember`], [`PoolError::NoMemberLeft`].
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
                // Some of the others may carry that it is gone: its own epoch is newer than theirs.
                self.members[usize::from(index)] = before;
                self.change().await?;
                return Err(PoolError::LastMember(name));
            }
            changed => changed?,
        };
        if let Some(device) = device {
            for copy in [Copy::A, Copy::B] {
                let zeros = Slice::from(Buffer::zeroed(1));
                // In vain on a device that fails: the other members know that it is none.
                let _ = device.write(copy.offset(device.size()), zeros, Durability::Now).await;
            }
        }
        Ok(also_lost)
    }

    /// Makes `device` a member, with no segments in use; its index is the last one's. What was on it is gone, also
    /// after an error. It is accepted if it is blank or was a member of this pool before, any other with `force`.
    /// Durable as [`Pool::open_epoch`] says; the new member may be among those lost on the way.
    ///
    /// # Errors
    /// [`PoolError::InUse`], [`PoolError::Duplicate`], a size that does not suit, a device that cannot be read or
    /// written: the pool is as before. [`PoolError::NoMemberLeft`], also if all others are lost meanwhile, who may have had
    /// what no other place has.
    pub async fn add(&mut self, device: Arc<dyn Device>, force: bool) -> Result<(u16, AlsoLost), PoolError> {
        check_size(device.as_ref())?;
        let count = segments(device.size(), self.segment_size);
        if count < SEGMENTS_MIN {
            let needed = size_for(SEGMENTS_MIN, self.segment_size);
            return Err(PoolError::TooSmall {
                device: device.name().to_owned(),
                size: device.size(),
                needed,
            });
        }
        let index = self.index_for(device.as_ref(), force).await?;
        wipe(device.as_ref()).await?;
        let at = usize::from(index);
        let member = Member {
            uuid: self.fresh_uuid(index),
            index,
            segments: count,
            state: State::Active,
            since_epoch: self.epoch + 1,
            device: Some(device.clone()),
            write_first: Copy::A,
        };
        let before = self.members.clone();
        match self.members.get_mut(at) {
            Some(place) => *place = member,
            None => self.members.push(member),
        }
        // The newcomer first: if the others knew of it before it knows itself, a crash would leave a blank member.
        self.epoch += 1;
        let written = match self.write(&[at]).await.pop() {
            Some((_, error)) => Err(PoolError::Unwritable { device: device.name().to_owned(), error }),
            None => read_back(&self.members[at], &self.members).await,
        };
        if let Err(error) = written {
            self.members = before;
            return Err(error);
        }
        let others = before.iter().filter(|member| member.state != State::Removed).count();
        let newcomer = Newcomer { index, second: others == 1 };
        let changed = self.change_with(Some(newcomer)).await;
        // Left alone it is no member: the others may come back, and it must not say that they are out of date.
        changed.inspect_err(|_| self.members[at].device = None).map(|also_lost| (index, also_lost))
    }

    /// The index that `device` gets, if what is on it may be overwritten.
    async fn index_for(&self, device: &dyn Device, force: bool) -> Result<u16, PoolError> {
        let name = || device.name().to_owned();
        let contents = identify(device).await;
        let contents = contents.map_err(|error| PoolError::Unreadable { device: name(), error })?;
        let mut before = None;
        if let Contents::Pool(superblock) = &contents
            && superblock.pool == self.uuid
        {
            before = self.members.iter().find(|member| member.uuid == superblock.device);
            match before.map(|member| (member.state, &member.device)) {
                Some((State::Active, Some(twin))) => {
                    return Err(PoolError::Duplicate { first: twin.name().to_owned(), second: name() });
                }
                Some((State::Active, None)) => before = None,
                // If it went on without the others, it may hold what they lack.
                _ => before = before.filter(|member| superblock.in_use < member.since_epoch),
            }
        }
        if before.is_none() && contents != Contents::Blank && !force {
            return Err(PoolError::InUse { device: name(), what: contents.to_string() });
        }
        let with =
            |state| self.members.iter().find(|member| member.state == state).map(|member| member.index);
        let own = before.map(|member| member.index);
        let unused = (self.members.len() < DEVICES_MAX).then_some(self.members.len() as u16);
        own.or(unused).or(with(State::Removed)).or(with(State::Lost)).ok_or(PoolError::Full)
    }

    /// A UUID that no other device has: the pool's own is random, and the others differ within it.
    fn fresh_uuid(&self, index: u16) -> u128 {
        let mut unique = [0; 34];
        unique[..16].copy_from_slice(&self.uuid.to_le_bytes());
        unique[16..24].copy_from_slice(&self.epoch.to_le_bytes());
        unique[24..32].copy_from_slice(&self.generation.to_le_bytes());
        unique[32..].copy_from_slice(&index.to_le_bytes());
        xxh3_128(&unique)
    }

    fn leave(&mut self, index: u16, state: State) {
        let member = &mut self.members[usize::from(index)];
        member.state = state;
        member.since_epoch = self.epoch + 1;
        member.device = None;
    }

    /// Makes the members as they are now durable in a new epoch.
    pub(super) async fn change(&mut self) -> Result<AlsoLost, PoolError> {
        self.change_with(None).await
    }

    async fn change_with(&mut self, newcomer: Option<Newcomer>) -> Result<AlsoLost, PoolError> {
        let mut also_lost = AlsoLost::new();
        let is_new = |at: usize| newcomer.is_some_and(|newcomer| usize::from(newcomer.index) == at);
        loop {
            for at in 0..self.members.len() {
                let Member { index, state, ref device, .. } = self.members[at];
                if state == State::Active && device.is_none() {
                    self.leave(index, State::Lost);
                    also_lost.push(index);
                }
            }
            let present = self.present().map(|(member, _)| usize::from(member.index));
            // The newcomer last: it may not say who is out of date before one of them does.
            let (new, old): (Vec<_>, Vec<_>) = present.partition(|at| is_new(*at));
            match newcomer {
                _ if !old.is_empty() => {}
                // The log is lost with the only other one, and with it nothing that the backing store lacks; another one
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
                return Ok(also_lost);
            }
            failed.into_iter().for_each(|(at, _)| self.members[at].device = None);
        }
    }

    /// Writes these members, some after others: none after one that fails.
    async fn write_in_turn(&mut self, turns: &[&[usize]]) -> Vec<(usize, DeviceError)> {
        for which in turns.iter().filter(|which| !which.is_empty()) {
            let failed = self.write(which).await;
            if !failed.is_empty() {
                return failed;
            }
        }
        Vec::new()
    }

    /// Writes both superblock copies of these members, one after the other, durably. Returns which failed, and how.
    pub(super) async fn write(&mut self, which: &[usize]) -> Vec<(usize, DeviceError)> {
        self.write_copies(which, 2).await
    }

    async fn write_copies(&mut self, which: &[usize], copies: usize) -> Vec<(usize, DeviceError)> {
        self.generation += 1;
        let mut failed: Vec<(usize, DeviceError)> = Vec::new();
        for _ in 0..copies {
            // All devices at once: a write begins when it is made.
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
            // All answers are awaited together: awaited in turn, a device that has answered looks late behind one that hangs.
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
