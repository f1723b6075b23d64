//! The root file system of the guest: programs of this machine, the load, and the sums of all files.

use std::{
    fs::{self, File},
    path::Path,
    process::Command,
};

use anyhow::Result;
use clap::ValueEnum;

use crate::{
    loop_xfs::LoopXfs,
    process::{command, output, run},
    suites::asset,
};

/// Bytes of the volume.
const SIZE: u64 = 1 << 30;

/// Copies programs with their libraries, and Python with its modules, into the directory that is the first argument.
/// Writes the sums of all files.
const COPY: &str = "
set -e
cd /
python=$(/usr/bin/python3 -c 'import sys; print(\"python%d.%d\" % sys.version_info[:2])')
programs=\"/usr/bin/$python\"
for name in bash mount sha256sum shuf sleep; do programs=\"$programs /usr/bin/$name\"; done
libraries=$(ldd $programs /usr/lib/$python/lib-dynload/*.so | grep -o '/[^ :)]*\\.so[^ :)]*' |
    grep -v lib-dynload | sort -u)
mkdir -p \"$1\"/usr/sbin
cp -aL --parents $programs $libraries /usr/lib/$python \"$1\"
ln -s $python \"$1/usr/bin/python3\"
cd \"$1\"
find usr lib* -type f -exec sha256sum {} + > sums
mkdir -p data/f0 data/f1 data/f2 dev proc run sys tmp
";

/// A file system of the guest's root.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Fs {
    Ext4,
    Xfs,
}

impl Fs {
    /// Returns the name by which mount(8) knows it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Fs::Ext4 => "ext4",
            Fs::Xfs => "xfs",
        }
    }

    /// Returns the command that checks an image, and changes nothing.
    pub(crate) fn check(self, image: &Path) -> Command {
        let mut check = match self {
            Fs::Ext4 => command("fsck.ext4", ["-fn"]),
            Fs::Xfs => command("xfs_repair", ["-n", "-f"]),
        };
        check.arg(image);
        check
    }
}

/// Makes an image with the root file system.
pub(crate) fn make_image(fs: Fs, image: &Path) -> Result<()> {
    let work = tempfile::tempdir()?;
    let tree = work.path().join("tree");
    output(command("sh", ["-c", COPY, "sh"]).arg(&tree))?;
    fs::copy(asset("nbd_root_init.sh"), tree.join("usr/sbin/init"))?;
    run(command("chmod", ["755"]).arg(tree.join("usr/sbin/init")))?;
    fs::copy(asset("nbd_root_load.py"), tree.join("load"))?;
    match fs {
        Fs::Ext4 => {
            File::create(image)?.set_len(SIZE)?;
            run(command("mkfs.ext4", ["-q", "-F", "-d"]).args([&tree, image]))
        }
        Fs::Xfs => {
            let at = work.path().join("mounted");
            let _mounted = LoopXfs::mount(image, SIZE, &at)?;
            run(command("cp", ["-a"]).arg(tree.join(".")).arg(&at))
        }
    }
}
