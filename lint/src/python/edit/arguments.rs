//! Arguments of calls.

use super::{Edit, Editor};
use crate::model::{Argument, CollectionKind, Expr, ExprKind, Name};
use crate::python::lower::bracketed;

/// Where an argument stands, with the brackets around it.
struct Slot {
    start: usize,
    end: usize,
    /// Where its comma stands.
    comma: Option<usize>,
}

impl Editor<'_> {
    /// Gives a call the keyword argument `name=value`: replaces the value of the one it has,
    /// or adds it behind the others. `None` if `call` is no call.
    pub fn set_keyword(&self, call: &Expr, name: &str, value: &str) -> Option<Vec<Edit>> {
        let ExprKind::Call { arguments, .. } = &call.kind else { return None };
        if !self.is_sound() {
            return None;
        }
        let is_named = |argument: &&Argument| argument.name.is_some_and(|other| *other == *name);
        match arguments.iter().find(is_named) {
            Some(argument) => {
                let span = argument.value.span;
                Some(vec![self.edit(span.start as usize, span.end as usize, value)])
            }
            None => self.add_argument(call, &format!("{name}={value}")),
        }
    }

    /// Adds an argument behind the others. A positional one must not follow keywords.
    pub fn add_argument(&self, call: &Expr, argument: &str) -> Option<Vec<Edit>> {
        let ExprKind::Call { arguments, .. } = &call.kind else { return None };
        let slots = self.slots(call)?;
        let close = call.span.end as usize - 1;
        let Some(last) = slots.last() else {
            return Some(vec![self.insertion(self.opener(call)? + 1, argument)]);
        };
        if let [only] = &arguments[..]
            && self.is_bare_generator(only, last)
        {
            return Some(vec![
                self.insertion(last.start, "("),
                self.insertion(last.end, format!("), {argument}")),
            ]);
        }
        let start_of_line = self.line_start(last.start);
        let is_first_on_line = self.text()[start_of_line..last.start].trim().is_empty();
        if !is_first_on_line || start_of_line <= self.opener(call)? {
            return Some(vec![self.insertion(last.end, format!(", {argument}"))]);
        }
        let indent = &self.text()[start_of_line..last.start];
        let new_line = format!("{}{indent}{argument}", self.line_end());
        let behind = last.comma.map_or(last.end, |comma| comma + 1);
        let stop = self.line_stop(behind);
        if stop > close {
            // The call ends on the line of its last argument.
            return Some(vec![self.insertion(last.end, format!(",{new_line}"))]);
        }
        // Behind a comment that belongs to the last argument.
        match last.comma {
            Some(_) => Some(vec![self.insertion(stop, format!("{new_line},"))]),
            None if stop == last.end => {
                Some(vec![self.insertion(last.end, format!(",{new_line}"))])
            }
            None => Some(vec![self.insertion(last.end, ","), self.insertion(stop, new_line)]),
        }
    }

    /// Takes the keyword argument `name` out of a call. `None` if it has none.
    pub fn remove_keyword(&self, call: &Expr, name: &str) -> Option<Vec<Edit>> {
        let ExprKind::Call { arguments, .. } = &call.kind else { return None };
        let name = Name::new(name);
        let index = arguments.iter().position(|argument| argument.name == Some(name))?;
        self.remove_argument(call, index)
    }

    /// Takes an argument out of a call, with its line where it has one for itself.
    pub fn remove_argument(&self, call: &Expr, index: usize) -> Option<Vec<Edit>> {
        let slots = self.slots(call)?;
        let slot = slots.get(index)?;
        let behind = slot.comma.map_or(slot.end, |comma| comma + 1);
        let line_start = self.line_start(slot.start);
        let rest = self.text()[behind..self.line_stop(behind)].trim();
        let begins_line = self.text()[line_start..slot.start].trim().is_empty();
        if begins_line && (rest.is_empty() || rest.starts_with('#')) {
            let stop = self.line_stop(behind);
            let end = stop + line_end_length(&self.text()[stop..]);
            return Some(vec![self.edit(line_start, end, "")]);
        }
        let has_comment = |start: usize, end: usize| self.text()[start..end].contains('#');
        let (start, end) = match (index.checked_sub(1).map(|i| &slots[i]), slots.get(index + 1)) {
            (_, Some(next)) if !has_comment(behind, next.start) => (slot.start, next.start),
            (Some(previous), None) if !has_comment(previous.end, slot.start) => {
                (previous.end, slot.end)
            }
            _ => (slot.start, behind),
        };
        Some(vec![self.edit(start, end, "")])
    }

    fn slots(&self, call: &Expr) -> Option<Vec<Slot>> {
        let ExprKind::Call { arguments, .. } = &call.kind else { return None };
        if !self.is_sound() {
            return None;
        }
        let close = call.span.end as usize - 1;
        let mut at = self.opener(call)? + 1;
        let mut slots = Vec::with_capacity(arguments.len());
        for argument in arguments {
            let start = self.skip_trivia(at);
            let mut end = argument.span.end as usize;
            let mut next = self.skip_trivia(end);
            while next < close && self.text()[next..].starts_with(')') {
                end = next + 1;
                next = self.skip_trivia(end);
            }
            let comma = self.text()[next..close.max(next)].starts_with(',').then_some(next);
            at = comma.map_or(end, |comma| comma + 1);
            slots.push(Slot { start: start.min(end), end: end.min(close), comma });
        }
        Some(slots)
    }

    /// `f(x for x in y)` without brackets of its own.
    fn is_bare_generator(&self, argument: &Argument, slot: &Slot) -> bool {
        let is_generator = matches!(
            argument.value.kind,
            ExprKind::Comprehension { kind: CollectionKind::Generator, .. }
        );
        let text = &self.text()[slot.start..slot.end];
        is_generator && argument.name.is_none() && bracketed(text) != Some(text.len())
    }

    /// Where the arguments' bracket opens.
    fn opener(&self, call: &Expr) -> Option<usize> {
        let ExprKind::Call { callee, .. } = &call.kind else { return None };
        let mut at = self.skip_trivia(callee.span.end as usize);
        while self.text()[at..].starts_with(')') {
            at = self.skip_trivia(at + 1);
        }
        self.text()[at..].starts_with('(').then_some(at)
    }

    /// Past white space, line ends and comments.
    fn skip_trivia(&self, mut at: usize) -> usize {
        let bytes = self.text().as_bytes();
        loop {
            match bytes.get(at) {
                Some(b'#') => at = self.line_stop(at),
                Some(b' ' | b'\t' | b'\n' | b'\r' | b'\x0c' | b'\\') => at += 1,
                _ => return at,
            }
        }
    }
}

fn line_end_length(text: &str) -> usize {
    if text.starts_with("\r\n") { 2 } else { usize::from(!text.is_empty()) }
}
