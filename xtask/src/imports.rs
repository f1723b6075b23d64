//! The import cycles of a crate: files that import each other, directly or through other files.
//!
//! The files of a crate without cycles form a ladder, which a reader can climb from the bottom. A cycle has no bottom.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
};

use anyhow::{Context, Result};

use crate::{english::files, process::root};

mod tokens;

use tokens::tokens;

/// The number of files that the largest import cycle of a crate may have. A crate that is not named is not checked.
const BOUNDS: [(&str, usize); 2] = [("engine", 5), ("vfs", 6)];

/// The tokens of each file of a crate, by the name of its module, such as `caches::inode`. The root's name is empty.
type Sources = BTreeMap<String, Vec<String>>;

/// The modules that each module imports from.
type Graph = BTreeMap<String, BTreeSet<String>>;

/// A name that a source uses: the path, and the name under which `use` makes it known.
struct Used {
    path: Vec<String>,
    /// `None` for a path in the code itself.
    known_as: Option<String>,
}

/// Returns a line for each crate whose largest import cycle has too many files.
pub(crate) fn check() -> Result<Vec<String>> {
    let mut problems = Vec::new();
    for (name, bound) in BOUNDS {
        let graph = graph(&sources(name)?);
        let cycle = largest_cycle(&graph);
        if cycle.len() > bound {
            problems.push(format!(
                "crates/{name} has {} files that import each other, and may have {bound}: {}",
                cycle.len(),
                cycle.join(", ")
            ));
        }
    }
    Ok(problems)
}

/// Reads the files of a crate. Files of tests may import from anywhere.
fn sources(name: &str) -> Result<Sources> {
    let directory = root().join("crates").join(name).join("src");
    let mut found = Sources::new();
    for path in files(&directory, "rs")?.into_iter().filter(|path| !path.ends_with("tests.rs")) {
        let text = fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
        let place = path.strip_prefix(&directory).unwrap_or(&path).with_extension("");
        let mut module: Vec<_> = place.iter().map(|part| part.to_string_lossy().into_owned()).collect();
        module.pop_if(|last| last == "mod" || last == "lib");
        found.insert(module.join("::"), tokens(&text));
    }
    Ok(found)
}

/// Returns the imports of every file but the root. A name that the root re-exports stands for its own file.
fn graph(sources: &Sources) -> Graph {
    let exports = sources.get("").map_or_else(Vec::new, |root| used(root));
    let exported: BTreeMap<_, _> = exports
        .into_iter()
        .filter_map(|used| Some((used.known_as?, resolve(sources, "", &used.path)?.0)))
        .collect();
    let imports = |module: &String, tokens: &[String]| {
        let mut imports = BTreeSet::new();
        let mut modules = BTreeMap::new();
        for Used { path, known_as } in used(tokens) {
            let known = path.first().and_then(|first| modules.get(first)).cloned();
            let found = known.map(|known| (known, path.len() - 1));
            let Some((target, left)) = resolve(sources, module, &path).or(found) else { continue };
            if let (0, Some(name)) = (left, known_as) {
                modules.insert(name, target.clone());
            }
            let name = &path[path.len() - left..];
            let own = name.first().and_then(|name| exported.get(name)).filter(|_| target.is_empty());
            imports.insert(own.cloned().unwrap_or(target));
        }
        imports.retain(|target| !target.is_empty() && target != module && sources.contains_key(target));
        imports
    };
    let files = sources.iter().filter(|(module, _)| !module.is_empty());
    files.map(|(module, tokens)| (module.clone(), imports(module, tokens))).collect()
}

/// Returns the module that a path in `module` leads to, and the number of names behind the module. Returns `None` for a
/// path into another crate.
fn resolve(sources: &Sources, module: &str, path: &[String]) -> Option<(String, usize)> {
    let below = |module: &str, name: &str| {
        let below = if module.is_empty() { name.to_owned() } else { format!("{module}::{name}") };
        sources.contains_key(&below).then_some(below)
    };
    let (mut at, mut rest) = (module.to_owned(), path);
    match path.first()?.as_str() {
        "crate" => (at, rest) = (String::new(), &path[1..]),
        "self" => rest = &path[1..],
        "super" => {
            while let Some(("super", up)) = rest.split_first().map(|(name, up)| (name.as_str(), up)) {
                at = at.rsplit_once("::").map_or_else(String::new, |(parent, _)| parent.to_owned());
                rest = up;
            }
        }
        first => {
            below(module, first)?;
        }
    }
    while let Some(next) = rest.first().and_then(|name| below(&at, name)) {
        (at, rest) = (next, &rest[1..]);
    }
    Some((at, rest.len()))
}

/// Returns the paths that a source uses: those of `use` first.
fn used(tokens: &[String]) -> Vec<Used> {
    let (mut imported, mut inline) = (Vec::new(), Vec::new());
    let mut at = 0;
    while at < tokens.len() {
        // `use<'a>` in a type is no import.
        if tokens[at] == "use" && tokens.get(at + 1).is_none_or(|next| next != "<") {
            at = tree(tokens, at + 1, &mut Vec::new(), &mut imported);
            continue;
        }
        let begins = !at.checked_sub(1).is_some_and(|before| tokens[before] == "." || tokens[before] == "::");
        let mut path = Vec::new();
        while begins && is_name(&tokens[at]) {
            path.push(tokens[at].clone());
            let goes_on = tokens.get(at + 1).is_some_and(|next| next == "::");
            if !goes_on || !tokens.get(at + 2).is_some_and(|name| is_name(name)) {
                break;
            }
            at += 2;
        }
        if path.len() > 1 {
            inline.push(Used { path, known_as: None });
        }
        at += 1;
    }
    imported.extend(inline);
    imported
}

fn is_name(token: &str) -> bool {
    token.starts_with(|c: char| c.is_alphabetic() || c == '_')
}

/// Adds the paths of the part of a `use` that begins at `at`, behind `prefix`. Returns the place behind it.
fn tree(tokens: &[String], mut at: usize, prefix: &mut Vec<String>, found: &mut Vec<Used>) -> usize {
    let outer = prefix.len();
    let mut known_as = None;
    while let Some(token) = tokens.get(at) {
        match token.as_str() {
            "{" => {
                at += 1;
                while tokens.get(at).is_some_and(|token| token != "}") {
                    at = tree(tokens, at, prefix, found);
                    at += usize::from(tokens.get(at).is_some_and(|token| token == ","));
                }
                prefix.truncate(outer);
                return at + 1;
            }
            "," | "}" | ";" => break,
            "as" => {
                known_as = tokens.get(at + 1).cloned();
                at += 1;
            }
            "self" if !prefix.is_empty() => {}
            "::" => {}
            name => prefix.push(name.to_owned()),
        }
        at += 1;
    }
    let known_as = known_as.or_else(|| prefix.last().cloned());
    found.push(Used { path: prefix.clone(), known_as });
    prefix.truncate(outer);
    at
}

/// Returns the largest set of modules of which each imports from every other one, directly or through other modules.
fn largest_cycle(graph: &Graph) -> Vec<&str> {
    let reached: BTreeMap<&str, BTreeSet<&str>> =
        graph.keys().map(|module| (module.as_str(), reached_from(graph, module))).collect();
    let cycle = |module: &&str| -> Vec<&str> {
        let both = reached[module].iter().filter(|other| reached[**other].contains(module));
        both.copied().collect()
    };
    reached.keys().map(cycle).max_by_key(Vec::len).unwrap_or_default()
}

/// Returns the files that this file imports, directly or through other files. The file itself is among them only if
/// it is in a cycle.
fn reached_from<'a>(graph: &'a Graph, module: &'a str) -> BTreeSet<&'a str> {
    let mut reached = BTreeSet::new();
    let mut left: Vec<&str> = vec![module];
    while let Some(module) = left.pop() {
        let imports = graph.get(module).into_iter().flatten().map(String::as_str);
        left.extend(imports.filter(|target| reached.insert(*target)));
    }
    reached
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(files: &[(&str, &str)]) -> Graph {
        graph(&files.iter().map(|(module, text)| ((*module).to_owned(), tokens(text))).collect())
    }

    fn imports(text: &str) -> Vec<String> {
        let others = ["", "a::b", "a::b::c", "d", "e"].map(|module| (module, "pub use d::Deep;"));
        parsed(&[&others[..], &[("a", text)]].concat())["a"].iter().cloned().collect()
    }

    #[test]
    fn imports_are_found_in_every_form() {
        assert_eq!(imports("use crate::{d::{self, X}, e::Y as Z};"), ["d", "e"]);
        assert_eq!(imports("use super::d::X; pub use b::c::Z;"), ["a::b::c", "d"]);
        assert_eq!(imports("fn f<'a>(x: &'a str) -> crate::d::X { self::b::f('{') }"), ["a::b", "d"]);
        assert_eq!(imports("use crate::d as f; fn g() { f::h(); x.e::<u8>() }"), ["d"]);
        assert_eq!(imports("use crate::Deep;"), ["d"]);
    }

    #[test]
    fn comments_strings_tests_and_other_crates_are_no_imports() {
        assert_eq!(imports("// use crate::d;\n/* crate::d */ const A: &str = r#\"\" crate::d\"#;"), [""; 0]);
        assert_eq!(imports("#[cfg(test)]\nmod tests { use crate::d; mod x {} }\nuse crate::e;"), ["e"]);
        assert_eq!(imports("#[cfg(test)] use crate::d; use std::e; use other::d::X;"), [""; 0]);
        assert_eq!(imports("fn f() -> impl Fn() + use<> { \"\\\" crate::d\" }"), [""; 0]);
    }

    #[test]
    fn the_largest_cycle_is_found() {
        let ladder = [("a", "use crate::b::X;"), ("b", "use crate::c::X;"), ("c", ""), ("d", "")];
        assert!(largest_cycle(&parsed(&ladder)).is_empty());
        let through =
            [("a", "use crate::b::X;"), ("b", "use crate::c::X;"), ("c", "use crate::a::X;"), ("d", "")];
        assert_eq!(largest_cycle(&parsed(&through)), ["a", "b", "c"]);
    }

    #[test]
    fn no_crate_has_a_larger_cycle_than_it_may() {
        assert_eq!(check().unwrap(), [""; 0]);
    }
}
