//! The negotiation of one connection: options in, replies and the next step out. No I/O.

use std::sync::Arc;

use forebay_volume::disk::{Disk, Disks};
use forebay_wire::nbd::{
    EXPORT_PADDING, Info, InfoRequest, Malformed, MetaRequest, OptionHeader, OptionId, OptionReply,
    RefusalId, Style, client,
};

use crate::export::{Context, Export, flags, maximum};

/// The largest data of an option in bytes. A longer option closes the connection.
pub(crate) const LONGEST_OPTION: usize = 64 << 10;
/// The largest number of options of one connection. More close the connection.
const MOST_OPTIONS: u32 = 1024;

/// The state of a connection with regard to TLS.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Tls {
    /// The server has no certificate.
    None,
    /// The client may begin TLS now.
    Offered,
    /// The client has to begin TLS now.
    Forced,
    /// The connection is encrypted, but the client has not shown the certificate that the server wants.
    Anonymous,
    /// The connection is encrypted.
    Secured,
}

/// The step after an option's replies.
pub(crate) enum Next {
    /// The next option.
    Option,
    /// A TLS handshake.
    Tls,
    /// Requests.
    Transmission(Export),
    /// The end of the connection, after the replies.
    End,
    /// The end of the connection at once: the protocol allows no reply.
    Drop,
}

/// The state of a negotiation.
pub(crate) struct Negotiation {
    flags: u32,
    style: Style,
    /// The selected contexts, and the export for which they were selected.
    contexts: (String, Vec<Context>),
    options: u32,
}

impl Negotiation {
    /// Returns the state after the client's flags; none if the client sets a flag that the server does not know.
    pub(crate) fn new(flags: u32) -> Option<Self> {
        let known = client::FIXED_NEWSTYLE | client::NO_ZEROES;
        (flags & !known == 0).then(|| Self {
            flags,
            style: Style::Simple,
            contexts: Default::default(),
            options: 0,
        })
    }

    /// Answers one option with `data`. Appends the replies to `out`.
    pub(crate) fn answer(
        &mut self,
        header: OptionHeader,
        data: &[u8],
        tls: Tls,
        disks: &dyn Disks,
        out: &mut Vec<u8>,
    ) -> Next {
        self.options += 1;
        let option = OptionId::from_number(header.option);
        let fixed = self.flags & client::FIXED_NEWSTYLE != 0;
        if self.options > MOST_OPTIONS || !fixed && option != Some(OptionId::ExportName) {
            return Next::Drop;
        }
        let mut replies = Replies { option: header.option, out };
        let secure = match tls {
            Tls::None | Tls::Offered | Tls::Secured => None,
            Tls::Forced => {
                Some((RefusalId::TlsReqd, "this server needs TLS; begin it with NBD_OPT_STARTTLS"))
            }
            Tls::Anonymous => {
                Some((RefusalId::Policy, "this server needs a client certificate of its authority"))
            }
        };
        let allowed = |option| matches!(option, Some(OptionId::StartTls | OptionId::Abort));
        if let Some((reason, message)) = secure.filter(|_| !allowed(option)) {
            if option == Some(OptionId::ExportName) {
                return Next::Drop;
            }
            return replies.refuse(reason, message);
        }
        let Some(option) = option else {
            return replies.refuse(RefusalId::Unsup, "this server does not know the option");
        };
        let done = match option {
            OptionId::ExportName => return self.export_name(data, disks, replies.out),
            OptionId::Abort => {
                replies.push(&OptionReply::Ack);
                return Next::End;
            }
            OptionId::List | OptionId::StartTls | OptionId::StructuredReply | OptionId::ExtendedHeaders
                if !data.is_empty() =>
            {
                Err((RefusalId::Invalid, "this option has no data".to_owned()))
            }
            OptionId::List => {
                disks.list().iter().for_each(|name| replies.push(&OptionReply::Server { name }));
                Ok(Next::Option)
            }
            OptionId::StartTls => self.start_tls(tls),
            OptionId::StructuredReply if self.style.is_extended() => {
                Err((RefusalId::ExtHeaderReqd, "extended headers are in use already".to_owned()))
            }
            OptionId::StructuredReply => {
                self.style = Style::Structured;
                Ok(Next::Option)
            }
            OptionId::ExtendedHeaders => {
                self.style = Style::Extended;
                Ok(Next::Option)
            }
            OptionId::Info | OptionId::Go => self.info(option, data, disks, &mut replies),
            OptionId::ListMetaContext | OptionId::SetMetaContext => {
                self.meta(option == OptionId::SetMetaContext, data, disks, &mut replies)
            }
        };
        match done {
            Ok(next) => {
                replies.push(&OptionReply::Ack);
                next
            }
            Err((reason, message)) => replies.refuse(reason, &message),
        }
    }

    /// Accepts NBD_OPT_STARTTLS, and forgets the agreements before it. Refuses without a certificate, and on an
    /// encrypted connection.
    fn start_tls(&mut self, tls: Tls) -> Result<Next, Refusal> {
        match tls {
            Tls::None => Err((RefusalId::Policy, "this server has no certificate".to_owned())),
            Tls::Anonymous | Tls::Secured => {
                Err((RefusalId::Invalid, "the connection is encrypted already".to_owned()))
            }
            Tls::Offered | Tls::Forced => {
                // An agreement in plain text may be forged.
                (self.style, self.contexts) = (Style::Simple, Default::default());
                Ok(Next::Tls)
            }
        }
    }

    /// Answers NBD_OPT_EXPORT_NAME, the oldest way to choose an export. The protocol has no error for it, so an
    /// unknown name ends the connection.
    fn export_name(&mut self, data: &[u8], disks: &dyn Disks, out: &mut Vec<u8>) -> Next {
        let found = std::str::from_utf8(data).ok().and_then(|name| find(disks, name));
        // Extended headers exclude this option.
        let Some((name, disk)) = found.filter(|_| !self.style.is_extended()) else { return Next::Drop };
        let export = self.export(&name, disk);
        out.extend_from_slice(&export.shape.size.to_be_bytes());
        out.extend_from_slice(&flags(&export.shape, export.style).to_be_bytes());
        if self.flags & client::NO_ZEROES == 0 {
            out.extend_from_slice(&[0; EXPORT_PADDING]);
        }
        Next::Transmission(export)
    }

    /// Returns the chosen export, with the selected contexts if they were selected for this name.
    fn export(&mut self, name: &str, disk: Arc<dyn Disk>) -> Export {
        let (selected_for, contexts) = std::mem::take(&mut self.contexts);
        Export::new(disk, self.style, if selected_for == name { contexts } else { Vec::new() })
    }

    /// Answers NBD_OPT_INFO and NBD_OPT_GO with the description of a volume. GO ends the negotiation.
    fn info(
        &mut self,
        option: OptionId,
        data: &[u8],
        disks: &dyn Disks,
        replies: &mut Replies<'_>,
    ) -> Result<Next, Refusal> {
        let request = InfoRequest::decode(data).map_err(invalid)?;
        let (name, disk) = find(disks, request.name).ok_or_else(|| unknown(request.name))?;
        let shape = disk.shape();
        replies.push(&OptionReply::Export { size: shape.size, flags: flags(&shape, self.style) });
        if request.infos.has(Info::Name) {
            replies.push(&OptionReply::Name(&name));
        }
        if request.infos.has(Info::Description) {
            replies.push(&OptionReply::Description("a Forebay volume"));
        }
        if request.infos.has(Info::BlockSize) {
            let (minimum, preferred) = (shape.minimum_block, shape.preferred_block);
            replies.push(&OptionReply::BlockSize { minimum, preferred, maximum: maximum(&shape) });
        }
        Ok(match option {
            OptionId::Go => Next::Transmission(self.export(&name, disk)),
            _ => Next::Option,
        })
    }

    /// Answers NBD_OPT_LIST_META_CONTEXT and NBD_OPT_SET_META_CONTEXT with the contexts that match the queries. A
    /// selection replaces the former one.
    fn meta(
        &mut self,
        selects: bool,
        data: &[u8],
        disks: &dyn Disks,
        replies: &mut Replies<'_>,
    ) -> Result<Next, Refusal> {
        if selects {
            self.contexts = Default::default();
        }
        if self.style == Style::Simple {
            return Err((RefusalId::Invalid, "structured replies have to be negotiated first".to_owned()));
        }
        let request = MetaRequest::decode(data).map_err(invalid)?;
        let (name, _) = find(disks, request.name).ok_or_else(|| unknown(request.name))?;
        let lists_all = !selects && request.queries.iter().next().is_none();
        let wanted = |context: &Context| {
            lists_all
                || request.queries.iter().any(|query| {
                    let is_namespace = !selects && query.ends_with(':') && context.name().starts_with(query);
                    query == context.name() || is_namespace
                })
        };
        let contexts: Vec<Context> = Context::ALL.into_iter().filter(wanted).collect();
        for context in &contexts {
            let id = if selects { context.id() } else { 0 };
            replies.push(&OptionReply::MetaContext { id, name: context.name() });
        }
        if selects {
            self.contexts = (name, contexts);
        }
        Ok(Next::Option)
    }
}

type Refusal = (RefusalId, String);

/// Returns the refusal of an option whose data cannot be decoded.
fn invalid(error: Malformed) -> Refusal {
    let reason = match error {
        Malformed::TooLong(_) => RefusalId::TooBig,
        _ => RefusalId::Invalid,
    };
    (reason, error.to_string())
}

/// Returns the refusal of a volume that does not exist. The empty name stands for a default volume.
fn unknown(name: &str) -> Refusal {
    let message = match name {
        "" => "there is no default volume: more or fewer than one volume is offered".to_owned(),
        // A name has at most 4096 bytes, and the message as well.
        _ => format!("there is no volume {:.64}", name),
    };
    (RefusalId::Unknown, message)
}

/// Finds a device. The only device is the default one, which has an empty name.
fn find(disks: &dyn Disks, name: &str) -> Option<(String, Arc<dyn Disk>)> {
    let name = match name {
        "" => match <[String; 1]>::try_from(disks.list()) {
            Ok([only]) => only,
            Err(_) => return None,
        },
        name => name.to_owned(),
    };
    let disk = disks.open(&name)?;
    Some((name, disk))
}

/// The replies to one option.
struct Replies<'a> {
    option: u32,
    out: &'a mut Vec<u8>,
}

impl Replies<'_> {
    fn push(&mut self, reply: &OptionReply<'_>) {
        reply.encode(self.option, self.out);
    }

    /// Refuses the option. The negotiation goes on.
    fn refuse(&mut self, reason: RefusalId, message: &str) -> Next {
        self.push(&OptionReply::refused(reason, message));
        Next::Option
    }
}

#[cfg(test)]
mod tests;
