//! The commit leader: a thread that appends to an idle log and writes the frame itself. To wake the writer task would
//! cost a lone client a good part of the write. Records appended meanwhile are left to the writer task, so that under
//! load the callers continue with their own work.

use std::sync::Arc;

use crate::core::Core;
use crate::log::writer::write_frame;

/// Has the calling thread write the open frame soon. Returns false if it cannot.
pub(crate) fn lead(core: &Arc<Core>) -> bool {
    core.env.spawn.here(Box::pin(write_one_frame(core.clone()))).is_none()
}

/// Writes the open frame, unless another thread already writes a frame.
async fn write_one_frame(core: Arc<Core>) {
    let Some(closed) = core.log.next_frame(|| core.segments.advance()) else { return };
    // The next frame is open.
    core.log.changed.wake();
    write_frame(&core, closed).await;
    core.log.end_step();
}
