// A model that owns its store.
use tch::nn;
use tch_ddp::data_parallel;


#[data_parallel]
struct Net {
    fc: nn::Linear,
    extra: nn::VarStore,
}

fn main() {}
