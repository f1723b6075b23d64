//! A change between its system calls and its durable record.

use std::sync::Arc;

use forebay_oplog::{
    Bindings, Change, Entries, Entry, Identity, LoggedObject, Operation, Record, RenameIntent, Rights,
};

use crate::io::{Files, Log as _, Slot as _};
use crate::making::Ticket;
use crate::planted_bugs;
use crate::slots::Slots;
use crate::volume::Volume;

/// The way in which a change becomes durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DurableBy {
    /// The change is durable with its record.
    Log,
    /// The change is durable with its record and the journal's commit.
    Journal,
    /// The file system makes each object durable; the record is for its reply.
    Each,
}

/// The effects of a change.
pub struct ChangeEffects<K> {
    /// Each name that it changed.
    pub bindings: Bindings,
    /// The objects that it touched, as they are now.
    pub objects: Vec<LoggedObject>,
    /// The rights that a new inode was to have.
    pub made: Option<Rights>,
    /// The ticket of a creation, from before the creation.
    pub ticket: Option<Ticket>,
    /// A value of the caller, to be dropped when the change is durable.
    pub kept: K,
}

impl<K: Default> Default for ChangeEffects<K> {
    fn default() -> Self {
        let (bindings, objects, made, ticket) = Default::default();
        ChangeEffects { bindings, objects, made, ticket, kept: K::default() }
    }
}

/// A slot, and the pool that it goes back to.
type Taken<S> = (Arc<Slots<S>>, S);

/// A change that was carried out and is not durable yet.
pub struct Pending<F: Files> {
    pub(crate) volume: Arc<Volume<F>>,
    pub(crate) number: u64,
    pub(crate) way: DurableBy,
    pub(crate) bindings: Bindings,
    /// The objects that it touched.
    pub(crate) objects: Vec<LoggedObject>,
    /// The rights that a new inode was to have.
    made: Option<Rights>,
    /// The slot with the intent of a RENAME, to be given back.
    slot: Option<Taken<F::Slot>>,
    /// The ticket of a creation, until its record is in the log.
    pub(crate) ticket: Option<Ticket>,
    _kept: F::Kept,
    /// The change never became durable, and must not seem durable.
    pub(crate) failed: bool,
    /// Its record went to the log, or never will.
    pub(crate) recorded: bool,
}

impl<F: Files> Volume<F> {
    /// Returns the way in which a change becomes durable now. `ordered` says that one journal orders all changes.
    pub fn way(&self, ordered: bool) -> DurableBy {
        match (ordered, self.sequence.log.is_write_back() && !self.is_failing()) {
            (false, _) => DurableBy::Each,
            (true, false) => DurableBy::Journal,
            (true, true) => DurableBy::Log,
        }
    }

    /// Gives a number to a change that was just carried out. The caller still holds the locks of the change, so that
    /// numbers tell the order.
    pub fn changed(self: &Arc<Self>, way: DurableBy, did: ChangeEffects<F::Kept>) -> Box<Pending<F>> {
        let number = self.sequence.begin(way);
        self.pending(number, way, did)
    }

    /// Returns a numbered change that waits for its turn. Marks the changed objects, unless each syncs itself.
    fn pending(
        self: &Arc<Self>,
        number: u64,
        way: DurableBy,
        did: ChangeEffects<F::Kept>,
    ) -> Box<Pending<F>> {
        if way != DurableBy::Each {
            self.touch(number, &did.objects);
        }
        let ChangeEffects { bindings, objects, made, ticket, kept } = did;
        Box::new(Pending {
            volume: self.clone(),
            number,
            way,
            bindings,
            objects,
            made,
            slot: None,
            ticket,
            _kept: kept,
            failed: false,
            recorded: false,
        })
    }

    /// Begins a RENAME from one of these directories to the other, whose locks are held. Waits for a slot.
    ///
    /// # Errors
    /// A slot cannot be made.
    pub async fn announce(
        self: &Arc<Self>,
        files: &F,
        slots: &Arc<Slots<F::Slot>>,
        way: DurableBy,
        dirs: [Identity; 2],
    ) -> Result<Announced<F>, F::Error> {
        let slot = slots.take(|number| files.make_slot(number)).await?;
        let (log, number) = self.sequence.begin_ahead();
        let intent = RenameIntent { log, number, filesystem: self.number(), dirs };
        let (volume, slots) = (self.clone(), slots.clone());
        Ok(Announced { volume, slots, intent, way, slot: Some(slot), ended: false })
    }
}

/// A RENAME with a number, before its system call. If the value is dropped, the RENAME was not carried out. Records of
/// other changes may then have to be appended, and wait for room. So the caller holds no locks of directories.
pub struct Announced<F: Files> {
    volume: Arc<Volume<F>>,
    slots: Arc<Slots<F::Slot>>,
    intent: RenameIntent,
    way: DurableBy,
    slot: Option<F::Slot>,
    ended: bool,
}

impl<F: Files> Announced<F> {
    /// Writes the intent into the slot.
    ///
    /// # Errors
    /// The intent is not in the slot.
    pub fn say(&self) -> Result<(), F::Error> {
        if planted_bugs::active("a RENAME says nothing in its slot") {
            return Ok(());
        }
        self.slot.as_ref().map_or(Ok(()), |slot| slot.write(&self.intent))
    }

    /// Returns the number that the RENAME's record will have.
    pub fn number(&self) -> u64 {
        self.intent.number
    }

    /// Notes that the RENAME was carried out, like [`Volume::changed`].
    pub fn carried_out(mut self, did: ChangeEffects<F::Kept>) -> Box<Pending<F>> {
        let mut pending = self.volume.pending(self.intent.number, self.way, did);
        pending.slot = self.slot.take().map(|slot| (self.slots.clone(), slot));
        self.ended = true;
        pending
    }
}

impl<F: Files> Drop for Announced<F> {
    fn drop(&mut self) {
        if let Some(slot) = self.slot.take() {
            // An intent that cannot be withdrawn does no harm: nothing is where it says.
            let _ = slot.withdraw();
            self.slots.give_back(slot);
        }
        let sequence = &self.volume.sequence;
        sequence.end_ahead(self.intent.number);
        if !self.ended {
            sequence.skip(self.intent.number);
        }
    }
}

impl<F: Files> Pending<F> {
    /// Returns the way in which the change becomes durable.
    pub fn way(&self) -> DurableBy {
        self.way
    }

    /// Returns the number of the change.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// Returns the record of the change, with the reply to its client.
    pub(crate) fn record(&mut self, reply: &[u8]) -> Record {
        let (number, filesystem) = (self.number, self.volume.number());
        let entries = std::mem::take(&mut self.bindings);
        if self.way != DurableBy::Each {
            let (objects, reply) = (std::mem::take(&mut self.objects), reply.into());
            return Record::Operation(Box::new(Operation { number, filesystem, entries, objects, reply }));
        }
        let made = self.made.take();
        let entry = |binding: forebay_oplog::Binding| {
            let made = made.filter(|_| binding.now.is_some());
            Entry { dir: binding.dir, name: binding.name, object: binding.now, made }
        };
        let entries: Entries = entries.into_iter().map(entry).collect();
        let confirmed = self.volume.sequence.confirmed();
        Record::Change(Box::new(Change { number, confirmed, filesystem, entries, answer: reply.into() }))
    }
}

impl<F: Files> Drop for Pending<F> {
    /// The change is durable, or there is no record of it.
    fn drop(&mut self) {
        let sequence = &self.volume.sequence;
        if !self.failed {
            sequence.durable(self.number);
        }
        if !self.recorded {
            sequence.skip(self.number);
        }
        if let Some((slots, slot)) = self.slot.take() {
            slots.give_back(slot);
        }
    }
}

#[cfg(test)]
mod tests;
