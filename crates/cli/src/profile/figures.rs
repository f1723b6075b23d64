//! The figures of a report, which its text and its page share.

use forebay_config::format_size;
use forebay_control::{Activity, Counters, Kind, NewFilesActivity, size_bounds};

use crate::output::{count, printable, time_of_day};

/// Files made in a minute from which a report speaks of a storm: 50 in a second.
const STORM: u64 = 3000;
/// The largest small file in bytes.
const SMALL: u64 = 64 << 10;

/// Returns a part of a whole in per cent; none of nothing.
pub(super) fn percent(part: u64, whole: u64) -> Option<f64> {
    (whole > 0).then(|| part as f64 * 100.0 / whole as f64)
}

/// Returns a part of a whole as text; `-` of nothing.
pub(super) fn share(part: u64, whole: u64) -> String {
    match percent(part, whole) {
        None => "-".to_owned(),
        Some(percent) if percent > 0.0 && percent < 0.5 => "< 1 %".to_owned(),
        Some(percent) => format!("{percent:.0} %"),
    }
}

/// Returns the kinds of operations that occurred, most frequent first.
pub(super) fn mix(counters: &Counters) -> Vec<(Kind, u64)> {
    let mut kinds: Vec<_> = Kind::ALL.into_iter().map(|kind| (kind, counters.of(kind))).collect();
    kinds.retain(|(_, count)| *count > 0);
    kinds.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
    kinds
}

/// Returns the classes of request sizes between the smallest and the largest that occurred: name, READs, WRITEs.
pub(super) fn sizes(counters: &Counters) -> Vec<(String, u64, u64)> {
    let named = size_bounds().map(format_size).into_iter();
    let classes = named.zip(counters.read_sizes).zip(counters.write_sizes);
    let classes: Vec<_> = classes.map(|((name, reads), writes)| (name, reads, writes)).collect();
    let is_used = |(_, reads, writes): &(String, u64, u64)| reads + writes > 0;
    let first = classes.iter().position(is_used).unwrap_or(classes.len());
    let last = classes.iter().rposition(is_used).map_or(first, |last| last + 1);
    classes[first..last].to_vec()
}

/// Returns the classes of sizes of new files, with their names.
pub(super) fn new_sizes(files: &NewFilesActivity) -> Vec<(String, u64)> {
    let name = |bound: &Option<u64>| match bound {
        Some(0) => "empty".to_owned(),
        Some(bound) => format!("up to {}", format_size(*bound)),
        None => "larger".to_owned(),
    };
    files.sizes.iter().map(|(bound, count)| (name(bound), *count)).collect()
}

/// Returns the mean size of the READs or WRITEs.
pub(super) fn mean(bytes: u64, requests: u64) -> String {
    bytes.checked_div(requests).map_or_else(|| "-".to_owned(), format_size)
}

/// Returns the facts about the whole, each with its name.
pub(super) fn facts(activity: &Activity) -> Vec<(&'static str, String)> {
    let total = &activity.total;
    let seconds = (activity.time_ns.saturating_sub(activity.since_ns) as f64 / 1e9).max(1e-3);
    let (reads, writes) = total.sized();
    let rate = crate::stat::rate(total.total() as f64 / seconds);
    let looks = [Kind::Getattr, Kind::Lookup, Kind::Access, Kind::Readdir].map(|kind| total.of(kind));
    let changes = Kind::ALL.into_iter().filter(|kind| kind.is_change()).map(|kind| total.of(kind)).sum();
    let unstable = writes - total.stable_writes.min(writes);
    let all = total.total();
    vec![
        ("Operations", format!("{}, {rate}/s; {} failed", count(all), count(total.errors))),
        (
            "Kinds",
            format!(
                "READ {}, WRITE {}, look-ups and attributes {}, changes of names {}",
                share(total.of(Kind::Read), all),
                share(total.of(Kind::Write), all),
                share(looks.iter().sum(), all),
                share(changes, all)
            ),
        ),
        (
            "Read",
            format!(
                "{} in requests of {} on average, {} sequential",
                format_size(total.bytes_read),
                mean(total.bytes_read, reads),
                share(total.sequential_reads, reads)
            ),
        ),
        (
            "Written",
            format!(
                "{} in requests of {} on average, {} sequential",
                format_size(total.bytes_written),
                mean(total.bytes_written, writes),
                share(total.sequential_writes, writes)
            ),
        ),
        (
            "Read of all data",
            format!(
                "{} of the bytes, {} of the requests",
                share(total.bytes_read, total.bytes_read.saturating_add(total.bytes_written)),
                share(reads, reads + writes)
            ),
        ),
        (
            "Synchronous",
            format!(
                "{} of the WRITEs; {} COMMITs for {} UNSTABLE WRITEs",
                share(total.stable_writes, writes),
                count(total.of(Kind::Commit)),
                count(unstable)
            ),
        ),
    ]
}

/// Returns what deserves the attention of the administrator, a sentence each.
pub(super) fn findings(activity: &Activity) -> Vec<String> {
    let mut found = Vec::new();
    let files = &activity.new_files;
    let small: u64 = files
        .sizes
        .iter()
        .filter(|(bound, _)| bound.is_some_and(|bound| bound <= SMALL))
        .map(|(_, n)| n)
        .sum();
    if files.in_busiest_minute >= STORM && small * 10 >= files.made * 8 {
        found.push(format!(
            "Small-file storm: clients made {} files in the minute from {} on, and {} of all new files stay below {}.",
            count(files.in_busiest_minute),
            time_of_day(files.busiest_minute_ns),
            share(small, files.made),
            format_size(SMALL)
        ));
    }
    let shared: Vec<_> = activity.files.entries.iter().filter(|file| file.shared).collect();
    if let Some(first) = shared.first() {
        found.push(format!(
            "Shared writing (N-1): {} of the busiest files are written by more than one client, for example {}.",
            count(shared.len() as u64),
            printable(&first.name)
        ));
    }
    let total = &activity.total;
    let (_, writes) = total.sized();
    let commits = total.of(Kind::Commit);
    let unstable = writes - total.stable_writes.min(writes);
    if commits > 1000 && commits > unstable {
        found.push("Frequent COMMITs: applications call fsync after nearly every write.".to_owned());
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_short_and_nothing_has_none() {
        assert_eq!([share(1, 3), share(0, 3), share(1, 1000), share(1, 0)], ["33 %", "0 %", "< 1 %", "-"]);
    }

    #[test]
    fn only_sizes_that_occurred_and_those_between_are_shown() {
        let mut counters = Counters::default();
        (counters.read_sizes[3], counters.write_sizes[5]) = (2, 1);
        let shown = sizes(&counters);
        assert_eq!(shown.len(), 3);
        assert_eq!(shown[0], ("4 KiB".to_owned(), 2, 0));
        assert!(sizes(&Counters::default()).is_empty());
    }

    #[test]
    fn a_storm_needs_many_small_files_in_a_minute() {
        let storm = NewFilesActivity {
            made: 10_000,
            sizes: vec![(Some(0), 1000), (Some(4096), 8000), (None, 1000)],
            in_busiest_minute: STORM,
            busiest_minute_ns: 0,
        };
        let with = |new_files: NewFilesActivity| findings(&Activity { new_files, ..Activity::default() });
        assert!(with(storm.clone())[0].contains("90 %"), "{:?}", with(storm.clone()));
        assert!(with(NewFilesActivity { in_busiest_minute: STORM - 1, ..storm.clone() }).is_empty());
        let large = NewFilesActivity { sizes: vec![(Some(0), 1000), (None, 9000)], ..storm };
        assert!(with(large).is_empty());
    }
}
