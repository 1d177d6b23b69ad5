//! Plays a program on a number of ranks and tells whether they meet. It knows nothing of how the
//! linter works: it runs each rank and lets collectives wait for all members of their group.

use std::collections::HashMap;

use super::program::{Collective, Comparison, Group, Program, Statement, Test, Value};

/// How a run of all ranks ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// All ranks come to their end.
    Meets,
    /// Some rank waits for ever, or its collective pairs with another one.
    Parts,
    /// A rank fails, and the launcher ends the others.
    Fails,
}

/// Numbers of ranks for which programs are played.
pub const WORLDS: [i64; 3] = [2, 3, 4];

/// Ranks that the launcher starts on each node.
const NODE: i64 = 8;

/// The outcomes for a world size, one for each way to set the switches.
pub fn outcomes(program: &Program, world: i64) -> Vec<Outcome> {
    (0..1_u32 << program.n_switches).map(|switches| play(program, world, switches)).collect()
}

/// Some run of the program hangs or pairs wrongly.
pub fn is_faulty(program: &Program) -> bool {
    WORLDS.iter().any(|&world| outcomes(program, world).contains(&Outcome::Parts))
}

/// Plays the program with the switches that are set, one bit each.
pub fn play(program: &Program, world: i64, switches: u32) -> Outcome {
    let lines: Vec<Line> = (0..world)
        .map(|rank| {
            let mut player = Player { program, rank, world, switches, line: Line::default() };
            let left = player.run(&program.main, &mut Variables::default());
            player.line.fails = left == Left::Fail;
            player.line
        })
        .collect();
    meet(program, world, &lines)
}

/// What one rank does, in order.
#[derive(Debug, Default)]
struct Line {
    steps: Vec<(Collective, Option<usize>)>,
    fails: bool,
}

/// No choice is made here: a collective that can be left is left, and whoever waits goes on
/// waiting, so that the order in which ranks move has no influence on who meets whom.
fn meet(program: &Program, world: i64, lines: &[Line]) -> Outcome {
    let mut at = vec![0; lines.len()];
    loop {
        if (0..lines.len()).any(|r| lines[r].fails && at[r] == lines[r].steps.len()) {
            return Outcome::Fails;
        }
        let ready = (0..lines.len()).find_map(|rank| {
            let step = lines[rank].steps.get(at[rank])?;
            let members = members(program, world, step.1);
            let all_here = members.iter().all(|&m| lines[m].steps.get(at[m]) == Some(step));
            all_here.then_some(members)
        });
        match ready {
            Some(members) => members.iter().for_each(|&m| at[m] += 1),
            None if (0..lines.len()).all(|r| at[r] == lines[r].steps.len()) => {
                return Outcome::Meets;
            }
            None => return Outcome::Parts,
        }
    }
}

fn members(program: &Program, world: i64, group: Option<usize>) -> Vec<usize> {
    let all = || (0..world as usize).collect();
    match group.map(|group| &program.groups[group]) {
        None | Some(Group::All) => all(),
        Some(Group::Ranks(ranks)) => ranks.iter().map(|&r| r as usize).collect(),
    }
}

/// Why a list of statements was left.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Left {
    AtItsEnd,
    Break,
    Continue,
    Return,
    Exit,
    Fail,
}

#[derive(Debug, Default)]
struct Variables {
    numbers: HashMap<String, i64>,
    answers: HashMap<String, bool>,
}

struct Player<'p> {
    program: &'p Program,
    rank: i64,
    world: i64,
    switches: u32,
    line: Line,
}

impl<'p> Player<'p> {
    fn run(&mut self, statements: &'p [Statement], variables: &mut Variables) -> Left {
        for statement in statements {
            let left = self.statement(statement, variables);
            if left != Left::AtItsEnd {
                return left;
            }
        }
        Left::AtItsEnd
    }

    fn statement(&mut self, statement: &'p Statement, variables: &mut Variables) -> Left {
        match statement {
            Statement::Collective(kind, group) => {
                let members = members(self.program, self.world, *group);
                // A rank outside of the group passes with a warning.
                if members.contains(&(self.rank as usize)) {
                    self.line.steps.push((*kind, *group));
                }
            }
            Statement::If { test, then, otherwise } => {
                let arm = if self.test(test, variables) { then } else { otherwise };
                return self.run(arm, variables);
            }
            Statement::For { variable, times, body } => {
                for turn in 0..self.value(times, variables) {
                    variables.numbers.insert(variable.clone(), turn);
                    match self.run(body, variables) {
                        Left::AtItsEnd | Left::Continue => {}
                        Left::Break => break,
                        left => return left,
                    }
                }
            }
            Statement::Assign { variable, value } => {
                let value = self.value(value, variables);
                variables.numbers.insert(variable.clone(), value);
            }
            Statement::Remember { variable, test } => {
                let answer = self.test(test, variables);
                variables.answers.insert(variable.clone(), answer);
            }
            Statement::Call { function, argument } => {
                let mut inner = Variables::default();
                inner.numbers.insert("n".to_owned(), self.value(argument, variables));
                let left = self.run(&self.program.functions[*function], &mut inner);
                if matches!(left, Left::Exit | Left::Fail) {
                    return left;
                }
            }
            Statement::Print => {}
            Statement::Return => return Left::Return,
            Statement::Break => return Left::Break,
            Statement::Continue => return Left::Continue,
            Statement::Exit => return Left::Exit,
            Statement::Fail => return Left::Fail,
        }
        Left::AtItsEnd
    }

    fn value(&self, value: &Value, variables: &Variables) -> i64 {
        match value {
            Value::Int(number) => *number,
            Value::Rank => self.rank,
            Value::LocalRank => self.rank % NODE,
            Value::World => self.world,
            Value::Variable(name) => variables.numbers[name],
            Value::Sum(a, b) => self.value(a, variables) + self.value(b, variables),
            Value::Remainder(a, by) => self.value(a, variables) % by,
            Value::Half(a) => self.value(a, variables) / 2,
        }
    }

    fn test(&self, test: &Test, variables: &Variables) -> bool {
        match test {
            Test::Compare(comparison, a, b) => {
                let (a, b) = (self.value(a, variables), self.value(b, variables));
                match comparison {
                    Comparison::Equal => a == b,
                    Comparison::Unequal => a != b,
                    Comparison::Less => a < b,
                    Comparison::AtLeast => a >= b,
                }
            }
            Test::OneOf(value, of) => of.contains(&self.value(value, variables)),
            Test::Not(test) => !self.test(test, variables),
            Test::Both(a, b) => self.test(a, variables) && self.test(b, variables),
            Test::Either(a, b) => self.test(a, variables) || self.test(b, variables),
            Test::Switch(switch) => self.switches & 1 << switch != 0,
            Test::Answer(name) => variables.answers[name],
            Test::Helper(helper) => self.test(&self.program.helpers[*helper], variables),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spmd::program::Asks;

    fn program(main: Vec<Statement>) -> Program {
        Program {
            asks: Asks::Once,
            groups: vec![Group::Ranks(vec![0, 1])],
            helpers: Vec::new(),
            functions: Vec::new(),
            main,
            n_switches: 1,
        }
    }

    fn on_rank_0(then: Vec<Statement>, otherwise: Vec<Statement>) -> Statement {
        let test = Test::Compare(Comparison::Equal, Value::Rank, Value::Int(0));
        Statement::If { test, then, otherwise }
    }

    const BARRIER: Statement = Statement::Collective(Collective::Barrier, None);
    const REDUCE: Statement = Statement::Collective(Collective::AllReduce, None);

    #[test]
    fn ranks_that_do_the_same_meet() {
        let same = program(vec![on_rank_0(vec![BARRIER], vec![BARRIER]), REDUCE]);
        assert_eq!(outcomes(&same, 2), [Outcome::Meets; 2]);
    }

    #[test]
    fn a_guarded_collective_parts_and_so_does_a_wrong_pair() {
        let alone = program(vec![on_rank_0(vec![BARRIER], vec![])]);
        assert_eq!(play(&alone, 3, 0), Outcome::Parts);
        let wrong = program(vec![on_rank_0(vec![BARRIER], vec![REDUCE])]);
        assert_eq!(play(&wrong, 2, 0), Outcome::Parts);
        assert!(is_faulty(&wrong));
    }

    #[test]
    fn groups_wait_for_their_members_alone() {
        let in_group = Statement::Collective(Collective::Barrier, Some(0));
        let all = program(vec![in_group.clone(), BARRIER]);
        assert_eq!(play(&all, 4, 0), Outcome::Meets);
        let crossed =
            program(vec![on_rank_0(vec![in_group.clone(), BARRIER], vec![BARRIER, in_group])]);
        assert_eq!(play(&crossed, 2, 0), Outcome::Parts);
    }

    #[test]
    fn a_failure_that_is_reached_ends_the_job() {
        let fails = program(vec![REDUCE, on_rank_0(vec![Statement::Fail], vec![BARRIER])]);
        assert_eq!(play(&fails, 2, 0), Outcome::Fails);
        let never = program(vec![on_rank_0(vec![REDUCE, Statement::Fail], vec![BARRIER])]);
        assert_eq!(play(&never, 2, 0), Outcome::Parts);
    }

    #[test]
    fn switches_are_tried_both_ways() {
        let test = Test::Both(
            Box::new(Test::Switch(0)),
            Box::new(Test::Compare(Comparison::Equal, Value::Rank, Value::Int(1))),
        );
        let then = vec![BARRIER];
        let some = program(vec![Statement::If { test, then, otherwise: vec![] }]);
        assert_eq!(outcomes(&some, 2), [Outcome::Meets, Outcome::Parts]);
    }
}
