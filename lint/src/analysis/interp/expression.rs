//! Expressions: their values, with calls on the way.

use super::{Interpreter, Key, LoopNode, ObjectClass};
use crate::analysis::event::EventId;
use crate::analysis::term::{Const, RankKind, Taint, Term, TermKind};
use crate::analysis::value::{ALTERNATIVES_MAX, Alternative, Value};
use crate::model::{
    BinaryOp, BoolOp, Clause, CollectionKind, CompareOp, Expr, ExprKind, FormatPiece,
    FunctionIndex, Literal, Name, Site, Stmt, StmtKind, UnaryOp,
};
use crate::table::Role;

/// Containers written out at greater length are tables of data: only their first items are
/// looked at.
const CONTENTS_MAX: usize = 40;

/// The type of opaque values that are plain numbers.
const NUMBER: &str = "float";
/// Literal lists longer than this are tables of data, and opaque.
const DATA_MIN: usize = 64;

impl<'p> Interpreter<'p> {
    pub(super) fn eval(&mut self, expr: &'p Expr) -> Value {
        if self.spent() {
            let site = self.site(expr.span);
            let term = self.fresh(site, Taint::NONE, &[]);
            return self.value(term);
        }
        self.with_stack(|this| this.eval_inner(expr))
    }

    /// Evaluates something a second time: its events are not told again.
    pub(super) fn eval_quietly(&mut self, expr: &'p Expr) -> Value {
        let events = self.events.len();
        let (value, _) = self.grow(|this| this.eval(expr));
        // Later events may be origins of live terms; only trailing ones can go.
        let _ = events;
        value
    }

    fn eval_inner(&mut self, expr: &'p Expr) -> Value {
        let site = self.site(expr.span);
        match &expr.kind {
            ExprKind::Name(name) => self.name(*name, site),
            ExprKind::Attribute { value, name, .. } => {
                let of = self.eval(value);
                self.attribute_value(&of, *name, site, Some(expr))
            }
            ExprKind::Call { callee, arguments } => self.call(expr, callee, arguments),
            ExprKind::Index { value, index } => {
                let of = self.eval(value);
                let is_share = self.is_rank_slice(index) || self.is_rank_chunk(index);
                let index_value = self.eval(index);
                if is_share || self.is_uneven_part(&of, &index_value) {
                    return self.share(site, &[of, index_value]);
                }
                let item = self.item(&of, &index_value, site);
                if self.picks_by_mask(index, &index_value) {
                    self.note_ragged(&item);
                }
                // What stands under a key of a record is no part of a sequence.
                let is_cut = matches!(&index.kind, ExprKind::Slice { upper: Some(_), .. })
                    || index.str().is_some();
                if is_cut { self.cut(site, item) } else { item }
            }
            ExprKind::Slice { lower, upper, step } => {
                let parts: Vec<Value> =
                    [lower, upper, step].into_iter().flatten().map(|e| self.eval(e)).collect();
                self.derived_value(site, &parts)
            }
            ExprKind::Literal(literal) => {
                let term = self.literal(literal);
                self.value(term)
            }
            ExprKind::Compare { left, rest } => self.comparison(left, rest),
            ExprKind::Bool { op, values } => self.logical(*op, values, site),
            ExprKind::Not(inner) => {
                let value = self.eval(inner);
                let condition = self.condition(&value);
                let term = self.terms.not(condition);
                self.value(term)
            }
            ExprKind::Binary { op, left, right } => {
                let left = self.eval(left);
                let right = self.eval(right);
                self.binary_values(*op, &left, &right, site)
            }
            ExprKind::Unary { op, value } => {
                let value = self.eval(value);
                self.unary(*op, &value, site)
            }
            ExprKind::Conditional { test, then, otherwise } => {
                self.conditional(test, then, otherwise, site)
            }
            _ => self.eval_compound(expr, site),
        }
    }

    /// Containers, functions, and what belongs to one language.
    fn eval_compound(&mut self, expr: &'p Expr, site: Site) -> Value {
        match &expr.kind {
            ExprKind::Collection { kind, items } => self.collection(*kind, items, site),
            ExprKind::Dict(items) => self.dict(items, site),
            ExprKind::Comprehension { kind: CollectionKind::Dict, element, clauses } => {
                self.dict_comprehension(element, clauses, site)
            }
            ExprKind::Comprehension { element, clauses, .. } => {
                self.comprehension(element, clauses, site)
            }
            ExprKind::Lambda(index) => self.lambda(*index),
            ExprKind::Format(pieces) => self.format(pieces),
            ExprKind::Await(inner) | ExprKind::Starred(inner) | ExprKind::Try(inner) => {
                self.eval(inner)
            }
            ExprKind::Yield(inner) => self.yield_value(inner.as_deref(), site),
            ExprKind::Walrus { target, value } => {
                let value = self.eval(value);
                self.assign(target, &value, false);
                value
            }
            ExprKind::Let { pattern, value } => self.let_test(pattern, value, site),
            ExprKind::Block { body, has_value } => {
                let (falls, value) = self.valued_block(body, *has_value);
                self.falls = self.terms.and([self.falls, falls]);
                value
            }
            ExprKind::Match { subject, arms } => {
                let subject = self.eval(subject);
                let (falls, value) = self.arms(&subject, arms, site, true);
                self.falls = self.terms.and([self.falls, falls]);
                value.unwrap_or_else(|| self.nothing())
            }
            ExprKind::Construct { path, fields, base } => {
                self.construct(path, fields, base.as_deref(), site)
            }
            ExprKind::Opaque(parts) => {
                let parts: Vec<Value> = parts.iter().map(|p| self.eval(p)).collect();
                self.derived_value(site, &parts)
            }
            _ => self.nothing(),
        }
    }

    /// A value nothing is known of, made here.
    pub(super) fn fresh(&mut self, site: Site, taint: Taint, origins: &[EventId]) -> Term {
        self.terms.opaque(site, self.frame.0, taint, origins)
    }

    /// A value made here of others: it depends on what they depend on.
    pub(super) fn derived(&mut self, site: Site, from: &[&Value]) -> Term {
        let mut taint = Taint::NONE;
        let mut origins = crate::analysis::term::Origins::new();
        for value in from {
            for term in value.terms() {
                let (t, o) = self.deep_facts(term, 3);
                taint = taint.with(t);
                origins.extend(o);
            }
        }
        origins.sort_unstable();
        origins.dedup();
        self.fresh(site, taint, &origins)
    }

    pub(super) fn derived_value(&mut self, site: Site, from: &[Value]) -> Value {
        let from: Vec<&Value> = from.iter().collect();
        let term = self.derived(site, &from);
        self.value(term)
    }

    /// Facts of a term and, for containers, of what they hold.
    pub(super) fn deep_facts(
        &self,
        term: Term,
        depth: u32,
    ) -> (Taint, crate::analysis::term::Origins) {
        let mut taint = self.terms.taint(term);
        let mut origins: crate::analysis::term::Origins =
            self.terms.origins(term).iter().copied().collect();
        let is_container = self
            .object_of(term)
            .is_some_and(|o| matches!(o.class, ObjectClass::List | ObjectClass::Dict));
        if is_container && depth > 0 {
            for value in self.contents(term) {
                for inner in value.terms() {
                    let (t, o) = self.deep_facts(inner, depth - 1);
                    taint = taint.with(t);
                    origins.extend(o);
                }
            }
        }
        (taint, origins)
    }

    /// Everything a list or dict is known to hold.
    pub(super) fn contents(&self, container: Term) -> Vec<Value> {
        let mut all = Vec::new();
        if let Some(items) = self.items_of(container) {
            all.extend(items);
        }
        if let Some(more) = self.store.get(&Key::Attribute(container, Name::new("<items>"))) {
            all.push(more.clone());
        }
        all
    }

    fn items_of(&self, container: Term) -> Option<Vec<Value>> {
        let key = Key::Attribute(container, Name::new("<display>"));
        let display = self.store.get(&key)?.single()?;
        match self.terms.kind(display) {
            TermKind::Tuple(keys) => Some(
                keys.iter()
                    .take(CONTENTS_MAX)
                    .filter_map(|&k| self.store.get(&Key::Item(container, k)).cloned())
                    .collect(),
            ),
            _ => None,
        }
    }

    /// The items of a tuple, or of a list that was written out and not changed since.
    pub(super) fn sequence(&self, term: Term) -> Option<Vec<Value>> {
        match self.terms.kind(term) {
            TermKind::Tuple(items) => Some(items.iter().map(|&t| self.value(t)).collect()),
            TermKind::Object(id) if self.object(*id).class == ObjectClass::List => {
                let grown = Key::Attribute(term, Name::new("<items>"));
                if self.store.get(&grown).is_some() {
                    return None;
                }
                self.items_of(term).filter(|items| items.len() < CONTENTS_MAX)
            }
            _ => None,
        }
    }

    /// What a dict holds, where all its keys are texts; whether all of them are there for sure.
    pub(super) fn known_items(&self, dict: Term) -> Option<(Vec<(Name, Value)>, bool)> {
        let grown = Key::Attribute(dict, Name::new("<items>"));
        if self.object_of(dict)?.class != ObjectClass::Dict || self.store.get(&grown).is_some() {
            return None;
        }
        let display = self.store.get(&Key::Attribute(dict, Name::new("<display>")))?;
        let mut keys: Vec<Term> = Vec::new();
        for term in display.terms() {
            let TermKind::Tuple(more) = self.terms.kind(term) else { return None };
            let new = more.iter().filter(|key| !keys.contains(key)).collect::<Vec<_>>();
            keys.extend(new);
        }
        let known = keys.iter().map(|&key| {
            Some((self.terms.as_str(key)?, self.store.get(&Key::Item(dict, key))?.clone()))
        });
        let known: Vec<(Name, Value)> = known.collect::<Option<_>>()?;
        let is_sure =
            |value: &Value| matches!(&*value.alternatives, [one] if one.when == self.terms.yes);
        let is_whole = known.iter().all(|(_, value)| is_sure(value));
        Some((known, is_whole))
    }

    fn literal(&mut self, literal: &Literal) -> Term {
        match literal {
            Literal::None => self.terms.none,
            Literal::Bool(value) => self.terms.bool(*value),
            Literal::Int(value) => self.terms.int(*value),
            Literal::Float(value) => self.terms.float(*value),
            Literal::Str(text) => self.terms.constant(Const::Str(*text)),
            Literal::Bytes | Literal::Ellipsis => {
                let name = Name::new("<bytes>");
                self.terms.make(TermKind::Outside(name))
            }
        }
    }

    pub(super) fn compare_values(&mut self, op: CompareOp, left: &Value, right: &Value) -> Value {
        let mut alternatives = Vec::new();
        for a in &left.alternatives {
            for b in &right.alternatives {
                let when = self.terms.and([a.when, b.when]);
                if when == self.terms.no {
                    continue;
                }
                let term = self.compare_terms(op, a.term, b.term);
                alternatives.push(Alternative { when, term });
            }
        }
        // Whichever it is, the answer is one.
        if let [first, rest @ ..] = alternatives.as_slice()
            && !rest.is_empty()
            && rest.iter().all(|a| a.term == first.term)
        {
            return self.value(first.term);
        }
        Value { alternatives: alternatives.into() }
    }

    fn compare_terms(&mut self, op: CompareOp, left: Term, right: Term) -> Term {
        let none = self.terms.none;
        let against_none = match (left == none, right == none) {
            (true, false) => Some(right),
            (false, true) => Some(left),
            _ => None,
        };
        if let Some(other) = against_none
            && self.terms.is_something(other)
        {
            match op {
                CompareOp::Is | CompareOp::Eq => return self.terms.no,
                CompareOp::IsNot | CompareOp::NotEq => return self.terms.yes,
                _ => {}
            }
        }
        if matches!(op, CompareOp::In | CompareOp::NotIn)
            && let Some(term) = self.membership(op, left, right)
        {
            return term;
        }
        if let Some(answer) = self.natural_test(op, left, right) {
            return self.terms.bool(answer);
        }
        if let Some(same) = self.same_class(left, right) {
            match op {
                CompareOp::Is | CompareOp::Eq => return self.terms.bool(same),
                CompareOp::IsNot | CompareOp::NotEq => return self.terms.bool(!same),
                _ => {}
            }
        }
        self.terms.compare(op, left, right)
    }

    /// `index >= 0` of what a range from 0 counts.
    fn natural_test(&self, op: CompareOp, left: Term, right: Term) -> Option<bool> {
        let counts = |t: Term| self.naturals.contains(&t);
        let at_most = |t: Term, n: i64| self.terms.as_int(t).is_some_and(|i| i <= n);
        match op {
            CompareOp::GtE if counts(left) && at_most(right, 0) => Some(true),
            CompareOp::LtE if counts(right) && at_most(left, 0) => Some(true),
            CompareOp::Lt if counts(left) && at_most(right, 0) => Some(false),
            CompareOp::Gt if counts(right) && at_most(left, 0) => Some(false),
            CompareOp::Eq if counts(left) && at_most(right, -1) => Some(false),
            CompareOp::NotEq if counts(left) && at_most(right, -1) => Some(true),
            _ => None,
        }
    }

    /// Whether two classes are one, where both are known.
    fn same_class(&self, left: Term, right: Term) -> Option<bool> {
        let class_of = |name: Name| self.table.get(name).filter(|row| row.is_class())?.name;
        match (self.terms.kind(left), self.terms.kind(right)) {
            (TermKind::Class(a), TermKind::Class(b)) => Some(a == b),
            (TermKind::Outside(a), TermKind::Outside(b)) => Some(class_of(*a)? == class_of(*b)?),
            (TermKind::Class(_), TermKind::Outside(name))
            | (TermKind::Outside(name), TermKind::Class(_)) => class_of(*name).map(|_| false),
            _ => None,
        }
    }

    /// `x in (-1, 0)`, `"RANK" in os.environ`.
    fn membership(&mut self, op: CompareOp, left: Term, right: Term) -> Option<Term> {
        let term = if self.is_environment(right) {
            let name = self.terms.as_str(left)?;
            if Self::environment(&name).is_some() || is_launch_variable(&name) {
                self.terms.make(TermKind::Distributed)
            } else {
                return None;
            }
        } else {
            let items = self.sequence(right)?;
            let mut parts = Vec::new();
            for item in items {
                parts.push(self.compare_terms(CompareOp::Eq, left, item.single()?));
            }
            self.terms.or(parts)
        };
        Some(if op == CompareOp::NotIn { self.terms.not(term) } else { term })
    }

    pub(super) fn is_environment(&self, term: Term) -> bool {
        match self.terms.kind(term) {
            TermKind::Outside(name) => &**name == "os.environ",
            _ => false,
        }
    }

    /// What a launcher's variable holds.
    pub(super) fn environment(name: &str) -> Option<RankKind> {
        Some(match name {
            "RANK" | "SLURM_PROCID" | "OMPI_COMM_WORLD_RANK" | "PMI_RANK" | "PMIX_RANK" => {
                RankKind::Rank
            }
            "LOCAL_RANK" | "SLURM_LOCALID" | "OMPI_COMM_WORLD_LOCAL_RANK" | "MPI_LOCALRANKID" => {
                RankKind::LocalRank
            }
            "WORLD_SIZE"
            | "SLURM_NTASKS"
            | "SLURM_NPROCS"
            | "OMPI_COMM_WORLD_SIZE"
            | "PMI_SIZE" => RankKind::WorldSize,
            "NODE_RANK" | "GROUP_RANK" | "SLURM_NODEID" => RankKind::NodeRank,
            "LOCAL_WORLD_SIZE" | "OMPI_COMM_WORLD_LOCAL_SIZE" => RankKind::LocalWorldSize,
            _ => return None,
        })
    }

    pub(super) fn rank_term(&mut self, kind: RankKind) -> Term {
        self.terms.make(TermKind::Rank(kind))
    }

    fn comparison(&mut self, left: &'p Expr, rest: &'p [(CompareOp, Expr)]) -> Value {
        let mut left = self.eval(left);
        let mut parts = Vec::with_capacity(rest.len());
        for (op, right) in rest {
            let right = self.eval(right);
            let test = self.compare_values(*op, &left, &right);
            parts.push(test);
            left = right;
        }
        if let [only] = parts.as_mut_slice() {
            return std::mem::replace(only, Value { alternatives: smallvec::SmallVec::new() });
        }
        let parts: Vec<Term> = parts.iter().map(|p| self.condition(p)).collect();
        let term = self.terms.and(parts);
        self.value(term)
    }

    /// `a and b`, `a or b`: later parts run only where the earlier ones let them.
    fn logical(&mut self, op: BoolOp, values: &'p [Expr], site: Site) -> Value {
        let Some((first, rest)) = values.split_first() else { return self.nothing() };
        let first = self.eval(first);
        if rest.is_empty() {
            return first;
        }
        let condition = self.condition(&first);
        let goes_on = match op {
            BoolOp::And => condition,
            BoolOp::Or => self.terms.not(condition),
        };
        match self.settle(goes_on) {
            Some(false) => return first,
            Some(true) => return self.logical(op, rest, site),
            None => {}
        }
        let mut second = None;
        self.fork(
            goes_on,
            site,
            |this| {
                second = Some(this.logical(op, rest, site));
                this.terms.yes
            },
            |this| this.terms.yes,
        );
        let second = second.unwrap_or_else(|| self.nothing());
        if self.is_condition(&first) && self.is_condition(&second) {
            let other = self.condition(&second);
            let term = match op {
                BoolOp::And => self.terms.and([condition, other]),
                BoolOp::Or => self.terms.or([condition, other]),
            };
            return self.value(term);
        }
        self.join_bounded(goes_on, &second, &first, site)
    }

    /// All alternatives are truth values, not objects.
    fn is_condition(&self, value: &Value) -> bool {
        value.terms().all(|t| {
            matches!(
                self.terms.kind(t),
                TermKind::Compare(..)
                    | TermKind::Not(_)
                    | TermKind::And(_)
                    | TermKind::Or(_)
                    | TermKind::Distributed
                    | TermKind::Const(Const::Bool(_))
                    | TermKind::Apply(..)
                    | TermKind::Attribute(..)
                    | TermKind::Parameter { .. }
                    | TermKind::Opaque { .. }
            )
        })
    }

    pub(super) fn binary_values(
        &mut self,
        op: BinaryOp,
        left: &Value,
        right: &Value,
        site: Site,
    ) -> Value {
        if left.alternatives.len() * right.alternatives.len() > ALTERNATIVES_MAX {
            return self.derived_value(site, &[left.clone(), right.clone()]);
        }
        let mut alternatives = Vec::new();
        for a in &left.alternatives {
            for b in &right.alternatives {
                let when = self.terms.and([a.when, b.when]);
                if when == self.terms.no {
                    continue;
                }
                let term = self.binary_terms(op, a.term, b.term, site);
                alternatives.push(Alternative { when, term });
            }
        }
        if alternatives.is_empty() {
            return self.derived_value(site, &[left.clone(), right.clone()]);
        }
        Value { alternatives: alternatives.into() }
    }

    fn binary_terms(&mut self, op: BinaryOp, left: Term, right: Term, site: Site) -> Term {
        // Path joining: `folder / name` keeps what both are.
        let numeric = |this: &Self, t: Term| {
            matches!(
                this.terms.kind(t),
                TermKind::Const(_)
                    | TermKind::Rank(_)
                    | TermKind::SpawnIndex
                    | TermKind::Binary(..)
                    | TermKind::Attribute(..)
                    | TermKind::Parameter { .. }
                    | TermKind::Negative(_)
                    | TermKind::Apply(..)
                    | TermKind::Item(..)
                    | TermKind::Text(_)
            ) || this.counters.contains(&t)
        };
        let tuples = (self.sequence(left), self.sequence(right));
        if let (Some(a), Some(b), BinaryOp::Add) = (tuples.0, tuples.1, op) {
            let items: Option<Vec<Term>> = a.iter().chain(&b).map(Value::single).collect();
            if let Some(items) = items {
                return self.terms.make(TermKind::Tuple(items.into()));
            }
        }
        let both = numeric(self, left) && numeric(self, right);
        if both || self.counts_with(op, left, right) {
            // In Rust, whole numbers divide to whole numbers.
            let is_whole = self.is_whole(left) && self.is_whole(right);
            let exact = match op {
                BinaryOp::Div if self.is_rust() && is_whole => BinaryOp::FloorDiv,
                _ => op,
            };
            let term = self.terms.binary(exact, left, right);
            if op == BinaryOp::Div {
                self.divisions.entry(term).or_insert(site);
            }
            return term;
        }
        let (a, b) = (self.value(left), self.value(right));
        if let Some(made) = self.path_below(op, left, right, site) {
            return made;
        }
        // Nothing but a path is divided by a text.
        let is_text = self.terms.as_str(right).is_some()
            || matches!(self.terms.kind(right), TermKind::Text(_));
        if op == BinaryOp::Div && is_text && !self.is_rust() {
            return self.terms.binary(op, left, right);
        }
        let term = self.derived(site, &[&a, &b]);
        if self.is_rust() && term != left && term != right {
            self.arithmetic.insert(term, (op, left, right));
            if op == BinaryOp::Div {
                self.divisions.entry(term).or_insert(site);
            }
        }
        self.note_number(term, self.is_plain_number(left) && self.is_plain_number(right));
        term
    }

    /// Books whether an opaque value is a plain number.
    pub(super) fn note_number(&mut self, term: Term, is_number: bool) {
        if is_number {
            self.types.insert(term, Name::new(NUMBER));
        } else if self.types.get(&term).is_some_and(|class| &**class == NUMBER) {
            self.types.remove(&term);
        }
    }

    /// Surely a plain number, no tensor.
    pub(in crate::analysis) fn is_plain_number(&self, term: Term) -> bool {
        match self.terms.kind(term) {
            TermKind::Const(value) => !matches!(value, Const::None | Const::Str(_)),
            TermKind::Rank(_) | TermKind::SpawnIndex => true,
            TermKind::Binary(_, a, b) => self.is_plain_number(*a) && self.is_plain_number(*b),
            TermKind::Negative(of) => self.is_plain_number(*of),
            TermKind::Apply(name, _) => {
                matches!(name.rsplit('.').next(), Some("len" | "size" | "numel" | "dim"))
            }
            _ => self.types.get(&term).is_some_and(|class| &**class == NUMBER),
        }
    }

    /// A whole number: written out, counted, of ranks, or made of such.
    fn is_whole(&self, term: Term) -> bool {
        match self.terms.kind(term) {
            TermKind::Const(Const::Int(_)) | TermKind::Rank(_) | TermKind::SpawnIndex => true,
            TermKind::Binary(_, left, right) if !self.terms.is_huge(term) => {
                self.is_whole(*left) && self.is_whole(*right)
            }
            _ => self.counters.contains(&term),
        }
    }

    /// What counts rounds, and is no arithmetic of tensors: `(i + 1) % n`.
    fn counts_in_rust(&self, op: BinaryOp, left: Term, right: Term) -> bool {
        let is_tensor = |t: &Term| self.types.contains_key(t);
        let is_whole = |t: Term| self.terms.as_int(t).is_some();
        let counts = match op {
            BinaryOp::Mod => true,
            BinaryOp::Add | BinaryOp::Sub => is_whole(left) || is_whole(right),
            _ => false,
        };
        counts && ![left, right].iter().any(is_tensor)
    }

    /// Arithmetic that conditions and averages are made of: `(step + 1) % n`, `total / count`.
    fn counts_with(&self, op: BinaryOp, left: Term, right: Term) -> bool {
        let is_number =
            |t: Term| matches!(self.terms.as_const(t), Some(Const::Int(_) | Const::Float(_)));
        let is_text = |t: Term| {
            matches!(self.terms.kind(t), TermKind::Const(Const::Str(_)) | TermKind::Text(_))
        };
        let is_unknown = |t: Term| matches!(self.terms.kind(t), TermKind::Opaque { .. });
        let is_known = |t: Term| {
            matches!(
                self.terms.kind(t),
                TermKind::Const(_)
                    | TermKind::Binary(..)
                    | TermKind::Attribute(..)
                    | TermKind::Parameter { .. }
                    | TermKind::Apply(..)
                    | TermKind::Item(..)
                    | TermKind::Rank(_)
            )
        };
        let asked = match op {
            BinaryOp::Mod | BinaryOp::Div | BinaryOp::FloorDiv => true,
            BinaryOp::Add | BinaryOp::Sub => is_number(left) || is_number(right),
            _ => false,
        };
        let parts = [left, right];
        asked
            && (!self.is_rust() || self.counts_in_rust(op, left, right))
            && !parts.iter().any(|&t| is_text(t))
            && parts.iter().all(|&t| is_unknown(t) || is_known(t))
    }

    /// tch: `path / "name"` is a path below.
    fn path_below(&mut self, op: BinaryOp, left: Term, name: Term, site: Site) -> Option<Term> {
        if op != BinaryOp::Div || !self.is_rust() {
            return None;
        }
        let object = self.object_of(left)?;
        let ObjectClass::Outside(class) = object.class else { return None };
        if &*class != "tch.nn.Path" {
            return None;
        }
        let term = self.new_object(site, ObjectClass::Outside(class), Vec::new(), None);
        let (parent, name) = (self.value(left), self.value(name));
        self.write(Key::Attribute(term, Name::new("<parent>")), parent);
        self.write(Key::Attribute(term, Name::new("<name>")), name);
        Some(term)
    }

    fn unary(&mut self, op: UnaryOp, value: &Value, site: Site) -> Value {
        match (op, value.single()) {
            (UnaryOp::Plus, _) => value.clone(),
            (UnaryOp::Minus, Some(term)) => {
                let term = match self.terms.as_const(term) {
                    Some(Const::Int(n)) => self.terms.int(n.wrapping_neg()),
                    _ => self.terms.make(TermKind::Negative(term)),
                };
                self.value(term)
            }
            _ => self.derived_value(site, std::slice::from_ref(value)),
        }
    }

    fn conditional(
        &mut self,
        test: &'p Expr,
        then: &'p Expr,
        otherwise: &'p Expr,
        site: Site,
    ) -> Value {
        let test_value = self.eval(test);
        let condition = self.condition(&test_value);
        let mut values = (None, None);
        let outer = std::mem::replace(&mut self.falls, self.terms.yes);
        let falls = {
            let (a, b) = (&mut values.0, &mut values.1);
            self.fork(
                condition,
                site,
                |this| {
                    this.bind_pattern(test);
                    *a = Some(this.eval(then));
                    std::mem::replace(&mut this.falls, this.terms.yes)
                },
                |this| {
                    *b = Some(this.eval(otherwise));
                    std::mem::replace(&mut this.falls, this.terms.yes)
                },
            )
        };
        self.falls = self.terms.and([outer, falls]);
        match values {
            (Some(a), Some(b)) => self.join_bounded(condition, &a, &b, site),
            (Some(only), None) | (None, Some(only)) => only,
            (None, None) => self.nothing(),
        }
    }

    fn collection(&mut self, kind: CollectionKind, items: &'p [Expr], site: Site) -> Value {
        if items.len() > DATA_MIN && items.iter().all(is_data) {
            return self.derived_value(site, &[]);
        }
        let spread = items.iter().any(|i| matches!(i.kind, ExprKind::Starred(_)));
        let values: Vec<Value> = items.iter().map(|i| self.eval(i)).collect();
        if kind == CollectionKind::Tuple && !spread {
            let terms: Option<Vec<Term>> = values.iter().map(Value::single).collect();
            if let Some(terms) = terms {
                let term = self.terms.make(TermKind::Tuple(terms.into()));
                return self.value(term);
            }
        }
        let term = self.list(site, values, spread);
        self.value(term)
    }

    /// A list object that holds these values in order (`open`: and perhaps more).
    pub(super) fn list(&mut self, site: Site, values: Vec<Value>, open: bool) -> Term {
        let list = self.new_object(site, ObjectClass::List, Vec::new(), None);
        let mut keys = Vec::with_capacity(values.len());
        for (position, value) in values.into_iter().enumerate() {
            if open {
                self.add_item(list, &value);
                continue;
            }
            let key = self.terms.int(position as i64);
            self.write(Key::Item(list, key), value);
            keys.push(key);
        }
        if !open {
            let display = self.terms.make(TermKind::Tuple(keys.into()));
            let display = self.value(display);
            self.write(Key::Attribute(list, Name::new("<display>")), display);
        }
        list
    }

    fn dict(&mut self, items: &'p [(Option<Expr>, Expr)], site: Site) -> Value {
        let dict = self.new_object(site, ObjectClass::Dict, Vec::new(), None);
        let mut keys = Vec::new();
        for (key, value) in items {
            let key = key.as_ref().map(|k| self.eval(k));
            let value = self.eval(value);
            match key.as_ref().and_then(Value::single) {
                Some(key) if self.terms.as_const(key).is_some() => {
                    self.write(Key::Item(dict, key), value);
                    keys.push(key);
                }
                _ => self.add_item(dict, &value),
            }
        }
        let display = self.terms.make(TermKind::Tuple(keys.into()));
        let display = self.value(display);
        self.write(Key::Attribute(dict, Name::new("<display>")), display);
        self.value(dict)
    }

    /// `dict(a=1, b=2)`.
    pub(super) fn dict_of(&mut self, items: Vec<(Name, Value)>, site: Site) -> Value {
        let dict = self.new_object(site, ObjectClass::Dict, Vec::new(), None);
        let mut keys = Vec::with_capacity(items.len());
        for (name, value) in items {
            let key = self.terms.constant(Const::Str(name));
            self.write(Key::Item(dict, key), value);
            keys.push(key);
        }
        let display = self.terms.make(TermKind::Tuple(keys.into()));
        let display = self.value(display);
        self.write(Key::Attribute(dict, Name::new("<display>")), display);
        self.value(dict)
    }

    fn comprehension(&mut self, element: &'p Expr, clauses: &'p [Clause], site: Site) -> Value {
        let shared = self.enter_clauses(clauses);
        let mut element = self.eval(element);
        if shared {
            element = self.share(site, &[element]);
        }
        let list = self.list(site, vec![element], true);
        self.value(list)
    }

    /// Binds the targets of a comprehension to one item each. Whether ranks pick their own.
    fn enter_clauses(&mut self, clauses: &'p [Clause]) -> bool {
        let mut shared = false;
        for clause in clauses {
            let iterated = self.eval(&clause.iter);
            let item = self.item_in_loop(&iterated, &clause.target);
            self.assign(&clause.target, &item, false);
            for test in &clause.tests {
                let value = self.eval(test);
                let condition = self.condition(&value);
                shared |= self.is_rank_pick(condition);
            }
        }
        shared
    }

    /// `{key: value for ..}`: over keys that are written out, a dict with these keys.
    fn dict_comprehension(
        &mut self,
        element: &'p Expr,
        clauses: &'p [Clause],
        site: Site,
    ) -> Value {
        let ExprKind::Collection { items, .. } = &element.kind else {
            return self.comprehension(element, clauses, site);
        };
        let [key, value] = items.as_slice() else {
            return self.comprehension(element, clauses, site);
        };
        let dict = self.new_object(site, ObjectClass::Dict, Vec::new(), None);
        let mut keys = Vec::new();
        let written = match clauses {
            [clause] if clause.tests.is_empty() => {
                let iterated = self.eval_quietly(&clause.iter);
                iterated.single().and_then(|t| self.sequence(t)).map(|items| (clause, items))
            }
            _ => None,
        };
        if let Some((clause, items)) = written.filter(|(_, items)| items.len() <= CONTENTS_MAX) {
            for item in items {
                self.assign(&clause.target, &item, false);
                let key = self.eval(key);
                let value = self.eval(value);
                match key.single().filter(|&k| self.terms.as_const(k).is_some()) {
                    Some(key) => {
                        keys.push(key);
                        self.write(Key::Item(dict, key), value);
                    }
                    None => self.add_item(dict, &value),
                }
            }
            let keys = self.terms.make(TermKind::Tuple(keys.into()));
            let keys = self.value(keys);
            self.write(Key::Attribute(dict, Name::new("<display>")), keys);
            return self.value(dict);
        }
        self.enter_clauses(clauses);
        self.eval(key);
        let value = self.eval(value);
        self.add_item(dict, &value);
        self.value(dict)
    }

    /// The item that a loop over a value binds to its target.
    pub(super) fn item_in_loop(&mut self, iterated: &Value, target: &'p Expr) -> Value {
        let site = self.site(target.span);
        let Some(term) = iterated.single() else {
            let item = self.derived(site, &[iterated]);
            if iterated.terms().all(|t| self.is_range(t)) {
                self.counters.insert(item);
            }
            return self.value(item);
        };
        self.item_at(term, site)
    }

    /// One item of what a term iterates over, at a place of the iterated thing's own.
    pub(super) fn item_of_term(&mut self, term: Term) -> Value {
        let site = Site { file: self.file(), span: crate::model::Span::new(term.0, term.0) };
        self.item_at(term, site)
    }

    pub(super) fn item_at(&mut self, term: Term, site: Site) -> Value {
        if let Some(contents) = self.loop_contents(term) {
            return contents;
        }
        let (mut taint, mut origins) = self.deep_facts(term, 2);
        if let Some(object) = self.object_of(term)
            && matches!(object.role, Role::Loader | Role::Dataset)
        {
            taint = taint.with(Taint::LOCAL);
            origins.extend(object.event);
        }
        origins.sort_unstable();
        let item = self.fresh(site, taint, &origins);
        if let Some((from, _)) = self.terms.range_bounds(term) {
            self.counters.insert(item);
            if from.is_none_or(|t| self.terms.as_int(t).is_some_and(|n| n >= 0)) {
                self.naturals.insert(item);
            }
        }
        self.value(item)
    }

    pub(super) fn is_range(&self, term: Term) -> bool {
        self.terms.range_bounds(term).is_some()
    }

    /// What a list of ours holds, as one value of the loop's variable.
    fn loop_contents(&mut self, term: Term) -> Option<Value> {
        if let TermKind::Tuple(items) = self.terms.kind(term).clone() {
            let values: Vec<Value> = items.iter().map(|&t| self.value(t)).collect();
            return self.one_of(values);
        }
        let object = self.object_of(term)?;
        let is_dict = matches!(object.class, ObjectClass::Outside(n) if n.ends_with("Dict"));
        let holds_modules = matches!(object.role, Role::ModuleList | Role::Sequential) && !is_dict;
        if object.class != ObjectClass::List && !holds_modules {
            return None;
        }
        let values = self.contents(term);
        self.one_of(values)
    }

    pub(super) fn one_of(&mut self, values: Vec<Value>) -> Option<Value> {
        let mut values = values.into_iter();
        let mut joined = values.next()?;
        for (position, value) in values.enumerate() {
            if joined == value {
                continue;
            }
            if position + 1 > ALTERNATIVES_MAX {
                return None;
            }
            let site =
                Site { file: self.file(), span: crate::model::Span::new(position, position) };
            let condition = self.terms.make(TermKind::Happened(site));
            self.selectors.insert(condition);
            joined = self.join(condition, &value, &joined);
        }
        (joined.alternatives.len() <= ALTERNATIVES_MAX).then_some(joined)
    }

    fn lambda(&mut self, index: FunctionIndex) -> Value {
        let function = crate::analysis::term::FunctionRef { file: self.file(), index };
        self.frame_mut().is_captured = true;
        let closure = Some(self.frame);
        let term = self.terms.make(TermKind::Function { function, closure, bound: None });
        self.value(term)
    }

    fn format(&mut self, pieces: &'p [FormatPiece]) -> Value {
        let mut parts = Vec::with_capacity(pieces.len());
        for piece in pieces {
            match piece {
                FormatPiece::Text(text) => parts.push(self.terms.str(text)),
                FormatPiece::Value(expr) => {
                    let value = self.eval(expr);
                    let term = match value.single() {
                        Some(term) => term,
                        None => self.derived(self.site(expr.span), &[&value]),
                    };
                    parts.push(term);
                }
            }
        }
        let term = match parts.as_slice() {
            [only] if self.terms.as_str(*only).is_some() => *only,
            _ => self.terms.make(TermKind::Text(parts.into())),
        };
        self.value(term)
    }

    fn yield_value(&mut self, inner: Option<&'p Expr>, site: Site) -> Value {
        let value = match inner {
            Some(Expr { kind: ExprKind::Starred(all), .. }) => self.yield_each(all),
            Some(inner) => self.eval(inner),
            None => self.nothing(),
        };
        if let Some(term) = value.single() {
            self.frame_mut().yielded.push(term);
        }
        if let Some(function) = self.frame().function
            && (self.picks_by_rank()
                || self.walks_share()
                || value.taint(&self.terms).has(Taint::SHARE))
        {
            self.sharing.insert(function);
        }
        self.run_yield_body(&value, site);
        self.nothing()
    }

    /// `yield from all`: a loop over all that hands on each.
    fn yield_each(&mut self, all: &'p Expr) -> Value {
        let iterated = self.eval(all);
        let (site, frame) = (self.site(all.span), self.frame);
        if let Some(over) = iterated.single() {
            let (parent, over) = (self.loop_now, Some(over));
            self.loops.push(LoopNode { parent, site, frame, over, condition: None });
        }
        let each = self.item_in_loop(&iterated, all);
        if each.single().is_none() {
            let several: Vec<Term> = each.terms().collect();
            self.frame_mut().yielded.extend(several);
        }
        each
    }

    fn let_test(&mut self, pattern: &'p Expr, value: &'p Expr, site: Site) -> Value {
        let value = self.eval(value);
        let named = match &pattern.kind {
            ExprKind::Call { callee, .. } => callee.last_name(),
            _ => None,
        };
        if named.is_some_and(|n| matches!(&*n, "Some" | "Ok")) {
            let none = self.nothing();
            return self.compare_values(CompareOp::IsNot, &value, &none);
        }
        let taint = value.taint(&self.terms);
        let term = self.fresh(site, taint, &[]);
        self.value(term)
    }

    /// A block whose last expression is its value.
    pub(super) fn valued_block(&mut self, body: &'p [Stmt], has_value: bool) -> (Term, Value) {
        let Some((last, rest)) = body.split_last() else {
            return (self.terms.yes, self.nothing());
        };
        let StmtKind::Expr(tail) = &last.kind else {
            return (self.block(body), self.nothing());
        };
        if !has_value {
            return (self.block(body), self.nothing());
        }
        let modes = self.modes;
        let falls = self.block_keeping_modes(rest);
        if falls == self.terms.no {
            self.modes = modes;
            return (falls, self.nothing());
        }
        let guarded = falls != self.terms.yes;
        if guarded {
            let site = self.site(last.span);
            self.push_path(falls, site);
        }
        let outer = std::mem::replace(&mut self.falls, self.terms.yes);
        let value = self.eval(tail);
        let inner = std::mem::replace(&mut self.falls, outer);
        if guarded {
            self.pop_path();
        }
        self.modes = modes;
        (self.terms.and([falls, inner]), value)
    }

    fn construct(
        &mut self,
        path: &'p Expr,
        fields: &'p [(Name, Expr)],
        base: Option<&'p Expr>,
        site: Site,
    ) -> Value {
        let class = self.eval(path);
        let values: Vec<(Name, Value, &'p Expr)> =
            fields.iter().map(|(name, e)| (*name, self.eval(e), e)).collect();
        if let Some(base) = base {
            self.eval(base);
        }
        let object_class = match class.single().map(|t| self.terms.kind(t).clone()) {
            Some(TermKind::Class(class)) => ObjectClass::Project(class),
            Some(TermKind::Outside(name)) => ObjectClass::Outside(name),
            _ => ObjectClass::Dict,
        };
        let object = self.new_object(site, object_class, Vec::new(), None);
        let of = self.value(object);
        for (name, value, expr) in values {
            let at = self.site(expr.span);
            self.assign_attribute(&of, name, &value, at, Some(expr), false);
        }
        of
    }
}

/// Variables that only a launcher sets.
pub(super) fn is_launch_variable(name: &str) -> bool {
    matches!(name, "MASTER_ADDR" | "MASTER_PORT" | "TORCHELASTIC_RUN_ID" | "SLURM_JOB_ID")
}

/// Whether an expression is made of literals only.
fn is_data(expr: &Expr) -> bool {
    match &expr.kind {
        ExprKind::Literal(_) => true,
        ExprKind::Unary { value, .. } => is_data(value),
        ExprKind::Collection { items, .. } => items.iter().all(is_data),
        ExprKind::Dict(items) => {
            items.iter().all(|(key, value)| key.as_ref().is_some_and(is_data) && is_data(value))
        }
        _ => false,
    }
}
