//! The work on the pool that is in progress, with estimates of the time left.
//!
//! The sampler of the history looks each second. So the rate since the begin of a work is known when somebody asks.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use forebay_common::lock::Mutex;
use forebay_control::{PoolWork, PoolWorkKind};
use forebay_engine::Engine;
use forebay_engine::buffer::BLOCK;

/// The works in progress as they were seen first.
#[derive(Default)]
pub(crate) struct Progress(Mutex<Vec<Seen>>);

/// One work, as it was seen first.
#[derive(Clone, Copy)]
struct Seen {
    kind: PoolWorkKind,
    begun: Instant,
    /// The amount that was left then.
    left: u64,
    /// The whole amount.
    total: u64,
}

/// The state of one work now.
struct Now {
    kind: PoolWorkKind,
    device: Option<PathBuf>,
    left: u64,
    /// The whole amount, if the work knows that.
    total: Option<u64>,
}

impl Progress {
    /// Returns the works of the engine that are in progress.
    pub(crate) fn of(&self, engine: &Engine) -> Vec<PoolWork> {
        self.seen(in_progress(engine), Instant::now())
    }

    /// Returns the works with their estimates. Forgets those that have ended.
    fn seen(&self, works: Vec<Now>, now: Instant) -> Vec<PoolWork> {
        let mut seen = self.0.lock();
        seen.retain(|seen| works.iter().any(|work| work.kind == seen.kind));
        let mut shown = Vec::new();
        for work in works {
            let first =
                Seen { kind: work.kind, begun: now, left: work.left, total: work.total.unwrap_or(work.left) };
            let at = seen.iter().position(|seen| seen.kind == work.kind).unwrap_or_else(|| {
                seen.push(first);
                seen.len() - 1
            });
            let known = &mut seen[at];
            if work.left > known.left {
                // There is more to do than when it began: another scrub, or clients that write.
                *known = Seen { total: first.total.max(known.total), ..first };
            }
            shown.push(PoolWork {
                kind: work.kind,
                device: work.device,
                done: known.total.saturating_sub(work.left),
                total: known.total,
                left_ns: known.left_ns(work.left, now.saturating_duration_since(known.begun)),
            });
        }
        shown
    }
}

impl Seen {
    /// Returns the time left in nanoseconds, if the work goes on as in the time `elapsed` since its begin. `None` if it
    /// has not come on yet.
    fn left_ns(&self, left: u64, elapsed: Duration) -> Option<u64> {
        let done = self.left.checked_sub(left).filter(|done| *done > 0)?;
        let estimate = elapsed.as_nanos() * u128::from(left) / u128::from(done);
        Some(u64::try_from(estimate).unwrap_or(u64::MAX))
    }
}

/// Returns the works of the engine that are in progress.
fn in_progress(engine: &Engine) -> Vec<Now> {
    let bytes = |blocks: u64| blocks * BLOCK as u64;
    let mut works = Vec::new();
    let mut add = |kind, device, left, total| works.push(Now { kind, device, left, total });
    if let Some(loading) = engine.warming() {
        let left = loading.segments.saturating_sub(loading.done);
        add(PoolWorkKind::Load, None, left, Some(loading.segments));
    }
    if let Some(blocks) = engine.unmirrored() {
        add(PoolWorkKind::Rebuild, None, bytes(blocks), None);
    }
    if let (Some(name), Some(blocks)) = (engine.leaving(), engine.dirty_before_removal()) {
        add(PoolWorkKind::Removal, Some(name.into()), bytes(blocks), None);
    }
    let scrub = engine.scrub_status();
    if scrub.running {
        add(PoolWorkKind::Scrub, None, scrub.segments.saturating_sub(scrub.done), Some(scrub.segments));
    }
    works
}

#[cfg(test)]
mod tests {
    use super::*;

    fn work(kind: PoolWorkKind, left: u64, total: Option<u64>) -> Now {
        Now { kind, device: None, left, total }
    }

    #[test]
    fn the_estimate_follows_from_the_rate_since_a_work_was_seen_first() {
        let (progress, begun) = (Progress::default(), Instant::now());
        let at = |seconds| begun + Duration::from_secs(seconds);
        let seconds = |work: &PoolWork| work.left_ns.map(|left| left as f64 / 1e9);
        let seen = |left, seconds| progress.seen(vec![work(PoolWorkKind::Rebuild, left, None)], at(seconds));
        let first = seen(100, 0);
        assert_eq!((first[0].done, first[0].total, first[0].left_ns), (0, 100, None));
        let later = seen(75, 5);
        assert_eq!((later[0].done, later[0].total, seconds(&later[0])), (25, 100, Some(15.0)));
        // Clients have written meanwhile: the rate counts from here.
        let more = seen(120, 6);
        assert_eq!((more[0].done, more[0].total, more[0].left_ns), (0, 120, None));
        assert_eq!(seconds(&seen(80, 8)[0]), Some(4.0));
        assert_eq!(seconds(&seen(0, 9)[0]), Some(0.0));
        // The end is the end of what is known about the work.
        assert_eq!(progress.seen(Vec::new(), at(10)), []);
        assert_eq!(seen(60, 11)[0].total, 60);
    }

    #[test]
    fn a_scrub_that_was_under_way_already_is_judged_by_what_was_seen() {
        let (progress, begun) = (Progress::default(), Instant::now());
        let seen = |left, seconds| {
            let works =
                vec![work(PoolWorkKind::Load, 1, Some(2)), work(PoolWorkKind::Scrub, left, Some(100))];
            progress.seen(works, begun + Duration::from_secs(seconds)).remove(1)
        };
        assert_eq!(seen(60, 0).done, 40);
        let later = seen(40, 10);
        assert_eq!((later.done, later.total, later.left_ns), (60, 100, Some(20_000_000_000)));
        // The next scrub begins at once.
        let next = seen(99, 30);
        assert_eq!((next.done, next.total, next.left_ns), (1, 100, None));
    }
}
