//! Definitions that the macros accept, one kind per file, and what becomes of them: the programs in
//! `macros/ui/accepted`, which also compile alone, are run here.

use tch::{Device, Kind, Tensor, nn};
use tch_ddp::Registered;

#[path = "../../../macros/ui/accepted"]
#[expect(
    clippy::arc_with_non_send_sync,
    clippy::float_cmp,
    clippy::match_same_arms,
    clippy::type_complexity,
    clippy::unnecessary_wraps,
    clippy::unused_self,
    reason = "these programs try what users may write, however odd"
)]
mod accepted {
    use super::{fields, layer, learnable};

    mod attributes;
    mod closures;
    mod conditions;
    mod constants;
    mod constructors;
    mod expanded;
    mod foreign;
    mod generics;
    mod home_made;
    mod lifetimes;
    mod maps;
    mod outputs;
    mod own_bounds;
    mod own_register;
    mod raw_names;
    mod recursion;
    mod reexport;
    mod shadowed;
    mod sharing;
    mod strict;
    mod tuples;
    mod variants;
    mod visibility;
}

/// A trainable leaf that no store knows.
fn learnable() -> Tensor {
    Tensor::ones([2], (Kind::Float, Device::Cpu)).set_requires_grad(true)
}

fn layer(vs: &nn::VarStore, name: &str) -> nn::Linear {
    nn::linear(vs.root() / name, 1, 1, nn::LinearConfig::default())
}

/// The fields of a report, in its order.
fn fields(report: &Registered) -> Vec<&str> {
    report.entries.iter().map(|entry| entry.field.as_str()).collect()
}
