//! Checkpoints: which model's state is saved to which file, and which is loaded from it.
//! It judges nothing; rules do.

use super::{Call, Const, Event, ObjectClass, Program, Term, TermKind, Value};
use crate::model::{BinaryOp, FileId, Name, Site};
use crate::table::Role;

/// Where in a file a state lies.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Slot {
    /// It is all that the file holds.
    Whole,
    /// Under this key of a dict.
    Under(Name),
    /// Somewhere in a dict.
    Somewhere,
}

impl Slot {
    /// The same place, as far as is known.
    pub fn fits(self, other: Slot) -> bool {
        match (self, other) {
            (Slot::Whole, Slot::Whole) => true,
            (Slot::Under(a), Slot::Under(b)) => a == b,
            (Slot::Whole, _) | (_, Slot::Whole) => false,
            _ => true,
        }
    }
}

/// A model's state on its way to a file.
#[derive(Clone, Copy, Debug)]
pub struct SavedState<'e, 'p> {
    /// The call that writes the file.
    pub save: (&'e Event<'p>, &'e Call<'p>),
    /// `model.state_dict()`.
    pub state: (&'e Event<'p>, &'e Call<'p>),
    /// The model: a wrapper, what is in one, or a bare module.
    pub model: Term,
    pub slot: Slot,
}

/// A model's state on its way from a file, as it was loaded: no key was changed.
#[derive(Clone, Copy, Debug)]
pub struct LoadedState<'e, 'p> {
    /// The call that reads the file.
    pub load: (&'e Event<'p>, &'e Call<'p>),
    /// `model.load_state_dict(..)`.
    pub into: (&'e Event<'p>, &'e Call<'p>),
    pub model: Term,
    pub slot: Slot,
}

/// A state that a program saves or loads, told to other programs.
#[derive(Clone, Debug)]
pub struct ToldState {
    /// Where the file is written, or where the state is loaded into the model.
    pub site: Site,
    pub slot: Slot,
    /// Of the file, without folders; none where it has no known name.
    pub names: Vec<String>,
    /// The class of the bare model, and where it was made.
    pub model: Option<(ObjectClass, Site)>,
    pub is_wrapped: bool,
    /// The files that hold the two calls.
    pub files: [FileId; 2],
}

/// What a program saves and loads.
#[derive(Debug)]
pub struct ToldStates {
    pub saved: Vec<ToldState>,
    pub loaded: Vec<ToldState>,
}

/// Items of items are followed this far.
const DEPTH_MAX: usize = 3;

impl<'p> Program<'p> {
    /// Every state of a model that is saved as it is.
    pub fn saved_states(&self) -> Vec<SavedState<'_, 'p>> {
        let mut saved = Vec::new();
        for (event, call) in self.calls(Role::Save) {
            let Some(object) = call.value_at(0, "obj") else { continue };
            for term in object.terms() {
                self.add_saved(event, call, term, Slot::Whole, &mut saved);
                let is_dict = self.object_of(term).is_some_and(|o| o.class == ObjectClass::Dict);
                let items = if is_dict { self.run.items_now(term) } else { Vec::new() };
                for (key, value) in items {
                    let slot = self.terms().as_str(key).map_or(Slot::Somewhere, Slot::Under);
                    for term in value.terms() {
                        self.add_saved(event, call, term, slot, &mut saved);
                    }
                }
            }
        }
        saved
    }

    fn add_saved<'e>(
        &'e self,
        event: &'e Event<'p>,
        call: &'e Call<'p>,
        term: Term,
        slot: Slot,
        saved: &mut Vec<SavedState<'e, 'p>>,
    ) {
        // A model that may be several things has one call for each, with the same result.
        for (state_event, state) in self.calls(Role::StateDict) {
            let is_it = state.result.single() == Some(term);
            let model = state.receiver.as_ref().and_then(Value::single);
            if let (true, Some(model)) = (is_it, model)
                && self.is_model(model)
            {
                let (save, state) = ((event, call), (state_event, state));
                saved.push(SavedState { save, state, model, slot });
            }
        }
    }

    /// Every state that is loaded into a model as it came from a file.
    pub fn loaded_states(&self) -> Vec<LoadedState<'_, 'p>> {
        let mut loaded = Vec::new();
        for (event, call) in self.calls(Role::LoadStateDict) {
            let model = call.receiver.as_ref().and_then(Value::single);
            let Some(model) = model.filter(|&model| self.is_model(model)) else { continue };
            let Some(state) = call.value_at(0, "state_dict") else { continue };
            for term in state.terms() {
                if let Some((load, slot)) = self.loaded_from(term) {
                    loaded.push(LoadedState { load, into: (event, call), model, slot });
                }
            }
        }
        loaded
    }

    /// The call that read a file, where a term is what it gave or an item of that.
    pub fn loaded_from(&self, term: Term) -> Option<((&Event<'p>, &Call<'p>), Slot)> {
        let (mut at, mut slot) = (term, Slot::Whole);
        for depth in 0..DEPTH_MAX {
            if let Some((event, call)) = self.maker(at)
                && call.role == Role::Load
            {
                return Some(((event, call), slot));
            }
            let (container, index) = *self.run.item_of.get(&at)?;
            // Only what lies in the saved dict itself has a key there.
            let key = self.terms().as_str(index).filter(|_| depth == 0);
            slot = key.map_or(Slot::Somewhere, Slot::Under);
            at = container;
        }
        None
    }

    pub fn tell_states(&self) -> ToldStates {
        let saved = self.saved_states();
        let loaded = self.loaded_states();
        ToldStates {
            saved: saved.iter().map(|state| self.tell_saved(state)).collect(),
            loaded: loaded.iter().map(|state| self.tell_loaded(state)).collect(),
        }
    }

    pub fn tell_saved(&self, state: &SavedState<'_, 'p>) -> ToldState {
        let files = [state.save.0.site.file, state.state.0.site.file];
        self.tell(state.save.0.site, state.slot, state.save.1, state.model, files)
    }

    pub fn tell_loaded(&self, state: &LoadedState<'_, 'p>) -> ToldState {
        let files = [state.load.0.site.file, state.into.0.site.file];
        self.tell(state.into.0.site, state.slot, state.load.1, state.model, files)
    }

    fn tell(
        &self,
        site: Site,
        slot: Slot,
        of_file: &Call<'p>,
        model: Term,
        files: [FileId; 2],
    ) -> ToldState {
        let path = self.file_argument(of_file);
        let names = path.map(|path| self.file_names(path)).unwrap_or_default();
        let object = self.bare_model(model).and_then(|bare| self.object_of(bare));
        let model_told = object.map(|object| (object.class, object.site));
        let is_wrapped = self.wrapper_of(model).is_some();
        ToldState { site, slot, names, model: model_told, is_wrapped, files }
    }

    /// What is inside a wrapper; the model itself where it is none.
    pub fn bare_model(&self, model: Term) -> Option<Term> {
        match *self.terms().kind(model) {
            TermKind::Object(id) if self.wrapper_kind(id).is_some() => {
                self.wrapped_module(id)?.single()
            }
            TermKind::Inner(id) => self.wrapped_module(id)?.single(),
            _ => Some(model),
        }
    }

    /// A module, or something that a wrapper holds.
    fn is_model(&self, term: Term) -> bool {
        self.is_module(term)
            || self.objects().iter().any(|object| {
                self.wrapper_kind(object.id).is_some()
                    && self.wrapped_module(object.id).is_some_and(|m| m.terms().any(|t| t == term))
            })
    }

    /// The names of files that a value may be, without folders: `["net.pt"]` of
    /// `os.path.join(out, "net.pt")`, or the default of a command line argument.
    pub fn file_names(&self, path: &Value) -> Vec<String> {
        let mut names = Vec::new();
        for term in path.terms() {
            self.add_file_names(term, &mut names);
        }
        names
    }

    fn add_file_names(&self, term: Term, names: &mut Vec<String>) {
        match self.terms().kind(term) {
            TermKind::Const(Const::Str(text)) => {
                let name = text.rsplit(['/', '\\']).next().unwrap_or_default();
                // Of `f"{step}.pt"` only the ending is known.
                if !name.is_empty() && !name.starts_with('.') {
                    names.push(name.to_owned());
                }
            }
            TermKind::Text(parts) => {
                let last = parts.last().and_then(|&t| self.terms().as_str(t));
                if let Some((_, name)) = last.as_deref().and_then(|text| text.rsplit_once('/')) {
                    names.push(name.to_owned());
                }
            }
            TermKind::Apply(name, parts) if name.contains("join") || name.contains("Path") => {
                if let Some(&last) = parts.last() {
                    self.add_file_names(last, names);
                }
            }
            TermKind::Binary(BinaryOp::Div | BinaryOp::Add, _, last) => {
                self.add_file_names(*last, names);
            }
            TermKind::Object(_) => {
                let object = self.object_of(term).filter(|o| self.is_path(o));
                let last = object.and_then(|o| o.arguments.last());
                if let Some(last) = last {
                    last.value.terms().for_each(|t| self.add_file_names(t, names));
                }
            }
            _ => {
                if let Some(default) = self.command_line_default(term) {
                    default.terms().for_each(|t| self.add_file_names(t, names));
                }
            }
        }
    }

    fn is_path(&self, object: &super::Object<'p>) -> bool {
        self.outside_class(object).is_some_and(|name| name.starts_with("pathlib"))
    }

    /// The optimizer or scheduler is loaded from the same file.
    pub fn loads_optimizer_from(&self, load: &Event<'p>) -> bool {
        self.calls(Role::LoadStateDict).any(|(_, call)| {
            let is_module = call.receiver.iter().flat_map(Value::terms).any(|t| self.is_module(t));
            let state = call.value_at(0, "state_dict");
            !is_module && state.is_some_and(|state| state.comes_from(self.terms(), load.id))
        })
    }
}
