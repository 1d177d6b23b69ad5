//! A language model: the loss inside of forward, a head tied to the embedding, a constant mask and
//! random features that were never registered.

use ddp_tests::test_name;
use tch::{Kind, Tensor, nn};
use tch_ddp::module::Held;
use tch_ddp::{Registered, data_parallel};

use super::common::{Shape, classes, linear, names};

const WORDS: i64 = 7;
const WIDTH: i64 = 4;
const LENGTH: i64 = 5;

#[data_parallel]
struct Lm {
    embedding: nn::Embedding,
    /// The same tensor as the embedding's.
    head: Tensor,
    core: nn::Linear,
    mask: Tensor,
    freqs: Tensor,
}

impl Lm {
    fn new(p: &nn::Path) -> Self {
        let ones = Tensor::ones([LENGTH, LENGTH], (Kind::Bool, p.device()));
        let embedding =
            nn::embedding(p / "embedding", WORDS, WIDTH, nn::EmbeddingConfig::default());
        Self {
            head: embedding.ws.shallow_clone(),
            embedding,
            core: linear(p / "core", WIDTH, WIDTH),
            mask: ones.tril(0),
            freqs: Tensor::randn([LENGTH, WIDTH], (p.kind(), p.device())),
        }
    }
}

#[data_parallel]
impl Lm {
    fn forward(&self, words: &Tensor, labels: Option<&Tensor>) -> (Option<Tensor>, Option<Tensor>) {
        let x = words.apply(&self.embedding) + &self.freqs;
        let scores = x.apply(&self.core).matmul(&x.transpose(1, 2));
        let scores = scores.masked_fill(&self.mask.logical_not(), f64::NEG_INFINITY);
        let logits = scores.softmax(-1, Kind::Double).matmul(&x).linear::<Tensor>(&self.head, None);
        let loss = labels.map(|y| logits.view([-1, WORDS]).cross_entropy_for_logits(&y.view(-1)));
        (Some(logits), loss)
    }
}

fn registered(p: &nn::Path) -> (Lm, Registered) {
    let net = Lm::new(p);
    let report = net.register(p).unwrap();
    (net, report)
}

#[test]
fn two_ranks_train_a_language_model_as_one_process_does() {
    let shape = Shape {
        build: |p| Ok(registered(p).0),
        forward: |net: &Lm, words| net.forward(words, Some(&words.roll(1, 1))),
        loss: |(_, loss): &(Option<Tensor>, Option<Tensor>), _| {
            loss.as_ref().unwrap().shallow_clone()
        },
        batch: || (classes(&[LENGTH], WORDS), classes(&[LENGTH], WORDS)),
        unused: false,
    };
    shape.trains_alike(test_name!());
}

#[test]
fn a_tied_head_counts_once_and_random_features_become_a_buffer_with_a_warning() {
    let vs = nn::VarStore::new(tch::Device::Cpu);
    let (_, report) = registered(&vs.root());
    assert_eq!(names(&vs), ["core.bias", "core.weight", "embedding.weight", "freqs"]);
    assert_eq!(vs.trainable_variables().len(), 3);
    let held = |field: &str| {
        let entry = report.entries.iter().find(|entry| entry.field == field).unwrap();
        (entry.name.as_deref(), entry.held.clone())
    };
    assert_eq!(held("head"), (Some("embedding.weight"), Held::Parameter));
    assert_eq!(held("mask"), (None, Held::Constant));
    assert_eq!(held("freqs"), (Some("freqs"), Held::Buffer));
    let [warning] = report.warnings.as_slice() else { panic!("{:?}", report.warnings) };
    assert!(warning.contains("`freqs`") && warning.contains("#[dp(skip)]"), "{warning}");
}
