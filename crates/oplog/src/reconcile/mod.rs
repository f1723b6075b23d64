//! Makes a tree equal to the log after a crash. docs/metadata-log.md, "Recovery", has the design and the table below.
//!
//! The log says that object X is under entry E, a name in directory D. "New": made by an operation that neither the
//! checkpoint nor an intent proves to be in the tree.
//!
//! | # | D | X | under E | X is new | then |
//! |---|---|---|---|---|---|
//! | 1 | there | there | X | - | nothing |
//! | 2 | there | there | nothing | - | X gets the name E |
//! | 3 | there | there | an object that the log has elsewhere, or once had here | - | it is detached; then as 2 |
//! | 4 | there | there | another object | - | that object is set aside; then as 2 |
//! | 5 | there | gone | nothing | yes | X is recreated, with an alias |
//! | 6 | there | gone | anything | yes | that object is detached or set aside as in 3 and 4; then as 5 |
//! | 7 | there | gone | anything | no | nothing: E is dropped |
//! | 8 | gone | - | - | D is | D is recreated first |
//! | 9 | gone | - | - | D is not | nothing: E is dropped |
//!
//! | # | the log says that nothing is under E; under E is | then |
//! |---|---|---|
//! | 10 | nothing | nothing |
//! | 11 | an object that the log once had here | it is detached, and removed unless it has a place elsewhere |
//! | 12 | another object | nothing |

mod carried_out;
mod decide;
mod fold;
mod names;
mod view;

use crate::Name;
use crate::identity::Identity;
use crate::object::Kind;
use crate::operation::Operation;
use crate::planted_bugs;
use crate::spent::made_and_removed;
use crate::tree::Tree;
use carried_out::CarriedOut;
use fold::Fold;
use names::Names;
use view::View;

/// The result of a reconciliation. All logged operations have happened: the server may send the reply of each one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// Objects that clients know by another identity: (known to clients, in the file system).
    pub aliases: Vec<(Identity, Identity)>,
    /// The objects that were made or changed, by the identity that clients know. Their change times are those of the
    /// recovery.
    pub touched: Vec<Identity>,
    /// The objects that were in the way and have another name now, for events.
    pub set_aside: Vec<SetAside>,
}

/// An object that was under a name that the log needs, and that the log does not know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SetAside {
    /// The object.
    pub object: Identity,
    /// The directory that the object is in, by the identity that clients know.
    pub dir: Identity,
    /// The name that the object has now.
    pub name: Name,
}

/// Makes the tree of one file system equal to the log, durably. `operations` are all operations of this file system in
/// the log, in its order. The tree already holds the operations up to `checkpoint`.
///
/// Call it before any client or thread reads the tree. It may be interrupted anywhere and called again. Afterwards the
/// caller takes these steps in this order:
///
/// 1. Makes a checkpoint durable in the log, up to the highest number in the log *and in the slots*.
/// 2. Empties the slots, durably. Until then no number up to the checkpoint may be given out again.
/// 3. Admits clients.
///
/// # Errors
///
/// Fails with the tree's own errors. The tree may then be anywhere between its states before and after.
pub fn reconcile<T: Tree>(
    tree: &mut T,
    operations: &[Operation],
    checkpoint: u64,
) -> Result<Outcome, T::Error> {
    // Before anything is made, which may get such an identity.
    spend(tree, operations.iter().filter(|operation| operation.number > checkpoint))?;
    let mut intents = tree.intents()?;
    if planted_bugs::active("intents are not read") {
        intents.clear();
    }
    let carried_out = CarriedOut::of(&intents, operations);
    let behind = operations.iter().filter(|operation| operation.number > checkpoint);
    let fold = Fold::of(behind, |operation| carried_out.has(operation));
    let mut view = View::new(tree)?;
    let decided = decide::decide(&mut view, &fold)?;
    let mut names = Names { view, fold: &fold, decided: &decided, set_aside: Vec::new() };
    names.detach()?;
    names.make()?;
    names.attach()?;
    names.clear()?;
    let Names { mut view, set_aside, .. } = names;
    keep_identities(&mut view, operations)?;
    set_attributes(&mut view, &fold)?;
    let (aliases, touched) = view.finish()?;
    // The objects that only this recovery has removed. Another recovery would find them gone.
    spend(tree, operations.iter().filter(|operation| operation.number > checkpoint))?;
    tree.sync()?;
    Ok(Outcome { aliases, touched, set_aside })
}

/// Lets the identities of objects that were made and removed since the checkpoint be spent. A power cut may have taken
/// back both, with the generation of the inode number. An object that is there was not made since the
/// power cut. It is the object itself, whose removal was lost, or which has a name that the log does not know.
fn spend<'a, T: Tree>(tree: &mut T, behind: impl Iterator<Item = &'a Operation>) -> Result<(), T::Error> {
    if planted_bugs::active("identities that were made and removed are not spent") {
        return Ok(());
    }
    let mut gone = Vec::new();
    for object in made_and_removed(behind) {
        let known = object.is_made_up() || tree.is_spent(&object);
        let is_there = !known && tree.attributes(object)?.is_some() && !tree.is_own(object)?;
        if !known && (!is_there || planted_bugs::active("an identity is spent although its object is there"))
        {
            gone.push(object);
        }
    }
    if gone.is_empty() { Ok(()) } else { tree.spend(gone) }
}

/// Lets objects keep the identities that clients know, where a recreated object shows their inode number. The file
/// system gave the number to one of the two when it removed the other one.
fn keep_identities<T: Tree>(view: &mut View<'_, T>, operations: &[Operation]) -> Result<(), T::Error> {
    let objects = operations.iter().flat_map(|operation| &operation.objects).map(|object| object.identity);
    let named = operations.iter().flat_map(|operation| &operation.entries);
    let named = named.flat_map(|entry| [entry.was, entry.now]).flatten();
    for object in objects.chain(named) {
        if view.is_shown_by_another(&object) && view.attributes(object)?.is_some() {
            view.keep(object)?;
        }
    }
    Ok(())
}

/// Sets the attributes. This comes last, since each change of a name changes the times of its directory.
fn set_attributes<T: Tree>(view: &mut View<'_, T>, fold: &Fold) -> Result<(), T::Error> {
    if planted_bugs::active("attributes stay as they are") {
        return Ok(());
    }
    for (object, known) in &fold.objects {
        let Some(now) = view.attributes(*object)? else { continue };
        let mut wanted = known.attributes;
        if !known.set {
            (wanted.mode, wanted.uid, wanted.gid) = (now.mode, now.uid, now.gid);
        }
        if now.kind == Kind::Symlink {
            wanted.mode = now.mode;
        }
        if now != wanted {
            // The group bits of the mode are meaningless without the access control list that belongs to them.
            if let Some(given) = known.given.as_ref().filter(|_| now.mode != wanted.mode) {
                view.restrict(*object, given)?;
            }
            view.set(*object, &wanted)?;
        }
    }
    Ok(())
}
