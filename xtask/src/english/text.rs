//! Paragraphs of comments and of Markdown, without code.

/// A paragraph, a list item or a table row.
pub(super) struct Paragraph {
    /// Each word in lower case, with its line number from 1. A code span is the word [`CODE`]. [`END`] stands for a
    /// full stop, a colon or a semicolon.
    pub(super) words: Vec<(String, usize)>,
    /// True if the first word is held to the rules for openings.
    pub(super) judge_opening: bool,
}

const CODE: &str = "`";
pub(super) const END: &str = ".";

/// A line of text: its number from 1, and its text without comment markers.
type Line<'a> = (usize, &'a str);

/// Returns the paragraphs of the comments of a Rust source. Only doc comments are held to the rules for openings.
pub(super) fn comments(source: &str) -> Vec<Paragraph> {
    let mut found = Vec::new();
    let mut block: Vec<Line<'_>> = Vec::new();
    let mut marker = "";
    for (index, line) in source.lines().enumerate() {
        let own = line.trim_start();
        let own_marker =
            ["///", "//!", "//"].into_iter().find(|marker| own.starts_with(marker)).unwrap_or_default();
        if own_marker != marker {
            found.extend(paragraphs(&block, marker != "//"));
            block.clear();
            marker = own_marker;
        }
        if own_marker.is_empty() {
            found.extend(trailing(own).into_iter().flat_map(|text| paragraphs(&[(index + 1, text)], false)));
        } else {
            block.push((index + 1, &own[own_marker.len()..]));
        }
    }
    found.extend(paragraphs(&block, marker != "//"));
    found
}

/// Returns the comment behind code on one line, if the line has one outside of a string.
fn trailing(line: &str) -> Option<&str> {
    let (code, comment) = line.rsplit_once(" // ")?;
    (code.matches('"').count().is_multiple_of(2)).then_some(comment)
}

/// Returns the paragraphs of a Markdown document.
pub(super) fn markdown(text: &str) -> Vec<Paragraph> {
    let lines: Vec<Line<'_>> = text.lines().enumerate().map(|(index, line)| (index + 1, line)).collect();
    paragraphs(&lines, true)
}

/// Splits lines at empty lines, list items, table rows and headings, and leaves out code.
fn paragraphs(lines: &[Line<'_>], judge_openings: bool) -> Vec<Paragraph> {
    let mut found = Vec::new();
    let mut current: Vec<Line<'_>> = Vec::new();
    let mut opening = judge_openings;
    let mut fenced = false;
    let mut close = |current: &mut Vec<Line<'_>>, opening: bool| {
        let words = words(current);
        if !words.is_empty() {
            found.push(Paragraph { words, judge_opening: opening });
        }
        current.clear();
    };
    for &(number, line) in lines {
        let line = line.trim();
        if line.starts_with("```") {
            fenced = !fenced;
            close(&mut current, opening);
        } else if fenced || line.is_empty() || line.starts_with("<!--") {
            close(&mut current, opening);
        } else if let Some(cells) = line.strip_prefix('|') {
            close(&mut current, opening);
            current.push((number, cells));
            close(&mut current, false);
        } else if line.starts_with('#') {
            close(&mut current, opening);
            current.push((number, line.trim_start_matches('#')));
            close(&mut current, false);
        } else {
            let item = item(line);
            if item.is_some() {
                close(&mut current, opening);
            }
            if current.is_empty() {
                opening = judge_openings;
            }
            current.push((number, item.unwrap_or(line)));
        }
    }
    close(&mut current, opening);
    found
}

/// Returns the text of a list item.
fn item(line: &str) -> Option<&str> {
    let numbered = || {
        let (number, rest) = line.split_once(". ")?;
        number.bytes().all(|byte| byte.is_ascii_digit()).then_some(rest)
    };
    line.strip_prefix("- ").or_else(|| line.strip_prefix("* ")).or_else(numbered)
}

/// Returns the words of lines, without code spans and link targets, both of which may go over several lines.
fn words(lines: &[Line<'_>]) -> Vec<(String, usize)> {
    let mut found = Vec::new();
    let (mut code, mut target) = (false, false);
    for (number, line) in lines {
        let mut word = String::new();
        let mut before = ' ';
        let mut chars = line.chars().chain([' ']).peekable();
        while let Some(c) = chars.next() {
            let hidden = code || target;
            match c {
                '`' => code = !code,
                '(' if before == ']' => target = true,
                ')' if target => target = false,
                _ => {}
            }
            let in_number =
                ",.".contains(c) && before.is_ascii_digit() && chars.peek().is_some_and(char::is_ascii_digit);
            if !hidden && (c.is_alphanumeric() || c == '_' || c == '\'' || in_number) {
                word.extend(c.to_lowercase());
            } else if !word.is_empty() {
                found.push((std::mem::take(&mut word), *number));
            }
            if c == '`' && code {
                // A sentence that begins with code does not begin with the word behind it.
                found.push((CODE.to_owned(), *number));
            }
            let ends = chars.peek().is_none_or(|&next| next.is_whitespace() || ")*\"".contains(next));
            if !hidden && ".!?:;".contains(c) && ends {
                found.push((END.to_owned(), *number));
            }
            before = c;
        }
    }
    found
}
