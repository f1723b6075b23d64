//! Connections whose messages are not records of ONC RPC. A message of such a connection is a header, whose length the
//! connection's state gives, and as many further bytes as the header says.

use std::any::Any;

use crate::stats::CloseReason;

/// The state of one connection without records. A service keeps the state of its protocol in the same value, and finds
/// it with [`Message::session`](crate::Message::session).
///
/// The event loop asks for the next header after the service has handled the message before. So a service may change
/// the form of the headers in [`Service::handle`](crate::Service::handle).
pub trait Session: Any + Send + Sync {
    /// Returns the bytes that the server sends first; may be empty.
    fn greeting(&self) -> Vec<u8> {
        Vec::new()
    }

    /// Returns the length of the next message's header in bytes, at least 1. The length stays until the message is
    /// handled.
    fn header(&self) -> usize;

    /// Returns the length in bytes of the whole message with this header. A message that exceeds
    /// [`Config::max_record`](crate::Config::max_record) closes the connection.
    ///
    /// # Errors
    /// The reason to close the connection.
    fn message(&self, header: &[u8]) -> Result<usize, CloseReason>;

    /// Returns true once the peer has a right to stay without a request. Before that the connection is closed after
    /// [`Config::stall_timeout`](crate::Config::stall_timeout), and may be closed to make room. After that it is
    /// neither idle nor evicted.
    fn is_settled(&self) -> bool {
        true
    }
}
