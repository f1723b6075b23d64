//! Fuzzes every message of NBD that a server or a client receives.
#![no_main]

use forebay_wire::nbd::{
    Chunk, Greeting, InfoRequest, MetaRequest, OPTION_HEADER, OptionHeader, OptionReply, OptionReplyHeader,
    ReplyHeader, Request,
};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let _ = Greeting::decode(bytes);
    if let Ok(header) = OptionHeader::decode(bytes) {
        let data = &bytes[OPTION_HEADER..];
        if let Ok(request) = InfoRequest::decode(data) {
            let mut out = Vec::new();
            request.encode(&mut out);
            assert_eq!(out, data);
        }
        if let Ok(request) = MetaRequest::decode(data) {
            let queries: Vec<&str> = request.queries.iter().collect();
            let mut out = Vec::new();
            MetaRequest::encode(request.name, &queries, &mut out);
            assert_eq!(out, data);
        }
        let mut out = Vec::new();
        header.encode(&mut out);
        assert_eq!(out, bytes[..OPTION_HEADER]);
    }
    for is_extended in [false, true] {
        if let Ok(request) = Request::decode(bytes, is_extended) {
            let mut out = Vec::new();
            request.encode(is_extended, &mut out);
            assert!(bytes.starts_with(&out));
            assert!(request.payload(is_extended) <= request.length);
        }
    }
    if let Ok(header) = OptionReplyHeader::decode(bytes) {
        let _ = OptionReply::decode(header, &bytes[20..]);
    }
    if let Ok(ReplyHeader::Chunk { kind, .. }) = ReplyHeader::decode(bytes)
        && let Some(size) = bytes.first_chunk().and_then(|magic| ReplyHeader::size(*magic))
        && let Ok(Chunk::Status { extents, .. }) = Chunk::decode(kind, &bytes[size..])
    {
        assert!(extents.iter().count() > 0);
    }
});
