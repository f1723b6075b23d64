//! Checks that every row of the table has a label, a test, and a place in the code.

use std::collections::BTreeSet;

const TABLE: &str = include_str!("../../../../docs/on-disk-format.md");
const TESTS: [&str; 3] = [include_str!("segments.rs"), include_str!("log.rs"), include_str!("records.rs")];
const CODE: [&str; 5] = [
    include_str!("../../../engine/src/recover/mod.rs"),
    include_str!("../../../engine/src/recover/headers.rs"),
    include_str!("../../../engine/src/recover/frames.rs"),
    include_str!("../../../engine/src/recover/apply.rs"),
    include_str!("../../../engine/src/recover/image.rs"),
];

/// Returns the numbers that follow `before` and precede one of `behind`.
fn labels(text: &str, before: &str, behind: &[char]) -> BTreeSet<u32> {
    let parts = text.split(before).skip(1);
    let numbers = parts.filter_map(|part| {
        let end = part.find(|c: char| !c.is_ascii_digit())?;
        part[end..].starts_with(behind).then(|| part[..end].parse().ok())?
    });
    numbers.collect()
}

#[test]
fn every_row_of_the_table_has_a_test_and_is_named_in_the_code() {
    let rows = labels(TABLE, "| R", &[' ']);
    assert!(rows.len() > 20 && rows.iter().copied().eq(1..=rows.len() as u32), "{rows:?}");
    let tests: BTreeSet<u32> = TESTS.iter().flat_map(|text| labels(text, "fn r", &['_'])).collect();
    assert_eq!(tests, rows);
    let named: BTreeSet<u32> =
        CODE.iter().flat_map(|text| labels(text, "R", &[' ', ',', '.', ':', ')', ';'])).collect();
    assert_eq!(named, rows);
}
