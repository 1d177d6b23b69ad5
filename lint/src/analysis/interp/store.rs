//! What every variable, attribute and item holds now, with a trail to undo branches.

use indexmap::IndexMap;
use rustc_hash::{FxBuildHasher, FxHashMap};
use smallvec::smallvec;

use super::{Interpreter, ObjectClass, Writes};
use crate::analysis::term::{FrameId, Term, TermKind};
use crate::analysis::value::{ALTERNATIVES_MAX, Alternative, Value};
use crate::model::{FileId, Name, Site};

/// Marks an object whose attributes are set under names that are not known.
pub(super) const SET_BY_NAME: &str = "<set by name>";

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
pub(in crate::analysis) enum Key {
    Variable(FrameId, Name),
    Global(FileId, Name),
    Attribute(Term, Name),
    Item(Term, Term),
    /// The wrapper that was made around this module.
    Wrapper(Term),
}

impl Key {
    /// Outlives the frame that writes it.
    pub(super) fn is_lasting(self) -> bool {
        !matches!(self, Key::Variable(..))
    }
}

#[derive(Default)]
pub(super) struct Store {
    now: FxHashMap<Key, Value>,
    trail: Vec<(Key, Option<Value>)>,
}

impl Store {
    pub(super) fn get(&self, key: &Key) -> Option<&Value> {
        self.now.get(key)
    }

    /// What is written under known keys of a container, in the order of the keys' terms.
    pub(super) fn items(&self, container: Term) -> Vec<(Term, Value)> {
        let mut items: Vec<(Term, Value)> = self
            .now
            .iter()
            .filter_map(|(key, value)| match key {
                Key::Item(of, key) if *of == container => Some((*key, value.clone())),
                _ => None,
            })
            .collect();
        items.sort_by_key(|(key, _)| *key);
        items
    }

    /// What is written to the attributes of an object, in the order of their names.
    pub(super) fn attributes(&self, object: Term) -> Vec<(Name, Value)> {
        let mut found: Vec<(Name, Value)> = self
            .now
            .iter()
            .filter_map(|(key, value)| match key {
                Key::Attribute(of, name) if *of == object && !name.starts_with('<') => {
                    Some((*name, value.clone()))
                }
                _ => None,
            })
            .collect();
        found.sort_by_key(|(name, _)| name.to_string());
        found
    }

    pub(super) fn set(&mut self, key: Key, value: Value) {
        let old = self.now.insert(key, value);
        self.trail.push((key, old));
    }

    fn remove(&mut self, key: Key) {
        let old = self.now.remove(&key);
        self.trail.push((key, old));
    }

    pub(super) fn mark(&self) -> usize {
        self.trail.len()
    }

    /// What was written since the mark, as it is now.
    pub(super) fn writes_since(&self, mark: usize, keep: impl Fn(&Key) -> bool) -> Writes {
        let mut writes = Writes::default();
        for (key, _) in &self.trail[mark..] {
            if keep(key)
                && let Some(value) = self.now.get(key)
            {
                writes.insert(*key, value.clone());
            }
        }
        writes
    }

    /// Drops the variables of a frame, all of which were written since the mark.
    pub(super) fn forget_variables(&mut self, frame: FrameId, mark: usize) {
        let mut kept = mark;
        for at in mark..self.trail.len() {
            let key = self.trail[at].0;
            if matches!(key, Key::Variable(of, _) if of == frame) {
                self.now.remove(&key);
            } else {
                self.trail.swap(kept, at);
                kept += 1;
            }
        }
        self.trail.truncate(kept);
    }

    pub(super) fn lasting_write_since(&self, mark: usize) -> bool {
        self.trail[mark..].iter().any(|(key, _)| key.is_lasting())
    }

    /// Undoes what was written since the mark.
    pub(super) fn undo_to(&mut self, mark: usize) {
        for (key, old) in self.trail.drain(mark..).rev() {
            match old {
                Some(value) => self.now.insert(key, value),
                None => self.now.remove(&key),
            };
        }
    }

    /// Undoes what was written since the mark, and gives it, as it was at last.
    pub(super) fn take_since(&mut self, mark: usize) -> Writes {
        let mut last: IndexMap<Key, Option<Value>, FxBuildHasher> = IndexMap::default();
        for (key, old) in self.trail.drain(mark..).rev() {
            let new = match old {
                Some(value) => self.now.insert(key, value),
                None => self.now.remove(&key),
            };
            last.entry(key).or_insert(new);
        }
        last.into_iter().filter_map(|(key, value)| Some((key, value?))).collect()
    }
}

impl Interpreter<'_> {
    pub(super) fn write(&mut self, key: Key, value: Value) {
        if key.is_lasting() && self.store.get(&key) != Some(&value) {
            self.epoch += 1;
        }
        self.store.set(key, value);
    }

    pub(super) fn forget(&mut self, key: Key) {
        self.store.remove(key);
    }

    /// The value under a key, alternatives that contradict the path left out.
    pub(super) fn read(&self, key: &Key) -> Option<Value> {
        let value = self.store.get(key)?;
        if value.alternatives.len() == 1 && value.alternatives[0].when == self.terms.yes {
            return Some(value.clone());
        }
        let mut kept = value.clone();
        kept.alternatives.retain(|a| self.settle(a.when) != Some(false));
        (!kept.alternatives.is_empty()).then_some(kept)
    }

    /// Joins two outcomes of a condition: `then` where it holds, `otherwise` where not.
    pub(super) fn join(&mut self, condition: Term, then: &Value, otherwise: &Value) -> Value {
        if then == otherwise {
            return then.clone();
        }
        let negated = self.terms.not(condition);
        let mut joined: Vec<Alternative> = Vec::new();
        for (when, value) in [(condition, then), (negated, otherwise)] {
            for alternative in &value.alternatives {
                let when = self.terms.and([when, alternative.when]);
                if when == self.terms.no {
                    continue;
                }
                match joined.iter_mut().find(|j| j.term == alternative.term) {
                    Some(same) => same.when = self.terms.or([same.when, when]),
                    None => joined.push(Alternative { when, term: alternative.term }),
                }
            }
        }
        if let [only] = joined.as_mut_slice()
            && then.single() == otherwise.single()
        {
            only.when = self.terms.yes;
        }
        Value { alternatives: joined.into() }
    }

    /// As `join`, but too many alternatives become one opaque value made at `site`.
    pub(super) fn join_bounded(
        &mut self,
        condition: Term,
        then: &Value,
        otherwise: &Value,
        site: Site,
    ) -> Value {
        let joined = self.join(condition, then, otherwise);
        if joined.alternatives.len() <= ALTERNATIVES_MAX {
            return joined;
        }
        let taint = joined.taint(&self.terms);
        let origins = joined.origins(&self.terms);
        let term = self.terms.opaque(site, u32::MAX, taint, &origins);
        Value { alternatives: smallvec![Alternative { when: self.terms.yes, term }] }
    }

    /// An attribute that nothing is seen to write, of an object that gets its settings by name
    /// or from the command line.
    fn unseen_setting(&mut self, key: Key) -> Option<Value> {
        let Key::Attribute(object, name) = key else { return None };
        let is_parsed = self.object_of(object).is_some_and(|o| o.class == ObjectClass::Arguments);
        if is_parsed && !name.starts_with('<') {
            return Some(self.parsed_argument(object, name));
        }
        self.store.get(&Key::Attribute(object, Name::new(SET_BY_NAME)))?;
        let term = self.terms.make(TermKind::Attribute(object, name));
        Some(Value::of(&self.terms, term))
    }

    /// Applies the outcomes of two branches; `None` for a branch that does not go on.
    pub(super) fn merge_branches(
        &mut self,
        condition: Term,
        then: Option<Writes>,
        otherwise: Option<Writes>,
        site: Site,
    ) {
        let (then, otherwise) = match (then, otherwise) {
            (Some(then), Some(otherwise)) => (then, otherwise),
            (Some(only), None) | (None, Some(only)) => {
                for (key, value) in only {
                    self.write(key, value);
                }
                return;
            }
            (None, None) => return,
        };
        let more = otherwise.keys().filter(|k| !then.contains_key(*k));
        for key in then.keys().chain(more).copied() {
            let before = self.store.get(&key).cloned().or_else(|| self.unseen_setting(key));
            let a = then.get(&key).or(before.as_ref());
            let b = otherwise.get(&key).or(before.as_ref());
            let joined = match (a, b) {
                (Some(a), Some(b)) => self.join_bounded(condition, a, b, site),
                (Some(only), None) => self.under(condition, only),
                (None, Some(only)) => {
                    let negated = self.terms.not(condition);
                    self.under(negated, only)
                }
                (None, None) => continue,
            };
            self.write(key, joined);
        }
    }

    fn under(&mut self, condition: Term, value: &Value) -> Value {
        let mut value = value.clone();
        for alternative in &mut value.alternatives {
            alternative.when = self.terms.and([condition, alternative.when]);
        }
        value
    }
}
