//! What the names of the outside world are: one table per ecosystem, as data.
//!
//! A row says which role a dotted name plays. A new torch function is a row, not code.
//! Rows of `tables/*.toml` are built in; users add rows of the same form in their
//! configuration. A key may hold alternatives, `torch.{sum,mean}`, and a row with `same-as`
//! respells everything below its name too, so an alias of a module is one row.

mod asked;

use std::collections::BTreeMap;
use std::sync::LazyLock;

use rustc_hash::FxHashMap;
use serde::Deserialize;

use crate::model::Name;

pub use asked::Asked;

/// What a call of a name does, or what a class is. Kebab-case in the tables.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Role {
    /// Known by name and type only.
    #[default]
    Plain,
    // Wrappers.
    WrapDdp,
    WrapDp,
    /// Wraps in another way that handles ranks itself (FSDP, DeepSpeed engine, `prepare`).
    WrapOther,
    /// `data_parallel(module, inputs)`.
    FunctionalDp,
    ConvertSyncBatchNorm,
    /// Gives back its first argument as the same object; without arguments, or where the row says
    /// `returns = "self"`, its receiver.
    Passthrough,
    /// Gives back a copy of its first argument or receiver (deepcopy).
    Copy,
    // Processes and groups.
    InitGroup,
    NewGroup,
    DestroyGroup,
    /// Starts processes that run a function: `spawn(fn, args)`, rank put first.
    Spawn,
    /// Calls its function argument at once, on this process (`map`, `catch_unwind`). Roles that
    /// say more may do so too: `NoGrad`, `NoSync` and `Forward` call a closure they are given.
    CallsArgument,
    /// A callable: the first argument with the other arguments bound (`functools.partial`).
    Partial,
    /// Decorator: the generator function becomes a context manager.
    ContextManager,
    /// Several ranks must call it together. `kind` says which.
    Collective,
    /// Waits for a handle of an asynchronous collective.
    WaitHandle,
    // Facts about ranks.
    Rank,
    LocalRank,
    NodeRank,
    WorldSize,
    /// Gives the pair of rank and world size (`get_dist_info`).
    RankAndWorldSize,
    LocalWorldSize,
    DeviceCount,
    /// "Is it distributed at all": `is_initialized()`, `is_available()`.
    IsDistributed,
    /// True on global rank 0 alone.
    IsMain,
    /// True on local rank 0 of each node.
    IsLocalMain,
    /// Context manager or decorator: the body runs on rank 0 only.
    MainOnly,
    /// Context manager: rank 0 runs the body first, the others wait.
    MainFirst,
    /// Reads an environment variable named by the first argument.
    EnvRead,
    CommandLineParser,
    AddArgument,
    ParseArguments,
    // Devices.
    SetDevice,
    /// Uses the current device without naming it (`empty_cache`, `synchronize`).
    CurrentDevice,
    MakeDevice,
    /// `Device::cuda_if_available()`: it is device 0.
    FirstDevice,
    /// `.to`, `.cuda`, `.to_device`; on modules: moves, on tensors: a copy.
    Move,
    ChangeKind,
    // Modules, parameters.
    Layer,
    /// Runs the receiver's forward: on its arguments (`forward_t`), or through a closure that is
    /// given the inner module (`ddp.run(|m| ..)`).
    Forward,
    /// Runs the forward of the module that is its first argument (`xs.apply(&net)`).
    ApplyModule,
    ModuleList,
    Sequential,
    Parameter,
    ParameterList,
    RegisterParameter,
    RegisterBuffer,
    AddModule,
    /// Registers what a whole model keeps elsewhere (tch-ddp's `register`).
    RegisterModel,
    RegisterHook,
    Parameters,
    NamedParameters,
    /// `requires_grad_`, `freeze`, `set_requires_grad`.
    RequiresGrad,
    InitParameter,
    TrainMode,
    EvalMode,
    StateDict,
    LoadStateDict,
    Checkpoint,
    // Training.
    Loss,
    Backward,
    AutogradGrad,
    Optimizer,
    OptimizerStep,
    /// zero_grad, backward and step in one call.
    FusedStep,
    ZeroGrad,
    Scheduler,
    SchedulerStep,
    GradScaler,
    ScaleLoss,
    Unscale,
    ScalerStep,
    ScalerUpdate,
    ClipGradients,
    NoGrad,
    EnableGrad,
    NoSync,
    Join,
    Autocast,
    Detach,
    /// Reads a tensor's number on the host (`item`, `double_value`).
    HostRead,
    /// Reduction over elements (`mean`, `sum`).
    Reduce,
    Concat,
    // Data.
    Dataset,
    Loader,
    DistributedSampler,
    OtherSampler,
    SetEpoch,
    MakeTensor,
    /// A random tensor or number that differs per rank unless seeded alike.
    Random,
    Seed,
    Time,
    // Files.
    Save,
    Load,
    /// Writes a file in another way (`to_csv`, `json.dump`, `savefig`, `write_text`).
    WriteFile,
    /// Reads a file, but no device-bound tensors (`np.load`, `read_text`, `Tensor::read_npy`).
    ReadFile,
    Open,
    MakeDirectory,
    RemovePath,
    PathExists,
    Download,
    Unpack,
    // Output.
    Print,
    Log,
    /// Silences or opens a logger (`setLevel`, `disable`).
    SetLogLevel,
    Progress,
    Tracker,
    TrackerLog,
    Exit,
    /// `isinstance(object, class)`.
    TypeTest,
    /// Ends the path by an error (`panic!`, `bail!`).
    Raise,
    /// A framework that launches, wraps and guards itself: its presence makes the program
    /// distributed and silences what it handles.
    Framework,
}

/// Further facts of a row.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Flag {
    /// A class: calling it makes an instance of that name.
    Class,
    /// Read, not called: a field, property or constant; `returns` is its type.
    Attribute,
    /// Sets what its first parameter (without one: the method) is called on the receiver, and
    /// gives the receiver back.
    Builder,
    /// Gives back a tuple with (what it makes of) each positional argument; of one, that one.
    EachArgument,
    /// Spawn: the function gets the rank of its process before its own arguments.
    RankFirst,
    /// Collective: the result is a new value, not written into its tensor argument.
    OutOfPlace,
    /// Collective over Python objects.
    Objects,
    /// Collective: a gradient flows through it.
    Differentiable,
    /// Collective besides what its role says, which no one sees in the name (framework
    /// `save_checkpoint`, ZeRO step); `kind` says which.
    Hidden,
    /// Returns a handle that must be waited for, always.
    Async,
    /// The result is the same on every rank.
    Uniform,
    /// The result belongs to this rank's data or moment.
    Local,
    /// The result depends on its arguments (and receiver) alone.
    Pure,
    /// Changes its receiver (or first argument) by its other arguments (`add_`, `append`).
    Mutates,
    /// Draws random numbers (dropout, augmentation), beside what its role says.
    Random,
    /// Holds or gives its items in an order that differs per process.
    Unordered,
    /// Layer that holds buffers (BatchNorm), or optimizer with state made at construction.
    Buffers,
    EagerState,
    /// Layer without parameters (ReLU, Dropout).
    NoParameters,
    /// Guards itself: does its work on rank 0 only.
    SelfGuarding,
    /// File work that several processes may do at once (temporary file, then rename).
    Atomic,
    /// Shards by itself.
    SelfSharding,
    /// The seen default reduction is over the batch (loss with `mean`).
    Mean,
    Sum,
    /// Sampler or data set that shuffles unless told otherwise.
    Shuffles,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum CollectiveKind {
    Barrier,
    Broadcast,
    AllReduce,
    Reduce,
    AllGather,
    Gather,
    Scatter,
    ReduceScatter,
    AllToAll,
    Send,
    Recv,
    /// Construction of a DDP wrapper, sub-group, framework save and the like.
    Other,
}

/// One row. `name` is the table's key.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Row {
    #[serde(skip)]
    pub name: Option<Name>,
    #[serde(default)]
    pub role: Role,
    /// Set for the role `Collective` and for rows flagged `Hidden`.
    pub kind: Option<CollectiveKind>,
    /// Positional parameters in order (methods: without the receiver).
    #[serde(default)]
    pub params: Vec<Name>,
    /// Collective: the parameter that is sent.
    pub input: Option<Name>,
    /// Collective: the parameter that the result is written into; without one it is returned.
    pub output: Option<Name>,
    /// The parameter that names (or is) the file or folder; `self` is the receiver.
    pub path: Option<Name>,
    /// Dotted type of the result.
    pub returns: Option<Name>,
    /// Written `returns = "self"`: the call gives its receiver back.
    #[serde(skip)]
    pub gives_receiver: bool,
    /// Bases of a class, dotted.
    #[serde(default)]
    pub bases: Vec<Name>,
    /// This name is only another spelling of that one.
    pub same_as: Option<Name>,
    #[serde(default)]
    pub flags: Vec<Flag>,
    /// Its place in the table.
    #[serde(skip)]
    index: u32,
}

impl Row {
    pub fn has(&self, flag: Flag) -> bool {
        self.flags.contains(&flag)
    }

    pub fn is_class(&self) -> bool {
        self.has(Flag::Class)
    }
}

/// All rows, by dotted name. Keys that begin with `*.` are methods of receivers of unknown
/// type: `*.backward`.
#[derive(Debug, Default, Clone)]
pub struct Table {
    rows: Vec<Row>,
    /// Places in `rows`.
    by_name: FxHashMap<&'static str, u32>,
}

/// Bases and other spellings are followed this far; a circle ends there.
const DEPTH_MAX: u32 = 8;

const BUILT_IN: &[(&str, &str)] = &[
    ("torch", include_str!("tables/torch.toml")),
    ("python", include_str!("tables/python.toml")),
    ("frameworks", include_str!("tables/frameworks.toml")),
    ("tch", include_str!("tables/tch.toml")),
    ("rust", include_str!("tables/rust.toml")),
];

static TABLE: LazyLock<Table> = LazyLock::new(|| {
    let mut table = Table::default();
    for (file, text) in BUILT_IN {
        let added = table.add(text);
        assert!(added.is_ok(), "built-in table {file}: {}", added.unwrap_err());
    }
    table
});

impl Table {
    pub fn built_in() -> &'static Table {
        &TABLE
    }

    /// Adds rows written as TOML: `["dotted.name"]` tables with the fields of `Row`. A later
    /// row of a name replaces an earlier one.
    pub fn add(&mut self, text: &str) -> Result<(), toml::de::Error> {
        let rows: BTreeMap<String, Row> = toml::from_str(text)?;
        for (key, mut row) in rows {
            row.gives_receiver = row.returns.is_some_and(|class| class == "self");
            row.returns = row.returns.filter(|class| *class != "self");
            for name in alternatives(&key) {
                let name = Name::new(&name);
                let index = *self.by_name.entry(name.as_str()).or_insert(self.rows.len() as u32);
                let row = Row { name: Some(name), index, ..row.clone() };
                match self.rows.get_mut(index as usize) {
                    Some(old) => *old = row,
                    None => self.rows.push(row),
                }
            }
        }
        Ok(())
    }

    /// The row of a dotted name, other spellings followed; of a class's member also when a base
    /// holds it, and of a member of what an attribute holds (`MPI.COMM_WORLD.bcast`).
    pub fn get(&self, name: Name) -> Option<&Row> {
        self.get_str(&name)
    }

    pub fn get_str(&self, name: &str) -> Option<&Row> {
        self.row(name, DEPTH_MAX).or_else(|| {
            let (holder, member) = name.rsplit_once('.')?;
            let row = self.row(holder, DEPTH_MAX)?;
            if row.has(Flag::Attribute) {
                return self.method(row.returns?, Name::new(member));
            }
            row.is_class().then(|| self.method_within(holder, member, DEPTH_MAX))?
        })
    }

    fn named(&self, name: &str) -> Option<&Row> {
        self.by_name.get(name).map(|index| &self.rows[*index as usize])
    }

    /// The row of exactly this name or of one that it, or a module above it, is the same as.
    fn row(&self, name: &str, depth: u32) -> Option<&Row> {
        if let Some(row) = self.named(name) {
            return match row.same_as {
                Some(other) if depth > 0 => self.row(&other, depth - 1),
                Some(_) => None,
                None => Some(row),
            };
        }
        let mut above = name;
        while let Some((shorter, _)) = above.rsplit_once('.') {
            above = shorter;
            if let Some(other) = self.named(above).and_then(|row| row.same_as) {
                let respelled = format!("{other}{}", &name[above.len()..]);
                return if depth > 0 { self.row(&respelled, depth - 1) } else { None };
            }
        }
        None
    }

    /// The row of a method of a type or of one of its bases.
    pub fn method(&self, of: Name, method: Name) -> Option<&Row> {
        self.method_within(&of, &method, DEPTH_MAX)
    }

    fn method_within(&self, of: &str, method: &str, depth: u32) -> Option<&Row> {
        if let Some(row) = self.row(&format!("{of}.{method}"), depth) {
            return Some(row);
        }
        if depth == 0 {
            return None;
        }
        let class = self.row(of, depth)?;
        let canonical = class.name.filter(|n| **n != *of);
        let bases = canonical.iter().chain(&class.bases);
        bases.copied().find_map(|base| self.method_within(&base, method, depth - 1))
    }

    /// The row of a method whose receiver's type is unknown.
    pub fn any_method(&self, method: Name) -> Option<&Row> {
        self.row(&format!("*.{method}"), DEPTH_MAX)
    }

    /// `of` is `base` or derives from it, as far as the tables know.
    pub fn is_a(&self, of: Name, base: Name) -> bool {
        let base = self.row(&base, DEPTH_MAX).and_then(|row| row.name).unwrap_or(base);
        self.is_a_within(of, base, DEPTH_MAX)
    }

    fn is_a_within(&self, of: Name, base: Name, depth: u32) -> bool {
        if of == base {
            return true;
        }
        let Some(row) = self.row(&of, depth) else { return false };
        row.name == Some(base)
            || depth > 0 && row.bases.iter().any(|&b| self.is_a_within(b, base, depth - 1))
    }

    pub fn rows(&self) -> impl Iterator<Item = &Row> {
        self.rows.iter()
    }
}

/// `a.{b,c}.d` as `a.b.d` and `a.c.d`; a key without braces, or with a brace that is never
/// closed, stands for itself.
fn alternatives(key: &str) -> Vec<String> {
    let parts = key.split_once('{').and_then(|(head, rest)| {
        let (choices, tail) = rest.split_once('}')?;
        Some((head, choices, tail))
    });
    let Some((head, choices, tail)) = parts else { return vec![key.to_owned()] };
    let tails = alternatives(tail);
    let choices = choices.split(',');
    choices.flat_map(|choice| tails.iter().map(move |t| format!("{head}{choice}{t}"))).collect()
}

#[cfg(test)]
mod tests;
