//! Questions that several rules ask of a program.

use super::{
    Call, ClassRef, Const, Event, EventKind, Frame, Object, ObjectClass, ObjectId, PathId, Program,
    RankKind, Reach, SAMPLES, Sample, Term, TermKind, Value,
};
use crate::model::{BinaryOp, ExprKind, Name, Site};
use crate::table::Role;

/// The flag by which recipes start the ranks of a node themselves; without it a launcher does.
const STARTS_RANKS: &str = "multiprocessing_distributed";

fn is_flag(kind: &TermKind) -> bool {
    match kind {
        TermKind::Attribute(_, name) | TermKind::Parameter { name, .. } => &**name == STARTS_RANKS,
        _ => false,
    }
}

/// Which wrapper it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Wrapper {
    /// `DistributedDataParallel`.
    Ddp,
    /// `DataParallel`.
    Dp,
}

impl<'p> Program<'p> {
    /// What kind of wrapper an object is.
    pub fn wrapper_kind(&self, id: ObjectId) -> Option<Wrapper> {
        match self.object(id).role {
            Role::WrapDdp => Some(Wrapper::Ddp),
            Role::WrapDp => Some(Wrapper::Dp),
            _ => None,
        }
    }

    /// The kind of wrapper that a term is.
    pub fn wrapper_of(&self, term: Term) -> Option<(ObjectId, Wrapper)> {
        match *self.terms().kind(term) {
            TermKind::Object(id) => Some((id, self.wrapper_kind(id)?)),
            _ => None,
        }
    }

    /// The wrapper inside whose forward an event stands.
    pub fn wrapper_around(&self, event: &Event<'p>) -> Option<(ObjectId, Wrapper)> {
        let id = event.modes.wrapper?;
        Some((id, self.wrapper_kind(id)?))
    }

    /// Some model is wrapped with that.
    pub fn wraps_with(&self, wrapper: Wrapper) -> bool {
        self.objects().iter().any(|o| self.wrapper_kind(o.id) == Some(wrapper))
    }

    /// The class of the project that an object is an instance of.
    pub fn class_of(&self, object: &Object<'p>) -> Option<ClassRef> {
        match object.class {
            ObjectClass::Project(class) => Some(class),
            _ => None,
        }
    }

    /// The outside class that an object is an instance of.
    pub fn outside_class(&self, object: &Object<'p>) -> Option<Name> {
        match object.class {
            ObjectClass::Outside(name) => Some(name),
            _ => None,
        }
    }

    /// Everything a list, tuple or dict is known to hold.
    pub fn contents(&self, container: Term) -> Vec<Value> {
        match self.terms().kind(container) {
            TermKind::Tuple(items) => items.iter().map(|&t| Value::of(self.terms(), t)).collect(),
            _ => self.run.contents_of(container),
        }
    }

    /// A value on one rank, if the text settles it.
    pub fn value_on(&self, value: &Value, sample: Sample) -> Option<Const> {
        let terms = self.terms();
        let mut found = None;
        for alternative in &value.alternatives {
            let holds = terms.evaluate(alternative.when, sample);
            match holds.map(super::term::truth) {
                Some(false) => {}
                Some(true) if found.is_none() => {
                    found = Some(terms.evaluate(alternative.term, sample)?);
                }
                _ => return None,
            }
        }
        found
    }

    /// A value on all sample ranks.
    pub fn value_on_all(&self, value: &Value) -> Option<[Const; 4]> {
        let mut all = [Const::None; 4];
        for (slot, sample) in all.iter_mut().zip(SAMPLES) {
            *slot = self.value_on(value, sample)?;
        }
        Some(all)
    }

    /// Some condition of the path holds a term that `wanted` is true of.
    pub fn tests(&self, path: PathId, wanted: &dyn Fn(&TermKind) -> bool) -> bool {
        self.conditions(path).any(|node| self.mentions(node.condition, wanted))
    }

    /// A term holds, at some depth, a term that `wanted` is true of.
    pub fn mentions(&self, term: Term, wanted: &dyn Fn(&TermKind) -> bool) -> bool {
        let kind = self.terms().kind(term);
        if wanted(kind) {
            return true;
        }
        if self.terms().is_huge(term) {
            return false;
        }
        let any = |parts: &[Term]| parts.iter().any(|&t| self.mentions(t, wanted));
        match kind {
            TermKind::Attribute(of, _) | TermKind::Not(of) | TermKind::Negative(of) => {
                self.mentions(*of, wanted)
            }
            TermKind::Item(a, b) | TermKind::Binary(_, a, b) | TermKind::Compare(_, a, b) => {
                self.mentions(*a, wanted) || self.mentions(*b, wanted)
            }
            TermKind::Apply(_, parts)
            | TermKind::And(parts)
            | TermKind::Or(parts)
            | TermKind::Tuple(parts)
            | TermKind::Text(parts) => any(parts),
            _ => false,
        }
    }

    /// A condition on a setting: an argument, a parameter nobody fills, a question to the
    /// outside. Two such conditions may well be one.
    pub fn is_setting(&self, condition: Term) -> bool {
        let terms = self.terms();
        self.mentions(condition, &|kind| match kind {
            TermKind::Attribute(..) | TermKind::Parameter { .. } => {
                terms.find(kind).is_none_or(|t| terms.rank_kind(t).is_none())
            }
            TermKind::Apply(..) | TermKind::Outside(_) | TermKind::Item(..) => true,
            // The answer of something unseen.
            TermKind::Opaque { .. } => terms.find(kind).is_some_and(|t| {
                terms.taint(t) == super::Taint::NONE && terms.origins(t).is_empty()
            }),
            _ => false,
        })
    }

    /// Something unknown decides whether the path is taken that may well be a rank test: a
    /// parameter or attribute nobody is seen to set, the result of an unseen call, or something
    /// that a rank went into.
    pub fn hangs_on_unseen_test(&self, path: PathId) -> bool {
        let terms = self.terms();
        self.conditions(path).any(|node| {
            let is_unseen = |kind: &TermKind| match kind {
                TermKind::Parameter { .. } => true,
                TermKind::Attribute(of, _) => !matches!(terms.kind(*of), TermKind::Object(id)
                        if self.object(*id).class == ObjectClass::Arguments),
                // A rank in a group that is not known.
                TermKind::Opaque { .. } => {
                    terms.find(kind).is_some_and(|t| terms.taint(t).has(super::Taint::RANK))
                }
                _ => false,
            };
            // Two ranks that surely pass are more than one.
            let on = SAMPLES.map(|s| terms.evaluate(node.condition, s));
            let n_pass = on.iter().filter(|v| v.is_some_and(super::term::truth)).count();
            n_pass < 2 && on.contains(&None) && self.mentions(node.condition, &is_unseen)
        })
    }

    /// Only one process of a run, or one of each node, gets there; or none.
    pub fn is_guarded(&self, path: PathId) -> bool {
        matches!(
            self.reach(path),
            Reach::Main | Reach::LocalMain | Reach::Nobody | Reach::Others | Reach::Some
        )
    }

    /// The place under the rank test that leads to an event: the event's own, or the call of a
    /// function that runs it.
    pub fn guarded_site(&self, event: &Event<'p>) -> Site {
        let tests: Vec<_> = self
            .conditions(event.path)
            .filter(|node| self.terms().taint(node.condition).has(super::Taint::RANK))
            .map(|node| node.frame)
            .collect();
        let Some(tested) = tests.last() else { return event.site };
        let mut site = event.site;
        let mut at = event.frame;
        while at != *tested {
            let frame = self.frame(at);
            match (frame.call, frame.caller) {
                (Some(call), Some(caller)) if self.names_what_it_runs(frame, call) => {
                    site = call;
                    at = caller;
                }
                _ => return event.site,
            }
        }
        site
    }

    /// A call says by its name what runs, unlike one that is handed a closure.
    fn names_what_it_runs(&self, frame: &Frame, call: Site) -> bool {
        let Some(function) = frame.function else { return true };
        let name = self.function(function).name;
        let text = self.text(call);
        let callee = text.split('(').next().unwrap_or_default();
        let last = callee.rsplit(|c: char| !(c.is_alphanumeric() || c == '_')).next();
        let is_plain = callee.chars().all(|c| c.is_alphanumeric() || c == '_');
        let is_called = !is_plain || name.starts_with("__") || last == Some(&*name);
        &*name != "<lambda>" && (is_called || frame.receiver.is_some())
    }

    /// All ranks get there where the program leaves it to a launcher to start them, and only
    /// there: it has a flag of its own by which it starts them itself.
    pub fn all_run_when_launched(&self, event: &Event<'p>) -> bool {
        let terms = self.terms();
        let off = |term: Term| is_flag(terms.kind(term)).then_some(Const::Bool(false));
        let holds = |path: PathId| {
            self.tests(path, &is_flag)
                && SAMPLES.iter().all(|&sample| {
                    self.conditions(path).all(|node| {
                        let value = terms.evaluate_with(node.condition, sample, &off, 64);
                        value.is_none_or(super::term::truth)
                    })
                })
        };
        !event.modes.spawned
            && !self.frame(event.frame).orphan
            && holds(event.path)
            && self.calls(Role::InitGroup).any(|(init, _)| !init.modes.spawned && holds(init.path))
    }

    /// The test before an event that asks whether the program starts the ranks itself.
    pub fn asked_who_starts(&self, event: &Event<'p>) -> Option<Site> {
        let mut frames = vec![event.frame];
        while let Some(caller) = frames.last().and_then(|&id| self.frame(id).caller) {
            frames.push(caller);
        }
        let asks = |earlier: &&Event<'p>| {
            matches!(earlier.kind, EventKind::Test { .. })
                && frames.contains(&earlier.frame)
                && earlier.loops.is_some()
                && self.text(earlier.site).contains(STARTS_RANKS)
        };
        self.events()[..event.id.0 as usize].iter().rev().find(asks).map(|test| test.site)
    }

    /// The line of a place, from 1.
    pub fn line_of(&self, site: Site) -> usize {
        let text = &self.project.file(site.file).text;
        1 + text[..site.span.start as usize].matches('\n').count()
    }

    /// The user's own words for what a call is made on: `model` of `model.module(x)`.
    pub fn receiver_text(&self, event: &Event<'p>) -> Option<&'p str> {
        let expr = event.expr?;
        let callee = match &expr.kind {
            ExprKind::Call { callee, .. } => callee,
            _ => expr,
        };
        let receiver = match &callee.kind {
            ExprKind::Attribute { value, .. } => value,
            _ => callee,
        };
        Some(self.text(Site { file: event.site.file, span: receiver.span }))
    }

    /// The user's own words for a callee: `model.module` of `model.module(x)`.
    pub fn callee_text(&self, event: &Event<'p>) -> Option<&'p str> {
        match &event.expr?.kind {
            ExprKind::Call { callee, .. } => {
                Some(self.text(Site { file: event.site.file, span: callee.span }))
            }
            _ => None,
        }
    }

    /// The attribute stores on an object, in order.
    pub fn stores_on(&self, of: Term) -> impl Iterator<Item = (&Event<'p>, Name, &Value)> {
        self.events().iter().filter_map(move |event| match &event.kind {
            EventKind::AttributeStore { of: on, name, value, .. } if *on == of => {
                Some((event, *name, value))
            }
            _ => None,
        })
    }

    /// The event that made an object, as a call.
    pub fn constructor(&self, object: &Object<'p>) -> Option<&Call<'p>> {
        match &self.event(object.event?).kind {
            EventKind::Call(call) => Some(call),
            _ => None,
        }
    }
}

/// Files, output and batches.
impl<'p> Program<'p> {
    /// The value differs between the ranks of a run.
    pub fn depends_on_rank(&self, value: &Value) -> bool {
        if let Some(all) = self.value_on_all(value) {
            return all.iter().any(|v| *v != all[0]);
        }
        let terms = self.terms();
        value.alternatives.iter().any(|alternative| {
            let holds = SAMPLES.map(|sample| terms.evaluate(alternative.when, sample));
            terms.taint(alternative.term).has(super::Taint::RANK)
                || holds.iter().any(|h| h.is_some() && *h != holds[0])
        })
    }

    /// The constant `None`.
    pub fn as_none(&self, term: Term) -> Option<()> {
        (term == self.terms().none).then_some(())
    }

    /// The argument that says which file a call writes or reads.
    pub fn file_argument<'c>(&self, call: &'c Call<'p>) -> Option<&'c Value> {
        let path = call.row?.path?;
        if &*path == "self" {
            return call.receiver.as_ref();
        }
        call.arguments.iter().find(|a| a.name == Some(path)).map(|a| &a.value)
    }

    /// A file on disk, the same for every rank: no buffer in memory, no rank in the path.
    pub fn names_a_shared_file(&self, call: &Call<'p>) -> bool {
        let Some(path) = self.file_argument(call) else { return false };
        if path.taint(self.terms()).has(super::Taint::RANK) {
            return false;
        }
        !path.terms().any(|term| self.is_private_file(term, 6))
    }

    /// In memory, temporary, or named by something of this process alone.
    fn is_private_file(&self, term: Term, depth: u32) -> bool {
        if depth == 0 {
            return false;
        }
        let (taint, _) = self.run.deep_facts_of(term);
        if taint.has(super::Taint::RANK) {
            return true;
        }
        match self.terms().kind(term) {
            TermKind::Object(_) => {
                let Some(object) = self.object_of(term) else { return false };
                let class = self.outside_class(object).map_or("", |n| n.as_str());
                let named = class.contains("BytesIO")
                    || class.contains("StringIO")
                    || class.contains("tempfile")
                    || class.contains("Temp");
                named
                    || object
                        .arguments
                        .iter()
                        .any(|a| a.value.terms().any(|t| self.is_private_file(t, depth - 1)))
            }
            TermKind::Text(parts) | TermKind::Apply(_, parts) | TermKind::Tuple(parts) => {
                parts.iter().any(|&t| self.is_private_file(t, depth - 1))
            }
            TermKind::Binary(_, a, b) => {
                self.is_private_file(*a, depth - 1) || self.is_private_file(*b, depth - 1)
            }
            TermKind::Attribute(of, _) => self.is_private_file(*of, depth - 1),
            TermKind::Opaque { site, .. } => {
                let text = self.text(*site);
                text.starts_with("tempfile.") || text.starts_with("TemporaryDirectory(")
            }
            _ => false,
        }
    }

    /// The file a call writes, in the user's words.
    pub fn file_text(&self, call: &Call<'p>, event: &Event<'p>) -> Option<String> {
        let path = call.row?.path?;
        let argument = call.arguments.iter().find(|a| a.name == Some(path))?;
        let text = self.text(Site { file: event.site.file, span: argument.expr.span });
        (text.len() < 60 && !text.contains('\n')).then(|| format!("`{text}`"))
    }

    /// Whether a file exists decides whether the path is taken.
    pub fn tests_for_a_file(&self, path: PathId) -> bool {
        self.conditions(path).any(|node| {
            self.terms().origins(node.condition).iter().any(|&origin| {
                self.event(origin).call().is_some_and(|c| c.role == Role::PathExists)
            })
        })
    }

    /// Rank 0 goes first here: the others wait in a barrier before, rank 0 in one behind.
    pub fn main_goes_first(&self, event: &Event<'p>) -> bool {
        let barrier = |wanted: &dyn Fn(&Event<'p>) -> bool| {
            self.calls(Role::Collective).any(|(e, call)| {
                call.row.and_then(|r| r.kind) == Some(crate::table::CollectiveKind::Barrier)
                    && wanted(e)
            })
        };
        barrier(&|e| e.id < event.id && !matches!(self.reach(e.path), Reach::Every | Reach::Main))
            && barrier(&|e| {
                e.id > event.id && matches!(self.reach(e.path), Reach::Main | Reach::LocalMain)
            })
    }

    /// The path is taken only where the run is not distributed at all.
    pub fn runs_only_alone(&self, path: PathId) -> bool {
        self.reach(path) == Reach::Nobody
    }

    /// The program puts a `print` of its own in the place of the built-in one.
    pub fn replaces_print(&self) -> bool {
        self.events().iter().any(|event| match &event.kind {
            EventKind::AttributeStore { of, name, .. } => {
                &**name == "print"
                    && matches!(self.terms().kind(*of), TermKind::Outside(module)
                        if matches!(&**module, "builtins" | "__builtin__" | "__builtins__"))
            }
            _ => false,
        })
    }

    /// The program turns loggers off, or sets their level, under a rank test.
    pub fn silences_loggers(&self) -> bool {
        let by_level = self.calls(Role::SetLogLevel).any(|(event, call)| {
            self.reach(event.path) != Reach::Every
                || call.arguments.iter().any(|a| self.depends_on_rank(&a.value))
        });
        by_level
            || self.events().iter().any(|event| match &event.kind {
                EventKind::AttributeStore { name, value, .. } => {
                    matches!(&**name, "disabled" | "propagate" | "level" | "handlers")
                        && (self.reach(event.path) != Reach::Every || self.depends_on_rank(value))
                }
                _ => false,
            })
    }

    /// The loss is weighted by counts that the ranks told each other, or the runtime does it.
    pub fn weights_by_counts(&self) -> bool {
        let terms = self.terms();
        for role in [Role::Backward, Role::FusedStep] {
            for (_, call) in self.calls(role) {
                let weighted =
                    call.receiver.as_ref().and_then(|r| self.object_in(r)).is_some_and(|o| {
                        self.outside_class(o).is_some_and(|n| n.ends_with("Weighted"))
                    });
                let values = call.receiver.iter().chain(call.arguments.iter().map(|a| &a.value));
                let told = values.flat_map(|v| v.origins(terms)).any(|origin| {
                    self.event(origin).call().is_some_and(|c| c.role == Role::Collective)
                });
                if weighted || told {
                    return true;
                }
            }
        }
        false
    }

    pub fn all_loops(&self) -> impl Iterator<Item = (super::LoopId, &super::LoopNode)> {
        self.run.loops.iter().enumerate().map(|(i, n)| (super::LoopId(i as u32), n))
    }

    /// A loop over `over` walks over what `term` gives: `enumerate(loader)`, `tqdm(loader)`,
    /// `sampler.epoch(e)`.
    pub fn walks(&self, over: Term, term: Term) -> bool {
        if over == term {
            return true;
        }
        let Some(object) = self.object_of(term) else { return false };
        let made_by = object.event;
        let from = self.run.deep_facts_of(over).1;
        made_by.is_some_and(|event| from.contains(&event))
            || self.calls(Role::SetEpoch).any(|(_, call)| {
                call.result.single() == Some(over)
                    && call.receiver.as_ref().and_then(Value::single) == Some(term)
            })
    }
}

/// A change of `requires_grad` of a module's parameters.
#[derive(Clone, Copy, Debug)]
pub struct GradientSwitch {
    pub event: super::EventId,
    pub site: Site,
    /// The module whose parameters are switched.
    pub of: Term,
    pub on: bool,
    /// All of that module's parameters, under no further condition.
    pub reaches_all: bool,
    pub path: PathId,
}

/// Modules and their parameters.
impl<'p> Program<'p> {
    /// The modules whose `parameters()` went into a value.
    pub fn modules_behind(&self, parameters: &Value) -> Vec<Term> {
        let mut modules = Vec::new();
        for origin in self.run.deep_origins(parameters) {
            if let EventKind::Call(call) = &self.event(origin).kind
                && matches!(call.role, Role::Parameters | Role::NamedParameters)
            {
                modules.extend(call.receiver.iter().flat_map(Value::terms));
            }
        }
        modules
    }

    /// Every freeze and thaw of parameters, in order.
    pub fn gradient_switches(&self) -> Vec<GradientSwitch> {
        let mut switches = Vec::new();
        for event in self.events() {
            match &event.kind {
                EventKind::AttributeStore { of, name, value, .. } if &**name == "requires_grad" => {
                    // `p.requires_grad = name.startswith("fc")` freezes the others.
                    let by_name = || {
                        value.origins(self.terms()).iter().any(|&origin| {
                            matches!(&self.event(origin).kind, EventKind::Call(c)
                                if c.role == Role::NamedParameters)
                        })
                    };
                    let known = self.as_bool(value).or_else(|| by_name().then_some(false));
                    let Some(on) = known else { continue };
                    let items = Value::of(self.terms(), *of);
                    for module in self.modules_behind(&items) {
                        let of = self.run.stored(module);
                        let reaches_all = !self.is_selected(event) && self.as_bool(value).is_some();
                        let (event, site, path) = (event.id, event.site, event.path);
                        switches.push(GradientSwitch { event, site, of, on, reaches_all, path });
                    }
                }
                EventKind::Call(call) if call.role == Role::RequiresGrad => {
                    let on = call.arguments.first().map_or(Some(true), |a| self.as_bool(&a.value));
                    let (Some(on), Some(receiver)) = (on, call.receiver.as_ref()) else { continue };
                    let mut modules = self.modules_behind(receiver);
                    if modules.is_empty() {
                        modules.extend(receiver.single());
                    }
                    for module in modules {
                        let of = self.run.stored(module);
                        let reaches_all = !self.is_selected(event);
                        let (event, site, path) = (event.id, event.site, event.path);
                        switches.push(GradientSwitch { event, site, of, on, reaches_all, path });
                    }
                }
                _ => {}
            }
        }
        switches
    }

    /// Some parameters are frozen that are not known, or known to be the module's.
    pub fn may_be_frozen(&self, module: Term) -> bool {
        self.gradient_switches()
            .iter()
            .any(|s| !s.on && self.modules_within(s.of).contains(&module))
            || self.events().iter().any(|event| match &event.kind {
                EventKind::AttributeStore { of, name, value, .. } => {
                    let items = Value::of(self.terms(), *of);
                    &**name == "requires_grad"
                        && self.as_bool(value) != Some(true)
                        && self.modules_behind(&items).is_empty()
                }
                _ => false,
            })
    }

    /// A tensor, by the type of the call that made it.
    pub fn is_tensor(&self, term: Term) -> bool {
        self.run.is_tensor(term)
    }

    /// Inside the loop around an event a condition picks some of the items.
    fn is_selected(&self, event: &Event<'p>) -> bool {
        let Some((_, innermost)) = self.loops(event.loops).next() else { return false };
        self.conditions(event.path).any(|node| {
            node.site.file == innermost.site.file && innermost.site.span.contains(node.site.span)
        })
    }

    pub fn as_bool(&self, value: &Value) -> Option<bool> {
        match self.terms().as_const(value.single()?)? {
            Const::Bool(value) => Some(value),
            _ => None,
        }
    }

    /// The two conditions do not contradict each other, as far as is known.
    pub fn can_both_hold(&self, a: Term, b: Term) -> bool {
        let mut literals = Vec::new();
        self.literals(a, true, &mut literals);
        let first = literals.len();
        self.literals(b, true, &mut literals);
        let (of_a, of_b) = literals.split_at(first);
        !of_a.iter().any(|(term, holds)| of_b.contains(&(*term, !holds)))
            && self.settled(a, of_b) != Some(false)
            && self.settled(b, of_a) != Some(false)
            && SAMPLES.iter().any(|&sample| {
                let can = |t| self.terms().evaluate(t, sample).is_none_or(super::term::truth);
                can(a) && can(b)
            })
    }

    /// What these atoms make of a condition.
    fn settled(&self, condition: Term, atoms: &[(Term, bool)]) -> Option<bool> {
        if let Some((_, holds)) = atoms.iter().find(|(term, _)| *term == condition) {
            return Some(*holds);
        }
        if self.terms().is_huge(condition) {
            return None;
        }
        let parts_say = |parts: &[Term], all: bool| {
            let told: Vec<_> = parts.iter().map(|&part| self.settled(part, atoms)).collect();
            if told.contains(&Some(!all)) {
                return Some(!all);
            }
            told.iter().all(Option::is_some).then_some(all)
        };
        match self.terms().kind(condition) {
            TermKind::Not(inner) => self.settled(*inner, atoms).map(|holds| !holds),
            TermKind::And(parts) => parts_say(parts, true),
            TermKind::Or(parts) => parts_say(parts, false),
            _ => None,
        }
    }

    /// What a condition settles, as atoms and whether they hold.
    fn literals(&self, condition: Term, holds: bool, into: &mut Vec<(Term, bool)>) {
        if self.terms().is_huge(condition) {
            return;
        }
        match self.terms().kind(condition) {
            TermKind::And(parts) if holds => {
                parts.iter().for_each(|&p| self.literals(p, holds, into));
            }
            TermKind::Or(parts) if !holds => {
                parts.iter().for_each(|&p| self.literals(p, holds, into));
            }
            TermKind::Not(inner) => return self.literals(*inner, !holds, into),
            TermKind::Const(_) => return,
            _ => {}
        }
        into.push((condition, holds));
    }

    /// A condition can hold where a path is taken.
    pub fn can_hold_at(&self, condition: Term, path: PathId) -> bool {
        self.conditions(path).all(|node| self.can_both_hold(condition, node.condition))
    }

    /// Both paths can be taken in one run.
    pub fn can_both_hold_paths(&self, a: PathId, b: PathId) -> bool {
        self.conditions(a).all(|node| self.can_hold_at(node.condition, b))
    }

    /// A rank that only a function started on one node gets: there it is global too.
    pub fn spawned_on_one_node(&self, value: &Value) -> bool {
        let from_spawn = value.terms().any(|t| *self.terms().kind(t) == TermKind::SpawnIndex);
        from_spawn && !self.shows_several_nodes()
    }

    /// The group's rank is more than the index that `mp.spawn` gives: `node * devices + index`.
    fn offsets_spawn_index(&self) -> bool {
        self.calls(Role::InitGroup).any(|(_, call)| {
            let rank = call.argument("rank").known();
            rank.is_some_and(|a| {
                a.value.terms().any(|term| {
                    match self.terms().kind(term) {
                        TermKind::Binary(..) => {
                            self.mentions(term, &|kind| *kind == TermKind::SpawnIndex)
                        }
                        // A sum of which some part is not known.
                        TermKind::Opaque { site, .. } => {
                            self.terms().taint(term).has(super::Taint::RANK)
                                && self.text(*site).contains('+')
                        }
                        _ => false,
                    }
                })
            })
        })
    }

    /// The program knows of several nodes: a node rank, or a global rank computed beside.
    pub fn shows_several_nodes(&self) -> bool {
        let node = TermKind::Rank(RankKind::NodeRank);
        self.terms().find(&node).is_some()
            || self.offsets_spawn_index()
            || self.project.files.iter().any(|file| {
                self.reaches(file.id)
                    && ["NODE_RANK", "SLURM_", "node_rank", "nnodes", "num_nodes"]
                        .iter()
                        .any(|word| file.text.contains(word))
            })
    }
}

/// Shares, handles and what becomes of results.
impl<'p> Program<'p> {
    /// What a call gives is not taken by anybody.
    pub fn is_dropped(&self, event: &Event<'p>) -> bool {
        self.run.dropped.contains(&event.site)
    }

    /// The outside world was given the object: what becomes of it is unknown.
    pub fn is_given_away(&self, term: Term) -> bool {
        self.run.given_away.contains(&term)
    }

    /// A rank's own share of common data, as `files[rank::world]` is: ranks may have different
    /// numbers of items. Loaders and data sets of the project are looked into.
    pub fn is_uneven_share(&self, term: Term) -> bool {
        let (taint, _) = self.run.deep_facts_of(term);
        if taint.has(super::Taint::SHARE) {
            return true;
        }
        let Some(object) = self.object_of(term) else { return false };
        match object.role {
            Role::Loader => self.loads_uneven_share(object),
            _ if self.class_of(object).is_some() && self.keeps_share(term) => true,
            _ => self.class_of(object).is_some_and(|class| {
                matches!(
                    self.class_member(class, "__iter__").map(|t| self.terms().kind(t)),
                    Some(TermKind::Function { function, .. }) if self.run.sharing.contains(function)
                )
            }),
        }
    }

    /// `self.items = items[rank::world]`, in an object that has a length.
    fn keeps_share(&self, object: Term) -> bool {
        let keeps = |value: &Value| {
            value.terms().any(|t| self.run.deep_facts_of(t).0.has(super::Taint::SHARE))
        };
        let has_length = self
            .object_of(object)
            .and_then(|o| self.class_of(o))
            .is_some_and(|class| self.class_member(class, "__len__").is_some());
        has_length && self.stores_on(object).any(|(_, _, value)| keeps(value))
    }

    fn loads_uneven_share(&self, loader: &Object<'p>) -> bool {
        let given =
            |name: &str| loader.arguments.iter().find(|a| a.name.is_some_and(|n| &*n == name));
        let is_set = |name: &str| {
            given(name).is_some_and(|a| {
                let known = a.value.single();
                known != Some(self.terms().none) && known != Some(self.terms().no)
            })
        };
        let spread = loader.arguments.iter().any(|a| a.spread);
        let samples = given("sampler").or_else(|| given("batch_sampler"));
        let sampled = samples.is_some_and(|a| a.value.single() != Some(self.terms().none));
        if is_set("drop_last") || spread {
            return false;
        }
        if sampled {
            let by = samples.and_then(|a| a.value.single());
            return by.is_some_and(|by| {
                self.object_of(by).is_some_and(|o| self.class_of(o).is_some())
                    && self.is_uneven_share(by)
            });
        }
        let data = given("dataset").and_then(|a| a.value.single());
        data.is_some_and(|data| {
            let walked = self.object_of(data);
            let holds = walked.is_some_and(|o| {
                o.arguments.iter().any(|a| a.value.taint(self.terms()).has(super::Taint::SHARE))
            });
            holds || self.is_uneven_share(data)
        })
    }

    /// A tensor whose size each rank decides for itself.
    pub fn is_ragged(&self, term: Term) -> bool {
        self.run.ragged.contains(&term)
    }

    /// The loaders that a term walks over: itself, or what it was made of.
    pub fn loaders_behind(&self, over: Term) -> Vec<Term> {
        let (_, origins) = self.run.deep_facts_of(over);
        let of_loaders = |o: &&Object<'p>| {
            o.role == Role::Loader && o.event.is_some_and(|made| origins.contains(&made))
        };
        self.objects().iter().filter(of_loaders).map(|o| self.term_of(o.id)).collect()
    }

    /// `i % world == rank` picks; it makes no shares equal.
    pub fn picks_one_in_world(&self, kind: &TermKind) -> bool {
        self.terms().find(kind).is_some_and(|term| self.run.is_rank_pick(term))
    }

    /// Somebody counts modulo the number of ranks: shares may have been made equal.
    pub fn counts_by_world(&self) -> bool {
        self.terms().any(|kind| match kind {
            TermKind::Binary(BinaryOp::Mod | BinaryOp::FloorDiv, left, by) => {
                let counts = |k| matches!(k, RankKind::WorldSize | RankKind::LocalWorldSize);
                // `(n + world - 1) // world` gives the last rank less.
                let rounds_up = matches!(kind, TermKind::Binary(BinaryOp::FloorDiv, ..))
                    && matches!(
                        self.terms().kind(*left),
                        TermKind::Binary(BinaryOp::Add | BinaryOp::Sub, ..) | TermKind::Negative(_)
                    );
                !rounds_up
                    && self.terms().rank_kind(*left).is_none()
                    && self.terms().rank_kind(*by).is_some_and(counts)
            }
            _ => false,
        })
    }
}
