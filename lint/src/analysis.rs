//! What a program does when it runs: the facts that rules read.
//!
//! A program is an entry and what it reaches. The interpreter runs it abstractly; `Program`
//! answers questions about that run.

pub mod checkpoints;
pub mod devices;
pub mod dump;
pub mod event;
pub mod facts;
mod interp;
pub mod models;
pub mod rankflow;
pub mod reach;
pub mod registration;
pub mod shared;
pub mod term;
pub mod training;
pub mod value;

use std::cell::{OnceCell, RefCell};
use std::sync::Arc;

use rustc_hash::{FxHashMap, FxHashSet};

pub use event::{
    ArgumentValue, Call, Caught, Event, EventId, EventKind, ExitKind, Forward, Given, Header,
    LoopId, Modes, Node, PathId, Tree, Via,
};
pub use interp::{ClassInfo, Frame, LoopNode, Object, ObjectClass, PathNode};
pub use term::{
    ClassRef, Const, FrameId, FunctionRef, ObjectId, RankKind, SAMPLES, Sample, Taint, Term,
    TermKind, Terms,
};
pub use value::{Alternative, Value};

use crate::model::{Class, Expr, FileId, Function, Language, Name, Site};
use crate::project::Project;
use crate::table::{Asked, Flag, Role, Table};
use checkpoints::ToldStates;
use interp::{Interpreter, Key};
pub use reach::{Planned, plan};

/// More programs than this are not asked what another one needs of them.
const OTHERS_MAX: usize = 6;

/// Where a program starts.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Entry {
    /// The file that runs; none in a library, which counts as one program.
    pub file: Option<FileId>,
    pub language: Language,
}

/// One entry of a project and what it reaches, run.
pub struct Program<'p> {
    project: &'p Project,
    /// The file that runs; none in a library, which counts as one program.
    pub entry: Option<FileId>,
    pub language: Language,
    run: Interpreter<'p>,
    tree: Tree,
    orphan_trees: Vec<(FunctionRef, Tree)>,
    trained: OnceCell<FxHashSet<EventId>>,
    by_role: OnceCell<FxHashMap<Role, Vec<EventId>>>,
    makers: OnceCell<FxHashMap<Term, EventId>>,
    models: OnceCell<models::Index>,
    is_distributed: OnceCell<bool>,
    /// By path, as far as somebody asked.
    runs_on: RefCell<FxHashMap<PathId, RunsOn>>,
}

/// Whether each sample rank gets somewhere; `None` where that hangs on something unknown.
type RunsOn = [Option<bool>; SAMPLES.len()];

/// Which ranks of a distributed run get somewhere.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reach {
    /// No rank test stands in the way, as far as is known.
    Every,
    /// Global rank 0 alone.
    Main,
    /// The first rank of each node.
    LocalMain,
    /// Ranks other than 0 alone.
    Others,
    /// No rank at all in a distributed run.
    Nobody,
    /// Another set of ranks.
    Some,
}

/// All entries of a project, in file order.
pub fn entries(project: &Project) -> Vec<Entry> {
    let mut entries = Vec::new();
    for language in [Language::Python, Language::Rust] {
        let of_language = || project.files.iter().filter(|f| f.module.language == language);
        let files: Vec<FileId> = match language {
            Language::Python => crate::python::entries(project),
            Language::Rust => {
                let libraries = project.crates.libraries().map(|krate| krate.root);
                project.crates.entries().into_iter().chain(libraries).collect()
            }
        };
        if files.is_empty() && of_language().next().is_some() {
            entries.push(Entry { file: None, language });
        }
        entries.extend(files.into_iter().map(|file| Entry { file: Some(file), language }));
    }
    entries
}

impl<'p> Program<'p> {
    /// Runs the program from its entry, then what nothing in it is seen to call. A program that
    /// no part of speaks of several devices is not run: nothing can be found in it but its files.
    pub fn new(project: &'p Project, table: &'p Table, planned: &Planned) -> Self {
        let entry = planned.entry;
        let first = entry.file.unwrap_or(FileId(0));
        let mut run = Interpreter::new(project, table, first);
        let (mut tree, mut orphan_trees) = (Tree::from([]), Vec::new());
        if planned.is_parallel {
            tree = match entry.file {
                Some(_) => run.run_entry(),
                None => run.run_library(entry.language),
            };
            orphan_trees = run.run_orphans(&planned.owned);
        }
        run.files_run.extend(&planned.files);
        Self {
            project,
            entry: entry.file,
            language: entry.language,
            run,
            tree,
            orphan_trees,
            trained: OnceCell::new(),
            by_role: OnceCell::new(),
            makers: OnceCell::new(),
            models: OnceCell::new(),
            is_distributed: OnceCell::new(),
            runs_on: RefCell::default(),
        }
    }

    pub fn project(&self) -> &'p Project {
        self.project
    }

    /// What other programs of the project, those of one process too, save and load.
    pub fn others(&self) -> Vec<Arc<ToldStates>> {
        let candidates = self.project.shared.candidates(self.project, self.language);
        let others = candidates.iter().filter(|planned| planned.entry.file != self.entry);
        let states = others.take(OTHERS_MAX).map(|planned| {
            let run = || Program::new(self.project, self.table().table(), planned).tell_states();
            self.project.shared.states(planned.entry, self.table().table(), run)
        });
        states.collect()
    }

    pub fn terms(&self) -> &Terms {
        &self.run.terms
    }

    pub fn table(&self) -> &Asked<'p> {
        &self.run.table
    }

    /// What the entry does, as a tree.
    pub fn tree(&self) -> &Tree {
        &self.tree
    }

    /// What functions do that nothing is seen to call.
    pub fn orphan_trees(&self) -> &[(FunctionRef, Tree)] {
        &self.orphan_trees
    }

    pub fn events(&self) -> &[Event<'p>] {
        &self.run.events
    }

    pub fn event(&self, id: EventId) -> &Event<'p> {
        &self.run.events[id.0 as usize]
    }

    pub fn objects(&self) -> &[Object<'p>] {
        &self.run.objects
    }

    pub fn object(&self, id: ObjectId) -> &Object<'p> {
        self.run.object(id)
    }

    /// The object that a term is. For the module inside a wrapper: that module's object.
    pub fn object_of(&self, term: Term) -> Option<&Object<'p>> {
        self.run.object_of(self.run.stored(term))
    }

    /// The object a value is, if it is one whatever the path.
    pub fn object_in(&self, value: &Value) -> Option<&Object<'p>> {
        self.object_of(value.single()?)
    }

    pub fn frame(&self, id: FrameId) -> &Frame {
        &self.run.frames[id.0 as usize]
    }

    pub fn function(&self, function: FunctionRef) -> &'p Function {
        self.run.function(function)
    }

    pub fn class(&self, class: ClassRef) -> &'p Class {
        self.project.file(class.file).module.class(class.index)
    }

    /// The classes of the project that ran, with their resolved bases.
    pub fn classes(&self) -> &FxHashMap<ClassRef, ClassInfo> {
        &self.run.classes
    }

    pub fn is_module_class(&self, class: ClassRef) -> bool {
        self.run.is_module_class(class)
    }

    pub fn is_module(&self, term: Term) -> bool {
        self.run.is_module(term)
    }

    /// A member of a class of the project: method or class attribute.
    pub fn class_member(&self, class: ClassRef, name: &str) -> Option<Term> {
        self.run.member_of(class, Name::new(name))
    }

    /// All calls of a role, in order.
    pub fn calls(&self, role: Role) -> impl Iterator<Item = (&Event<'p>, &Call<'p>)> {
        let by_role = self.by_role.get_or_init(|| {
            let mut by_role: FxHashMap<Role, Vec<EventId>> = FxHashMap::default();
            for event in self.events() {
                if let EventKind::Call(call) = &event.kind {
                    by_role.entry(call.role).or_default().push(event.id);
                }
            }
            by_role
        });
        let ids = by_role.get(&role).map(Vec::as_slice).unwrap_or_default();
        ids.iter().filter_map(|&id| match &self.event(id).kind {
            EventKind::Call(call) => Some((self.event(id), call)),
            _ => None,
        })
    }

    pub fn forwards(&self) -> impl Iterator<Item = (&Event<'p>, &Forward<'p>)> {
        self.events().iter().filter_map(|event| match &event.kind {
            EventKind::Forward(forward) => Some((event, forward)),
            _ => None,
        })
    }

    /// What an attribute holds at the end of the run, whatever the path.
    pub fn attribute_now(&self, of: Term, name: &str) -> Option<&Value> {
        self.run.now(&Key::Attribute(of, Name::new(name)))
    }

    /// The module a wrapper holds.
    pub fn wrapped_module(&self, wrapper: ObjectId) -> Option<&Value> {
        self.attribute_now(self.run.term_of(wrapper), "<module>")
    }

    /// The term that stands for an object.
    pub fn term_of(&self, object: ObjectId) -> Term {
        self.run.term_of(object)
    }

    /// The functions that the run got into.
    pub fn ran(&self, function: FunctionRef) -> bool {
        self.run.visits.contains_key(&function)
    }

    /// The file's top level ran: the program reaches it.
    pub fn reaches(&self, file: FileId) -> bool {
        self.run.files_run.contains(&file)
    }

    /// Nothing in it runs by itself.
    pub fn is_library(&self) -> bool {
        self.entry.is_none_or(|file| {
            let module = &self.project.file(file).module;
            module.language == Language::Rust && !module.has_main
        })
    }

    /// A process group, a DDP wrapper, started processes or a framework that launches them.
    pub fn is_distributed(&self) -> bool {
        *self.is_distributed.get_or_init(|| self.looks_distributed())
    }

    fn looks_distributed(&self) -> bool {
        // What nobody calls does not happen; in a library everything may.
        let library = self.is_library();
        let happens = |event: &Event<'p>| library || !self.frame(event.frame).orphan;
        let starts = |role: Role| self.calls(role).any(|(event, _)| happens(event));
        let spawns = self
            .calls(Role::Spawn)
            .any(|(event, call)| happens(event) && self.has_flag(call, Flag::RankFirst));
        // A wrap under "if it is distributed" does not make it so.
        let wraps = self.calls(Role::WrapDdp).any(|(event, _)| {
            happens(event)
                && !self.tests(event.path, &|kind| {
                    matches!(kind, TermKind::Distributed | TermKind::Rank(RankKind::WorldSize))
                })
        });
        starts(Role::InitGroup) || starts(Role::Framework) || spawns || wraps
    }

    /// The conditions under which an event runs, callers' included, innermost first.
    pub fn conditions(&self, path: PathId) -> impl Iterator<Item = &PathNode> {
        let mut at = Some(path);
        std::iter::from_fn(move || {
            let node = &self.run.paths[at?.0 as usize];
            at = node.parent;
            Some(node)
        })
    }

    /// The loops around an event, callers' included, innermost first.
    pub fn loops(&self, at: Option<LoopId>) -> impl Iterator<Item = (LoopId, &LoopNode)> {
        let mut at = at;
        std::iter::from_fn(move || {
            let id = at?;
            let node = &self.run.loops[id.0 as usize];
            at = node.parent;
            Some((id, node))
        })
    }

    /// The loops that walk over a term.
    pub fn loops_over(&self, term: Term) -> impl Iterator<Item = &LoopNode> {
        self.run.loops.iter().filter(move |node| node.over == Some(term))
    }

    /// A tensor that was made to require a gradient, by hand.
    pub fn requires_grad(&self, term: Term) -> bool {
        self.calls(Role::RequiresGrad).any(|(_, call)| {
            let on =
                call.arguments.first().is_none_or(|a| a.value.single() != Some(self.terms().no));
            on && call.result.single() == Some(term)
        })
    }

    /// Whether each sample rank of a distributed run gets there; `None` where that hangs on
    /// something unknown.
    pub fn runs_on(&self, path: PathId) -> [Option<bool>; SAMPLES.len()] {
        let mut known = self.runs_on.borrow_mut();
        let (mut above, mut at) = (Vec::new(), Some(path));
        let mut runs = [Some(true); SAMPLES.len()];
        while let Some(id) = at {
            if let Some(known) = known.get(&id) {
                runs = *known;
                break;
            }
            above.push(id);
            at = self.run.paths[id.0 as usize].parent;
        }
        for id in above.into_iter().rev() {
            let condition = self.run.paths[id.0 as usize].condition;
            for (run, sample) in runs.iter_mut().zip(SAMPLES) {
                *run = match (*run, self.terms().evaluate(condition, sample).map(term::truth)) {
                    (Some(false), _) | (_, Some(false)) => Some(false),
                    (Some(true), Some(true)) => Some(true),
                    (None, _) | (_, None) => None,
                };
            }
            known.insert(id, runs);
        }
        runs
    }

    /// Which ranks get there. Unknown conditions count as true.
    pub fn reach(&self, path: PathId) -> Reach {
        match self.runs_on(path).map(|runs| runs != Some(false)) {
            [true, true, true, true] => Reach::Every,
            [true, false, false, false] => Reach::Main,
            [true, false, true, false] => Reach::LocalMain,
            [false, true, true, true] => Reach::Others,
            [false, false, false, false] => Reach::Nobody,
            _ => Reach::Some,
        }
    }

    /// Whether the event stands in code whose callers are all unknown: its guards and
    /// arguments are then unknown too.
    pub fn is_orphan(&self, event: &Event<'p>) -> bool {
        self.frame(event.frame).orphan || self.runs_in_parent(event)
    }

    /// The program starts its ranks itself, and the event is in the process that does.
    pub fn runs_in_parent(&self, event: &Event<'p>) -> bool {
        !event.modes.spawned && self.calls(Role::InitGroup).any(|(init, _)| init.modes.spawned)
    }

    /// The forwards whose outputs feed a backward.
    pub fn trained(&self) -> &FxHashSet<EventId> {
        self.trained.get_or_init(|| {
            let mut trained = FxHashSet::default();
            for role in [Role::Backward, Role::FusedStep] {
                for (_, call) in self.calls(role) {
                    for value in call.receiver.iter().chain(call.arguments.iter().map(|a| &a.value))
                    {
                        trained.extend(value.origins(self.terms()));
                    }
                }
            }
            trained
        })
    }

    /// A number that a loop counts, of unknown value.
    pub fn is_counter(&self, term: Term) -> bool {
        self.run.counters.contains(&term)
    }

    /// The condition is that a handler was entered for an error that one rank alone may have.
    pub fn is_caught(&self, condition: Term) -> bool {
        self.run.caught.contains(&condition)
    }

    /// The condition picks one of several items of a container: a loop over it takes each in
    /// turn.
    pub fn is_selection(&self, condition: Term) -> bool {
        let terms = self.terms();
        self.mentions(condition, &|kind| {
            matches!(kind, TermKind::Happened(_))
                && terms.find(kind).is_some_and(|term| self.run.selectors.contains(&term))
        })
    }

    /// Statements and the like that were run to understand the program: the measure of work.
    pub fn n_steps(&self) -> u64 {
        self.run.steps
    }

    /// A row's flag, of a call.
    pub fn has_flag(&self, call: &Call<'p>, flag: Flag) -> bool {
        call.row.is_some_and(|row| row.has(flag))
    }

    /// The source text of an expression.
    pub fn text(&self, site: Site) -> &'p str {
        self.project.file(site.file).text.get(site.span.range()).unwrap_or_default()
    }

    pub fn site_of(&self, file: FileId, expr: &Expr) -> Site {
        Site { file, span: expr.span }
    }
}
