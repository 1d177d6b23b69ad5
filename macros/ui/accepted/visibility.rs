//! Types of every visibility, used from outside of their module.
#![cfg_attr(not(test), allow(unused))]

mod inner {
    use tch::Tensor;
    use tch_ddp::data_parallel;

    #[expect(unreachable_pub, reason = "every visibility is tried")]
    #[data_parallel]
    pub struct Public {
        pub scale: Tensor,
    }

    #[data_parallel]
    pub(crate) struct Crate(pub(crate) Public);

    #[data_parallel]
    pub(super) struct Restricted {
        pub(super) inner: Crate,
    }
}

use tch::nn;

#[cfg(test)]
use super::{fields, learnable};

#[test]
fn register_can_be_called_where_the_type_can_be_named() {
    let vs = nn::VarStore::new(tch::Device::Cpu);
    let public = inner::Public { scale: learnable() };
    assert_eq!(fields(&public.register(&vs.root()).unwrap()), ["scale"]);
    let restricted = inner::Restricted { inner: inner::Crate(public) };
    assert_eq!(fields(&restricted.inner.register(&vs.root()).unwrap()), ["scale"]);
    assert_eq!(fields(&restricted.register(&vs.root()).unwrap()), ["inner.scale"]);
}

#[cfg(not(test))]
fn main() {}
