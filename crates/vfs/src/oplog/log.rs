//! The engine's log, as the metadata log uses it.

use std::sync::Arc;

use forebay_engine::io::{BackingError, Io};
use forebay_engine::{Completion, Engine, Error, Mode, Seq, UserRecordId};
use forebay_metalog::Log;
use forebay_runtime::{block_on, unblock};

/// The log of an engine. Its futures run on the threads that wait for them.
pub(crate) struct CacheLog(pub(crate) Arc<Engine>);

impl Log for CacheLog {
    async fn note(&self, record: &[u8]) -> Result<(Seq, UserRecordId), Error> {
        self.0.note(record).await
    }

    fn try_append_user_record(&self, record: &[u8]) -> Result<Option<(Seq, UserRecordId)>, Error> {
        self.0.try_append_user_record(record)
    }

    async fn replace_user_records(&self, record: &[u8]) -> Result<Option<(Seq, UserRecordId)>, Error> {
        self.0.replace_user_records(record).await
    }

    async fn commit(&self, frame: Seq) -> Result<(), Error> {
        self.0.commit(frame).await
    }

    fn when_durable(&self, frame: Seq, done: Completion) {
        self.0.when_durable(frame, done);
    }

    fn is_write_back(&self) -> bool {
        self.0.effective_mode() == Mode::WriteBack
    }

    async fn user_records_due(&self) -> Option<UserRecordId> {
        self.0.user_records_due().await
    }

    fn keep_notes(&self, why: Option<BackingError>) {
        self.0.keep_notes(why);
    }

    fn release_user_records(&self, upto: UserRecordId) {
        self.0.release_user_records(upto);
    }

    fn let_go_replaced(&self, upto: UserRecordId, bytes: usize) {
        self.0.let_go_replaced(upto, bytes);
    }

    async fn let_go_but(
        &self,
        upto: UserRecordId,
        replacing: usize,
        needed: impl Fn(&[u8]) -> bool + Send + Sync,
    ) -> Result<bool, Error> {
        self.0.let_go_but(upto, replacing, needed).await
    }

    fn run(&self, task: Io<()>) {
        // The thread goes on when the future that tells of its end is dropped.
        drop(unblock("forebay-turns", move || block_on(task)));
    }
}
