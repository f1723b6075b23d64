//! `forebay stat --by`: rates of the busiest clients, exports, users, files or devices.

use forebay_control::{Activity, ActivityEntry, ActivityGroup, Counters, DeviceActivity, Kind, MOST_ACTIVE};
use serde::Serialize;

use crate::monitor_args::StatArgs;
use crate::output::{self, Align, HEAD, Table, paint, printable, time_of_day};
use crate::profile::entry_name;
use crate::profile_args::By;
use crate::stat::{mebibytes, rate, repeat};
use crate::{Exit, control};

/// The activity of the rows in an interval.
#[derive(Debug, Serialize)]
struct Interval {
    /// End of the interval, in nanoseconds since 1970.
    time_ns: u64,
    /// Length of the interval in seconds.
    seconds: f64,
    #[serde(flatten)]
    rows: Rows,
}

/// The busiest rows, busiest first. Counters count in the interval.
#[derive(Debug, Serialize)]
#[serde(untagged)]
enum Rows {
    Entries { entries: Vec<ActivityEntry>, others: Box<Counters> },
    Devices { devices: Vec<DeviceActivity> },
}

/// Runs `forebay stat --by`.
pub(crate) fn stat_by(args: &StatArgs, by: By) -> anyhow::Result<Exit> {
    let client = control::find(&args.target)?;
    let mut is_off = false;
    // All entries are needed: one that was busy before may do nothing now.
    repeat(
        args,
        || client.activity(MOST_ACTIVE),
        |_, earlier, activity| {
            if !activity.enabled && by != By::Device && !std::mem::replace(&mut is_off, true) {
                output::note("The server counts nothing now: its configuration has `profile = false`.");
            }
            let interval = between(earlier, activity, by, args.top);
            match args.json {
                true => output::json_line(&interval),
                false => Ok(output::result(&describe(&interval, by))?),
            }
        },
    )
}

/// Returns what the rows did between two answers; without an earlier one, since counting began.
fn between(earlier: Option<&Activity>, now: &Activity, by: By, top: usize) -> Interval {
    let earlier = earlier.filter(|earlier| earlier.since_ns.abs_diff(now.since_ns) < SAME_NS);
    let begin_ns = earlier.map_or(now.since_ns, |earlier| earlier.time_ns);
    let seconds = (now.time_ns.saturating_sub(begin_ns) as f64 / 1e9).max(1e-3);
    let group = |of: fn(&Activity) -> &ActivityGroup| {
        let nothing = ActivityGroup::default();
        let mut rows = of(now).since(earlier.map_or(&nothing, of));
        for rest in rows.entries.split_off(top.min(rows.entries.len())) {
            rows.others.add(&rest.counters);
        }
        Rows::Entries { entries: rows.entries, others: Box::new(rows.others) }
    };
    let rows = match by {
        By::Client => group(|activity| &activity.clients),
        By::Export => group(|activity| &activity.exports),
        By::User => group(|activity| &activity.users),
        By::File => group(|activity| &activity.files),
        By::Device => Rows::Devices { devices: devices(earlier, now) },
    };
    Interval { time_ns: now.time_ns, seconds, rows }
}

/// Two answers with begins nearer than this are of one count: each answer computes the begin from the present time.
const SAME_NS: u64 = 500_000_000;

/// Returns the devices with what each did since the earlier answer.
fn devices(earlier: Option<&Activity>, now: &Activity) -> Vec<DeviceActivity> {
    let difference = |device: &DeviceActivity| {
        let before = earlier.and_then(|all| all.devices.iter().find(|other| other.name == device.name));
        // A device that was removed and added again counts from 0.
        let before = before.filter(|before| before.reads <= device.reads && before.writes <= device.writes);
        let before = before.cloned().unwrap_or_default();
        DeviceActivity {
            name: device.name.clone(),
            reads: device.reads - before.reads,
            bytes_read: device.bytes_read.saturating_sub(before.bytes_read),
            writes: device.writes - before.writes,
            bytes_written: device.bytes_written.saturating_sub(before.bytes_written),
            flushes: device.flushes.saturating_sub(before.flushes),
        }
    };
    let mut devices: Vec<_> = now.devices.iter().map(difference).collect();
    devices.sort_by_key(|device| std::cmp::Reverse(device.bytes_read + device.bytes_written));
    devices
}

/// Returns the table of an interval below its time and length. An interval without operations has a row `-`.
fn describe(interval: &Interval, by: By) -> String {
    let mut table = match &interval.rows {
        Rows::Entries { entries, others } => entry_table(entries, others, by, interval.seconds),
        Rows::Devices { devices } => device_table(devices, interval.seconds),
    };
    if table.is_empty() {
        table.row(["-".to_owned()]);
    }
    let head = format!("{}  over {:.1} s", time_of_day(interval.time_ns), interval.seconds);
    format!("{}\n{}\n", paint(HEAD, &head), table.render(0))
}

/// Returns the table of clients, exports, users or files, with rates per second.
fn entry_table(entries: &[ActivityEntry], others: &Counters, by: By, seconds: f64) -> Table {
    let right = |head| (head, Align::Right);
    let of = match by {
        By::Client => "CLIENT",
        By::Export => "EXPORT",
        By::User => "USER",
        By::File => "FILE",
        By::Device => "DEVICE",
    };
    let mut table = Table::new(&[
        (of, Align::Left),
        right("OPS/s"),
        right("READ/s"),
        right("MiB/s"),
        right("WRITE/s"),
        right("MiB/s"),
        right("COMMIT/s"),
        right("LOOK/s"),
        right("CHANGE/s"),
        right("OPEN/s"),
        right("SEQ%"),
        right("SYNC%"),
        right("ERR/s"),
    ]);
    entries.iter().for_each(|entry| table.row(row(entry_name(entry), &entry.counters, seconds)));
    if !others.is_empty() {
        table.row(row("others".to_owned(), others, seconds));
    }
    table
}

/// Returns the cells of a row for counts in an interval of `seconds`. A percentage of nothing is `-`.
fn row(name: String, counters: &Counters, seconds: f64) -> [String; 13] {
    let per_second = |number: u64| rate(number as f64 / seconds);
    let sum = |is: fn(Kind) -> bool| {
        per_second(Kind::ALL.into_iter().filter(|kind| is(*kind)).map(|kind| counters.of(kind)).sum())
    };
    let (reads, writes) = counters.sized();
    let percent = |part: u64, whole: u64| match whole {
        0 => "-".to_owned(),
        _ => format!("{:.0}", part as f64 * 100.0 / whole as f64),
    };
    [
        name,
        per_second(counters.total()),
        per_second(counters.of(Kind::Read)),
        mebibytes(counters.bytes_read as f64 / seconds),
        per_second(counters.of(Kind::Write)),
        mebibytes(counters.bytes_written as f64 / seconds),
        per_second(counters.of(Kind::Commit)),
        sum(|kind| matches!(kind, Kind::Getattr | Kind::Lookup | Kind::Access | Kind::Readdir | Kind::Other)),
        sum(Kind::is_change),
        sum(|kind| matches!(kind, Kind::Open | Kind::Lock)),
        percent(counters.sequential_reads + counters.sequential_writes, reads + writes),
        percent(counters.stable_writes, writes),
        per_second(counters.errors),
    ]
}

/// Returns the table of cache devices, with rates per second.
fn device_table(devices: &[DeviceActivity], seconds: f64) -> Table {
    let right = |head| (head, Align::Right);
    let mut table = Table::new(&[
        ("DEVICE", Align::Left),
        right("READ/s"),
        right("MiB/s"),
        right("WRITE/s"),
        right("MiB/s"),
        right("FLUSH/s"),
    ]);
    for device in devices {
        table.row([
            printable(&device.name),
            rate(device.reads as f64 / seconds),
            mebibytes(device.bytes_read as f64 / seconds),
            rate(device.writes as f64 / seconds),
            mebibytes(device.bytes_written as f64 / seconds),
            rate(device.flushes as f64 / seconds),
        ]);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    fn activity(seconds: u64, reads: &[(&str, u64)]) -> Activity {
        let entry = |(name, reads): &(&str, u64)| {
            let mut counters = Counters::default();
            counters.operations[Kind::Read as usize] = *reads;
            (counters.read_sizes[3], counters.bytes_read) = (*reads, reads * 4096);
            ActivityEntry { name: (*name).to_owned(), counters, ..ActivityEntry::default() }
        };
        let clients =
            ActivityGroup { entries: reads.iter().map(entry).collect(), ..ActivityGroup::default() };
        let device =
            |name: &str, reads| DeviceActivity { name: name.into(), reads, ..DeviceActivity::default() };
        Activity {
            time_ns: seconds * 1_000_000_000,
            clients,
            devices: vec![device("/dev/a", seconds * 10), device("/dev/b", 100 - seconds)],
            ..Activity::default()
        }
    }

    #[test]
    fn rows_are_about_the_interval_and_the_rest_is_summed() {
        let before = activity(10, &[("a", 1000), ("b", 10), ("c", 5)]);
        let now = activity(12, &[("a", 1000), ("b", 30), ("c", 9), ("d", 6)]);
        let interval = between(Some(&before), &now, By::Client, 1);
        let Rows::Entries { entries, others } = &interval.rows else { panic!("{interval:?}") };
        assert_eq!((&*entries[0].name, entries[0].counters.total(), entries.len()), ("b", 20, 1));
        assert_eq!((others.total(), interval.seconds), (10, 2.0));
        let text = anstream::adapter::strip_str(&describe(&interval, By::Client)).to_string();
        let lines: Vec<Vec<_>> = text.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(lines[1][..2], ["CLIENT", "OPS/s"]);
        assert_eq!(lines[2][..3], ["b", "10.0", "10.0"]);
        assert_eq!(lines[3][..2], ["others", "5.0"]);
        let json = serde_json::to_value(&interval).unwrap();
        assert_eq!(json["entries"][0]["operations"]["read"], 20);
    }

    #[test]
    fn the_first_rows_count_from_the_begin_and_a_reset_begins_anew() {
        let now = activity(12, &[("a", 24)]);
        let Rows::Entries { entries, .. } = between(None, &now, By::Client, 5).rows else { panic!() };
        assert_eq!(entries[0].counters.total(), 24);
        let reset = Activity { since_ns: 11_000_000_000, ..activity(12, &[("a", 30)]) };
        let interval = between(Some(&activity(11, &[("a", 24)])), &reset, By::Client, 5);
        let Rows::Entries { entries, .. } = &interval.rows else { panic!() };
        assert_eq!((entries[0].counters.total(), interval.seconds), (30, 1.0));
    }

    #[test]
    fn a_device_that_was_opened_again_counts_from_nothing() {
        let interval = between(Some(&activity(10, &[])), &activity(12, &[]), By::Device, 5);
        let Rows::Devices { devices } = &interval.rows else { panic!() };
        let reads: Vec<_> = devices.iter().map(|device| (&*device.name, device.reads)).collect();
        assert!(reads.contains(&("/dev/a", 20)) && reads.contains(&("/dev/b", 88)), "{reads:?}");
        assert!(describe(&interval, By::Device).contains("/dev/a"));
        let empty = between(None, &Activity { devices: Vec::new(), ..activity(1, &[]) }, By::Device, 5);
        assert!(describe(&empty, By::Device).contains('-'));
    }
}
