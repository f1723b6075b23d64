//! Background tasks that keep the log short, the copies whole and the devices answering.

pub(crate) mod carry;
pub(crate) mod compact;
pub(crate) mod deadline;
pub(crate) mod remirror;
pub(crate) mod scrub;
