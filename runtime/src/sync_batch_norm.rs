//! Batch normalization whose statistics are those of all ranks' samples together. Built from plain
//! tensor operations on differentiable reductions, so that its gradients are exact too.

use tch::nn::{self, ModuleT};
use tch::{Kind, Tensor};

use crate::error::{Error, Result};
use crate::group::ProcessGroup;

/// A batch normalization over the batches of all ranks.
///
/// In training, its forward and its backward pass are collectives (two small reductions each): all
/// ranks must run it equally often. Outside of training it uses the running statistics and
/// communicates nothing. Ranks may have different numbers of samples.
#[derive(Debug)]
pub struct SyncBatchNorm {
    running_mean: Tensor,
    running_var: Tensor,
    weight: Option<Tensor>,
    bias: Option<Tensor>,
    momentum: f64,
    eps: f64,
    group: ProcessGroup,
}

impl SyncBatchNorm {
    /// With variables of its own: `weight`, `bias`, `running_mean` and `running_var`, as
    /// `nn::batch_norm*` names them.
    pub fn new(
        vs: &nn::Path<'_>,
        n_channels: i64,
        config: nn::BatchNormConfig,
        group: &ProcessGroup,
    ) -> Self {
        let layer = nn::batch_norm1d(vs, n_channels, config);
        Self::from_layer(layer, config, group)
    }

    /// Converts a layer; its variables stay where they are. To be done before wrapping the model.
    ///
    /// tch does not let out the configuration a layer was built with, so it is given again.
    pub fn from_layer(
        layer: nn::BatchNorm,
        config: nn::BatchNormConfig,
        group: &ProcessGroup,
    ) -> Self {
        Self {
            running_mean: layer.running_mean,
            running_var: layer.running_var,
            weight: layer.ws,
            bias: layer.bs,
            momentum: config.momentum,
            eps: config.eps,
            group: group.clone(),
        }
    }

    /// Normalizes `xs`, of shape `[n, channels, …]`.
    ///
    /// # Errors
    /// Fewer than two dimensions, no sample on any rank, or a rank failed.
    pub fn try_forward_t(&self, xs: &Tensor, train: bool) -> Result<Tensor> {
        let shape = xs.size();
        if shape.len() < 2 {
            return Err(Error::Argument(format!(
                "batch normalization needs `[n, channels, …]`, but the input has shape {shape:?}"
            )));
        }
        if !train {
            return Ok(Tensor::batch_norm(
                xs,
                self.weight.as_ref(),
                self.bias.as_ref(),
                Some(&self.running_mean),
                Some(&self.running_var),
                false,
                self.momentum,
                self.eps,
                false,
            ));
        }
        self.train(xs, &shape)
    }

    fn train(&self, xs: &Tensor, shape: &[i64]) -> Result<Tensor> {
        let channels = shape[1];
        let mut broadcast = vec![1i64; shape.len()];
        broadcast[1] = channels;
        let others: Vec<i64> = (0..shape.len() as i64).filter(|dim| *dim != 1).collect();
        // Statistics of half-precision inputs are taken in single precision.
        let wide = match xs.kind() {
            Kind::Half | Kind::BFloat16 => xs.to_kind(Kind::Float),
            _ => xs.shallow_clone(),
        };
        let own = shape.iter().product::<i64>() / channels.max(1);
        let total = Tensor::from_slice(&[own]).to_device(xs.device());
        self.group.all_reduce(&total)?;
        let total = total.int64_value(&[0]) as f64;
        if total == 0.0 {
            return Err(Error::Argument("no rank has a sample to normalize".to_owned()));
        }
        let sum = |values: &Tensor| values.sum_dim_intlist(others.as_slice(), false, None);
        let mean = self.group.all_reduce_differentiable(&sum(&wide))? / total;
        let centred = &wide - mean.view(broadcast.as_slice());
        let squares = self.group.all_reduce_differentiable(&sum(&centred.square()))?;
        let variance = squares / total;
        self.update_statistics(&mean, &variance, total);
        let normal = centred * (&variance + self.eps).rsqrt().view(broadcast.as_slice());
        let scaled = match &self.weight {
            Some(weight) => normal * weight.view(broadcast.as_slice()),
            None => normal,
        };
        let out = match &self.bias {
            Some(bias) => scaled + bias.view(broadcast.as_slice()),
            None => scaled,
        };
        Ok(out.to_kind(xs.kind()))
    }

    /// The running variance is the unbiased one, as in PyTorch.
    fn update_statistics(&self, mean: &Tensor, variance: &Tensor, total: f64) {
        let unbiased = variance.detach() * (total / (total - 1.0).max(1.0));
        let follow = |running: &Tensor, batch: &Tensor| {
            let step = (batch - running) * self.momentum;
            let _ = running.shallow_clone().g_add_(&step.to_kind(running.kind()));
        };
        tch::no_grad(|| {
            follow(&self.running_mean, &mean.detach());
            follow(&self.running_var, &unbiased);
        });
    }
}

impl ModuleT for SyncBatchNorm {
    /// [`SyncBatchNorm::try_forward_t`]; the trait has no room for an error.
    ///
    /// # Panics
    /// With the error's text where that returns one.
    fn forward_t(&self, xs: &Tensor, train: bool) -> Tensor {
        match self.try_forward_t(xs, train) {
            Ok(output) => output,
            Err(error) => panic!("{error}"),
        }
    }
}
