//! What happens when a program runs: events in order, and the tree of branches and loops
//! they stand in. Rules read these.

use std::rc::Rc;

use super::term::{FrameId, FunctionRef, ObjectId, Term};
use super::value::Value;
use crate::model::{Expr, Name, Site};
use crate::table::{Role, Row};

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
pub struct EventId(pub u32);

/// A node of the list of conditions under which something runs; callers' conditions included.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct PathId(pub u32);

/// A node of the list of loops around something; callers' loops included.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct LoopId(pub u32);

/// An argument of a call, evaluated.
#[derive(Clone, Debug)]
pub struct ArgumentValue<'p> {
    /// Keyword, or the name of the parameter at this position where the table knows it.
    pub name: Option<Name>,
    pub position: Option<usize>,
    pub expr: &'p Expr,
    pub value: Value,
    /// `*x` or `**x`: what it fills is unknown.
    pub spread: bool,
}

/// Something a rule asks of a call: known, surely not there, or not to be known.
#[derive(Clone, Copy, Debug)]
pub enum Given<'e, 'p> {
    Known(&'e ArgumentValue<'p>),
    Absent,
    Opaque,
}

impl<'e, 'p> Given<'e, 'p> {
    pub fn known(self) -> Option<&'e ArgumentValue<'p>> {
        match self {
            Given::Known(argument) => Some(argument),
            _ => None,
        }
    }

    pub fn is_absent(self) -> bool {
        matches!(self, Given::Absent)
    }
}

/// Modes that hold where an event stands.
#[expect(clippy::struct_excessive_bools, reason = "they are independent switches")]
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Modes {
    /// Gradients are recorded.
    pub grad: bool,
    /// Inside `no_sync`.
    pub no_sync: bool,
    /// Inside a wrapper's `join`.
    pub join: bool,
    /// The wrapper through whose call this runs (inside the forward of a wrapped module).
    pub wrapper: Option<ObjectId>,
    /// The frame of the innermost module forward this runs in.
    pub forward: Option<FrameId>,
    /// Inside a handler or the body of a `try` that catches.
    pub caught: bool,
    /// In a process that the program started (`mp.spawn`).
    pub spawned: bool,
}

#[derive(Clone, Debug)]
pub struct Event<'p> {
    pub id: EventId,
    pub kind: EventKind<'p>,
    pub site: Site,
    pub expr: Option<&'p Expr>,
    pub frame: FrameId,
    pub path: PathId,
    pub loops: Option<LoopId>,
    pub modes: Modes,
}

impl<'p> Event<'p> {
    /// The call that it is, if it is one.
    pub fn call(&self) -> Option<&Call<'p>> {
        match &self.kind {
            EventKind::Call(call) => Some(call),
            _ => None,
        }
    }
}

#[derive(Clone, Debug)]
pub enum EventKind<'p> {
    Call(Call<'p>),
    /// A module (or a wrapper round one) is called, or a method of a module that is not its
    /// forward computes something (`method`).
    Forward(Forward<'p>),
    /// An attribute or method is looked up on an object.
    AttributeRead {
        of: Term,
        name: Name,
        result: Value,
    },
    AttributeStore {
        of: Term,
        name: Name,
        value: Value,
        augmented: bool,
    },
    /// A collective's or loader's result is dropped, a value is tested, and so on, is read off
    /// the tree; a return is told here.
    Return {
        value: Value,
    },
    /// `del x`, a rebinding or the end of a scope are not told.
    Assign {
        name: Name,
        value: Value,
    },
    /// A condition that decides a branch or a loop.
    Test {
        condition: Term,
        value: Value,
    },
    Raise,
}

#[derive(Clone, Debug)]
pub struct Call<'p> {
    pub role: Role,
    pub row: Option<&'p Row>,
    /// Dotted name of the callee, as written after resolving imports: `torch.save`.
    pub name: Option<Name>,
    pub receiver: Option<Value>,
    pub arguments: Vec<ArgumentValue<'p>>,
    pub result: Value,
}

#[derive(Clone, Debug)]
pub struct Forward<'p> {
    /// What is called: an object, an inner module, or an opaque term.
    pub module: Term,
    pub via: Via,
    /// Set for a method other than the forward: `model.module.step(x)`.
    pub method: Option<Name>,
    pub arguments: Vec<ArgumentValue<'p>>,
    pub result: Value,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Via {
    /// The wrapper is called, as it should be.
    Wrapper(ObjectId),
    /// The inner module, reached through the wrapper (`.module`).
    Inner(ObjectId),
    /// The inner module under its old name, after this wrapper was made.
    Alias(ObjectId),
    /// A module that no wrapper holds so far.
    Bare,
}

impl<'p> Call<'p> {
    /// The argument of this name: by keyword, or by the position the table gives it.
    pub fn argument(&self, name: &str) -> Given<'_, 'p> {
        let named = |a: &&ArgumentValue<'p>| !a.spread && a.name.is_some_and(|n| &*n == name);
        if let Some(argument) = self.arguments.iter().find(named) {
            return Given::Known(argument);
        }
        if self.arguments.iter().any(|a| a.spread) { Given::Opaque } else { Given::Absent }
    }

    /// The positional argument at `index`, or the keyword `name`.
    pub fn argument_at(&self, index: usize, name: &str) -> Given<'_, 'p> {
        match self.argument(name) {
            Given::Known(argument) => Given::Known(argument),
            other => {
                let at = |a: &&ArgumentValue<'p>| !a.spread && a.position == Some(index);
                self.arguments.iter().find(at).map_or(other, Given::Known)
            }
        }
    }

    /// The value of the argument at `index` or of keyword `name`.
    pub fn value_at(&self, index: usize, name: &str) -> Option<&Value> {
        self.argument_at(index, name).known().map(|a| &a.value)
    }
}

/// The tree of one function's run (callees spliced in, shared when run again alike).
pub type Tree = Rc<[Node]>;

#[derive(Clone, Debug)]
pub enum Node {
    Event(EventId),
    Branch {
        condition: Term,
        site: Site,
        then: Tree,
        otherwise: Tree,
    },
    /// `item`: what the loop binds its target to, where that is one term.
    Loop {
        header: Header,
        item: Option<Term>,
        site: Site,
        body: Tree,
    },
    /// A try whose handlers catch: `body` up to some point, then a handler.
    Try {
        site: Site,
        body: Tree,
        handlers: Vec<Caught>,
    },
    Call {
        function: FunctionRef,
        site: Site,
        body: Tree,
    },
    Exit {
        kind: ExitKind,
        site: Site,
    },
}

/// What a handler does.
#[derive(Clone, Debug)]
pub struct Caught {
    /// That it was entered.
    pub when: Term,
    /// What it catches, as written.
    pub site: Site,
    pub body: Tree,
}

#[derive(Clone, Debug)]
pub enum Header {
    /// Items of this value.
    Over(Value),
    While(Term),
    Forever,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum ExitKind {
    Return,
    Break,
    Continue,
    /// `sys.exit(0)`, `exit()`.
    Stop,
    /// Ends the process by an error.
    Error,
}
