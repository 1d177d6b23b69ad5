//! The programs: a small language of what ranks do together and what they decide by themselves.

/// A number that each rank works out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Value {
    Int(i64),
    Rank,
    LocalRank,
    World,
    /// A variable of the function: a parameter, a loop's or an assigned one.
    Variable(String),
    Sum(Box<Value>, Box<Value>),
    /// By a number above zero.
    Remainder(Box<Value>, i64),
    Half(Box<Value>),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Comparison {
    Equal,
    Unequal,
    Less,
    AtLeast,
}

/// A condition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Test {
    Compare(Comparison, Value, Value),
    OneOf(Value, Vec<i64>),
    Not(Box<Test>),
    Both(Box<Test>, Box<Test>),
    Either(Box<Test>, Box<Test>),
    /// A switch of the command line: unknown to a reader, the same on all ranks.
    Switch(usize),
    /// A variable that holds the answer of a test.
    Answer(String),
    /// A helper function that answers a test.
    Helper(usize),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Collective {
    Barrier,
    AllReduce,
    Broadcast { root: i64 },
    AllGather,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Statement {
    /// In the group of that index, or of all ranks.
    Collective(Collective, Option<usize>),
    If {
        test: Test,
        then: Vec<Statement>,
        otherwise: Vec<Statement>,
    },
    /// Counts from 0 to below `times`.
    For {
        variable: String,
        times: Value,
        body: Vec<Statement>,
    },
    Assign {
        variable: String,
        value: Value,
    },
    Remember {
        variable: String,
        test: Test,
    },
    Call {
        function: usize,
        argument: Value,
    },
    Print,
    Return,
    Break,
    Continue,
    /// Ends the process well.
    Exit,
    /// Ends the process by an error, and with it the job.
    Fail,
}

/// The ranks of a group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Group {
    Ranks(Vec<i64>),
    All,
}

/// How a program asks for its rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Asks {
    /// Once in each function, into a variable.
    Once,
    /// Wherever it needs it.
    EachTime,
    /// The launcher's variable.
    Environment,
}

/// A program. Functions take one number, `n`, and call only functions behind them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Program {
    pub asks: Asks,
    pub groups: Vec<Group>,
    /// Helpers that answer a test, without variables.
    pub helpers: Vec<Test>,
    pub functions: Vec<Vec<Statement>>,
    pub main: Vec<Statement>,
    pub n_switches: usize,
}
