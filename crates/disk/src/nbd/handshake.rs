//! The negotiation of an export, from the client's side: fixed newstyle with `NBD_OPT_GO`.

use std::io::{self, Read, Write};

use forebay_wire::nbd::{
    GREETING, Greeting, Info, InfoIds, InfoRequest, MAX_PAYLOAD, MAX_STRING, OPTION_REPLY_HEADER,
    OptionHeader, OptionId, OptionReply, OptionReplyHeader, RefusalId, Style, client, server, transmission,
};

/// The most bytes that a reply to an option may have: a string and some numbers.
const LONGEST_REPLY: u32 = MAX_STRING as u32 + 64;
/// The most replies to one option.
const MOST_REPLIES: usize = 64;
/// The unit of requests to a server that names none. The document of the protocol asks clients for it.
const COMMON_UNIT: u32 = 512;

/// The reason why a negotiation fails if the server ends the connection. A server that accepts one client at a time
/// does that while it still has another client.
pub(super) const ENDS: &str = "it ends the connection during the negotiation";

/// An export, as its server describes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Export {
    /// Size in bytes.
    pub(super) size: u64,
    /// Flags of [`transmission`].
    pub(super) flags: u16,
    /// The form of the replies.
    pub(super) style: Style,
    /// The unit of offsets and lengths in bytes, a power of two.
    pub(super) minimum: u32,
    /// The largest payload of a request in bytes, a multiple of [`Export::minimum`].
    pub(super) maximum: u32,
}

impl Export {
    pub(super) fn has(&self, flag: u16) -> bool {
        self.flags & flag != 0
    }

    pub(super) fn is_rotational(&self) -> bool {
        self.has(transmission::ROTATIONAL)
    }
}

/// The result of an option.
enum Answer {
    Accepted,
    Refused(String),
}

/// Negotiates transmission for the export `name`.
///
/// # Errors
/// The reason, as the end of a sentence about the server.
pub(super) fn negotiate<S: Read + Write>(stream: &mut S, name: &str) -> Result<Export, String> {
    let mut greeting = [0; GREETING];
    receive(stream, &mut greeting)?;
    let Greeting { flags } = Greeting::decode(&greeting)
        .map_err(|_| "it does not begin as an NBD server of today does".to_owned())?;
    if flags & server::FIXED_NEWSTYLE == 0 {
        return Err("it has no fixed newstyle negotiation".to_owned());
    }
    let no_zeroes = if flags & server::NO_ZEROES == 0 { 0 } else { client::NO_ZEROES };
    send(stream, &(client::FIXED_NEWSTYLE | no_zeroes).to_be_bytes())?;
    let style = style(stream)?;
    go(stream, name, style)
}

/// Asks for extended headers, and else for structured replies.
fn style<S: Read + Write>(stream: &mut S) -> Result<Style, String> {
    for (option, style) in
        [(OptionId::ExtendedHeaders, Style::Extended), (OptionId::StructuredReply, Style::Structured)]
    {
        if let Answer::Accepted = ask(stream, option, &[], |_| {})? {
            return Ok(style);
        }
    }
    Ok(Style::Simple)
}

/// Asks for the export with NBD_OPT_GO. Returns its description, with the size in whole units of the server. Fails
/// with a sentence if the server refuses or describes it badly.
fn go<S: Read + Write>(stream: &mut S, name: &str, style: Style) -> Result<Export, String> {
    let mut data = Vec::new();
    let wanted = (Info::BlockSize as u16).to_be_bytes();
    let Some(infos) = InfoIds::new(&wanted) else { return Err("no information can be asked for".to_owned()) };
    InfoRequest { name, infos }.encode(&mut data);
    let (mut export, mut sizes) = (None, None);
    let answer = ask(stream, OptionId::Go, &data, |reply| match *reply {
        OptionReply::Export { size, flags } => export = Some((size, flags)),
        OptionReply::BlockSize { minimum, maximum, .. } => sizes = Some((minimum, maximum)),
        _ => {}
    })?;
    if let Answer::Refused(reason) = answer {
        return Err(format!("it refuses the export `{}`: {reason}", printable(name)));
    }
    let Some((size, flags)) = export.filter(|(_, flags)| flags & transmission::HAS_FLAGS != 0) else {
        return Err("it does not describe the export".to_owned());
    };
    let (minimum, maximum) = sizes.unwrap_or((COMMON_UNIT, MAX_PAYLOAD));
    // The document of the protocol limits the unit to 64 KiB.
    if !minimum.is_power_of_two() || minimum > 1 << 16 || maximum < minimum {
        return Err(format!(
            "its block sizes are {minimum} to {maximum} bytes, which the protocol does not allow"
        ));
    }
    let maximum = maximum.min(MAX_PAYLOAD) / minimum * minimum;
    Ok(Export { size: size / u64::from(minimum) * u64::from(minimum), flags, style, minimum, maximum })
}

/// Sends an option, and passes its replies to `take` up to the last one.
fn ask<S: Read + Write>(
    stream: &mut S,
    option: OptionId,
    data: &[u8],
    mut take: impl FnMut(&OptionReply<'_>),
) -> Result<Answer, String> {
    let mut message = Vec::with_capacity(16 + data.len());
    OptionHeader { option: option as u32, length: data.len() as u32 }.encode(&mut message);
    message.extend_from_slice(data);
    send(stream, &message)?;
    for _ in 0..MOST_REPLIES {
        let mut header = [0; OPTION_REPLY_HEADER];
        receive(stream, &mut header)?;
        let header = OptionReplyHeader::decode(&header).map_err(malformed)?;
        if !header.is_for(option) || header.length > LONGEST_REPLY {
            return Err("its reply to an option does not follow the protocol".to_owned());
        }
        let mut data = vec![0; header.length as usize];
        receive(stream, &mut data)?;
        match OptionReply::decode(header, &data).map_err(malformed)? {
            OptionReply::Ack => return Ok(Answer::Accepted),
            OptionReply::Refused { reason, message } => {
                let said = match reason {
                    _ if reason == RefusalId::TlsReqd as u32 => {
                        "it demands TLS, which this client does not have"
                    }
                    _ if reason == RefusalId::Unknown as u32 => "there is no such export",
                    _ if message.is_empty() => "no reason is given",
                    _ => message,
                };
                return Ok(Answer::Refused(format!("{} (error {})", printable(said), reason & !(1 << 31))));
            }
            reply => take(&reply),
        }
    }
    Err("it sends replies without end".to_owned())
}

/// Returns a server's text in a form for a log and a terminal.
pub(super) fn printable(text: &str) -> String {
    text.chars().take(200).map(|c| if c.is_control() { '?' } else { c }).collect()
}

fn malformed(error: forebay_wire::nbd::Malformed) -> String {
    format!("it does not follow the protocol: {error}")
}

fn receive<S: Read>(stream: &mut S, into: &mut [u8]) -> Result<(), String> {
    stream.read_exact(into).map_err(|error| failed(&error))
}

fn send<S: Write>(stream: &mut S, bytes: &[u8]) -> Result<(), String> {
    stream.write_all(bytes).map_err(|error| failed(&error))
}

/// Returns the reason for a negotiation that the socket has ended, as the end of a sentence about the server.
fn failed(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset => ENDS.to_owned(),
        io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock => {
            "it does not answer during the negotiation".to_owned()
        }
        _ => format!("the negotiation fails: {error}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A server that sends prepared bytes.
    struct Script {
        replies: io::Cursor<Vec<u8>>,
        received: Vec<u8>,
    }

    impl Read for Script {
        fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
            self.replies.read(into)
        }
    }

    impl Write for Script {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.received.extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    const FLAGS: u16 = transmission::HAS_FLAGS | transmission::SEND_FLUSH;

    fn refusing(option: OptionId) -> (OptionId, OptionReply<'static>) {
        (option, OptionReply::refused(RefusalId::Unsup, "never heard of\nit"))
    }

    fn with(replies: &[(OptionId, OptionReply<'_>)]) -> Result<Export, String> {
        let mut bytes = Greeting { flags: server::FIXED_NEWSTYLE | server::NO_ZEROES }.encode();
        replies.iter().for_each(|(option, reply)| reply.encode(*option as u32, &mut bytes));
        let mut script = Script { replies: io::Cursor::new(bytes), received: Vec::new() };
        let export = negotiate(&mut script, "leg");
        assert_eq!(script.received[..4], 3_u32.to_be_bytes());
        export
    }

    #[test]
    fn an_export_is_what_its_server_says() {
        let export = OptionReply::Export { size: (1 << 20) + 1, flags: FLAGS };
        let plain = [
            refusing(OptionId::ExtendedHeaders),
            refusing(OptionId::StructuredReply),
            (OptionId::Go, export.clone()),
            (OptionId::Go, OptionReply::Ack),
        ];
        let expected = Export {
            size: 1 << 20,
            flags: FLAGS,
            style: Style::Simple,
            minimum: COMMON_UNIT,
            maximum: MAX_PAYLOAD,
        };
        assert_eq!(with(&plain), Ok(expected));
        let sizes = OptionReply::BlockSize { minimum: 4096, preferred: 4096, maximum: 10_000 };
        let rich = [
            refusing(OptionId::ExtendedHeaders),
            (OptionId::StructuredReply, OptionReply::Ack),
            (OptionId::Go, OptionReply::OtherInfo(77)),
            (OptionId::Go, sizes),
            (OptionId::Go, export),
            (OptionId::Go, OptionReply::Ack),
        ];
        let style = Style::Structured;
        assert_eq!(with(&rich), Ok(Export { style, minimum: 4096, maximum: 8192, ..expected }));
    }

    #[test]
    fn a_server_that_breaks_the_protocol_or_refuses_is_told_apart() {
        let extended = (OptionId::ExtendedHeaders, OptionReply::Ack);
        let ack = (OptionId::Go, OptionReply::Ack);
        let export = (OptionId::Go, OptionReply::Export { size: 1 << 20, flags: FLAGS });
        let sizes =
            |minimum, maximum| (OptionId::Go, OptionReply::BlockSize { minimum, preferred: 4096, maximum });
        let fails = |replies: &[(OptionId, OptionReply<'_>)], says: &str| {
            let told = with(replies).unwrap_err();
            assert!(told.contains(says) && !told.contains('\n'), "{told}");
        };
        fails(&[extended.clone(), refusing(OptionId::Go)], "export `leg`: never heard of?it (error 1)");
        fails(&[extended.clone(), ack.clone()], "does not describe");
        fails(&[extended.clone(), export.clone()], "ends the connection");
        fails(&[extended.clone(), refusing(OptionId::List)], "does not follow");
        for (minimum, maximum) in [(0, 4096), (3, 4096), (1 << 17, 1 << 20), (4096, 512)] {
            let replies = [extended.clone(), sizes(minimum, maximum), export.clone(), ack.clone()];
            fails(&replies, "block sizes");
        }
        fails(&[vec![extended.clone()], vec![export.clone(); MOST_REPLIES + 1]].concat(), "without end");
        let mut script =
            Script { replies: io::Cursor::new(b"SSH-2.0-OpenSSH_9.2p1\r\n".to_vec()), received: vec![] };
        assert!(negotiate(&mut script, "").unwrap_err().contains("does not begin"));
    }
}
