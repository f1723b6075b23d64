//! Policies of directories and files below exports: `[[policy]]`.

use std::path::{Component, Path, PathBuf};

use crate::export::Export;
use crate::file::absolute_path;
use crate::policy::{Policy, read_parts};
use crate::problem::{Collector, Origin};
use crate::table::{Located, TableReader};

/// A policy for a path below an export.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PathPolicy {
    /// The directory or file: absolute. Down to the export there is no symbolic link in it. Clients can make, rename
    /// and remove the rest, so it may not exist.
    pub path: PathBuf,
    /// The policy.
    pub policy: Policy,
}

/// Reads one `[[policy]]`. Returns `None` if it has no path.
pub(crate) fn read_path_policy(
    table: Located<TableReader<'_, '_>>,
    problems: &mut Collector<'_>,
) -> Option<(Origin, PathPolicy)> {
    let Located { value: mut table, origin } = table;
    let path = table.parsed("path", problems, parse_path);
    if !table.has("path") {
        problems.add(&origin, "[[policy]] has no `path`; add path = \"/srv/data/scratch\"");
    }
    let policy = read_parts(&mut table, problems);
    if !table.has_beside("path") {
        problems.add(&origin, "[[policy]] sets nothing; add cache = \"pin\", for example");
    }
    table.finish(problems);
    path.map(|path| (path.origin, PathPolicy { path: path.value, policy }))
}

/// Parses an absolute path without `..`, which would lead to another export than the text says.
fn parse_path(text: &str) -> Result<PathBuf, String> {
    let path = absolute_path(text)?;
    match path.components().any(|part| part == Component::ParentDir) {
        true => Err(format!("`{text}` has `..` in it; write the path without")),
        false => Ok(path.components().collect()),
    }
}

/// Returns the policies of paths with the real paths of their exports. Adds a problem for each path that is below no
/// export, is an export, or has a policy already. `written` are the paths of the exports as the file has them.
pub(crate) fn complete_policies(
    drafts: Vec<(Origin, PathPolicy)>,
    written: &[PathBuf],
    exports: &[Export],
    problems: &mut Collector<'_>,
) -> Vec<PathPolicy> {
    let mut done: Vec<Located<PathPolicy>> = Vec::new();
    for (origin, mut draft) in drafts {
        let shown = draft.path.display().to_string();
        let Some(real) = below(&draft.path, written, exports) else {
            let message = format!(
                "{shown} is below no export, so the policy would hold for nothing; name a path below the `path` of an [[export]]"
            );
            problems.add(&origin, message);
            continue;
        };
        if exports.iter().any(|export| export.path == real) {
            let message =
                format!("{shown} is an export; write its policy into [[export]], as policy = {{ ... }}");
            problems.add(&origin, message);
        }
        if let Some(earlier) = done.iter().find(|earlier| earlier.value.path == real) {
            let place = problems.describe(&earlier.origin);
            problems.add(&origin, format!("{shown} already has a [[policy]] ({place}); keep one of them"));
        }
        draft.path = real;
        done.push(Located { value: draft, origin });
    }
    done.into_iter().map(|policy| policy.value).collect()
}

/// Returns a path with the real path of the export that the path is below. The longest export counts.
fn below(path: &Path, written: &[PathBuf], exports: &[Export]) -> Option<PathBuf> {
    let real = exports.iter().map(|export| &export.path);
    let all = written.iter().chain(real).filter_map(|export| Some((export, path.strip_prefix(export).ok()?)));
    let (export, rest) = all.max_by_key(|(export, _)| export.components().count())?;
    let real = export.canonicalize().unwrap_or_else(|_| export.clone());
    Some(real.join(rest).components().collect())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;
    use crate::policy::Keep;
    use crate::resolve::{Flags, resolve_text};

    /// Returns the policies of a file with an export at `path` and this text, or its mistakes.
    fn resolved(path: &Path, text: &str) -> Result<Vec<PathPolicy>, String> {
        let flags = Flags {
            config: Some(path.join("f.toml")),
            state_dir: Some("/var/lib/x".into()),
            ..Flags::default()
        };
        let text = format!("[[export]]\npath = {path:?}\nname = \"/\"\n{text}");
        resolve_text(&flags, Some(&text))
            .map(|resolved| resolved.settings.policies)
            .map_err(|problems| problems.to_string())
    }

    #[test]
    fn a_policy_is_for_a_path_below_an_export_that_need_not_exist() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path().canonicalize().unwrap();
        std::fs::create_dir(dir.join("real")).unwrap();
        symlink(dir.join("real"), dir.join("link")).unwrap();
        for written in ["real", "link"] {
            let text = format!("[[policy]]\npath = {:?}\ncache = \"pin\"\n", dir.join(written).join("a//b/"));
            let found = resolved(&dir.join(written), &text).unwrap();
            let policy = Policy { cache: Some(Keep::Pin), ..Policy::default() };
            assert_eq!(found, [PathPolicy { path: dir.join("real/a/b"), policy }]);
        }
        // A client may have made this link. It does not make the configuration wrong.
        symlink("/etc", dir.join("real/out")).unwrap();
        let text = format!("[[policy]]\npath = {:?}\ncache = \"pin\"\n", dir.join("real/out/x"));
        assert_eq!(resolved(&dir.join("real"), &text).unwrap()[0].path, dir.join("real/out/x"));
    }

    #[test]
    fn mistakes_in_policies_name_the_remedy() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path().canonicalize().unwrap();
        let policy =
            |path: &Path, keys: &str| format!("[[policy]]\npath = {:?}\n{keys}\n", path.to_str().unwrap());
        let (pin, a) = ("cache = \"pin\"", dir.join("a"));
        for (text, told) in [
            (policy(&a, ""), "[[policy]] sets nothing"),
            ("[[policy]]\ncache = \"pin\"\n".to_owned(), "[[policy]] has no `path`"),
            (policy(Path::new("a"), pin), "not an absolute path"),
            (policy(&dir.join("a/../../b"), pin), "has `..` in it"),
            (policy(Path::new("/elsewhere"), pin), "/elsewhere is below no export"),
            (policy(&dir, pin), "is an export; write its policy into [[export]]"),
            (policy(&a, pin) + &policy(&dir.join("a/"), pin), "already has a [[policy]] ("),
            (policy(&a, "cache = \"some\""), "`cache`"),
            (policy(&a, "cach = \"pin\""), "did you mean `cache`?"),
            (policy(&a, "cache_min = \"2MiB\"\ncache_max = \"1MiB\""), "is more than cache_max"),
        ] {
            let problems = resolved(&dir, &text).unwrap_err();
            assert!(problems.contains(told), "{told}: {problems}");
        }
    }
}
