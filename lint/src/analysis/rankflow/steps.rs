//! The steps of a specialised run, in lists that know what they are: equal lists are told apart
//! from others without a look inside.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::ops::Deref;
use std::rc::Rc;

use super::Op;
use crate::analysis::{EventId, ExitKind, Term};
use crate::model::Site;

/// One step of a specialised run.
#[derive(Clone, Debug)]
pub enum Step {
    Together {
        key: Op,
        event: EventId,
    },
    If {
        condition: Term,
        site: Site,
        then: Steps,
        otherwise: Steps,
    },
    /// `counted`: how often it runs is known by its header; else only by its place.
    Loop {
        header: Term,
        counted: bool,
        site: Site,
        body: Steps,
    },
    /// Leaves the loop around it (`Break`), its function, or the program (`Stop`).
    Leave(ExitKind),
}

/// A list of steps, shared.
#[derive(Clone, Debug)]
pub struct Steps {
    list: Rc<[Step]>,
    digest: u64,
    first: Option<EventId>,
}

impl From<Vec<Step>> for Steps {
    fn from(list: Vec<Step>) -> Self {
        let mut hasher = DefaultHasher::new();
        for step in &list {
            step.digest().hash(&mut hasher);
        }
        let first = first_event(&list);
        Self { list: list.into(), digest: hasher.finish(), first }
    }
}

impl FromIterator<Step> for Steps {
    fn from_iter<I: IntoIterator<Item = Step>>(steps: I) -> Self {
        steps.into_iter().collect::<Vec<_>>().into()
    }
}

impl Deref for Steps {
    type Target = [Step];

    fn deref(&self) -> &[Step] {
        &self.list
    }
}

impl Steps {
    /// The first thing that is done together in it.
    pub fn first_event(&self) -> Option<EventId> {
        self.first
    }
}

impl Step {
    /// Equal for steps at which two ranks do the same.
    fn digest(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        std::mem::discriminant(self).hash(&mut hasher);
        match self {
            Step::Together { key, .. } => key.hash(&mut hasher),
            Step::If { condition, then, otherwise, .. } => {
                (condition, then.digest, otherwise.digest).hash(&mut hasher);
            }
            // That two loops over unknown things run equally often is for the user to say.
            Step::Loop { header, counted, body, .. } => {
                (counted.then_some(header), body.digest).hash(&mut hasher);
            }
            Step::Leave(kind) => kind.hash(&mut hasher),
        }
        hasher.finish()
    }

    /// Equal for steps that are the same, or the same place with other contents.
    pub(super) fn likeness(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        match self {
            Step::If { condition, .. } => condition.hash(&mut hasher),
            Step::Loop { site, header, .. } => (site, header).hash(&mut hasher),
            _ => return self.digest(),
        }
        hasher.finish()
    }

    pub(super) fn first_event(&self) -> Option<EventId> {
        match self {
            Step::Together { event, .. } => Some(*event),
            Step::If { then, otherwise, .. } => then.first.or(otherwise.first),
            Step::Loop { body, .. } => body.first,
            Step::Leave(_) => None,
        }
    }
}

pub(super) fn first_event(steps: &[Step]) -> Option<EventId> {
    steps.iter().find_map(Step::first_event)
}

/// Two ranks do the same at these steps.
pub(super) fn same(a: &Step, b: &Step) -> bool {
    a.digest() == b.digest()
}

pub(super) fn same_steps(a: &[Step], b: &[Step]) -> bool {
    a.len() == b.len() && a.iter().zip(b).all(|(x, y)| same(x, y))
}
