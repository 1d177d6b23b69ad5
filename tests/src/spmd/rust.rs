//! A program as Rust text over tch-ddp.

use std::fmt::Write as _;

use super::program::{Asks, Collective, Comparison, Program, Statement, Test, Value};

/// The text, a `main.rs`. Groups of some ranks are not part of tch-ddp.
pub fn write(program: &Program) -> String {
    let mut text = Text { program, out: String::new() };
    text.out.push_str("use anyhow::Result;\nuse tch_ddp::{Launch, ProcessGroup};\n\n");
    text.out.push_str(
        "fn switch(name: &str) -> bool {\n    std::env::args().any(|a| a == name)\n}\n\n",
    );
    for (index, test) in program.helpers.iter().enumerate() {
        let test = text.test(test, true);
        let _ = write!(
            text.out,
            "fn helper{index}(group: &ProcessGroup) -> bool {{\n    {test}\n}}\n\n"
        );
    }
    for (index, body) in program.functions.iter().enumerate() {
        let _ = writeln!(text.out, "fn step{index}(group: &ProcessGroup, n: i64) -> Result<()> {{");
        text.body(body);
    }
    text.out.push_str(
        "fn main() -> Result<()> {\n    \
         let group = ProcessGroup::init(&Launch::from_env()?, Default::default())?;\n    \
         let group = &group;\n",
    );
    text.body(&program.main);
    text.out
}

struct Text<'p> {
    program: &'p Program,
    out: String,
}

impl Text<'_> {
    fn body(&mut self, body: &[Statement]) {
        self.line(1, "let t = tch::Tensor::ones([1], (tch::Kind::Float, group.device()));");
        if self.program.asks != Asks::EachTime {
            self.line(1, "let rank = group.rank() as i64;");
            self.line(1, "let world = group.world_size() as i64;");
        }
        self.statements(body, 1);
        self.line(1, "Ok(())");
        self.out.push_str("}\n\n");
    }

    fn line(&mut self, depth: usize, line: &str) {
        let _ = writeln!(self.out, "{}{line}", "    ".repeat(depth));
    }

    fn statements(&mut self, statements: &[Statement], depth: usize) {
        for statement in statements {
            self.statement(statement, depth);
        }
    }

    fn statement(&mut self, statement: &Statement, depth: usize) {
        let line = match statement {
            Statement::Collective(kind, _) => collective(*kind).to_owned(),
            Statement::If { test, then, otherwise } => {
                let test = self.test(test, false);
                self.line(depth, &format!("if {test} {{"));
                self.statements(then, depth + 1);
                if !otherwise.is_empty() {
                    self.line(depth, "} else {");
                    self.statements(otherwise, depth + 1);
                }
                "}".to_owned()
            }
            Statement::For { variable, times, body } => {
                let times = self.value(times, false);
                self.line(depth, &format!("for {variable} in 0..{times} {{"));
                self.statements(body, depth + 1);
                "}".to_owned()
            }
            Statement::Assign { variable, value } => {
                let value = self.value(value, false);
                // The first assignment declares; one in an arm changes what is there.
                let declared = self.out.rsplit("\nfn ").next().unwrap_or_default();
                if declared.contains(&format!("let mut {variable} ")) {
                    format!("{variable} = {value};")
                } else {
                    format!("let mut {variable} = {value};")
                }
            }
            Statement::Remember { variable, test } => {
                format!("let {variable} = {};", self.test(test, false))
            }
            Statement::Call { function, argument } => {
                format!("step{function}(group, {})?;", self.value(argument, false))
            }
            Statement::Print => "println!(\"here\");".to_owned(),
            Statement::Return => "return Ok(());".to_owned(),
            Statement::Break => "break;".to_owned(),
            Statement::Continue => "continue;".to_owned(),
            Statement::Exit => "std::process::exit(0);".to_owned(),
            Statement::Fail => "anyhow::bail!(\"failed\");".to_owned(),
        };
        self.line(depth, &line);
    }

    /// `outside`: of a function that asks for its rank once.
    fn value(&self, value: &Value, outside: bool) -> String {
        let kept = self.program.asks != Asks::EachTime && !outside;
        match value {
            Value::Int(number) => number.to_string(),
            Value::Rank if kept => "rank".to_owned(),
            Value::Rank => "group.rank() as i64".to_owned(),
            Value::LocalRank => "group.local_rank() as i64".to_owned(),
            Value::World if kept => "world".to_owned(),
            Value::World => "group.world_size() as i64".to_owned(),
            Value::Variable(name) => name.clone(),
            Value::Sum(a, b) => {
                format!("({} + {})", self.value(a, outside), self.value(b, outside))
            }
            Value::Remainder(a, by) => format!("({}) % {by}", self.value(a, outside)),
            Value::Half(a) => format!("({}) / 2", self.value(a, outside)),
        }
    }

    fn test(&self, test: &Test, outside: bool) -> String {
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
                let of: Vec<String> = of
                    .iter()
                    .map(|number| format!("({}) == {number}", self.value(value, outside)))
                    .collect();
                format!("({})", of.join(" || "))
            }
            Test::Not(test) => format!("!({})", self.test(test, outside)),
            Test::Both(a, b) => {
                format!("({}) && ({})", self.test(a, outside), self.test(b, outside))
            }
            Test::Either(a, b) => {
                format!("({}) || ({})", self.test(a, outside), self.test(b, outside))
            }
            Test::Switch(switch) => format!("switch(\"--switch{switch}\")"),
            Test::Answer(name) => name.clone(),
            Test::Helper(helper) => format!("helper{helper}(group)"),
        }
    }
}

fn collective(kind: Collective) -> &'static str {
    match kind {
        Collective::Barrier => "group.barrier()?;",
        Collective::AllReduce => "group.all_reduce(&t)?;",
        Collective::Broadcast { root: 0 } => "group.broadcast(&t, 0)?;",
        Collective::Broadcast { .. } => "group.broadcast(&t, 1)?;",
        Collective::AllGather => "group.all_gather(&t)?;",
    }
}
