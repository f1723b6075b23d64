//! SEEK and IO_ADVISE (RFC 7862 sections 15.11 and 15.5).

use forebay_clientstate::READ;
use forebay_rpc::Reply;
use forebay_vfs::{Content, DataCaller, Sought};
use forebay_wire::nfs4::{Bitmap, IoAdviseArgs, IoAdviseOk, Nfsstat4, Opcode, SeekArgs, SeekOk, content};

use super::compound::{Compound, Context, Stop, put};
use super::io::require_file;
use super::place::may_wait;

impl Compound {
    /// Carries out SEEK: appends the offset in bytes of the next data or the next hole in the current file. Fails
    /// with [`Stop::Later`] on an event loop.
    pub(super) fn seek(
        &mut self,
        cx: &Context<'_>,
        args: &SeekArgs,
        reply: &mut Reply<'_>,
    ) -> Result<(), Stop> {
        may_wait(cx)?;
        require_file(self.place()?, cx)?;
        let check = self.check_io(cx, args.stateid, READ)?;
        let wanted = match args.content {
            content::DATA => Content::Data,
            content::HOLE => Content::Hole,
            _ => return Err(Stop::Fail(Nfsstat4::UnionNotsupp)),
        };
        let at = self.place()?.resolve(cx)?;
        let caller = DataCaller::new(&at.caller.cred, check);
        let Sought { offset, eof } = cx.shared.vfs.seek(&at.target, caller, args.offset, wanted)?;
        put(&mut self.reply, reply.head(), Opcode::Seek, &SeekOk { eof, offset });
        Ok(())
    }

    /// Answers that the server follows no hint. The cache decides by the requests that it sees.
    pub(super) fn advise_io(
        &mut self,
        cx: &Context<'_>,
        args: &IoAdviseArgs,
        reply: &mut Reply<'_>,
    ) -> Result<(), Stop> {
        require_file(self.place()?, cx)?;
        self.check_io(cx, args.stateid, READ)?;
        if args.offset.checked_add(args.count).is_none() {
            return Err(Stop::Fail(Nfsstat4::Inval));
        }
        let hints = Bitmap::default();
        put(&mut self.reply, reply.head(), Opcode::IoAdvise, &IoAdviseOk { hints });
        Ok(())
    }
}
