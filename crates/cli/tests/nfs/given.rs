//! Tests that objects which recovery recreates or changes grant no more than before. They have their access control
//! list and all other attributes that the kernel had given them.

use std::path::Path;
use std::process::Command;

use crate::harness::*;
use crate::reconciled::{Scene, on_each};

/// Runs a program that must succeed and returns its output.
#[track_caller]
fn run(program: &str, args: &[&str], path: &Path) -> String {
    let output = Command::new(program).args(args).arg(path).output().unwrap();
    assert!(output.status.success(), "{program} {args:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

fn acl(path: &Path) -> String {
    run("getfacl", &["--numeric", "--absolute-names"], path)
}

fn mode_of(path: &Path) -> u32 {
    std::os::unix::fs::MetadataExt::mode(&path.symlink_metadata().unwrap()) & 0o7777
}

/// With this list the group has no rights and one user may read and write. The mode's group bits are the mask.
const LIST: &str = "u:4002:rwx,g::---,o::---,m::rwx";

/// Makes one object of each kind in `dir`, as a user.
fn make_all(c: &mut Client, dir: &FileHandle) {
    c.create(dir, b"unchecked", CreateHow::Unchecked(mode(0o666))).unwrap();
    c.create(dir, b"guarded", CreateHow::Guarded(mode(0o660))).unwrap();
    c.create(dir, b"exclusive", CreateHow::Exclusive([5; 8])).unwrap();
    let given = Sattr3 { uid: Some(7), gid: Some(8), mtime: at(5, 6), ..mode(0o664) };
    c.create(dir, b"set", CreateHow::Guarded(given)).unwrap();
    c.new_dir(dir, b"directory", 0o777);
    c.mknod(dir, b"fifo", MknodData::Fifo(mode(0o666))).unwrap();
    c.symlink(dir, b"link", b"unchecked").unwrap();
}

const ALL: [&str; 6] = ["unchecked", "guarded", "exclusive", "set", "directory", "fifo"];

/// Removes the objects, as a power cut does before the journal has them.
fn lose_all(dir: &Path) {
    for name in ALL.iter().chain(&["link"]) {
        let path = dir.join(name);
        let _ = std::fs::remove_dir(&path).or_else(|_| std::fs::remove_file(&path));
    }
}

#[test]
fn a_list_that_the_directory_gives_comes_back() {
    needs_root!();
    on_each(|scene| {
        let mut c = scene.client();
        let dir = c.new_dir(&scene.root, b"d", 0o777);
        run("setfacl", &["-d", "-m", LIST], &scene.path("d"));
        scene.checkpoint();
        make_all(&mut c, &dir);
        let inner = c.find(&dir, b"directory");
        c.new_file(&inner, b"inner", 0o666);
        // The mask of this file becomes narrower.
        let guarded = c.find(&dir, b"guarded");
        c.setattr(&guarded, mode(0o640)).unwrap();
        let all = || ALL.map(|name| acl(&scene.at.join("d").join(name)));
        let before = all();
        assert!(before.iter().all(|acl| acl.contains("user:4002:rwx") && acl.contains("group::---")));
        let inner = acl(&scene.path("d/directory/inner"));
        scene.crash(|at| {
            std::fs::remove_file(at.join("d/directory/inner")).unwrap();
            lose_all(&at.join("d"));
        });
        for ((name, before), after) in ALL.iter().zip(before).zip(ALL.map(|n| acl(&scene.path("d").join(n))))
        {
            assert_eq!(after, before, "{name}");
        }
        assert_eq!(acl(&scene.path("d/directory/inner")), inner);
        assert_eq!(std::fs::read_link(scene.path("d/link")).unwrap(), Path::new("unchecked"));
    });
}

#[test]
fn a_list_on_the_root_is_given_only_to_what_had_it() {
    needs_root!();
    on_each(|scene| {
        let mut c = scene.client();
        let dir = c.new_dir(&scene.root, b"d", 0o777);
        // Recovery first recreates objects below the root.
        run("setfacl", &["-d", "-m", "u:4002:rwx,m::rwx"], &scene.at);
        scene.checkpoint();
        c.new_file(&dir, b"f", 0o640);
        c.new_dir(&dir, b"e", 0o750);
        let before = ["d/f", "d/e"].map(|name| acl(&scene.path(name)));
        scene.crash(|at| {
            std::fs::remove_file(at.join("d/f")).unwrap();
            std::fs::remove_dir(at.join("d/e")).unwrap();
        });
        assert_eq!(["d/f", "d/e"].map(|name| acl(&scene.path(name))), before);
    });
}

/// The list is longer than a record: it has several hundred users.
#[test]
fn a_list_that_no_record_holds_is_in_the_file_system_at_once() {
    needs_root!();
    on_each(|scene| {
        let mut c = scene.client();
        let dir = c.new_dir(&scene.root, b"d", 0o777);
        let users = (0..350).map(|n| format!("u:{}:rw", 5000 + n)).collect::<Vec<_>>().join(",");
        if !Command::new("setfacl")
            .args(["-d", "-m", &users])
            .arg(scene.path("d"))
            .status()
            .unwrap()
            .success()
        {
            eprintln!("not run: this file system has no lists so long");
            return;
        }
        scene.checkpoint();
        let commits = |scene: &Scene| scene.server.status()["durability"]["operations"].as_u64().unwrap();
        let before = commits(scene);
        let file = c.new_file(&dir, b"f", 0o660);
        assert!(commits(scene) > before, "neither the log nor the journal has the list");
        let list = acl(&scene.path("d/f"));
        scene.crash(|_| {});
        assert_eq!(acl(&scene.path("d/f")), list);
        assert_eq!(scene.client().find(&dir, b"f"), file);
    });
}

/// The log's record of an object contains no external changes of the object.
#[test]
fn a_list_that_somebody_set_and_the_power_cut_took_away_leaves_no_rights_behind() {
    needs_root!();
    on_each(|scene| {
        let mut c = scene.client();
        let dir = c.new_dir(&scene.root, b"d", 0o750);
        let file = c.new_file(&dir, b"f", 0o640);
        let linked = c.new_file(&dir, b"l", 0o640);
        let changed = c.new_file(&dir, b"m", 0o640);
        scene.checkpoint();
        let paths = ["d", "d/f", "d/l", "d/m"].map(|name| scene.path(name));
        paths.iter().for_each(|path| drop(run("setfacl", &["-m", "u:4002:rwx,m::rwx"], path)));
        // The mode in these records is that of the mask, but these requests did not set it.
        c.setattr(&file, Sattr3 { mtime: at(1, 2), ..Sattr3::default() }).unwrap();
        c.link(&linked, &dir, b"again").unwrap();
        c.setattr(&changed, mode(0o660)).unwrap();
        let list = acl(&paths[3]);
        scene.crash(|at| {
            for (name, bits) in [("d", "750"), ("d/f", "640"), ("d/l", "640"), ("d/m", "640")] {
                run("setfacl", &["-b"], &at.join(name));
                run("chmod", &[bits], &at.join(name));
            }
        });
        for (path, expected) in paths.iter().zip([0o750, 0o640, 0o640, 0o660]) {
            assert_eq!(mode_of(path), expected, "{}", path.display());
        }
        assert_eq!(acl(&paths[3]), list, "a mode without the list that bounds it");
    });
}

#[test]
fn flags_and_the_project_come_back() {
    needs_root!();
    let flags = |path: &Path| {
        let shown = Command::new("xfs_io").args(["-r", "-c", "stat"]).arg(path).output().unwrap();
        let shown = String::from_utf8(shown.stdout).unwrap();
        let fields = ["fsxattr.xflags", "fsxattr.projid", "fsxattr.extsize"];
        let lines = shown.lines().filter(|line| fields.iter().any(|field| line.starts_with(field)));
        // The first number is left out: it also shows whether there are extended attributes.
        lines.map(|line| line.split('[').next_back().unwrap().replace('X', "-")).collect::<Vec<_>>()
    };
    on_each(|scene| {
        let mut c = scene.client();
        let dir = c.new_dir(&scene.root, b"d", 0o777);
        let path = scene.path("d");
        run("chattr", &["+dAS"], &path);
        let projects =
            Command::new("xfs_io").args(["-c", "chproj 42", "-c", "chattr +P"]).arg(&path).output();
        // ext4 has projects only if it was made with that feature.
        let projects = projects.unwrap().stderr.is_empty();
        scene.checkpoint();
        make_all(&mut c, &dir);
        let all =
            |scene: &Scene| ALL[..5].iter().map(|n| flags(&scene.path("d").join(n))).collect::<Vec<_>>();
        let before = all(scene);
        assert!(
            !projects || before.iter().all(|one| one.contains(&"fsxattr.projid = 42".to_owned())),
            "{before:?}"
        );
        scene.crash(|at| lose_all(&at.join("d")));
        assert_eq!(all(scene), before);
    });
}
