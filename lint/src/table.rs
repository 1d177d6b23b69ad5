//! What the names of the outside world are: one table per ecosystem, as data.
//!
//! A row says which role a dotted name plays. A new torch function is a row, not code.
//! Rows of `tables/*.toml` are built in; users add rows of the same form in their
//! configuration.

use std::sync::LazyLock;

use rustc_hash::FxHashMap;
use serde::Deserialize;

use crate::model::Name;

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
    /// Gives back its first argument, or its receiver, as the same object.
    Passthrough,
    /// Gives back a copy of its first argument or receiver (deepcopy).
    Copy,
    // Processes and groups.
    InitGroup,
    NewGroup,
    DestroyGroup,
    /// Starts processes that run a function: `spawn(fn, args)`, rank put first.
    Spawn,
    /// Calls its function argument at once, on this process (`run`, `no_grad(|| ..)`).
    CallsArgument,
    /// Several ranks must call it together. `kind` says which.
    Collective,
    /// Waits for a handle of an asynchronous collective.
    WaitHandle,
    // Facts about ranks.
    Rank,
    LocalRank,
    NodeRank,
    WorldSize,
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
    ModuleList,
    Sequential,
    Parameter,
    ParameterList,
    RegisterParameter,
    RegisterBuffer,
    AddModule,
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
    Open,
    MakeDirectory,
    RemovePath,
    PathExists,
    Download,
    Unpack,
    // Output.
    Print,
    Log,
    Progress,
    Tracker,
    TrackerLog,
    Exit,
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
    /// Collective: the result is a new value, not written into its tensor argument.
    OutOfPlace,
    /// Collective over Python objects.
    Objects,
    /// Collective: a gradient flows through it.
    Differentiable,
    /// Collective that no one sees in the name (framework `save_checkpoint`, ZeRO step).
    Hidden,
    /// Returns a handle that must be waited for, always.
    Async,
    /// The result is the same on every rank.
    Uniform,
    /// The result belongs to this rank's data or moment.
    Local,
    /// The result depends on its arguments alone.
    Pure,
    /// Layer that holds buffers (BatchNorm), or optimizer with state made at construction.
    Buffers,
    EagerState,
    /// Layer without parameters (ReLU, Dropout).
    NoParameters,
    /// Guards itself: does its work on rank 0 only.
    SelfGuarding,
    /// Shards by itself.
    SelfSharding,
    /// The seen default reduction is over the batch (loss with `mean`).
    Mean,
    Sum,
    /// The second argument is the tensor, not the first, and so on: see `tensor`.
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
    pub kind: Option<CollectiveKind>,
    /// Positional parameters in order (methods: without the receiver).
    #[serde(default, rename = "params")]
    params_text: Vec<String>,
    #[serde(skip)]
    pub params: Vec<Name>,
    /// Dotted type of the result.
    #[serde(rename = "returns")]
    returns_text: Option<String>,
    #[serde(skip)]
    pub returns: Option<Name>,
    /// Bases of a class, dotted.
    #[serde(default, rename = "bases")]
    bases_text: Vec<String>,
    #[serde(skip)]
    pub bases: Vec<Name>,
    /// This name is only another spelling of that one.
    #[serde(rename = "same-as")]
    same_as_text: Option<String>,
    #[serde(skip)]
    pub same_as: Option<Name>,
    #[serde(default)]
    pub flags: Vec<Flag>,
}

impl Row {
    pub fn has(&self, flag: Flag) -> bool {
        self.flags.contains(&flag)
    }

    pub fn is_class(&self) -> bool {
        self.has(Flag::Class)
    }

    fn intern(mut self, name: &str) -> Self {
        self.name = Some(Name::new(name));
        self.params = self.params_text.iter().map(|p| Name::new(p)).collect();
        self.returns = self.returns_text.as_deref().map(Name::new);
        self.bases = self.bases_text.iter().map(|b| Name::new(b)).collect();
        self.same_as = self.same_as_text.as_deref().map(Name::new);
        self
    }
}

/// All rows, by dotted name. Keys that begin with `*.` are methods of receivers of unknown
/// type: `*.backward`.
#[derive(Debug, Default, Clone)]
pub struct Table {
    rows: FxHashMap<Name, Row>,
}

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

    /// Adds rows written as TOML: `["dotted.name"]` tables with the fields of `Row`.
    pub fn add(&mut self, text: &str) -> Result<(), toml::de::Error> {
        let rows: std::collections::BTreeMap<String, Row> = toml::from_str(text)?;
        for (name, row) in rows {
            self.rows.insert(Name::new(&name), row.intern(&name));
        }
        Ok(())
    }

    /// The row of a dotted name, other spellings followed.
    pub fn get(&self, name: Name) -> Option<&Row> {
        let row = self.rows.get(&name)?;
        match row.same_as {
            Some(other) => self.get(other),
            None => Some(row),
        }
    }

    pub fn get_str(&self, name: &str) -> Option<&Row> {
        self.get(Name::new(name))
    }

    /// The row of a method of a type or of one of its bases.
    pub fn method(&self, of: Name, method: Name) -> Option<&Row> {
        self.method_within(of, method, 8)
    }

    fn method_within(&self, of: Name, method: Name, depth: u32) -> Option<&Row> {
        if let Some(row) = self.get(Name::new(&format!("{of}.{method}"))) {
            return Some(row);
        }
        if depth == 0 {
            return None;
        }
        let class = self.get(of)?;
        let canonical = class.name.filter(|&n| n != of);
        let bases = canonical.iter().chain(&class.bases);
        bases.copied().find_map(|base| self.method_within(base, method, depth - 1))
    }

    /// The row of a method whose receiver's type is unknown.
    pub fn any_method(&self, method: Name) -> Option<&Row> {
        self.get(Name::new(&format!("*.{method}")))
    }

    /// `of` is `base` or derives from it, as far as the tables know.
    pub fn is_a(&self, of: Name, base: Name) -> bool {
        self.is_a_within(of, base, 8)
    }

    fn is_a_within(&self, of: Name, base: Name, depth: u32) -> bool {
        if of == base {
            return true;
        }
        let Some(row) = self.get(of) else { return false };
        row.name == Some(base)
            || depth > 0 && row.bases.iter().any(|&b| self.is_a_within(b, base, depth - 1))
    }

    pub fn rows(&self) -> impl Iterator<Item = &Row> {
        self.rows.values()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn built_in_rows_parse_and_point_to_rows() {
        let table = Table::built_in();
        for row in table.rows() {
            let name = row.name.unwrap();
            if let Some(other) = row.same_as {
                assert!(table.get(other).is_some(), "{name} is the same as {other}, unknown");
            }
            assert_eq!(
                row.role == Role::Collective,
                row.kind.is_some(),
                "{name}: a collective, and no other row, names its kind"
            );
        }
    }

    #[test]
    fn methods_are_found_through_bases_and_other_spellings() {
        let table = Table::built_in();
        let find = |of: &str, method: &str| {
            table.method(Name::new(of), Name::new(method)).map(|row| row.role)
        };
        assert_eq!(
            find("torch.nn.parallel.DistributedDataParallel", "no_sync"),
            Some(Role::NoSync)
        );
        assert_eq!(find("torch.nn.DataParallel", "state_dict"), Some(Role::StateDict));
        assert_eq!(find("torch.nn.Linear", "no_sync"), None);
    }
}
