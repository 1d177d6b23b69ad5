//! The walk through tch's own layers: those with public tensors show them under the names that
//! their constructors register; the others say that they hide some.

use tch::nn;

use super::{Hidden, Replicable, Role, Visitor};

macro_rules! layers {
    ($([$($generics:tt)*] $type:ty { $($field:ident as $name:literal $role:ident),+ })+) => {$(
        impl<$($generics)*> Replicable for $type {
            fn visit(&self, visitor: &mut Visitor<'_>) {
                $(
                    visitor.enter_as(stringify!($field), $name, Role::$role);
                    self.$field.visit(visitor);
                    visitor.leave();
                )+
            }
        }
    )+};
}

layers! {
    [] nn::Linear { ws as "weight" Undeclared, bs as "bias" Undeclared }
    [ND] nn::Conv<ND> { ws as "weight" Undeclared, bs as "bias" Undeclared }
    [ND] nn::ConvTransposeND<ND> { ws as "weight" Undeclared, bs as "bias" Undeclared }
    [] nn::Embedding { ws as "weight" Undeclared }
    [] nn::LayerNorm { ws as "weight" Undeclared, bs as "bias" Undeclared }
    [] nn::GroupNorm { ws as "weight" Undeclared, bs as "bias" Undeclared }
    [] nn::BatchNorm {
        running_mean as "running_mean" Buffer, running_var as "running_var" Buffer,
        ws as "weight" Undeclared, bs as "bias" Undeclared
    }
}

macro_rules! private {
    ($([$($lifetime:lifetime)?] $type:ty, $name:literal;)+) => {$(
        impl<$($lifetime)?> Replicable for $type {
            fn visit(&self, visitor: &mut Visitor<'_>) {
                visitor.hidden(Hidden::Private($name));
            }
        }
    )+};
}

private! {
    [] nn::Sequential, "nn::Sequential";
    [] nn::SequentialT, "nn::SequentialT";
    [] nn::LSTM, "nn::LSTM";
    [] nn::GRU, "nn::GRU";
    ['f] nn::Func<'f>, "nn::Func";
    ['f] nn::FuncT<'f>, "nn::FuncT";
    ['m] dyn nn::Module + 'm, "dyn nn::Module";
    ['m] dyn nn::ModuleT + 'm, "dyn nn::ModuleT";
    ['m] dyn nn::Module + Send + 'm, "dyn nn::Module";
    ['m] dyn nn::ModuleT + Send + 'm, "dyn nn::ModuleT";
    [] tch::CModule, "CModule";
    [] tch::TrainableCModule, "TrainableCModule";
}

impl Replicable for nn::Id {
    fn visit(&self, _: &mut Visitor<'_>) {}
}

impl Replicable for nn::LSTMState {
    fn visit(&self, visitor: &mut Visitor<'_>) {
        self.0.visit(visitor);
    }
}

impl Replicable for nn::GRUState {
    fn visit(&self, visitor: &mut Visitor<'_>) {
        self.0.visit(visitor);
    }
}
