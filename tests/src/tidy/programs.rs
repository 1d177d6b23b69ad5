//! Counts the programs that a rule is tested on, in the text of the rule's file.

/// What the tests of a rule lint.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Programs {
    pub all: usize,
    /// Made of several files.
    pub over_files: usize,
    /// Without a finding of the rule.
    pub silent: usize,
}

/// A function in the module of tests.
struct Function<'t> {
    name: &'t str,
    is_test: bool,
    text: String,
}

/// The calls that lint a Python program: one of one file, one of several.
const CHECKS: [&str; 2] = ["check_python(", "check_files("];

/// The Python programs of a rule's tests. A call in a loop counts once; a call of a helper that
/// lints counts as what the helper does.
pub fn programs(text: &str, rule: &str) -> Programs {
    let functions = functions(text);
    let helpers: Vec<(String, bool)> = functions
        .iter()
        .filter(|f| !f.is_test && CHECKS.iter().any(|check| f.text.contains(check)))
        .map(|f| (format!("{}(", f.name), f.text.contains(CHECKS[1])))
        .collect();
    let checks = CHECKS.iter().map(|check| ((*check).to_owned(), *check == CHECKS[1]));
    let calls: Vec<(String, bool)> = checks.chain(helpers).collect();
    let mut counted = Programs::default();
    for function in functions.iter().filter(|f| f.is_test) {
        for (call, over_files) in split(&function.text, &calls) {
            let is_rust = call.contains(".rs\"") && !call.contains(".py\"");
            if is_rust {
                continue;
            }
            counted.all += 1;
            counted.over_files += usize::from(over_files);
            // What a helper is given may be marked out of sight: then the name must tell.
            let is_written_out = call.lines().count() > 3 || function.name.contains("silent");
            counted.silent += usize::from(is_written_out && !is_marked(call, rule));
        }
    }
    counted
}

fn is_marked(call: &str, rule: &str) -> bool {
    call.match_indices('~')
        .any(|(at, _)| call[at + 1..].trim_start_matches('^').trim_start().starts_with(rule))
}

fn functions(text: &str) -> Vec<Function<'_>> {
    let mut found: Vec<Function<'_>> = Vec::new();
    let tests = text.split_once("#[cfg(test)]").map_or("", |(_, tests)| tests);
    let mut before = "";
    let mut is_inside = false;
    for line in tests.lines() {
        if let Some(head) = line.strip_prefix("    fn ") {
            let name = head.split(['(', '<']).next().unwrap_or_default();
            let is_test = before == "    #[test]";
            found.push(Function { name, is_test, text: String::new() });
            is_inside = true;
        } else if line == "    }" {
            is_inside = false;
        } else if let Some(function) = found.last_mut().filter(|_| is_inside) {
            function.text.push_str(line);
            function.text.push('\n');
        }
        before = line;
    }
    found
}

/// The calls of a test, each with its text up to the next one.
fn split<'t>(text: &'t str, calls: &[(String, bool)]) -> Vec<(&'t str, bool)> {
    let is_name = |c: char| c.is_alphanumeric() || c == '_';
    let mut starts: Vec<(usize, bool)> = Vec::new();
    for (call, over_files) in calls {
        let at = text.match_indices(call.as_str()).map(|(at, _)| at);
        let whole = at.filter(|&at| !text[..at].ends_with(is_name));
        starts.extend(whole.map(|at| (at, *over_files)));
    }
    starts.sort_unstable();
    let ends = starts.iter().skip(1).map(|(at, _)| *at).chain([text.len()]);
    starts.iter().zip(ends).map(|(&(from, files), to)| (&text[from..to], files)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_counted_through_helpers() {
        let text = "
check_python(\"not a test\");
#[cfg(test)]
mod tests {
    fn check_with(body: &str) {
        check_files(&[(\"a.py\", body), (\"b.py\", \"\")]);
    }

    #[test]
    fn saves_count() {
        check_python(\"save()  # ~ unguarded-save\");
        check_with(SAVE);
    }

    #[test]
    fn guards_are_silent() {
        check_python(
            \"
guarded()
print()  # ~ unguarded-log
\",
        );
        check_rust(\"fn main() {}\");
    }
}
";
        let counted = programs(text, "unguarded-save");
        assert_eq!(counted, Programs { all: 3, over_files: 1, silent: 1 });
        assert_eq!(programs("fn check() {}", "unguarded-save"), Programs::default());
    }
}
