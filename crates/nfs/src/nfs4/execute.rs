//! The operations of COMPOUND, each with the method that executes it.

use forebay_rpc::Reply;
use forebay_wire::nfs4::{Nfsstat4, Op, Opcode, Operation, Operations, SecinfoStyle};

use super::compound::{Change, Compound, Context, Stop};
use super::place::Place;

impl Compound {
    /// Executes one operation, whose result it appends. Returns the change that the reply has to wait for.
    pub(super) fn execute(
        &mut self,
        cx: &Context<'_>,
        op: &Op<'_>,
        rest: Operations<'_, Op<'_>>,
        reply: &mut Reply<'_>,
    ) -> Result<Option<Change>, Stop> {
        match op {
            Op::Setattr(args) => return self.setattr(cx, args, reply),
            Op::Create(args) => return self.create(cx, args, reply),
            Op::Remove(args) => return self.remove(cx, args.name, reply),
            Op::Rename(args) => return self.rename(cx, args.oldname, args.newname, reply),
            Op::Link(args) => return self.link(cx, args.name, reply),
            Op::Open(args) => return self.open(cx, args, reply),
            Op::Write(args) => return self.write(cx, args, reply),
            Op::Commit(args) => return self.commit(cx, args, reply),
            Op::Setxattr(args) => return self.set_xattr(cx, args, reply),
            Op::Removexattr(args) => return self.remove_xattr(cx, args.name, reply),
            Op::Allocate(args) => return self.allocate(cx, args, reply),
            Op::Deallocate(args) => return self.deallocate(cx, args, reply),
            Op::Copy(args) => return self.copy(cx, args, reply),
            Op::Clone(args) => return self.clone_data(cx, args, reply),
            Op::Sequence(args) => self.sequence(cx, args, rest, reply)?,
            Op::ExchangeId(args) => self.exchange_id(cx, args, reply)?,
            Op::CreateSession(args) => self.create_session(cx, args, reply)?,
            Op::DestroySession(args) => self.destroy_session(cx, args.sessionid, reply)?,
            Op::BindConnToSession(args) => self.bind_connection(cx, args, reply)?,
            Op::DestroyClientid(args) => self.destroy_client_id(cx, args.clientid, reply)?,
            Op::ReclaimComplete(args) => {
                let client = self.client()?;
                cx.server.state().reclaim_complete(client, args.one_fs, cx.now, &mut self.effects)?;
                self.reply.start(reply.head(), Opcode::ReclaimComplete);
            }
            Op::BackchannelCtl(args) => self.backchannel_ctl(cx, args, reply.head())?,
            Op::Putrootfh(()) | Op::Putpubfh(()) => {
                let place = Place::of(cx, cx.server.pseudo().root(), next_asks_for_flavors(&rest))?;
                self.set_place(place);
                self.reply.start(reply.head(), op.number());
            }
            Op::Putfh(args) => {
                let place = Place::from_wire(cx, args.object.0, next_asks_for_flavors(&rest))?;
                self.set_place(place);
                self.reply.start(reply.head(), Opcode::Putfh);
            }
            Op::Savefh(()) => {
                self.place()?;
                self.saved = self.current.clone();
                self.reply.start(reply.head(), Opcode::Savefh);
            }
            Op::Restorefh(()) => {
                let saved = self.saved.clone().ok_or(Stop::Fail(Nfsstat4::Nofilehandle))?;
                self.current = Some(saved);
                self.reply.start(reply.head(), Opcode::Restorefh);
            }
            Op::Getfh(()) => self.getfh(cx, reply)?,
            Op::Getattr(args) => self.getattr(cx, &args.request, reply)?,
            Op::Verify(args) | Op::Nverify(args) => self.verify(cx, &args.attributes, op.number(), reply)?,
            Op::Access(args) => self.access(cx, args.access, reply)?,
            Op::Lookup(args) => self.lookup(cx, args.name, next_asks_for_flavors(&rest), reply)?,
            Op::Lookupp(()) => self.lookup_parent(cx, next_asks_for_flavors(&rest), reply)?,
            Op::Readlink(()) => self.readlink(cx, reply)?,
            Op::Readdir(args) => self.readdir(cx, args, reply)?,
            Op::Secinfo(args) => self.secinfo(cx, Some(args.name), SecinfoStyle::CurrentFh, reply)?,
            Op::SecinfoNoName(style) => self.secinfo(cx, None, *style, reply)?,
            Op::Read(args) => self.read(cx, args, rest.left() == 0, reply)?,
            Op::Getxattr(args) => self.get_xattr(cx, args.name, reply)?,
            Op::Listxattrs(args) => self.list_xattrs(cx, args, reply)?,
            Op::Seek(args) => self.seek(cx, args, reply)?,
            Op::OffloadStatus(args) => self.offload_status(cx, args.stateid, reply)?,
            Op::OffloadCancel(args) => self.offload_cancel(cx, args.stateid, reply)?,
            Op::IoAdvise(args) => self.advise_io(cx, args, reply)?,
            Op::OpenDowngrade(args) => self.open_downgrade(cx, args, reply)?,
            Op::Close(args) => self.close(cx, args, reply)?,
            Op::Delegreturn(args) => self.return_delegation(cx, args.stateid, reply)?,
            Op::Lock(args) => self.lock(cx, args, reply)?,
            Op::Lockt(args) => self.lock_test(cx, args, reply)?,
            Op::Locku(args) => self.unlock(cx, args, reply)?,
            Op::TestStateid(args) => self.test_stateids(cx, args, reply)?,
            Op::FreeStateid(args) => self.free_stateid(cx, args.stateid, reply)?,
            Op::Illegal(()) => return Err(Stop::Fail(Nfsstat4::OpIllegal)),
            _ => return Err(Stop::Fail(Nfsstat4::Notsupp)),
        }
        Ok(None)
    }
}

/// Returns true if the next operation asks for flavours: the operation before it takes any flavour and any protection
/// (RFC 8881 section 2.6.3.1.1).
fn next_asks_for_flavors(rest: &Operations<'_, Op<'_>>) -> bool {
    matches!(rest.peek(), Some(Opcode::Secinfo | Opcode::SecinfoNoName))
}
