//! After a crash: a tree is made equal to the log. docs/metadata-log.md, "Recovery", has the design and this table.
//!
//! The log says that object X is under entry E, a name in directory D. "New": made by an operation that is not known to be
//! in the tree by the checkpoint or by an intent.
//!
//! | # | D | X | under E | X is new | then |
//! |---|---|---|---|---|---|
//! | 1 | there | there | X | - | nothing |
//! | 2 | there | there | nothing | - | X gets the name E |
//! | 3 | there | there | one that the log has elsewhere, or once had here | - | that one is detached; then as 2 |
//! | 4 | there | there | another one | - | that one is set aside; then as 2 |
//! | 5 | there | gone | nothing | yes | X is made anew, with an alias |
//! | 6 | there | gone | anything | yes | that is detached or set aside as in 3 and 4; then as 5 |
//! | 7 | there | gone | anything | no | nothing: E is dropped |
//! | 8 | gone | - | - | D is | D is made anew first |
//! | 9 | gone | - | - | D is not | nothing: E is dropped |
//!
//! | # | the log says that nothing is under E; under E is | then |
//! |---|---|---|
//! | 10 | nothing | nothing |
//! | 11 | one that the log once had here | it is detached, and removed unless it has a place elsewhere |
//! | 12 | another one | nothing |

mod carried_out;
mod decide;
mod fold;
mod names;
mod view;

use crate::Name;
use crate::identity::Identity;
use crate::object::Kind;
use crate::operation::Operation;
use crate::plant;
use crate::tree::Tree;
use carried_out::CarriedOut;
use fold::Fold;
use names::Names;
use view::View;

/// What came of a reconciliation. All that was logged has happened: the reply of every operation in the log is its client's.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// Identities that are known outside under others: (outside, in the file system).
    pub aliases: Vec<(Identity, Identity)>,
    /// The objects that were made or changed, by what they are called outside: their change times are those of the
    /// recovery.
    pub touched: Vec<Identity>,
    /// What was in the way and has another name now, for events.
    pub set_aside: Vec<SetAside>,
}

/// Something that the log does not know, under a name that it needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SetAside {
    /// What it is.
    pub object: Identity,
    /// The directory that it is in, as called outside.
    pub dir: Identity,
    /// The name that it has now.
    pub name: Name,
}

/// Makes the tree of one file system equal to the log, durably. `operations`: all of this file system that the log has, in its order;
/// `checkpoint`: those up to this number are in the tree already. To be called before anybody else looks at the tree; may
/// be cut anywhere and called again. Then a checkpoint up to the highest number in the log *and in the slots* has to be made
/// durable in the log before the slots are emptied, and both before clients are let in. No number up to that may be given out
/// again before the slots are empty durably.
///
/// # Errors
///
/// The tree's own; the tree may be anywhere between before and after.
pub fn reconcile<T: Tree>(
    tree: &mut T,
    operations: &[Operation],
    checkpoint: u64,
) -> Result<Outcome, T::Error> {
    let mut intents = tree.intents()?;
    if plant::active("intents are not read") {
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
    set_attributes(&mut view, &fold)?;
    let (aliases, touched) = view.finish()?;
    tree.sync()?;
    Ok(Outcome { aliases, touched, set_aside })
}

/// Last: each name that changes changes the times of its directory.
fn set_attributes<T: Tree>(view: &mut View<'_, T>, fold: &Fold) -> Result<(), T::Error> {
    if plant::active("attributes stay as they are") {
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
            // The bits of the group are worth nothing without the list that they are from.
            if let Some(given) = known.given.as_ref().filter(|_| now.mode != wanted.mode) {
                view.restrict(*object, given)?;
            }
            view.set(*object, &wanted)?;
        }
    }
    Ok(())
}
