//! Optimizers as `Ddp` uses them, and two of its own: fused over all parameters (one call of
//! libtorch per step instead of several per parameter) and with a state that can be saved, which
//! tch's do not let out.

use tch::{Tensor, nn};

use crate::error::{Error, Result};
use crate::ffi::{self, TorchError};
use crate::variables::{self, Role};

/// What `Ddp` needs of an optimizer.
pub trait Optimizer {
    /// Changes the parameters by their gradients; those without a gradient are left alone.
    ///
    /// # Errors
    /// libtorch refuses.
    fn step(&mut self) -> Result<()>;

    /// Clips every gradient value to `-max..max`.
    fn clip_grad_value(&mut self, max: f64);

    /// Scales all gradients together so that their norm is at most `max`.
    fn clip_grad_norm(&mut self, max: f64);
}

impl Optimizer for nn::Optimizer {
    fn step(&mut self) -> Result<()> {
        nn::Optimizer::step(self);
        Ok(())
    }

    fn clip_grad_value(&mut self, max: f64) {
        nn::Optimizer::clip_grad_value(self, max);
    }

    fn clip_grad_norm(&mut self, max: f64) {
        nn::Optimizer::clip_grad_norm(self, max);
    }
}

/// An optimizer whose state can be saved and restored by the names of the parameters.
pub trait SavedState: Optimizer {
    /// The state, by names such as `conv.weight.exp_avg`; the tensors share memory with it.
    fn state(&self) -> Vec<(String, Tensor)>;
}

/// The parameters of a store with their names, sorted.
#[derive(Debug)]
struct Params {
    names: Vec<String>,
    tensors: Vec<Tensor>,
}

impl Params {
    fn of(vs: &nn::VarStore) -> Result<Self> {
        let (names, tensors): (Vec<_>, Vec<_>) = variables::sorted(vs)
            .into_iter()
            .filter(|variable| variable.role == Role::Parameter)
            .map(|variable| (variable.name, variable.tensor))
            .unzip();
        if tensors.is_empty() {
            let reason =
                "the store has no variable that trains; build the model before its optimizer";
            return Err(Error::Argument(reason.to_owned()));
        }
        Ok(Self { names, tensors })
    }

    fn zeros(&self) -> Vec<Tensor> {
        self.tensors.iter().map(Tensor::zeros_like).map(|zeros| zeros.detach()).collect()
    }

    fn clip_grad_value(&self, max: f64) {
        for mut gradient in self.gradients() {
            let _ = gradient.clamp_(-max, max);
        }
    }

    fn clip_grad_norm(&self, max: f64) {
        tch::no_grad(|| {
            let gradients: Vec<Tensor> = self.gradients().collect();
            if gradients.is_empty() {
                return;
            }
            let norms: Vec<Tensor> = gradients.iter().map(Tensor::norm).collect();
            let total = Tensor::stack(&norms, 0).norm();
            // Stays on the device: no waiting for the number.
            let factor = (max / (total + 1e-6)).clamp_max(1.0);
            for mut gradient in gradients {
                let _ = gradient.g_mul_(&factor);
            }
        });
    }

    fn zero_grad(&self) -> Result<()> {
        ffi::clear_grads(&self.tensors).map_err(|TorchError(message)| Error::Torch {
            what: "clearing the gradients".to_owned(),
            message,
        })
    }

    fn gradients(&self) -> impl Iterator<Item = Tensor> + '_ {
        self.tensors.iter().map(Tensor::grad).filter(Tensor::defined)
    }

    fn named<'a>(
        &'a self,
        what: &'a str,
        state: &'a [Tensor],
    ) -> impl Iterator<Item = (String, Tensor)> + 'a {
        let names = self.names.iter().map(move |name| format!("{name}.{what}"));
        names.zip(state.iter().map(Tensor::shallow_clone))
    }
}

fn refused(TorchError(message): TorchError) -> Error {
    Error::Torch { what: "the optimizer's step".to_owned(), message }
}

/// Stochastic gradient descent, fused.
#[derive(Debug)]
pub struct Sgd {
    params: Params,
    momentum_buffers: Vec<Tensor>,
    config: SgdConfig,
    n_steps: Tensor,
}

/// Settings of [`Sgd`]; the defaults are PyTorch's.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SgdConfig {
    /// Learning rate.
    pub lr: f64,
    /// Momentum.
    pub momentum: f64,
    /// How much of a gradient the momentum leaves out.
    pub dampening: f64,
    /// Weight decay, added to the gradient.
    pub weight_decay: f64,
    /// Nesterov's momentum.
    pub nesterov: bool,
}

impl Default for SgdConfig {
    fn default() -> Self {
        Self { lr: 1e-3, momentum: 0.0, dampening: 0.0, weight_decay: 0.0, nesterov: false }
    }
}

impl Sgd {
    /// For the variables of the store that train now.
    ///
    /// # Errors
    /// None trains.
    pub fn new(vs: &nn::VarStore, config: SgdConfig) -> Result<Self> {
        let params = Params::of(vs)?;
        let momentum_buffers = if config.momentum == 0.0 { Vec::new() } else { params.zeros() };
        let n_steps = Tensor::from_slice(&[0i64]);
        Ok(Self { params, momentum_buffers, config, n_steps })
    }

    /// Sets the learning rate.
    pub fn set_lr(&mut self, lr: f64) {
        self.config.lr = lr;
    }

    /// Clears the gradients by making them undefined, as `Ddp::zero_grad` does: for a model that is
    /// not wrapped.
    ///
    /// # Errors
    /// libtorch refuses.
    pub fn zero_grad(&self) -> Result<()> {
        self.params.zero_grad()
    }
}

impl Optimizer for Sgd {
    fn step(&mut self) -> Result<()> {
        let first = self.n_steps.int64_value(&[0]) == 0;
        let (params, buffers) = (&self.params.tensors, &self.momentum_buffers);
        ffi::fused_sgd(params, buffers, &self.config, first).map_err(refused)?;
        let _ = self.n_steps.g_add_scalar_(1);
        Ok(())
    }

    fn clip_grad_value(&mut self, max: f64) {
        self.params.clip_grad_value(max);
    }

    fn clip_grad_norm(&mut self, max: f64) {
        self.params.clip_grad_norm(max);
    }
}

impl SavedState for Sgd {
    fn state(&self) -> Vec<(String, Tensor)> {
        let steps = ("n_steps".to_owned(), self.n_steps.shallow_clone());
        self.params.named("momentum_buffer", &self.momentum_buffers).chain([steps]).collect()
    }
}

/// Adam with decoupled weight decay, fused.
#[derive(Debug)]
pub struct AdamW {
    params: Params,
    averages: Vec<Tensor>,
    squares: Vec<Tensor>,
    steps: Vec<Tensor>,
    config: AdamWConfig,
}

/// Settings of [`AdamW`]; the defaults are PyTorch's.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AdamWConfig {
    /// Learning rate.
    pub lr: f64,
    /// Decay of the average of gradients.
    pub beta1: f64,
    /// Decay of the average of their squares.
    pub beta2: f64,
    /// Added to the denominator.
    pub eps: f64,
    /// Weight decay, relative to the learning rate.
    pub weight_decay: f64,
}

impl Default for AdamWConfig {
    fn default() -> Self {
        Self { lr: 1e-3, beta1: 0.9, beta2: 0.999, eps: 1e-8, weight_decay: 0.01 }
    }
}

impl AdamW {
    /// For the variables of the store that train now.
    ///
    /// # Errors
    /// None trains.
    pub fn new(vs: &nn::VarStore, config: AdamWConfig) -> Result<Self> {
        let params = Params::of(vs)?;
        let (averages, squares) = (params.zeros(), params.zeros());
        let steps = params
            .tensors
            .iter()
            .map(|param| Tensor::zeros([], (tch::Kind::Float, param.device())))
            .collect();
        Ok(Self { params, averages, squares, steps, config })
    }

    /// Sets the learning rate.
    pub fn set_lr(&mut self, lr: f64) {
        self.config.lr = lr;
    }

    /// Clears the gradients by making them undefined, as `Ddp::zero_grad` does: for a model that is
    /// not wrapped.
    ///
    /// # Errors
    /// libtorch refuses.
    pub fn zero_grad(&self) -> Result<()> {
        self.params.zero_grad()
    }
}

impl Optimizer for AdamW {
    fn step(&mut self) -> Result<()> {
        let Self { params, averages, squares, steps, config } = self;
        ffi::fused_adamw(&params.tensors, averages, squares, steps, config).map_err(refused)
    }

    fn clip_grad_value(&mut self, max: f64) {
        self.params.clip_grad_value(max);
    }

    fn clip_grad_norm(&mut self, max: f64) {
        self.params.clip_grad_norm(max);
    }
}

impl SavedState for AdamW {
    fn state(&self) -> Vec<(String, Tensor)> {
        let averages = self.params.named("exp_avg", &self.averages);
        let squares = self.params.named("exp_avg_sq", &self.squares);
        averages.chain(squares).chain(self.params.named("step", &self.steps)).collect()
    }
}
