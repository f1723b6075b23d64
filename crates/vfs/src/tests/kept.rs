//! Files that lose their last name while clients have them open.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, Ordering};

use forebay_common::lock::Mutex;

use super::*;
use crate::sys::KernelHandle;

type Handles = HashSet<Vec<u8>>;

/// Clients with opens, as the layer above would know them.
#[derive(Default)]
struct Clients {
    open: Mutex<Handles>,
    going: Mutex<Handles>,
    kept: Mutex<Handles>,
    /// True if each client closes its file as soon as it is asked for.
    hastens: AtomicBool,
}

impl OpenFiles for Clients {
    fn begin_removal(&self, file: &[u8]) -> bool {
        let is_open = match self.hastens.load(Ordering::Relaxed) {
            true => self.open.lock().remove(file),
            false => self.open.lock().contains(file),
        };
        assert!(is_open || self.going.lock().insert(file.to_vec()), "begun twice");
        is_open
    }

    fn end_removal(&self, file: &[u8]) {
        assert!(self.going.lock().remove(file), "ended without a beginning");
    }

    fn keep(&self, file: &[u8]) {
        self.kept.lock().insert(file.to_vec());
    }
}

impl Clients {
    fn of(vfs: &Vfs) -> Arc<Self> {
        let clients = Arc::new(Clients::default());
        vfs.keep_open_files(clients.clone());
        clients
    }

    fn open(&self, vfs: &Vfs, file: &Target) -> Handle {
        let handle = vfs.handle(file);
        self.open.lock().insert(handle.as_slice().to_vec());
        handle
    }

    fn close(&self, handle: &Handle) {
        assert!(self.open.lock().remove(handle.as_slice()));
    }

    fn is_kept(&self, handle: &Handle) -> bool {
        self.kept.lock().contains(handle.as_slice())
    }
}

impl Served {
    fn kept_names(&self) -> Vec<String> {
        let found = std::fs::read_dir(self.dir.path().join("data/.forebay/unlinked"));
        let names =
            found.into_iter().flatten().map(|entry| entry.unwrap().file_name().into_string().unwrap());
        names.collect()
    }
}

#[test]
fn an_open_file_is_kept_until_the_server_removes_it() {
    let served = serve(Mode::WriteBack);
    let clients = Clients::of(&served.vfs);
    for replaces in [false, true] {
        let file = served.create(b"file");
        let handle = clients.open(&served.vfs, &file);
        served.commit(served.write(&file, true));
        let intent = if replaces { served.replace(b"file") } else { served.remove(b"file") };
        served.commit(intent);
        assert!(clients.is_kept(&handle) && clients.going.lock().is_empty());
        assert_eq!(served.kept_names(), [file.object.kernel.to_name()]);
        assert_eq!(served.vfs.getattr(&file).unwrap().nlink, 0);
        assert!(served.cached(&file).unwrap().dirty_blocks() > 0, "its data stays");
        let link = served.vfs.link(&file, &served.root, b"again", &served.cred, None);
        assert_eq!(link.result.unwrap_err(), Error::Os(Errno::NOENT));
        // A client has opened the file by its handle meanwhile.
        clients.kept.lock().clear();
        served.vfs.remove_kept(handle.as_slice()).unwrap();
        assert!(clients.is_kept(&handle) && served.vfs.getattr(&file).is_ok());
        clients.close(&handle);
        served.vfs.remove_kept(handle.as_slice()).unwrap();
        assert_eq!(served.vfs.getattr(&file), Err(Error::Stale));
        assert!(served.kept_names().is_empty() && clients.going.lock().is_empty());
        served.forgotten(&file);
        // Nothing is left to do.
        served.vfs.remove_kept(handle.as_slice()).unwrap();
        if replaces {
            served.commit(served.remove(b"file"));
        }
    }
}

#[test]
fn a_file_is_kept_only_when_its_last_name_goes() {
    let served = serve(Mode::WriteBack);
    let clients = Clients::of(&served.vfs);
    let file = served.create(b"file");
    let handle = clients.open(&served.vfs, &file);
    served.commit(served.vfs.link(&file, &served.root, b"link", &served.cred, None).intent);
    served.commit(served.remove(b"file"));
    assert!(!clients.is_kept(&handle) && served.kept_names().is_empty());
    assert_eq!(served.vfs.getattr(&file).unwrap().nlink, 1);
    // Changes that the kernel refuses leave nothing behind.
    let (root, cred) = (&served.root, &served.cred);
    served.commit(served.vfs.make(root, b"dir", Special::Directory, &SetAttr::default(), cred, None).intent);
    assert!(served.vfs.rename(root, b"dir", root, b"link", cred, None).result.is_err());
    assert!(served.vfs.remove(root, b"dir", cred, None).result.is_err());
    assert!(served.vfs.remove(root, b"none", cred, None).result.is_err());
    assert!(served.kept_names().is_empty() && clients.going.lock().is_empty());
    served.commit(served.remove(b"link"));
    assert!(clients.is_kept(&handle) && served.kept_names().len() == 1);
}

#[test]
fn a_file_that_is_closed_before_the_locks_are_taken_is_not_kept() {
    let served = serve(Mode::WriteBack);
    let clients = Clients::of(&served.vfs);
    clients.hastens.store(true, Ordering::Relaxed);
    for replaces in [false, true] {
        let file = served.create(b"file");
        let handle = clients.open(&served.vfs, &file);
        let intent = if replaces { served.replace(b"file") } else { served.remove(b"file") };
        served.commit(intent);
        assert_eq!(served.vfs.getattr(&file), Err(Error::Stale));
        assert!(served.kept_names().is_empty() && !clients.is_kept(&handle));
        assert!(clients.going.lock().is_empty());
    }
}

/// A killed server has given a file its second name, and has not removed the first one.
#[test]
fn a_removal_that_was_begun_is_finished() {
    let served = serve(Mode::WriteBack);
    let clients = Clients::of(&served.vfs);
    let file = served.create(b"file");
    let data = served.dir.path().join("data");
    std::fs::create_dir_all(data.join(".forebay/unlinked")).unwrap();
    let name = file.object.kernel.to_name();
    std::fs::hard_link(data.join("file"), data.join(".forebay/unlinked").join(&name)).unwrap();
    let handle = clients.open(&served.vfs, &file);
    served.vfs.remove_unopened_kept().unwrap();
    assert_eq!(served.vfs.getattr(&file).unwrap().nlink, 1);
    served.commit(served.remove(b"file"));
    assert_eq!(served.vfs.getattr(&file).unwrap().nlink, 0);
    assert_eq!(served.kept_names(), [name]);
    clients.close(&handle);
    served.vfs.remove_kept(handle.as_slice()).unwrap();
    assert!(served.kept_names().is_empty());
}

#[test]
fn a_start_removes_what_no_client_has_open() {
    let served = serve(Mode::WriteBack);
    let clients = Clients::of(&served.vfs);
    let files = [served.create(b"one"), served.create(b"two")];
    let handles = files.each_ref().map(|file| clients.open(&served.vfs, file));
    served.commit(served.remove(b"one"));
    served.commit(served.remove(b"two"));
    std::fs::write(served.dir.path().join("data/.forebay/unlinked/note"), b"by hand").unwrap();
    // The next server, whose clients have one of them open.
    clients.kept.lock().clear();
    clients.close(&handles[0]);
    served.vfs.remove_unopened_kept().unwrap();
    assert!(!clients.is_kept(&handles[0]) && clients.is_kept(&handles[1]));
    assert_eq!(served.vfs.getattr(&files[0]), Err(Error::Stale));
    assert_eq!(served.vfs.getattr(&files[1]).unwrap().nlink, 0);
    let mut names = served.kept_names();
    names.sort();
    assert_eq!(names, [files[1].object.kernel.to_name(), "note".to_owned()]);
    let by_name = |name: &String| KernelHandle::from_name(name.as_bytes());
    assert_eq!(by_name(&names[0]), Some(files[1].object.kernel));
}
