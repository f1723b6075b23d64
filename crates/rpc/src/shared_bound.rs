//! The number of requests in flight that busy addresses share while a light address is active.
//!
//! A larger number keeps more disks and cache devices busy, and a light address's requests wait longer behind these
//! requests. Neither the number of devices nor their queues are known here, so the number is found by trial. First the
//! busy addresses share the least, for a window of some requests of each light address. The mean time of these requests
//! is the base. Then the number doubles, as long as the light addresses' requests take no longer than [`LIMIT`] times
//! their base, and halves when they do. Adaptive concurrency limits (TCP Vegas, PARDA, blk-iolatency) work alike.
//!
//! A light address that waits for other devices than the busy ones takes as long at every number, so it bounds nothing.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// The least number, at which the base is measured.
pub(crate) const LEAST: usize = 2;
/// How much longer than their base the requests of a light address may take, in quarters.
const LIMIT: u64 = 5;
/// The answers of each light address in a window.
const WINDOW: u64 = 32;
/// The answers from which on a mean is a base.
const FEW: u64 = 8;
/// The fewest reviews of a window: a moment without a processor is not what a queue does.
const FEWEST_REVIEWS: u32 = 4;
/// The most reviews of a window. Light addresses with fewer answers are then judged by those.
const MOST_REVIEWS: u32 = 20;
/// The windows for which a number stays before the base is measured again.
const STAY: u32 = 16;

/// The times of one address's requests in flight.
#[derive(Default)]
pub(crate) struct Times {
    /// The number of the window in progress; 0 measures nothing, and reads no clock.
    window: AtomicU32,
    answers: AtomicU64,
    /// The sum of the times of the answered requests of the window, in nanoseconds.
    nanos: AtomicU64,
    /// The mean time of a request while busy addresses share the least, in nanoseconds; 0 if it is not known.
    base: AtomicU64,
    /// The search that the base is of.
    search: AtomicU32,
}

/// The beginning of a request whose time counts.
#[derive(Clone, Copy)]
pub(crate) struct Begun {
    at: Instant,
    window: u32,
}

impl Times {
    /// Begins a request. Returns none if no window is in progress.
    pub(crate) fn begin(&self) -> Option<Begun> {
        let window = self.window.load(Relaxed);
        (window > 0).then(|| Begun { at: Instant::now(), window })
    }

    /// Ends a request.
    pub(crate) fn end(&self, begun: Begun) {
        self.count(begun.window, begun.at.elapsed());
    }

    /// Counts a request that began in a window. A request of an earlier window had other requests before it.
    fn count(&self, window: u32, time: Duration) {
        if self.window.load(Relaxed) == window {
            self.answers.fetch_add(1, Relaxed);
            self.nanos.fetch_add(time.as_nanos() as u64, Relaxed);
        }
    }

    /// Begins a window of a search, or ends measuring with window 0. The base of another search is forgotten.
    fn open(&self, window: u32, search: u32) {
        if self.search.swap(search, Relaxed) != search {
            self.base.store(0, Relaxed);
        }
        self.window.store(window, Relaxed);
        self.answers.store(0, Relaxed);
        self.nanos.store(0, Relaxed);
    }

    /// Returns the result of the window so far against the base.
    fn judge(&self) -> Verdict {
        let [base, answers, nanos] = [&self.base, &self.answers, &self.nanos].map(|n| n.load(Relaxed));
        // A sum beyond what a whole window may have needs no further answers.
        let allowed = base.saturating_mul(LIMIT) / 4;
        match answers {
            _ if base > 0 && nanos > allowed.saturating_mul(answers.max(WINDOW)) => Verdict::Longer,
            WINDOW.. => Verdict::Alike,
            _ => Verdict::Open,
        }
    }

    /// Returns true if a request of the window was answered.
    fn has_answers(&self) -> bool {
        self.answers.load(Relaxed) > 0
    }

    /// Makes the window's mean the base, together with the base before. Returns false if no base is known.
    fn settle(&self) -> bool {
        let [base, answers, nanos] = [&self.base, &self.answers, &self.nanos].map(|n| n.load(Relaxed));
        if answers >= FEW {
            let mean = (nanos / answers).max(1);
            self.base.store(if base == 0 { mean } else { base.midpoint(mean) }, Relaxed);
        }
        self.base.load(Relaxed) > 0
    }
}

/// The result of a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    /// More answers are needed.
    Open,
    /// The requests of light addresses took about as long as their base.
    Alike,
    /// The requests of a light address took too long.
    Longer,
}

/// The step of the search.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// The busy addresses share the least, and the base is measured.
    Base,
    /// The number doubles after each window.
    Climb,
    /// The number stays for this number of windows more.
    Stay(u32),
}

/// The search for the number.
pub(crate) struct SharedBound {
    step: Step,
    number: usize,
    /// The window in progress, or the last one.
    window: u32,
    /// The reviews since the number changed, or since the window began.
    reviews: u32,
    is_open: bool,
    /// The number of this search.
    search: u32,
}

impl Default for SharedBound {
    fn default() -> Self {
        Self { step: Step::Base, number: LEAST, window: 0, reviews: 0, is_open: false, search: 1 }
    }
}

impl SharedBound {
    /// Returns the number in force, at most `most`.
    pub(crate) fn number(&self, most: usize) -> usize {
        if self.step == Step::Base { LEAST.min(most) } else { self.number.min(most) }
    }

    /// Ends the search while no light address is active beside a busy one. The next search begins with the base.
    pub(crate) fn rest<'a>(&mut self, all: impl Iterator<Item = &'a Times>) {
        self.search = self.search.wrapping_add(1);
        all.for_each(|times| times.open(0, self.search));
        (self.step, self.reviews, self.is_open) = (Step::Base, 0, false);
    }

    /// Reviews the times of the light addresses. `is_drained` is true if the busy addresses have about as few requests
    /// in flight as they may have. `is_short` is true if a busy address had to wait.
    pub(crate) fn review(&mut self, light: &[&Times], most: usize, is_drained: bool, is_short: bool) {
        self.reviews += 1;
        if !self.is_open {
            if is_drained || self.reviews > MOST_REVIEWS {
                self.window = self.window.checked_add(1).unwrap_or(1);
                (self.is_open, self.reviews) = (true, 0);
            }
            let window = if self.is_open { self.window } else { 0 };
            light.iter().for_each(|times| times.open(window, self.search));
            return;
        }
        if self.reviews < FEWEST_REVIEWS {
            return;
        }
        // An address that became light during the window is measured from the next one on.
        let measured = || light.iter().copied().filter(|times| times.window.load(Relaxed) == self.window);
        let verdict = match verdict(measured().map(Times::judge)) {
            Verdict::Longer if self.step == Step::Base => Verdict::Open,
            // An address without any answer may wait behind the busy ones.
            Verdict::Open if self.reviews >= MOST_REVIEWS && measured().all(Times::has_answers) => {
                Verdict::Alike
            }
            verdict => verdict,
        };
        let is_over = match self.step {
            _ if verdict == Verdict::Open => false,
            Step::Base => measured().filter(|times| times.settle()).count() > 0,
            _ => true,
        };
        if is_over {
            (self.step, self.number) = next(self.step, self.number, verdict, is_short && self.number < most);
            (self.is_open, self.reviews) = (false, 0);
        }
    }
}

/// Returns the verdict on all light addresses: the worst one, once no address needs more answers.
fn verdict(each: impl Iterator<Item = Verdict>) -> Verdict {
    let mut all = None;
    for verdict in each {
        all = match (all, verdict) {
            (_, Verdict::Longer) => return Verdict::Longer,
            (Some(Verdict::Open), _) | (_, Verdict::Open) => Some(Verdict::Open),
            (_, Verdict::Alike) => Some(Verdict::Alike),
        };
    }
    all.unwrap_or(Verdict::Open)
}

/// Returns the step and the number after a window. `may_climb` is true if more requests in flight are allowed and
/// wanted.
fn next(step: Step, number: usize, verdict: Verdict, may_climb: bool) -> (Step, usize) {
    match (step, verdict) {
        (step, Verdict::Open) => (step, number),
        (Step::Base, _) => (Step::Climb, number.max(2 * LEAST)),
        (Step::Climb, Verdict::Longer) => (Step::Stay(STAY), (number / 2).max(LEAST)),
        // The base may be outdated, so the next one is not put off.
        (Step::Stay(0), Verdict::Longer) => (Step::Base, (number / 2).max(LEAST)),
        (Step::Stay(left), Verdict::Longer) => (Step::Stay(left - 1), (number / 2).max(LEAST)),
        (Step::Climb, Verdict::Alike) if may_climb => (Step::Climb, 2 * number),
        (Step::Climb, Verdict::Alike) => (Step::Stay(STAY), number),
        (Step::Stay(0), Verdict::Alike) => (Step::Base, number),
        (Step::Stay(left), Verdict::Alike) => (Step::Stay(left - 1), number),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Step::{Base, Climb, Stay};
    use Verdict::{Alike, Longer, Open};

    const US: Duration = Duration::from_micros(1);

    #[test]
    fn the_number_doubles_until_light_requests_take_longer() {
        for (step, number, verdict, may_climb, expected) in [
            (Base, LEAST, Open, true, (Base, LEAST)),
            (Base, LEAST, Alike, true, (Climb, 2 * LEAST)),
            (Base, 64, Alike, true, (Climb, 64)),
            (Climb, 64, Open, true, (Climb, 64)),
            (Climb, 64, Alike, true, (Climb, 128)),
            (Climb, 64, Alike, false, (Stay(STAY), 64)),
            (Climb, 64, Longer, true, (Stay(STAY), 32)),
            (Climb, LEAST, Longer, true, (Stay(STAY), LEAST)),
            (Stay(3), 64, Alike, true, (Stay(2), 64)),
            (Stay(0), 64, Alike, true, (Base, 64)),
            (Stay(3), 64, Longer, true, (Stay(2), 32)),
            (Stay(0), 64, Longer, true, (Base, 32)),
            (Stay(3), 64, Open, true, (Stay(3), 64)),
        ] {
            assert_eq!(next(step, number, verdict, may_climb), expected, "{step:?} {number} {verdict:?}");
        }
    }

    #[test]
    fn one_light_address_whose_requests_take_longer_decides() {
        for (each, expected) in [
            (&[][..], Open),
            (&[Alike, Alike], Alike),
            (&[Alike, Open], Open),
            (&[Open, Alike], Open),
            (&[Alike, Open, Longer], Longer),
        ] {
            assert_eq!(verdict(each.iter().copied()), expected, "{each:?}");
        }
    }

    #[test]
    fn a_window_is_judged_by_its_answers_or_as_soon_as_more_cannot_help() {
        for (answers, micros, base, expected) in [
            (0, 0, 100, Open),
            (31, 100, 100, Open),
            (32, 100, 100, Alike),
            (32, 125, 100, Alike),
            (32, 126, 100, Longer),
            (1, 32 * 125 + 1, 100, Longer),
            (100, 124, 100, Alike),
            (100, 126, 100, Longer),
            (32, 1000, 0, Alike),
        ] {
            let times = Times::default();
            times.open(1, 1);
            times.base.store(base * 1000, Relaxed);
            (0..answers).for_each(|_| times.count(1, micros * US));
            assert_eq!(times.judge(), expected, "{answers} answers of {micros} us, base {base} us");
        }
    }

    /// Reviews an address whose requests take `time` at a number, until 200 windows have passed. Returns the numbers of
    /// the last hundred.
    fn found(busy: usize, most: usize, answers: usize, time: impl Fn(usize) -> Duration) -> Vec<usize> {
        let (mut bound, times, mut numbers) = (SharedBound::default(), Times::default(), Vec::new());
        while bound.window < 200 {
            let number = bound.number(most);
            if bound.window > 100 {
                numbers.push(number);
            }
            // Every second request takes half as long again, and the others half as long.
            let time = |n: usize| time(number.min(busy)) * if n.is_multiple_of(2) { 3 } else { 1 } / 2;
            (0..answers).for_each(|n| times.count(bound.window, time(n)));
            bound.review(&[&times], most, true, number < busy);
        }
        numbers
    }

    #[test]
    fn the_number_that_keeps_devices_busy_is_found() {
        // Devices that carry out some requests at once, in which further requests wait in turn.
        let devices =
            |at_once: usize| move |number: usize| (100 * US).max((100 * number as u32 / at_once as u32) * US);
        for (at_once, usual) in [(1, LEAST), (8, 8), (64, 64), (1000, 1024)] {
            let numbers = found(1024, 65_536, 20, devices(at_once));
            let share =
                |number: usize| numbers.iter().filter(|n| **n == number).count() * 100 / numbers.len();
            assert!(share(usual) >= 75, "{at_once}: {numbers:?}");
            assert!(numbers.iter().all(|number| *number <= 2 * usual), "{at_once}: {numbers:?}");
        }
        let numbers = found(1024, 16, 20, devices(1000));
        assert!(
            numbers.iter().all(|number| *number <= 16) && numbers.contains(&16),
            "the setting: {numbers:?}"
        );
    }

    #[test]
    fn busy_addresses_share_the_least_until_a_base_is_known() {
        let (mut bound, times) = (SharedBound::default(), Times::default());
        for _ in 0..1000 {
            bound.review(&[&times], 65_536, true, true);
            assert_eq!(bound.number(65_536), LEAST);
        }
        (0..FEW).for_each(|_| times.count(bound.window, US));
        bound.review(&[&times], 65_536, true, true);
        assert_eq!(bound.number(65_536), 2 * LEAST);
    }

    #[test]
    fn an_address_without_answers_keeps_the_number_from_rising() {
        let (mut bound, [quick, stuck]) = (SharedBound::default(), [Times::default(), Times::default()]);
        while bound.step == Step::Base {
            for times in [&quick, &stuck] {
                (0..WINDOW).for_each(|_| times.count(bound.window, US));
            }
            bound.review(&[&quick, &stuck], 65_536, true, true);
        }
        let mut review = || {
            (0..WINDOW).for_each(|_| quick.count(bound.window, US));
            bound.review(&[&quick, &stuck], 65_536, true, true);
            (bound.number(65_536), bound.window)
        };
        review();
        for _ in 0..10 * MOST_REVIEWS {
            assert_eq!(review().0, 2 * LEAST);
        }
        stuck.count(review().1, 10_000 * US);
        assert_eq!(review().0, LEAST, "its answer took too long");
    }

    #[test]
    fn a_search_begins_with_the_base_again_and_forgets_requests_before_it() {
        let (mut bound, times) = (SharedBound::default(), Times::default());
        bound.review(&[&times], 100, false, true);
        assert!(times.begin().is_none(), "requests from before the bound are in the queues");
        bound.review(&[&times], 100, true, true);
        let early = times.begin().unwrap();
        (0..WINDOW).for_each(|_| times.count(1, US));
        (1..FEWEST_REVIEWS).for_each(|_| bound.review(&[&times], 100, true, true));
        assert_eq!(bound.number(100), LEAST);
        bound.review(&[&times], 100, true, true);
        assert_eq!(bound.number(100), 2 * LEAST);
        bound.review(&[&times], 100, true, true);
        times.end(early);
        assert_eq!(times.answers.load(Relaxed), 0);
        bound.rest([&times].into_iter());
        assert_eq!((bound.number(100), times.begin().is_none()), (LEAST, true));
        assert_eq!(times.base.load(Relaxed), 0);
        times.base.store(7, Relaxed);
        bound.rest([].into_iter());
        bound.review(&[&times], 100, true, true);
        assert_eq!(times.base.load(Relaxed), 0, "the base of an earlier search is forgotten");
    }
}
