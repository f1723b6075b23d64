//! The exports in service. Exports come and go while requests look them up, and a lookup takes no lock.

use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock};

use crate::export::Export;

/// The number of exports that may be added in service. Each keeps its place until the server stops, so further exports
/// wait for the next start.
const ADDED_MAX: usize = 1024;

/// All exports of a server in their order. A removed export keeps its place, and is passed over.
pub struct Exports {
    at_start: Box<[Arc<Export>]>,
    added: Place,
}

/// The place of an export that is added later.
type Place = OnceLock<Box<Added>>;

struct Added {
    export: Arc<Export>,
    next: Place,
}

impl Exports {
    pub(crate) fn new(exports: Vec<Arc<Export>>) -> Self {
        Exports { at_start: exports.into(), added: Place::new() }
    }

    /// Returns the exports in service.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<Export>> {
        self.at_start.iter().chain(self.added()).filter(|export| export.in_service.load(Ordering::Acquire))
    }

    /// Returns the export in service with this id.
    pub fn find(&self, id: u32) -> Option<&Arc<Export>> {
        self.iter().find(|export| export.id == id)
    }

    /// Returns the export that has this id now, or else the last one that had it.
    pub(crate) fn find_removed(&self, id: u32) -> Option<&Arc<Export>> {
        let all = self.at_start.iter().chain(self.added());
        self.find(id).or_else(|| all.filter(|export| export.id == id).last())
    }

    /// Returns the exports that were added in service, also those that were removed again.
    fn added(&self) -> impl Iterator<Item = &Arc<Export>> {
        let first = self.added.get();
        std::iter::successors(first, |added| added.next.get()).map(|added| &added.export)
    }

    /// Returns true if no further export may be added.
    pub(crate) fn is_full(&self) -> bool {
        self.added().count() >= ADDED_MAX
    }

    /// Adds an export. Requests find it from now on.
    pub(crate) fn add(&self, export: Arc<Export>) {
        let mut added = Box::new(Added { export, next: Place::new() });
        let mut place = &self.added;
        // Another thread may take the place at the same time.
        while let Err(refused) = place.set(added) {
            added = refused;
            let Some(taken) = place.get() else { continue };
            place = &taken.next;
        }
    }

    /// Takes the export with this id out of service. Requests that have found it already go on.
    pub(crate) fn remove(&self, id: u32) {
        self.find(id).into_iter().for_each(|export| export.in_service.store(false, Ordering::Release));
    }
}

impl<'a> IntoIterator for &'a Exports {
    type Item = &'a Arc<Export>;
    type IntoIter = Box<dyn Iterator<Item = &'a Arc<Export>> + 'a>;

    fn into_iter(self) -> Self::IntoIter {
        Box::new(self.iter())
    }
}
