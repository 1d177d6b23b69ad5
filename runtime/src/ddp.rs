//! `Ddp`: a model whose gradients are averaged over the ranks while the backward pass runs, by
//! c10d's Reducer. It adds to the original that nothing goes wrong silently: every step is checked
//! before the optimizer may use its gradients.

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::fmt;
use std::num::NonZeroU64;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::Path;

use tch::{Device, Tensor, nn};

use crate::checkpoint;
use crate::error::{Error, Result};
use crate::ffi::{self, ReducerOptions, TorchError};
use crate::group::{ProcessGroup, Work, is_peer_failure};
use crate::hook::{BoundHook, CommHook};
use crate::memory;
use crate::module::{self, Replicable};
use crate::optim::Optimizer;
use crate::stats::DdpStats;
use crate::variables::{self, Role, Variable};
use crate::weight::{Weight, Weighted};

/// When buffers (running statistics and other variables that do not train) get rank 0's values.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum BufferSync {
    /// Once, when the model is wrapped.
    AtInit,
    /// Also before the first forward pass of every step.
    #[default]
    EveryForward,
    /// Not at all: every rank keeps its own.
    Never,
}

/// How to wrap a model. The defaults are PyTorch's.
#[derive(Debug, Clone, Default)]
#[expect(clippy::struct_excessive_bools, reason = "they are independent, and PyTorch's names")]
pub struct DdpOptions {
    /// Some parameters get no gradient in some steps. Costs a walk through the graph and one small
    /// reduction per step; without it, an unused parameter is an error that names it.
    pub find_unused_parameters: bool,
    /// Every step uses the same parameters the same number of times.
    pub static_graph: bool,
    /// Gradients are views into the buckets, which saves their memory once. `Ddp` clears them by
    /// making them undefined; tch's own `zero_grad` fails on views.
    pub gradient_as_bucket_view: bool,
    /// When buffers follow those of rank 0.
    pub buffers: BufferSync,
    /// Gradients are reduced in buckets of at most this many bytes; `None` is 25 MiB, with a first
    /// bucket of 1 MiB.
    pub bucket_bytes_max: Option<usize>,
    /// Names of parameters whose gradients are sparse.
    pub sparse_parameters: Vec<String>,
    /// Every so many steps, compare the parameters of all ranks bit by bit.
    pub check_every: Option<NonZeroU64>,
    /// The loss may depend on trainable tensors that no wrapper knows and that each rank trains on
    /// its own. Otherwise such a tensor, met in two steps in a row, is an error.
    pub allow_unwrapped_parameters: bool,
}

impl DdpOptions {
    /// What all ranks must have alike, for the comparison.
    fn manifest(&self) -> Vec<(&'static str, String)> {
        vec![
            ("find_unused_parameters", self.find_unused_parameters.to_string()),
            ("static_graph", self.static_graph.to_string()),
            ("gradient_as_bucket_view", self.gradient_as_bucket_view.to_string()),
            ("buffers", format!("{:?}", self.buffers)),
            ("bucket_bytes_max", format!("{:?}", self.bucket_bytes_max)),
            ("sparse_parameters", self.sparse_parameters.join(", ")),
            ("check_every", format!("{:?}", self.check_every)),
        ]
    }
}

/// A model that trains on all ranks as one.
///
/// It owns the model and its variable store. Each rank runs the forward pass through
/// [`run`](Ddp::run) on its own share of the batch; [`backward`](Ddp::backward) averages the
/// gradients over the ranks, so that with equal shares they are those of one process on the whole
/// batch. There is no `Deref` to the model: a forward pass that bypasses `run` would not be
/// reduced.
///
/// Every method that says "a collective" must be called by all ranks in the same order.
pub struct Ddp<M> {
    // Dropped in this order: the Reducer before what it watches, the group last.
    reducer: ffi::Reducer,
    watch: ffi::Watch,
    model: M,
    params: Vec<Tensor>,
    names: Vec<String>,
    buffers: Vec<Tensor>,
    n_variables: usize,
    vs: nn::VarStore,
    options: DdpOptions,
    group: ProcessGroup,
    pub(crate) state: State,
}

/// Where in a step this rank is.
#[derive(Debug, Default)]
pub(crate) struct State {
    /// Reduced backward passes so far.
    n_steps: Cell<u64>,
    /// Inside `no_sync`.
    no_sync: Cell<bool>,
    /// A forward pass that will be reduced waits for its backward pass.
    prepared: Cell<bool>,
    /// A forward pass inside `no_sync` waits for its backward pass.
    prepared_local: Cell<bool>,
    /// The gradients are reduced and wait for the optimizer.
    reduced: Cell<bool>,
    /// Backward passes since the last reduction that only this rank knows.
    n_local_backwards: Cell<u32>,
    /// Gradient accumulations accounted for.
    n_accumulations: Cell<u64>,
    /// Buffers have been broadcast since the last step.
    buffers_fresh: Cell<bool>,
    /// The Reducer still divides by the weights of an earlier step.
    divides_by_weights: Cell<bool>,
    /// Weights of `no_sync` passes that the next reduction has to count.
    pub(crate) pending_weight: Cell<i64>,
    /// The first reduction of a static graph has been done.
    static_graph_started: Cell<bool>,
    /// The reduction of weights under way, and its tensor.
    weights: RefCell<Option<(Work, Tensor)>>,
    /// A communication hook averages the gradients.
    has_hook: Cell<bool>,
    /// The step before which parameters were compared last.
    compared_at: Cell<u64>,
    /// An unknown trainable leaf of the last step's loss.
    unwatched: RefCell<Option<Tensor>>,
}

impl<M: fmt::Debug> fmt::Debug for Ddp<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ddp")
            .field("model", &self.model)
            .field("rank", &self.group.rank())
            .field("world_size", &self.group.world_size())
            .field("options", &self.options)
            .finish_non_exhaustive()
    }
}

impl<M> Ddp<M> {
    /// Wraps a model and its variable store. A collective: checks that all ranks built the same
    /// model, then gives all of them rank 0's values.
    ///
    /// Any `M` will do: a struct, a closure model, `&Net`, `Rc<Net>`. What trains is what the
    /// store holds; [`checked`](Ddp::checked) also looks for what it does not hold.
    ///
    /// # Errors
    /// On all ranks alike: the variables (names, shapes, kinds, which train) or the options differ
    /// between ranks, which the text names; nothing trains; a rank failed.
    pub fn new(
        model: M,
        vs: nn::VarStore,
        group: &ProcessGroup,
        options: DdpOptions,
    ) -> Result<Self> {
        Self::wrap(model, vs, group, options, Vec::new())
    }

    /// As [`new`](Ddp::new), for a model under `#[data_parallel]`: holds its fields against the
    /// store first. A collective.
    ///
    /// A float tensor that neither trains nor is in the store follows rank 0 as a buffer does, with
    /// a warning that names its field; it is not saved.
    ///
    /// # Errors
    /// Those of `new`; and before anything collective, by field: every tensor that `register` would
    /// have to add, and every trainable one that was computed from others.
    pub fn checked(
        model: M,
        vs: nn::VarStore,
        group: &ProcessGroup,
        options: DdpOptions,
    ) -> Result<Self>
    where
        M: Replicable,
    {
        let report = module::check(&model, &vs)?;
        report.warn();
        let followers = report.loose.into_iter().map(|(field, tensor)| Variable {
            name: format!("the field `{field}`"),
            aliases: Vec::new(),
            tensor,
            role: Role::Buffer,
        });
        Self::wrap(model, vs, group, options, followers.collect())
    }

    /// `loose` are buffers that the store does not know.
    fn wrap(
        model: M,
        vs: nn::VarStore,
        group: &ProcessGroup,
        options: DdpOptions,
        loose: Vec<Variable>,
    ) -> Result<Self> {
        let mut variables = variables::sorted(&vs);
        variables.extend(loose);
        variables::agree(group, &variables, &options.manifest())?;
        let n_variables = vs.len();
        let expect_sparse = expect_sparse(&variables, &options.sparse_parameters)?;
        if options.buffers == BufferSync::Never {
            let trained = variables.iter().filter(|v| v.role != Role::Buffer);
            checkpoint::broadcast(trained.map(|v| &v.tensor), group)?;
        } else {
            checkpoint::broadcast(variables.iter().map(|v| &v.tensor), group)?;
        }
        let (mut params, mut names, mut buffers) = (Vec::new(), Vec::new(), Vec::new());
        for variable in variables {
            match variable.role {
                Role::Parameter => {
                    params.push(variable.tensor);
                    names.push(variable.name);
                }
                Role::Buffer => buffers.push(variable.tensor),
                Role::Frozen => {}
            }
        }
        if params.is_empty() {
            return Err(Error::Argument(
                "the store has no variable that trains, so there is nothing to reduce; build the \
                 model with the store's root path before wrapping it, and unfreeze what should \
                 train"
                    .to_owned(),
            ));
        }
        let setup = |what: &str| {
            let what = what.to_owned();
            move |TorchError(message)| Error::Torch { what, message }
        };
        let watch = ffi::Watch::new(&params).map_err(setup("watching the parameters"))?;
        let reducer = build_reducer(group, &params, &names, &expect_sparse, &options)
            .map_err(setup("building the Reducer"))?;
        if vs.device() == Device::Cpu {
            memory::keep_for_the_next_step();
        }
        let (group, state) = (group.clone(), State::default());
        Ok(Self {
            reducer,
            watch,
            model,
            params,
            names,
            buffers,
            n_variables,
            vs,
            options,
            group,
            state,
        })
    }

    /// The variable store, for building optimizers and reading values.
    pub fn vars(&self) -> &nn::VarStore {
        &self.vs
    }

    /// The device of the variables.
    pub fn device(&self) -> Device {
        self.vs.device()
    }

    /// This rank, `0..world_size`.
    pub fn rank(&self) -> usize {
        self.group.rank()
    }

    /// Whether this is rank 0, the one that prints and saves.
    pub fn is_main(&self) -> bool {
        self.group.is_main()
    }

    /// The group this model trains in.
    pub fn group(&self) -> &ProcessGroup {
        &self.group
    }

    /// The model, outside of all reduction: for evaluation on one rank and for reading fields. A
    /// backward pass through it is an error at the next use of the wrapper.
    pub fn module(&self) -> &M {
        &self.model
    }

    /// The number of steps whose gradients were reduced so far.
    pub fn n_steps(&self) -> u64 {
        self.state.n_steps.get()
    }

    /// Times and bucket sizes that c10d measured.
    ///
    /// # Errors
    /// libtorch cannot say.
    pub fn stats(&self) -> Result<DdpStats> {
        let data = self.local("reading the statistics", self.reducer.logging_data())?;
        Ok(DdpStats::parse(&data))
    }

    /// Takes the wrapper off.
    pub fn into_parts(self) -> (M, nn::VarStore) {
        let Self { reducer, watch, model, vs, .. } = self;
        drop((reducer, watch));
        (model, vs)
    }

    /// Runs a forward pass whose backward pass will be reduced. A hidden collective when the model
    /// has buffers. Under `tch::no_grad` it only runs the closure, on any subset of the ranks.
    ///
    /// # Errors
    /// The parameters changed since wrapping, an earlier backward pass bypassed the wrapper or left
    /// parameters unreduced, or a rank failed.
    pub fn run<R>(&self, forward: impl FnOnce(&M) -> R) -> Result<R> {
        self.group.usable()?;
        if !grad_enabled() {
            return Ok(forward(&self.model));
        }
        self.settle()?;
        self.check_unchanged()?;
        if self.state.no_sync.get() {
            self.state.prepared_local.set(true);
            return Ok(self.forward(forward));
        }
        self.begin_step()?;
        let output = self.forward(forward);
        if !self.prepares_in_backward() {
            self.local("preparing the reduction", self.reducer.prepare_for_backward(&[]))?;
        }
        self.state.prepared.set(true);
        Ok(output)
    }

    /// Tells, before a forward pass, whether its inputs are where the model is; for models with one
    /// input, `forward_t` does so by itself.
    ///
    /// # Errors
    /// One of them is on another device. The other ranks learn of it in their next collective.
    pub fn check_inputs(&self, inputs: &[&Tensor]) -> Result<()> {
        let devices = inputs.iter().map(|input| input.device());
        match misplaced(devices, self.device()) {
            None => Ok(()),
            Some(reason) => self.misuse(&reason),
        }
    }

    /// Runs `loss.backward()`, averages the gradients over the ranks meanwhile, and checks that
    /// every parameter took part. A collective, except inside [`no_sync`](Ddp::no_sync).
    ///
    /// Gradients add to those already there; the optimizer is not touched.
    ///
    /// # Errors
    /// No forward pass went through [`run`](Ddp::run) since the last backward pass; a parameter got
    /// no gradient (all ranks name it); a rank failed.
    pub fn backward(&self, loss: &Tensor) -> Result<()> {
        self.group.usable()?;
        self.settle()?;
        if self.state.no_sync.get() {
            return self.backward_local(loss);
        }
        self.check_prepared()?;
        self.reset_divisor()?;
        self.backward_reduced(loss)
    }

    /// Clears the gradients, runs [`backward`](Ddp::backward), then steps the optimizer.
    ///
    /// # Errors
    /// As for [`backward`](Ddp::backward); gradients of `no_sync` passes would be thrown away.
    pub fn backward_step(&self, opt: &mut impl Optimizer, loss: &Tensor) -> Result<()> {
        self.fused_step(opt, |_| {}, || self.backward(loss))
    }

    /// As [`backward_step`](Ddp::backward_step), with each gradient value clipped to `-max..max`
    /// after the reduction.
    ///
    /// # Errors
    /// As for [`backward_step`](Ddp::backward_step).
    pub fn backward_step_clip(
        &self,
        opt: &mut impl Optimizer,
        loss: &Tensor,
        max: f64,
    ) -> Result<()> {
        self.fused_step(opt, |opt| opt.clip_grad_value(max), || self.backward(loss))
    }

    /// As [`backward_step`](Ddp::backward_step), with the norm of all gradients clipped to `max`
    /// after the reduction.
    ///
    /// # Errors
    /// As for [`backward_step`](Ddp::backward_step).
    pub fn backward_step_clip_norm(
        &self,
        opt: &mut impl Optimizer,
        loss: &Tensor,
        max: f64,
    ) -> Result<()> {
        self.fused_step(opt, |opt| opt.clip_grad_norm(max), || self.backward(loss))
    }

    /// Checks that the gradients are reduced, steps the optimizer and clears the gradients.
    ///
    /// # Errors
    /// There was no reduced backward pass since the last step, or one that is not reduced.
    pub fn step(&self, opt: &mut impl Optimizer) -> Result<()> {
        self.group.usable()?;
        self.settle()?;
        if self.state.n_local_backwards.get() > 0 {
            return self.misuse(
                "the gradients come from `no_sync` passes only and are not reduced; run the last \
                 forward and backward pass of the step outside of `no_sync`",
            );
        }
        if !self.state.reduced.get() {
            return self.misuse(
                "there is no reduced gradient to step with: call `run` and `backward` before \
                 `step`",
            );
        }
        opt.step()?;
        self.zero_grad()
    }

    /// Clears the gradients by making them undefined, which also works for views into buckets.
    ///
    /// # Errors
    /// libtorch refuses.
    pub fn zero_grad(&self) -> Result<()> {
        if self.state.prepared.get() {
            // A backward pass through another wrapper's loss may have reduced these gradients.
            self.settle()?;
        }
        self.local("clearing the gradients", ffi::clear_grads(&self.params))?;
        let state = &self.state;
        state.reduced.set(false);
        state.n_local_backwards.set(0);
        state.pending_weight.set(0);
        if !state.prepared.get() {
            // Whatever else accumulated is thrown away with the rest.
            self.watch.take_counts();
            state.n_accumulations.set(self.watch.total());
        }
        Ok(())
    }

    /// The same calls with exact gradients when the ranks count different numbers of samples:
    /// every rank passes the number behind its own mean loss. A small reduction per step.
    pub fn weighted(&self, weight: Weight) -> Weighted<'_, M> {
        Weighted::new(self, weight)
    }

    /// Runs `body` without reduction: its backward passes only add to this rank's gradients, which
    /// the next reduced backward pass takes along. Both passes of a micro-batch must be inside.
    pub fn no_sync<R>(&self, body: impl FnOnce() -> R) -> R {
        struct Restore<'a>(&'a Cell<bool>, bool);
        impl Drop for Restore<'_> {
            fn drop(&mut self) {
                self.0.set(self.1);
            }
        }
        let restore = Restore(&self.state.no_sync, self.state.no_sync.replace(true));
        let result = body();
        self.account_local();
        drop(restore);
        result
    }

    /// Saves the variables. A collective: rank 0 writes atomically, all ranks wait and learn of a
    /// failure. The extension decides the format: `.safetensors`, else libtorch's own.
    ///
    /// # Errors
    /// Rank 0 could not write (the same text on every rank), an earlier backward pass bypassed the
    /// wrapper, or a rank failed.
    pub fn save(&self, path: impl AsRef<Path>) -> Result<()> {
        self.settle()?;
        checkpoint::save(&self.vs, path, &self.group)
    }

    /// Loads the variables. A collective: rank 0 reads, all ranks get its values. A common
    /// `module.` before all names is taken off.
    ///
    /// # Errors
    /// The file cannot be read or does not fit (the same text on every rank), or a rank failed.
    pub fn load(&mut self, path: impl AsRef<Path>) -> Result<()> {
        self.group.usable()?;
        checkpoint::load(&variables::sorted(&self.vs), path.as_ref(), &self.group)
    }

    /// A fused step: clear, backward and check, adjust, step.
    pub(crate) fn fused_step<O: Optimizer>(
        &self,
        opt: &mut O,
        adjust: impl FnOnce(&mut O),
        backward: impl FnOnce() -> Result<()>,
    ) -> Result<()> {
        self.group.usable()?;
        self.settle()?;
        if self.state.no_sync.get() {
            return self.misuse(
                "a step inside `no_sync` would use unreduced gradients; call `backward` inside \
                 and step after the last pass, outside",
            );
        }
        let n_local = self.state.n_local_backwards.get();
        if n_local > 0 {
            return self.misuse(&format!(
                "`backward_step` clears the gradients first and would throw away those of \
                 {n_local} `no_sync` passes; use `backward` and then `step`"
            ));
        }
        self.zero_grad()?;
        backward()?;
        adjust(opt);
        opt.step()?;
        self.state.reduced.set(false);
        Ok(())
    }

    /// Runs the forward pass. tch panics where libtorch refuses (shapes, kinds, devices that do not
    /// fit); the other ranks wait in this step and are told why this one will not come.
    fn forward<R>(&self, forward: impl FnOnce(&M) -> R) -> R {
        match catch_unwind(AssertUnwindSafe(|| forward(&self.model))) {
            Ok(output) => output,
            Err(payload) => {
                let text = panic_text(&*payload);
                self.group.peers().accuse_self_of_panic("its forward pass", &text);
                resume_unwind(payload)
            }
        }
    }

    /// The collectives before a step's forward pass.
    fn begin_step(&self) -> Result<()> {
        self.compare_parameters()?;
        self.guarded("the reduction of gradients", || self.reducer.before_forward())?;
        if self.options.buffers == BufferSync::EveryForward && !self.state.buffers_fresh.get() {
            checkpoint::broadcast(&self.buffers, &self.group)?;
            self.state.buffers_fresh.set(true);
        }
        Ok(())
    }

    /// Takes part in a step of other ranks without data of its own. `false`: no rank had any.
    pub(crate) fn stand_in(&self) -> Result<bool> {
        self.group.usable()?;
        self.settle()?;
        if self.state.n_local_backwards.get() > 0 {
            return self.misuse(
                "gradients of `no_sync` passes are left over, which nobody would reduce; run the \
                 last pass of a step outside of `no_sync`",
            );
        }
        if self.state.has_hook.get() {
            return self.misuse("`join` cannot stand in for a communication hook's messages");
        }
        self.begin_step()?;
        self.divide_by_weights(0)?;
        if self.take_weights()? == 0 {
            return Ok(false);
        }
        let find_unused = self.options.find_unused_parameters && !self.options.static_graph;
        self.guarded("the reduction of gradients", || {
            self.reducer.stand_in(&self.group.lock_group(), find_unused)
        })?;
        if find_unused {
            self.drop_unused_gradients()?;
        }
        self.state.buffers_fresh.set(false);
        self.state.reduced.set(true);
        self.count_step();
        Ok(true)
    }

    /// The reduced backward pass with the check behind it.
    pub(crate) fn backward_reduced(&self, loss: &Tensor) -> Result<()> {
        self.check_leaves(loss)?;
        if self.prepares_in_backward() {
            self.prepare_in_backward(loss)?;
        }
        self.state.prepared.set(false);
        let operation = "the reduction of gradients";
        self.guarded(operation, || ffi::backward(loss).map_err(|error| self.explain(error)))?;
        self.finish()
    }

    /// libtorch's words for a sparse gradient that was not declared help nobody.
    fn explain(&self, error: TorchError) -> TorchError {
        let is_undeclared = |index: usize| {
            let grad = self.params[index].grad();
            let declared = self.options.sparse_parameters.contains(&self.names[index]);
            grad.defined() && grad.is_sparse() && !declared
        };
        if !error.0.contains("SparseTensorImpl") {
            return error;
        }
        let names = self.named(is_undeclared);
        TorchError(format!(
            "the gradient of {names} is sparse; name it in `sparse_parameters`, or make the \
             embedding with `sparse: false` (torch: {})",
            error.0
        ))
    }

    pub(crate) fn backward_local(&self, loss: &Tensor) -> Result<()> {
        if !self.state.prepared_local.replace(false) {
            return self.misuse(
                "this backward pass is inside `no_sync` but its forward pass was not: put both \
                 inside, or both outside",
            );
        }
        self.local("the backward pass", ffi::backward(loss))?;
        self.account_local();
        Ok(())
    }

    pub(crate) fn is_in_no_sync(&self) -> bool {
        self.state.no_sync.get()
    }

    pub(crate) fn check_prepared(&self) -> Result<()> {
        if self.state.prepared.get() {
            return Ok(());
        }
        if self.state.prepared_local.get() {
            return self.misuse(
                "this backward pass is outside of `no_sync` but its forward pass was inside: put \
                 both inside, or both outside",
            );
        }
        self.misuse(
            "backward without a forward pass through `run` since the last one, so the gradients \
             would stay this rank's own; call the model through `run` (not `module`), and \
             `backward` once for each time",
        )
    }

    /// Lets `hook` average the gradients from now on, in place of c10d's sum and division. A
    /// collective; once, before the first backward pass.
    ///
    /// # Errors
    /// The ranks give different hooks (on all ranks alike), there is one already, a step was done,
    /// or a rank failed.
    pub fn set_comm_hook(&mut self, hook: impl CommHook) -> Result<()> {
        let names = self.group.all_gather_object(&hook.name())?;
        if let Some(rank) = names.iter().position(|name| *name != names[0]) {
            return Err(Error::Disagreement(format!(
                "rank 0 reduces by `{}`, rank {rank} by `{}`; set the same hook everywhere",
                names[0], names[rank]
            )));
        }
        if self.state.has_hook.get() || self.n_steps() > 0 {
            return Err(Error::Argument(
                "a communication hook must be set once, before the first step".to_owned(),
            ));
        }
        let hook = BoundHook { hook: Box::new(hook), group: self.group.clone() };
        self.local("setting the hook", self.reducer.register_hook(Box::new(hook)))?;
        self.state.has_hook.set(true);
        Ok(())
    }

    /// Starts the sum of the ranks' weights and makes the Reducer divide by it.
    pub(crate) fn divide_by_weights(&self, weight: i64) -> Result<()> {
        if self.state.has_hook.get() {
            return self.misuse(
                "weights and a communication hook do not go together: the hook does its own \
                 averaging; scale the loss instead (by weight times world size over total weight)",
            );
        }
        let total = Tensor::from_slice(&[weight]).to_kind(tch::Kind::Int).to_device(self.device());
        let work = self.group.all_reduce_async(&total)?;
        if let Some(raw) = work.raw() {
            self.local("weighting the step", self.reducer.set_work_handle(raw, false))?;
        }
        self.state.divides_by_weights.set(true);
        *self.state.weights.borrow_mut() = Some((work, total));
        Ok(())
    }

    /// Ends the reduction of weights and returns their sum.
    pub(crate) fn take_weights(&self) -> Result<i64> {
        let Some((work, total)) = self.state.weights.borrow_mut().take() else { return Ok(0) };
        work.wait()?;
        Ok(total.int64_value(&[0]))
    }

    /// The Reducer keeps dividing by the weights of an earlier step until it is told not to.
    fn reset_divisor(&self) -> Result<()> {
        if !self.state.divides_by_weights.get() {
            return Ok(());
        }
        let unused = Tensor::from_slice(&[0i32]).to_device(self.device());
        let work = self.group.all_reduce_async(&unused)?;
        if let Some(raw) = work.raw() {
            self.local("ending a weighted run", self.reducer.set_work_handle(raw, true))?;
        }
        work.wait()?;
        self.state.divides_by_weights.set(false);
        Ok(())
    }

    /// With these options c10d needs to know what the loss depends on, so the reduction is prepared
    /// when the loss is there.
    fn prepares_in_backward(&self) -> bool {
        self.options.find_unused_parameters || self.options.static_graph
    }

    fn prepare_in_backward(&self, loss: &Tensor) -> Result<()> {
        let outputs: &[&Tensor] = if self.options.static_graph { &[] } else { &[loss] };
        self.local("preparing the reduction", self.reducer.prepare_for_backward(outputs))?;
        if self.options.static_graph && !self.state.static_graph_started.replace(true) {
            self.local("delaying the reduction", self.reducer.delay_all_reduce_in(loss))?;
        }
        Ok(())
    }

    /// Accounts for backward passes that did not come through this wrapper: tch's own `backward`
    /// after a prepared forward is fine and is checked now; any other is an error.
    fn settle(&self) -> Result<()> {
        if self.watch.total() == self.state.n_accumulations.get() || self.state.no_sync.get() {
            return Ok(());
        }
        if self.state.prepared.get() {
            if self.prepares_in_backward() {
                return self.misuse(
                    "with `find_unused_parameters` or `static_graph` the backward pass must be \
                     `ddp.backward(&loss)`, not `loss.backward()`: nothing was reduced",
                );
            }
            self.state.prepared.set(false);
            return self.finish();
        }
        let counts = self.watch.take_counts();
        let names = self.named(|index| counts[index] > 0);
        self.misuse(&format!(
            "a backward pass that no `run` prepared has added to the gradients of {names}, on this \
             rank only; call the model through `run` and `backward` once for each time, or throw \
             these gradients away with `zero_grad`"
        ))
    }

    /// Checks that the backward pass just done has reduced every parameter.
    fn finish(&self) -> Result<()> {
        let counts = self.watch.take_counts();
        self.state.n_accumulations.set(self.watch.total());
        if !self.prepares_in_backward() && counts.contains(&0) {
            let names = self.named(|index| counts[index] == 0);
            return self.misuse(&format!(
                "{names} got no gradient, so the gradients are not reduced: use it in every forward \
                 pass, freeze it before wrapping, or set `find_unused_parameters`"
            ));
        }
        self.local("checking the reduction", self.reducer.check_finalized())?;
        let state = &self.state;
        state.n_local_backwards.set(0);
        state.pending_weight.set(0);
        state.buffers_fresh.set(false);
        state.reduced.set(true);
        self.count_step();
        Ok(())
    }

    fn count_step(&self) {
        self.state.n_steps.set(self.state.n_steps.get() + 1);
        self.group.peers().note_step(self.state.n_steps.get());
    }

    /// Books the backward passes of a `no_sync` region.
    fn account_local(&self) {
        let total = self.watch.total();
        if total != self.state.n_accumulations.replace(total) {
            self.watch.take_counts();
            self.state.n_local_backwards.set(self.state.n_local_backwards.get() + 1);
            self.state.reduced.set(false);
        }
    }

    /// Compares the parameters of all ranks, as often as the options say.
    fn compare_parameters(&self) -> Result<()> {
        let step = self.n_steps();
        let Some(every) = self.options.check_every else { return Ok(()) };
        if step == 0 || step % every != 0 || self.state.compared_at.replace(step) == step {
            return Ok(());
        }
        let sums = variables::checksums(&self.params)?;
        let all = self.group.all_gather(&sums)?;
        let all: Vec<Vec<i64>> = all.iter().map(Vec::try_from).collect::<Result<_, _>>()?;
        for (index, name) in self.names.iter().enumerate() {
            if let Some(rank) = all.iter().position(|sums| sums[index] != all[0][index]) {
                return Err(Error::Disagreement(format!(
                    "`{name}` has another value on rank {rank} than on rank 0 before step {step}; \
                     something changed it on one rank only"
                )));
            }
        }
        Ok(())
    }

    /// Looks for a trainable tensor that each rank would train on its own. Inputs that require a
    /// gradient look the same, but are new in every step.
    fn check_leaves(&self, loss: &Tensor) -> Result<()> {
        const STEPS: u64 = 3;
        if self.options.allow_unwrapped_parameters || self.n_steps() >= STEPS {
            return Ok(());
        }
        let found = self.local("looking at the graph", ffi::unwatched_leaf(loss))?;
        let last = self.state.unwatched.replace(found);
        let (Some(last), Some(found)) = (last, &*self.state.unwatched.borrow()) else {
            return Ok(());
        };
        if ffi::tensor_identity(&last) != ffi::tensor_identity(found) {
            return Ok(());
        }
        self.misuse(&format!(
            "the loss depends on a trainable tensor of shape {:?} that is in no wrapped store, so \
             each rank would train it on its own; put it into the store before `Ddp::new` (a model \
             under `#[data_parallel]`: call `register`), or set `allow_unwrapped_parameters`",
            found.size()
        ))
    }

    /// A parameter that no rank used has no gradient, as on the ranks that had data.
    fn drop_unused_gradients(&self) -> Result<()> {
        let used = self.local("reading which parameters were used", self.reducer.used())?;
        let unused: Vec<Tensor> = self
            .params
            .iter()
            .zip(used)
            .filter(|(_, used)| !used)
            .map(|(param, _)| param.shallow_clone())
            .collect();
        self.local("clearing the gradients", ffi::clear_grads(&unused))
    }

    /// Tells whether the variables are still those that were wrapped.
    fn check_unchanged(&self) -> Result<()> {
        if self.vs.len() != self.n_variables {
            return self.misuse(&format!(
                "the store has {} variables but had {} when it was wrapped; build the whole model \
                 before `Ddp::new`",
                self.vs.len(),
                self.n_variables
            ));
        }
        match self.local("looking at the parameters", self.watch.changed())? {
            None => Ok(()),
            Some((index, what)) => self.misuse(&format!(
                "the {what} of `{}` changed after wrapping, which cuts it off from the reduction; \
                 change kind, device and freezing before `Ddp::new`",
                self.names[index]
            )),
        }
    }

    fn named(&self, pick: impl Fn(usize) -> bool) -> String {
        let picked: Vec<String> = (0..self.names.len())
            .filter(|index| pick(*index))
            .map(|index| format!("`{}`", self.names[index]))
            .collect();
        match picked.len() {
            0..=8 => picked.join(", "),
            n => format!("{} and {} more", picked[..8].join(", "), n - 8),
        }
    }

    /// An error of this rank's own making: the other ranks are told, because they wait for it.
    fn misuse<T>(&self, reason: &str) -> Result<T> {
        self.group.give_up(reason);
        let (rank, step) = (self.group.rank(), self.n_steps());
        Err(Error::Misuse { rank, step, reason: reason.to_owned() })
    }

    /// A libtorch call that involves no other rank.
    fn local<T>(&self, what: &str, result: ffi::TorchResult<T>) -> Result<T> {
        result.map_err(|TorchError(message)| {
            self.group.give_up(&format!("{what}: {message}"));
            Error::Torch { what: what.to_owned(), message }
        })
    }

    /// A libtorch call during which ranks wait for each other.
    fn guarded<T>(&self, operation: &str, call: impl FnOnce() -> ffi::TorchResult<T>) -> Result<T> {
        let inside = self.group.peers().enter(operation);
        let result = call();
        drop(inside);
        result.map_err(|error| {
            if is_peer_failure(&error.0) {
                return self.group.failed(operation, &error);
            }
            self.group.give_up(&format!("{operation}: {}", error.0));
            Error::Torch { what: operation.to_owned(), message: error.0 }
        })
    }
}

impl<M: nn::ModuleT> nn::ModuleT for Ddp<M> {
    /// [`Ddp::run`] for models with one input; the trait has no room for an error.
    ///
    /// # Panics
    /// With the error's text where `check_inputs` or `run` returns one.
    fn forward_t(&self, xs: &Tensor, train: bool) -> Tensor {
        let output =
            self.check_inputs(&[xs]).and_then(|()| self.run(|model| model.forward_t(xs, train)));
        match output {
            Ok(output) => output,
            Err(error) => panic!("{error}"),
        }
    }
}

/// What is wrong with inputs on these devices for a model on `model`.
fn misplaced(inputs: impl Iterator<Item = Device>, model: Device) -> Option<String> {
    let (index, device) = inputs.enumerate().find(|(_, device)| *device != model)?;
    Some(format!(
        "input {index} is on {device:?} but the model is on {model:?}; move each batch with \
         `.to_device(ddp.device())`"
    ))
}

/// What a panic said, without libtorch's list of C++ frames.
fn panic_text(payload: &(dyn Any + Send)) -> String {
    const CHARS_MAX: usize = 400;
    let text = payload
        .downcast_ref::<String>()
        .map(String::as_str)
        .or_else(|| payload.downcast_ref::<&str>().copied())
        .unwrap_or("(no text)");
    // In a printed `TchError` the line breaks are escaped.
    let end = ["\nException raised from", "\\nException raised from"]
        .iter()
        .filter_map(|mark| text.find(mark))
        .min()
        .unwrap_or(text.len());
    text[..end].chars().take(CHARS_MAX).collect()
}

/// Whether operations are recorded for a backward pass on this thread.
pub(crate) fn grad_enabled() -> bool {
    let probe = Tensor::from(0f32).set_requires_grad(true);
    (&probe * 1.0).requires_grad()
}

fn expect_sparse(variables: &[Variable], sparse: &[String]) -> Result<Vec<bool>> {
    let params: Vec<&Variable> = variables.iter().filter(|v| v.role == Role::Parameter).collect();
    for name in sparse {
        if !params.iter().any(|variable| variable.name == *name) {
            return Err(Error::Argument(format!(
                "`sparse_parameters` names `{name}`, which is no trainable variable of the store"
            )));
        }
    }
    Ok(params.iter().map(|variable| sparse.contains(&variable.name)).collect())
}

fn build_reducer(
    group: &ProcessGroup,
    params: &[Tensor],
    names: &[String],
    expect_sparse: &[bool],
    options: &DdpOptions,
) -> ffi::TorchResult<ffi::Reducer> {
    const DEFAULT_BYTES: usize = 25 << 20;
    const DEFAULT_FIRST_BYTES: usize = 1 << 20;
    let bytes = options.bucket_bytes_max.unwrap_or(DEFAULT_BYTES).max(1);
    let first = if options.bucket_bytes_max.is_none() { DEFAULT_FIRST_BYTES } else { bytes };
    // One bucket at first where buckets will be rebuilt in the order of arrival: in an order that
    // nobody knows yet, several could meet other collectives out of turn.
    let limits: Vec<usize> = if options.static_graph || !options.find_unused_parameters {
        vec![usize::MAX >> 1]
    } else if first < bytes {
        vec![first, bytes]
    } else {
        vec![bytes]
    };
    let group = group.lock_group();
    group.verify_params(params)?;
    ffi::Reducer::new(
        &group,
        &ReducerOptions {
            params,
            names,
            expect_sparse,
            initial_bucket_limits: &limits,
            bucket_bytes_max: bytes as i64,
            first_bucket_bytes_max: first as i64,
            find_unused_parameters: options.find_unused_parameters,
            gradient_as_bucket_view: options.gradient_as_bucket_view,
            static_graph: options.static_graph,
            sync_buffers: options.buffers == BufferSync::EveryForward,
        },
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_input_on_another_device_is_named_with_both_devices() {
        let model = Device::Cuda(1);
        assert_eq!(misplaced([model, model].into_iter(), model), None);
        for other in [Device::Cpu, Device::Cuda(0)] {
            let said = misplaced([model, other].into_iter(), model).unwrap();
            let words = format!("input 1 is on {other:?} but the model is on Cuda(1)");
            assert!(said.starts_with(&words), "{said}");
        }
    }

    #[test]
    fn a_panic_is_told_without_libtorchs_frames() {
        let left = Tensor::zeros([2, 3], (tch::Kind::Float, Device::Cpu));
        let payload = catch_unwind(AssertUnwindSafe(|| left.mm(&left))).unwrap_err();
        let said = panic_text(&*payload);
        assert!(said.contains("cannot be multiplied (2x3 and 2x3)"), "{said}");
        assert!(!said.contains("Exception raised"), "{said}");
        let payload = catch_unwind(|| panic!("a bug")).unwrap_err();
        assert_eq!(panic_text(&*payload), "a bug");
    }
}
