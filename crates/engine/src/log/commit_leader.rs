//! Whoever appends to an idle log may write that frame itself: waking the log's own task would cost a lone client a good
//! part of the write. What is appended meanwhile is left to the log's task, so that under load the callers go on with
//! their own work.

use std::sync::Arc;

use crate::engine::Engine;

impl Engine {
    /// Has the calling thread write the open frame, soon; false if it cannot.
    pub(crate) fn lead(self: &Arc<Self>) -> bool {
        self.env.spawn.here(Box::pin(self.clone().write_one_frame())).is_none()
    }

    /// Writes the frame that is open, unless somebody is at it already.
    async fn write_one_frame(self: Arc<Self>) {
        let Some(closed) = self.log.next_frame(|| self.segments.advance()) else { return };
        // The next frame is open.
        self.log.changed.wake();
        self.write_frame(closed).await;
        self.log.end_step();
    }
}
