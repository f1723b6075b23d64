//! A function with its mutants beside it: `{ if is(1) { changed } else { as it was } }`. One build has all mutants, and
//! an environment variable names the active one.

use std::collections::BTreeMap;
use std::ops::Range;

use anyhow::{Context as _, Result};
use serde_json::Value;

/// Appended to each package with mutants. It writes the numbers of the mutants that are reached to a file, if asked to.
pub(super) const SWITCH: &str = include_str!("../../assets/mutants/switch.rs");

/// A change of the code that a test has to notice.
#[derive(Clone, Debug)]
pub(super) struct Mutant {
    /// Names the mutant in the tree. Counted from 1.
    pub(super) number: usize,
    /// File, line, column and change.
    pub(super) name: String,
    pub(super) file: String,
    /// The lines and columns that are replaced.
    span: Span,
    replacement: String,
    /// True if the replacement is a whole body, without its braces.
    is_body: bool,
    /// The function that is changed; `None` for a constant.
    function: Option<Span>,
}

/// Two places in a file: line and column, both counted from 1.
type Span = [(usize, usize); 2];

/// Reads a span of the source from the JSON of cargo-mutants: two places, each of line and column from 1.
fn span(value: &Value) -> Option<Span> {
    let place = |end: &str| {
        let number = |key: &str| usize::try_from(value[end][key].as_u64()?).ok();
        Some((number("line")?, number("column")?))
    };
    Some([place("start")?, place("end")?])
}

impl Mutant {
    /// A mutant in the form in which `cargo mutants --list --json` gives it.
    pub(super) fn new(value: &Value) -> Result<Self> {
        let text = |key: &str| value[key].as_str().map(str::to_owned).with_context(|| format!("no {key}"));
        Ok(Mutant {
            number: 0,
            name: text("name")?,
            file: text("file")?,
            span: span(&value["span"]).context("no span")?,
            replacement: text("replacement")?,
            is_body: value["genre"] == "FnValue",
            function: span(&value["function"]["span"]),
        })
    }

    /// Returns true if a switch can be put around the change. A constant takes no switch.
    pub(super) fn is_switchable(&self) -> bool {
        self.function.is_some()
    }

    /// The package that the file belongs to: its folder.
    pub(super) fn package(&self) -> Option<&str> {
        Some(self.file.split_once("/src/")?.0)
    }
}

/// Text by line and column.
struct Places<'a> {
    text: &'a str,
    lines: Vec<usize>,
}

impl<'a> Places<'a> {
    /// Finds the starts of the lines, so that places of cargo-mutants can be turned into bytes.
    fn new(text: &'a str) -> Self {
        let ends = text.match_indices('\n').map(|(at, _)| at + 1);
        Places { text, lines: [0].into_iter().chain(ends).collect() }
    }

    /// Turns a span into a range of bytes. `None` if the source has no such place.
    fn range(&self, [start, end]: Span) -> Option<Range<usize>> {
        let at = |(line, column): (usize, usize)| {
            let begin = *self.lines.get(line.checked_sub(1)?)?;
            let rest = self.text.get(begin..)?;
            let before: usize = rest.chars().take(column.checked_sub(1)?).map(char::len_utf8).sum();
            Some(begin + before)
        };
        Some(at(start)?..at(end)?)
    }
}

/// Where the body of a function is, its braces included. The function may begin with comments and attributes.
fn body(text: &str, function: &Range<usize>) -> Option<Range<usize>> {
    let bytes = text.as_bytes();
    let (mut at, mut depth) = (function.start, 0);
    while at < function.end {
        match bytes[at] {
            b'/' if bytes[at + 1..].starts_with(b"/") => at += text[at..].find('\n')?,
            b'"' => {
                at += 1;
                while *bytes.get(at)? != b'"' {
                    at += if bytes[at] == b'\\' { 2 } else { 1 };
                }
            }
            b'(' | b'[' => depth += 1,
            b')' | b']' => depth -= 1,
            b'{' if depth == 0 => {
                let end = text[..function.end].rfind('}')?;
                return Some(at..end + 1);
            }
            _ => {}
        }
        at += 1;
    }
    None
}

/// A file with mutants.
#[derive(Default)]
pub(super) struct Switched {
    pub(super) text: String,
    /// Where in it each mutant is, by number.
    pub(super) places: Vec<(usize, Range<usize>)>,
    /// Where each function with mutants is, and their numbers.
    pub(super) functions: Vec<(Vec<usize>, Range<usize>)>,
    /// Mutants of functions that are within other functions with mutants: they are not in the text.
    pub(super) left: Vec<usize>,
}

/// Puts all `mutants` of a file into its `text`, each behind its switch.
pub(super) fn switched(text: &str, mutants: &[&Mutant]) -> Result<Switched> {
    let places = Places::new(text);
    let mut functions = BTreeMap::<usize, (Range<usize>, Vec<&Mutant>)>::new();
    for mutant in mutants {
        let function = mutant.function.and_then(|function| places.range(function));
        let body = function.and_then(|function| body(text, &function));
        let body = body.with_context(|| format!("no function around {}", mutant.name))?;
        functions.entry(body.start).or_insert_with(|| (body, Vec::new())).1.push(mutant);
    }
    let (mut file, mut at) = (Switched::default(), 0);
    for (body, mutants) in functions.into_values() {
        let numbers: Vec<_> = mutants.iter().map(|mutant| mutant.number).collect();
        if body.start < at {
            file.left.extend(numbers);
            continue;
        }
        let out = &mut file.text;
        *out += &text[at..body.start];
        let begin = out.len();
        *out += "{ ";
        for mutant in mutants {
            let range = places.range(mutant.span).context("no such line")?;
            *out += &format!("if crate::mutant_switch::is({}) ", mutant.number);
            let begin = out.len();
            if mutant.is_body {
                *out += &format!("{{ {} }}", mutant.replacement);
            } else {
                let (before, behind) = (&text[body.start..range.start], &text[range.end..body.end]);
                *out += &format!("{before}{}{behind}", mutant.replacement);
            }
            file.places.push((mutant.number, begin..out.len()));
            *out += " else ";
        }
        *out += &text[body.clone()];
        *out += " }";
        file.functions.push((numbers, begin..out.len()));
        at = body.end;
    }
    file.text += &text[at..];
    Ok(file)
}

/// The text of a file with one mutant and no switch.
pub(super) fn changed(text: &str, mutant: &Mutant) -> Result<String> {
    let range = Places::new(text).range(mutant.span).context("no such line")?;
    Ok(format!("{}{}{}", &text[..range.start], mutant.replacement, &text[range.end..]))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a panic in a test is the assertion")]

    use super::*;

    fn mutant(number: usize, span: Span, replacement: &str, function: Option<Span>) -> Mutant {
        let (name, file) = (number.to_string(), "crates/a/src/b.rs".to_owned());
        let is_body = replacement == "true";
        Mutant { number, name, file, span, replacement: replacement.to_owned(), is_body, function }
    }

    const TEXT: &str = "const A: u8 = 1 + 1;\n/// Says \"{\".\nfn f(a: [u8; 1]) -> bool {\n    a[0] > 1\n}\n";
    const F: Option<Span> = Some([(2, 1), (5, 2)]);

    #[test]
    fn mutants_are_beside_the_function() {
        let first = mutant(1, [(4, 10), (4, 11)], ">=", F);
        let second = mutant(2, [(4, 5), (4, 13)], "true", F);
        let Switched { text, places, .. } = switched(TEXT, &[&first, &second]).unwrap();
        let changed = "if crate::mutant_switch::is(1) {\n    a[0] >= 1\n} else \
                       if crate::mutant_switch::is(2) { true } else {\n    a[0] > 1\n} }\n";
        assert_eq!(text.split_once("-> bool { ").unwrap().1, changed);
        let at = |number: usize| &text[places[number - 1].1.clone()];
        assert_eq!((at(1), at(2)), ("{\n    a[0] >= 1\n}", "{ true }"));
    }

    #[test]
    fn a_constant_is_changed_without_a_switch() {
        let constant = mutant(1, [(1, 17), (1, 18)], "-", None);
        assert!(!constant.is_switchable() && switched(TEXT, &[&constant]).is_err());
        assert!(changed(TEXT, &constant).unwrap().starts_with("const A: u8 = 1 - 1;\n"));
    }
}
