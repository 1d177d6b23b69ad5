//! Replicas of an annotated model, by hand and in `DataParallel`, and the pre-flight that compares a
//! model with its store. One process.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Mutex;

use ddp_tests::torch::models::{batch, fill, store, value_difference};
use tch::nn::{self, ModuleT, OptimizerConfig};
use tch::{Device, Kind, Reduction, Tensor};
use tch_ddp::module::{Held, check, replicate, unreached};
use tch_ddp::{DataParallel, data_parallel};

#[data_parallel]
#[derive(Debug)]
struct Net {
    first: nn::Linear,
    norm: nn::BatchNorm,
    gains: Vec<Tensor>,
    head: (Option<nn::Linear>, f64),
}

impl Net {
    fn new(p: &nn::Path) -> Net {
        let gain = Tensor::ones([8], (p.kind(), p.device())).set_requires_grad(true);
        let net = Net {
            first: nn::linear(p / "first", 6, 8, nn::LinearConfig::default()),
            norm: nn::batch_norm1d(p / "norm", 8, nn::BatchNormConfig::default()),
            gains: vec![gain],
            head: (Some(nn::linear(p / "head", 8, 2, nn::LinearConfig::default())), 0.5),
        };
        net.register(p).unwrap();
        net
    }
}

impl ModuleT for Net {
    /// In evaluation mode, so that halves of a batch are independent of each other.
    fn forward_t(&self, x: &Tensor, train: bool) -> Tensor {
        let x = x.apply(&self.first).apply_t(&self.norm, train) * &self.gains[0];
        x.tanh().apply_opt(&self.head.0) * self.head.1
    }
}

/// In float32, the only kind that tch makes running statistics of.
fn net() -> (Net, nn::VarStore) {
    let vs = store(Kind::Float);
    let net = Net::new(&vs.root());
    fill_all(&vs);
    (net, vs)
}

/// Also the statistics, which are to be such as a variance can be.
fn fill_all(vs: &nn::VarStore) {
    fill(vs);
    for (name, mut tensor) in vs.variables() {
        if name.ends_with("running_var") {
            tch::no_grad(|| tensor.copy_(&tensor.abs()));
        }
    }
}

fn gradients(vs: &nn::VarStore) -> Vec<Tensor> {
    vs.trainable_variables().iter().map(|it| it.grad().copy()).collect()
}

#[test]
fn two_replicas_on_halves_of_a_batch_give_their_source_the_gradients_of_the_whole() {
    let (x, y) = batch(8, Kind::Float);
    let (alone, alone_vs) = net();
    alone.forward_t(&x, false).mse_loss(&y, Reduction::Mean).backward();

    let (source, vs) = net();
    let mut replicas = [net().0, net().0];
    for step in 0..2 {
        let outputs: Vec<_> = replicas
            .iter_mut()
            .zip(x.chunk(2, 0))
            .map(|(replica, x)| {
                replicate(&source, replica, Device::Cpu).unwrap();
                replica.forward_t(&x, false)
            })
            .collect();
        vs.trainable_variables().iter_mut().for_each(Tensor::zero_grad);
        Tensor::cat(&outputs, 0).mse_loss(&y, Reduction::Mean).backward();
        for (ours, whole) in gradients(&vs).iter().zip(gradients(&alone_vs)) {
            let difference = (ours - whole).abs().max().double_value(&[]);
            assert!(difference <= 1e-6, "step {step}: gradients differ by {difference:e}");
        }
    }
}

#[test]
fn data_parallel_trains_what_lists_hold_as_one_process_does() {
    let (x, y) = batch(8, Kind::Float);
    let vs = store(Kind::Float);
    let alone = Net::new(&vs.root());
    fill_all(&vs);
    let parallel = DataParallel::new(&[Device::Cpu; 2], Net::new).unwrap();
    fill_all(parallel.vars());
    let before = vs.variables()["gains.0"].copy();
    let mut opt = nn::Sgd::default().build(&vs, 0.1).unwrap();
    let mut parallel_opt = parallel.optimizer(nn::Sgd::default(), 0.1).unwrap();
    for step in 0..3 {
        opt.backward_step(&alone.forward_t(&x, false).mse_loss(&y, Reduction::Mean));
        let out = parallel.run(&[&x], |net, xs| net.forward_t(&xs[0], false)).unwrap();
        parallel_opt.backward_step(&out.mse_loss(&y, Reduction::Mean));
        let difference = value_difference(parallel.vars(), &vs).unwrap();
        assert!(difference <= 1e-6, "step {step}: replicas differ by {difference:e}");
    }
    assert!(!vs.variables()["gains.0"].equal(&before), "the list was not trained");
}

#[test]
fn a_replica_computes_with_the_buffers_of_its_source() {
    let (source, _) = net();
    let (mut replica, _) = net();
    let mut mean = source.norm.running_mean.shallow_clone();
    let _ = tch::no_grad(|| mean.fill_(3.0));
    replicate(&source, &mut replica, Device::Cpu).unwrap();
    assert!((replica.norm.running_mean.double_value(&[0]) - 3.0).abs() < 1e-9);
}

#[test]
fn what_a_replica_alone_holds_is_replaced_behind_cells_and_locks_too_and_its_clones_are_not() {
    #[data_parallel]
    struct Cells<'s> {
        cell: RefCell<Option<Tensor>>,
        lock: Mutex<Vec<Tensor>>,
        boxed: HashMap<String, Box<(Tensor, f64)>>,
        lent: &'s mut Tensor,
    }
    fn cells(value: f64, lent: &mut Tensor) -> Cells<'_> {
        let new = || Tensor::full([2], value, (Kind::Float, Device::Cpu));
        let boxed = [("a".to_owned(), Box::new((new(), value)))].into();
        Cells { cell: Some(new()).into(), lock: vec![new()].into(), boxed, lent }
    }
    let [mut lent_source, mut lent_replica] =
        [1.0, 2.0].map(|value| Tensor::full([2], value, (Kind::Float, Device::Cpu)));
    let kept = lent_replica.shallow_clone();
    let source = cells(1.0, &mut lent_source);
    let mut replica = cells(2.0, &mut lent_replica);
    replicate(&source, &mut replica, Device::Cpu).unwrap();
    let cell = replica.cell.borrow().as_ref().unwrap().shallow_clone();
    let lock = replica.lock.lock().unwrap()[0].shallow_clone();
    for (name, tensor) in [
        ("cell", &cell),
        ("lock", &lock),
        ("boxed", &replica.boxed["a"].0),
        ("lent", &*replica.lent),
    ] {
        assert!((tensor.double_value(&[0]) - 1.0).abs() < 1e-9, "{name}");
    }
    assert!((replica.boxed["a"].1 - 2.0).abs() < 1e-9, "settings stay the replica's");
    assert!((kept.double_value(&[0]) - 2.0).abs() < 1e-9, "another handle on what was there");
}

#[test]
fn replicas_that_were_built_differently_are_refused() {
    let (source, _) = net();
    let (mut replica, _) = net();
    replica.gains.clear();
    let error = replicate(&source, &mut replica, Device::Cpu).unwrap_err().to_string();
    assert!(error.contains("`head.0.ws`") && error.contains("`gains[0]`"), "{error}");
    let (mut replica, _) = net();
    replica.head.0 = None;
    let error = replicate(&source, &mut replica, Device::Cpu).unwrap_err().to_string();
    assert!(error.contains("2 tensors of the source have no place"), "{error}");
}

#[test]
fn what_cannot_be_replaced_is_named_with_the_reason() {
    #[data_parallel]
    struct Closed {
        body: nn::Sequential,
        shared: Rc<nn::Linear>,
    }
    let closed = |vs: &nn::VarStore| {
        let layer = |name| nn::linear(vs.root() / name, 1, 1, nn::LinearConfig::default());
        Closed { body: nn::seq().add(layer("body")), shared: Rc::new(layer("shared")) }
    };
    let vs = store(Kind::Float);
    let source = closed(&vs);
    let mut replica = closed(&store(Kind::Float));
    let error = replicate(&source, &mut replica, Device::Cpu).unwrap_err().to_string();
    assert!(error.contains("`body` cannot be replicated, because nn::Sequential"), "{error}");
    assert!(error.contains("`shared` cannot be replicated behind shared ownership"), "{error}");
    assert_eq!(unreached(&source, &vs), ["body.bias", "body.weight"]);
    assert_eq!((source.body.len(), replica.shared.ws.size()), (1, vec![1, 1]));
}

#[data_parallel]
struct Loose {
    weight: Tensor,
    #[dp(buffer)]
    mean: Tensor,
    table: Tensor,
    ids: Tensor,
}

fn loose() -> Loose {
    let float = (Kind::Float, Device::Cpu);
    Loose {
        weight: Tensor::ones([2], float).set_requires_grad(true),
        mean: Tensor::zeros([2], float),
        table: Tensor::rand([2], float),
        ids: Tensor::arange(2, (Kind::Int64, Device::Cpu)),
    }
}

#[test]
fn the_pre_flight_refuses_what_register_would_have_added() {
    let vs = store(Kind::Float);
    let error = check(&loose(), &vs).unwrap_err().to_string();
    assert!(error.contains("`weight` trains but the store does not hold it"), "{error}");
    assert!(error.contains("`mean` is a buffer but the store does not hold it"), "{error}");
    assert!(error.contains("`model.register(&vs.root())?`"), "{error}");
    assert!(!error.contains("`ids`"), "{error}");
    assert!(vs.is_empty(), "the pre-flight changes nothing");
}

#[test]
fn the_pre_flight_accepts_a_registered_model_and_lends_what_is_loose() {
    let vs = store(Kind::Float);
    let mut model = loose();
    model.register(&vs.root()).unwrap();
    assert!(check(&model, &vs).unwrap().loose.is_empty());
    model.table = Tensor::rand([3], (Kind::Float, Device::Cpu));
    let report = check(&model, &vs).unwrap();
    let [(field, tensor)] = report.loose.as_slice() else { panic!("{:?}", report.loose) };
    assert_eq!((field.as_str(), tensor.size()), ("table", vec![3]));
    assert_eq!(tensor.data_ptr(), model.table.data_ptr());
    let held: Vec<_> = report.entries.iter().map(|entry| entry.held.clone()).collect();
    assert_eq!(held, [Held::Parameter, Held::Buffer, Held::Loose, Held::Constant]);
}

#[test]
fn declared_roles_are_held_against_the_tensor_and_the_store() {
    #[data_parallel]
    struct Declared {
        #[dp(param)]
        ids: Tensor,
        #[dp(buffer)]
        learns: Tensor,
    }
    let vs = store(Kind::Float);
    let ids = Tensor::arange(2, (Kind::Int64, Device::Cpu));
    let learns = Tensor::ones([1], (Kind::Float, Device::Cpu)).set_requires_grad(true);
    let model = Declared { ids, learns };
    let error = model.register(&vs.root()).unwrap_err().to_string();
    assert!(error.contains("`ids` is declared `#[dp(param)]`, but"), "{error}");
    assert!(error.contains("`learns` is declared `#[dp(buffer)]` and asks for"), "{error}");

    // tch's `entry(..).or_zeros_no_train` registers a parameter.
    let learns = vs.root().entry("step").or_zeros_no_train(&[1]);
    let ids = vs.root().ones("ids", &[1]);
    let report = Declared { ids, learns }.register(&vs.root()).unwrap();
    let [warning] = report.warnings.as_slice() else { panic!("{:?}", report.warnings) };
    assert!(warning.contains("`learns` is declared a buffer, but the store trains"), "{warning}");
}

#[test]
fn late_tensors_need_free_names() {
    let vs = store(Kind::Float);
    let _ = vs.root().ones("weight", &[5]);
    let error = loose().register(&vs.root()).unwrap_err().to_string();
    assert!(error.contains("`weight`, the name of another variable"), "{error}");
    assert_eq!(vs.len(), 1);
}

#[test]
fn late_tensors_must_be_on_the_device_of_the_store() {
    let vs = nn::VarStore::new(Device::Cuda(0));
    let error = loose().register(&vs.root()).unwrap_err().to_string();
    assert!(error.contains("3 problems"), "{error}");
    assert!(error.contains("`weight` is on Cpu and the store on Cuda(0)"), "{error}");
    assert!(vs.is_empty());
}
