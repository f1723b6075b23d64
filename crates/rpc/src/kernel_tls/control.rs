//! Records of TLS that are no data: the kernel passes them on as messages with their type beside them.

use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr;

use rustix::io::Errno;

use super::last_error;

/// Types of records (RFC 8446 section 5.1).
const ALERT: u8 = 21;
const HANDSHAKE: u8 = 22;
/// Numbers of alerts (RFC 8446 section 6).
const CLOSE_NOTIFY: u8 = 0;
const USER_CANCELED: u8 = 90;
/// The level of an alert that is no failure.
const WARNING: u8 = 1;
/// The type of the message that announces new keys (RFC 8446 section 4.6.3).
const KEY_UPDATE: u8 = 24;
/// Bytes of a control record that are received. Only the first two have a meaning here.
const LONGEST: usize = 256;

/// The meaning of a record without data.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Control {
    /// The peer sends no more.
    Closed,
    /// The record changes nothing.
    Nothing,
    /// The following records of the peer have new keys.
    NewKeys,
    /// The peer has failed with this alert.
    Alert(u8),
    /// The peer sends a record of a type that it must not send.
    Forbidden,
}

impl Control {
    /// Returns the meaning of a record of type `kind`.
    fn of(kind: u8, bytes: &[u8]) -> Self {
        match (kind, bytes) {
            (ALERT, [_, CLOSE_NOTIFY]) => Self::Closed,
            (ALERT, [_, USER_CANCELED]) => Self::Nothing,
            (ALERT, [_, number]) => Self::Alert(*number),
            (HANDSHAKE, [KEY_UPDATE, ..]) => Self::NewKeys,
            _ => Self::Forbidden,
        }
    }
}

/// Room for one control message with the type of a record, aligned as its header.
#[repr(C)]
union Beside {
    header: libc::cmsghdr,
    bytes: [u8; 64],
}

/// Receives the record without data that is next. A receipt without room for the type has failed with EIO before.
pub(crate) fn receive_control(fd: BorrowedFd<'_>) -> Result<Control, Errno> {
    let mut bytes = [0; LONGEST];
    let mut slice = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
    let mut beside = Beside { bytes: [0; 64] };
    let mut message = message(&mut slice, &mut beside, size_of::<Beside>());
    // SAFETY: the message refers to live buffers of the lengths that it names.
    let received = unsafe { libc::recvmsg(fd.as_raw_fd(), &raw mut message, libc::MSG_DONTWAIT) };
    let received = usize::try_from(received).map_err(|_| last_error())?;
    // SAFETY: the kernel has filled in the message, whose control messages are in `beside`.
    let header = unsafe { libc::CMSG_FIRSTHDR(&raw const message) };
    if header.is_null() {
        return Err(Errno::PROTO);
    }
    // SAFETY: the header lies within `beside`.
    let (level, name) = unsafe { ((*header).cmsg_level, (*header).cmsg_type) };
    if (level, name) != (libc::SOL_TLS, libc::TLS_GET_RECORD_TYPE) {
        return Err(Errno::PROTO);
    }
    // SAFETY: the message of this type has one byte of data.
    let kind = unsafe { *libc::CMSG_DATA(header) };
    Ok(Control::of(kind, &bytes[..received]))
}

/// Tells the peer that nothing more is sent (close_notify), if the socket takes it at once.
pub(crate) fn say_farewell(fd: BorrowedFd<'_>) {
    let mut alert = [WARNING, CLOSE_NOTIFY];
    let mut slice = libc::iovec { iov_base: alert.as_mut_ptr().cast(), iov_len: alert.len() };
    let mut beside = Beside { bytes: [0; 64] };
    // SAFETY: the function computes the room for one byte of data.
    let room = unsafe { libc::CMSG_SPACE(1) } as usize;
    let message = message(&mut slice, &mut beside, room);
    // SAFETY: `beside` has room for the header and one byte of data, and the message refers to it.
    unsafe {
        let header = libc::CMSG_FIRSTHDR(&raw const message);
        (*header).cmsg_level = libc::SOL_TLS;
        (*header).cmsg_type = libc::TLS_SET_RECORD_TYPE;
        (*header).cmsg_len = libc::CMSG_LEN(1) as _;
        *libc::CMSG_DATA(header) = ALERT;
    }
    // SAFETY: the message refers to live buffers of the lengths that it names. A failure is no harm: the peer sees the
    // end of the connection.
    unsafe { libc::sendmsg(fd.as_raw_fd(), &raw const message, libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL) };
}

/// Returns a message of one slice, with `room` bytes for control messages.
fn message(slice: &mut libc::iovec, beside: &mut Beside, room: usize) -> libc::msghdr {
    // SAFETY: zeros are a valid value: a message without address, buffers and flags.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = ptr::from_mut(slice);
    message.msg_iovlen = 1;
    message.msg_control = ptr::from_mut(beside).cast();
    message.msg_controllen = room as _;
    message
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_without_data_have_their_meaning() {
        for (kind, bytes, meaning) in [
            (ALERT, &[1, 0][..], Control::Closed),
            (ALERT, &[2, 0], Control::Closed),
            (ALERT, &[1, 90], Control::Nothing),
            (ALERT, &[2, 20], Control::Alert(20)),
            (ALERT, &[1], Control::Forbidden),
            (HANDSHAKE, &[24, 0, 0, 1, 1], Control::NewKeys),
            // A client has no tickets to give.
            (HANDSHAKE, &[4, 0, 0, 1, 1], Control::Forbidden),
            (HANDSHAKE, &[], Control::Forbidden),
            (20, &[1], Control::Forbidden),
        ] {
            assert_eq!(Control::of(kind, bytes), meaning, "{kind} {bytes:?}");
        }
    }
}
