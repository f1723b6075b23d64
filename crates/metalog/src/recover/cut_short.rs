//! Finds the changes that a killed server had carried out without a record; the table is in [the crate's
//! documentation](crate#a-change-in-progress-when-a-server-was-killed).

use std::collections::{BTreeSet, HashMap, HashSet};

use forebay_oplog::{Binding, Change, Entries, Identity, LogContents, Operation};

use super::Name;

/// A change that a killed server may have carried out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CutShort {
    /// The operation with its reply, and no inodes. An entry that leads from nothing to nothing leads to an inode that
    /// the operation creates.
    pub operation: Operation,
    /// The number of bytes of the reply that are the key of the request.
    pub key: usize,
}

impl CutShort {
    /// Returns true if the change takes several system calls, of which the first one shows. Then the reply is the key.
    pub fn in_several_calls(&self) -> bool {
        self.operation.reply.len() == self.key
    }
}

/// Returns the changes that a killed server carried out without a record. `leads_to` returns the inode that a name
/// leads to, or an error if that cannot be found out.
pub(super) fn carried_out<E>(
    found: &LogContents,
    cut_short: &[CutShort],
    mut leads_to: impl FnMut(u32, &Binding) -> Result<Option<Identity>, E>,
) -> Vec<CutShort> {
    if cut_short.is_empty() {
        return Vec::new();
    }
    let operations = found.operations.values().flatten();
    let replies = operations.map(|it| &it.reply).chain(found.changes.values().map(|it| &it.answer));
    // The replies of released records are among the states of clients.
    let logged: BTreeSet<&[u8]> = replies.chain(found.states.values()).map(|reply| &**reply).collect();
    let has_record = |it: &CutShort| {
        let key = &it.operation.reply[..it.key];
        logged.range(key..).next().is_some_and(|reply| reply.starts_with(key))
    };
    let last_words = last_words(found, cut_short);
    let mut later = HashSet::<Name>::new();
    let mut carried_out = Vec::new();
    for it in cut_short.iter().rev() {
        let mut so = |entry: &Binding| {
            let name = name(&it.operation, entry);
            // What is where the log says was there before.
            let is_of_log =
                |there: Option<Identity>| there.is_some() && last_words.get(&name) == Some(&there);
            let is_right = |there| is_done(entry, there) && !is_of_log(there);
            later.contains(&name) || leads_to(it.operation.filesystem, entry).is_ok_and(is_right)
        };
        if !has_record(it) && it.operation.entries.iter().all(&mut so) {
            carried_out.push(it.clone());
        }
        later.extend(names(&it.operation).map(|(name, _)| name));
    }
    carried_out.reverse();
    carried_out
}

/// Returns true if a name that leads `there` does so as after the change. A change that names no inode before or after
/// has made one, so the name must lead to some inode.
fn is_done(entry: &Binding, there: Option<Identity>) -> bool {
    match (entry.was, entry.now) {
        (_, Some(now)) => there == Some(now),
        (Some(was), None) => there != Some(was),
        (None, None) => there.is_some(),
    }
}

fn name(operation: &Operation, entry: &Binding) -> Name {
    (operation.filesystem, entry.dir, entry.name.clone())
}

/// Returns the inodes that the names of these changes lead to according to the log.
fn last_words(found: &LogContents, cut_short: &[CutShort]) -> HashMap<Name, Option<Identity>> {
    let asked = cut_short.iter().flat_map(|it| names(&it.operation));
    let asked: HashSet<Name> = asked.map(|(name, _)| name).collect();
    let logged = found.operations.values().flatten().flat_map(names);
    logged.filter(|(name, _)| asked.contains(name)).collect()
}

/// Returns the names of a change, and the inodes that they lead to after it.
fn names(operation: &Operation) -> impl Iterator<Item = (Name, Option<Identity>)> {
    operation.entries.iter().map(|entry| (name(operation, entry), entry.now))
}

/// Returns the change that makes a carried-out operation's answer known. Nothing else is to be logged of it.
pub(super) fn answered(number: u64, operation: Operation) -> Change {
    let Operation { filesystem, reply: answer, .. } = operation;
    Change { number, confirmed: 0, filesystem, entries: Entries::new(), answer }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_oplog::IDENTITY_MAX;

    fn handle(n: u8) -> Identity {
        Identity { kind: 1, len: 1, bytes: [n; IDENTITY_MAX] }
    }

    /// Returns changes 1, 2, ... without a record, of names in one directory: for each name the inodes before and
    /// after, where 0 is none. The key of each change is its name's first letter.
    fn cut_short(changes: &[&[(&str, u8, u8)]]) -> Vec<CutShort> {
        let object = |n: u8| (n > 0).then(|| handle(n));
        let entry = |(name, was, now): &(&str, u8, u8)| Binding {
            dir: handle(1),
            name: name.as_bytes().into(),
            was: object(*was),
            now: object(*now),
        };
        let change = |(number, entries): (u64, &&[(&str, u8, u8)])| {
            let (entries, reply) = (entries.iter().map(entry).collect(), entries[0].0.as_bytes().into());
            let operation = Operation { number, filesystem: 3, entries, objects: Vec::new(), reply };
            CutShort { operation, key: 1 }
        };
        (1..).zip(changes).map(change).collect()
    }

    /// Returns the numbers of the changes that count as carried out if the directory has these names.
    fn done(found: &LogContents, changes: &[&[(&str, u8, u8)]], there: &[(&str, u8)]) -> Vec<u64> {
        let leads_to = |_, entry: &Binding| {
            let there = there.iter().find(|(name, _)| name.as_bytes() == &entry.name[..]);
            Ok::<_, ()>(there.map(|(_, object)| handle(*object)))
        };
        carried_out(found, &cut_short(changes), leads_to).iter().map(|it| it.operation.number).collect()
    }

    #[test]
    fn what_is_found_done_was_carried_out() {
        let none = LogContents::default();
        let removal: &[_] = &[("a", 1, 0)];
        assert_eq!(done(&none, &[removal], &[("a", 1)]), []);
        assert_eq!(done(&none, &[removal], &[]), [1]);
        assert_eq!(done(&none, &[removal], &[("a", 2)]), [1], "the name is another's");
        let made: &[_] = &[("a", 0, 0)];
        assert_eq!(done(&none, &[made], &[]), []);
        assert_eq!(done(&none, &[made], &[("a", 1)]), [1]);
        let linked: &[_] = &[("a", 0, 1)];
        assert_eq!(done(&none, &[linked], &[]), []);
        assert_eq!(done(&none, &[linked], &[("a", 2)]), []);
        assert_eq!(done(&none, &[linked], &[("a", 1)]), [1]);
        let renamed: &[_] = &[("a", 1, 0), ("b", 2, 1)];
        assert_eq!(done(&none, &[renamed], &[("a", 1), ("b", 2)]), []);
        assert_eq!(done(&none, &[renamed], &[("b", 1)]), [1]);
        assert_eq!(done(&none, &[renamed], &[("a", 1), ("b", 1)]), [], "only in part");
    }

    #[test]
    fn what_another_change_of_the_name_came_after_was_carried_out() {
        let none = LogContents::default();
        let changes: &[&[_]] = &[&[("a", 0, 0)], &[("a", 1, 0), ("b", 0, 1)], &[("b", 1, 0)]];
        assert_eq!(done(&none, changes, &[]), [1, 2, 3]);
        assert_eq!(done(&none, changes, &[("b", 1)]), [1, 2]);
        assert_eq!(done(&none, &changes[..2], &[("a", 1)]), [1]);
    }

    #[test]
    fn what_recovery_has_put_there_was_not_made_by_a_change_without_a_record() {
        let logged = |(number, now): (u64, &u8)| {
            let now = (*now > 0).then(|| handle(*now));
            let entry = Binding { dir: handle(1), name: b"a"[..].into(), was: None, now };
            let (entries, objects, reply) = ([entry].into_iter().collect(), Vec::new(), Box::default());
            Operation { number, filesystem: 3, entries, objects, reply }
        };
        let found = |leads_to: &[u8]| {
            let operations = (1..).zip(leads_to).map(logged).collect();
            LogContents { operations: [(3, operations)].into(), ..LogContents::default() }
        };
        let made: &[_] = &[("a", 0, 0)];
        assert_eq!(done(&found(&[5, 0]), &[made], &[("a", 6)]), [1]);
        assert_eq!(done(&found(&[0, 5]), &[made], &[("a", 6)]), [1]);
        assert_eq!(done(&found(&[0, 5]), &[made], &[("a", 5)]), []);
    }

    #[test]
    fn what_has_its_answer_in_the_log_has_a_record() {
        let found = |answer: &[u8]| {
            let change = Change {
                number: 1,
                confirmed: 0,
                filesystem: 3,
                entries: Entries::new(),
                answer: answer.into(),
            };
            LogContents { changes: [(1, change)].into(), ..LogContents::default() }
        };
        let removals: &[&[_]] = &[&[("a", 1, 0)], &[("b", 1, 0)]];
        assert_eq!(done(&found(b"c"), removals, &[]), [1, 2]);
        assert_eq!(done(&found(b"a reply"), removals, &[]), [2]);
        assert_eq!(done(&found(b"b"), removals, &[]), [1]);
    }
}
