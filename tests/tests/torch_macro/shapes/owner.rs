//! Reinforcement learning's habit of one struct that owns everything: the network inside it gets
//! the attribute, and `Ddp`, which owns the store, takes the store's place.

use std::time::Duration;

use anyhow::{Result, ensure};
use ddp_tests::test_name;
use ddp_tests::torch::Ranks;
use ddp_tests::torch::models::{fill, store};
use tch::nn::{self, OptimizerConfig};
use tch::{Kind, Tensor};
use tch_ddp::{Ddp, DdpOptions, data_parallel};

use super::common::{ROWS, linear, waves};

#[data_parallel]
struct Policy {
    hidden: nn::Linear,
    log_std: Vec<Tensor>,
    head: nn::Linear,
}

struct Actor {
    policy: Ddp<Policy>,
    opt: nn::Optimizer,
}

impl Policy {
    fn new(p: &nn::Path) -> Self {
        let spread = Tensor::zeros([2], (p.kind(), p.device())).set_requires_grad(true);
        Self {
            hidden: linear(p / "hidden", 3, 8),
            log_std: vec![spread],
            head: linear(p / "head", 8, 2),
        }
    }

    fn forward(&self, observations: &Tensor) -> (Tensor, Tensor) {
        let mean = observations.apply(&self.hidden).tanh().apply(&self.head);
        (mean, self.log_std[0].exp())
    }
}

impl Actor {
    fn improve(&mut self, observations: &Tensor, actions: &Tensor) -> Result<()> {
        let observations = observations.to_device(self.policy.device());
        let (mean, std) = self.policy.run(|policy| policy.forward(&observations))?;
        self.policy.backward_step(&mut self.opt, &surprise(&mean, &std, actions))?;
        Ok(())
    }
}

fn surprise(mean: &Tensor, std: &Tensor, actions: &Tensor) -> Tensor {
    (((actions - mean) / std).square() * 0.5 + std.log()).mean(Kind::Double)
}

#[test]
fn two_ranks_train_an_actor_as_one_process_does() {
    Ranks::new(test_name!(), 2).run(|rank| {
        let (observations, actions) = (waves(&[3], 0.41), waves(&[2], 0.73));
        let alone = store(Kind::Double);
        let policy = Policy::new(&alone.root());
        policy.register(&alone.root())?;
        fill(&alone);
        let mut opt = nn::Adam::default().build(&alone, 1e-2)?;
        for _ in 0..3 {
            let (mean, std) = policy.forward(&observations);
            opt.backward_step(&surprise(&mean, &std, &actions));
        }

        let group = rank.group(Duration::from_secs(30))?;
        let vs = store(Kind::Double);
        let policy = Policy::new(&vs.root());
        policy.register(&vs.root())?;
        if group.is_main() {
            fill(&vs);
        }
        let opt = nn::Adam::default().build(&vs, 1e-2)?;
        let mut actor = Actor { policy: Ddp::new(policy, vs, &group, DdpOptions::default())?, opt };
        let rows = ROWS / 2;
        let share = |t: &Tensor| t.narrow(0, group.rank() as i64 * rows, rows);
        for _ in 0..3 {
            actor.improve(&share(&observations), &share(&actions))?;
        }
        let together = actor.policy.vars().variables();
        for (name, expected) in alone.variables() {
            let difference = f64::try_from((&together[&name] - expected).abs().max())?;
            ensure!(difference <= 1e-9, "`{name}` differs by {difference:e}");
        }
        ensure!(together.contains_key("log_std.0"), "the list was not registered");
        Ok(())
    });
}
