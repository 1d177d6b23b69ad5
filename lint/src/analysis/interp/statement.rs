//! Statements: control flow, and the state at each join.

use super::{Interpreter, Key, LoopBreak, LoopExits, LoopNode, ObjectClass, ReturnExit, Writes};
use crate::analysis::event::{Caught, EventKind, ExitKind, Header, LoopId, Node, Tree};
use crate::analysis::term::{Const, SAMPLES, Taint, Term, TermKind};
use crate::analysis::value::Value;
use crate::model::{
    Arm, BinaryOp, Expr, ExprKind, Handler, LoopHeader, Name, Site, Stmt, StmtKind, WithItem,
};
use crate::table::Role;

/// Loops nested deeper than this are not run a second time.
const WIDENED_DEPTH_MAX: usize = 3;
/// A loop's body is run so often again.
const WIDENED_ROUNDS_MAX: usize = 2;

impl<'p> Interpreter<'p> {
    /// Runs statements; the condition under which control reaches their end.
    pub(super) fn block(&mut self, body: &'p [Stmt]) -> Term {
        let modes = self.modes;
        let falls = self.block_keeping_modes(body);
        // A guard such as tch's `no_grad_guard` ends with the block that holds it.
        if self.is_rust() {
            self.modes = modes;
        }
        falls
    }

    pub(super) fn block_keeping_modes(&mut self, body: &'p [Stmt]) -> Term {
        let mut falls = self.terms.yes;
        let mut pushed = 0;
        for statement in body {
            let goes_on = self.statement(statement);
            if goes_on == self.terms.no {
                falls = goes_on;
                break;
            }
            if goes_on != self.terms.yes {
                let site = self.site(statement.span);
                self.push_path(goes_on, site);
                pushed += 1;
                falls = self.terms.and([falls, goes_on]);
            }
        }
        for _ in 0..pushed {
            self.pop_path();
        }
        falls
    }

    /// Defines what Rust lets stand below its use.
    fn hoist(&mut self, body: &'p [Stmt]) {
        for statement in body {
            match &statement.kind {
                StmtKind::Function(_) | StmtKind::Class(_) | StmtKind::Import(_) => {
                    self.statement(statement);
                }
                _ => {}
            }
        }
    }

    pub(super) fn file_body(&mut self, body: &'p [Stmt]) {
        if self.is_rust() {
            self.hoist(body);
        }
        self.block(body);
    }

    fn statement(&mut self, statement: &'p Stmt) -> Term {
        if self.spent() {
            return self.terms.yes;
        }
        let outer = std::mem::replace(&mut self.falls, self.terms.yes);
        let falls = self.with_stack(|this| this.statement_inner(statement));
        let inner = std::mem::replace(&mut self.falls, outer);
        self.terms.and([falls, inner])
    }

    fn statement_inner(&mut self, statement: &'p Stmt) -> Term {
        let site = self.site(statement.span);
        match &statement.kind {
            StmtKind::Expr(expr) => {
                let dropped = self.site(without_try(expr).span);
                self.dropped.insert(dropped);
                self.eval(expr);
            }
            StmtKind::Assign { targets, value, annotation } => {
                self.assignment(targets, value.as_ref(), annotation.as_ref());
            }
            StmtKind::AugAssign { target, op, value } => self.augmented(target, *op, value, site),
            StmtKind::If { test, body, otherwise } => {
                return self.branch(test, site, body, otherwise);
            }
            StmtKind::Loop { header, body, otherwise } => {
                return self.run_loop(header, body, otherwise, site);
            }
            StmtKind::With { items, body } => return self.with(items, body),
            StmtKind::Match { subject, arms } => {
                let subject_value = self.eval(subject);
                return self.arms(&subject_value, arms, site, false).0;
            }
            StmtKind::Try { body, handlers, otherwise, finally } => {
                return self.attempt(body, handlers, otherwise, finally, site);
            }
            StmtKind::Return(value) => {
                let value = match value {
                    Some(value) => self.eval(value),
                    None => self.nothing(),
                };
                return self.leave_function(value, site);
            }
            StmtKind::Break => return self.leave_loop(site, true),
            StmtKind::Continue => return self.leave_loop(site, false),
            StmtKind::Raise(value) => {
                if let Some(value) = value {
                    self.eval(value);
                }
                self.push_event(EventKind::Raise, site, None);
                self.tree.push(Node::Exit { kind: ExitKind::Error, site });
                return self.terms.no;
            }
            StmtKind::Assert { test, message } => {
                let value = self.eval(test);
                if let Some(message) = message {
                    self.eval(message);
                }
                return self.assume(&value);
            }
            StmtKind::Import(import) => self.import(import, site),
            StmtKind::Function(index) => self.define_function(*index),
            StmtKind::Class(index) => self.define_class(*index),
            StmtKind::Outer(names) => self.frame_mut().outer_names.extend(names),
            StmtKind::Delete(targets) => self.delete(targets),
            StmtKind::Block(body) => {
                if self.is_rust() {
                    self.hoist(body);
                }
                return self.block(body);
            }
            StmtKind::Pass => {}
        }
        self.terms.yes
    }

    /// `assert`: the rest runs only where it holds; a failure ends the process by an error. Of
    /// the parts of the condition those go on to hold that branches have asked before: what
    /// the program chose by them is settled.
    fn assume(&mut self, value: &Value) -> Term {
        let condition = self.condition(value);
        if self.settle(condition) == Some(false) && self.terms.as_const(condition).is_some() {
            return self.terms.no;
        }
        let parts = match self.terms.kind(condition) {
            TermKind::And(parts) => parts.to_vec(),
            _ => vec![condition],
        };
        let asked: Vec<Term> = parts.into_iter().filter(|&part| self.was_asked(part)).collect();
        self.terms.and(asked)
    }

    /// A branch of the program hangs on this setting or on its opposite.
    fn was_asked(&self, part: Term) -> bool {
        let plain = match *self.terms.kind(part) {
            TermKind::Not(inner) => inner,
            _ => part,
        };
        let is_setting = SAMPLES.iter().all(|&s| self.terms.evaluate(plain, s).is_none())
            && self.terms.taint(plain) == Taint::NONE;
        is_setting && self.known.contains_key(&plain)
    }

    fn assignment(
        &mut self,
        targets: &'p [Expr],
        value: Option<&'p Expr>,
        annotation: Option<&'p Expr>,
    ) {
        let Some(expr) = value else {
            if let (Some(annotation), [target]) = (annotation, targets) {
                let site = self.site(target.span);
                if let Some(value) = self.typed(annotation, site) {
                    self.assign(target, &value, false);
                }
            }
            return;
        };
        let mut value = self.eval(expr);
        if let (Some(annotation), Some(term)) = (annotation, value.single())
            && matches!(self.terms.kind(term), TermKind::Opaque { .. } | TermKind::Method { .. })
        {
            let site = self.site(expr.span);
            if let Some(typed) = self.typed(annotation, site) {
                value = typed;
            }
        }
        self.note_guard(&value);
        for target in targets {
            self.assign(target, &value, false);
        }
    }

    /// A bound `no_grad_guard()` switches gradients off up to the end of its block.
    fn note_guard(&mut self, value: &Value) {
        if !self.is_rust() {
            return;
        }
        let Some(term) = value.single() else { return };
        if self.object_of(term).is_some_and(|o| o.role == Role::NoGrad) {
            self.modes.grad = false;
        }
    }

    fn augmented(&mut self, target: &'p Expr, op: BinaryOp, value: &'p Expr, site: Site) {
        let old = self.eval(target);
        let new = self.eval(value);
        let joined = self.binary_values(op, &old, &new, site);
        self.assign(target, &joined, true);
    }

    /// Writes a value to a target: a name, attribute, item, or several at once.
    pub(super) fn assign(&mut self, target: &'p Expr, value: &Value, augmented: bool) {
        match &target.kind {
            ExprKind::Name(name) => self.assign_name(*name, value.clone()),
            ExprKind::Attribute { value: of, name, .. } => {
                let of = self.eval(of);
                let site = self.site(target.span);
                self.assign_attribute(&of, *name, value, site, Some(target), augmented);
            }
            ExprKind::Index { value: of, index } => {
                let of = self.eval(of);
                let index = self.eval(index);
                self.assign_item(&of, &index, value);
            }
            ExprKind::Collection { items, .. } => self.unpack(items, value),
            ExprKind::Starred(inner) => {
                let site = self.site(target.span);
                let term = self.derived(site, &[value]);
                let value = self.value(term);
                self.assign(inner, &value, false);
            }
            // Rust patterns: `Some(x)`, `Ok(x)`, `Struct { field, .. }`.
            ExprKind::Call { arguments, .. } => {
                if let [only] = arguments.as_slice() {
                    self.assign(&only.value, value, false);
                } else {
                    for argument in arguments {
                        let term = self.derived(self.site(argument.span), &[value]);
                        let part = self.value(term);
                        self.assign(&argument.value, &part, false);
                    }
                }
            }
            ExprKind::Construct { fields, .. } => {
                for (name, pattern) in fields {
                    let site = self.site(pattern.span);
                    let part = self.attribute_value(value, *name, site, None);
                    self.assign(pattern, &part, false);
                }
            }
            ExprKind::Bool { values, .. } => {
                for pattern in values {
                    self.assign(pattern, value, false);
                }
            }
            ExprKind::Walrus { target, value: inner } => {
                self.assign(target, value, false);
                self.assign(inner, value, false);
            }
            _ => {}
        }
    }

    pub(super) fn assign_name(&mut self, name: Name, value: Value) {
        if &*name == "_" {
            return;
        }
        let frame = self.frame();
        let key = match (frame.class_body, frame.function) {
            (Some(class), _) => Key::Attribute(class, name),
            (None, None) => Key::Global(frame.file, name),
            (None, Some(_)) if frame.outer_names.contains(&name) => {
                self.outer_key(name).unwrap_or(Key::Global(frame.file, name))
            }
            (None, Some(_)) => Key::Variable(frame.id, name),
        };
        self.write(key, value);
    }

    pub(super) fn assign_attribute(
        &mut self,
        of: &Value,
        name: Name,
        value: &Value,
        site: Site,
        expr: Option<&'p Expr>,
        augmented: bool,
    ) {
        let several = of.alternatives.len() > 1;
        for alternative in of.alternatives.clone() {
            let term = alternative.term;
            let kind =
                EventKind::AttributeStore { of: term, name, value: value.clone(), augmented };
            if several {
                self.push_path(alternative.when, site);
            }
            self.push_event(kind, site, expr);
            if several {
                self.pop_path();
            }
            let term = self.stored_on(term);
            let key = match *self.terms.kind(term) {
                TermKind::Module(file) => Key::Global(file, name),
                _ => Key::Attribute(term, name),
            };
            let new = match (several, self.store.get(&key).cloned()) {
                (true, Some(old)) => self.join_bounded(alternative.when, value, &old, site),
                _ => value.clone(),
            };
            self.write(key, new);
        }
    }

    fn assign_item(&mut self, of: &Value, index: &Value, value: &Value) {
        let is_data = |t| !matches!(self.terms.kind(t), TermKind::Object(_));
        if of.single().is_none() && of.terms().all(is_data) {
            // Settings of one of several sources: set in whichever it is.
            for alternative in of.alternatives.clone() {
                let of = self.value(alternative.term);
                self.assign_item(&of, index, value);
            }
            return;
        }
        let Some(of) = of.single() else { return };
        let of = self.stored_on(of);
        // Under one of several names: of plain data it is not worth knowing.
        let is_object = |t| matches!(self.terms.kind(t), TermKind::Object(_));
        if index.single().is_none() && !value.terms().any(is_object) {
            return;
        }
        if let Some(index) = index.single().filter(|&i| self.terms.as_const(i).is_some()) {
            self.write(Key::Item(of, index), value.clone());
            self.note_key(of, index);
            return;
        }
        self.add_item(of, value);
    }

    /// A dict that was written out has a key more.
    fn note_key(&mut self, dict: Term, key: Term) {
        if self.object_of(dict).is_none_or(|o| o.class != ObjectClass::Dict) {
            return;
        }
        let display = Key::Attribute(dict, Name::new("<display>"));
        let Some(keys) = self.read(&display).and_then(|v| v.single()) else { return };
        let TermKind::Tuple(keys) = self.terms.kind(keys) else { return };
        if keys.contains(&key) {
            return;
        }
        let keys: Box<[Term]> = keys.iter().copied().chain([key]).collect();
        let keys = self.terms.make(TermKind::Tuple(keys));
        let keys = self.value(keys);
        self.write(display, keys);
    }

    /// Adds to what a container holds at places unknown.
    pub(super) fn add_item(&mut self, of: Term, value: &Value) {
        let key = Key::Attribute(of, Name::new("<items>"));
        // Each addition is a condition of its own, or later ones would exclude earlier ones.
        let added = value.terms().next().unwrap_or(of);
        let span = crate::model::Span::new(of.0, added.0);
        let site = Site { file: self.file(), span };
        let new = match self.store.get(&key).cloned() {
            Some(old) => {
                let condition = self.terms.make(TermKind::Happened(site));
                self.selectors.insert(condition);
                self.join_bounded(condition, value, &old, site)
            }
            None => value.clone(),
        };
        self.write(key, new);
    }

    fn unpack(&mut self, targets: &'p [Expr], value: &Value) {
        let parts = value.single().and_then(|t| self.sequence(t));
        let starred = targets.iter().any(|t| matches!(t.kind, ExprKind::Starred(_)));
        match parts {
            Some(parts) if parts.len() == targets.len() && !starred => {
                for (target, part) in targets.iter().zip(parts) {
                    self.assign(target, &part, false);
                }
            }
            _ => {
                for (position, target) in targets.iter().enumerate() {
                    let part = self.item_of(value, position, target);
                    self.assign(target, &part, false);
                }
            }
        }
    }

    fn item_of(&mut self, value: &Value, position: usize, target: &'p Expr) -> Value {
        let site = self.site(target.span);
        match value.single() {
            Some(term)
                if !self.terms.origins(term).is_empty()
                    || value.taint(&self.terms) != Taint::NONE =>
            {
                let term = self.derived(site, &[value]);
                self.value(term)
            }
            Some(term) => {
                let index = self.terms.int(position as i64);
                let term = self.terms.make(TermKind::Item(term, index));
                self.value(term)
            }
            None => {
                let term = self.derived(site, &[value]);
                self.value(term)
            }
        }
    }

    fn delete(&mut self, targets: &'p [Expr]) {
        for target in targets {
            if let ExprKind::Name(name) = &target.kind {
                let frame = self.frame();
                let key = match frame.function {
                    Some(_) => Key::Variable(frame.id, *name),
                    None => Key::Global(frame.file, *name),
                };
                self.forget(key);
            }
        }
    }

    fn branch(
        &mut self,
        test: &'p Expr,
        site: Site,
        body: &'p [Stmt],
        otherwise: &'p [Stmt],
    ) -> Term {
        if is_main_test(test) {
            let is_entry = self.file() == self.entry && !self.frame().orphan;
            return if is_entry { self.block(body) } else { self.block(otherwise) };
        }
        let value = self.eval(test);
        let condition = self.condition(&value);
        self.push_event(EventKind::Test { condition, value }, self.site(test.span), Some(test));
        self.fork(
            condition,
            site,
            |this| {
                this.bind_pattern(test);
                this.block(body)
            },
            |this| this.block(otherwise),
        )
    }

    /// `if let P = v`: the names of `P` hold in the arm.
    pub(super) fn bind_pattern(&mut self, test: &'p Expr) {
        match &test.kind {
            ExprKind::Let { pattern, value } => {
                let value = self.eval_quietly(value);
                self.assign(pattern, &value, false);
            }
            ExprKind::Bool { values, .. } => {
                for value in values {
                    self.bind_pattern(value);
                }
            }
            _ => {}
        }
    }

    /// Runs both arms of a condition, those that can be taken, and joins what they leave.
    pub(super) fn fork(
        &mut self,
        condition: Term,
        site: Site,
        then: impl FnOnce(&mut Self) -> Term,
        otherwise: impl FnOnce(&mut Self) -> Term,
    ) -> Term {
        match self.settle(condition) {
            Some(true) => return then(self),
            Some(false) => return otherwise(self),
            None => {}
        }
        let negated = self.terms.not(condition);
        let (then_falls, then_writes, then_tree) = self.arm(condition, site, then);
        let (else_falls, else_writes, else_tree) = self.arm(negated, site, otherwise);
        let no = self.terms.no;
        self.merge_branches(
            condition,
            (then_falls != no).then_some(then_writes),
            (else_falls != no).then_some(else_writes),
            site,
        );
        if !then_tree.is_empty() || !else_tree.is_empty() {
            self.tree.push(Node::Branch { condition, site, then: then_tree, otherwise: else_tree });
        }
        if then_falls == self.terms.yes && else_falls == self.terms.yes {
            return self.terms.yes;
        }
        let a = self.terms.and([condition, then_falls]);
        let b = self.terms.and([negated, else_falls]);
        self.terms.or([a, b])
    }

    fn arm(
        &mut self,
        condition: Term,
        site: Site,
        body: impl FnOnce(&mut Self) -> Term,
    ) -> (Term, Writes, Tree) {
        let mark = self.store.mark();
        let modes = self.modes;
        self.push_path(condition, site);
        let (falls, tree) = self.grow(body);
        self.pop_path();
        self.modes = modes;
        if self.store.lasting_write_since(mark) {
            self.epoch += 1;
        }
        let writes = self.store.take_since(mark);
        (falls, writes, tree)
    }

    fn leave_function(&mut self, value: Value, site: Site) -> Term {
        self.push_event(EventKind::Return { value: value.clone() }, site, None);
        let frame = self.frame();
        let (path_base, trail_base) = (frame.path_base, frame.trail_base);
        let when = self.path_since(path_base);
        let writes = self.store.writes_since(trail_base, |k| k.is_lasting());
        self.frame_mut().exits.push(ReturnExit { when, value, writes });
        self.tree.push(Node::Exit { kind: ExitKind::Return, site });
        self.terms.no
    }

    fn leave_loop(&mut self, site: Site, is_break: bool) -> Term {
        let kind = if is_break { ExitKind::Break } else { ExitKind::Continue };
        self.tree.push(Node::Exit { kind, site });
        if let Some(exits) = self.frame().loop_exits.last() {
            let writes = self.store.writes_since(exits.trail_base, |_| true);
            let when = self.path_since(exits.path_base);
            if let Some(exits) = self.frame_mut().loop_exits.last_mut() {
                exits.breaks.push(LoopBreak { site, when, writes });
            }
        }
        self.terms.no
    }

    fn run_loop(
        &mut self,
        header: &'p LoopHeader,
        body: &'p [Stmt],
        otherwise: &'p [Stmt],
        site: Site,
    ) -> Term {
        let iterated = match header {
            LoopHeader::For { iter, .. } => Some(self.eval(iter)),
            _ => None,
        };
        let before = self.tree.len();
        let mut next = self.iterate(header, body, site, iterated.as_ref());
        let (mark, mut numbers) = (self.store.mark(), Vec::new());
        for round in 0..WIDENED_ROUNDS_MAX {
            let (again, changed) = next;
            if self.loop_depth() >= WIDENED_DEPTH_MAX {
                break;
            }
            if !changed.is_empty() {
                // A next run finds other numbers: what hangs on them is not settled.
                self.tree.truncate(before);
                self.store.undo_to(mark);
                numbers.extend(changed);
                self.widen(&numbers, site);
                next = self.iterate(header, body, site, iterated.as_ref());
            } else if again && round == 0 {
                let run = |this: &mut Self| this.iterate(header, body, site, iterated.as_ref());
                (next, _) = self.grow(run);
            } else {
                break;
            }
        }
        let endless = match header {
            LoopHeader::Forever => true,
            LoopHeader::While { test } => {
                matches!(test.literal(), Some(crate::model::Literal::Bool(true)))
            }
            LoopHeader::For { .. } => false,
        };
        self.block(otherwise);
        if endless && !holds_break(body) { self.terms.no } else { self.terms.yes }
    }

    fn loop_depth(&self) -> usize {
        let mut depth = 0;
        let mut at = self.loop_now;
        while let Some(LoopId(id)) = at {
            depth += 1;
            at = self.loops[id as usize].parent;
        }
        depth
    }

    /// Takes numbers that a loop changes for unknown ones.
    fn widen(&mut self, keys: &[(Key, Value)], site: Site) {
        for (index, (key, after)) in keys.iter().enumerate() {
            let Some(before) = self.store.get(key).cloned() else { continue };
            let taint = after.taint(&self.terms).with(before.taint(&self.terms));
            let mut origins = after.origins(&self.terms);
            origins.extend(before.origins(&self.terms));
            origins.sort_unstable();
            origins.dedup();
            let instance = 1 << 28 | (index as u32) << 20 | (self.frame.0 & 0xf_ffff);
            let term = self.terms.opaque(site, instance, taint, &origins);
            let mut terms = after.terms().chain(before.terms());
            let is_number = terms.all(|t| self.is_plain_number(t));
            self.note_number(term, is_number);
            if before.single() != Some(self.terms.none) {
                self.counters.insert(term);
            }
            let value = self.value(term);
            self.write(*key, value);
        }
    }

    /// Numbers and flags that were known before a run of a loop and differ after it; and what
    /// was none of this rank's data: `if best is None or loss < best: best = loss`.
    fn changed_numbers(&self, writes: &Writes) -> Vec<(Key, Value)> {
        let is_data = |value: &Value| {
            let is_object = |t| matches!(self.terms.kind(t), TermKind::Object(_));
            value.taint(&self.terms).has(Taint::LOCAL) && !value.terms().any(is_object)
        };
        let mut changed: Vec<(Key, Value)> = writes
            .iter()
            .filter(|(key, after)| {
                self.store.get(key).is_some_and(|before| {
                    before != *after
                        && (before.terms().all(|t| self.is_number(t))
                            || before.single() == Some(self.terms.none) && is_data(after))
                })
            })
            .map(|(key, value)| (*key, value.clone()))
            .collect();
        changed.sort_unstable_by_key(|(key, _)| *key);
        changed
    }

    fn is_number(&self, term: Term) -> bool {
        matches!(self.terms.as_const(term), Some(Const::Int(_) | Const::Float(_) | Const::Bool(_)))
    }

    /// One run of a loop's body. Whether it changed what a next run would see.
    fn iterate(
        &mut self,
        header: &'p LoopHeader,
        body: &'p [Stmt],
        site: Site,
        iterated: Option<&Value>,
    ) -> (bool, Vec<(Key, Value)>) {
        let mark = self.store.mark();
        let outer = self.loop_now;
        let over = iterated.and_then(Value::single);
        let id = LoopId(self.loops.len() as u32);
        self.loops.push(LoopNode { parent: outer, site, frame: self.frame, over, condition: None });
        let path_base = self.path.len();
        let exits = LoopExits { trail_base: mark, path_base, ..LoopExits::default() };
        self.frame_mut().loop_exits.push(exits);
        let before = self.tree.len();
        let (tree_header, item, pushed, certain) = self.enter_loop(header, iterated, id);
        let tested = self.tree[before..].to_vec();
        self.loop_now = Some(id);
        let (falls, tree) = self.grow(|this| this.block(body));
        let tree = tested_again(tree, tested);
        self.loop_now = outer;
        if pushed {
            self.pop_path();
        }
        let exits = self.frame_mut().loop_exits.pop().unwrap_or_default();
        let writes = self.store.take_since(mark);
        self.epoch += 1;
        let changed = self.changes_next_run(&writes);
        let numbers = self.changed_numbers(&writes);
        let happened = self.terms.make(TermKind::Happened(site));
        if falls == self.terms.no {
            // Only jumps leave the body.
        } else {
            // A `while` whose condition holds at its start does run.
            let before = (!certain).then(Writes::default);
            self.merge_branches(happened, Some(writes), before, site);
        }
        let runs = iterated.and_then(Value::single).and_then(|t| self.sequence(t));
        let runs = runs.is_some_and(|items| !items.is_empty());
        for LoopBreak { site: at, when, writes } in exits.breaks {
            // What hangs on ranks alone is alike in all turns.
            let by_rank = SAMPLES.iter().all(|&s| self.terms.evaluate(when, s).is_some());
            let happened =
                if runs && by_rank { when } else { self.terms.make(TermKind::Happened(at)) };
            self.merge_branches(happened, Some(writes), Some(Writes::default()), at);
        }
        if !tree.is_empty() {
            self.tree.push(Node::Loop { header: tree_header, item, site, body: tree });
        }
        (changed, numbers)
    }

    fn enter_loop(
        &mut self,
        header: &'p LoopHeader,
        iterated: Option<&Value>,
        id: LoopId,
    ) -> (Header, Option<Term>, bool, bool) {
        match header {
            LoopHeader::For { target, iter } => {
                let iterated = iterated.cloned().unwrap_or_else(|| self.nothing());
                let item = self.item_in_loop(&iterated, target);
                self.assign(target, &item, false);
                self.count_rounds(target, iter);
                (Header::Over(iterated), item.single(), false, false)
            }
            LoopHeader::While { test } => {
                let value = self.eval(test);
                let condition = self.condition(&value);
                let site = self.site(test.span);
                self.push_event(EventKind::Test { condition, value }, site, Some(test));
                self.loops[id.0 as usize].condition = Some(condition);
                let certain = self.settle(condition) == Some(true);
                self.push_path(condition, site);
                self.bind_pattern(test);
                (Header::While(condition), None, true, certain)
            }
            LoopHeader::Forever => (Header::Forever, None, false, true),
        }
    }

    /// `for (i, x) in items.enumerate()` of Rust: all ranks count alike, whatever the items are.
    fn count_rounds(&mut self, target: &'p Expr, iter: &'p Expr) {
        let ExprKind::Call { callee, .. } = &iter.kind else { return };
        let ExprKind::Collection { items, .. } = &target.kind else { return };
        let enumerates = self.is_rust() && callee.last_name().is_some_and(|n| &*n == "enumerate");
        if let Some(Expr { kind: ExprKind::Name(name), span }) = items.first()
            && enumerates
        {
            // Another term than the one the pattern bound.
            let instance = 1 << 26 | (self.frame.0 & 0x3ff_ffff);
            let index = self.terms.opaque(self.site(*span), instance, Taint::NONE, &[]);
            self.counters.insert(index);
            let index = self.value(index);
            self.assign_name(*name, index);
        }
    }

    /// A next run of the body sees other objects than the first one did.
    fn changes_next_run(&self, writes: &Writes) -> bool {
        writes.iter().any(|(key, value)| {
            let Some(before) = self.store.get(key) else { return false };
            before != value
                && value.terms().any(|t| {
                    !before.terms().any(|b| b == t)
                        && matches!(
                            self.terms.kind(t),
                            TermKind::Object(_) | TermKind::Inner(_) | TermKind::Function { .. }
                        )
                })
        })
    }

    pub(super) fn with(&mut self, items: &'p [WithItem], body: &'p [Stmt]) -> Term {
        let Some((item, rest)) = items.split_first() else { return self.block(body) };
        let modes = self.modes;
        let value = self.eval(&item.context);
        let falls = self.enter_context(&value, item, rest, body);
        self.modes = modes;
        falls
    }

    fn enter_context(
        &mut self,
        value: &Value,
        item: &'p WithItem,
        rest: &'p [WithItem],
        body: &'p [Stmt],
    ) -> Term {
        let site = self.site(item.context.span);
        if let Some(generator) = value.single().and_then(|t| self.generator_call(t)) {
            return self.run_context_generator(generator, item, rest, body);
        }
        let mut pushed = false;
        for alternative in &value.alternatives {
            let Some(object) = self.object_of(alternative.term) else { continue };
            match object.role {
                Role::NoGrad => self.modes.grad = false,
                Role::EnableGrad => self.modes.grad = true,
                Role::NoSync => self.modes.no_sync = true,
                Role::Join => self.modes.join = true,
                Role::MainOnly if !pushed => {
                    let rank = self.rank_term(crate::analysis::term::RankKind::Rank);
                    let zero = self.terms.int(0);
                    let is_main = self.terms.compare(crate::model::CompareOp::Eq, rank, zero);
                    self.push_path(is_main, site);
                    pushed = true;
                }
                _ => {}
            }
        }
        let entered = self.call_method(value, "__enter__", site);
        if let Some(target) = &item.target {
            let bound = entered.clone().unwrap_or_else(|| value.clone());
            self.assign(target, &bound, false);
        }
        let (falls, leave) = self.held_open(site, |this| this.with(rest, body));
        if entered.is_some() {
            self.call_method(value, "__exit__", site);
        }
        self.tree.extend(leave);
        if pushed {
            self.pop_path();
        }
        falls
    }

    /// Runs the body of a `with` whose manager has work to do after it. Where the body returns,
    /// that work comes first: what leaves the function is given back, to stand behind it.
    pub(super) fn held_open(
        &mut self,
        site: Site,
        body: impl FnOnce(&mut Self) -> Term,
    ) -> (Term, Option<Node>) {
        let (falls, tree) = self.grow(body);
        let leave = Node::Exit { kind: ExitKind::Return, site };
        match self.frame().function {
            Some(function) if exits_by(&tree, &[ExitKind::Return]) && !jumps(&tree) => {
                self.tree.push(Node::Call { function, site, body: tree });
                let leave = if falls == self.terms.no {
                    leave
                } else {
                    let (then, otherwise) = (Tree::from([]), Tree::from([leave]));
                    Node::Branch { condition: falls, site, then, otherwise }
                };
                (falls, Some(leave))
            }
            _ => {
                self.tree.extend(tree.iter().cloned());
                (falls, None)
            }
        }
    }

    fn attempt(
        &mut self,
        body: &'p [Stmt],
        handlers: &'p [Handler],
        otherwise: &'p [Stmt],
        finally: &'p [Stmt],
        site: Site,
    ) -> Term {
        let catches = handlers.iter().any(|h| !always_raises(&h.body));
        let caught = self.modes.caught;
        self.modes.caught |= catches;
        let (mut falls, body_tree) = self.grow(|this| {
            let falls = this.block(body);
            if falls == this.terms.no { falls } else { this.block(otherwise) }
        });
        self.modes.caught = caught;
        let mut caught_trees = Vec::new();
        for handler in handlers {
            let happened = self.terms.make(TermKind::Happened(self.site(handler.span)));
            let handler_site = self.site(handler.span);
            let (handler_falls, writes, tree) = self.arm(happened, handler_site, |this| {
                if let Some(name) = handler.name {
                    let term = this.fresh(handler_site, Taint::LOCAL, &[]);
                    let value = this.value(term);
                    this.assign_name(name, value);
                }
                this.block(&handler.body)
            });
            if handler_falls != self.terms.no {
                self.merge_branches(happened, Some(writes), Some(Writes::default()), site);
                falls = self.terms.yes;
            }
            if may_be_of_one_rank(handler) {
                self.caught.insert(happened);
            }
            let mut site = handler_site;
            site.span.end = match &handler.types {
                Some(types) => types.span.end,
                None => site.span.start + EXCEPT.len() as u32,
            };
            caught_trees.push(Caught { when: happened, site, body: tree });
        }
        if !body_tree.is_empty() || caught_trees.iter().any(|h| !h.body.is_empty()) {
            self.tree.push(Node::Try { site, body: body_tree, handlers: caught_trees });
        }
        let finally_falls = self.block(finally);
        self.terms.and([falls, finally_falls])
    }

    /// `match`: arms in turn. What falls through, and the value where it is used as one.
    pub(super) fn arms(
        &mut self,
        subject: &Value,
        arms: &'p [Arm],
        site: Site,
        valued: bool,
    ) -> (Term, Option<Value>) {
        let Some((arm, rest)) = arms.split_first() else {
            return (self.terms.yes, None);
        };
        if valued && arms.len() > TABLE_MIN && arms.iter().all(is_row) {
            return (self.terms.yes, Some(self.derived_value(site, std::slice::from_ref(subject))));
        }
        let arm_site = self.site(arm.span);
        let mut condition = self.pattern_condition(subject, &arm.pattern);
        if let Some(guard) = &arm.guard {
            self.assign(&arm.pattern, subject, false);
            let guard = self.eval(guard);
            let guard = self.condition(&guard);
            condition = self.terms.and([condition, guard]);
        }
        let mut values = (None, None);
        let falls = {
            let values = &mut values;
            let (then_value, else_value) = (&mut values.0, &mut values.1);
            self.fork(
                condition,
                arm_site,
                |this| {
                    this.assign(&arm.pattern, subject, false);
                    if !valued {
                        return this.block(&arm.body);
                    }
                    let (falls, value) = this.valued_block(&arm.body, true);
                    *then_value = Some(value);
                    falls
                },
                |this| {
                    let (falls, value) = this.arms(subject, rest, site, valued);
                    *else_value = value;
                    falls
                },
            )
        };
        let value = match values {
            (Some(a), Some(b)) => Some(self.join_bounded(condition, &a, &b, site)),
            (Some(a), None) | (None, Some(a)) => Some(a),
            (None, None) => None,
        };
        (falls, value)
    }

    fn pattern_condition(&mut self, subject: &Value, pattern: &'p Expr) -> Term {
        match &pattern.kind {
            ExprKind::Name(name) if self.is_binding(*name) => self.terms.yes,
            ExprKind::Bool { values, .. } => {
                let parts: Vec<Term> =
                    values.iter().map(|v| self.pattern_condition(subject, v)).collect();
                self.terms.or(parts)
            }
            ExprKind::Literal(_) | ExprKind::Name(_) | ExprKind::Attribute { .. } => {
                let wanted = self.eval_quietly(pattern);
                let test = self.compare_values(crate::model::CompareOp::Eq, subject, &wanted);
                self.condition(&test)
            }
            ExprKind::Call { callee, .. }
                if callee.last_name().is_some_and(|n| matches!(&*n, "Some" | "Ok")) =>
            {
                let none = self.nothing();
                let test = self.compare_values(crate::model::CompareOp::Is, subject, &none);
                let is_none = self.condition(&test);
                self.terms.not(is_none)
            }
            _ => {
                let site = self.site(pattern.span);
                let taint = subject.taint(&self.terms);
                self.fresh(site, taint, &[])
            }
        }
    }

    /// A bare name in a pattern binds, unless it is a known constant or `None`.
    fn is_binding(&self, name: Name) -> bool {
        let first = name.chars().next().unwrap_or('_');
        !(self.is_rust() && first.is_uppercase())
    }

    pub(super) fn condition(&mut self, value: &Value) -> Term {
        let mut parts = Vec::with_capacity(value.alternatives.len());
        for alternative in &value.alternatives {
            let truth = self.truth_term(alternative.term);
            parts.push(self.terms.and([alternative.when, truth]));
        }
        self.terms.or(parts)
    }

    fn truth_term(&mut self, term: Term) -> Term {
        match self.terms.kind(term) {
            TermKind::Const(value) => {
                let value = crate::analysis::term::truth(*value);
                self.terms.bool(value)
            }
            TermKind::Function { .. } | TermKind::Class(_) | TermKind::Module(_) => self.terms.yes,
            TermKind::Object(id) => {
                let object = self.object(*id);
                let sized = matches!(object.class, ObjectClass::List | ObjectClass::Dict);
                if sized { term } else { self.terms.yes }
            }
            // `if rank:` is `rank != 0`.
            TermKind::Rank(_) | TermKind::SpawnIndex => {
                let zero = self.terms.constant(Const::Int(0));
                self.terms.compare(crate::model::CompareOp::NotEq, term, zero)
            }
            _ => term,
        }
    }

    fn outer_key(&self, name: Name) -> Option<Key> {
        let mut at = self.frame().closure;
        while let Some(frame) = at {
            let key = Key::Variable(frame, name);
            if self.store.get(&key).is_some() {
                return Some(key);
            }
            at = self.frames[frame.0 as usize].closure;
        }
        None
    }
}

/// `call()?` is the call.
fn without_try(expr: &Expr) -> &Expr {
    match &expr.kind {
        ExprKind::Try(inner) | ExprKind::Await(inner) => without_try(inner),
        _ => expr,
    }
}

/// `__name__ == "__main__"`.
fn is_main_test(test: &Expr) -> bool {
    let ExprKind::Compare { left, rest } = &test.kind else { return false };
    let is_name = |e: &Expr| matches!(&e.kind, ExprKind::Name(n) if &**n == "__name__");
    let is_main = |e: &Expr| e.str().is_some_and(|s| &*s == "__main__");
    match rest.as_slice() {
        [(crate::model::CompareOp::Eq, right)] => {
            is_name(left) && is_main(right) || is_main(left) && is_name(right)
        }
        _ => false,
    }
}

fn holds_break(body: &[Stmt]) -> bool {
    body.iter().any(|statement| match &statement.kind {
        StmtKind::Break => true,
        StmtKind::If { body, otherwise, .. } => holds_break(body) || holds_break(otherwise),
        StmtKind::With { body, .. } | StmtKind::Block(body) => holds_break(body),
        StmtKind::Match { arms, .. } => arms.iter().any(|a| holds_break(&a.body)),
        StmtKind::Try { body, handlers, otherwise, finally } => {
            holds_break(body)
                || handlers.iter().any(|h| holds_break(&h.body))
                || holds_break(otherwise)
                || holds_break(finally)
        }
        // Rust jumps may stand in expressions; assume one.
        StmtKind::Expr(expr) | StmtKind::Assign { value: Some(expr), .. } => matches!(
            expr.kind,
            ExprKind::Block { .. } | ExprKind::Match { .. } | ExprKind::Conditional { .. }
        ),
        _ => false,
    })
}

const EXCEPT: &str = "except";

/// Errors that all ranks have alike, or that no rank has by bad luck: a missing package, the end
/// of what all walk over, somebody who stops the run.
const SHARED_ERRORS: [&str; 9] = [
    "AttributeError",
    "GeneratorExit",
    "ImportError",
    "KeyboardInterrupt",
    "ModuleNotFoundError",
    "NameError",
    "NotImplementedError",
    "StopIteration",
    "SystemExit",
];

/// An error may go here that one rank alone has.
fn may_be_of_one_rank(handler: &Handler) -> bool {
    let is_shared =
        |class: &Expr| class.last_name().is_some_and(|name| SHARED_ERRORS.contains(&&*name));
    match handler.types.as_ref().map(|types| (&types.kind, types)) {
        None => true,
        Some((ExprKind::Collection { items, .. }, _)) => !items.iter().all(is_shared),
        Some((_, class)) => !is_shared(class),
    }
}

fn always_raises(body: &[Stmt]) -> bool {
    body.last().is_some_and(|s| matches!(s.kind, StmtKind::Raise(_)))
}

/// A `match` of more arms than this, each with nothing but a constant, is a table of data.
const TABLE_MIN: usize = 24;

fn is_row(arm: &Arm) -> bool {
    let [Stmt { kind: StmtKind::Expr(expr), .. }] = arm.body.as_slice() else { return false };
    arm.guard.is_none() && is_constant(expr)
}

/// A literal or path, perhaps converted: `"x".to_string()`, `Some(E::A)`.
fn is_constant(expr: &Expr) -> bool {
    match &expr.kind {
        ExprKind::Literal(_) | ExprKind::Name(_) => true,
        ExprKind::Attribute { value, .. } => is_constant(value),
        ExprKind::Call { callee, arguments } => {
            let name = callee.last_name();
            let converts = |n: &str| {
                matches!(n, "to_string" | "to_owned" | "into" | "from" | "Some" | "Ok" | "Err")
            };
            name.is_some_and(|n| converts(&n))
                && is_constant(callee)
                && arguments.iter().all(|a| is_constant(&a.value))
        }
        _ => false,
    }
}

/// Some way through the tree leaves it so, those of callees not counted.
fn exits_by(tree: &[Node], kinds: &[ExitKind]) -> bool {
    tree.iter().any(|node| match node {
        Node::Exit { kind, .. } => kinds.contains(kind),
        Node::Branch { then, otherwise, .. } => exits_by(then, kinds) || exits_by(otherwise, kinds),
        Node::Loop { body, .. } => exits_by(body, kinds),
        Node::Try { body, handlers, .. } => {
            exits_by(body, kinds) || handlers.iter().any(|h| exits_by(&h.body, kinds))
        }
        Node::Event(_) | Node::Call { .. } => false,
    })
}

/// A `break` or `continue` leads out of the tree, or may.
fn jumps(tree: &[Node]) -> bool {
    tree.iter().any(|node| match node {
        Node::Loop { .. } => false,
        node => exits_by(std::slice::from_ref(node), &[ExitKind::Break, ExitKind::Continue]),
    })
}

/// The body of a loop, with what its condition does behind it: the next turn asks again. Where a
/// turn may be cut short that stands in other places, too, and is left out.
fn tested_again(body: Tree, tested: Vec<Node>) -> Tree {
    if tested.len() < 2 || exits_by(&body, &[ExitKind::Continue]) {
        return body;
    }
    body.iter().cloned().chain(tested).collect()
}
