//! The bytes on the devices, as they were when the format was fixed. A failure means that pools in the field can no
//! longer be read: make a new format version instead.

use std::fmt::Write;

use super::*;

/// Returns the bytes in lines of 16, each with its offset. Lines of zeros are left out.
fn hex(bytes: &[u8]) -> String {
    let mut out = String::new();
    for (line, bytes) in bytes.chunks(16).enumerate().filter(|(_, bytes)| !is_zero(bytes)) {
        write!(out, "{:06x}", line * 16).unwrap();
        bytes.iter().for_each(|byte| write!(out, " {byte:02x}").unwrap());
        out.push('\n');
    }
    out
}

/// Compares with the fixture. With `FOREBAY_GOLDEN=write`, writes a new fixture instead.
#[track_caller]
#[allow(clippy::disallowed_methods, reason = "the fixtures are files of the repository")]
pub(crate) fn assert_golden(name: &str, expected: &str, bytes: &[u8]) {
    let found = hex(bytes);
    if std::env::var_os("FOREBAY_GOLDEN").is_some_and(|value| value == "write") {
        let path = format!("{}/src/format/golden/{name}.hex", env!("CARGO_MANIFEST_DIR"));
        std::fs::write(path, &found).unwrap();
        return;
    }
    assert_eq!(found, expected, "{name} changed");
}

/// Returns the block that a fixture shows.
pub(crate) fn from_hex(text: &str) -> Vec<u8> {
    let mut block = vec![0; BLOCK];
    for line in text.lines() {
        let (offset, bytes) = line.split_once(' ').unwrap();
        let at = usize::from_str_radix(offset, 16).unwrap();
        for (i, byte) in bytes.split(' ').enumerate() {
            block[at + i] = u8::from_str_radix(byte, 16).unwrap();
        }
    }
    block
}

#[test]
fn frame_of_notes() {
    let note = |bytes: &[u8]| Record::UserRecord { bytes: bytes.into() };
    let body = Body { objects: Vec::new(), records: vec![note(b"a note"), note(&[0xff; 300])] };
    let frame = encoded(&head(10, 0, &body), &body);
    assert_golden("frame_of_notes", include_str!("../golden/frame_of_notes.hex"), &frame);
}

#[test]
fn segment_header() {
    let mut block = vec![0; BLOCK];
    header().encode(&mut block).unwrap();
    assert_golden("segment_header", include_str!("../golden/segment_header.hex"), &block);
}

#[test]
fn frame() {
    let body = small_body();
    let frame = encoded(&head(10, 3, &body), &body);
    assert_golden("frame", include_str!("../golden/frame.hex"), &frame[..BLOCK]);
}

#[test]
fn frame_with_a_tail() {
    let body = large_body();
    let head = head(10, 101, &body);
    let frame = encoded(&head, &body);
    let written = [&frame[..BLOCK], tail_of(&head, &frame)].concat();
    assert_golden("frame_with_a_tail", include_str!("../golden/frame_with_a_tail.hex"), &written);
}

#[test]
fn footer_of_three_blocks() {
    let bytes = footer(large_body()).encode(SEGMENT.slots).unwrap();
    assert_golden("footer", include_str!("../golden/footer.hex"), &bytes);
}

#[test]
fn block_checksum() {
    let content = content_hash(&[0x5a; BLOCK]);
    assert_eq!(content, GOLDEN_CONTENT);
    assert_eq!(bind(content, SEGMENT.pool, 0x0123_4567_89ab_cdef, 42, SEGMENT.seq, 11), GOLDEN_BOUND);
    assert_eq!(key_hash(&Key::new(b"first").unwrap()), GOLDEN_KEY);
}

const GOLDEN_CONTENT: u64 = 13_224_938_365_190_527_566;
const GOLDEN_BOUND: u32 = 1_315_677_128;
const GOLDEN_KEY: u64 = 3_967_406_410_050_873_939;
