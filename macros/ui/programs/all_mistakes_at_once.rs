// Every mistake is told, and the use of the type adds none.
use tch::{Tensor, nn};
use tch_ddp::data_parallel;


#[data_parallel]
struct Agent {
    vs: nn::VarStore,
    opt: nn::Optimizer,
    #[dp(skipp)]
    net: nn::Linear,
    #[dp(name = "w.{i}")]
    weights: Vec<Tensor>,
}

fn act(agent: &Agent, vs: &nn::VarStore) -> tch_ddp::Result<()> {
    agent.register(&vs.root())?;
    Ok(())
}

fn main() {}
