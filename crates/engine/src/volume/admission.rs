//! Writers wait for their tickets (`throttle.rs`).

use std::time::Duration;

use crate::core::Core;
use crate::volume::Volume;
use crate::volume::throttle::Wanted;
use crate::wait::before;

/// The interval at which a waiting writer checks the rate of grants.
const RECHECK: Duration = Duration::from_millis(100);

/// Takes tickets for `wanted` and waits until they are granted. Returns false if writes do not go to the log any more,
/// the volume got into trouble, or the engine closes. The writer then looks again.
pub(crate) async fn wait_for_room(core: &Core, volume: &Volume, wanted: Wanted) -> bool {
    let throttle = &core.destager.throttle;
    let troubled = volume.is_troubled();
    core.totals.room_waits.add(1);
    let tickets = throttle.take(&volume.room, wanted);
    loop {
        let load = core.log_load(volume);
        let Some(due) = throttle.due(&volume.room, &load, &tickets, core.env.clock.now()) else {
            return true;
        };
        let over =
            || (!core.is_mirrored() || volume.is_troubled() != troubled || core.closing()).then_some(());
        let sleep = core.env.clock.sleep(due.min(RECHECK));
        if before(sleep, throttle.changed.until(over)).await.is_some() {
            return false;
        }
    }
}
