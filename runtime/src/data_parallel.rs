//! `DataParallel`: one process, one replica per device, each forward pass on its own thread. It
//! exists to show, on the same data, that it, `Ddp` and one process do the same; for speed and for
//! more than one machine, `Ddp` is the way.

use std::cell::RefCell;
use std::path::Path;
use std::thread;

use tch::nn::{self, OptimizerConfig};
use tch::{Device, Tensor};

use crate::checkpoint;
use crate::error::{Error, Result};
use crate::ffi::{self, TorchError};
use crate::output::TensorOutput;
use crate::variables::{self, Role, Variable};

/// A model replicated over the devices of this process.
///
/// The first replica is the model; the others get its values before every forward pass and give it
/// their gradients during the backward pass.
#[derive(Debug)]
pub struct DataParallel<M> {
    // Dropped first: it refers to the parameters below.
    _mirror: ffi::Mirror,
    replicas: RefCell<Vec<M>>,
    stores: Vec<nn::VarStore>,
    /// The variables of each replica, in one order.
    variables: Vec<Vec<Tensor>>,
}

impl<M: Send> DataParallel<M> {
    /// Builds one replica per device by `build`, which gets the root path of its store. Several
    /// replicas may share a device (`&[Device::Cpu; 2]`).
    ///
    /// # Errors
    /// No device; `build` makes different variables for different replicas.
    pub fn new(devices: &[Device], build: impl Fn(&nn::Path<'_>) -> M) -> Result<Self> {
        if devices.is_empty() {
            return Err(Error::Argument("DataParallel needs at least one device".to_owned()));
        }
        let stores: Vec<nn::VarStore> = devices.iter().map(|d| nn::VarStore::new(*d)).collect();
        let replicas: Vec<M> = stores.iter().map(|vs| build(&vs.root())).collect();
        let all: Vec<Vec<Variable>> = stores.iter().map(variables::sorted).collect();
        for (number, replica) in all.iter().enumerate().skip(1) {
            same_variables(&all[0], replica, number)?;
        }
        let trained = |variables: &[Variable]| -> Vec<Tensor> {
            let trained = variables.iter().filter(|variable| variable.role == Role::Parameter);
            trained.map(|variable| variable.tensor.shallow_clone()).collect()
        };
        let source = trained(&all[0]);
        let targets: Vec<Vec<Tensor>> = all[1..].iter().map(|replica| trained(replica)).collect();
        let mirror = ffi::Mirror::new(&source, &targets).map_err(|TorchError(message)| {
            Error::Torch { what: "connecting the replicas".to_owned(), message }
        })?;
        let variables = all
            .into_iter()
            .map(|replica| replica.into_iter().map(|variable| variable.tensor).collect())
            .collect();
        Ok(Self { _mirror: mirror, replicas: RefCell::new(replicas), stores, variables })
    }

    /// The device of the first replica, where outputs are gathered.
    pub fn device(&self) -> Device {
        self.stores[0].device()
    }

    /// The variables of the first replica.
    pub fn vars(&self) -> &nn::VarStore {
        &self.stores[0]
    }

    /// An optimizer of the first replica's variables, which are the model's.
    ///
    /// # Errors
    /// libtorch refuses the configuration.
    pub fn optimizer(&self, config: impl OptimizerConfig, lr: f64) -> Result<nn::Optimizer> {
        Ok(config.build(&self.stores[0], lr)?)
    }

    /// Splits the inputs along their first dimension, runs `forward` on every replica with its part
    /// at the same time, and joins the outputs along their first dimension (scalars into a list).
    ///
    /// # Errors
    /// The inputs are empty or their first dimensions differ; the replicas' outputs do not fit
    /// together; a forward pass panicked.
    pub fn run<O>(
        &self,
        inputs: &[&Tensor],
        forward: impl Fn(&M, &[Tensor]) -> O + Sync,
    ) -> Result<O>
    where
        O: TensorOutput + Send,
    {
        let parts = self.scatter(inputs)?;
        self.copy_values(parts.len())?;
        let with_grad = crate::ddp::grad_enabled();
        let mut replicas = self.replicas.borrow_mut();
        let forward = &forward;
        let outputs: Vec<thread::Result<O>> = thread::scope(|scope| {
            let running: Vec<_> = replicas
                .iter_mut()
                .zip(parts)
                .map(|(replica, part)| {
                    scope.spawn(move || {
                        // Whether gradients are recorded is each thread's own affair.
                        let call = || forward(replica, &part);
                        if with_grad { call() } else { tch::no_grad(call) }
                    })
                })
                .collect();
            running.into_iter().map(thread::ScopedJoinHandle::join).collect()
        });
        let outputs: Vec<O> = outputs.into_iter().collect::<thread::Result<_>>().map_err(|_| {
            Error::Argument("the forward pass of a replica panicked; see above".to_owned())
        })?;
        gather(outputs, self.device())
    }

    /// Saves the variables of the first replica, atomically.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn save(&self, path: impl AsRef<Path>) -> Result<()> {
        let path = path.as_ref();
        checkpoint::write(&self.stores[0], path).map_err(|reason| {
            Error::Checkpoint(format!("cannot save `{}`: {reason}", path.display()))
        })
    }

    /// One list of inputs per replica that gets a part.
    fn scatter(&self, inputs: &[&Tensor]) -> Result<Vec<Vec<Tensor>>> {
        let n_rows = |tensor: &Tensor| tensor.size().first().copied();
        let Some(rows) = inputs.first().and_then(|first| n_rows(first)).filter(|rows| *rows > 0)
        else {
            return Err(Error::Argument(
                "the first input must have at least one row to be split".to_owned(),
            ));
        };
        if let Some(other) = inputs.iter().find(|input| n_rows(input) != Some(rows)) {
            return Err(Error::Argument(format!(
                "inputs are split along their first dimension, but one has {rows} rows and another \
                 shape {:?}",
                other.size()
            )));
        }
        let n_replicas = self.stores.len() as i64;
        let mut parts: Vec<Vec<Tensor>> = Vec::new();
        for input in inputs {
            for (replica, part) in input.f_chunk(n_replicas, 0)?.into_iter().enumerate() {
                let part = part.f_to_device(self.stores[replica].device())?;
                if parts.len() == replica {
                    parts.push(Vec::new());
                }
                parts[replica].push(part);
            }
        }
        Ok(parts)
    }

    /// Gives the replicas in use the first one's values.
    fn copy_values(&self, n_used: usize) -> Result<()> {
        let (source, replicas) = (&self.variables[0], &self.variables[1..]);
        tch::no_grad(|| {
            for replica in replicas.iter().take(n_used.saturating_sub(1)) {
                for (target, value) in replica.iter().zip(source) {
                    target.detach().f_copy_(value)?;
                }
            }
            Ok(())
        })
    }
}

fn same_variables(first: &[Variable], other: &[Variable], number: usize) -> Result<()> {
    let describe = |variable: Option<&Variable>| match variable {
        Some(v) => format!("`{}` of shape {:?}", v.name, v.tensor.size()),
        None => "nothing".to_owned(),
    };
    for index in 0..first.len().max(other.len()) {
        let (a, b) = (describe(first.get(index)), describe(other.get(index)));
        if a != b {
            return Err(Error::Argument(format!(
                "`build` made {a} for the first replica but {b} for replica {number}; it must \
                 build the same model every time"
            )));
        }
    }
    Ok(())
}

/// Joins the outputs into the first one.
fn gather<O: TensorOutput>(mut outputs: Vec<O>, device: Device) -> Result<O> {
    let lists: Vec<Vec<Tensor>> = outputs
        .iter()
        .map(|output| {
            let mut tensors = Vec::new();
            output.tensors(&mut tensors);
            tensors.into_iter().map(|tensor| tensor.to_device(device)).collect()
        })
        .collect();
    if let Some(other) = lists.iter().position(|list| list.len() != lists[0].len()) {
        return Err(Error::Argument(format!(
            "the first replica returned {} tensors but replica {other} returned {}",
            lists[0].len(),
            lists[other].len()
        )));
    }
    let mut joined = Vec::new();
    for index in 0..lists[0].len() {
        let parts: Vec<&Tensor> = lists.iter().map(|list| &list[index]).collect();
        joined.push(if parts[0].dim() == 0 {
            Tensor::f_stack(&parts, 0)?
        } else {
            Tensor::f_cat(&parts, 0)?
        });
    }
    let mut first = outputs.swap_remove(0);
    let mut places = Vec::new();
    first.tensors_mut(&mut places);
    for (place, tensor) in places.into_iter().zip(joined) {
        *place = tensor;
    }
    Ok(first)
}
