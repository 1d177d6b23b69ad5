//! Slurm's compressed lists: node names (`gpu[01-03,7],login1`) and counts (`2(x3),1`).
//! Only text in, text out.

/// The first name of a node list; `None` for a list that is empty or malformed.
pub(crate) fn first_host(list: &str) -> Option<String> {
    let end = top_level_comma(list).unwrap_or(list.len());
    let mut name = String::new();
    let mut rest = &list[..end];
    while let Some(open) = rest.find('[') {
        let close = open + rest[open..].find(']')?;
        let choices = &rest[open + 1..close];
        let first = choices.split([',', '-']).next()?;
        if first.is_empty() {
            return None;
        }
        name.push_str(&rest[..open]);
        name.push_str(first);
        rest = &rest[close + 1..];
    }
    name.push_str(rest);
    let name = name.trim();
    (!name.is_empty() && !name.contains([']', ' '])).then(|| name.to_owned())
}

/// Place of the first comma outside brackets.
fn top_level_comma(list: &str) -> Option<usize> {
    let mut depth = 0_usize;
    list.char_indices().find_map(|(at, letter)| {
        match letter {
            '[' => depth += 1,
            ']' => depth = depth.saturating_sub(1),
            ',' if depth == 0 => return Some(at),
            _ => {}
        }
        None
    })
}

/// Number of tasks on a node: `tasks_on_node("2(x3),1", 3)` is 1.
pub(crate) fn tasks_on_node(list: &str, node: usize) -> Option<usize> {
    let mut left = node;
    for part in list.split(',') {
        let (count, repeat) = match part.split_once("(x") {
            Some((count, repeat)) => (count, repeat.strip_suffix(')')?.parse().ok()?),
            None => (part, 1_usize),
        };
        if left < repeat {
            return count.trim().parse().ok();
        }
        left -= repeat;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_hosts() {
        for (list, host) in [
            ("node1", "node1"),
            ("gpu[01-03,7],login1", "gpu01"),
            ("a,b[1-2]", "a"),
            ("rack[2-4]n[08,10]", "rack2n08"),
            ("gpu[007]-ib", "gpu007-ib"),
        ] {
            assert_eq!(first_host(list).as_deref(), Some(host), "{list}");
        }
        for wrong in ["", ",a", "a[", "a[]", "a]b"] {
            assert_eq!(first_host(wrong), None, "{wrong:?}");
        }
    }

    #[test]
    fn tasks_per_node_are_run_length_encoded() {
        assert_eq!(tasks_on_node("2(x3),1", 2), Some(2));
        assert_eq!(tasks_on_node("2(x3),1", 3), Some(1));
        assert_eq!(tasks_on_node("4", 0), Some(4));
        assert_eq!(tasks_on_node("4", 1), None);
        assert_eq!(tasks_on_node("x", 0), None);
    }
}
