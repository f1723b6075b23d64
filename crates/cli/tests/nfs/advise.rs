//! Tests of the miss-ratio curve of a real server: `forebay advise`, its JSON, and the metrics.

use serde_json::Value;

use crate::harness::*;

/// Bytes of a READ, and the READs of the file: 24 MiB, more than the 16 MiB of memory.
const READ: u64 = 64 << 10;
const READS: u64 = 384;

fn advice(server: &Server) -> Value {
    serde_json::from_str(&server.ask(&["advise", "--json"])).unwrap()
}

/// Reads the file again and again, until the server has seen enough.
fn read_until_enough(server: &Server, file: &FileHandle) -> Value {
    repeat_until_enough(server, |c| {
        for number in 0..READS {
            assert_eq!(c.read(file, number * READ, READ as u32).unwrap().data.len() as u64, READ);
        }
    })
}

/// Repeats a load until the server has seen enough, and returns its advice.
fn repeat_until_enough(server: &Server, mut load: impl FnMut(&mut Client)) -> Value {
    let mut c = server.connect();
    for _ in 0..200 {
        load(&mut c);
        let advice = advice(server);
        if advice["curve"]["enough"] == true {
            return advice;
        }
        assert!(advice["best"].as_str().unwrap().starts_with("Not enough requests seen yet"), "{advice}");
    }
    panic!("the server has not sampled enough requests");
}

#[test]
fn the_curve_of_a_load_is_shown_as_a_table_as_json_and_in_metrics() {
    let server = Serve::unsquashed().cached().start();
    let mut c = server.connect();
    let root = c.root();
    let file = c.new_file(&root, b"f", 0o644);
    for number in 0..READS {
        c.write(&file, number * READ, &vec![number as u8; READ as usize], StableHow::FileSync).unwrap();
    }
    let advice = read_until_enough(&server, &file);
    let curve = &advice["curve"];
    let points = curve["points"].as_array().unwrap();
    assert_eq!(points.len(), 9, "{curve}");
    let sizes: Vec<_> = points.iter().map(|point| point["cache_bytes"].as_u64().unwrap()).collect();
    assert!(sizes.is_sorted() && sizes.contains(&curve["cache_bytes"].as_u64().unwrap()), "{curve}");
    // The file fits the cache devices, but not memory.
    let hits = |at: usize| points[at]["hit_ratio"].as_f64().unwrap();
    assert!(hits(4) > 0.6 && hits(8) >= hits(4) - 0.01, "{curve}");
    assert!(curve["blocks_written"].as_u64().unwrap() >= 6144, "{curve}");
    assert!(curve["simulation_bytes"].as_u64().unwrap() <= 4 << 20, "{curve}");
    assert_eq!(advice["mode"], "write-back");
    let shown = server.ask(&["advise"]);
    // The widths of columns follow the figures.
    let mut lines = shown.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "));
    assert!(lines.any(|line| line.starts_with("CACHE DEVICES HITS")), "{shown}");
    assert!(shown.contains("  now\n"), "{shown}");
    assert!(shown.contains(advice["best"].as_str().unwrap()), "{shown}");
    let metrics = server.ask(&["status", "--prometheus"]);
    let curves = metrics.lines().filter(|line| line.starts_with("forebay_miss_ratio_curve{")).count();
    assert_eq!(curves, 9, "{metrics}");
}

#[test]
fn a_curve_that_is_switched_off_costs_nothing_and_says_so() {
    let server = Serve::new()
        .exports(
            "miss_ratio_curve = false\n[[export]]\npath = \"@/data\"\nname = \"/data\"\n[[export.client]]\nnetworks = [\"*\"]\n",
        )
        .cached()
        .start();
    let output = server.try_ask(&["advise"]);
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && told.contains("set `miss_ratio_curve = true`"), "{told}");
    assert!(!server.ask(&["status", "--prometheus"]).contains("miss_ratio"));
}

/// Three exports: one whose own mode makes writers wait, and two in the mode of the server.
const EXPORTS: &str = r#"
[[export]]
path = "@/data/slow"
name = "/slow"
policy = { mode = "write-through" }
[[export.client]]
networks = ["127.0.0.1"]
squash = "none"
[[export]]
path = "@/data/streams"
name = "/streams"
[[export.client]]
networks = ["127.0.0.1"]
squash = "none"
[[export]]
path = "@/data/mixed"
name = "/mixed"
[[export.client]]
networks = ["127.0.0.1"]
squash = "none"
"#;

/// Returns what the server advises about exports, in the order of their worth.
fn about_exports(advice: &Value) -> Vec<&str> {
    let facts = advice["facts"].as_array().unwrap().iter();
    let sentences = std::iter::once(&advice["best"]).chain(facts).map(|sentence| sentence.as_str().unwrap());
    sentences.filter(|sentence| sentence.contains("forebay policy")).collect()
}

#[test]
fn exports_that_wait_or_stream_are_named_and_others_are_not() {
    let server = Serve::new().cached().exports(EXPORTS).start_on(|data| {
        ["slow", "streams", "mixed"].iter().for_each(|name| std::fs::create_dir(data.join(name)).unwrap());
    });
    let mut c = server.connect();
    let mut file = |export: &[u8]| {
        let root = c.mnt(export).unwrap().fhandle;
        c.new_file(&root, b"f", 0o644)
    };
    let (slow, streams, mixed) = (file(b"/slow"), file(b"/streams"), file(b"/mixed"));
    let data = vec![1; READ as usize];
    let write = |c: &mut Client, file: &FileHandle, number: u64| {
        c.write(file, number * READ, &data, StableHow::Unstable).unwrap();
    };
    // Data that is written here and there, and read back: no export is the reason that anything waits. Two blocks that
    // follow each other are more than 16 times their length apart.
    let scattered = |c: &mut Client| {
        for number in (0..READS).map(|number| number * 37 % READS) {
            write(c, &mixed, number);
            for _ in 0..3 {
                assert_eq!(c.read(&mixed, number * READ, READ as u32).unwrap().data.len() as u64, READ);
            }
        }
    };
    let quiet = repeat_until_enough(&server, scattered);
    assert_eq!(about_exports(&quiet), [""; 0], "{quiet}");

    // A quarter of these bytes to each of the others: a sixth of all, however many rounds there were.
    let moved: u64 =
        ["blocks_read", "blocks_written"].iter().map(|of| quiet["curve"][of].as_u64().unwrap()).sum();
    for _ in 0..moved.div_ceil(4 * READS * READ / 4096) {
        for number in 0..READS {
            write(&mut c, &slow, number);
            write(&mut c, &streams, number);
        }
    }
    let advice = advice(&server);
    let told = about_exports(&advice);
    let [first, second] = told[..] else { panic!("{advice}") };
    assert!(first.starts_with("WRITEs to /slow are ") && first.contains("in mode write-through"), "{advice}");
    let path = server.data.join("slow");
    assert!(first.contains(&format!("`forebay policy show {}`", path.display())), "{advice}");
    assert!(second.starts_with("Clients write streams to /streams, "), "{advice}");
    let path = server.data.join("streams");
    assert!(second.contains(&format!("`forebay policy set {} --priority low`", path.display())), "{advice}");

    // What the sentence proposes ends the advice.
    server.ask(&["policy", "set", path.to_str().unwrap(), "--priority", "low"]);
    let advice: Value = serde_json::from_str(&server.ask(&["advise", "--json"])).unwrap();
    assert_eq!(about_exports(&advice).len(), 1, "{advice}");
}
