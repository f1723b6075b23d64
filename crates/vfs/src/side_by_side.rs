//! Work that waits for a disk, done by several threads at once.

use std::sync::atomic::{AtomicUsize, Ordering};

/// Bytes of a thread's stack: nothing here recurses.
const STACK: usize = 256 << 10;

/// Runs `work` on each of `items`, up to `most` of them in parallel, and returns the results in order. The calling
/// thread takes part, so that all work is done even if the system refuses threads.
pub(crate) fn side_by_side<T: Sync, R: Send>(
    items: &[T],
    most: usize,
    work: impl Fn(&T) -> R + Sync,
) -> Vec<R> {
    let next = AtomicUsize::new(0);
    let take = || {
        let mut done = Vec::new();
        loop {
            let at = next.fetch_add(1, Ordering::Relaxed);
            let Some(item) = items.get(at) else { return done };
            done.push((at, work(item)));
        }
    };
    let mut done = std::thread::scope(|scope| {
        let start = |_| {
            let thread = std::thread::Builder::new().name("forebay-sync".into()).stack_size(STACK);
            thread.spawn_scoped(scope, take).ok()
        };
        let helpers: Vec<_> = (1..items.len().min(most)).map_while(start).collect();
        let mut done = take();
        for helper in helpers {
            done.extend(helper.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
        }
        done
    });
    done.sort_unstable_by_key(|(at, _)| *at);
    done.into_iter().map(|(_, result)| result).collect()
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;

    use super::*;

    #[test]
    fn so_many_are_done_at_the_same_time_and_the_results_are_in_order() {
        let together = Barrier::new(4);
        let doubled = side_by_side(&(0..400).collect::<Vec<_>>(), 4, |item| {
            // Each item waits for three more items.
            together.wait();
            item * 2
        });
        assert!(doubled.into_iter().eq((0..400).map(|item| item * 2)));
        assert_eq!(side_by_side(&[0; 0], 4, |item| *item), []);
    }
}
