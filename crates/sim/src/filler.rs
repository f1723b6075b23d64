//! The task that fills the log to its end. Once writers wait for room, the task adds user records, which do not wait
//! for room, until no segment is free. Later the task releases them.

use std::sync::Arc;
use std::time::Duration;

use forebay_engine::Engine;
use forebay_engine::io::Clock as _;

use crate::client::Shared;
use crate::front::durable;
use crate::rng::Rng;

/// More user records than any log of these worlds holds.
const MOST: u32 = 20_000;

/// Fills the log of `engine`.
pub async fn fill(shared: Arc<Shared>, engine: Arc<Engine>, mut rng: Rng) {
    let (mut last, mut count) = (None, 0);
    while engine.counters().log_waits == 0 && count < MOST {
        let waits = engine.counters().room_waits > 0;
        let noted = if waits { engine.try_append_user_record(&[7; 4000]) } else { Ok(None) };
        match noted {
            Ok(Some((frame, note))) => {
                (last, count) = (Some(note), count + 1);
                if durable(&engine, frame).await.is_err() {
                    return;
                }
            }
            Ok(None) => shared.executor.sleep(Duration::from_millis(1)).await,
            Err(_) => return,
        }
    }
    let rest = rng.time(Duration::ZERO, Duration::from_secs(1));
    shared.executor.sleep(rest).await;
    if let Some(last) = last {
        engine.release_user_records(last);
    }
}
