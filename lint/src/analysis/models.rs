//! Questions about models: what they are made of, which code runs inside their forward, and
//! where their attributes are mentioned. It reports nothing.

use rustc_hash::{FxHashMap, FxHashSet};

use super::facts::Wrapper;
use super::{
    ClassRef, EventId, EventKind, FunctionRef, Given, ObjectClass, ObjectId, Program, Term,
    TermKind, Value, Via,
};
use crate::model::{
    Expr, ExprKind, FileId, FormatPiece, FunctionIndex, Literal, Module, Name, Part, Site, Span,
    Stmt, StmtKind,
};
use crate::project::{Project, SourceFile};
use crate::table::{Flag, Role};

/// How a function is used by the program, the most telling use.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum RanIn {
    /// Nobody is seen to call it.
    Orphan,
    /// Outside of every forward.
    Elsewhere,
    /// In the forward of a module, or called by one.
    Forward,
}

/// What a mention does with the attribute.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Access {
    Read,
    /// `x.name = ..`, `x.name += ..`
    Written,
    /// `x.name[..] = ..`
    ItemWritten,
}

/// What the expression around another one does with it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Around {
    /// Looks up a member of it.
    Attribute(Name),
    /// Calls it.
    Callee,
    /// Gives it to a call; the callee's dotted name, empty if it has none.
    Argument(Box<[Name]>),
    /// Looks up an item of it.
    Item,
    /// Takes a slice of it: `x[:n]`, `x[:, 0]`, `x[None]`.
    Slice,
    /// Computes with it.
    Operand,
    Other,
}

/// An attribute in the program's text: `value.name`, or `getattr(value, "name")`.
#[derive(Clone, Debug)]
pub struct Mention {
    pub name: Name,
    pub site: Site,
    /// The expressions around it, innermost first, two at most.
    pub around: [Option<Around>; 2],
    /// The last name of the receiver.
    pub of: Option<Name>,
    /// The receiver is `self`.
    pub of_self: bool,
    /// The receiver is a wrapper's `.module`.
    pub of_inner: bool,
    pub access: Access,
    /// The innermost function, lambdas left out.
    pub function: Option<FunctionRef>,
    /// The method whose `self` is in sight.
    pub method: Option<FunctionRef>,
    pub class: Option<ClassRef>,
    /// The tests of `if`s around it in its function; whether it stands where they hold.
    pub tests: Vec<(Site, bool)>,
}

/// Attributes that are mentioned by a name made at run time.
#[derive(Clone, Copy, Debug)]
pub struct Dynamic {
    /// What the name surely begins with.
    pub prefix: Name,
    pub of_self: bool,
    pub method: Option<FunctionRef>,
    pub class: Option<ClassRef>,
}

/// The attributes that the text of a file mentions, in its order.
#[derive(Debug, Default)]
pub struct Mentions {
    known: Vec<Mention>,
    dynamic: Vec<Dynamic>,
}

impl Mentions {
    fn of(file: &SourceFile) -> Self {
        let mut mentions = Self::default();
        Walk::of(file.id, &file.module, &mut mentions).block(&file.module.body);
        mentions
    }
}

/// What the questions below look up.
#[derive(Debug, Default)]
pub struct Index {
    /// Those that the program reaches.
    files: Vec<FileId>,
    ran: FxHashMap<FunctionRef, RanIn>,
    /// What is stored on each object, by event: attributes and added modules.
    stores: FxHashMap<Term, Vec<EventId>>,
}

/// The attributes that the files of a program mention.
#[derive(Clone, Copy)]
pub struct Models<'a> {
    files: &'a [FileId],
    project: &'a Project,
}

impl<'a> Models<'a> {
    fn texts(self) -> impl Iterator<Item = &'a Mentions> {
        let file = |id: &FileId| self.project.file(*id);
        // The same for all programs.
        self.files.iter().map(file).map(|file| file.mentions.get_or_init(|| Mentions::of(file)))
    }

    pub fn mentions(self) -> impl Iterator<Item = &'a Mention> {
        self.texts().flat_map(|text| &text.known)
    }

    pub fn dynamic(self) -> impl Iterator<Item = &'a Dynamic> {
        self.texts().flat_map(|text| &text.dynamic)
    }
}

impl Program<'_> {
    pub fn models(&self) -> Models<'_> {
        Models { files: &self.index().files, project: self.project() }
    }

    fn index(&self) -> &Index {
        self.models.get_or_init(|| {
            let mut index = Index::default();
            let files = self.project().files.iter().map(|file| file.id);
            index.files = files.filter(|&file| self.reaches(file)).collect();
            index.ran = self.functions_ran();
            for event in self.events() {
                let holder = match &event.kind {
                    EventKind::AttributeStore { of, .. } => Some(*of),
                    EventKind::Call(call) if call.role == Role::AddModule => {
                        call.receiver.as_ref().and_then(Value::single)
                    }
                    _ => None,
                };
                if let Some(holder) = holder {
                    index.stores.entry(self.run.stored(holder)).or_default().push(event.id);
                }
            }
            index
        })
    }

    fn functions_ran(&self) -> FxHashMap<FunctionRef, RanIn> {
        let mut ran: FxHashMap<FunctionRef, RanIn> = FxHashMap::default();
        let mut inside = vec![false; self.run.frames.len()];
        for (at, frame) in self.run.frames.iter().enumerate() {
            let by_caller = frame.caller.is_some_and(|c| inside[c.0 as usize]);
            let is_forward = frame.function.is_some_and(|f| {
                super::interp::is_forward(&self.function(f).name)
                    && frame.class.is_some_and(|c| self.is_module_class(c))
            });
            inside[at] = by_caller || is_forward;
            let Some(function) = frame.function else { continue };
            let now = match (inside[at], frame.orphan) {
                (true, _) => RanIn::Forward,
                (false, true) => RanIn::Orphan,
                (false, false) => RanIn::Elsewhere,
            };
            let known = ran.entry(function).or_insert(now);
            *known = now.max(*known);
        }
        ran
    }

    /// How the program uses a function.
    pub fn ran_in(&self, function: FunctionRef) -> RanIn {
        self.index().ran.get(&function).copied().unwrap_or(RanIn::Orphan)
    }

    /// What is stored on a module under names, or added to it, in order.
    pub fn stored_on(&self, module: Term) -> &[EventId] {
        self.index().stores.get(&module).map(Vec::as_slice).unwrap_or_default()
    }

    /// The class and its bases in the project, nearest first.
    pub fn lineage(&self, class: ClassRef) -> Vec<ClassRef> {
        self.run.ancestors(class)
    }

    /// All bases are of the project, or `torch.nn.Module`: no unseen code uses the attributes.
    pub fn has_known_bases(&self, class: ClassRef) -> bool {
        self.lineage(class).into_iter().all(|class| {
            let Some(info) = self.classes().get(&class) else { return false };
            let written = self.class(class).bases.len();
            info.bases.len() == written
                && info.bases.iter().all(|&base| match self.terms().kind(base) {
                    TermKind::Class(_) => true,
                    TermKind::Outside(name) => {
                        let name = self.table().get(*name).and_then(|r| r.name).unwrap_or(*name);
                        matches!(
                            &*name,
                            "torch.nn.Module" | "object" | "abc.ABC" | "typing.Generic"
                        )
                    }
                    _ => false,
                })
        })
    }

    /// The modules inside a module, itself first: in attributes, in lists and in containers.
    pub fn modules_within(&self, root: Term) -> Vec<Term> {
        let mut found = Vec::new();
        let mut met = FxHashSet::default();
        let mut queue = vec![self.run.stored(root)];
        while let Some(term) = queue.pop() {
            if !met.insert(term) {
                continue;
            }
            if self.is_module(term) {
                found.push(term);
            }
            queue.extend(self.held_by(term));
        }
        found
    }

    /// What a module or container holds directly.
    fn held_by(&self, term: Term) -> Vec<Term> {
        let mut held = Vec::new();
        if !matches!(self.terms().kind(term), TermKind::Object(_) | TermKind::Tuple(_)) {
            return held;
        }
        for &event in self.stored_on(term) {
            match &self.event(event).kind {
                EventKind::AttributeStore { value, .. } => held.extend(value.terms()),
                EventKind::Call(call) => {
                    held.extend(call.arguments.iter().flat_map(|a| a.value.terms()));
                }
                _ => {}
            }
        }
        let object = self.object_of(term);
        let is_container = object.is_none_or(|o| {
            matches!(o.class, ObjectClass::List | ObjectClass::Dict)
                || matches!(o.role, Role::ModuleList | Role::Sequential | Role::ParameterList)
        });
        if is_container {
            held.extend(self.contents(term).iter().flat_map(Value::terms));
            if let Some(object) = object {
                held.extend(object.arguments.iter().flat_map(|a| a.value.terms()));
            }
        }
        held.into_iter().map(|t| self.run.stored(t)).collect()
    }

    /// The wrappers of a kind, each with the modules inside.
    pub fn wrapped_models(&self, kind: Wrapper) -> Vec<(ObjectId, Vec<Term>)> {
        let wrappers = self.objects().iter().filter(|o| self.wrapper_kind(o.id) == Some(kind));
        wrappers
            .map(|wrapper| {
                let module = self.wrapped_module(wrapper.id);
                let roots = module.iter().flat_map(|m| m.terms());
                (wrapper.id, roots.flat_map(|root| self.modules_within(root)).collect())
            })
            .collect()
    }

    /// A parameter that requires a gradient, or a module that surely has one.
    pub fn has_parameters(&self, term: Term) -> bool {
        self.has_parameters_within(term, 6)
    }

    fn has_parameters_within(&self, term: Term, depth: u32) -> bool {
        let Some(object) = self.object_of(term) else { return false };
        if depth == 0 {
            return false;
        }
        match object.role {
            Role::Parameter => !object.arguments.iter().any(|a| {
                (a.name.is_some_and(|n| &*n == "requires_grad") || a.position == Some(1))
                    && self.as_bool(&a.value) != Some(true)
            }),
            Role::Layer if self.class_of(object).is_none() => {
                let affine = object.arguments.iter().find(|a| {
                    a.name.is_some_and(|n| matches!(&*n, "affine" | "elementwise_affine"))
                });
                let is_plain = affine.is_some_and(|a| self.as_bool(&a.value) != Some(true));
                object.row.is_some_and(|row| !row.has(Flag::NoParameters)) && !is_plain
            }
            Role::WrapDdp | Role::WrapDp | Role::Loss => false,
            _ => {
                self.is_module(term)
                    && self
                        .held_by(term)
                        .into_iter()
                        .any(|t| t != term && self.has_parameters_within(t, depth - 1))
            }
        }
    }

    /// A layer that keeps buffers: BatchNorm and the like.
    pub fn has_buffers(&self, term: Term) -> bool {
        let registered = || {
            self.calls(Role::RegisterBuffer).any(|(_, call)| {
                call.receiver.as_ref().is_some_and(|r| r.terms().any(|t| t == term))
            })
        };
        self.object_of(term).is_some_and(|o| o.row.is_some_and(|r| r.has(Flag::Buffers)))
            || registered()
    }

    /// An option of a wrapper's constructor: set to that, left at its default, or unknown.
    pub fn wrapper_option(&self, wrapper: ObjectId, name: &str) -> Option<Option<bool>> {
        let call = self.constructor(self.object(wrapper))?;
        match call.argument(name) {
            Given::Known(argument) => Some(Some(self.as_bool(&argument.value)?)),
            Given::Absent => Some(None),
            Given::Opaque => None,
        }
    }

    /// Some forward through the wrapper feeds a backward.
    pub fn trains_through(&self, wrapper: ObjectId) -> bool {
        self.forwards().any(|(event, forward)| {
            forward.via == Via::Wrapper(wrapper) && self.trained().contains(&event.id)
        })
    }
}

/// Walks over a file's text.
struct Walk<'p, 'i> {
    file: FileId,
    module: &'p Module,
    mentions: &'i mut Mentions,
    function: Option<FunctionRef>,
    method: Option<FunctionRef>,
    class: Option<ClassRef>,
    around: Vec<&'p Expr>,
    tests: Vec<(Span, bool)>,
}

impl<'p, 'i> Walk<'p, 'i> {
    fn of(file: FileId, module: &'p Module, mentions: &'i mut Mentions) -> Self {
        let (function, method, class) = (None, None, None);
        let (around, tests) = (Vec::new(), Vec::new());
        Self { file, module, mentions, function, method, class, around, tests }
    }

    fn block(&mut self, body: &'p [Stmt]) {
        for statement in body {
            if let StmtKind::If { test, body, otherwise } = &statement.kind {
                self.expr(test, Access::Read);
                for (holds, arm) in [(true, body), (false, otherwise)] {
                    self.tests.push((test.span, holds));
                    self.block(arm);
                    self.tests.pop();
                }
                continue;
            }
            statement.each_part(&mut |part| self.part(part));
        }
    }

    fn part(&mut self, part: Part<'p>) {
        match part {
            Part::Expr(expr) => self.expr(expr, Access::Read),
            Part::Target(expr) => self.target(expr),
            Part::Block(body) => self.block(body),
            Part::Function(index) => self.function(index),
            Part::Class(index) => {
                let class = self.class.replace(ClassRef { file: self.file, index });
                let method = self.method.take();
                self.block(&self.module.class(index).body);
                (self.class, self.method) = (class, method);
            }
        }
    }

    fn function(&mut self, index: FunctionIndex) {
        let definition = self.module.function(index);
        let outer = (self.function, self.method);
        let tests = std::mem::take(&mut self.tests);
        let around = std::mem::take(&mut self.around);
        let function = FunctionRef { file: self.file, index };
        let is_lambda = &*definition.name == "<lambda>";
        if !is_lambda {
            self.function = Some(function);
        }
        if self.method.is_none() && definition.class.is_some() {
            self.method = Some(function);
        }
        for parameter in &definition.parameters {
            parameter.default.iter().for_each(|e| self.expr(e, Access::Read));
        }
        self.block(&definition.body);
        (self.function, self.method) = outer;
        self.tests = tests;
        self.around = around;
    }

    fn target(&mut self, expr: &'p Expr) {
        match &expr.kind {
            ExprKind::Attribute { .. } => self.expr(expr, Access::Written),
            ExprKind::Index { value, index } => {
                self.expr(index, Access::Read);
                self.around.push(expr);
                self.expr(value, Access::ItemWritten);
                self.around.pop();
            }
            ExprKind::Collection { items, .. } => items.iter().for_each(|e| self.target(e)),
            ExprKind::Starred(inner) => self.target(inner),
            _ => self.expr(expr, Access::Read),
        }
    }

    fn expr(&mut self, expr: &'p Expr, access: Access) {
        match &expr.kind {
            ExprKind::Attribute { value, name, .. } => self.mention(expr, value, *name, access),
            ExprKind::Call { callee, arguments } => {
                let named = matches!(&callee.kind, ExprKind::Name(n) if &**n == "getattr");
                if let (true, [of, name, ..]) = (named, arguments.as_slice()) {
                    match &name.value.kind {
                        ExprKind::Literal(Literal::Str(name)) => {
                            self.mention(expr, &of.value, *name, access);
                        }
                        other => self.dynamic(&of.value, prefix_of(other)),
                    }
                }
            }
            _ => {}
        }
        self.around.push(expr);
        // What is stored in an item of an item is stored in the outer one, too.
        let inner = match (&expr.kind, access) {
            (ExprKind::Index { value, index }, Access::ItemWritten) => {
                self.expr(index, Access::Read);
                Some(&**value)
            }
            _ => None,
        };
        match inner {
            Some(value) => self.expr(value, Access::ItemWritten),
            None => expr.each_part(&mut |part| self.part(part)),
        }
        self.around.pop();
    }

    fn mention(&mut self, expr: &'p Expr, of: &'p Expr, name: Name, access: Access) {
        let outer = self.around.iter().rev().copied();
        let mut around = [expr].into_iter().chain(outer.clone()).zip(outer);
        let mut next = || around.next().map(|(inner, outer)| around_of(inner, outer));
        let around = [next(), next()];
        let of_inner = matches!(&of.kind, ExprKind::Attribute { name, .. } if &**name == "module");
        self.mentions.known.push(Mention {
            name,
            site: Site { file: self.file, span: expr.span },
            around,
            of: of.last_name(),
            of_self: is_self(of),
            of_inner,
            access,
            function: self.function,
            method: self.method,
            class: self.class,
            tests: self
                .tests
                .iter()
                .map(|&(span, holds)| (Site { file: self.file, span }, holds))
                .collect(),
        });
    }

    fn dynamic(&mut self, of: &'p Expr, prefix: Name) {
        let (method, class) = (self.method, self.class);
        self.mentions.dynamic.push(Dynamic { prefix, of_self: is_self(of), method, class });
    }
}

fn around_of(inner: &Expr, outer: &Expr) -> Around {
    match &outer.kind {
        ExprKind::Attribute { name, .. } => Around::Attribute(*name),
        ExprKind::Call { callee, .. } if callee.span == inner.span => Around::Callee,
        ExprKind::Call { callee, .. } => Around::Argument(callee.path().unwrap_or_default().into()),
        ExprKind::Index { value, index } if value.span == inner.span => {
            let slices = |e: &Expr| {
                matches!(e.kind, ExprKind::Slice { .. } | ExprKind::Literal(Literal::None))
            };
            let is_slice = match &index.kind {
                ExprKind::Collection { items, .. } => items.iter().any(slices),
                _ => slices(index),
            };
            if is_slice { Around::Slice } else { Around::Item }
        }
        ExprKind::Binary { .. } | ExprKind::Unary { .. } | ExprKind::Compare { .. } => {
            Around::Operand
        }
        _ => Around::Other,
    }
}

fn is_self(expr: &Expr) -> bool {
    matches!(&expr.kind, ExprKind::Name(name) if &**name == "self")
}

/// What a text made at run time begins with.
fn prefix_of(kind: &ExprKind) -> Name {
    match kind {
        ExprKind::Literal(Literal::Str(text)) => *text,
        ExprKind::Format(pieces) => match pieces.first() {
            Some(FormatPiece::Text(text)) => Name::new(text),
            _ => Name::new(""),
        },
        ExprKind::Binary { left, .. } => prefix_of(&left.kind),
        // `"layer{}".format(i)`
        ExprKind::Call { callee, .. } => match &callee.kind {
            ExprKind::Attribute { value, name, .. } if &**name == "format" => match &value.kind {
                ExprKind::Literal(Literal::Str(text)) => {
                    Name::new(text.split('{').next().unwrap_or_default())
                }
                _ => Name::new(""),
            },
            _ => Name::new(""),
        },
        _ => Name::new(""),
    }
}
