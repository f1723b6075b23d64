//! Extracts the failed tests from the output of a step, for the end of a run: a reader of a long log looks there first.

/// Most lines shown of the output of one failed test. The end is kept: a panic comes after the output before it.
const LINES: usize = 25;

/// Returns the lines of `log` that say what failed: each failed check, and the end of the output of each failed test.
pub(super) fn extract(log: &str) -> Vec<&str> {
    let mut lines = log.lines().peekable();
    let mut shown = Vec::new();
    while let Some(line) = lines.next() {
        if line.starts_with("FAILED ") || (line.starts_with("test ") && line.ends_with(" ... FAILED")) {
            shown.push(line);
        } else if line.starts_with("---- ") && line.ends_with(" stdout ----") {
            shown.push(line);
            let mut output = Vec::new();
            while let Some(line) = lines.next_if(|line| !is_end_of_output(line)) {
                output.push(line);
            }
            shown.extend(&output[output.len().saturating_sub(LINES)..]);
        }
    }
    shown
}

/// Returns true for the line that follows the output of a failed test in the report of the standard test program.
fn is_end_of_output(line: &str) -> bool {
    line == "failures:" || (line.starts_with("---- ") && line.ends_with(" stdout ----"))
}

#[cfg(test)]
mod tests {
    use super::extract;

    #[test]
    fn failed_tests_are_shown_with_the_end_of_their_output() {
        let noise: String = (0..100).map(|line| format!("line {line}\n")).collect();
        let log = format!(
            "test a ... ok\ntest b ... FAILED\ntest c ... FAILED\n\nfailures:\n\n---- b stdout ----\n{noise}panicked\n\
             ---- c stdout ----\nshort\n\nfailures:\n    b\n    c\n"
        );
        let shown = extract(&log);
        assert_eq!(shown[..3], ["test b ... FAILED", "test c ... FAILED", "---- b stdout ----"]);
        assert_eq!(shown[3], "line 76");
        assert_eq!(shown[3 + super::LINES - 1..], ["panicked", "---- c stdout ----", "short", ""]);
    }

    #[test]
    fn a_failed_check_is_shown() {
        assert_eq!(extract("ok\nFAILED documents: a link is dead\n"), ["FAILED documents: a link is dead"]);
    }
}
