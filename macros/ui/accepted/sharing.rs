//! Layers behind shared ownership, cells and locks.
#![cfg_attr(not(test), allow(unused))]

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::{Arc, Mutex, RwLock};

use tch::{Tensor, nn};
use tch_ddp::data_parallel;
use tch_ddp::module::{Held, Hidden};

#[cfg(test)]
use super::{fields, layer, learnable};

#[data_parallel]
struct Net {
    rc: Rc<nn::Linear>,
    arc: Arc<nn::Linear>,
    cell: RefCell<Option<Tensor>>,
    mutex: Mutex<Vec<Tensor>>,
    lock: RwLock<nn::Linear>,
    n_calls: Cell<usize>,
}

#[cfg(test)]
fn net(vs: &nn::VarStore) -> Net {
    Net {
        rc: Rc::new(layer(vs, "a")),
        arc: Arc::new(layer(vs, "b")),
        cell: RefCell::new(Some(learnable())),
        mutex: Mutex::new(vec![learnable()]),
        lock: RwLock::new(layer(vs, "c")),
        n_calls: Cell::new(0),
    }
}

#[test]
fn what_is_inside_is_found() {
    let vs = nn::VarStore::new(tch::Device::Cpu);
    let report = net(&vs).register(&vs.root()).unwrap();
    assert_eq!(
        fields(&report),
        ["rc.ws", "rc.bs", "arc.ws", "arc.bs", "cell", "mutex[0]", "lock.ws", "lock.bs"]
    );
}

#[test]
fn a_lock_that_is_held_is_not_waited_for() {
    let vs = nn::VarStore::new(tch::Device::Cpu);
    let net = net(&vs);
    let guard = net.mutex.lock().unwrap();
    let report = net.register(&vs.root()).unwrap();
    let entry = report.entries.iter().find(|entry| entry.field == "mutex").unwrap();
    assert_eq!(entry.held, Held::Hidden(Hidden::Locked));
    net.n_calls.set(guard.len());
}

#[cfg(not(test))]
fn main() {}
