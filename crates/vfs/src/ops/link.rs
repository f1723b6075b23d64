//! LINK.

use forebay_oplog::Bindings;
use rustix::fs::{AtFlags, CWD};
use rustix::io::Errno;

use crate::attr::Attr;
use crate::caches::access_cache::want;
use crate::cred::Cred;
use crate::durability::request_journal::{self, LoggedReply};
use crate::error::Error;
use crate::export::Target;
use crate::export::kept_files::require_name;
use crate::export::vfs::Vfs;
use crate::oplog::{self, ChangeEffects, binding};
use crate::ops::change::{Changed, Renaming, changeable, metadata};
use crate::sys::proc_path;
use crate::wait::Wait;

impl Vfs {
    /// Gives the target another name; returns its attributes after that, if it still has any.
    pub fn link(
        &self,
        target: &Target,
        dir: &Target,
        name: &[u8],
        cred: &Cred,
        asked: Option<&LoggedReply>,
    ) -> Changed<Option<Attr>> {
        let refused = changeable(dir, name).and_then(|()| {
            match (target.export.id == dir.export.id, target.object.is_dir()) {
                (false, _) => Err(Error::Os(Errno::XDEV)),
                (_, true) => Err(Error::PERM),
                _ => require_name(&target.export.fs, &target.object),
            }
        });
        if let Err(error) = refused {
            return Changed { result: Err(error), wcc: self.wcc_of(dir), intent: None };
        }
        // A directory before its files, as everywhere.
        let renaming = Renaming::begin(dir);
        let _alone = target.object.changing.write();
        let linked = target.object.begin_change();
        let fs = &target.export.fs;
        let own = fs.own_change(&target.object);
        let kernel = Some(target.object.kernel);
        let bindings: Bindings = [binding(&dir.object, name, None, kernel)].into_iter().collect();
        let request =
            fs.under_way(bindings.clone(), asked.filter(|_| request_journal::is_free(&dir.object, name)));
        // The server itself makes the link: a caller who may change the directory may link a file of another user, as
        // over any NFS server.
        let result = renaming
            .before()
            .and_then(|attr| self.require(dir, cred, &attr, want::WRITE | want::EXECUTE, Wait::Yes))
            .and_then(|()| {
                let mut path = [0; 32];
                let path = proc_path(&mut path, target.object.path());
                Ok(rustix::fs::linkat(CWD, path, dir.object.path(), name, AtFlags::SYMLINK_FOLLOW)?)
            });
        drop(own);
        if result.is_ok() {
            linked.made();
        }
        let request = request.and_then(|request| request.carried_out(result.is_ok()));
        let intent = result.is_ok().then(|| {
            let objects = renaming.logged().into_iter().chain(oplog::objects(&[&target.object])).collect();
            let did = ChangeEffects { bindings, objects, kept: request, ..ChangeEffects::default() };
            metadata(&[dir, target], fs.changed(fs.way(), did))
        });
        let wcc = renaming.end(result.is_ok(), &[(name, kernel)]);
        let after = linked.end().after;
        Changed { result: result.map(|()| after), wcc, intent }
    }
}
