//! The interpreter: runs the program model abstractly, from a program's entry, and tells what
//! happens. It follows calls, imports, objects and branches; what it cannot know is opaque.
//!
//! It knows no rule and no language; names of the outside world come from the tables.

mod attribute;
mod call;
mod class;
mod expression;
mod import;
mod iterators;
mod orphan;
mod outside;
mod ragged;
mod share;
mod statement;
mod store;

use indexmap::IndexMap;
use rustc_hash::{FxBuildHasher, FxHashMap, FxHashSet};

use super::event::{ArgumentValue, Event, EventId, EventKind, LoopId, Modes, Node, PathId, Tree};
use super::term::{ClassRef, FrameId, FunctionRef, ObjectId, Term, TermKind, Terms, three_valued};
use super::value::Value;
use crate::model::{BinaryOp, Expr, FileId, Function, Impl, Name, Site, Span, Stmt, WithItem};
use crate::project::Project;
use crate::table::{Asked, Role, Row, Table};

pub(super) use call::is_forward;
pub(super) use store::Key;

/// Something made by a call: an instance, a list, a wrapper.
#[derive(Clone, Debug)]
pub struct Object<'p> {
    pub id: ObjectId,
    /// Where it was made.
    pub site: Site,
    pub class: ObjectClass,
    /// The table's role of its class (or of its nearest outside base).
    pub role: Role,
    pub row: Option<&'p Row>,
    /// What its constructor got.
    pub arguments: Vec<ArgumentValue<'p>>,
    /// The call that made it, where that is an event.
    pub event: Option<EventId>,
    /// Where it was made, as conditions.
    pub path: PathId,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum ObjectClass {
    Outside(Name),
    Project(ClassRef),
    List,
    Dict,
    /// What a command line parser returns.
    Arguments,
}

/// One activation of a function, or of a file's top level.
#[derive(Clone, Debug)]
pub struct Frame {
    pub id: FrameId,
    pub file: FileId,
    /// `None`: the file's top level, or a class body.
    pub function: Option<FunctionRef>,
    pub caller: Option<FrameId>,
    /// Where it was called.
    pub call: Option<Site>,
    /// Nobody in the program is seen to call it: arguments and guards are unknown.
    pub orphan: bool,
    /// The receiver.
    pub receiver: Option<Term>,
    /// The class whose method it is.
    pub class: Option<ClassRef>,
    closure: Option<FrameId>,
    class_body: Option<Term>,
    /// Functions that see its variables were made in it.
    is_captured: bool,
    outer_names: Vec<Name>,
    exits: Vec<ReturnExit>,
    path_base: usize,
    trail_base: usize,
    yielded: Vec<Term>,
    loop_exits: Vec<LoopExits>,
}

type Writes = IndexMap<Key, Value, FxBuildHasher>;

#[derive(Clone, Debug)]
struct ReturnExit {
    when: Term,
    value: Value,
    writes: Writes,
}

#[derive(Clone, Debug, Default)]
struct LoopExits {
    breaks: Vec<LoopBreak>,
    trail_base: usize,
    path_base: usize,
}

#[derive(Clone, Debug)]
struct LoopBreak {
    site: Site,
    /// The condition under which one turn of the loop ends here.
    when: Term,
    writes: Writes,
}

/// The rest of a `with` whose context manager is a generator: runs at its `yield`.
#[derive(Debug)]
struct WithBody<'p> {
    item: &'p WithItem,
    rest: &'p [WithItem],
    body: &'p [Stmt],
    frame: FrameId,
    falls: Option<Term>,
    /// What leaves the function after the manager's own end.
    leave: Option<Node>,
}

/// A condition in force, with where it is tested.
#[derive(Clone, Copy, Debug)]
pub struct PathNode {
    pub parent: Option<PathId>,
    pub condition: Term,
    pub site: Site,
    /// The frame that tests it.
    pub frame: FrameId,
    /// The conditions from this place of the path on, as one.
    base: usize,
    since_base: Term,
}

#[derive(Clone, Copy, Debug)]
pub struct LoopNode {
    pub parent: Option<LoopId>,
    pub site: Site,
    pub frame: FrameId,
    /// The event or term it walks over; `None` for `while`.
    pub over: Option<Term>,
    /// The condition of a `while`.
    pub condition: Option<Term>,
}

#[derive(Clone, Debug)]
pub struct ClassInfo {
    pub term: Term,
    pub bases: Vec<Term>,
    methods: FxHashMap<Name, Term>,
}

/// Steps after which everything further is opaque.
const STEPS_MAX: u64 = 1_500_000;
const DEPTH_MAX: u32 = 700;
/// Runs of one function body in one program; later ones are opaque.
const VISITS_MAX: u32 = 24;
const STACK_RED_ZONE: usize = 256 * 1024;
const STACK_SEGMENT: usize = 4 * 1024 * 1024;

pub(super) struct Interpreter<'p> {
    pub project: &'p Project,
    pub table: Asked<'p>,
    /// The file that is the program's entry: imports resolve against its folder.
    pub entry: FileId,
    pub terms: Terms,
    pub objects: Vec<Object<'p>>,
    object_terms: Vec<Term>,
    pub frames: Vec<Frame>,
    pub events: Vec<Event<'p>>,
    pub paths: Vec<PathNode>,
    pub loops: Vec<LoopNode>,
    pub classes: FxHashMap<ClassRef, ClassInfo>,
    /// Functions that ran, with the number of runs.
    pub visits: FxHashMap<FunctionRef, u32>,
    /// Files whose top level ran.
    pub files_run: FxHashSet<FileId>,
    store: store::Store,
    path: Vec<PathId>,
    known: FxHashMap<Term, (u32, u32)>,
    loop_now: Option<LoopId>,
    modes: Modes,
    tree: Vec<Node>,
    with_bodies: Vec<WithBody<'p>>,
    entering_context: bool,
    function_marks: FxHashMap<FunctionRef, Role>,
    /// Decorators of the project on methods, innermost first.
    method_decorators: FxHashMap<FunctionRef, Vec<(&'p Expr, Term)>>,
    /// Methods whose decorators run now: what these call is the method itself.
    bare_methods: Vec<FunctionRef>,
    last_runs: FxHashMap<FunctionRef, call::Memo>,
    active: FxHashMap<FunctionRef, u32>,
    known_hash: u64,
    impl_types: FxHashMap<FunctionRef, Name>,
    /// Rust: the `impl` blocks of the types of a name.
    impls: FxHashMap<Name, Vec<(FileId, &'p Impl)>>,
    classes_by_name: FxHashMap<Name, Vec<ClassRef>>,
    /// Which item of what an opaque value is.
    pub item_of: FxHashMap<Term, (Term, Term)>,
    /// Outside types of opaque values (tensors).
    types: FxHashMap<Term, Name>,
    /// Where a quotient was first formed.
    pub divisions: FxHashMap<Term, Site>,
    /// Of opaque numbers and tensors of Rust: what they were computed from.
    pub arithmetic: FxHashMap<Term, (BinaryOp, Term, Term)>,
    /// Of tensors and numbers of Rust: what their method was called on, as `x` of `x.cos()`.
    pub method_of: FxHashMap<Term, Term>,
    /// What the methods of builders were given, as it is written.
    pub settings: FxHashMap<(Term, Name), (FileId, &'p Expr)>,
    star_imports: FxHashMap<FileId, Vec<Term>>,
    /// Whether control gets past the expressions of the statement that runs.
    falls: Term,
    frame: FrameId,
    call_depth: u32,
    pub steps: u64,
    class_roles: FxHashMap<ClassRef, (Role, Option<Name>)>,
    memo: FxHashMap<call::MemoKey, call::Memo>,
    /// Counts what memoised results depend on.
    epoch: u64,
    /// Opaque terms that are numbers: what a range counts, and counters that loops change.
    pub counters: FxHashSet<Term>,
    /// Conditions that a handler was entered, where an error of one rank alone may lead there.
    pub caught: FxHashSet<Term>,
    /// What ranges from 0 count.
    pub naturals: FxHashSet<Term>,
    /// Conditions that pick one of several items of a container.
    pub selectors: FxHashSet<Term>,
    /// Calls that are statements: nobody takes what they give.
    pub dropped: FxHashSet<Site>,
    /// Objects that went into calls of the outside world.
    pub given_away: FxHashSet<Term>,
    /// Tensors whose size each rank decides for itself.
    pub ragged: FxHashSet<Term>,
    /// Lists of parts of unequal size.
    uneven_parts: FxHashSet<Term>,
    /// Functions that yield a share of this rank's own.
    pub sharing: FxHashSet<FunctionRef>,
}

/// How a program begins.
const AT_FIRST: Modes = Modes {
    grad: true,
    no_sync: false,
    join: false,
    wrapper: None,
    forward: None,
    caught: false,
    spawned: false,
};

impl<'p> Interpreter<'p> {
    pub(super) fn new(project: &'p Project, table: &'p Table, entry: FileId) -> Self {
        let terms = Terms::default();
        let start = Site { file: entry, span: Span::default() };
        let root = PathNode {
            parent: None,
            condition: terms.yes,
            site: start,
            frame: FrameId(0),
            base: 0,
            since_base: terms.yes,
        };
        let mut new = Self {
            project,
            table: Asked::new(table),
            entry,
            falls: terms.yes,
            terms,
            objects: Vec::new(),
            object_terms: Vec::new(),
            frames: Vec::new(),
            events: Vec::new(),
            paths: vec![root],
            loops: Vec::new(),
            classes: FxHashMap::default(),
            visits: FxHashMap::default(),
            files_run: FxHashSet::default(),
            store: store::Store::default(),
            path: vec![PathId(0)],
            known: FxHashMap::default(),
            loop_now: None,
            modes: AT_FIRST,
            tree: Vec::new(),
            with_bodies: Vec::new(),
            entering_context: false,
            function_marks: FxHashMap::default(),
            method_decorators: FxHashMap::default(),
            bare_methods: Vec::new(),
            last_runs: FxHashMap::default(),
            active: FxHashMap::default(),
            known_hash: 0,
            impl_types: FxHashMap::default(),
            impls: FxHashMap::default(),
            classes_by_name: FxHashMap::default(),
            item_of: FxHashMap::default(),
            types: FxHashMap::default(),
            divisions: FxHashMap::default(),
            arithmetic: FxHashMap::default(),
            method_of: FxHashMap::default(),
            settings: FxHashMap::default(),
            star_imports: FxHashMap::default(),
            frame: FrameId(0),
            call_depth: 0,
            steps: 0,
            class_roles: FxHashMap::default(),
            memo: FxHashMap::default(),
            epoch: 0,
            counters: FxHashSet::default(),
            caught: FxHashSet::default(),
            naturals: FxHashSet::default(),
            selectors: FxHashSet::default(),
            dropped: FxHashSet::default(),
            given_away: FxHashSet::default(),
            ragged: FxHashSet::default(),
            uneven_parts: FxHashSet::default(),
            sharing: FxHashSet::default(),
        };
        new.index_impls();
        new
    }

    /// Runs the entry file as the main program, and its `main` if it is Rust.
    pub(super) fn run_entry(&mut self) -> Tree {
        self.run_file(self.entry);
        if self.project.file(self.entry).module.language == crate::model::Language::Rust {
            let main = Key::Global(self.entry, Name::new("main"));
            if let Some(value) = self.store.get(&main).cloned() {
                let site = Site { file: self.entry, span: Span::default() };
                self.call_value(&value, Vec::new(), site, None);
            }
        }
        std::mem::take(&mut self.tree).into()
    }

    pub(super) fn function(&self, function: FunctionRef) -> &'p Function {
        self.project.file(function.file).module.function(function.index)
    }

    pub(super) fn object(&self, id: ObjectId) -> &Object<'p> {
        &self.objects[id.0 as usize]
    }

    /// The object behind a term, the inner module's for `Inner`.
    pub(super) fn object_of(&self, term: Term) -> Option<&Object<'p>> {
        match *self.terms.kind(term) {
            TermKind::Object(id) => Some(self.object(id)),
            _ => None,
        }
    }

    fn frame(&self) -> &Frame {
        &self.frames[self.frame.0 as usize]
    }

    fn frame_mut(&mut self) -> &mut Frame {
        &mut self.frames[self.frame.0 as usize]
    }

    fn file(&self) -> FileId {
        self.frame().file
    }

    fn site(&self, span: Span) -> Site {
        Site { file: self.file(), span }
    }

    fn is_rust(&self) -> bool {
        self.project.file(self.file()).module.language == crate::model::Language::Rust
    }

    fn value(&self, term: Term) -> Value {
        Value::of(&self.terms, term)
    }

    fn nothing(&self) -> Value {
        self.value(self.terms.none)
    }

    /// True when the budget is spent: whatever comes is opaque.
    fn spent(&mut self) -> bool {
        self.steps += 1;
        self.steps > STEPS_MAX
    }

    fn new_object(
        &mut self,
        site: Site,
        class: ObjectClass,
        arguments: Vec<ArgumentValue<'p>>,
        event: Option<EventId>,
    ) -> Term {
        let (role, row_name) = match class {
            ObjectClass::Outside(name) => {
                (self.table.get(name).map_or(Role::Plain, |r| r.role), Some(name))
            }
            ObjectClass::Project(class) => self.class_role(class),
            _ => (Role::Plain, None),
        };
        let row = row_name.and_then(|name| self.table.get(name));
        let id = ObjectId(self.objects.len() as u32);
        let path = self.path_now();
        self.objects.push(Object { id, site, class, role, row, arguments, event, path });
        let term = self.terms.make(TermKind::Object(id));
        self.object_terms.push(term);
        term
    }

    fn push_event(&mut self, kind: EventKind<'p>, site: Site, expr: Option<&'p Expr>) -> EventId {
        let id = EventId(self.events.len() as u32);
        let path = self.path_now();
        self.events.push(Event {
            id,
            kind,
            site,
            expr,
            frame: self.frame,
            path,
            loops: self.loop_now,
            modes: self.modes,
        });
        self.tree.push(Node::Event(id));
        id
    }

    pub(super) fn path_now(&self) -> PathId {
        *self.path.last().expect("the root path is never popped")
    }

    fn push_path(&mut self, condition: Term, site: Site) {
        let id = PathId(self.paths.len() as u32);
        let parent = self.path_now();
        let base = self.frames.get(self.frame.0 as usize).map_or(0, |frame| frame.path_base);
        let before = self.path_since(base);
        let since_base = self.terms.and([before, condition]);
        let (parent, frame) = (Some(parent), self.frame);
        self.paths.push(PathNode { parent, condition, site, frame, base, since_base });
        self.path.push(id);
        self.note_known(condition, true, true);
    }

    fn pop_path(&mut self) {
        let id = self.path.pop().expect("pushed before");
        let condition = self.paths[id.0 as usize].condition;
        self.note_known(condition, true, false);
    }

    /// Books what a condition settles: `a and not b` settles `a` and `b`.
    fn note_known(&mut self, condition: Term, holds: bool, add: bool) {
        if self.terms.is_huge(condition) {
            return;
        }
        match self.terms.kind(condition).clone() {
            TermKind::And(parts) if holds => {
                for part in parts {
                    self.note_known(part, holds, add);
                }
            }
            TermKind::Or(parts) if !holds => {
                for part in parts {
                    self.note_known(part, holds, add);
                }
            }
            TermKind::Not(inner) => self.note_known(inner, !holds, add),
            TermKind::Const(_) => {}
            _ => {
                let count = self.known.entry(condition).or_default();
                let count = if holds { &mut count.0 } else { &mut count.1 };
                let was = *count > 0;
                *count = if add { *count + 1 } else { count.saturating_sub(1) };
                if was != (*count > 0) {
                    self.known_hash ^= mix(condition, holds);
                }
            }
        }
    }

    /// Whether the conditions in force settle this one.
    fn settle(&self, condition: Term) -> Option<bool> {
        if let Some(&(yes, no)) = self.known.get(&condition)
            && (yes > 0) != (no > 0)
        {
            return Some(yes > 0);
        }
        if self.terms.is_huge(condition) {
            return None;
        }
        match self.terms.kind(condition) {
            TermKind::Const(value) => Some(super::term::truth(*value)),
            TermKind::Not(inner) => self.settle(*inner).map(|b| !b),
            TermKind::And(parts) => {
                let parts = parts.iter().map(|&p| self.settle(p));
                three_valued(parts, true)
            }
            TermKind::Or(parts) => {
                let parts = parts.iter().map(|&p| self.settle(p));
                three_valued(parts, false)
            }
            _ => None,
        }
    }

    /// The conditions pushed since `base`, as one.
    fn path_since(&mut self, base: usize) -> Term {
        if self.path.len() <= base {
            return self.terms.yes;
        }
        let now = self.paths[self.path_now().0 as usize];
        if now.base == base {
            return now.since_base;
        }
        let ids: Vec<PathId> = self.path[base..].to_vec();
        let conditions: Vec<Term> =
            ids.iter().map(|id| self.paths[id.0 as usize].condition).collect();
        self.terms.and(conditions)
    }

    /// Runs `body` with an empty tree and gives what it grew.
    fn grow<R>(&mut self, body: impl FnOnce(&mut Self) -> R) -> (R, Tree) {
        let outer = std::mem::take(&mut self.tree);
        let result = body(self);
        let grown = std::mem::replace(&mut self.tree, outer);
        (result, grown.into())
    }

    fn with_stack<R>(&mut self, body: impl FnOnce(&mut Self) -> R) -> R {
        stacker::maybe_grow(STACK_RED_ZONE, STACK_SEGMENT, || body(self))
    }
}

/// A number that stands for "this condition is settled so".
fn mix(condition: Term, holds: bool) -> u64 {
    (u64::from(condition.0) << 1 | u64::from(holds))
        .wrapping_add(1)
        .wrapping_mul(0x9e37_79b9_7f4a_7c15)
        .rotate_left(17)
        .wrapping_mul(0xbf58_476d_1ce4_e5b9)
}
