//! Two "hosts" (network namespaces with a link between them) train together; cutting the link ends
//! both with an error. Needs root and `ip`; skipped with a message elsewhere.
#![cfg(feature = "torch")]

use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use ddp_tests::test_name;
use ddp_tests::torch::models::{batch, fill, mlp, store};
use ddp_tests::torch::{Hosts, Rank, Ranks, report};
use tch::nn::{self, Module, OptimizerConfig};
use tch::{Kind, Reduction};
use tch_ddp::{Ddp, DdpOptions};

const TIMEOUT: Duration = Duration::from_secs(4);

/// Two namespaces with a link between them, removed at the end.
struct Network {
    names: [String; 2],
}

fn ip(arguments: &str) -> Result<()> {
    let output =
        Command::new("ip").args(arguments.split(' ')).output().context("`ip` cannot be run")?;
    if output.status.success() {
        return Ok(());
    }
    bail!("`ip {arguments}`: {}", String::from_utf8_lossy(&output.stderr).trim());
}

impl Network {
    fn new() -> Result<Self> {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        // At most 13 characters: names of network interfaces are made of them.
        let id = std::process::id() % 1_000_000;
        let number = NUMBER.fetch_add(1, Ordering::Relaxed) % 10;
        let names = ["a", "b"].map(|side| format!("ddp{id}{side}{number}"));
        let network = Self { names };
        let [a, b] = &network.names;
        ip(&format!("netns add {a}"))?;
        ip(&format!("netns add {b}"))?;
        ip(&format!("link add {a}0 netns {a} type veth peer name {b}0 netns {b}"))?;
        for (host, name) in [(1, a), (2, b)] {
            ip(&format!("-n {name} addr add 10.77.0.{host}/24 dev {name}0"))?;
            ip(&format!("-n {name} link set lo up"))?;
            ip(&format!("-n {name} link set {name}0 up"))?;
        }
        Ok(network)
    }

    fn hosts(&self) -> Hosts {
        Hosts { namespaces: self.names.to_vec(), main_address: "10.77.0.1".to_owned() }
    }

    fn cut(&self) -> Result<()> {
        let b = &self.names[1];
        ip(&format!("-n {b} link set {b}0 down"))
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        for name in &self.names {
            let _ = ip(&format!("netns del {name}"));
        }
    }
}

fn train(rank: &Rank, n_steps: usize) -> Result<()> {
    let group = rank.group(TIMEOUT)?;
    let vs = store(Kind::Float);
    let net = mlp(&vs);
    fill(&vs);
    let mut opt = nn::Sgd::default().build(&vs, 0.1)?;
    let ddp = Ddp::new(net, vs, &group, DdpOptions::default())?;
    let (x, y) = batch(4, Kind::Float);
    for step in 0..n_steps {
        let loss = ddp.run(|net| net.forward(&x))?.mse_loss(&y, Reduction::Mean);
        ddp.backward_step(&mut opt, &loss)?;
        if step == 20 {
            std::fs::write(rank.folder.join(format!("trains-{}", group.rank())), "")?;
        }
        if n_steps > 100 {
            std::thread::sleep(Duration::from_millis(5));
        }
    }
    group.barrier()?;
    Ok(())
}

/// In the parent: the network, unless it cannot be had here. In a rank it is not needed.
fn network() -> Option<Network> {
    match Network::new() {
        Ok(network) => Some(network),
        Err(error) => {
            eprintln!("skipped: cannot make network namespaces: {error}");
            None
        }
    }
}

fn is_rank() -> bool {
    std::env::var_os("TCH_DDP_TEST").is_some()
}

fn wait_until_both_train(folder: &Path) {
    let deadline = Instant::now() + Duration::from_secs(40);
    while Instant::now() < deadline {
        if (0..2).all(|rank| folder.join(format!("trains-{rank}")).exists()) {
            return;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn two_hosts_train_together() {
    let ranks = Ranks::new(test_name!(), 2);
    if is_rank() {
        ranks.run(|rank| train(rank, 30));
        return;
    }
    let Some(network) = network() else { return };
    ranks.hosts(network.hosts()).run(|rank| train(rank, 30));
}

#[test]
fn cutting_the_link_ends_both_hosts_with_an_error() {
    let ranks = Ranks::new(test_name!(), 2);
    if is_rank() {
        ranks.run(|rank| train(rank, 100_000));
        return;
    }
    let Some(network) = network() else { return };
    let mut cut_at = None;
    let outcomes = ranks.hosts(network.hosts()).outcomes_while(
        |rank| train(rank, 100_000),
        |folder| {
            wait_until_both_train(folder);
            network.cut().expect("the link can be cut");
            cut_at = Some(Instant::now());
        },
    );
    let (Some(outcomes), Some(cut_at)) = (outcomes, cut_at) else { return };
    let took = cut_at.elapsed();
    for outcome in &outcomes {
        assert!(outcome.is_failure() && outcome.output.contains("step "), "{}", report(&outcomes));
    }
    // The timeout of the collective, and the time to find that nobody answers.
    assert!(took < TIMEOUT + Duration::from_secs(12), "{took:?}\n{}", report(&outcomes));
}
