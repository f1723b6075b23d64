use forebay_volume::disk::Shape;
use forebay_wire::nbd::{
    BASE_ALLOCATION, InfoIds, MAX_STRING, OPTION_REPLY_HEADER, OptionReplyHeader, transmission,
};

use super::*;
use crate::export::CACHE_CONTEXT;
use crate::request::tests::{Empty, SHAPE};

/// Devices with these names.
struct Names(Vec<&'static str>);

impl Disks for Names {
    fn list(&self) -> Vec<String> {
        self.0.iter().map(|name| (*name).to_owned()).collect()
    }

    fn open(&self, name: &str) -> Option<Arc<dyn Disk>> {
        let shape = Shape { rotational: true, ..SHAPE };
        self.0.contains(&name).then(|| Arc::new(Empty(shape)) as Arc<dyn Disk>)
    }
}

struct Client {
    state: Negotiation,
    tls: Tls,
    disks: Names,
}

/// The result of one option.
struct Answer {
    bytes: Vec<u8>,
    next: Next,
}

impl Answer {
    fn replies(&self) -> Vec<OptionReply<'_>> {
        let mut rest = &self.bytes[..];
        let mut replies = Vec::new();
        while !rest.is_empty() {
            let header = OptionReplyHeader::decode(rest).unwrap();
            let (data, after) = rest[OPTION_REPLY_HEADER..].split_at(header.length as usize);
            replies.push(OptionReply::decode(header, data).unwrap());
            rest = after;
            assert_eq!(header.is_last(), rest.is_empty(), "the last reply ends the option");
        }
        replies
    }

    fn reason(&self) -> Option<RefusalId> {
        let replies = self.replies();
        let [OptionReply::Refused { reason, .. }] = replies[..] else { return None };
        RefusalId::ALL.into_iter().find(|id| *id as u32 == reason)
    }
}

fn client(flags: u32) -> Client {
    let state = Negotiation::new(flags).unwrap();
    Client { state, tls: Tls::None, disks: Names(vec!["one", "two"]) }
}

impl Client {
    fn ask_number(&mut self, option: u32, data: &[u8]) -> Answer {
        let header = OptionHeader { option, length: data.len() as u32 };
        let mut bytes = Vec::new();
        let next = self.state.answer(header, data, self.tls, &self.disks, &mut bytes);
        Answer { bytes, next }
    }

    fn ask(&mut self, option: OptionId, data: &[u8]) -> Answer {
        self.ask_number(option as u32, data)
    }

    fn info(&mut self, option: OptionId, name: &str, ids: &[u8]) -> Answer {
        let mut data = Vec::new();
        InfoRequest { name, infos: InfoIds::new(ids).unwrap() }.encode(&mut data);
        self.ask(option, &data)
    }

    fn meta(&mut self, option: OptionId, queries: &[&str]) -> Answer {
        let mut data = Vec::new();
        MetaRequest::encode("one", queries, &mut data);
        self.ask(option, &data)
    }
}

#[test]
fn go_tells_size_flags_and_blocks_and_begins_transmission() {
    let mut client = client(3);
    assert!(matches!(client.ask(OptionId::StructuredReply, &[]).next, Next::Option));
    let info = client.info(OptionId::Info, "one", &[]);
    assert!(matches!(info.next, Next::Option));
    let answer = client.info(OptionId::Go, "one", &[0, 1, 0, 3, 0, 77]);
    let Next::Transmission(export) = &answer.next else { panic!("no transmission") };
    assert_eq!((export.style, export.contexts.len()), (Style::Structured, 0));
    let [OptionReply::Export { size, flags }, name, blocks, OptionReply::Ack] = &answer.replies()[..] else {
        panic!("{:?}", answer.replies())
    };
    let most = transmission::READ_ONLY | transmission::SEND_RESIZE | transmission::BLOCK_STATUS_PAYLOAD;
    assert_eq!((*size, *flags), (SHAPE.size, 0xfff & !most));
    assert_eq!(*name, OptionReply::Name("one"));
    assert_eq!(*blocks, OptionReply::BlockSize { minimum: 512, preferred: 4096, maximum: 64 << 10 });
}

#[test]
fn the_only_volume_is_the_default_one() {
    let mut client = client(3);
    assert_eq!(client.info(OptionId::Go, "", &[]).reason(), Some(RefusalId::Unknown));
    client.disks = Names(vec!["one"]);
    let answer = client.info(OptionId::Go, "", &[0, 1]);
    assert!(matches!(answer.next, Next::Transmission(_)));
    assert_eq!(answer.replies()[1], OptionReply::Name("one"));
    assert_eq!(client.info(OptionId::Go, "three", &[]).reason(), Some(RefusalId::Unknown));
}

#[test]
fn list_names_every_volume() {
    let answer = client(1).ask(OptionId::List, &[]);
    let expected =
        [OptionReply::Server { name: "one" }, OptionReply::Server { name: "two" }, OptionReply::Ack];
    assert_eq!(answer.replies(), expected);
    assert_eq!(client(1).ask(OptionId::List, b"data").reason(), Some(RefusalId::Invalid));
}

#[test]
fn an_export_name_is_answered_without_an_error_or_not_at_all() {
    for (flags, padding) in [(0, 124), (1, 124), (3, 0)] {
        let answer = client(flags).ask(OptionId::ExportName, b"two");
        assert!(matches!(answer.next, Next::Transmission(_)));
        assert_eq!(answer.bytes.len(), 10 + padding);
        assert_eq!(answer.bytes[..8], SHAPE.size.to_be_bytes());
    }
    for name in [&b"three"[..], b"", &[0xff]] {
        assert!(matches!(client(3).ask(OptionId::ExportName, name).next, Next::Drop));
    }
    let mut extended = client(3);
    extended.ask(OptionId::ExtendedHeaders, &[]);
    assert!(matches!(extended.ask(OptionId::ExportName, b"one").next, Next::Drop));
}

#[test]
fn contexts_are_for_the_export_that_was_asked_for() {
    let mut client = client(3);
    let both = [BASE_ALLOCATION, CACHE_CONTEXT];
    assert_eq!(
        client.meta(OptionId::SetMetaContext, &both).reason(),
        Some(RefusalId::Invalid),
        "no structure"
    );
    client.ask(OptionId::StructuredReply, &[]);
    let named = |id, name| OptionReply::MetaContext { id, name };
    let all = [named(0, BASE_ALLOCATION), named(0, CACHE_CONTEXT), OptionReply::Ack];
    assert_eq!(client.meta(OptionId::ListMetaContext, &[]).replies(), all);
    assert_eq!(client.meta(OptionId::ListMetaContext, &["base:", "forebay:", "x-other:"]).replies(), all);
    let none = [OptionReply::Ack];
    assert_eq!(
        client.meta(OptionId::SetMetaContext, &["base:", "qemu:dirty-bitmap:a", "base"]).replies(),
        none
    );
    let answer = client.meta(OptionId::SetMetaContext, &[CACHE_CONTEXT, "x-other:y"]);
    assert_eq!(answer.replies(), [named(2, CACHE_CONTEXT), OptionReply::Ack]);
    let contexts = |answer: Answer| match answer.next {
        Next::Transmission(export) => export.contexts,
        _ => panic!("no transmission"),
    };
    assert_eq!(contexts(client.info(OptionId::Go, "one", &[])), [Context::Cache]);
    client.meta(OptionId::SetMetaContext, &both);
    assert_eq!(contexts(client.info(OptionId::Go, "two", &[])), [], "selected for another export");
    client.meta(OptionId::SetMetaContext, &both);
    client.ask(OptionId::SetMetaContext, b"bad");
    assert_eq!(
        contexts(client.info(OptionId::Go, "one", &[])),
        [],
        "a failed selection replaces the previous one"
    );
}

#[test]
fn options_that_nobody_knows_or_that_are_not_valid_are_refused_and_the_next_one_is_answered() {
    let mut client = client(3);
    for number in [0, 4, 12, u32::MAX] {
        assert_eq!(client.ask_number(number, b"data").reason(), Some(RefusalId::Unsup));
    }
    assert_eq!(client.ask(OptionId::Go, b"").reason(), Some(RefusalId::Invalid));
    let long = [&(MAX_STRING as u32 + 1).to_be_bytes()[..], &vec![b'x'; MAX_STRING + 1], &[0, 0]].concat();
    assert_eq!(client.ask(OptionId::Go, &long).reason(), Some(RefusalId::TooBig));
    client.ask(OptionId::ExtendedHeaders, &[]);
    assert_eq!(client.ask(OptionId::StructuredReply, &[]).reason(), Some(RefusalId::ExtHeaderReqd));
    let end = client.ask(OptionId::Abort, b"ignored");
    assert!(matches!(end.next, Next::End) && end.replies() == [OptionReply::Ack]);
    assert!(Negotiation::new(4).is_none(), "an unknown flag of the client");
}

#[test]
fn a_client_without_fixed_newstyle_has_one_option_and_options_are_counted() {
    assert!(matches!(client(0).ask(OptionId::List, &[]).next, Next::Drop));
    let mut client = client(3);
    for _ in 0..MOST_OPTIONS {
        assert!(matches!(client.ask(OptionId::List, &[]).next, Next::Option));
    }
    assert!(matches!(client.ask(OptionId::List, &[]).next, Next::Drop));
}

#[test]
fn forced_tls_comes_before_everything_else_and_forgets_what_was_agreed() {
    let mut client = client(3);
    client.tls = Tls::Forced;
    for option in OptionId::ALL {
        let answer = client.ask(option, &[]);
        match option {
            OptionId::StartTls => assert!(matches!(answer.next, Next::Tls)),
            OptionId::Abort => assert!(matches!(answer.next, Next::End)),
            OptionId::ExportName => assert!(matches!(answer.next, Next::Drop)),
            _ => assert_eq!(answer.reason(), Some(RefusalId::TlsReqd), "{option:?}"),
        }
    }
    assert_eq!(client.ask_number(99, &[]).reason(), Some(RefusalId::TlsReqd));
    client.tls = Tls::Offered;
    client.ask(OptionId::StructuredReply, &[]);
    assert_eq!(client.ask(OptionId::StartTls, b"data").reason(), Some(RefusalId::Invalid));
    assert!(matches!(client.ask(OptionId::StartTls, &[]).next, Next::Tls));
    client.tls = Tls::Anonymous;
    assert_eq!(client.info(OptionId::Go, "one", &[]).reason(), Some(RefusalId::Policy));
    client.tls = Tls::Secured;
    assert_eq!(client.ask(OptionId::StartTls, &[]).reason(), Some(RefusalId::Invalid));
    let Next::Transmission(export) = client.info(OptionId::Go, "one", &[]).next else { panic!() };
    assert_eq!(export.style, Style::Simple);
    client.tls = Tls::None;
    assert_eq!(client.ask(OptionId::StartTls, &[]).reason(), Some(RefusalId::Policy));
}
