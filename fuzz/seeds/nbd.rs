//! Seeds of NBD.

use forebay_wire::nbd::{
    BASE_ALLOCATION, ErrorCode, Greeting, InfoIds, InfoRequest, MetaRequest, OptionHeader, OptionId,
    OptionReply, RefusalId, Request, Style, encode_data_head, encode_done, encode_error, encode_status,
};

/// Returns a message of each kind.
pub(crate) fn messages() -> Vec<Vec<u8>> {
    let mut messages = vec![Greeting { flags: 3 }.encode()];
    let mut add = |encode: &dyn Fn(&mut Vec<u8>)| {
        let mut out = Vec::new();
        encode(&mut out);
        messages.push(out);
    };
    add(&|out| {
        OptionHeader { option: OptionId::Go as u32, length: 12 }.encode(out);
        let infos = InfoIds::new(&[0, 3]);
        infos.iter().for_each(|infos| InfoRequest { name: "disk", infos: *infos }.encode(out));
    });
    add(&|out| {
        OptionHeader { option: OptionId::SetMetaContext as u32, length: 31 }.encode(out);
        MetaRequest::encode("disk", &[BASE_ALLOCATION], out);
    });
    for is_extended in [false, true] {
        let request = Request { flags: 1, command: 6, cookie: 9, offset: 4096, length: 512 };
        add(&|out| request.encode(is_extended, out));
    }
    add(&|out| OptionReply::Export { size: 1 << 20, flags: 0x10d }.encode(7, out));
    add(&|out| OptionReply::refused(RefusalId::Unknown, "no such export").encode(7, out));
    for style in [Style::Simple, Style::Structured, Style::Extended] {
        add(&|out| encode_done(style, 9, 4096, out));
        add(&|out| encode_error(style, (9, 4096), ErrorCode::Inval, "outside", out));
        add(&|out| encode_status(style, (9, 4096), 1, &[(512, 3), (512, 0)], true, out));
        add(&|out| {
            encode_data_head(style, (9, 4096), 4, out);
            out.extend_from_slice(b"data");
        });
    }
    messages
}
