//! The state of one connection, as the transport sees it: what the next message is.

use std::sync::{Arc, OnceLock};

use forebay_common::lock::Mutex;
use forebay_rpc::CloseReason;
use forebay_wire::nbd::{
    COMPACT_REQUEST, EXTENDED_REQUEST, Greeting, MAX_PAYLOAD, OPTION_HEADER, OptionHeader, Request, server,
};

use crate::export::Export;
use crate::negotiation::{LONGEST_OPTION, Negotiation};

/// Bytes of the client's flags, its first message.
const CLIENT_FLAGS: usize = 4;
/// The longest message of a client in bytes.
pub(crate) const LONGEST_REQUEST: usize = MAX_PAYLOAD as usize + EXTENDED_REQUEST;

/// The state of one connection. Only its event loop changes it.
#[derive(Default)]
pub(crate) struct Session {
    /// Set with the client's flags.
    pub(crate) negotiation: OnceLock<Mutex<Negotiation>>,
    /// Set at the end of the negotiation.
    pub(crate) export: OnceLock<Arc<Export>>,
}

impl forebay_rpc::Session for Session {
    fn greeting(&self) -> Vec<u8> {
        Greeting { flags: server::FIXED_NEWSTYLE | server::NO_ZEROES }.encode()
    }

    fn header(&self) -> usize {
        match self.export.get() {
            Some(export) if export.style.is_extended() => EXTENDED_REQUEST,
            Some(_) => COMPACT_REQUEST,
            None if self.negotiation.get().is_some() => OPTION_HEADER,
            None => CLIENT_FLAGS,
        }
    }

    fn message(&self, header: &[u8]) -> Result<usize, CloseReason> {
        let more = match self.export.get() {
            Some(export) => {
                let is_extended = export.style.is_extended();
                let request = Request::decode(header, is_extended).map_err(|_| CloseReason::Service)?;
                let payload = request.payload(is_extended);
                u32::try_from(payload).ok().filter(|payload| *payload <= MAX_PAYLOAD).map(|len| len as usize)
            }
            None if self.negotiation.get().is_some() => {
                let option = OptionHeader::decode(header).map_err(|_| CloseReason::Service)?;
                Some(option.length as usize).filter(|length| *length <= LONGEST_OPTION)
            }
            None => Some(0),
        };
        more.map(|more| header.len() + more).ok_or(CloseReason::RecordTooLong)
    }

    fn is_settled(&self) -> bool {
        self.export.get().is_some()
    }
}
