//! Tests of reports: results become a page and pictures.

#![allow(clippy::unwrap_used, reason = "a panic is the assertion, in helpers too")]

mod common;

use common::{NullServer, bench};

#[test]
fn results_become_a_page_without_anything_to_load_and_pictures() {
    let server = NullServer::start();
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let mut results = Vec::new();
    for (label, clients) in [("<one>", "1"), ("<one>", "4"), ("two", "1"), ("two", "4")] {
        let result = path(&format!("{}-{clients}.json", results.len()));
        let load = [
            "randread", "seqwrite", "meta", "--items", "20", "--size", "1M", "--count", "200", "--repeat",
            "2",
        ];
        server.succeeds(&[&load[..], &["-n", clients, "--label", label, "-o", &result]].concat());
        results.push(result);
    }
    let report = |name: &str| {
        let output = path(name);
        let results = results.iter().map(String::as_str);
        let arguments: Vec<&str> = ["report"].into_iter().chain(results).chain(["-o", &output]).collect();
        let ran = bench(&arguments);
        assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
        std::fs::read(output).unwrap()
    };
    let page = String::from_utf8(report("r.html")).unwrap();
    for part in [
        "randread: operations/s against clients",
        "seqwrite: MiB/s against clients",
        "meta/create",
        "&lt;one&gt;",
    ] {
        assert!(page.contains(part), "{part}");
    }
    for foreign in ["<one>", "<script", "src=", "@import", "url(", "href=\"http", "NaN"] {
        assert!(!page.contains(foreign), "{foreign}");
    }
    let tables = String::from_utf8(report("r.md")).unwrap();
    assert!(tables.contains("## randread\n") && tables.contains("| \\<one\\> | 4 |"), "{tables}");
    assert!(String::from_utf8(report("r.svg")).unwrap().contains("<svg"));
    assert!(report("r.png").starts_with(b"\x89PNG"));
}

#[test]
fn mistakes_are_explained() {
    let folder = tempfile::tempdir().unwrap();
    let bad = folder.path().join("bad.json");
    std::fs::write(&bad, "{}").unwrap();
    let bad = bad.to_str().unwrap();
    for (arguments, reason) in [
        (["report", bad, "-o", "x.html"], "cannot be read"),
        (["report", "/nonexistent", "-o", "x.html"], "cannot be read"),
        (["report", bad, "-o", "x.pdf"], "has to end in"),
    ] {
        let ran = bench(&arguments);
        let errors = String::from_utf8_lossy(&ran.stderr);
        assert_eq!(ran.status.code(), Some(1));
        assert!(errors.contains(reason) && errors.lines().count() == 1, "{arguments:?}: {errors}");
    }
}
