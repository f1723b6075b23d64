//! Questions to the holder of a write delegation, with CB_GETATTR (RFC 8881 section 10.4.3).
//!
//! The holder alone knows the size of the file, and whether it has data that the server lacks. A client that asks for
//! these attributes waits for the holder's answer, and the holder keeps its delegation.
//!
//! | the holder | the client that looks |
//! |---|---|
//! | has no data that the server lacks | gets the server's attributes |
//! | has some | gets the holder's size, the present time as modification time, a larger change attribute each time |
//! | does not answer in time, or with an error | gets NFS4ERR_DELAY, and the delegation is recalled |
//!
//! The present time is not written to the file: the holder's data has not reached it, and the next look asks again.

use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc::channel;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use forebay_clientstate::{FileKey, Holder};
use forebay_vfs::{Attr, Time};
use forebay_wire::nfs4::{Bitmap, CbResult, CompoundRes, attr};
use forebay_wire::rpc::ReplyHeader;
use forebay_wire::xdr::{Decode, Reader};

use super::callback::Message;
use super::compound::{Compound, Context, Stop};
use super::delegation::HELD;
use super::place::{Place, may_wait};
use super::server::Server;

/// The attributes that a holder is asked for. RFC 8881 allows no others.
pub(super) const ASKED: Bitmap = Bitmap::of(&[attr::CHANGE, attr::SIZE]);
/// Longest time that a request waits for the answer of a holder.
const PATIENCE: Duration = Duration::from_millis(500);
/// Requests that may wait for answers at once, each on a worker. Further ones recall the delegation.
const ASKING: usize = 8;
/// Questions of one request. The holder may write between an answer and the look at the file.
const QUESTIONS: usize = 3;

/// The answer of a holder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Told {
    /// Another one than at the grant if the holder has changed the file.
    change: u64,
    size: u64,
}

/// Returns the answer in the reply to a CB_GETATTR.
pub(super) fn told(reply: &[u8]) -> Option<Told> {
    let mut input = Reader::new(reply);
    ReplyHeader::decode(&mut input).ok()?;
    let results = CompoundRes::<CbResult<'_>>::decode(&mut input).ok()?.results;
    let Some(Ok(CbResult::Getattr(Ok(got)))) = results.into_iter().nth(1) else { return None };
    let got = got.attributes.attributes().ok()?;
    Some(Told { change: got.change?, size: got.size? })
}

impl Server {
    /// Asks a holder, and waits for the answer. Returns `None` if there is none in time.
    fn ask(&self, holder: &Holder, file: &FileKey) -> Option<Told> {
        let waits = self.asking.fetch_add(1, Relaxed) < ASKING;
        let answer = waits.then(|| {
            let (answered, answer) = channel();
            let granted_in = self.unseen(holder.granted_in);
            self.callbacks.send(holder.client, Message::Getattr { file: file.clone(), granted_in, answered });
            answer.recv_timeout(PATIENCE).ok().flatten()
        });
        self.asking.fetch_sub(1, Relaxed);
        answer.flatten()
    }
}

impl Compound {
    /// Prepares a look at attributes of the current file. Returns the attributes of a file whose holder of a write
    /// delegation has newer contents than the server. Recalls the delegation if the holder cannot be asked.
    pub(super) fn look(&mut self, cx: &Context<'_>, request: &Bitmap) -> Result<Option<Attr>, Stop> {
        if !cx.server.has_write_delegations() || (*request & HELD).is_empty() {
            return Ok(None);
        }
        let Place::Inode(wire, _) = self.place()? else { return Ok(None) };
        let wire = *wire;
        let (client, file) = (self.client()?, cx.file_key(wire.as_bytes())?);
        // The lock of the state ends with this statement.
        let holder = cx.server.state().holder(client, &file, cx.now);
        let Some(holder) = holder else {
            return self.announce(cx, wire.as_bytes(), false).map(|()| None);
        };
        may_wait(cx)?;
        let target = self.place()?.resolve(cx)?.target.clone();
        for _ in 0..QUESTIONS {
            let before = cx.shared.vfs.getattr(&target)?;
            let Some(told) = cx.server.ask(&holder, &file) else { break };
            if told.change == holder.change {
                return Ok(None);
            }
            let moved = cx.shared.vfs.outdate(&target);
            // Else the holder has written meanwhile, and the answer may be outdated.
            if let (Some(last), Some(mut attr)) = (moved.before, moved.after)
                && last.ctime == before.ctime
            {
                (attr.size, attr.mtime) = (told.size, attr.mtime.max(present()));
                return Ok(Some(attr));
            }
        }
        self.announce(cx, wire.as_bytes(), false).map(|()| None)
    }
}

/// Returns the present time of the host.
fn present() -> Time {
    let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Time { sec: since_1970.as_secs() as i64, nsec: since_1970.subsec_nanos() }
}
