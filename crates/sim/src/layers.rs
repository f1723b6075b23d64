//! A block's possible contents, as certain runs under overwrites that may have happened.
//!
//! Every failed overwrite doubles the number of possible contents, and they stay possible while syncs fail. As layers,
//! they take space in proportion to the number of these overwrites.

use std::ops::Range;

use crate::register::{Change, Overwrite, Value};
use crate::stamp::{Runs, Stamp, matches};

/// An overwrite that may have happened, less what certain overwrites have covered since.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Layer {
    stamp: Stamp,
    ranges: Vec<Range<usize>>,
}

/// A set of possible contents: the runs, with any of the layers on top, in their order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layered {
    runs: Runs,
    /// The lowest layer is the first.
    layers: Vec<Layer>,
}

/// The choice about one layer that explains what a reader found.
#[derive(Clone, Copy, Debug)]
enum Choice {
    /// No byte of the layer was found, and none was missed.
    Open,
    Happened,
    Absent,
}

/// The most choices that a narrowing tries. Beyond that the contents stay as wide as they were.
const CHOICES: usize = 10_000;

/// The search for all choices that explain what a reader found.
struct Search<'a, F> {
    of: &'a Layered,
    /// The range that was read.
    seen: Range<usize>,
    /// Returns true if the read found these bytes of this stamp.
    holds: F,
    steps: usize,
    found: Vec<Layered>,
}

/// Returns the parts of `ranges` that lie in `within`.
fn common(ranges: &[Range<usize>], within: &[Range<usize>]) -> Vec<Range<usize>> {
    let cross = |one: &Range<usize>| {
        let one = one.clone();
        within.iter().map(move |other| one.start.max(other.start)..one.end.min(other.end))
    };
    ranges.iter().flat_map(cross).filter(|range| !range.is_empty()).collect()
}

/// Returns `ranges` without `hole`.
fn without(ranges: &[Range<usize>], hole: &Range<usize>) -> Vec<Range<usize>> {
    let around = |one: &Range<usize>| [one.start..one.end.min(hole.start), one.start.max(hole.end)..one.end];
    let sides = ranges.iter().flat_map(around);
    sides.filter(|range| !range.is_empty()).collect()
}

/// Returns `ranges` without all of `holes`.
fn without_all(ranges: &[Range<usize>], holes: &[Range<usize>]) -> Vec<Range<usize>> {
    holes.iter().fold(ranges.to_vec(), |left, hole| without(&left, hole))
}

impl From<Runs> for Layered {
    fn from(runs: Runs) -> Self {
        Layered { runs, layers: Vec::new() }
    }
}

impl Value for Layered {
    fn is_one(&self) -> bool {
        self.layers.is_empty()
    }
}

impl Change<Layered> for Overwrite {
    fn apply(&self, value: &mut Layered) {
        match self {
            Overwrite::Nothing => {}
            Overwrite::Bytes(range, stamp) => value.apply(range, *stamp),
            Overwrite::Block(runs) => *value = runs.clone().into(),
        }
    }

    fn attempt(&self, value: &mut Layered) -> bool {
        match self {
            Overwrite::Nothing => {}
            Overwrite::Bytes(range, stamp) => value.attempt(range, *stamp),
            Overwrite::Block(runs) => {
                let mut runs = runs.iter();
                // Several layers would be independent of each other.
                let (Some((range, stamp)), None) = (runs.next(), runs.next()) else { return false };
                value.attempt(&range, stamp);
            }
        }
        true
    }
}

impl Layered {
    /// Overwrites the bytes of `range`.
    pub fn apply(&mut self, range: &Range<usize>, stamp: Stamp) {
        if range.is_empty() {
            return;
        }
        for layer in &mut self.layers {
            layer.ranges = without(&layer.ranges, range);
        }
        self.layers.retain(|layer| !layer.ranges.is_empty());
        self.runs.apply(range, stamp);
    }

    /// Overwrites the bytes of `range`, or not: both are possible from now on.
    pub fn attempt(&mut self, range: &Range<usize>, stamp: Stamp) {
        let ranges = vec![range.clone()];
        if !range.is_empty() && !self.repeats(&ranges, stamp) {
            self.layers.push(Layer { stamp, ranges });
        }
    }

    /// Returns true if another layer with these bytes makes no other contents possible.
    fn repeats(&self, ranges: &[Range<usize>], stamp: Stamp) -> bool {
        for layer in self.layers.iter().rev() {
            if layer.stamp == stamp && layer.ranges == ranges {
                return true;
            }
            // The new layer could as well lie under one of the same stamp, or one with other bytes.
            if layer.stamp != stamp && !common(&layer.ranges, ranges).is_empty() {
                return false;
            }
        }
        self.runs.iter().all(|(run, owner)| owner == stamp || common(&[run], ranges).is_empty())
    }

    /// Returns true if `bytes`, the block's bytes from `start` on, are possible.
    pub fn matches(&self, bytes: &[u8], start: usize) -> bool {
        if self.layers.is_empty() {
            return self.runs.matches(bytes, start);
        }
        let holds = |part: &Range<usize>, stamp| {
            matches(&bytes[part.start - start..part.end - start], part.start, stamp)
        };
        let seen = start..start + bytes.len();
        let mut left = vec![seen];
        for layer in self.layers.iter().rev() {
            let here = common(&layer.ranges, &left);
            // A layer that explains bytes leaves fewer to those under it, so it need not be left out.
            if here.iter().all(|part| holds(part, layer.stamp)) {
                left = without_all(&left, &here);
            }
        }
        self.holds_under(&left, &holds)
    }

    /// Returns one of the possible contents that a block with these bytes may have. None if the bytes are impossible.
    pub fn explain(&self, bytes: &[u8]) -> Option<Runs> {
        let holds = |part: &Range<usize>, stamp| matches(&bytes[part.clone()], part.start, stamp);
        let all = 0..bytes.len();
        let mut left = vec![all];
        let mut runs = self.runs.clone();
        let mut happened = Vec::new();
        for layer in self.layers.iter().rev() {
            let here = common(&layer.ranges, &left);
            if here.iter().all(|part| holds(part, layer.stamp)) {
                left = without_all(&left, &here);
                happened.push((here, layer.stamp));
            }
        }
        happened.iter().for_each(|(parts, stamp)| parts.iter().for_each(|part| runs.apply(part, *stamp)));
        self.holds_under(&left, &holds).then_some(runs)
    }

    /// Returns true if the certain runs have the bytes of `ranges`.
    fn holds_under(&self, ranges: &[Range<usize>], holds: &impl Fn(&Range<usize>, Stamp) -> bool) -> bool {
        self.runs.iter().all(|(run, owner)| common(&[run], ranges).iter().all(|part| holds(part, owner)))
    }

    /// Returns the possible contents that have `bytes` from `start` on.
    pub fn narrow(&self, bytes: &[u8], start: usize) -> Vec<Layered> {
        if !self.matches(bytes, start) {
            return Vec::new();
        }
        let holds = |part: &Range<usize>, stamp| {
            matches(&bytes[part.start - start..part.end - start], part.start, stamp)
        };
        let seen = start..start + bytes.len();
        let mut search = Search { of: self, seen: seen.clone(), holds, steps: 0, found: Vec::new() };
        search.choose(&[seen], &mut Vec::new());
        if search.steps > CHOICES { vec![self.clone()] } else { search.found }
    }
}

impl<F: Fn(&Range<usize>, Stamp) -> bool> Search<'_, F> {
    /// Chooses about the layers under those in `chosen`, which begins with the top one. The bytes of `left` are not
    /// explained yet.
    fn choose(&mut self, left: &[Range<usize>], chosen: &mut Vec<Choice>) {
        self.steps += 1;
        if self.steps > CHOICES {
            return;
        }
        let Some(layer) = self.of.layers.iter().rev().nth(chosen.len()) else {
            if self.of.holds_under(left, &self.holds) {
                let contents = self.contents(chosen);
                if !self.found.contains(&contents) {
                    self.found.push(contents);
                }
            }
            return;
        };
        let here = common(&layer.ranges, left);
        let holds = here.iter().all(|part| (self.holds)(part, layer.stamp));
        if here.is_empty() {
            self.go_on(left, chosen, Choice::Open);
            return;
        }
        if holds {
            self.go_on(&without_all(left, &here), chosen, Choice::Happened);
        }
        // Without bytes beyond the read, the layer makes no difference if the layers under it have the same bytes.
        if !holds || !without(&layer.ranges, &self.seen).is_empty() {
            self.go_on(left, chosen, Choice::Absent);
        }
    }

    fn go_on(&mut self, left: &[Range<usize>], chosen: &mut Vec<Choice>, choice: Choice) {
        chosen.push(choice);
        self.choose(left, chosen);
        chosen.pop();
    }

    /// Returns the contents that remain possible with these choices, of which the first is about the top layer.
    fn contents(&self, chosen: &[Choice]) -> Layered {
        let mut contents = Layered::from(self.of.runs.clone());
        for (layer, choice) in self.of.layers.iter().zip(chosen.iter().rev()) {
            match choice {
                Choice::Open => contents.layers.push(layer.clone()),
                Choice::Happened => layer.ranges.iter().for_each(|part| contents.apply(part, layer.stamp)),
                Choice::Absent => {}
            }
        }
        contents
    }
}

#[cfg(test)]
mod tests;
