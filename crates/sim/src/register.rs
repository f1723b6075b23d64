//! The possible values of a block, a size or a time, after the requests and answers so far.
//!
//! Operations form a partial order: an operation that began after another one was acknowledged comes after that one.
//! Every order that respects this is possible. An operation without an answer may or may not have happened. After a
//! crash, that also holds for operations that were not durable. But no operation is skipped: each one implies those
//! before it (P3).

use std::collections::BTreeMap;
use std::ops::Range;

use forebay_engine::io::Time;

use crate::stamp::{Runs, Stamp};

/// A possible value of a register, or a set of them.
pub trait Value: Clone + PartialEq {
    /// Returns true if this is exactly one value.
    fn is_one(&self) -> bool {
        true
    }
}

impl Value for u64 {}

impl Value for Time {}

/// The effect of an operation on a value.
pub trait Change<V>: Clone {
    /// Applies the change to a value.
    fn apply(&self, value: &mut V);

    /// Lets a value be with the change or without it. Returns false if the type has no such values.
    fn attempt(&self, _value: &mut V) -> bool {
        false
    }
}

/// A change of a block's contents.
#[derive(Clone, Debug)]
pub enum Overwrite {
    /// The block stays as it is.
    Nothing,
    /// Some bytes get this stamp.
    Bytes(Range<usize>, Stamp),
    /// The block gets these contents, as those of a block that it shares with another file.
    Block(Runs),
}

/// A change of a size.
#[derive(Clone, Debug)]
pub enum Resize {
    /// The size becomes at least this number of bytes.
    Extend(u64),
    /// The size becomes exactly this number of bytes.
    Set(u64),
}

impl Change<u64> for Resize {
    fn apply(&self, value: &mut u64) {
        *value = match self {
            Resize::Extend(size) => (*value).max(*size),
            Resize::Set(size) => *size,
        };
    }
}

impl Change<Time> for Time {
    fn apply(&self, value: &mut Time) {
        *value = *self;
    }
}

#[derive(Clone, Debug)]
struct Operation<C> {
    id: u32,
    change: C,
    /// Bits of the operations that come before this one.
    after: u64,
    /// Bits of the operations that began after this one had ended. This one happened before them or not at all.
    before: u64,
    /// The operation was answered, and not as failed.
    accepted: bool,
    running: bool,
    /// The operation must be visible.
    visible: bool,
    durable: bool,
    /// The operation was lost with the log. The engine may show it from its memory until a crash.
    in_memory: bool,
}

/// A reachable value, with the base that it grew from and the operations in it.
#[derive(Clone, Debug)]
struct State<V> {
    value: V,
    base: usize,
    mask: u64,
}

/// Values that were possible after a crash, with the operations in each, and the numbers of all operations.
type Survivors<V> = (Vec<(V, Vec<u32>)>, Vec<u32>);

/// The permanence of a seen value. A failed operation may nevertheless be in the backing store's page cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shaky {
    No,
    /// The value may be lost in any crash: the log that had it is lost, and it is in the engine's memory.
    UntilCrash,
    /// The value may be lost with the page cache in a power cut, not before (P5).
    UntilCut,
    /// Syncs fail, after which a page may be dropped at any time.
    Always,
}

/// The possible values of a block, a size or a time.
#[derive(Clone, Debug)]
pub struct Register<V, C> {
    base: Vec<V>,
    operations: Vec<Operation<C>>,
    /// Set from the last crash until it is known which operations survived.
    survivors: Option<Survivors<V>>,
    shaky: Shaky,
    /// With [`Shaky::UntilCut`]: all values that may be seen again after a power cut. With [`Shaky::UntilCrash`]: all
    /// values that may be seen again after a crash.
    under: Vec<V>,
    /// True if a value seen before its answer need not stay, since syncs of its page cache fail.
    pub lossy: bool,
    /// True if a seen value is durable in the log.
    pub logged: bool,
    /// The last frame that a durable operation needs.
    pub newest: u64,
}

/// The number of operations that fit in a register at a time.
pub const OPERATIONS: usize = 16;

impl<V: Value, C: Change<V>> Register<V, C> {
    /// Makes a register that holds `value`.
    pub fn new(value: V) -> Self {
        Register {
            base: vec![value],
            operations: Vec::new(),
            survivors: None,
            shaky: Shaky::No,
            under: Vec::new(),
            lossy: false,
            logged: false,
            newest: 0,
        }
    }

    /// Returns the number of operations that are not folded, and the number of those still running. A failed operation
    /// counts twice, since it doubles the possible values.
    pub fn load(&self) -> (usize, usize) {
        let count =
            |which: fn(&Operation<C>) -> bool| self.operations.iter().filter(|one| which(one)).count();
        (self.operations.len() + count(|one| !one.running && !one.accepted), count(|one| one.running))
    }

    /// Returns the known values, if every operation is folded.
    pub fn folded(&self) -> Option<&[V]> {
        self.operations.is_empty().then_some(&self.base)
    }

    /// Replaces the known values.
    pub fn set(&mut self, values: Vec<V>) {
        self.base = values;
        self.under.clear();
        self.operations.clear();
    }

    /// Sets a value that was found though it was not thought possible, for a good reason.
    pub fn found(&mut self, value: V) {
        if self.shaky != Shaky::Always {
            self.base.clear();
        }
        self.base.push(value);
    }

    /// Sets `value` after faults have destroyed the known values.
    pub fn forget(&mut self, value: V) {
        self.set(vec![value]);
        (self.survivors, self.shaky, self.newest) = (None, Shaky::No, 0);
    }

    /// Begins operation `id`.
    pub fn begin(&mut self, id: u32, change: C) {
        // A durable operation does not make those before it durable that are only in memory.
        let after = self.mask(|operation| (operation.accepted || operation.visible) && !operation.in_memory);
        let bit = 1 << self.operations.len();
        for operation in &mut self.operations {
            operation.before |= if operation.running { 0 } else { bit };
        }
        let new = Operation {
            id,
            change,
            after,
            before: 0,
            accepted: false,
            running: true,
            visible: false,
            durable: false,
            in_memory: false,
        };
        self.operations.push(new);
    }

    /// Replaces the effect of operation `id`, which becomes known only while the operation is carried out.
    pub fn revise(&mut self, id: u32, change: C) {
        if let Some(operation) = self.operations.iter_mut().find(|operation| operation.id == id) {
            operation.change = change;
        }
    }

    /// Ends operation `id`. It counts from now on as accepted, visible and durable, as the arguments say.
    pub fn acknowledge(&mut self, id: u32, accepted: bool, visible: bool, durable: bool) {
        if let Some(operation) = self.operations.iter_mut().find(|operation| operation.id == id) {
            operation.running = false;
            operation.accepted |= accepted;
            operation.visible |= visible || durable;
            operation.durable |= durable;
        }
    }

    /// Marks operation `id`, which was accepted, as lost. Later operations may survive: the log is lost, and clients
    /// learn of it. If the operation is `in_memory`, the engine may show it until a crash.
    pub fn lose(&mut self, id: u32, in_memory: bool) {
        let Some(at) = self.operations.iter().position(|operation| operation.id == id) else { return };
        let lost = &mut self.operations[at];
        if !lost.durable {
            (lost.running, lost.accepted, lost.visible) = (false, false, false);
            lost.in_memory = in_memory;
            self.operations.iter_mut().for_each(|operation| operation.after &= !(1 << at));
        }
    }

    /// Returns the operations that `which` accepts, as one bit for each index.
    fn mask(&self, which: impl Fn(&Operation<C>) -> bool) -> u64 {
        self.operations
            .iter()
            .enumerate()
            .filter(|(_, operation)| which(operation))
            .fold(0, |mask, (bit, _)| mask | 1 << bit)
    }

    /// Returns the operations that must be visible now.
    pub fn visible(&self) -> u64 {
        self.mask(|operation| operation.visible)
    }

    /// Returns every state that the operations may reach from one of `values`.
    fn reachable(&self, values: &[V]) -> Vec<State<V>> {
        let mut states: Vec<State<V>> = (values.iter().cloned().enumerate())
            .map(|(base, value)| State { value, base, mask: 0 })
            .collect();
        let mut known: BTreeMap<(usize, u64), Vec<usize>> = BTreeMap::new();
        let mut next = 0;
        while next < states.len() {
            for (bit, operation) in self.operations.iter().enumerate() {
                let State { base, mask, .. } = states[next];
                if mask & 1 << bit != 0 || operation.after & !mask != 0 || operation.before & mask != 0 {
                    continue;
                }
                let mut value = states[next].value.clone();
                operation.change.apply(&mut value);
                let mask = mask | 1 << bit;
                let alike = known.entry((base, mask)).or_default();
                if !alike.iter().any(|at| states[*at].value == value) {
                    alike.push(states.len());
                    states.push(State { value, base, mask });
                }
            }
            next += 1;
        }
        states
    }

    /// Returns the possible values for a reader that began when `visible` had to be seen already.
    pub fn possible(&self, visible: u64) -> Vec<V> {
        self.possible_from(&self.base, visible)
    }

    /// Returns the distinct values that the operations may lead to from the values in `base`. The operations in
    /// `visible` must have happened.
    fn possible_from(&self, base: &[V], visible: u64) -> Vec<V> {
        let mut values: Vec<V> = Vec::new();
        for state in self.reachable(base) {
            if state.mask & visible == visible && !values.contains(&state.value) {
                values.push(state.value);
            }
        }
        values
    }

    /// Notes that a reader found a value that `matches`. The reader began when `visible` had to be seen already. The
    /// known values narrow to the matching ones. Returns false if none was possible.
    pub fn observe(&mut self, visible: u64, matches: impl Fn(&V) -> bool) -> bool {
        self.narrow(visible, &matches, |value| if matches(value) { vec![value.clone()] } else { Vec::new() })
    }

    /// Does as [`Register::observe`] for values that are sets: `narrow` returns what of a value was found.
    pub fn narrow(
        &mut self,
        visible: u64,
        matches: impl Fn(&V) -> bool,
        narrow: impl Fn(&V) -> Vec<V>,
    ) -> bool {
        if self.operations.is_empty() {
            if !self.base.iter().any(&matches) {
                return false;
            }
            if self.shaky != Shaky::Always {
                self.base = self.base.iter().flat_map(&narrow).collect();
            }
        } else {
            let mut states = self.reachable(&self.base);
            states.retain(|state| state.mask & visible == visible && matches(&state.value));
            if states.is_empty() {
                return false;
            }
            let common = states.iter().fold(u64::MAX, |common, state| common & state.mask);
            for (bit, operation) in self.operations.iter_mut().enumerate() {
                let seen = common & 1 << bit != 0;
                operation.visible |= seen && self.shaky != Shaky::Always && !self.lossy;
                operation.durable |= seen && self.logged;
            }
        }
        if let Some((values, _)) = &mut self.survivors {
            let all = std::mem::take(values).into_iter();
            *values = all
                .flat_map(|(value, ids)| narrow(&value).into_iter().map(move |value| (value, ids.clone())))
                .collect();
        }
        true
    }

    /// Returns true if only one value is known to be possible.
    pub fn is_one(&self) -> bool {
        self.base.len() < 2 && self.base.iter().all(V::is_one)
    }

    /// Folds operations that are durable or have failed into the base. No reader may be active. Unless `logged`, failed
    /// operations may be in a page cache. If that cache is `lossy`, they may leave it at any time.
    pub fn fold(&mut self, logged: bool, lossy: bool) {
        if self.operations.is_empty() || self.operations.iter().any(|operation| operation.running) {
            return;
        }
        // Failed operations stay possible until a read shows whether they happened.
        if self.operations.iter().all(|operation| operation.durable || !operation.accepted) {
            let needed = self.mask(|operation| operation.durable);
            // Syncs do not make durable what is only in memory, and reads do not show what it hides.
            let hidden = match self.shaky {
                Shaky::UntilCrash => self.possible_from(&self.under, needed),
                _ => Vec::new(),
            };
            let failed = self.operations.iter().any(|operation| !operation.accepted);
            let always = match self.shaky {
                Shaky::Always => true,
                Shaky::UntilCrash => false,
                Shaky::No | Shaky::UntilCut => failed && lossy && !logged,
            };
            // Reads would not narrow the values again, so they are kept as sets where the type has them.
            let sets = if always { self.attempted() } else { None };
            self.base = sets.unwrap_or_else(|| self.possible(needed));
            let in_memory = self.operations.iter().any(|operation| operation.in_memory);
            // A durable operation makes everything before it durable: all bytes of a block, or the whole page cache of
            // a file.
            self.shaky = match self.shaky {
                Shaky::UntilCrash if hidden.iter().any(|value| !self.base.contains(value)) => {
                    Shaky::UntilCrash
                }
                _ if self.is_one() => Shaky::No,
                Shaky::Always => Shaky::Always,
                Shaky::UntilCrash => Shaky::UntilCrash,
                _ if !failed || logged => Shaky::No,
                _ if lossy => Shaky::Always,
                _ if in_memory => Shaky::UntilCrash,
                _ => Shaky::UntilCut,
            };
            self.under = match self.shaky {
                Shaky::UntilCut | Shaky::UntilCrash => self.base.clone(),
                Shaky::No | Shaky::Always => Vec::new(),
            };
            if self.shaky == Shaky::UntilCrash {
                self.under.extend(hidden);
            }
            self.operations.clear();
        }
    }

    /// Crashes: everything that is not durable may be lost, and with `power` the page cache too. Unless `logged`, an
    /// operation may also be in a page cache, and be lost later.
    pub fn crash(&mut self, logged: bool, power: bool) {
        self.survivors = None;
        if power || !self.operations.is_empty() || self.shaky == Shaky::UntilCrash {
            let under = std::mem::take(&mut self.under);
            let again: Vec<V> = under.into_iter().filter(|value| !self.base.contains(value)).collect();
            self.base.extend(again);
            self.shaky = if self.shaky == Shaky::Always { Shaky::Always } else { Shaky::No };
        }
        if self.operations.is_empty() {
            return;
        }
        let needed = self.mask(|operation| operation.durable);
        let ids: Vec<u32> = self.operations.iter().map(|operation| operation.id).collect();
        let states = self.reachable(&self.base).into_iter().filter(|state| state.mask & needed == needed);
        let values: Vec<(V, Vec<u32>)> = states
            .map(|state| {
                let bits = ids.iter().enumerate().filter(|(bit, _)| state.mask & 1 << bit != 0);
                (state.value, bits.map(|(_, id)| *id).collect())
            })
            .collect();
        self.base.clear();
        for (value, _) in &values {
            if !self.base.contains(value) {
                self.base.push(value.clone());
            }
        }
        self.shaky = if !self.is_one() && !logged { Shaky::Always } else { Shaky::No };
        self.survivors = Some((values, ids));
        self.operations.clear();
    }

    /// Returns, after a crash and some reads, the operations that certainly survived and those that certainly did not.
    pub fn verdict(&mut self) -> (Vec<u32>, Vec<u32>) {
        let Some((values, ids)) = self.survivors.take() else { return (Vec::new(), Vec::new()) };
        let in_all = |id: &u32| values.iter().all(|(_, applied)| applied.contains(id));
        let in_none = |id: &u32| values.iter().all(|(_, applied)| !applied.contains(id));
        (ids.iter().copied().filter(in_all).collect(), ids.iter().copied().filter(in_none).collect())
    }
}

mod attempts;
#[cfg(test)]
mod tests;
