//! Messages of NBD: golden bytes written from `doc/proto.md`, and properties of every decoder.

use proptest::prelude::*;

use crate::nbd::*;

/// Returns the bytes of a text of hexadecimal digits and spaces.
fn hex(text: &str) -> Vec<u8> {
    let digits: Vec<u32> = text.chars().filter_map(|c| c.to_digit(16)).collect();
    digits.chunks(2).map(|pair| ((pair[0] << 4) | pair[1]) as u8).collect()
}

fn encoded(encode: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let mut out = Vec::new();
    encode(&mut out);
    out
}

#[test]
fn handshake_bytes() {
    let bytes = hex("4e42444d41474943 49484156454f5054 0003");
    let greeting = Greeting { flags: server::FIXED_NEWSTYLE | server::NO_ZEROES };
    assert_eq!(greeting.encode(), bytes);
    assert_eq!((Greeting::decode(&bytes), bytes.len()), (Ok(greeting), GREETING));
    assert_eq!(Greeting::decode(&[0; GREETING]), Err(Malformed::Magic));
    let bytes = hex("49484156454f5054 00000007 00000010");
    let header = OptionHeader { option: OptionId::Go as u32, length: 16 };
    assert_eq!(encoded(|out| header.encode(out)), bytes);
    assert_eq!((OptionHeader::decode(&bytes), bytes.len()), (Ok(header), OPTION_HEADER));
    assert_eq!(OptionHeader::decode(&bytes[1..]), Err(Malformed::Magic));
}

#[test]
fn option_bytes() {
    let bytes = hex("00000004 6469736b 0002 0001 0003");
    let infos = InfoIds::new(&bytes[10..]).unwrap();
    let request = InfoRequest { name: "disk", infos };
    assert_eq!(encoded(|out| request.encode(out)), bytes);
    assert_eq!(InfoRequest::decode(&bytes), Ok(request));
    assert!(infos.has(Info::Name) && infos.has(Info::BlockSize) && !infos.has(Info::Description));
    assert_eq!(InfoRequest::decode(&hex("00000001 00 0000")), Err(Malformed::Text));
    assert_eq!(InfoRequest::decode(&hex("00000001 ff 0000")), Err(Malformed::Text));
    assert_eq!(InfoRequest::decode(&hex("00000000 0000 00")), Err(Malformed::Excess(1)));
    assert_eq!(InfoRequest::decode(&hex("00001001 0000")), Err(Malformed::TooLong(4097)));
    assert_eq!(InfoRequest::decode(&hex("ffffffff 0000")), Err(Malformed::TooLong(u32::MAX as usize)));
    let bytes = hex("00000004 6469736b 00000002 00000005 626173653a 00000001 78");
    assert_eq!(encoded(|out| MetaRequest::encode("disk", &["base:", "x"], out)), bytes);
    let request = MetaRequest::decode(&bytes).unwrap();
    assert_eq!((request.name, request.queries.iter().collect::<Vec<_>>()), ("disk", vec!["base:", "x"]));
    // The count of queries is checked against the bytes, and takes no memory.
    assert_eq!(MetaRequest::decode(&hex("00000000 ffffffff")), Err(Malformed::Truncated));
}

#[test]
fn option_reply_bytes() {
    let golden = [
        (OptionReply::Ack, "00000001 00000000"),
        (OptionReply::Server { name: "disk" }, "00000002 00000008 00000004 6469736b"),
        (OptionReply::Export { size: 1 << 33, flags: 0x10d }, "00000003 0000000c 0000 0000000200000000 010d"),
        (OptionReply::Name("disk"), "00000003 00000006 0001 6469736b"),
        (
            OptionReply::BlockSize { minimum: 1, preferred: 4096, maximum: MAX_PAYLOAD },
            "00000003 0000000e 0003 00000001 00001000 02000000",
        ),
        (OptionReply::MetaContext { id: 1, name: BASE_ALLOCATION }, META),
        (OptionReply::refused(RefusalId::TlsReqd, "TLS"), "80000005 00000003 544c53"),
    ];
    for (reply, text) in golden {
        let bytes = [hex("0003e889045565a9 00000007"), hex(text)].concat();
        assert_eq!(encoded(|out| reply.encode(7, out)), bytes);
        let header = OptionReplyHeader::decode(&bytes).unwrap();
        assert!(header.is_for(OptionId::Go));
        let is_last = matches!(reply, OptionReply::Ack | OptionReply::Refused { .. });
        assert_eq!(header.is_last(), is_last);
        let data = &bytes[OPTION_REPLY_HEADER..];
        assert_eq!(data.len(), header.length as usize);
        assert_eq!(OptionReply::decode(header, data), Ok(reply));
    }
}

const META: &str = "00000004 00000013 00000001 626173653a616c6c6f636174696f6e";

#[test]
fn request_bytes() {
    let request = Request {
        flags: command_flags::FUA,
        command: 1,
        cookie: 0x0102_0304_0506_0708,
        offset: 1 << 32,
        length: 9,
    };
    let compact = hex("25609513 0001 0001 0102030405060708 0000000100000000 00000009");
    assert_eq!(encoded(|out| request.encode(false, out)), compact);
    assert_eq!((Request::decode(&compact, false), compact.len()), (Ok(request), COMPACT_REQUEST));
    assert_eq!(request.payload(false), 9);
    assert_eq!(request.payload(true), 0, "only a flag announces a payload with extended headers");
    let request = Request { flags: command_flags::PAYLOAD_LEN, length: 1 << 32, ..request };
    let extended = hex("21e41c71 0020 0001 0102030405060708 0000000100000000 0000000100000000");
    assert_eq!(encoded(|out| request.encode(true, out)), extended);
    assert_eq!((Request::decode(&extended, true), extended.len()), (Ok(request), EXTENDED_REQUEST));
    assert_eq!(request.payload(true), 1 << 32);
    assert_eq!(Request::decode(&extended, false), Err(Malformed::Magic));
    assert_eq!(Request::decode(&compact, true), Err(Malformed::Magic));
    for command in Command::ALL {
        assert_eq!(Command::from_number(command as u16), Some(command));
    }
    assert_eq!(Command::from_number(8), None);
}

#[test]
fn reply_bytes() {
    let id = (0x0102_0304_0506_0708, 4096);
    let simple = encoded(|out| encode_error(Style::Simple, id, ErrorCode::NoSpc, "lost", out));
    assert_eq!(simple, hex("67446698 0000001c 0102030405060708"));
    let done = encoded(|out| encode_done(Style::Structured, id.0, id.1, out));
    assert_eq!(done, hex("67446698 00000000 0102030405060708"));
    let done = encoded(|out| encode_done(Style::Extended, id.0, id.1, out));
    assert_eq!(done, hex("6e8a278c 0001 0000 0102030405060708 0000000000001000 0000000000000000"));
    let error = encoded(|out| encode_error(Style::Structured, id, ErrorCode::Io, "no", out));
    assert_eq!(error, hex("668e33ef 0001 8001 0102030405060708 00000008 00000005 0002 6e6f"));
    let data = encoded(|out| encode_data_head(Style::Structured, id, 512, out));
    assert_eq!(data, hex("668e33ef 0001 0001 0102030405060708 00000208 0000000000001000"));
    let data = encoded(|out| encode_data_head(Style::Extended, id, 512, out));
    let head = "6e8a278c 0001 0001 0102030405060708 0000000000001000 0000000000000208 0000000000001000";
    assert_eq!(data, hex(head));
    let status = encoded(|out| encode_status(Style::Structured, id, 7, &[(512, 3)], true, out));
    assert_eq!(status, hex("668e33ef 0001 0005 0102030405060708 0000000c 00000007 00000200 00000003"));
    let status = encoded(|out| encode_status(Style::Extended, id, 7, &[(1 << 32, 3)], false, out));
    let head = "6e8a278c 0000 0006 0102030405060708 0000000000001000 0000000000000018";
    assert_eq!(status, hex(&format!("{head} 00000007 00000001 0000000100000000 0000000000000003")));
}

#[test]
fn a_client_reads_every_reply_and_every_chunk() {
    for style in [Style::Structured, Style::Extended] {
        let check = |bytes: &[u8], expected: Chunk<'_>, last: bool| {
            let size = ReplyHeader::size(*bytes.first_chunk().unwrap()).unwrap();
            let header = ReplyHeader::decode(&bytes[..size]).unwrap();
            let ReplyHeader::Chunk { is_last, kind, cookie: 5, length } = header else {
                panic!("{header:?}")
            };
            assert_eq!((is_last, length), (last, (bytes.len() - size) as u64));
            assert_eq!(Chunk::decode(kind, &bytes[size..]), Ok(expected));
        };
        let error = encoded(|out| encode_error(style, (5, 0), ErrorCode::Perm, "read-only", out));
        check(&error, Chunk::Error { error: 1, message: "read-only", offset: None }, true);
        let data = encoded(|out| {
            encode_data_head(style, (5, 4096), 4, out);
            out.extend(b"data");
        });
        check(&data, Chunk::Data { offset: 4096, data: b"data" }, true);
        let extents = [(4096, 1), (512, 2)];
        let status = encoded(|out| encode_status(style, (5, 0), 3, &extents, false, out));
        let size = ReplyHeader::size(*status.first_chunk().unwrap()).unwrap();
        let Ok(ReplyHeader::Chunk { kind, .. }) = ReplyHeader::decode(&status) else { panic!() };
        let Ok(Chunk::Status { context: 3, extents: read }) = Chunk::decode(kind, &status[size..]) else {
            panic!()
        };
        assert_eq!(read.iter().collect::<Vec<_>>(), extents);
    }
    let hole = [4096u64.to_be_bytes().as_slice(), &512u32.to_be_bytes()].concat();
    assert_eq!(Chunk::decode(chunk_type::OFFSET_HOLE, &hole), Ok(Chunk::Hole { offset: 4096, length: 512 }));
    let error = [&hex("00000005 0002 6e6f"), 9u64.to_be_bytes().as_slice()].concat();
    let expected = Chunk::Error { error: 5, message: "no", offset: Some(9) };
    assert_eq!(Chunk::decode(chunk_type::ERROR_OFFSET, &error), Ok(expected));
    assert_eq!(Chunk::decode(chunk_type::OFFSET_DATA, &[0; 8]), Err(Malformed::Truncated));
    assert_eq!(Chunk::decode(chunk_type::BLOCK_STATUS, &[0; 4]), Err(Malformed::Truncated));
}

#[test]
fn a_long_message_is_cut_between_characters() {
    let message = "x".repeat(MAX_STRING - 1) + "é";
    let bytes = encoded(|out| encode_error(Style::Structured, (1, 0), ErrorCode::Io, &message, out));
    assert_eq!(bytes.len(), STRUCTURED_REPLY + 6 + MAX_STRING - 1);
    assert!(Chunk::decode(chunk_type::ERROR, &bytes[STRUCTURED_REPLY..]).is_ok());
    assert_eq!(ErrorCode::from_number(28), ErrorCode::NoSpc);
    assert_eq!(ErrorCode::from_number(7), ErrorCode::Inval);
}

fn text() -> impl Strategy<Value = String> {
    "[^\0]{0,40}"
}

proptest! {
    #[test]
    fn requests_survive(flags: u16, command: u16, cookie: u64, offset: u64, length: u64, is_extended: bool) {
        let length = if is_extended { length } else { length >> 32 };
        let request = Request { flags, command, cookie, offset, length };
        let bytes = encoded(|out| request.encode(is_extended, out));
        prop_assert_eq!(Request::decode(&bytes, is_extended), Ok(request));
        prop_assert_eq!(Request::decode(&bytes[..bytes.len() - 1], is_extended), Err(Malformed::Truncated));
    }

    #[test]
    fn options_survive(name in text(), ids: Vec<u16>, queries in prop::collection::vec(text(), 0..9)) {
        let ids: Vec<u8> = ids.into_iter().flat_map(u16::to_be_bytes).collect();
        let request = InfoRequest { name: &name, infos: InfoIds::new(&ids).unwrap() };
        let bytes = encoded(|out| request.encode(out));
        prop_assert_eq!(InfoRequest::decode(&bytes), Ok(request));
        let queries: Vec<&str> = queries.iter().map(String::as_str).collect();
        let bytes = encoded(|out| MetaRequest::encode(&name, &queries, out));
        let request = MetaRequest::decode(&bytes).unwrap();
        prop_assert_eq!((request.name, request.queries.iter().collect::<Vec<_>>()), (&*name, queries));
    }

    #[test]
    fn option_replies_survive(a in text(), number: u16, id: u32, size: u64, option: u32) {
        let replies = [
            OptionReply::Server { name: &a },
            OptionReply::Export { size, flags: number },
            OptionReply::Name(&a),
            OptionReply::Description(&a),
            OptionReply::BlockSize { minimum: id, preferred: option, maximum: id },
            OptionReply::OtherInfo(number.max(4)),
            OptionReply::MetaContext { id, name: &a },
            OptionReply::Refused { reason: id | (1 << 31), message: &a },
        ];
        for reply in replies {
            let bytes = encoded(|out| reply.encode(option, out));
            let header = OptionReplyHeader::decode(&bytes).unwrap();
            prop_assert_eq!(OptionReply::decode(header, &bytes[OPTION_REPLY_HEADER..]), Ok(reply));
        }
    }

    #[test]
    fn no_bytes_make_a_decoder_panic(bytes: Vec<u8>, kind: u16, option: u32) {
        let _ = (Greeting::decode(&bytes), OptionHeader::decode(&bytes), OptionReplyHeader::decode(&bytes));
        let _ = (InfoRequest::decode(&bytes), Request::decode(&bytes, true), ReplyHeader::decode(&bytes));
        if let Ok(request) = MetaRequest::decode(&bytes) {
            prop_assert!(request.queries.iter().count() <= bytes.len() / 4);
        }
        for kind in [kind, kind % 8, (kind % 8) | (1 << 15)] {
            let _ = Chunk::decode(kind, &bytes);
        }
        for kind in [option, option % 8, option | (1 << 31)] {
            let header = OptionReplyHeader { option, kind, length: bytes.len() as u32 };
            let _ = OptionReply::decode(header, &bytes);
        }
    }
}
