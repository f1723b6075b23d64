//! A file whose operations the executor carries out.

use std::fs::File;
use std::path::Path;
use std::sync::Arc;

use forebay_engine::buffer::{Buffer, Slice};
use forebay_engine::io::{Durability, Io};
use forebay_runtime::{Fault, Request, Target, Work, start};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

/// A file filled with zeros. Its operations bypass the page cache where the file system permits that.
pub(crate) struct TestFile(pub(crate) Arc<Target>);

impl TestFile {
    pub(crate) fn new(path: &Path, size: u64) -> Self {
        std::fs::write(path, vec![0; size as usize]).unwrap();
        let open = |flags| rustix::fs::open(path, OFlags::RDWR | OFlags::CLOEXEC | flags, Mode::empty());
        let file = match open(OFlags::DIRECT) {
            Err(Errno::INVAL) => open(OFlags::empty()),
            opened => opened,
        };
        TestFile(Arc::new(Target::new(File::from(file.unwrap()))))
    }

    pub(crate) fn read(&self, offset: u64, buffer: Buffer) -> Io<(Buffer, Result<(), Fault>)> {
        let read = start(Request::new(self.0.clone(), offset, Work::Read(buffer)));
        Box::pin(async move {
            let outcome = read.await;
            match outcome.work {
                Work::Read(buffer) => (buffer, outcome.result),
                Work::Write(..) | Work::Flush { .. } => unreachable!("a read comes back as a read"),
            }
        })
    }

    pub(crate) fn write(&self, offset: u64, data: Slice, durability: Durability) -> Io<Result<(), Fault>> {
        let write = start(Request::new(self.0.clone(), offset, Work::Write(data, durability)));
        Box::pin(async move { write.await.result })
    }
}
