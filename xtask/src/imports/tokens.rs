//! The tokens of a Rust source, as far as imports need them.

/// Returns names, `::`, and every other mark by itself. Comments, strings and characters are left out, and so are items
/// under `#[cfg(test)]`.
pub(super) fn tokens(source: &str) -> Vec<String> {
    without_tests(&all(source))
}

/// Splits a source into words, `::` and single signs. Comments, strings and white space are left out.
fn all(source: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut rest = source;
    while let Some(first) = rest.chars().next() {
        let len = if let Some(len) = skipped(rest) {
            len
        } else if first.is_alphanumeric() || first == '_' {
            let len = rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len());
            found.push(rest[..len].to_owned());
            len
        } else if rest.starts_with("::") {
            found.push("::".to_owned());
            2
        } else {
            if !first.is_whitespace() {
                found.push(first.to_string());
            }
            first.len_utf8()
        };
        rest = &rest[len..];
    }
    found
}

/// Returns the length of the comment, string or character at the start of `rest`, if there is one.
fn skipped(rest: &str) -> Option<usize> {
    let past = |from: usize, end: &str| rest[from..].find(end).map_or(rest.len(), |at| from + at + end.len());
    if rest.starts_with("//") {
        return Some(past(2, "\n"));
    }
    if rest.starts_with("/*") {
        return Some(past(2, "*/"));
    }
    for prefix in ["r", "br", "cr"] {
        if let Some(raw) = rest.strip_prefix(prefix) {
            let hashes = raw.len() - raw.trim_start_matches('#').len();
            if raw[hashes..].starts_with('"') {
                return Some(past(prefix.len() + hashes + 1, &format!("\"{}", "#".repeat(hashes))));
            }
        }
    }
    if rest.starts_with('"') {
        return Some(quoted(rest, '"'));
    }
    // A quotation mark without a second one behind a character begins a lifetime.
    let mut after = rest.strip_prefix('\'')?.chars();
    let character = after.next() == Some('\\') || after.next() == Some('\'');
    Some(if character { quoted(rest, '\'') } else { 1 })
}

/// Returns the length of what stands between two marks, with both.
fn quoted(rest: &str, mark: char) -> usize {
    let mut escaped = false;
    let end = rest.char_indices().skip(1).find(|&(_, c)| {
        let ends = c == mark && !escaped;
        escaped = c == '\\' && !escaped;
        ends
    });
    end.map_or(rest.len(), |(at, _)| at + 1)
}

/// Removes items that are compiled for tests only, since their imports are in no product.
fn without_tests(all: &[String]) -> Vec<String> {
    let mut kept = Vec::new();
    let mut at = 0;
    while at < all.len() {
        let attribute = |marks: &[&str]| {
            let marks = ["#", "[", "cfg", "("].iter().chain(marks);
            all[at..].iter().zip(marks.clone()).filter(|(token, mark)| token == *mark).count()
                == marks.count()
        };
        if attribute(&["test"]) || attribute(&["all", "(", "test"]) {
            at = end_of_item(all, at);
        } else {
            kept.push(all[at].clone());
            at += 1;
        }
    }
    kept
}

/// Returns the place behind the item at `at`: behind its semicolon, or its closing brace.
fn end_of_item(all: &[String], at: usize) -> usize {
    let (mut inside, mut braces) = (0, 0);
    for (place, token) in all.iter().enumerate().skip(at) {
        match token.as_str() {
            "(" | "[" => inside += 1,
            ")" | "]" => inside -= 1,
            "{" => braces += 1,
            "}" if braces == 0 => return place,
            "}" => braces -= 1,
            _ => {}
        }
        if braces == 0 && (token == "}" || token == ";" && inside == 0) {
            return place + 1;
        }
    }
    all.len()
}
