//! Reads typed values from TOML tables and notes every mistake with its place.

use std::ops::Range;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use crate::problem::{Collector, Origin};

/// A value and its source.
#[derive(Debug, Clone)]
pub(crate) struct Located<T> {
    pub(crate) value: T,
    pub(crate) origin: Origin,
}

impl<T> Located<T> {
    pub(crate) fn flag(value: T, flag: impl Into<String>) -> Self {
        Self { value, origin: Origin::Flag(flag.into()) }
    }

    fn file(value: T, span: Range<usize>) -> Self {
        Self { value, origin: Origin::File(span) }
    }
}

/// A TOML table that is being read. Every key that was asked for is permitted; [`finish`](Self::finish) reports the
/// other keys.
pub(crate) struct TableReader<'t, 'i> {
    name: &'static str,
    table: &'t DeTable<'i>,
    asked: Vec<&'static str>,
}

impl<'t, 'i> TableReader<'t, 'i> {
    /// Returns a reader for a table. `name` is the table's name in messages, such as `[limits]`.
    pub(crate) fn new(name: &'static str, table: &'t DeTable<'i>) -> Self {
        Self { name, table, asked: Vec::new() }
    }

    /// Returns true if the table has the key.
    pub(crate) fn has(&self, key: &str) -> bool {
        self.table.keys().any(|name| name.get_ref() == key)
    }

    /// Returns true if the table has another key than this one.
    pub(crate) fn has_beside(&self, key: &str) -> bool {
        self.table.keys().any(|name| name.get_ref() != key)
    }

    /// Returns the raw value of a key, and notes that the key is permitted.
    fn value(&mut self, key: &'static str) -> Option<&'t Spanned<DeValue<'i>>> {
        self.asked.push(key);
        self.table.iter().find(|(name, _)| name.get_ref() == key).map(|(_, value)| value)
    }

    /// Parses the value of a key, a string or a whole number, with `parse`.
    pub(crate) fn parsed<T>(
        &mut self,
        key: &'static str,
        problems: &mut Collector<'_>,
        parse: impl FnOnce(&str) -> Result<T, String>,
    ) -> Option<Located<T>> {
        let value = self.value(key)?;
        parse_scalar(key, value, problems, parse)
    }

    /// Returns the value of a key that is `true` or `false`.
    pub(crate) fn boolean(
        &mut self,
        key: &'static str,
        problems: &mut Collector<'_>,
    ) -> Option<Located<bool>> {
        let value = self.value(key)?;
        match value.get_ref() {
            DeValue::Boolean(flag) => Some(Located::file(*flag, value.span())),
            other => {
                let message = format!("`{key}` is {}; write true or false", article(other.type_str()));
                problems.add(&Origin::File(value.span()), message);
                None
            }
        }
    }

    /// Parses each element of an array with `parse`. Returns `None` if the key is absent or not an array.
    pub(crate) fn list<T>(
        &mut self,
        key: &'static str,
        problems: &mut Collector<'_>,
        parse: impl Fn(&str) -> Result<T, String>,
    ) -> Option<Located<Vec<Located<T>>>> {
        let value = self.value(key)?;
        let Some(array) = value.get_ref().as_array() else {
            let kind = article(value.get_ref().type_str());
            let message = format!("`{key}` is {kind}; write an array of strings: {key} = [\"...\", \"...\"]");
            problems.add(&Origin::File(value.span()), message);
            return None;
        };
        if array.is_empty() {
            let message = format!("`{key}` is empty; name at least one, or leave it out");
            problems.add(&Origin::File(value.span()), message);
        }
        let items = array.iter().filter_map(|item| parse_scalar(key, item, problems, &parse)).collect();
        Some(Located::file(items, value.span()))
    }

    /// Returns a reader for the table `[key]` below this one.
    pub(crate) fn table(
        &mut self,
        key: &'static str,
        name: &'static str,
        problems: &mut Collector<'_>,
    ) -> Option<TableReader<'t, 'i>> {
        let value = self.value(key)?;
        let table = value.get_ref().as_table();
        if table.is_none() {
            let kind = article(value.get_ref().type_str());
            problems.add(&Origin::File(value.span()), format!("`{key}` is {kind}; write a table: {name}"));
        }
        table.map(|table| TableReader::new(name, table))
    }

    /// Returns readers for the tables `[[key]]` below this one, each with its place.
    pub(crate) fn tables(
        &mut self,
        key: &'static str,
        name: &'static str,
        problems: &mut Collector<'_>,
    ) -> Vec<Located<TableReader<'t, 'i>>> {
        let Some(value) = self.value(key) else { return Vec::new() };
        let elements = value.get_ref().as_array();
        let mut readers = Vec::new();
        for element in elements.into_iter().flat_map(|array| array.iter()) {
            match element.get_ref().as_table() {
                Some(table) => {
                    readers.push(Located::file(TableReader::new(name, table), element.span()));
                }
                None => {
                    problems.add(&Origin::File(element.span()), format!("write {name} before each table"))
                }
            }
        }
        if elements.is_none() {
            let kind = article(value.get_ref().type_str());
            let message = format!("`{key}` is {kind}; write {name} with two brackets, once for each");
            problems.add(&Origin::File(value.span()), message);
        }
        readers
    }

    /// Reports every key that was not asked for.
    pub(crate) fn finish(self, problems: &mut Collector<'_>) {
        for (key, _) in self.table {
            if self.asked.contains(&key.get_ref().as_ref()) {
                continue;
            }
            let likely = self.asked.iter().max_by(|a, b| {
                strsim::jaro_winkler(a, key.get_ref()).total_cmp(&strsim::jaro_winkler(b, key.get_ref()))
            });
            let hint = match likely {
                Some(name) if strsim::jaro_winkler(name, key.get_ref()) > 0.8 => {
                    format!("did you mean `{name}`?")
                }
                _ => format!("allowed: {}", self.asked.join(", ")),
            };
            let message = format!("unknown key `{}` in {}; {hint}", key.get_ref(), self.name);
            problems.add(&Origin::File(key.span()), message);
        }
    }
}

/// Parses a string or a whole number with `parse`. Reports any other value, and the error of `parse`, at the value's
/// place in the file.
fn parse_scalar<T>(
    key: &str,
    value: &Spanned<DeValue<'_>>,
    problems: &mut Collector<'_>,
    parse: impl FnOnce(&str) -> Result<T, String>,
) -> Option<Located<T>> {
    let text = match value.get_ref() {
        DeValue::String(text) => text.to_string(),
        DeValue::Integer(number) if number.radix() == 10 => {
            number.as_str().trim_start_matches('+').to_owned()
        }
        other => {
            let message =
                format!("`{key}` is {}; write a string or a whole number", article(other.type_str()));
            problems.add(&Origin::File(value.span()), message);
            return None;
        }
    };
    match parse(&text) {
        Ok(parsed) => Some(Located::file(parsed, value.span())),
        Err(message) => {
            problems.add(&Origin::File(value.span()), format!("`{key}`: {message}"));
            None
        }
    }
}

/// Returns the type of a TOML value with its article.
fn article(kind: &str) -> String {
    let an = kind.starts_with(['a', 'e', 'i', 'o', 'u']);
    format!("{} {kind}", if an { "an" } else { "a" })
}
