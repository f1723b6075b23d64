//! Tests of the live view's picture and keys, without a terminal.

use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use forebay_control::{
    Activity, DurabilityStatus, MemoryStatus, OperationSample, Recorder, ReplyCacheStatus, StatSample,
    Status, WorkerStatus,
};
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use serde_json::json;

use super::app::{App, Step, Tab};
use super::draw::{Theme, draw};

const SECOND: u64 = 1_000_000_000;

/// Returns the state of a server after some seconds. Each client has done as many operations in each second as its
/// number.
fn status(seconds: u64) -> Status {
    let client = |number: u64| {
        json!({
            "address": format!("10.0.0.{number}"), "connections": 1, "operations": number * seconds,
            "bytes_read": seconds << 20, "bytes_written": 0, "last_seen_ns": 0,
        })
    };
    let export = json!({
        "name": "/data", "aliases": [], "path": "/srv/array/a/directory/with/a/long/name", "id": 1, "fs_type": "xfs",
        "total_bytes": 4u64 << 40, "free_bytes": 1u64 << 40, "total_inodes": 0, "free_inodes": 0,
    });
    let device = |name: &str, state: &str| json!({ "path": name, "size_bytes": 1 << 30, "state": state });
    serde_json::from_value(json!({
        "version": "1.2.3", "pid": 7, "started_ns": 1, "uptime_ns": seconds * SECOND, "mode": "write-back",
        "effective_mode": "write-back", "health": { "state": "OK" }, "write_verifier": "", "listen": [],
        "state_dir": "/s", "handles": "kernel", "exports": [export],
        "clients": (1..=30).map(client).collect::<Vec<_>>(), "procedures": [], "bytes_read": 0, "bytes_written": 0,
        "connections": 30, "connections_limit": 99, "inflight": 0, "memory": MemoryStatus::default(),
        "workers": WorkerStatus { threads: 96, ..WorkerStatus::default() },
        "durability": DurabilityStatus::default(), "reply_cache": ReplyCacheStatus::default(),
        "pool": { "configured": true, "clean_bytes": 0, "dirty_bytes": 0,
            "devices": [device("/dev/nvme1n1", "healthy"), device("/dev/nvme0n1", "lost")] },
    }))
    .unwrap()
}

fn sample(seconds: u64) -> StatSample {
    let recorder = Recorder::default();
    (0..seconds * 100).for_each(|_| recorder.record(std::time::Duration::from_millis(2)));
    let read = OperationSample {
        bytes: seconds * (5 << 20),
        latency: recorder.snapshot(),
        ..OperationSample::default()
    };
    StatSample {
        started_ns: 1,
        uptime_ns: seconds * SECOND,
        read,
        cache: Some(Default::default()),
        ..StatSample::default()
    }
}

/// Returns what clients did until a second: file `fN` has N operations in each second.
fn activity(seconds: u64) -> Activity {
    let file = |number: u64| {
        json!({
            "name": format!("/dir/f{number}"), "export": "/data", "operations": { "read": number * seconds },
            "bytes_read": seconds << 21, "errors": 0,
        })
    };
    let export =
        json!({ "name": "/data", "operations": { "write": 7 * seconds }, "bytes_written": seconds << 20 });
    let device =
        json!({ "name": "/dev/nvme1n1", "bytes_read": seconds << 22, "bytes_written": seconds << 23 });
    serde_json::from_value(json!({
        "time_ns": 100 * SECOND + seconds * SECOND, "since_ns": 100 * SECOND + seconds, "enabled": true,
        "files": { "entries": (1..=3).map(file).collect::<Vec<_>>() }, "exports": { "entries": [export] },
        "devices": [device],
    }))
    .unwrap()
}

fn app() -> App {
    let mut app = App::new(Vec::new());
    (1..4).for_each(|seconds| app.take(sample(seconds), status(seconds), Some(activity(seconds))));
    app
}

fn press(app: &mut App, keys: &str) {
    for key in keys.chars() {
        let code = match key {
            '\n' => KeyCode::Enter,
            '\t' => KeyCode::Tab,
            '\x1b' => KeyCode::Esc,
            '\x08' => KeyCode::Backspace,
            letter => KeyCode::Char(letter),
        };
        assert_eq!(app.key(KeyEvent::new(code, KeyModifiers::NONE)), Step::Continue, "{key:?}");
    }
}

/// Returns the lines of the picture.
fn picture(app: &App, width: u16, height: u16) -> Vec<String> {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    terminal.draw(|frame| draw(app, frame, &Theme::plain())).unwrap();
    let buffer = terminal.backend().buffer();
    let line = |y| (0..width).map(|x| buffer[(x, y)].symbol()).collect::<String>().trim_end().to_owned();
    (0..height).map(line).collect()
}

/// Returns the first words of the lines of a list.
fn names(app: &App) -> Vec<String> {
    let lines = picture(app, 80, 24);
    let rows = &lines[3..23];
    rows.iter().filter_map(|line| line.split_whitespace().next()).map(str::to_owned).collect()
}

#[test]
fn the_overview_fits_80_by_24() {
    let lines = picture(&app(), 80, 24);
    assert!(lines[0].starts_with(" 1 Overview  2 Clients  3 Exports  4 Files  5 Devices"), "{lines:#?}");
    assert_eq!(lines[1], "forebay 1.2.3  OK  mode write-back  up 3 s");
    let words = |line: usize| lines[line].split_whitespace().collect::<Vec<_>>();
    assert_eq!((&words(2)[..], &words(3)[..3]), (&["ops/s", "100", "██"][..], &["read", "MiB/s", "5.0"][..]));
    assert_eq!(lines[2].chars().count(), 80, "the newest point is at the right");
    assert!(lines.iter().any(|line| line.starts_with("destage MiB/s")));
    let read = lines.iter().find(|line| line.starts_with("READ ")).unwrap();
    assert_eq!(read.split_whitespace().take(4).collect::<Vec<_>>(), ["READ", "100", "5.0", "0"]);
    assert!(lines.iter().any(|line| line.contains("workers 0/96")), "{lines:#?}");
    assert!(lines[20].starts_with("the backing store is spared"), "{lines:#?}");
    assert!(lines[23].ends_with("? help  q quits"));
}

#[test]
fn a_larger_terminal_has_higher_curves() {
    let lines = picture(&app(), 200, 60);
    assert!(lines[2].starts_with("ops/s") && lines[6].starts_with("read MiB/s"), "{lines:#?}");
    let full = lines.iter().filter(|line| line.ends_with("██")).count();
    assert!(full >= 8, "the highest points fill four lines of two curves: {lines:#?}");
    assert!(lines[59].ends_with("q quits"));
}

#[test]
fn nothing_breaks_in_the_smallest_terminal() {
    let mut app = app();
    for tab in "12345?".chars() {
        press(&mut app, &tab.to_string());
        for (width, height) in [(1, 1), (5, 3), (20, 4), (79, 23), (300, 5)] {
            picture(&app, width, height);
        }
    }
}

#[test]
fn clients_are_sorted_by_any_column() {
    let mut app = app();
    press(&mut app, "2");
    let lines = picture(&app, 80, 24);
    assert!(lines[2].starts_with("CLIENT") && lines[2].contains("OPS/s▼"), "{lines:#?}");
    // A rate is that of the last interval.
    assert_eq!(lines[3].split_whitespace().collect::<Vec<_>>(), ["10.0.0.30", "30.0", "1.0", "0", "1", "90"]);
    press(&mut app, "r");
    assert_eq!(names(&app)[0], "10.0.0.1");
    press(&mut app, "S");
    assert_eq!(names(&app)[..2], ["10.0.0.1", "10.0.0.10"]);
    press(&mut app, "S");
    assert!(picture(&app, 80, 24)[2].contains("OPERATIONS▼"));
    assert_eq!(names(&app)[0], "10.0.0.30");
}

#[test]
fn a_filter_leaves_rows_that_have_it() {
    let mut app = app();
    press(&mut app, "2/.2x\x08");
    assert!(picture(&app, 80, 24)[23].starts_with("filter: .2_"));
    press(&mut app, "\n");
    assert_eq!(names(&app).len(), 11);
    assert!(picture(&app, 80, 24)[23].starts_with("filter: .2  11 of 30 rows"));
    press(&mut app, "/\x1b");
    assert_eq!((app.filter.as_str(), names(&app).len()), ("", 20));
    // Letters of commands are a part of the filter while it is typed.
    press(&mut app, "/q");
    assert_eq!(app.filter, "q");
}

#[test]
fn a_list_scrolls_to_its_last_row_and_no_further() {
    let mut app = app();
    press(&mut app, "2");
    press(&mut app, &"j".repeat(100));
    assert_eq!(names(&app), ["10.0.0.1"]);
    press(&mut app, "k");
    assert_eq!(names(&app), ["10.0.0.2", "10.0.0.1"]);
}

/// Returns the words of the first row of a list.
fn first_row(app: &App) -> Vec<String> {
    picture(app, 80, 24)[3].split_whitespace().map(str::to_owned).collect()
}

#[test]
fn exports_and_devices_have_their_rates() {
    let mut app = app();
    press(&mut app, "\t\t");
    assert_eq!(app.tab, Tab::Exports);
    let row = first_row(&app);
    assert_eq!(row[..7], ["/data", "7.0", "0", "1.0", "0", "1", "TiB"].map(str::to_owned), "{row:?}");
    assert_eq!(row[7..], ["75", "%", "…ry/with/a/long/name"].map(str::to_owned), "{row:?}");
    press(&mut app, "5");
    assert_eq!(names(&app), ["/dev/nvme0n1", "/dev/nvme1n1"]);
    let rows = picture(&app, 80, 24);
    assert!(rows[3].contains("lost") && rows[3].ends_with("-         -"), "{rows:#?}");
    assert!(rows[4].ends_with("4.0       8.0"), "{rows:#?}");
}

#[test]
fn files_are_sorted_by_what_is_done_to_them_now() {
    let mut app = app();
    press(&mut app, "4");
    assert_eq!(names(&app), ["/dir/f3", "/dir/f2", "/dir/f1"]);
    assert_eq!(first_row(&app), ["/dir/f3", "3.0", "2.0", "0", "0", "9", "/data"]);
    // After a reset of the counters, rates are those since the reset.
    let reset = Activity { since_ns: 200 * SECOND, time_ns: 202 * SECOND, ..activity(1) };
    app.take(sample(4), status(4), Some(reset));
    assert_eq!(first_row(&app)[1], "1.5");
    let off = Activity { enabled: false, files: Default::default(), ..activity(9) };
    app.take(sample(5), status(5), Some(off));
    assert!(picture(&app, 80, 24)[2].contains("`profile = false`"));
}

#[test]
fn help_and_pause_are_shown() {
    let mut app = app();
    press(&mut app, "?");
    assert!(picture(&app, 80, 24).join("\n").contains("sort by the next column"));
    press(&mut app, "\x1bp");
    let lines = picture(&app, 80, 24);
    assert!(lines[0].ends_with("PAUSED") && !lines.join("\n").contains("sort by"), "{lines:#?}");
    assert!(app.is_paused());
    assert_eq!(app.key(KeyEvent::new(KeyCode::Char('q'), KeyModifiers::NONE)), Step::Quit);
    assert_eq!(app.key(KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL)), Step::Quit);
}

#[test]
fn what_is_wrong_is_in_the_second_line() {
    let mut app = app();
    let mut degraded = status(4);
    degraded.health.degrade("cache device /dev/x failed".into());
    degraded.health.degrade("another".into());
    app.take(sample(4), degraded, None);
    let lines = picture(&app, 80, 24);
    assert_eq!(lines[1], "forebay 1.2.3  DEGRADED  cache device /dev/x failed (1 of 2)");
    app.set_silent(Some("no server runs".into()));
    assert!(picture(&app, 80, 24)[1].starts_with("NO ANSWER, last figures: no server runs"));
}

#[test]
fn without_colours_there_is_no_colour() {
    let mut terminal = Terminal::new(TestBackend::new(80, 24)).unwrap();
    let mut colours = |theme: &Theme| {
        terminal.draw(|frame| draw(&app(), frame, theme)).unwrap();
        let cells = terminal.backend().buffer().content();
        cells.iter().filter(|cell| cell.fg != ratatui::style::Color::Reset).count()
    };
    assert_eq!(colours(&Theme::plain()), 0);
    assert!(colours(&Theme::coloured()) > 0);
}
