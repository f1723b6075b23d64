//! The package for Debian and Ubuntu, made with dpkg's own tools.

use std::{
    fs,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result};

use super::{
    archive::commit_time,
    tree::{DOCUMENTS, Places, Tree},
};
use crate::process::{command, output, root, run};

const PLACES: Places = Places { zsh: "usr/share/zsh/vendor-completions" };

/// How hard a package is compressed.
#[derive(Clone, Copy)]
pub(super) enum Packing {
    /// As small as users get it: 17 seconds of processor time.
    Small,
    /// In the format that users get, in two seconds.
    Fast,
    /// In the format that is unpacked fastest.
    Light,
}

impl Packing {
    /// Returns the options of dpkg-deb(1).
    fn options(self) -> &'static [&'static str] {
        match self {
            Self::Small => &["-Zxz"],
            Self::Fast => &["-Zxz", "-z0"],
            Self::Light => &["-Zgzip", "-z1"],
        }
    }
}

/// Makes the package and returns its path.
pub(super) fn make(binary: &Path, version: &str, out: &Path, packing: Packing) -> Result<PathBuf> {
    // The last number counts the packages of one version.
    let version = format!("{version}-1");
    let tree = Tree::new(binary, &PLACES)?;
    let sources = root().join("packaging/debian");
    let text =
        |name: &str| fs::read_to_string(sources.join(name)).with_context(|| format!("cannot read {name}"));
    let licence = fs::read_to_string(root().join("LICENSE-MIT"))?;
    tree.write(&format!("{DOCUMENTS}/copyright"), &text("copyright")?.replace("@MIT@", &indented(&licence)))?;
    tree.copy(&root().join("CHANGELOG.md"), &format!("{DOCUMENTS}/changelog"), 0o644)?;
    let date = output(command("date", ["--utc", "--rfc-email"]).arg(format!("--date=@{}", commit_time()?)))?;
    let entry = text("changelog")?.replace("@VERSION@", &version).replace("@DATE@", date.trim());
    tree.write(&format!("{DOCUMENTS}/changelog.Debian"), &entry)?;
    for changelog in ["changelog", "changelog.Debian"] {
        tree.compress(&tree.path().join(DOCUMENTS).join(changelog))?;
    }
    tree.copy(&sources.join("overrides"), "usr/share/lintian/overrides/forebay", 0o644)?;

    let architecture = output(&mut command("dpkg", ["--print-architecture"]))?.trim().to_owned();
    let control = text("control")?
        .replace("@VERSION@", &version)
        .replace("@ARCH@", &architecture)
        .replace("@SIZE@", &kibibytes(tree.path())?.to_string())
        .replace("@DEPENDS@", &libraries(binary)?);
    tree.write("DEBIAN/control", &control)?;
    tree.write("DEBIAN/conffiles", "/etc/forebay/forebay.toml\n")?;
    tree.write("DEBIAN/templates", &text("templates")?)?;
    for script in ["postinst", "prerm", "postrm"] {
        tree.copy(&sources.join(script), &format!("DEBIAN/{script}"), 0o755)?;
    }
    let sums = output(
        command("sh", ["-c", "find usr -type f -print0 | sort -z | xargs -0 md5sum"])
            .current_dir(tree.path()),
    )?;
    tree.write("DEBIAN/md5sums", &sums)?;
    directories_readable(tree.path())?;

    let package = out.join(format!("forebay_{version}_{architecture}.deb"));
    run(command("dpkg-deb", ["--build", "--root-owner-group"])
        .args(packing.options())
        .arg(tree.path())
        .arg(&package)
        .env("SOURCE_DATE_EPOCH", commit_time()?))?;
    Ok(package)
}

/// Returns the packages of the libraries that the binary needs, as dpkg-shlibdeps(1) finds them.
fn libraries(binary: &Path) -> Result<String> {
    let dir = tempfile::tempdir()?;
    fs::create_dir(dir.path().join("debian"))?;
    fs::write(dir.path().join("debian/control"), "Source: forebay\n\nPackage: forebay\nArchitecture: any\n")?;
    let said = output(command("dpkg-shlibdeps", ["-O", "-e"]).arg(binary).current_dir(dir.path()))?;
    let line = said.trim().strip_prefix("shlibs:Depends=");
    Ok(line.with_context(|| format!("dpkg-shlibdeps says {said}"))?.to_owned())
}

/// Returns a text as a field of a control file has it: each line indented, an empty line as a dot.
fn indented(text: &str) -> String {
    let lines = text.trim().lines().map(|line| match line.trim() {
        "" => " .".to_owned(),
        line => format!(" {line}"),
    });
    lines.collect::<Vec<_>>().join("\n")
}

/// Returns the size of a tree of files in KiB.
fn kibibytes(tree: &Path) -> Result<u64> {
    let said = output(command("du", ["-sk", "--apparent-size"]).arg(tree))?;
    Ok(said.split_whitespace().next().context("du says nothing")?.parse()?)
}

/// Gives every directory of the tree the mode 0755, whatever the umask is.
fn directories_readable(dir: &Path) -> Result<()> {
    fs::set_permissions(dir, fs::Permissions::from_mode(0o755))?;
    for entry in fs::read_dir(dir)? {
        let path = entry?.path();
        if path.is_dir() {
            directories_readable(&path)?;
        }
    }
    Ok(())
}
