//! Devices: where modules and tensors are put, and over which backend ranks talk, as far as the
//! text tells. It judges nothing; rules do.

use super::term::truth;
use super::{Call, Const, Event, EventKind, ObjectClass, Program, RankKind, Taint, Term, TermKind};
use super::{SAMPLES, Value};
use crate::model::{Language, Name};
use crate::table::Role;

/// A device, as a value names it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Device {
    Cpu,
    /// `"cuda"`: whichever device is the process's current one.
    Current,
    /// A fixed index.
    Fixed(i64),
    /// An index that differs between ranks.
    OfRank,
    /// Something else; equal terms are the same device.
    Other(Term),
}

/// Devices inside devices are followed this far.
const DEPTH_MAX: u32 = 6;

/// What values name.
impl<'p> Program<'p> {
    /// The devices that a value may name; alternatives that no rank takes are left out.
    pub fn devices(&self, value: &Value) -> Vec<Device> {
        let mut found = Vec::new();
        self.add_devices(value, DEPTH_MAX, &mut found);
        found
    }

    fn add_devices(&self, value: &Value, depth: u32, found: &mut Vec<Device>) {
        for alternative in &value.alternatives {
            if self.can_happen(alternative.when) {
                self.add_device(alternative.term, depth, found);
            }
        }
    }

    /// Some rank of a distributed run may find this true.
    fn can_happen(&self, condition: Term) -> bool {
        condition == self.terms().yes
            || !self.is_distributed()
            || SAMPLES.iter().any(|&s| self.terms().evaluate(condition, s).is_none_or(truth))
    }

    fn add_device(&self, term: Term, depth: u32, found: &mut Vec<Device>) {
        let device = match self.terms().kind(term) {
            TermKind::Const(Const::Str(text)) => device_named(text),
            TermKind::Const(Const::Int(index)) => Some(Device::Fixed(*index)),
            TermKind::Object(_) if depth > 0 => return self.add_made_device(term, depth, found),
            TermKind::Text(parts) => self.device_of_text(parts),
            TermKind::Outside(name) if name.ends_with("Device.Cpu") => Some(Device::Cpu),
            _ if self.is_current_device(term) => Some(Device::Current),
            _ => None,
        };
        let of_rank = || self.depends_on_a_rank(term).then_some(Device::OfRank);
        let device = device.or_else(of_rank).unwrap_or(Device::Other(term));
        if !found.contains(&device) {
            found.push(device);
        }
    }

    /// `torch.device("cuda", 1)`.
    fn add_made_device(&self, term: Term, depth: u32, found: &mut Vec<Device>) {
        let made = self.object_of(term).and_then(|object| self.constructor(object));
        let Some(made) = made.filter(|made| made.role == Role::MakeDevice) else {
            found.push(Device::Other(term));
            return;
        };
        let Some(kind) = made.value_at(0, "type") else {
            // `group.device()` of tch-ddp is the device of this rank.
            let of_rank = made.name.is_some_and(|n| n.starts_with("tch_ddp."));
            found.push(if of_rank { Device::OfRank } else { Device::Other(term) });
            return;
        };
        let index = made.value_at(1, "index").filter(|v| v.single() != Some(self.terms().none));
        let Some(index) = index else { return self.add_devices(kind, depth - 1, found) };
        if self.devices(kind).contains(&Device::Cpu) {
            found.push(Device::Cpu);
        }
        self.add_devices(index, depth - 1, found);
    }

    /// `f"cuda:{index}"`.
    fn device_of_text(&self, parts: &[Term]) -> Option<Device> {
        let [kind, index] = parts else { return None };
        let kind = self.terms().as_str(*kind)?;
        if self.is_current_device(*index) {
            return Some(Device::Current);
        }
        let index = self.terms().as_int(*index)?;
        kind.ends_with(':').then_some(Device::Fixed(index))
    }

    /// What `torch.cuda.current_device()` gave.
    fn is_current_device(&self, term: Term) -> bool {
        self.maker(term).is_some_and(|(_, call)| call.role == Role::CurrentDevice)
    }

    fn depends_on_a_rank(&self, term: Term) -> bool {
        let by_kind = self.terms().rank_kind(term);
        matches!(by_kind, Some(RankKind::Rank | RankKind::LocalRank))
            || self.terms().taint(term).has(Taint::RANK)
    }

    /// Where a move puts things. Nothing for a move that names no device.
    pub fn moved_to(&self, call: &Call<'p>) -> Vec<Device> {
        let method = call.name.map_or("", |name| name.as_str().rsplit('.').next().unwrap_or(""));
        let named = call.argument_at(0, "device");
        match method {
            "cpu" => vec![Device::Cpu],
            "cuda" => match named.known().filter(|a| a.value.single() != Some(self.terms().none)) {
                Some(argument) => self.devices(&argument.value),
                None if named.is_absent() || named.known().is_some() => vec![Device::Current],
                None => Vec::new(),
            },
            _ => named.known().map(|a| self.devices(&a.value)).unwrap_or_default(),
        }
    }

    /// The events behind a value, those of a container's contents included.
    pub fn origins_behind(&self, value: &Value) -> super::term::Origins {
        self.run.deep_origins(value)
    }

    /// The call whose result a term is.
    pub fn maker(&self, term: Term) -> Option<(&Event<'p>, &Call<'p>)> {
        let makers = self.makers.get_or_init(|| {
            let mut makers = rustc_hash::FxHashMap::default();
            for event in self.events() {
                if let EventKind::Call(call) = &event.kind
                    && let Some(result) = call.result.single()
                    && matches!(
                        self.terms().kind(result),
                        TermKind::Opaque { .. } | TermKind::Apply(..)
                    )
                {
                    makers.entry(result).or_insert(event.id);
                }
            }
            makers
        });
        let event = self.event(*makers.get(&term)?);
        match &event.kind {
            EventKind::Call(call) => Some((event, call)),
            _ => None,
        }
    }
}

fn device_named(text: &str) -> Option<Device> {
    match text.split_once(':') {
        None if text == "cpu" => Some(Device::Cpu),
        None if text == "cuda" => Some(Device::Current),
        Some(("cuda", index)) => index.parse().ok().map(Device::Fixed),
        Some(("cpu", _)) => Some(Device::Cpu),
        _ => None,
    }
}

/// Where tensors are.
impl<'p> Program<'p> {
    /// The device of a tensor, where the text settles it.
    pub fn tensor_device(&self, tensor: Term) -> Option<Device> {
        self.tensor_device_of(tensor, DEPTH_MAX)
    }

    fn tensor_device_of(&self, term: Term, depth: u32) -> Option<Device> {
        let depth = depth.checked_sub(1)?;
        if let Some((_, call)) = self.maker(term) {
            return self.device_of_result(call, depth);
        }
        match self.terms().kind(term) {
            TermKind::Negative(of) => self.tensor_device_of(*of, depth),
            TermKind::Object(_) | TermKind::Tuple(_) => self.device_of_items(term, depth),
            TermKind::Apply(name, parts) if !is_number_function(name) => {
                parts.iter().find_map(|&part| self.tensor_device_of(part, depth))
            }
            TermKind::Binary(..) | TermKind::Opaque { .. } => {
                let (_, left, right) = self.arithmetic_of(term)?;
                let (left, right) = (&left, &right);
                let (a, b) =
                    (self.tensor_device_of(*left, depth), self.tensor_device_of(*right, depth));
                match (a, b) {
                    (Some(a), Some(b)) => (a == b).then_some(a),
                    (Some(a), None) => self.is_number(*right).then_some(a),
                    (None, Some(b)) => self.is_number(*left).then_some(b),
                    (None, None) => None,
                }
            }
            _ => None,
        }
    }

    /// Of a list of tensors, where all are on one device.
    fn device_of_items(&self, list: Term, depth: u32) -> Option<Device> {
        let is_other = self.object_of(list).is_some_and(|object| object.class != ObjectClass::List);
        if is_other {
            return None;
        }
        let held = self.contents(list);
        let mut devices =
            held.iter().flat_map(Value::terms).map(|item| self.tensor_device_of(item, depth));
        let first = devices.next()??;
        devices.all(|device| device == Some(first)).then_some(first)
    }

    fn device_of_result(&self, call: &Call<'p>, depth: u32) -> Option<Device> {
        let only = |devices: Vec<Device>| match devices.as_slice() {
            [one] => Some(*one),
            _ => None,
        };
        let of = |value: Option<&Value>| self.tensor_device_of(value?.single()?, depth);
        let first = || call.arguments.iter().find(|a| a.position == Some(0)).map(|a| &a.value);
        match call.role {
            Role::Move => only(self.moved_to(call)),
            Role::MakeTensor | Role::Random if self.language == Language::Rust => {
                self.device_of_tch(call)
            }
            Role::MakeTensor | Role::Random => {
                if let Some(device) = call.argument("device").known() {
                    return only(self.devices(&device.value));
                }
                if !call.argument("device").is_absent() {
                    return None;
                }
                let name = call.name?.as_str();
                let last = name.rsplit('.').next().unwrap_or(name);
                if name.starts_with("torch.cuda.") {
                    return Some(Device::Current);
                }
                match last {
                    _ if last.ends_with("_like") => of(first()),
                    _ if last.starts_with("new") => of(call.receiver.as_ref()),
                    "tensor" | "as_tensor" | "asarray" | "scalar_tensor" => {
                        let data = first()?;
                        if self.is_plain_data(data) { Some(Device::Cpu) } else { of(Some(data)) }
                    }
                    _ => name.starts_with("torch.").then_some(Device::Cpu),
                }
            }
            Role::Concat => of(first()),
            Role::ChangeKind
            | Role::Detach
            | Role::Copy
            | Role::Reduce
            | Role::InitParameter
            | Role::RequiresGrad => of(call.receiver.as_ref().or_else(first)),
            _ => None,
        }
    }

    /// Where tch makes a tensor: on the device of its options, or on the CPU, where data is copied.
    fn device_of_tch(&self, call: &Call<'p>) -> Option<Device> {
        let name = call.name?.as_str().strip_prefix("tch.Tensor.")?;
        let copies =
            ["from", "from_data_size", "from_slice", "from_slice2", "of_slice", "of_slice2"];
        if copies.contains(&name.trim_start_matches("f_")) {
            return Some(Device::Cpu);
        }
        let options = call.arguments.last()?.value.single()?;
        match self.terms().kind(options) {
            TermKind::Outside(name) if name.ends_with("_CPU") => Some(Device::Cpu),
            TermKind::Tuple(parts) => {
                let device = Value::of(self.terms(), *parts.get(1)?);
                match self.devices(&device).as_slice() {
                    [one] => Some(*one),
                    _ => None,
                }
            }
            _ => None,
        }
    }

    /// Numbers, and lists and tuples of whatever: a tensor made of it is on the CPU.
    fn is_plain_data(&self, data: &Value) -> bool {
        let terms = self.terms();
        !data.alternatives.is_empty()
            && data.terms().all(|term| {
                let is_list =
                    self.object_of(term).is_some_and(|object| object.class == ObjectClass::List);
                is_list
                    || matches!(terms.kind(term), TermKind::Tuple(_))
                    || self.is_number(term)
                    || self.is_drawn_outside_torch(term)
            })
    }

    /// A number of Python's `random`, or a number or array of numpy's.
    fn is_drawn_outside_torch(&self, term: Term) -> bool {
        self.maker(term).is_some_and(|(_, call)| {
            let name = call.name.map_or("", |name| name.as_str());
            call.role == Role::Random
                && (name.starts_with("random.") || name.starts_with("numpy.random."))
        })
    }

    /// Surely a number of Python.
    fn is_number(&self, term: Term) -> bool {
        self.run.is_plain_number(term)
            || self
                .maker(term)
                .is_some_and(|(_, call)| matches!(call.role, Role::WorldSize | Role::Time))
    }

    /// The program changes where tensors are made that name no device.
    pub fn changes_default_device(&self) -> bool {
        self.calls(Role::SetDevice)
            .any(|(_, call)| call.name.is_some_and(|n| n.ends_with("set_default_device")))
            || self.mentions_text(&["set_default_tensor_type", "with torch.device("])
    }

    /// One of these words stands in a file of the program.
    pub fn mentions_text(&self, words: &[&str]) -> bool {
        self.project()
            .files
            .iter()
            .any(|file| self.reaches(file.id) && words.iter().any(|&word| file.text.contains(word)))
    }
}

fn is_number_function(name: &str) -> bool {
    matches!(name.rsplit('.').next(), Some("len" | "size" | "numel" | "dim"))
}

/// Command lines and backends.
impl<'p> Program<'p> {
    /// The default of a command line argument: `64` of `args.batch` after
    /// `add_argument("--batch", default=64)`.
    pub fn command_line_default(&self, term: Term) -> Option<&Value> {
        let TermKind::Attribute(of, name) = self.terms().kind(term) else { return None };
        if self.object_of(*of)?.class != ObjectClass::Arguments {
            return None;
        }
        let is_it = |text: Name| {
            let bare = text.trim_start_matches('-').replace('-', "_");
            bare == **name
        };
        let declares = |call: &Call<'p>| {
            call.arguments.iter().any(|a| {
                let is_name = a.position.is_some() || a.name.is_some_and(|n| &*n == "dest");
                let text = a.value.single().and_then(|t| self.terms().as_str(t));
                is_name && text.is_some_and(is_it)
            })
        };
        let (_, call) = self.calls(Role::AddArgument).find(|(_, call)| declares(call))?;
        call.argument("default").known().map(|a| &a.value)
    }

    /// The texts that a value may be; of a command line argument its default.
    pub fn texts(&self, value: &Value) -> Vec<Name> {
        let mut texts = Vec::new();
        for term in value.terms() {
            texts.extend(self.terms().as_str(term));
            let default = self.command_line_default(term).and_then(Value::single);
            texts.extend(default.and_then(|t| self.terms().as_str(t)));
        }
        texts
    }

    /// Some process group of the program talks over NCCL, as far as is known.
    pub fn uses_nccl(&self) -> bool {
        if self.language == Language::Rust {
            return self.groups().any(|call| self.asks_for_nccl(call));
        }
        self.groups().any(|call| match call.argument_at(0, "backend") {
            super::Given::Known(backend) => {
                self.texts(&backend.value).iter().any(|name| name.contains("nccl"))
            }
            super::Given::Absent => true,
            super::Given::Opaque => false,
        })
    }

    /// Every process group that the program starts talks over NCCL alone, or may.
    pub fn uses_only_nccl(&self) -> bool {
        let is_nccl = |call: &Call<'p>| {
            if self.language == Language::Rust {
                return self.asks_for_nccl(call);
            }
            let backend = call.argument_at(0, "backend").known();
            backend.is_some_and(|b| {
                self.texts(&b.value).iter().any(|name| &*name.to_ascii_lowercase() == "nccl")
            })
        };
        self.groups().next().is_some() && self.groups().all(is_nccl)
    }

    /// `GroupOptions { backend: Backend::Nccl, .. }` of tch-ddp.
    fn asks_for_nccl(&self, call: &Call<'p>) -> bool {
        let options = call.argument("options").known().and_then(|a| a.value.single());
        let backend = options.and_then(|options| self.attribute_now(options, "backend"));
        backend.and_then(Value::single).is_some_and(|term| {
            matches!(self.terms().kind(term), TermKind::Outside(name) if name.ends_with(".Nccl"))
        })
    }

    fn groups(&self) -> impl Iterator<Item = &Call<'p>> {
        self.calls(Role::InitGroup)
            .filter(|(event, _)| !self.runs_only_alone(event.path))
            .map(|(_, call)| call)
    }

    /// Which device each process sees is chosen outside its code, or in the environment.
    pub fn chooses_visible_devices(&self) -> bool {
        self.mentions_text(&["CUDA_VISIBLE_DEVICES"])
    }
}
