//! The commit leader: a thread that appends to an idle log and writes the frame itself. To wake the writer task would
//! cost a lone client a good part of the write. Records appended meanwhile are left to the writer task, so that under
//! load the callers continue with their own work.

use std::sync::Arc;

use crate::engine::Engine;

impl Engine {
    /// Has the calling thread write the open frame soon. Returns false if it cannot.
    pub(crate) fn lead(self: &Arc<Self>) -> bool {
        self.env.spawn.here(Box::pin(self.clone().write_one_frame())).is_none()
    }

    /// Writes the open frame, unless another thread already writes a frame.
    async fn write_one_frame(self: Arc<Self>) {
        let Some(closed) = self.log.next_frame(|| self.segments.advance()) else { return };
        // The next frame is open.
        self.log.changed.wake();
        self.write_frame(closed).await;
        self.log.end_step();
    }
}
