//! The tasks that append records for a caller who must not wait.

use forebay_metalog::Log as _;

use super::*;
use crate::oplog::log::CacheLog;

/// The thread that makes room in the log skips numbers. It waited for room as well if a record was behind them.
#[test]
fn a_task_of_the_log_does_not_hold_up_its_caller() {
    let served = serve(Mode::WriteBack);
    let log = CacheLog(served.vfs.engine().unwrap().clone());
    let ((send, told), (end, ended)) = (channel(), channel());
    std::thread::spawn(move || {
        log.run(Box::pin(async move { end.send(told.recv()).unwrap() }));
        // Room, in a server.
        send.send(()).unwrap();
    });
    assert_eq!(ended.recv_timeout(Duration::from_secs(60)), Ok(Ok(())));
}
