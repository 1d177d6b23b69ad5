//! Programs from a seed. The same seed gives the same program for ever.

use super::program::{Asks, Collective, Comparison, Group, Program, Statement, Test, Value};

/// Splitmix64.
struct Dice(u64);

impl Dice {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }

    /// True so many times in a hundred.
    fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    fn pick<'t, T>(&mut self, of: &'t [T]) -> &'t T {
        &of[self.below(of.len() as u64) as usize]
    }
}

const N_SWITCHES: usize = 2;
const DEPTH_MAX: u32 = 3;

struct Maker {
    dice: Dice,
    n_functions: usize,
    n_helpers: usize,
    n_groups: usize,
    /// The function that is being made; main comes before all.
    function: Option<usize>,
    numbers: Vec<String>,
    answers: Vec<String>,
    n_names: usize,
    loops: u32,
}

/// The program of a seed.
pub fn program(seed: u64) -> Program {
    let mut dice = Dice(seed.wrapping_mul(0xd6e8_feb8_6659_fd93) ^ 0x5bd1);
    let asks = *dice.pick(&[Asks::Once, Asks::Once, Asks::EachTime, Asks::Environment]);
    let n_functions = dice.below(4) as usize;
    let n_groups = dice.below(3) as usize;
    let n_helpers = dice.below(3) as usize;
    let groups = (0..n_groups)
        .map(|_| match dice.below(4) {
            0 => Group::Ranks(vec![0]),
            1 => Group::Ranks(vec![1]),
            2 => Group::Ranks(vec![0, 1]),
            _ => Group::All,
        })
        .collect();
    let mut maker = Maker {
        dice,
        n_functions,
        n_helpers: 0,
        n_groups,
        function: None,
        numbers: Vec::new(),
        answers: Vec::new(),
        n_names: 0,
        loops: 0,
    };
    let helpers: Vec<Test> = (0..n_helpers).map(|_| maker.rank_test(1)).collect();
    maker.n_helpers = n_helpers;
    let mut functions: Vec<_> = (0..n_functions).map(|index| maker.function(index)).collect();
    let main = maker.main();
    empty_uncalled(&mut functions, &main);
    Program { asks, groups, helpers, functions, main, n_switches: N_SWITCHES }
}

fn only_if(test: Test, then: Vec<Statement>) -> Statement {
    Statement::If { test, then, otherwise: Vec::new() }
}

/// The others wait until rank 0 is through, and it waits with them then.
fn rank_0_first(into: &mut Vec<Statement>) {
    let zero = |comparison| Test::Compare(comparison, Value::Rank, Value::Int(0));
    let wait = || vec![Statement::Collective(Collective::Barrier, None)];
    into.push(only_if(zero(Comparison::Unequal), wait()));
    into.push(Statement::Print);
    into.push(only_if(zero(Comparison::Equal), wait()));
}

/// What nobody calls does nothing: a fault there is none of the program's.
fn empty_uncalled(functions: &mut [Vec<Statement>], main: &[Statement]) {
    let mut called = vec![false; functions.len()];
    let mut queue: Vec<usize> = calls(main);
    while let Some(function) = queue.pop() {
        if !std::mem::replace(&mut called[function], true) {
            queue.extend(calls(&functions[function]));
        }
    }
    for (body, called) in functions.iter_mut().zip(called) {
        if !called {
            *body = vec![Statement::Print];
        }
    }
}

fn calls(statements: &[Statement]) -> Vec<usize> {
    let of = |statement: &Statement| match statement {
        Statement::Call { function, .. } => vec![*function],
        Statement::If { then, otherwise, .. } => [calls(then), calls(otherwise)].concat(),
        Statement::For { body, .. } => calls(body),
        _ => Vec::new(),
    };
    statements.iter().flat_map(of).collect()
}

impl Maker {
    fn function(&mut self, index: usize) -> Vec<Statement> {
        self.function = Some(index);
        self.numbers = vec!["n".to_owned()];
        self.answers.clear();
        self.block(0)
    }

    fn main(&mut self) -> Vec<Statement> {
        self.function = None;
        self.numbers.clear();
        self.answers.clear();
        let mut body = self.block(0);
        body.extend(self.block(0));
        body
    }

    fn block(&mut self, depth: u32) -> Vec<Statement> {
        let (numbers, answers) = (self.numbers.len(), self.answers.len());
        let mut statements = Vec::new();
        for _ in 0..=self.dice.below(3) {
            self.statement(depth, &mut statements);
            let leaves = matches!(
                statements.last(),
                Some(
                    Statement::Return
                        | Statement::Break
                        | Statement::Continue
                        | Statement::Exit
                        | Statement::Fail
                )
            );
            if leaves {
                break;
            }
        }
        self.numbers.truncate(numbers);
        self.answers.truncate(answers);
        statements
    }

    fn statement(&mut self, depth: u32, into: &mut Vec<Statement>) {
        let deep = depth >= DEPTH_MAX;
        match self.dice.below(100) {
            18..26 => into.push(Statement::Print),
            26..36 => self.assign(into),
            36..46 => into.push(self.call()),
            46..58 if !deep => self.safe_idiom(into),
            58..78 if !deep => into.push(self.branch(depth)),
            78..90 if !deep => into.push(self.repeat(depth)),
            90..96 => into.push(self.leave(depth)),
            _ => into.push(self.collective()),
        }
    }

    fn collective(&mut self) -> Statement {
        if self.n_groups > 0 && self.dice.chance(25) {
            let group = self.dice.below(self.n_groups as u64) as usize;
            let kind = *self.dice.pick(&[Collective::Barrier, Collective::AllReduce]);
            return Statement::Collective(kind, Some(group));
        }
        let kinds = [
            Collective::Barrier,
            Collective::AllReduce,
            Collective::Broadcast { root: 0 },
            Collective::Broadcast { root: 1 },
            Collective::AllGather,
        ];
        Statement::Collective(*self.dice.pick(&kinds), None)
    }

    fn assign(&mut self, into: &mut Vec<Statement>) {
        let variable = self.name();
        if self.dice.chance(40) {
            let test = if self.dice.chance(60) { self.rank_test(1) } else { self.common_test() };
            into.push(Statement::Remember { variable: variable.clone(), test });
            self.answers.push(variable);
            return;
        }
        let value = self.value(2);
        into.push(Statement::Assign { variable: variable.clone(), value });
        if self.dice.chance(30) {
            let test = self.rank_test(1);
            let value = self.value(1);
            let then = vec![Statement::Assign { variable: variable.clone(), value }];
            into.push(Statement::If { test, then, otherwise: Vec::new() });
        }
        self.numbers.push(variable);
    }

    fn name(&mut self) -> String {
        self.n_names += 1;
        format!("v{}", self.n_names)
    }

    fn call(&mut self) -> Statement {
        let first = self.function.map_or(0, |index| index + 1);
        if first >= self.n_functions {
            return self.collective();
        }
        let function = first + self.dice.below((self.n_functions - first) as u64) as usize;
        Statement::Call { function, argument: self.value(1) }
    }

    fn branch(&mut self, depth: u32) -> Statement {
        let test = if self.dice.chance(45) { self.rank_test(2) } else { self.common_test() };
        let then = self.block(depth + 1);
        let otherwise = if self.dice.chance(40) { self.block(depth + 1) } else { Vec::new() };
        Statement::If { test, then, otherwise }
    }

    fn repeat(&mut self, depth: u32) -> Statement {
        let variable = self.name();
        let times = match self.dice.below(10) {
            0 => Value::Rank,
            1 | 2 => Value::World,
            3 => self.value(1),
            _ => Value::Int(1 + self.dice.below(3) as i64),
        };
        self.numbers.push(variable.clone());
        self.loops += 1;
        let body = self.block(depth + 1);
        self.loops -= 1;
        self.numbers.pop();
        Statement::For { variable, times, body }
    }

    fn leave(&mut self, depth: u32) -> Statement {
        if self.loops > 0 && self.dice.chance(60) {
            return if self.dice.chance(50) { Statement::Break } else { Statement::Continue };
        }
        if depth == 0 {
            return Statement::Print;
        }
        match self.dice.below(10) {
            0 => Statement::Fail,
            1 | 2 => Statement::Exit,
            _ => Statement::Return,
        }
    }

    /// What careful people write: ranks do different things and still meet.
    fn safe_idiom(&mut self, into: &mut Vec<Statement>) {
        match self.dice.below(6) {
            0 => {
                let test = self.rank_test(1);
                into.push(only_if(test, vec![Statement::Print]));
            }
            1 => {
                // Both arms do the same.
                let (first, second) = (self.collective(), self.collective());
                let then = vec![Statement::Print, first.clone(), second.clone()];
                let otherwise = vec![first, Statement::Print, second];
                into.push(Statement::If { test: self.rank_test(1), then, otherwise });
            }
            2 => rank_0_first(into),
            3 => {
                // One after the other.
                let variable = self.name();
                let turn = Value::Variable(variable.clone());
                let mine = Test::Compare(Comparison::Equal, turn, Value::Rank);
                let body = vec![only_if(mine, vec![Statement::Print]), self.collective()];
                into.push(Statement::For { variable, times: Value::World, body });
            }
            4 => {
                // Everybody leaves the loop in the same round.
                let variable = self.name();
                let round = Value::Variable(variable.clone());
                let stop = Test::Compare(Comparison::Equal, round, Value::Int(1));
                let body = vec![self.collective(), only_if(stop, vec![Statement::Break])];
                into.push(Statement::For { variable, times: Value::Int(3), body });
            }
            _ => {
                let test = self.rank_test(1);
                let body = vec![Statement::Print];
                let variable = self.name();
                let times = Value::Rank;
                into.push(only_if(test, vec![Statement::For { variable, times, body }]));
                into.push(self.collective());
            }
        }
    }

    /// A test that ranks may answer differently.
    fn rank_test(&mut self, depth: u32) -> Test {
        let small = |dice: &mut Dice| Value::Int(dice.below(3) as i64);
        match self.dice.below(if depth > 0 { 12 } else { 8 }) {
            0 | 1 => Test::Compare(Comparison::Equal, Value::Rank, Value::Int(0)),
            2 => Test::Compare(Comparison::Unequal, Value::Rank, small(&mut self.dice)),
            3 => Test::Compare(Comparison::Equal, Value::LocalRank, small(&mut self.dice)),
            4 => Test::OneOf(Value::Rank, vec![-1, self.dice.below(2) as i64]),
            5 => {
                let parity = Value::Remainder(Box::new(Value::Rank), 2);
                Test::Compare(Comparison::Equal, parity, Value::Int(self.dice.below(2) as i64))
            }
            6 => Test::Compare(Comparison::Less, Value::Rank, small(&mut self.dice)),
            7 if self.n_helpers > 0 => {
                Test::Helper(self.dice.below(self.n_helpers as u64) as usize)
            }
            7 => {
                Test::Compare(Comparison::AtLeast, Value::Rank, Value::Half(Box::new(Value::World)))
            }
            8 => Test::Not(Box::new(self.rank_test(depth - 1))),
            9 => Test::Both(Box::new(self.rank_test(depth - 1)), Box::new(self.common_test())),
            10 => Test::Either(
                Box::new(self.rank_test(depth - 1)),
                Box::new(self.rank_test(depth - 1)),
            ),
            _ => match self.answers.last() {
                Some(answer) => Test::Answer(answer.clone()),
                None => Test::Compare(Comparison::Equal, self.value(2), small(&mut self.dice)),
            },
        }
    }

    /// A test that all ranks answer alike, mostly: variables may hold anything.
    fn common_test(&mut self) -> Test {
        let small = |dice: &mut Dice| Value::Int(dice.below(3) as i64);
        match self.dice.below(6) {
            0 | 1 => Test::Switch(self.dice.below(N_SWITCHES as u64) as usize),
            2 => Test::Compare(Comparison::Less, small(&mut self.dice), Value::World),
            3 => Test::Compare(
                Comparison::Equal,
                Value::World,
                Value::Int(2 + self.dice.below(3) as i64),
            ),
            _ => match self.numbers.last() {
                Some(name) => {
                    let name = Value::Variable(name.clone());
                    Test::Compare(Comparison::Equal, name, small(&mut self.dice))
                }
                None => Test::Switch(0),
            },
        }
    }

    fn value(&mut self, depth: u32) -> Value {
        match self.dice.below(if depth > 0 { 10 } else { 7 }) {
            0 => Value::Rank,
            1 => Value::World,
            2 | 3 if !self.numbers.is_empty() => {
                Value::Variable(self.dice.pick(&self.numbers).clone())
            }
            2..7 => Value::Int(self.dice.below(3) as i64),
            7 => Value::Sum(Box::new(self.value(depth - 1)), Box::new(self.value(depth - 1))),
            8 => Value::Remainder(Box::new(self.value(depth - 1)), 2 + self.dice.below(2) as i64),
            _ => Value::Half(Box::new(self.value(depth - 1))),
        }
    }
}
