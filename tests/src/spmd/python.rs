//! A program as Python text.

use std::fmt::Write as _;

use super::program::{Asks, Collective, Comparison, Group, Program, Statement, Test, Value};

/// The text, a script for `torchrun`.
pub fn write(program: &Program) -> String {
    let mut text = Text { program, out: String::new() };
    text.out
        .push_str("import os\nimport sys\n\nimport torch\nimport torch.distributed as dist\n\n");
    for (index, test) in program.helpers.iter().enumerate() {
        let test = text.test(test, true);
        let _ = write!(text.out, "\ndef helper{index}():\n    return {test}\n\n");
    }
    for (index, body) in program.functions.iter().enumerate() {
        let _ = write!(text.out, "\ndef step{index}(n):\n");
        text.body(body);
    }
    text.out.push_str("\ndef main():\n");
    text.body(&program.main);
    text.out.push_str("\nif __name__ == \"__main__\":\n    dist.init_process_group(\"gloo\")\n");
    for (index, group) in program.groups.iter().enumerate() {
        let ranks = match group {
            Group::Ranks(ranks) => format!("{ranks:?}"),
            Group::All => "list(range(dist.get_world_size()))".to_owned(),
        };
        let _ = writeln!(text.out, "    group{index} = dist.new_group({ranks})");
    }
    text.out.push_str("    main()\n");
    text.out
}

struct Text<'p> {
    program: &'p Program,
    out: String,
}

impl Text<'_> {
    fn body(&mut self, body: &[Statement]) {
        let mut prologue = vec!["t = torch.ones(1)"];
        match self.program.asks {
            Asks::Once => {
                prologue.extend(["rank = dist.get_rank()", "world = dist.get_world_size()"]);
            }
            Asks::Environment => prologue.extend([
                "rank = int(os.environ[\"RANK\"])",
                "world = int(os.environ[\"WORLD_SIZE\"])",
            ]),
            Asks::EachTime => {}
        }
        for line in prologue {
            self.line(1, line);
        }
        self.statements(body, 1);
        self.out.push('\n');
    }

    fn line(&mut self, depth: usize, line: &str) {
        let _ = writeln!(self.out, "{}{line}", "    ".repeat(depth));
    }

    fn statements(&mut self, statements: &[Statement], depth: usize) {
        if statements.is_empty() {
            self.line(depth, "pass");
        }
        for statement in statements {
            self.statement(statement, depth);
        }
    }

    fn statement(&mut self, statement: &Statement, depth: usize) {
        let line = match statement {
            Statement::Collective(kind, group) => collective(*kind, *group),
            Statement::If { test, then, otherwise } => {
                let test = self.test(test, false);
                self.line(depth, &format!("if {test}:"));
                self.statements(then, depth + 1);
                if !otherwise.is_empty() {
                    self.line(depth, "else:");
                    self.statements(otherwise, depth + 1);
                }
                return;
            }
            Statement::For { variable, times, body } => {
                let times = self.value(times, false);
                self.line(depth, &format!("for {variable} in range({times}):"));
                self.statements(body, depth + 1);
                return;
            }
            Statement::Assign { variable, value } => {
                format!("{variable} = {}", self.value(value, false))
            }
            Statement::Remember { variable, test } => {
                format!("{variable} = {}", self.test(test, false))
            }
            Statement::Call { function, argument } => {
                format!("step{function}({})", self.value(argument, false))
            }
            Statement::Print => "print(\"here\")".to_owned(),
            Statement::Return => "return".to_owned(),
            Statement::Break => "break".to_owned(),
            Statement::Continue => "continue".to_owned(),
            Statement::Exit => "sys.exit(0)".to_owned(),
            Statement::Fail => "raise RuntimeError(\"failed\")".to_owned(),
        };
        self.line(depth, &line);
    }

    /// `outside`: of a function that asks for its rank once.
    fn value(&self, value: &Value, outside: bool) -> String {
        let kept = self.program.asks != Asks::EachTime && !outside;
        match value {
            Value::Int(number) => number.to_string(),
            Value::Rank if kept => "rank".to_owned(),
            Value::Rank if self.program.asks == Asks::Environment => {
                "int(os.environ[\"RANK\"])".to_owned()
            }
            Value::Rank => "dist.get_rank()".to_owned(),
            Value::LocalRank => "int(os.environ[\"LOCAL_RANK\"])".to_owned(),
            Value::World if kept => "world".to_owned(),
            Value::World => "dist.get_world_size()".to_owned(),
            Value::Variable(name) => name.clone(),
            Value::Sum(a, b) => {
                format!("({} + {})", self.value(a, outside), self.value(b, outside))
            }
            Value::Remainder(a, by) => format!("{} % {by}", self.value(a, outside)),
            Value::Half(a) => format!("{} // 2", self.value(a, outside)),
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
                format!("{} {comparison} {}", self.value(a, outside), self.value(b, outside))
            }
            Test::OneOf(value, of) => {
                let of: Vec<String> = of.iter().map(i64::to_string).collect();
                format!("{} in ({},)", self.value(value, outside), of.join(", "))
            }
            Test::Not(test) => format!("not ({})", self.test(test, outside)),
            Test::Both(a, b) => {
                format!("({}) and ({})", self.test(a, outside), self.test(b, outside))
            }
            Test::Either(a, b) => {
                format!("({}) or ({})", self.test(a, outside), self.test(b, outside))
            }
            Test::Switch(switch) => format!("\"--switch{switch}\" in sys.argv"),
            Test::Answer(name) => name.clone(),
            Test::Helper(helper) => format!("helper{helper}()"),
        }
    }
}

fn collective(kind: Collective, group: Option<usize>) -> String {
    let group = group.map(|index| format!("group=group{index}")).unwrap_or_default();
    let more = if group.is_empty() { String::new() } else { format!(", {group}") };
    match kind {
        Collective::Barrier => format!("dist.barrier({group})"),
        Collective::AllReduce => format!("dist.all_reduce(t{more})"),
        Collective::Broadcast { root } => format!("dist.broadcast(t, src={root}{more})"),
        Collective::AllGather => {
            "dist.all_gather([torch.zeros(1) for _ in range(dist.get_world_size())], t)".to_owned()
        }
    }
}
