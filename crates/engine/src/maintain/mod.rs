//! Background tasks that keep the log short, repair and remirror copies, and detect devices that do not answer.
//! Devices are added and removed.

pub(crate) mod carry;
pub(crate) mod compact;
pub(crate) mod device_watch;
pub(crate) mod devices;
pub(crate) mod remirror;
pub(crate) mod scrub;
