//! The walk's bookkeeping: where it stands (for messages) and under which name a tensor found
//! there would be registered. Knows nothing of stores.

use std::borrow::Cow;
use std::fmt::{Display, Write as _};

use tch::Tensor;

/// What a tensor field was declared to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Role {
    /// Nothing was said: the store and the tensor decide.
    #[default]
    Undeclared,
    /// `#[dp(param)]`: trains, whether or not it says so yet.
    Parameter,
    /// `#[dp(buffer)]`, or a running statistic: the same on all ranks, without a gradient.
    Buffer,
}

/// Why the walk could not look into a field.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hidden {
    /// A type of the user or of another crate without `#[data_parallel]`; it may hold tensors.
    Opaque(&'static str),
    /// A type of tch that holds tensors and keeps them private.
    Private(&'static str),
    /// `#[dp(skip)]`.
    Skipped,
    /// A lock that someone holds.
    Locked,
    /// Shared ownership: it can be read but not replaced.
    Shared,
}

/// Where the walk stands.
#[derive(Debug, Clone, Copy)]
pub struct Place<'a> {
    /// The path of fields, as in `blocks[2].attn.scale`.
    pub field: &'a str,
    /// The parts of the name that `register` would give, as in `["blocks", "2", "attn", "scale"]`.
    pub name: &'a [Cow<'static, str>],
    /// What the field, or one around it, was declared to be.
    pub role: Role,
}

/// What is done with the tensors that a walk finds.
pub trait Sink {
    /// A tensor.
    fn tensor(&mut self, place: Place<'_>, tensor: &Tensor);

    /// A field that the walk could not enter.
    fn hidden(&mut self, place: Place<'_>, why: Hidden) {
        let _ = (place, why);
    }
}

/// Carries a [`Sink`] through a model and keeps track of the place.
pub struct Visitor<'v> {
    sink: &'v mut dyn Sink,
    field: String,
    name: Vec<Cow<'static, str>>,
    role: Role,
    pattern: Option<&'static str>,
    outer: Vec<Frame>,
    replaces: bool,
}

/// What to restore when the walk leaves a field.
struct Frame {
    field_len: usize,
    name_len: usize,
    role: Role,
    pattern: Option<&'static str>,
}

impl<'v> Visitor<'v> {
    /// A walk that starts at the model itself.
    pub fn new(sink: &'v mut dyn Sink) -> Self {
        Self {
            sink,
            field: String::new(),
            name: Vec::new(),
            role: Role::Undeclared,
            pattern: None,
            outer: Vec::new(),
            replaces: false,
        }
    }

    /// A walk whose sink makes the tensors stand for others, so only what the model alone holds may
    /// be shown to it.
    pub(crate) fn replacing(sink: &'v mut dyn Sink) -> Self {
        Self { replaces: true, ..Self::new(sink) }
    }

    /// Whether the tensors that are shown become others: what is shared with other owners is then
    /// to be reported as [`Hidden::Shared`] instead.
    pub fn replaces(&self) -> bool {
        self.replaces
    }

    /// Enters a field whose tensors are named after it.
    pub fn enter(&mut self, field: &'static str) {
        self.enter_as(field, field, Role::Undeclared);
    }

    /// Enters a field whose tensors are named `name`; a declared role holds for all inside.
    pub fn enter_as(&mut self, field: &'static str, name: &'static str, role: Role) {
        let pattern = self.pattern;
        self.push_field(field, role);
        self.name.push(match pattern {
            Some(pattern) => Cow::Owned(pattern.replace("{k}", name)),
            None => Cow::Borrowed(name),
        });
    }

    /// Enters a list whose elements are named by a pattern, `{k}` standing for the index or key
    /// (or, in a tuple, the position).
    pub fn enter_pattern(&mut self, field: &'static str, pattern: &'static str, role: Role) {
        self.push_field(field, role);
        self.pattern = Some(pattern);
    }

    /// Enters a field that adds nothing to the name of what it holds.
    pub fn enter_transparent(&mut self, field: &'static str, role: Role) {
        self.push_field(field, role);
    }

    /// Enters an element of a list or map.
    pub fn key(&mut self, key: &dyn Display) {
        self.save();
        let key = key.to_string();
        let _ = write!(self.field, "[{key}]");
        self.name.push(Cow::Owned(match self.pattern.take() {
            Some(pattern) => pattern.replace("{k}", &key),
            None => key,
        }));
    }

    /// Leaves what was entered last.
    ///
    /// # Panics
    /// If nothing was entered: the calls of an implementation must pair.
    pub fn leave(&mut self) {
        let frame = self.outer.pop().expect("`leave` without `enter` in a `Replicable`");
        self.field.truncate(frame.field_len);
        self.name.truncate(frame.name_len);
        self.role = frame.role;
        self.pattern = frame.pattern;
    }

    /// Shows a tensor.
    pub fn tensor(&mut self, tensor: &Tensor) {
        let place = Place { field: &self.field, name: &self.name, role: self.role };
        self.sink.tensor(place, tensor);
    }

    /// Reports that this place cannot be looked into.
    pub fn hidden(&mut self, why: Hidden) {
        let place = Place { field: &self.field, name: &self.name, role: self.role };
        self.sink.hidden(place, why);
    }

    fn push_field(&mut self, field: &str, role: Role) {
        self.save();
        if !self.field.is_empty() {
            self.field.push('.');
        }
        self.field.push_str(field);
        if role != Role::Undeclared {
            self.role = role;
        }
        self.pattern = None;
    }

    fn save(&mut self) {
        self.outer.push(Frame {
            field_len: self.field.len(),
            name_len: self.name.len(),
            role: self.role,
            pattern: self.pattern,
        });
    }
}
