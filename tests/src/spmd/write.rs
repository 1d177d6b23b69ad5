//! Writes a program as text. What it is made of is spelt by a table, one per language.

use super::program::{Asks, Collective, Comparison, Program, Statement, Test, Value};

/// How a language spells what programs are made of. `{a}` and `{b}` stand for what is put in.
pub(super) struct Spelling {
    /// Before everything.
    pub(super) head: &'static str,
    /// Around what a helper answers: `{i}` is its number.
    pub(super) helper: [&'static str; 2],
    pub(super) step: [&'static str; 2],
    pub(super) main: [&'static str; 2],
    /// What each function starts with.
    pub(super) tensor: &'static str,
    /// What a function starts with that asks for its ranks once, or reads the environment.
    pub(super) asks_once: [&'static str; 2],
    pub(super) reads_environment: [&'static str; 2],
    pub(super) rank: &'static str,
    pub(super) environment_rank: &'static str,
    pub(super) local_rank: &'static str,
    pub(super) world: &'static str,
    pub(super) half: &'static str,
    pub(super) not: &'static str,
    pub(super) both: &'static str,
    pub(super) either: &'static str,
    pub(super) switch: &'static str,
    pub(super) helper_call: &'static str,
    pub(super) if_: &'static str,
    pub(super) else_: &'static str,
    pub(super) for_: &'static str,
    /// Closes a block, if something does.
    pub(super) end: Option<&'static str>,
    /// An empty block.
    pub(super) nothing: Option<&'static str>,
    /// The first assignment to a variable, and later ones.
    pub(super) assign: [&'static str; 2],
    pub(super) remember: &'static str,
    pub(super) call: &'static str,
    pub(super) print: &'static str,
    pub(super) return_: &'static str,
    pub(super) break_: &'static str,
    pub(super) continue_: &'static str,
    pub(super) exit: &'static str,
    pub(super) fail: &'static str,
    /// In the group of all ranks.
    pub(super) collective: fn(Collective) -> String,
    /// In group `{i}` of some ranks.
    pub(super) in_group: fn(Collective, usize) -> String,
    /// Makes the groups, each line as deep as `main` stands.
    pub(super) groups: fn(&Program) -> Vec<String>,
    /// Where groups are made: at the start of main, or behind it.
    pub(super) ends_with_start: bool,
}

pub(super) fn write(program: &Program, spelling: &Spelling) -> String {
    let mut text = Text { program, spelling, out: spelling.head.to_owned(), declared: Vec::new() };
    for (index, test) in program.helpers.iter().enumerate() {
        let [begin, end] = spelling.helper.map(|part| numbered(part, index));
        let test = text.test(test, true);
        text.out.extend([begin, test, end]);
    }
    for (index, body) in program.functions.iter().enumerate() {
        let [begin, end] = spelling.step.map(|part| numbered(part, index));
        text.out.push_str(&begin);
        text.body(body, &[]);
        text.out.push_str(&end);
    }
    let groups = (spelling.groups)(program);
    let [begin, end] = spelling.main;
    text.out.push_str(begin);
    text.body(&program.main, if spelling.ends_with_start { &[] } else { &groups });
    text.out.push_str(end);
    if spelling.ends_with_start {
        for line in &groups {
            text.line(1, line);
        }
        text.line(1, "main()");
    }
    text.out
}

fn numbered(part: &str, index: usize) -> String {
    part.replace("{i}", &index.to_string())
}

/// Puts texts into a spelling.
fn put(spelling: &str, a: &str, b: &str) -> String {
    spelling.replace("{b}", b).replace("{a}", a)
}

struct Text<'p> {
    program: &'p Program,
    spelling: &'p Spelling,
    out: String,
    /// Variables of the function that is being written.
    declared: Vec<String>,
}

impl Text<'_> {
    fn body(&mut self, body: &[Statement], groups: &[String]) {
        self.declared.clear();
        self.line(1, self.spelling.tensor);
        let asks = match self.program.asks {
            Asks::Once => &self.spelling.asks_once[..],
            Asks::Environment => &self.spelling.reads_environment[..],
            Asks::EachTime => &[],
        };
        for line in asks.iter().copied().chain(groups.iter().map(String::as_str)) {
            self.line(1, line);
        }
        self.statements(body, 1);
    }

    fn line(&mut self, depth: usize, line: &str) {
        self.out.push_str(&"    ".repeat(depth));
        self.out.push_str(line);
        self.out.push('\n');
    }

    fn statements(&mut self, statements: &[Statement], depth: usize) {
        if let (true, Some(nothing)) = (statements.is_empty(), self.spelling.nothing) {
            self.line(depth, nothing);
        }
        for statement in statements {
            self.statement(statement, depth);
        }
    }

    fn statement(&mut self, statement: &Statement, depth: usize) {
        let words = self.spelling;
        let line = match statement {
            Statement::Collective(kind, None) => (words.collective)(*kind),
            Statement::Collective(kind, Some(group)) => (words.in_group)(*kind, *group),
            Statement::If { test, then, otherwise } => {
                self.line(depth, &put(words.if_, &self.test(test, false), ""));
                self.statements(then, depth + 1);
                if !otherwise.is_empty() {
                    self.line(depth, words.else_);
                    self.statements(otherwise, depth + 1);
                }
                words.end.iter().for_each(|end| self.line(depth, end));
                return;
            }
            Statement::For { variable, times, body } => {
                self.line(depth, &put(words.for_, variable, &self.value(times, false)));
                self.statements(body, depth + 1);
                words.end.iter().for_each(|end| self.line(depth, end));
                return;
            }
            Statement::Assign { variable, value } => {
                let is_known = self.declared.contains(variable);
                self.declared.push(variable.clone());
                put(words.assign[usize::from(is_known)], variable, &self.value(value, false))
            }
            Statement::Remember { variable, test } => {
                put(words.remember, variable, &self.test(test, false))
            }
            Statement::Call { function, argument } => {
                put(words.call, &function.to_string(), &self.value(argument, false))
            }
            Statement::Print => words.print.to_owned(),
            Statement::Return => words.return_.to_owned(),
            Statement::Break => words.break_.to_owned(),
            Statement::Continue => words.continue_.to_owned(),
            Statement::Exit => words.exit.to_owned(),
            Statement::Fail => words.fail.to_owned(),
        };
        self.line(depth, &line);
    }

    /// `outside`: of a function that asks for its rank once.
    fn value(&self, value: &Value, outside: bool) -> String {
        let words = self.spelling;
        let kept = self.program.asks != Asks::EachTime && !outside;
        let inner = |value: &Value| self.value(value, outside);
        match value {
            Value::Int(number) => number.to_string(),
            Value::Rank if kept => "rank".to_owned(),
            Value::Rank if self.program.asks == Asks::Environment => {
                words.environment_rank.to_owned()
            }
            Value::Rank => words.rank.to_owned(),
            Value::LocalRank => words.local_rank.to_owned(),
            Value::World if kept => "world".to_owned(),
            Value::World => words.world.to_owned(),
            Value::Variable(name) => name.clone(),
            Value::Sum(a, b) => format!("({} + {})", inner(a), inner(b)),
            Value::Remainder(a, by) => format!("({}) % {by}", inner(a)),
            Value::Half(a) => put(words.half, &inner(a), ""),
        }
    }

    fn test(&self, test: &Test, outside: bool) -> String {
        let words = self.spelling;
        let inner = |test: &Test| self.test(test, outside);
        match test {
            Test::Compare(comparison, a, b) => {
                let comparison = match comparison {
                    Comparison::Equal => "==",
                    Comparison::Unequal => "!=",
                    Comparison::Less => "<",
                    Comparison::AtLeast => ">=",
                };
                format!("({}) {comparison} ({})", self.value(a, outside), self.value(b, outside))
            }
            Test::OneOf(value, of) => {
                let value = self.value(value, outside);
                let any = of.iter().map(|number| format!("({value}) == {number}"));
                let any = any.reduce(|a, b| put(words.either, &a, &b));
                format!("({})", any.unwrap_or_default())
            }
            Test::Not(test) => put(words.not, &inner(test), ""),
            Test::Both(a, b) => put(words.both, &inner(a), &inner(b)),
            Test::Either(a, b) => put(words.either, &inner(a), &inner(b)),
            Test::Switch(switch) => put(words.switch, &switch.to_string(), ""),
            Test::Answer(name) => name.clone(),
            Test::Helper(helper) => put(words.helper_call, &helper.to_string(), ""),
        }
    }
}
