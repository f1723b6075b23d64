//! The operations of COMPOUND, each with the method that executes it.

use forebay_rpc::Reply;
use forebay_wire::nfs4::{
    AccessArgs, DestroyClientidArgs, DestroySessionArgs, GetattrArgs, HandleArgs, NameArgs, Nfsstat4,
    ObjectAttributes, Opcode, ReclaimCompleteArgs, RenameArgs, SecinfoStyle, Stateid, StateidArgs,
    XattrNameArgs,
};

use super::compound::{Arguments, Change, Compound, Context, Stop};
use super::place::Place;

impl Compound {
    /// Executes the operation `number`, whose arguments are next, and appends its result. Returns the change that the
    /// reply has to wait for.
    pub(super) fn execute(
        &mut self,
        cx: &Context<'_>,
        number: Opcode,
        ops: &mut Arguments<'_>,
        reply: &mut Reply<'_>,
    ) -> Result<Option<Change>, Stop> {
        match number {
            Opcode::Setattr => return self.setattr(cx, &ops.arguments()?, reply),
            Opcode::Create => return self.create(cx, &ops.arguments()?, reply),
            Opcode::Remove => return self.remove(cx, name(ops)?, reply),
            Opcode::Rename => {
                let args: RenameArgs<'_> = ops.arguments()?;
                return self.rename(cx, args.oldname, args.newname, reply);
            }
            Opcode::Link => return self.link(cx, name(ops)?, reply),
            Opcode::Open => return self.open(cx, &ops.arguments()?, reply),
            Opcode::Write => return self.write(cx, &ops.arguments()?, reply),
            Opcode::Commit => return self.commit(cx, &ops.arguments()?, reply),
            Opcode::Setxattr => return self.set_xattr(cx, &ops.arguments()?, reply),
            Opcode::Removexattr => return self.remove_xattr(cx, xattr_name(ops)?, reply),
            Opcode::Allocate => return self.allocate(cx, &ops.arguments()?, reply),
            Opcode::Deallocate => return self.deallocate(cx, &ops.arguments()?, reply),
            Opcode::Copy => return self.copy(cx, &ops.arguments()?, reply),
            Opcode::Clone => return self.clone_data(cx, &ops.arguments()?, reply),
            Opcode::Sequence => self.sequence(cx, &ops.arguments()?, *ops, reply)?,
            Opcode::ExchangeId => self.exchange_id(cx, &ops.arguments()?, reply)?,
            Opcode::CreateSession => self.create_session(cx, &ops.arguments()?, reply)?,
            Opcode::DestroySession => {
                let args: DestroySessionArgs = ops.arguments()?;
                self.destroy_session(cx, args.sessionid, reply)?;
            }
            Opcode::BindConnToSession => self.bind_connection(cx, &ops.arguments()?, reply)?,
            Opcode::DestroyClientid => {
                let args: DestroyClientidArgs = ops.arguments()?;
                self.destroy_client_id(cx, args.clientid, reply)?;
            }
            Opcode::ReclaimComplete => {
                let args: ReclaimCompleteArgs = ops.arguments()?;
                let client = self.client()?;
                cx.server.state().reclaim_complete(client, args.one_fs, cx.now, &mut self.effects)?;
                self.reply.start(reply.head(), Opcode::ReclaimComplete);
            }
            Opcode::BackchannelCtl => self.backchannel_ctl(cx, &ops.arguments()?, reply.head())?,
            Opcode::Putrootfh | Opcode::Putpubfh => {
                let place = Place::of(cx, cx.server.pseudo().root(), next_asks_for_flavors(ops))?;
                self.set_place(place);
                self.reply.start(reply.head(), number);
            }
            Opcode::Putfh => {
                let args: HandleArgs<'_> = ops.arguments()?;
                let asks = next_asks_for_flavors(ops);
                self.set_place(Place::named(cx, args.object.0)?).reach_unless_it_asks(cx, asks)?;
                self.reply.start(reply.head(), Opcode::Putfh);
            }
            Opcode::Savefh => {
                self.place()?;
                self.saved = self.current.clone();
                self.reply.start(reply.head(), Opcode::Savefh);
            }
            Opcode::Restorefh => {
                let saved = self.saved.clone().ok_or(Stop::Fail(Nfsstat4::Nofilehandle))?;
                self.current = Some(saved);
                self.reply.start(reply.head(), Opcode::Restorefh);
            }
            Opcode::Getfh => self.getfh(cx, reply)?,
            Opcode::Getattr => {
                let args: GetattrArgs = ops.arguments()?;
                self.getattr(cx, &args.request, reply)?;
            }
            Opcode::Verify | Opcode::Nverify => {
                let args: ObjectAttributes<'_> = ops.arguments()?;
                self.verify(cx, &args.attributes, number, reply)?;
            }
            Opcode::Access => {
                let args: AccessArgs = ops.arguments()?;
                self.access(cx, args.access, reply)?;
            }
            Opcode::Lookup => {
                let name = name(ops)?;
                self.lookup(cx, name, next_asks_for_flavors(ops), reply)?;
            }
            Opcode::Lookupp => self.lookup_parent(cx, next_asks_for_flavors(ops), reply)?,
            Opcode::Readlink => self.readlink(cx, reply)?,
            Opcode::Readdir => self.readdir(cx, &ops.arguments()?, reply)?,
            Opcode::Secinfo => self.secinfo(cx, Some(name(ops)?), SecinfoStyle::CurrentFh, reply)?,
            Opcode::SecinfoNoName => self.secinfo(cx, None, ops.arguments()?, reply)?,
            Opcode::Read => self.read(cx, &ops.arguments()?, ops.left() == 0, reply)?,
            Opcode::Getxattr => self.get_xattr(cx, xattr_name(ops)?, reply)?,
            Opcode::Listxattrs => self.list_xattrs(cx, &ops.arguments()?, reply)?,
            Opcode::Seek => self.seek(cx, &ops.arguments()?, reply)?,
            Opcode::OffloadStatus => self.offload_status(cx, stateid(ops)?, reply)?,
            Opcode::OffloadCancel => self.offload_cancel(cx, stateid(ops)?, reply)?,
            Opcode::IoAdvise => self.advise_io(cx, &ops.arguments()?, reply)?,
            Opcode::OpenDowngrade => self.open_downgrade(cx, &ops.arguments()?, reply)?,
            Opcode::Close => self.close(cx, &ops.arguments()?, reply)?,
            Opcode::Delegreturn => self.return_delegation(cx, stateid(ops)?, reply)?,
            Opcode::Lock => self.lock(cx, &ops.arguments()?, reply)?,
            Opcode::Lockt => self.lock_test(cx, &ops.arguments()?, reply)?,
            Opcode::Locku => self.unlock(cx, &ops.arguments()?, reply)?,
            Opcode::TestStateid => self.test_stateids(cx, &ops.arguments()?, reply)?,
            Opcode::FreeStateid => self.free_stateid(cx, stateid(ops)?, reply)?,
            Opcode::Illegal => return Err(Stop::Fail(Nfsstat4::OpIllegal)),
            _ => return Err(Stop::Fail(Nfsstat4::Notsupp)),
        }
        Ok(None)
    }
}

/// Decodes arguments that are a name.
fn name<'a>(ops: &mut Arguments<'a>) -> Result<&'a [u8], Stop> {
    Ok(ops.arguments::<NameArgs<'_>>()?.name)
}

/// Decodes arguments that are the name of an extended attribute.
fn xattr_name<'a>(ops: &mut Arguments<'a>) -> Result<&'a [u8], Stop> {
    Ok(ops.arguments::<XattrNameArgs<'_>>()?.name)
}

/// Decodes arguments that are a state id.
fn stateid(ops: &mut Arguments<'_>) -> Result<Stateid, Stop> {
    Ok(ops.arguments::<StateidArgs>()?.stateid)
}

/// Returns true if the next operation asks for flavours: the operation before it takes any flavour and any protection
/// (RFC 8881 section 2.6.3.1.1).
fn next_asks_for_flavors(rest: &Arguments<'_>) -> bool {
    matches!(rest.peek(), Some(Opcode::Secinfo | Opcode::SecinfoNoName))
}
