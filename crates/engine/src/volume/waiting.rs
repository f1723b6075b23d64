//! The objects of a volume that wait to be destaged, in the order of their turns.
//!
//! Objects whose data may stay dirty equally long share a queue. They stand there in the order of their oldest dirty
//! block. So the first objects of the few queues tell which object is due next, and no pass looks at the others.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

/// The interval at which changed policies of waiting objects are looked at. Each look goes through all objects.
const SORT_EVERY: Duration = Duration::from_secs(1);

/// An object that can wait to be destaged.
pub(crate) trait Waits {
    /// Returns the dirty time of the object's policy; `None` for the usual one.
    fn dirty_time(&self) -> Option<Duration>;
}

/// An object that waits, and the time since which it waits.
type Entry<T> = (Arc<T>, Duration);

/// The choice of the objects of one batch.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Turn {
    pub(crate) now: Duration,
    /// The dirty time of objects whose policy has none.
    pub(crate) usual: Duration,
    /// True if objects that are not due have a turn as well.
    pub(crate) urgent: bool,
}

/// The objects of a volume that wait to be destaged.
#[derive(Debug)]
pub(crate) struct Waiting<T> {
    /// Objects that a task waits for, and the object whose pass goes on. Their turn is next.
    first: VecDeque<Entry<T>>,
    /// No queue is empty.
    queues: Vec<TimeQueue<T>>,
    /// True if the policy of a waiting object changed since the queues were sorted.
    outdated: bool,
    /// The time at which the queues were sorted.
    sorted: Duration,
}

/// The objects with one dirty time.
#[derive(Debug)]
struct TimeQueue<T> {
    /// The dirty time of the policy; `None` for the usual one.
    time: Option<Duration>,
    objects: VecDeque<Entry<T>>,
    /// True if the batch that is being gathered takes objects of this queue.
    open: bool,
}

impl<T> Default for Waiting<T> {
    fn default() -> Self {
        Waiting { first: VecDeque::new(), queues: Vec::new(), outdated: false, sorted: Duration::ZERO }
    }
}

impl<T> TimeQueue<T> {
    /// Returns the time since which the first object waits.
    fn since(&self) -> Duration {
        self.objects.front().map_or(Duration::MAX, |(_, since)| *since)
    }

    /// Returns the time at which the first object is due.
    fn due(&self, usual: Duration) -> Duration {
        self.since().saturating_add(self.time.unwrap_or(usual))
    }
}

impl<T: Waits> Waiting<T> {
    /// Adds an object behind those that wait.
    pub(crate) fn push(&mut self, object: Arc<T>, since: Duration) {
        self.queue_of(&object).push_back((object, since));
    }

    /// Adds an object whose turn is next.
    pub(crate) fn push_first(&mut self, object: Arc<T>, since: Duration) {
        self.first.push_front((object, since));
    }

    /// Puts objects back at the places that they had.
    pub(crate) fn put_back(&mut self, objects: impl IntoIterator<Item = Entry<T>>) {
        for (object, since) in objects {
            let queue = self.queue_of(&object);
            queue.insert(queue.partition_point(|(_, other)| *other <= since), (object, since));
        }
    }

    /// Makes the turn of `object` the next one. Adds the object if it does not wait and is `dirty`.
    pub(crate) fn hurry(&mut self, object: &Arc<T>, dirty: bool, now: Duration) {
        let mut lists =
            std::iter::once(&mut self.first).chain(self.queues.iter_mut().map(|queue| &mut queue.objects));
        let found = lists.find_map(|list| {
            let at = list.iter().position(|(waiting, _)| Arc::ptr_eq(waiting, object))?;
            list.remove(at)
        });
        self.queues.retain(|queue| !queue.objects.is_empty());
        if let Some((object, since)) = found.or_else(|| dirty.then(|| (object.clone(), now))) {
            self.push_first(object, since);
        }
    }

    /// Begins a batch. A queue with a due object gives its further objects as well, so that a batch is worth its sync.
    pub(crate) fn begin(&mut self, turn: Turn) {
        for queue in &mut self.queues {
            queue.open = turn.urgent || queue.due(turn.usual) <= turn.now;
        }
    }

    /// Takes the next object of the batch.
    ///
    /// - The order is that of the times at which objects are due.
    /// - In an urgent batch no object waits longer than the usual time for its turn. So data that may stay dirty for
    ///   long does not hold the log's tail.
    /// - With `short_first`, due objects that may stay dirty for less than the usual time come first.
    pub(crate) fn next(&mut self, turn: Turn, short_first: bool) -> Option<Entry<T>> {
        if let Some(entry) = self.first.pop_front() {
            return Some(entry);
        }
        let order = |queue: &TimeQueue<T>| {
            let time = queue.time.unwrap_or(turn.usual);
            let short = short_first && time < turn.usual && queue.due(turn.usual) <= turn.now;
            let wait = if turn.urgent { time.min(turn.usual) } else { time };
            (!short, if short { time } else { queue.since().saturating_add(wait) })
        };
        let open = self.queues.iter().enumerate().filter(|(_, queue)| queue.open);
        let (at, _) = open.min_by_key(|(_, queue)| order(queue))?;
        let entry = self.queues[at].objects.pop_front();
        if self.queues[at].objects.is_empty() {
            self.queues.swap_remove(at);
        }
        entry
    }

    /// Returns the time at which the first object is due, or at which the queues are to be sorted.
    pub(crate) fn due(&mut self, usual: Duration, now: Duration) -> Option<Duration> {
        let sort_at = self.sorted.saturating_add(SORT_EVERY);
        if self.outdated && now >= sort_at {
            self.sort(now);
        }
        let first = self
            .first
            .iter()
            .map(|(object, since)| since.saturating_add(object.dirty_time().unwrap_or(usual)));
        let queues = self.queues.iter().map(|queue| queue.due(usual));
        first.chain(queues).chain(self.outdated.then_some(sort_at)).min()
    }

    /// Notes that the policy of a waiting object has another dirty time.
    pub(crate) fn policy_changed(&mut self) {
        self.outdated = true;
    }

    /// Returns the time since which the first object waits.
    pub(crate) fn oldest(&self) -> Option<Duration> {
        self.first.iter().map(|(_, since)| *since).chain(self.queues.iter().map(TimeQueue::since)).min()
    }

    /// Returns true if no object has waited since `time` or longer.
    pub(crate) fn is_past(&self, time: Duration) -> bool {
        self.first
            .iter()
            .chain(self.queues.iter().flat_map(|queue| &queue.objects))
            .all(|(_, since)| *since > time)
    }

    pub(crate) fn len(&self) -> usize {
        self.first.len() + self.queues.iter().map(|queue| queue.objects.len()).sum::<usize>()
    }

    /// Returns the queue for the dirty time of an object; makes the queue if there is none.
    fn queue_of(&mut self, object: &T) -> &mut VecDeque<Entry<T>> {
        let time = object.dirty_time();
        let at = self.queues.iter().position(|queue| queue.time == time).unwrap_or_else(|| {
            self.queues.push(TimeQueue { time, objects: VecDeque::new(), open: false });
            self.queues.len() - 1
        });
        &mut self.queues[at].objects
    }

    /// Puts every object into the queue of its policy.
    fn sort(&mut self, now: Duration) {
        (self.outdated, self.sorted) = (false, now);
        let queues = std::mem::take(&mut self.queues);
        let mut all: Vec<Entry<T>> = queues.into_iter().flat_map(|queue| queue.objects).collect();
        all.sort_by_key(|(_, since)| *since);
        for (object, since) in all {
            self.push(object, since);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_common::lock::atomic::{AtomicU64, Ordering};

    /// An object with a number and a dirty time in seconds.
    struct Object {
        number: u64,
        dirty_seconds: AtomicU64,
    }

    impl Waits for Object {
        fn dirty_time(&self) -> Option<Duration> {
            let seconds = self.dirty_seconds.load(Ordering::Relaxed);
            (seconds > 0).then(|| Duration::from_secs(seconds))
        }
    }

    const USUAL: Duration = Duration::from_secs(5);

    fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn object(number: u64, dirty_seconds: u64) -> Arc<Object> {
        Arc::new(Object { number, dirty_seconds: AtomicU64::new(dirty_seconds) })
    }

    /// Returns the numbers of the objects that a batch takes.
    fn batch(waiting: &mut Waiting<Object>, now: u64, urgent: bool, short_first: bool) -> Vec<u64> {
        let turn = Turn { now: seconds(now), usual: USUAL, urgent };
        waiting.begin(turn);
        std::iter::from_fn(|| waiting.next(turn, short_first)).map(|(object, _)| object.number).collect()
    }

    /// Returns objects that wait: with the usual dirty time from 0, 4 and 9 s on; one second from 3 and 8 s on; an hour
    /// from 1 s on.
    fn waiting() -> Waiting<Object> {
        let mut waiting = Waiting::default();
        let objects = [(1, 0, 0), (2, 3600, 1), (3, 1, 3), (4, 0, 4), (5, 1, 8), (6, 0, 9)];
        for (number, time, since) in objects {
            waiting.push(object(number, time), seconds(since));
        }
        waiting
    }

    #[test]
    fn a_batch_takes_the_lanes_with_due_data_in_the_order_of_the_times_at_which_they_are_due() {
        let due = |waiting: &mut Waiting<Object>| waiting.due(USUAL, Duration::ZERO);
        let mut queue = waiting();
        assert_eq!((due(&mut queue), queue.oldest()), (Some(seconds(4)), Some(seconds(0))));
        assert_eq!(batch(&mut queue, 3, false, false), [0; 0], "nothing is due");
        assert_eq!(batch(&mut queue, 4, false, false), [3, 5], "objects of the due queue go along");
        assert_eq!(due(&mut queue), Some(seconds(5)));
        assert_eq!(batch(&mut queue, 5, false, false), [1, 4, 6]);
        assert_eq!(due(&mut queue), Some(seconds(3601)));
        assert_eq!(batch(&mut queue, 3600, false, false), [0; 0]);
        assert_eq!(batch(&mut queue, 3601, false, false), [2]);
        assert_eq!((due(&mut queue), queue.len()), (None, 0));
    }

    #[test]
    fn an_urgent_batch_lets_no_long_dirty_time_hold_the_tail() {
        assert_eq!(batch(&mut waiting(), 4, true, false), [3, 1, 2, 4, 5, 6]);
        assert_eq!(batch(&mut waiting(), 9, true, false), [3, 1, 2, 4, 5, 6]);
        assert_eq!(batch(&mut waiting(), 9, true, true), [3, 5, 1, 2, 4, 6], "short and due comes first");
        assert_eq!(batch(&mut waiting(), 8, true, true), [3, 1, 2, 4, 5, 6], "short but not due");
    }

    #[test]
    fn objects_keep_their_places_when_they_are_put_back_and_leave_them_when_a_task_waits() {
        let mut queue = waiting();
        let turn = Turn { now: seconds(5), usual: USUAL, urgent: true };
        queue.begin(turn);
        let taken: Vec<Entry<Object>> = (0..4).map_while(|_| queue.next(turn, false)).collect();
        assert_eq!(queue.oldest(), Some(seconds(8)));
        assert!(queue.is_past(seconds(7)) && !queue.is_past(seconds(8)));
        let fourth = taken[3].0.clone();
        queue.put_back(taken);
        assert_eq!((queue.len(), queue.oldest()), (6, Some(seconds(0))));
        assert_eq!(batch(&mut queue, 5, true, false), [3, 1, 2, 4, 5, 6]);
        queue.hurry(&fourth, false, seconds(9));
        assert_eq!(queue.len(), 0, "it does not wait, and has nothing to destage");
        for (number, since) in [(7, 1), (8, 2)] {
            queue.push(object(number, 0), seconds(since));
        }
        queue.push(fourth.clone(), seconds(3));
        queue.hurry(&fourth, true, seconds(9));
        assert_eq!((queue.len(), queue.due(USUAL, Duration::ZERO)), (3, Some(seconds(6))));
        assert_eq!(batch(&mut queue, 0, true, false), [4, 7, 8]);
    }

    #[test]
    fn a_waiting_object_gets_another_dirty_time() {
        let mut queue = Waiting::default();
        let objects = [1, 2, 3].map(|number| object(number, 3600));
        for (since, object) in (10..).zip(&objects) {
            queue.push(object.clone(), seconds(since));
        }
        objects[1].dirty_seconds.store(1, Ordering::Relaxed);
        queue.policy_changed();
        assert_eq!(queue.due(USUAL, seconds(13)), Some(seconds(12)));
        assert_eq!(batch(&mut queue, 13, false, false), [2]);
        objects[0].dirty_seconds.store(2, Ordering::Relaxed);
        queue.policy_changed();
        assert_eq!(queue.due(USUAL, seconds(13)), Some(seconds(14)), "the queues are sorted once a second");
        assert_eq!(queue.due(USUAL, seconds(14)), Some(seconds(12)));
        assert_eq!(batch(&mut queue, 14, false, false), [1]);
    }
}
