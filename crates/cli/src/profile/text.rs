//! The report of a profile as text.

use std::time::Duration;

use forebay_config::format_size;
use forebay_control::{Activity, ActivityEntry, Counters, Kind};

use super::List;
use super::figures::{facts, findings, mean, mix, new_sizes, share, sizes};
use crate::output::{Align, HEAD, Table, WARN, count, date_time, paint, printable, span, time_of_day};

/// Characters of the longest bar.
const BAR: u64 = 30;
/// Characters of a name, at most. The begin of a longer name is left out.
const NAME: usize = 48;

/// Returns the report.
pub(super) fn report(activity: &Activity, lists: &[List<'_>]) -> String {
    let time = Duration::from_nanos(activity.time_ns.saturating_sub(activity.since_ns));
    let head = format!("Profile of {}, since {}", span(time), date_time(activity.since_ns));
    let mut text = format!("{}\n", paint(HEAD, &head));
    let widest = facts(activity).iter().map(|(name, _)| name.len()).max().unwrap_or(0);
    for (name, value) in facts(activity) {
        text.push_str(&format!("  {name:<widest$}  {value}\n"));
    }
    for finding in findings(activity) {
        text.push_str(&format!("  {}\n", paint(WARN, &finding)));
    }
    let working_sets = working_sets(activity);
    let tables =
        [operations(&activity.total), request_sizes(&activity.total), new_files(activity), working_sets];
    let lists = lists.iter().map(list);
    for table in tables.into_iter().chain(lists).filter(|table| !table.is_empty()) {
        text.push('\n');
        text.push_str(&table.render(0));
    }
    text
}

/// Returns a bar for a part of the largest part.
fn bar(part: u64, most: u64) -> String {
    let length = (part * BAR).checked_div(most).unwrap_or(0);
    "#".repeat(if part > 0 { length.max(1) } else { 0 } as usize)
}

/// Returns the table of operations by kind, the most frequent first, with bars relative to it.
fn operations(total: &Counters) -> Table {
    let mut table = Table::new(&[
        ("OPERATION", Align::Left),
        ("COUNT", Align::Right),
        ("SHARE", Align::Right),
        ("", Align::Left),
    ]);
    let mix = mix(total);
    let most = mix.first().map_or(0, |(_, count)| *count);
    for (kind, number) in mix {
        table.row([kind.name().to_owned(), count(number), share(number, total.total()), bar(number, most)]);
    }
    table
}

/// Returns the table of request sizes, with shares among reads and among writes.
fn request_sizes(total: &Counters) -> Table {
    let right = |head| (head, Align::Right);
    let mut table = Table::new(&[
        right("REQUEST SIZE"),
        right("READ"),
        ("", Align::Left),
        right("WRITE"),
        ("", Align::Left),
    ]);
    let (reads, writes) = total.sized();
    for (name, read, written) in sizes(total) {
        let cells =
            [name, share(read, reads), bar(read, reads), share(written, writes), bar(written, writes)];
        table.row(cells);
    }
    table
}

/// Returns the table of new files by size. The table has no row if no file was made.
fn new_files(activity: &Activity) -> Table {
    let mut table = Table::new(&[
        ("NEW FILES", Align::Left),
        ("COUNT", Align::Right),
        ("SHARE", Align::Right),
        ("", Align::Left),
    ]);
    if activity.new_files.made == 0 {
        return table;
    }
    let sizes = new_sizes(&activity.new_files);
    let sum = sizes.iter().map(|(_, count)| count).sum();
    for (name, number) in sizes {
        table.row([name, count(number), share(number, sum), bar(number, sum)]);
    }
    table
}

/// Returns the table of working sets by hour. Hours without requests are left out.
fn working_sets(activity: &Activity) -> Table {
    let mut table = Table::new(&[("WORKING SET", Align::Left), ("SIZE", Align::Right), ("", Align::Left)]);
    let used: Vec<_> = activity.working_sets.iter().filter(|hour| hour.bytes > 0).collect();
    let most = used.iter().map(|hour| hour.bytes).max().unwrap_or(0);
    for hour in used {
        let name = match hour.complete {
            true => format!("hour from {}", time_of_day(hour.begin_ns)),
            false => format!("since {}", time_of_day(hour.begin_ns)),
        };
        // The product of a size and the bar's length may exceed 64 bits.
        table.row([name, format_size(hour.bytes), bar(hour.bytes >> 12, most >> 12)]);
    }
    table
}

/// Returns the table of clients, exports, users, files or directories.
fn list(list: &List<'_>) -> Table {
    let right = |head| (head, Align::Right);
    let mut table = Table::new(&[
        (list.of, Align::Left),
        right("OPS"),
        right("READ"),
        right("WRITE"),
        right("DATA READ"),
        right("WRITTEN"),
        right("MEAN READ"),
        right("MEAN WRITE"),
        right("SEQUENTIAL"),
        right("SYNC"),
    ]);
    list.entries.iter().for_each(|entry| table.row(row(name(entry), &entry.counters)));
    if let Some(others) = list.others {
        table.row(row("others".to_owned(), others));
    }
    table
}

/// Returns the name of an entry. The name of a file has its export, and says if several clients write to the file.
pub(crate) fn name(entry: &ActivityEntry) -> String {
    let name = printable(&entry.name);
    let length = name.chars().count();
    let name = match length > NAME {
        true => format!("...{}", name.chars().skip(length + 3 - NAME).collect::<String>()),
        false => name,
    };
    let export = entry.export.as_deref().filter(|export| *export != "/").map(printable);
    let mark = if entry.shared { " (shared)" } else { "" };
    match export {
        Some(export) => format!("{export}: {name}{mark}"),
        None => format!("{name}{mark}"),
    }
}

/// Returns the cells of a row for these counters, with shares among their own operations.
fn row(name: String, counters: &Counters) -> [String; 10] {
    let (reads, writes) = counters.sized();
    let all = counters.total();
    [
        name,
        count(all),
        share(counters.of(Kind::Read), all),
        share(counters.of(Kind::Write), all),
        format_size(counters.bytes_read),
        format_size(counters.bytes_written),
        mean(counters.bytes_read, reads),
        mean(counters.bytes_written, writes),
        share(counters.sequential_reads + counters.sequential_writes, reads + writes),
        share(counters.stable_writes, writes),
    ]
}

#[cfg(test)]
mod tests {
    use forebay_control::{ActivityGroup, WorkingSetActivity};

    use super::*;

    #[test]
    fn a_report_has_the_figures_and_long_names_keep_their_end() {
        let mut counters = Counters::default();
        (counters.operations[Kind::Read as usize], counters.operations[Kind::Getattr as usize]) = (75, 25);
        counters.read_sizes[3] = 75;
        (counters.bytes_read, counters.sequential_reads) = (75 * 4096, 15);
        let long = format!("{}end", "directory/".repeat(9));
        let entry =
            ActivityEntry { name: long, export: Some("/b".into()), shared: true, counters: counters.clone() };
        let activity = Activity {
            time_ns: 60_000_000_000,
            total: counters,
            files: ActivityGroup { entries: vec![entry.clone()], ..ActivityGroup::default() },
            working_sets: vec![WorkingSetActivity {
                bytes: u64::MAX / 2,
                complete: true,
                ..Default::default()
            }],
            ..Activity::default()
        };
        let lists = [List { of: "FILE", entries: vec![entry], others: Some(&activity.total) }];
        let text = anstream::adapter::strip_str(&report(&activity, &lists)).to_string();
        for part in [
            "Profile of 1 min",
            "100, 1.7/s",
            "READ 75 %",
            "4 KiB on average, 20 % sequential",
            "Shared writing",
            "/b: ...",
            "y/end (shared)",
            "others",
            "hour from",
            "getattr",
        ] {
            assert!(text.contains(part), "{part} is not in:\n{text}");
        }
        let empty = report(&Activity::default(), &[]);
        assert!(empty.contains("0, 0/s; 0 failed"), "{empty}");
    }
}
