//! Random requests of clients.

use forebay_oplog::{Kind, Name};

use super::request::{How, Place, Request};
use super::volume::Volume;
use crate::rng::Rng;

/// Objects in a tree: enough for some depth, few enough that requests meet.
const OBJECTS: usize = 24;

/// Returns a name in a directory. The name leads to an object if `taken`.
pub fn any_place(rng: &mut Rng, volume: &Volume, taken: bool) -> Place {
    let dirs = volume.state.inodes.iter().filter(|(inner, inode)| {
        **inner != Volume::moving_dir()
            && inode.attributes.kind == Kind::Directory
            && !(taken && inode.entries.is_empty())
    });
    let dirs: Vec<_> = dirs.collect();
    if dirs.is_empty() {
        return (Volume::root(), Name::from_slice(b"a"));
    }
    let (dir, inode) = rng.pick(&dirs);
    let names: Vec<&Name> = inode.entries.keys().collect();
    let name = match taken {
        true => rng.pick(&names).clone(),
        false => Name::from_slice(rng.pick(&[b"a", b"b", b"c", b"d"])),
    };
    (volume.outer(*dir), name)
}

/// Returns a request, which may be carried out or refused.
pub fn any_request(rng: &mut Rng, volume: &Volume) -> Request {
    let objects: Vec<_> = volume.state.inodes.keys().filter(|it| **it != Volume::moving_dir()).collect();
    let object = volume.outer(*rng.pick(&objects));
    let (free, other, taken) =
        (any_place(rng, volume, false), any_place(rng, volume, false), any_place(rng, volume, true));
    let how = rng.pick(&[How::Unchecked, How::Guarded, How::Exclusive]);
    // A large tree shrinks.
    match rng.below(if objects.len() < OBJECTS { 14 } else { 9 }) {
        0..=1 => Request::Remove(taken),
        2 => Request::Rmdir(taken),
        3..=5 => Request::Rename(taken, other),
        6 => Request::Link(object, free),
        7 => Request::Chmod(object),
        8 => Request::Setattr(object),
        9..=10 => Request::Create(free, how),
        11 => Request::Symlink(free),
        12 => Request::Mknod(free),
        _ => Request::Mkdir(free),
    }
}

/// Returns a request that gives a file a second name, or removes one of several names.
pub fn any_link_request(rng: &mut Rng, volume: &Volume) -> Request {
    let files = volume.state.inodes.iter().filter(|(_, inode)| inode.attributes.kind == Kind::File);
    let files: Vec<_> = files.map(|(file, inode)| (*file, inode.links)).collect();
    if files.is_empty() {
        return any_request(rng, volume);
    }
    let (file, links) = rng.pick(&files);
    if links < 2 {
        return Request::Link(volume.outer(file), any_place(rng, volume, false));
    }
    let names = volume.state.inodes.iter().flat_map(|(dir, inode)| {
        let names = inode.entries.iter().filter(|(_, object)| **object == file);
        names.map(|(name, _)| (volume.outer(*dir), name.clone()))
    });
    let names: Vec<Place> = names.collect();
    Request::Remove(rng.pick(&names))
}
