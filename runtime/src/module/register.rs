//! Makes the store know what the model's fields hold: decides for every tensor that a walk finds
//! whether it is a variable already, becomes one now, or must not be one. Changes nothing
//! unless everything is in order; never touches values or storage.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;
use std::sync::{Mutex, PoisonError};

use tch::nn::{Path, VarStore};
use tch::{Device, Tensor};

use super::store::{Identity, Known, place};
use super::{Hidden, Place, Replicable, Role, Sink, Visitor};
use crate::{Error, Launch, Result};

/// What a field turned out to hold.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Held {
    /// A variable that trains.
    Parameter,
    /// A variable that does not train.
    Buffer,
    /// A tensor of integers or booleans outside of the store; each rank keeps its own.
    Constant,
    /// A float tensor outside of the store that does not train; found by [`check`] only.
    Loose,
    /// The same tensor as another field's, which is named.
    Tied(String),
    /// The walk could not look inside.
    Hidden(Hidden),
}

/// One line of the report.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// The path of fields, as in `blocks[2].scale`.
    pub field: String,
    /// The variable's name in the store, relative to the path given to `register`.
    pub name: Option<String>,
    pub held: Held,
    /// Whether `register` put it into the store just now.
    pub late: bool,
}

/// The report of [`register`] and [`check`]; print it to see field → parameter, buffer, opaque,
/// skipped.
#[derive(Debug, Default)]
#[non_exhaustive]
pub struct Registered {
    pub entries: Vec<Entry>,
    /// What works and is probably not meant; `register` prints them on rank 0.
    pub warnings: Vec<String>,
    /// Tensors that every rank should hold alike though the store does not know them, with the
    /// paths of their fields.
    pub loose: Vec<(String, Tensor)>,
}

impl Registered {
    /// The names of the variables that `register` added, in the order of the fields.
    pub fn late(&self) -> impl Iterator<Item = &str> {
        self.entries.iter().filter(|entry| entry.late).filter_map(|entry| entry.name.as_deref())
    }

    /// Prints the warnings. Every rank finds the same, so one of them says it, and each once.
    pub(crate) fn warn(&self) {
        static SAID: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());
        if Launch::from_env().is_ok_and(|launch| launch.rank() > 0) {
            return;
        }
        let mut said = SAID.lock().unwrap_or_else(PoisonError::into_inner);
        for warning in &self.warnings {
            if said.insert(warning.clone()) {
                eprintln!("warning: {warning}");
            }
        }
    }
}

impl fmt::Display for Registered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let width = |text: fn(&Entry) -> &str| {
            self.entries.iter().map(|entry| text(entry).chars().count()).max().unwrap_or(0)
        };
        let field_width = width(|entry| &entry.field);
        let name_width = width(|entry| entry.name.as_deref().unwrap_or("-"));
        for entry in &self.entries {
            let (field, name) = (&entry.field, entry.name.as_deref().unwrap_or("-"));
            write!(f, "{field:field_width$}  {name:name_width$}  {}", entry.held)?;
            writeln!(f, "{}", if entry.late { ", registered now" } else { "" })?;
        }
        self.warnings.iter().try_for_each(|warning| writeln!(f, "warning: {warning}"))
    }
}

impl fmt::Display for Held {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Parameter => f.write_str("parameter"),
            Self::Buffer => f.write_str("buffer"),
            Self::Constant => f.write_str("constant, each rank keeps its own"),
            Self::Loose => f.write_str("float tensor outside of the store"),
            Self::Tied(field) => write!(f, "the same tensor as {field}"),
            Self::Hidden(Hidden::Opaque(name)) => write!(f, "opaque ({name})"),
            Self::Hidden(Hidden::Private(name)) => write!(f, "opaque ({name}: in the store only)"),
            Self::Hidden(Hidden::Skipped) => f.write_str("skipped"),
            Self::Hidden(Hidden::Locked) => f.write_str("locked, not looked into"),
            Self::Hidden(Hidden::Shared) => f.write_str("shared, cannot be replaced"),
        }
    }
}

/// Registers what the model's fields hold and the store below `root` does not know.
///
/// To be called right after the model was built, before any `load` and before `Ddp::new`. A
/// trainable leaf becomes a parameter, a `#[dp(buffer)]` a buffer, each under the path of its
/// field (`weights.0`) or the name that `#[dp(..)]` gives; storage and values stay, and an
/// optimizer that was built before trains the new parameters too. A float tensor that neither
/// trains nor was declared becomes a buffer with a warning. Calling it again changes nothing.
///
/// # Errors
/// All problems at once, and nothing is registered: a trainable tensor that was computed from
/// others, a tensor on another device than the store, a name that is taken or holds a dot.
pub fn register<M: Replicable + ?Sized>(model: &M, root: &Path<'_>) -> Result<Registered> {
    register_any(&model, root)
}

/// Not generic, so that it is compiled here and not once more with every model.
fn register_any(model: &dyn Replicable, root: &Path<'_>) -> Result<Registered> {
    let survey = Survey::of(model, Known::below(root), Some(root.device()));
    let (mut registered, late) = survey.finish()?;
    for variable in late {
        let Some((path, last)) = place(root, &variable.parts) else { continue };
        let _ = path.add(last, variable.tensor, variable.trains);
    }
    warn_of_renamed(&Known::below(root), &mut registered.warnings);
    registered.warn();
    Ok(registered)
}

/// Compares the model with its store and changes neither: the pre-flight of `Ddp::checked`.
///
/// # Errors
/// Those of [`register`], and every tensor that `register` would have to add.
pub fn check<M: Replicable + ?Sized>(model: &M, vs: &VarStore) -> Result<Registered> {
    check_any(&model, vs)
}

fn check_any(model: &dyn Replicable, vs: &VarStore) -> Result<Registered> {
    let known = Known::in_store(vs);
    let mut warnings = Vec::new();
    warn_of_renamed(&known, &mut warnings);
    let survey = Survey::of(model, known, None);
    let (mut registered, _) = survey.finish()?;
    registered.warnings.append(&mut warnings);
    Ok(registered)
}

/// A variable that `register` will add.
struct Late {
    parts: Vec<String>,
    tensor: Tensor,
    trains: bool,
}

/// Collects what a walk finds. With a device, missing variables are gathered in `late`; without,
/// they are problems.
struct Survey {
    known: Known,
    device: Option<Device>,
    report: Registered,
    late: Vec<Late>,
    problems: Vec<String>,
    /// Fields that are not in the store, by tensor and by the name they will get.
    seen: HashMap<Identity, String>,
    taken: BTreeMap<String, String>,
}

impl Survey {
    fn of(model: &dyn Replicable, known: Known, device: Option<Device>) -> Self {
        let mut survey = Self {
            known,
            device,
            report: Registered::default(),
            late: Vec::new(),
            problems: Vec::new(),
            seen: HashMap::new(),
            taken: BTreeMap::new(),
        };
        model.visit(&mut Visitor::new(&mut survey));
        survey
    }

    fn finish(self) -> Result<(Registered, Vec<Late>)> {
        match self.problems {
            problems if problems.is_empty() => Ok((self.report, self.late)),
            problems => Err(Error::Model { problems }),
        }
    }

    fn entry(&mut self, field: &str, name: Option<String>, held: Held) {
        let field = if field.is_empty() { "self" } else { field }.to_owned();
        self.report.entries.push(Entry { field, name, held, late: false });
    }

    fn in_store(&mut self, place: Place<'_>, tensor: &Tensor, name: String) {
        let trains = tensor.requires_grad();
        if trains && place.role == Role::Buffer {
            self.report.warnings.push(format!(
                "`{}` is declared a buffer, but the store trains it as `{name}` (tch's \
                 `entry(..).or_zeros_no_train` registers a parameter): create it with \
                 `path.zeros_no_train`, or drop the declaration",
                place.field
            ));
        }
        let held = if trains { Held::Parameter } else { Held::Buffer };
        self.entry(place.field, Some(name), held);
    }

    fn outside(&mut self, place: Place<'_>, tensor: &Tensor) {
        let field = place.field;
        let floats = tensor.is_floating_point() || tensor.is_complex();
        match (tensor.requires_grad(), place.role) {
            (true, _) if !tensor.is_leaf() => self.problems.push(format!(
                "`{field}` is computed from other variables (it is no leaf), so no optimizer can \
                 train it and it goes stale after the first step: keep the variables in the field \
                 and compute in `forward`, or register the result (`path.add(name, \
                 t.detach().copy(), true)`)"
            )),
            (true, Role::Buffer) => self.problems.push(format!(
                "`{field}` is declared `#[dp(buffer)]` and asks for a gradient: drop \
                 `set_requires_grad(true)`, or declare it `#[dp(param)]`"
            )),
            (false, Role::Parameter) if !floats => self.problems.push(format!(
                "`{field}` is declared `#[dp(param)]`, but a tensor of kind {:?} has no gradient: \
                 declare it `#[dp(buffer)]`",
                tensor.kind()
            )),
            (true, _) | (false, Role::Parameter) => self.missing(place, tensor, true),
            (false, Role::Buffer) => self.missing(place, tensor, false),
            (false, Role::Undeclared) if floats => self.undeclared(place, tensor),
            (false, Role::Undeclared) => self.entry(field, None, Held::Constant),
        }
    }

    /// A float tensor that may be a constant, a buffer or a parameter that someone forgot.
    fn undeclared(&mut self, place: Place<'_>, tensor: &Tensor) {
        let field = place.field;
        let advice = "`#[dp(buffer)]` on the field agrees, `#[dp(param)]` trains it, \
                      `#[dp(skip)]` leaves it to each rank";
        if self.device.is_some() {
            self.report.warnings.push(format!(
                "`{field}` is a float tensor that neither trains nor is in the store; it is now \
                 the buffer `{}`, so that all ranks hold rank 0's values and checkpoints hold it: \
                 {advice}",
                dotted(place.name)
            ));
            self.missing(place, tensor, false);
        } else {
            self.report.warnings.push(format!(
                "`{field}` is a float tensor that neither trains nor is in the store; all ranks \
                 start with rank 0's values: {advice}"
            ));
            self.report.loose.push((field.to_owned(), tensor.shallow_clone()));
            self.entry(field, None, Held::Loose);
        }
    }

    fn missing(&mut self, place: Place<'_>, tensor: &Tensor, trains: bool) {
        let (field, name) = (place.field, dotted(place.name));
        let Some(device) = self.device else {
            let what = if trains { "trains" } else { "is a buffer" };
            return self.problems.push(format!(
                "`{field}` {what} but the store does not hold it: call \
                 `model.register(&vs.root())?` right after building, before any load"
            ));
        };
        let before = self.problems.len();
        self.check_device(field, tensor, device);
        self.check_name(field, &name, place.name);
        if self.problems.len() > before {
            return;
        }
        self.taken.insert(name.clone(), field.to_owned());
        let parts = place.name.iter().map(|part| part.clone().into_owned()).collect();
        self.late.push(Late { parts, tensor: tensor.shallow_clone(), trains });
        self.entry(field, Some(name), if trains { Held::Parameter } else { Held::Buffer });
        if let Some(entry) = self.report.entries.last_mut() {
            entry.late = true;
        }
    }

    fn check_device(&mut self, field: &str, tensor: &Tensor, device: Device) {
        if tensor.device() != device {
            self.problems.push(format!(
                "`{field}` is on {:?} and the store on {device:?}: create it on `path.device()`",
                tensor.device()
            ));
        }
    }

    fn check_name(&mut self, field: &str, name: &str, parts: &[Cow<'static, str>]) {
        if let Some(part) = parts.iter().find(|part| part.contains('.')) {
            self.problems.push(format!(
                "`{field}` cannot be named `{name}`: the dot in `{part}` would end a part of the \
                 name; use keys without dots"
            ));
        } else if self.known.has_name(name) {
            self.problems.push(format!(
                "`{field}` would be registered as `{name}`, the name of another variable: give \
                 the field another one with `#[dp(rename = \"..\")]`"
            ));
        } else if let Some(other) = self.taken.get(name) {
            self.problems.push(format!(
                "`{field}` and `{other}` would both be registered as `{name}`: give one of them \
                 another name with `#[dp(rename = \"..\")]`"
            ));
        }
    }
}

impl Sink for Survey {
    fn tensor(&mut self, place: Place<'_>, tensor: &Tensor) {
        if !tensor.defined() {
            return;
        }
        if let Some(name) = self.known.name_of(tensor).map(str::to_owned) {
            return self.in_store(place, tensor, name);
        }
        if let Some(identity) = Identity::of(tensor) {
            if let Some(first) = self.seen.get(&identity).cloned() {
                return self.entry(place.field, None, Held::Tied(first));
            }
            self.seen.insert(identity, place.field.to_owned());
        }
        self.outside(place, tensor);
    }

    fn hidden(&mut self, place: Place<'_>, why: Hidden) {
        self.entry(place.field, None, Held::Hidden(why));
    }
}

fn dotted(parts: &[Cow<'static, str>]) -> String {
    parts.join(".")
}

/// tch renames a variable whose name is taken to `name__N`, N being the size of the store.
fn warn_of_renamed(known: &Known, warnings: &mut Vec<String>) {
    let renamed: Vec<_> = known.names().into_iter().filter(|name| was_renamed(name)).collect();
    if let Some(first) = renamed.first() {
        let others = match renamed.len() - 1 {
            0 => String::new(),
            n => format!(" (and {n} more)"),
        };
        warnings.push(format!(
            "several layers were built on one path, so tch named a variable `{first}`{others}: the \
             number changes with the order of construction and old checkpoints stop loading; give \
             each layer its own path (`vs / \"conv2\"`)"
        ));
    }
}

fn was_renamed(name: &str) -> bool {
    name.rsplit_once("__").is_some_and(|(stem, number)| {
        !stem.is_empty() && !number.is_empty() && number.bytes().all(|b| b.is_ascii_digit())
    })
}
