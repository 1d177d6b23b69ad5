//! `Ddp::checked`: what the store of an annotated model does not hold is refused before the ranks
//! talk, and tensors that only follow are the same on all ranks.

use std::time::Duration;

use anyhow::{Result, ensure};
use ddp_tests::test_name;
use ddp_tests::torch::models::{fill, store};
use ddp_tests::torch::{Rank, Ranks};
use tch::nn::{self, OptimizerConfig};
use tch::{Kind, Tensor};
use tch_ddp::{Ddp, DdpOptions, ProcessGroup, data_parallel};

#[data_parallel]
struct Net {
    layer: nn::Linear,
    gains: Vec<Tensor>,
    /// Drawn by each rank for itself, and not registered.
    freqs: Tensor,
}

impl Net {
    fn new(p: &nn::Path) -> Net {
        let of_kind = (p.kind(), p.device());
        Net {
            layer: nn::linear(p / "layer", 3, 2, nn::LinearConfig::default()),
            gains: vec![Tensor::ones([2], of_kind).set_requires_grad(true)],
            freqs: Tensor::zeros([3], of_kind),
        }
    }

    fn forward(&self, x: &Tensor) -> Tensor {
        (x + &self.freqs).apply(&self.layer) * &self.gains[0]
    }
}

fn group(rank: &Rank) -> Result<ProcessGroup> {
    rank.group(Duration::from_secs(30))
}

#[test]
fn a_list_that_is_not_registered_is_refused_by_field_on_all_ranks() {
    Ranks::new(test_name!(), 2).run(|rank| {
        let group = group(rank)?;
        let vs = store(Kind::Double);
        let net = Net::new(&vs.root());
        let refused = Ddp::checked(net, vs, &group, DdpOptions::default());
        let Err(error) = refused else { anyhow::bail!("the list was accepted") };
        let text = error.to_string();
        ensure!(text.contains("`gains[0]` trains but the store does not hold it"), "{text}");
        ensure!(text.contains("`model.register(&vs.root())?`"), "{text}");
        // Nobody was left waiting.
        group.barrier()?;
        Ok(())
    });
}

#[test]
fn tensors_outside_of_the_store_follow_rank_0_in_every_step() {
    Ranks::new(test_name!(), 2).run(|rank| {
        let group = group(rank)?;
        let vs = store(Kind::Double);
        let mut net = Net::new(&vs.root());
        // The feature that no path made is replaced after the registration, as by a careless load.
        net.register(&vs.root())?;
        fill(&vs);
        net.freqs = Tensor::from_slice(&[0.5, 1.5, 2.5]) * (group.rank() as f64 + 1.0);
        let names: Vec<_> = vs.variables().into_keys().collect();
        ensure!(names.iter().any(|name| name == "gains.0"), "{names:?}");
        let mut opt = nn::Sgd::default().build(&vs, 0.1)?;
        let ddp = Ddp::checked(net, vs, &group, DdpOptions::default())?;
        let freqs = || Vec::<f64>::try_from(&ddp.module().freqs);
        ensure!(freqs()? == [0.5, 1.5, 2.5], "wrapping: {:?}", freqs()?);
        let x = Tensor::ones([2, 3], (Kind::Double, ddp.device()));
        for step in 0..2 {
            if !group.is_main() {
                let _ = ddp.module().freqs.shallow_clone().fill_(9.0);
            }
            let loss = ddp.run(|net| net.forward(&x))?.square().mean(Kind::Double);
            ddp.backward_step(&mut opt, &loss)?;
            ensure!(freqs()? == [0.5, 1.5, 2.5], "step {step}: {:?}", freqs()?);
        }
        ensure!(ddp.vars().len() == names.len(), "the store was changed");
        Ok(())
    });
}
