//! Background tasks that keep the log short, repair and remirror copies, and detect devices that do not answer.

pub(crate) mod carry;
pub(crate) mod compact;
pub(crate) mod deadline;
pub(crate) mod remirror;
pub(crate) mod scrub;
