//! Fuzzes headers of calls and replies, as they arrive in a record.
#![no_main]

use forebay_fuzz::{Encode, Reader, check};
use forebay_wire::rpc::{CallHeader, ReplyHeader};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    if let Ok(header) = CallHeader::decode(&mut Reader::new(bytes)) {
        let mut out = Vec::new();
        header.encode(&mut out);
        assert!(out.len() <= bytes.len());
        assert_eq!(CallHeader::decode(&mut Reader::new(&out)), Ok(header));
    }
    check!(bytes, ReplyHeader);
});
