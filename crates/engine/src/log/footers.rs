//! Footers of sealed segments are read.

use crate::core::Core;
use crate::format::{Body, Footer, Place, SegmentId as SegmentName, footer};
use crate::log::mirror_io::read_leg;
use crate::segments::Segment;

/// Returns the records of a sealed segment.
pub(crate) async fn read_footer(core: &Core, segment: &Segment) -> Option<Body> {
    for place in &segment.legs {
        if let Some(footer) = read_footer_on(core, *place, segment.seq).await {
            return Some(footer.body);
        }
    }
    None
}

/// Returns the footer of segment `seq` on one of its legs.
pub(crate) async fn read_footer_on(core: &Core, place: Place, seq: u64) -> Option<Footer> {
    let name = SegmentName { pool: core.pool_id, seq, slots: core.slots() as u16 };
    let last = read_leg(core, place, name.slots - 1, 1).await.ok()?;
    let blocks = footer::decode_trailer(&last, &name)?;
    let whole = read_leg(core, place, name.slots - blocks, usize::from(blocks)).await.ok()?;
    footer::decode(&whole, &name)
}
