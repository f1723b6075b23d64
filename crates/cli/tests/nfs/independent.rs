//! Tests of the main procedures with a client and codecs of another project (nfs3_client), because both ends of this
//! workspace's own codecs could have one error.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::pin::pin;
use std::task::{Context, Poll, Waker};

use nfs3_client::io::{AsyncRead, AsyncWrite};
use nfs3_client::nfs3_types::mount::dirpath;
use nfs3_client::nfs3_types::nfs3::*;
use nfs3_client::nfs3_types::rpc::{auth_unix, opaque_auth};
use nfs3_client::nfs3_types::xdr_codec::Opaque;
use nfs3_client::{MountClient, Nfs3Client};

use crate::harness::{Serve, Server};

/// A blocking socket in the form that the client needs: every future is ready at once.
struct Socket(TcpStream);

impl AsyncRead for Socket {
    async fn async_read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        match self.0.read(buf)? {
            0 => Err(io::ErrorKind::UnexpectedEof.into()),
            n => Ok(n),
        }
    }
}

impl AsyncWrite for Socket {
    async fn async_write(&mut self, buf: &[u8]) -> io::Result<usize> {
        self.0.write(buf)
    }
}

/// Returns the result of a future that never waits.
fn now<T>(future: impl Future<Output = T>) -> T {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(value) => value,
        Poll::Pending => unreachable!("nothing here waits"),
    }
}

fn connect(server: &Server) -> (Nfs3Client<Socket>, nfs_fh3) {
    let socket = || Socket(TcpStream::connect(server.address()).unwrap());
    let caller = opaque_auth::auth_unix(&auth_unix { uid: 1000, gid: 1000, ..auth_unix::default() });
    let mut mount = MountClient::new(socket());
    let mounted = now(mount.mnt(dirpath(Opaque::borrowed(b"/")))).unwrap();
    let root = nfs_fh3 { data: Opaque::owned(mounted.fhandle.0.as_ref().to_vec()) };
    let verifier = opaque_auth::default();
    (Nfs3Client::new_with_auth(socket(), caller, verifier), root)
}

fn in_dir<'a>(dir: &nfs_fh3, name: &'a [u8]) -> diropargs3<'a> {
    diropargs3 { dir: dir.clone(), name: name.into() }
}

fn with_mode(mode: u32) -> sattr3 {
    sattr3 { mode: Nfs3Option::Some(mode), ..sattr3::default() }
}

#[test]
fn files_are_made_written_read_listed_and_removed() {
    let server = Serve::new().start();
    let (mut c, root) = connect(&server);
    now(c.null()).unwrap();

    let how = createhow3::GUARDED(with_mode(0o640));
    let made = now(c.create(&CREATE3args { where_: in_dir(&root, b"file"), how })).unwrap().unwrap();
    let file = made.obj.unwrap();
    assert_eq!(made.obj_attributes.unwrap().mode, 0o640);
    assert!(made.dir_wcc.before.is_some() && made.dir_wcc.after.is_some());

    let data: Vec<u8> = (0..100_001u32).map(|n| (n % 251) as u8).collect();
    let count = data.len() as u32;
    let write =
        |stable| WRITE3args { file: file.clone(), offset: 3, count, stable, data: Opaque::borrowed(&data) };
    let wrote = now(c.write(&write(stable_how::UNSTABLE))).unwrap().unwrap();
    assert_eq!((wrote.count, wrote.committed), (count, stable_how::UNSTABLE));
    let commit = COMMIT3args { file: file.clone(), offset: 0, count: 0 };
    assert_eq!(now(c.commit(&commit)).unwrap().unwrap().verf.0, wrote.verf.0);
    let wrote = now(c.write(&write(stable_how::FILE_SYNC))).unwrap().unwrap();
    assert_eq!(wrote.committed, stable_how::FILE_SYNC);
    let read = READ3args { file: file.clone(), offset: 3, count: count + 10 };
    let read = now(c.read(&read)).unwrap().unwrap();
    assert_eq!((read.data.as_ref(), read.eof, read.count), (&data[..], true, count));

    let found = now(c.lookup(&LOOKUP3args { what: in_dir(&root, b"file") })).unwrap().unwrap();
    assert_eq!(found.object.data.as_ref(), file.data.as_ref());
    let attr = now(c.getattr(&GETATTR3args { object: file.clone() })).unwrap().unwrap().obj_attributes;
    assert_eq!((attr.size, attr.uid, attr.gid), (u64::from(count) + 3, 1000, 1000));

    let set = SETATTR3args {
        object: file.clone(),
        new_attributes: sattr3 { size: Nfs3Option::Some(5), ..with_mode(0o600) },
        guard: Nfs3Option::Some(attr.ctime),
    };
    assert!(now(c.setattr(&set)).unwrap().unwrap().obj_wcc.before.is_some());
    match now(c.setattr(&set)).unwrap() {
        Nfs3Result::Err((status, _)) => assert_eq!(status, nfsstat3::NFS3ERR_NOT_SYNC),
        Nfs3Result::Ok(_) => panic!("the guard is old"),
    }

    let dir = now(c.mkdir(&MKDIR3args { where_: in_dir(&root, b"dir"), attributes: with_mode(0o755) }));
    let dir = dir.unwrap().unwrap().obj.unwrap();
    let data = nfspath3::from(&b"../file"[..]);
    let symlink = symlinkdata3 { symlink_attributes: sattr3::default(), symlink_data: data };
    let link = now(c.symlink(&SYMLINK3args { where_: in_dir(&dir, b"link"), symlink })).unwrap().unwrap();
    let text = now(c.readlink(&READLINK3args { symlink: link.obj.unwrap() })).unwrap().unwrap();
    assert_eq!(text.data.0.as_ref(), b"../file");
    let fifo = mknoddata3::NF3FIFO(with_mode(0o600));
    let made = now(c.mknod(&MKNOD3args { where_: in_dir(&dir, b"fifo"), what: fifo })).unwrap().unwrap();
    assert_eq!(made.obj_attributes.unwrap().type_, ftype3::NF3FIFO);
    now(c.link(&LINK3args { file: file.clone(), link: in_dir(&dir, b"hard") })).unwrap().unwrap();
    now(c.rename(&RENAME3args { from: in_dir(&dir, b"hard"), to: in_dir(&dir, b"renamed") }))
        .unwrap()
        .unwrap();

    let list = READDIR3args { dir: dir.clone(), cookie: 0, cookieverf: cookieverf3::default(), count: 8192 };
    let listed = now(c.readdir(&list)).unwrap().unwrap();
    let mut names: Vec<_> =
        listed.reply.entries.into_inner().into_iter().map(|entry| entry.name.0.as_ref().to_vec()).collect();
    names.sort();
    assert_eq!(names, [&b"."[..], b"..", b"fifo", b"link", b"renamed"]);
    assert!(listed.reply.eof);
    let list = READDIRPLUS3args {
        dir: dir.clone(),
        cookie: 0,
        cookieverf: cookieverf3::default(),
        dircount: 8192,
        maxcount: 32_768,
    };
    let listed = now(c.readdirplus(&list)).unwrap().unwrap();
    let entries = listed.reply.entries.into_inner();
    let hard = entries.iter().find(|entry| entry.name.0.as_ref() == b"renamed").unwrap();
    assert_eq!(hard.fileid, attr.fileid);
    assert!(
        matches!(&hard.name_handle, Nfs3Option::Some(handle) if handle.data.as_ref() == file.data.as_ref())
    );
    assert!(matches!(&hard.name_attributes, Nfs3Option::Some(attr) if attr.nlink == 2 && attr.size == 5));

    for name in [&b"fifo"[..], b"link", b"renamed"] {
        now(c.remove(&REMOVE3args { object: in_dir(&dir, name) })).unwrap().unwrap();
    }
    now(c.rmdir(&RMDIR3args { object: in_dir(&root, b"dir") })).unwrap().unwrap();
    match now(c.getattr(&GETATTR3args { object: dir })).unwrap() {
        Nfs3Result::Err((status, _)) => assert_eq!(status, nfsstat3::NFS3ERR_STALE),
        Nfs3Result::Ok(_) => panic!("the directory is gone"),
    }
}

#[test]
fn the_file_system_is_described() {
    let server = Serve::new().start();
    let (mut c, root) = connect(&server);
    let info = now(c.fsinfo(&FSINFO3args { fsroot: root.clone() })).unwrap().unwrap();
    assert_eq!((info.rtmax, info.wtmax, info.dtpref), (1 << 20, 1 << 20, 1 << 20));
    let stat = now(c.fsstat(&FSSTAT3args { fsroot: root.clone() })).unwrap().unwrap();
    assert!(stat.tbytes >= stat.fbytes && stat.fbytes >= stat.abytes && stat.tbytes > 0);
    let conf = now(c.pathconf(&PATHCONF3args { object: root.clone() })).unwrap().unwrap();
    assert_eq!((conf.name_max, conf.no_trunc), (255, true));
    let access = now(c.access(&ACCESS3args { object: root, access: 0x3f })).unwrap().unwrap();
    assert_eq!(access.access, 0x1f, "everything but execute, which directories have not");
}

#[test]
fn exports_are_listed_and_mounts_counted() {
    let server = Serve::new().flags(&["--export", "/data"]).start();
    let mut mount = MountClient::new(Socket(TcpStream::connect(server.address()).unwrap()));
    now(mount.null()).unwrap();
    let exports = now(mount.export()).unwrap().into_inner();
    let names: Vec<_> = exports.iter().map(|export| export.ex_dir.0.as_ref().to_vec()).collect();
    assert_eq!(names, [&b"/"[..], b"/data"]);
    let path = || dirpath(Opaque::borrowed(b"/data"));
    now(mount.mnt(path())).unwrap();
    assert_eq!(now(mount.dump()).unwrap().into_inner().len(), 1);
    now(mount.umnt(path())).unwrap();
    assert_eq!(now(mount.dump()).unwrap().into_inner().len(), 0);
}
