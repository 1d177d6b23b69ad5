//! Where this launcher stands: alone, one of several nodes, or started once per rank by Slurm,
//! Open MPI or torchrun. Reads flags and environment only; touches no machine.

use std::collections::HashMap;

use crate::cli::Args;
use crate::devices;
use crate::hostlist;
use crate::trouble::Trouble;

/// Variables of this process.
pub(crate) type Env = HashMap<String, String>;

/// Where rank 0 listens; port 0 means a free one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Master {
    pub addr: String,
    pub port: u16,
}

/// Which ranks this launcher starts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Placement {
    /// One launcher per node; ranks are numbered through the nodes in order.
    Node { node_rank: usize, n_nodes: usize, n_local: usize, master: Master },
    /// One launcher per rank, started by a scheduler that has numbered them.
    Task { task: Task, master: Master },
    /// Started by torchrun as one of its ranks: the environment is complete and is passed on.
    Inherited { rank: usize, local_rank: usize, world_size: usize },
}

/// A rank as a scheduler numbers it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Task {
    pub rank: usize,
    pub world_size: usize,
    pub local_rank: usize,
    pub local_world_size: usize,
    pub node_rank: usize,
    pub n_nodes: usize,
}

impl Placement {
    /// What each launcher stands for, for messages.
    pub(crate) fn unit(&self) -> &'static str {
        match self {
            Self::Task { .. } => "rank",
            Self::Node { .. } | Self::Inherited { .. } => "node",
        }
    }

    /// Number of launchers that work together, and which of them this is.
    pub(crate) fn launchers(&self) -> (usize, usize) {
        match self {
            Self::Node { node_rank, n_nodes, .. } => (*n_nodes, *node_rank),
            Self::Task { task, .. } => (task.world_size, task.rank),
            Self::Inherited { .. } => (1, 0),
        }
    }

    /// Number of ranks that this launcher starts.
    pub(crate) fn n_local(&self) -> usize {
        match self {
            Self::Node { n_local, .. } => *n_local,
            Self::Task { .. } | Self::Inherited { .. } => 1,
        }
    }

    /// Address of rank 0, where it is ours to choose.
    pub(crate) fn master(&self) -> Option<&Master> {
        match self {
            Self::Node { master, .. } | Self::Task { master, .. } => Some(master),
            Self::Inherited { .. } => None,
        }
    }
}

/// Finds the placement. Order: `--standalone`, torchrun, explicit flags, Slurm, Open MPI, pods
/// of a Kubernetes PyTorchJob, one node.
pub(crate) fn place(args: &Args, env: &Env) -> Result<Placement, Trouble> {
    if args.standalone {
        return alone(args, env);
    }
    if env.contains_key("TORCHELASTIC_RUN_ID") && env.contains_key("LOCAL_RANK") {
        return inherited(args, env);
    }
    let explicit = args.nnodes.is_some() || args.node_rank.is_some();
    if !explicit && let Some(placement) = slurm(args, env)? {
        return Ok(placement);
    }
    if !explicit && env.contains_key("OMPI_COMM_WORLD_RANK") {
        return open_mpi(args, env);
    }
    let pod = ["RANK", "WORLD_SIZE", "MASTER_ADDR"].iter().all(|key| env.contains_key(*key));
    if !explicit && pod && !env.contains_key("LOCAL_RANK") {
        return pods(args, env);
    }
    by_flags(args, env)
}

/// What says how many launchers there are, for a message to someone who expected none.
pub(crate) fn witness(args: &Args, env: &Env) -> &'static str {
    if args.nnodes.is_some() || args.node_rank.is_some() {
        "--nnodes (or PET_NNODES)"
    } else if env.contains_key("SLURM_PROCID") {
        "Slurm"
    } else if env.contains_key("OMPI_COMM_WORLD_RANK") {
        "Open MPI"
    } else {
        "WORLD_SIZE"
    }
}

fn n_local(args: &Args, env: &Env) -> Result<usize, Trouble> {
    args.nproc_per_node.map_or(Ok(1), |wanted| devices::count(wanted, env))
}

/// One node: the address is this machine unless told otherwise, the port a free one.
fn alone(args: &Args, env: &Env) -> Result<Placement, Trouble> {
    let mut master = Master { addr: "127.0.0.1".into(), port: args.master_port.unwrap_or(0) };
    if !args.standalone {
        let endpoint = args.rdzv_endpoint.as_deref().map(split_endpoint).transpose()?;
        if let Some((host, port)) = endpoint {
            master = Master { addr: host, port: port.unwrap_or(master.port) };
        } else if let Some(addr) = &args.master_addr {
            master.addr = bare(addr);
        }
    }
    Ok(Placement::Node { node_rank: 0, n_nodes: 1, n_local: n_local(args, env)?, master })
}

/// An address without the brackets of IPv6.
fn bare(addr: &str) -> String {
    let inner = addr.strip_prefix('[').and_then(|addr| addr.strip_suffix(']'));
    inner.unwrap_or(addr).to_owned()
}

fn by_flags(args: &Args, env: &Env) -> Result<Placement, Trouble> {
    let n_nodes = args.nnodes.map_or(1, |nodes| nodes.0);
    if n_nodes == 1 && args.node_rank.unwrap_or(0) == 0 {
        return alone(args, env);
    }
    let elastic = args.rdzv_backend.as_deref().unwrap_or("static") != "static";
    let slurm_node = || number(env, "SLURM_NODEID").ok().flatten();
    let node_rank = match args.node_rank.or_else(slurm_node) {
        Some(node_rank) => node_rank,
        None if n_nodes == 1 => 0,
        None if elastic => {
            return Err(Trouble::usage(
                "--rdzv-backend other than static leaves it to the rendezvous which node is \
                 which; ddp-run needs --node-rank on each node (elastic membership is torchrun's \
                 job: torchrun --no-python PROGRAM)",
            ));
        }
        None => {
            return Err(Trouble::usage(format!(
                "--nnodes {n_nodes} needs --node-rank (0 to {}) on each node",
                n_nodes - 1
            )));
        }
    };
    if node_rank >= n_nodes {
        return Err(Trouble::usage(format!(
            "--node-rank {node_rank} does not exist among --nnodes {n_nodes}: expected 0 to {}",
            n_nodes - 1
        )));
    }
    let (addr, port) = told_master(args, env, 29500)?;
    let addr = addr.ok_or_else(|| {
        Trouble::usage(format!(
            "--nnodes {n_nodes} needs --master-addr: the name or address of node 0 as the other \
             nodes reach it"
        ))
    })?;
    let master = Master { addr, port };
    Ok(Placement::Node { node_rank, n_nodes, n_local: n_local(args, env)?, master })
}

/// The address that flags or `MASTER_ADDR` give, if any, and the port, which all launchers know.
fn told_master(args: &Args, env: &Env, port: u16) -> Result<(Option<String>, u16), Trouble> {
    let variable = number(env, "MASTER_PORT")?;
    let wrong_port =
        |port: usize| Trouble::usage(format!("MASTER_PORT is {port}: expected a port, 1 to 65535"));
    let variable = variable.map(|port| u16::try_from(port).map_err(|_| wrong_port(port)));
    let mut port = args.master_port.or(variable.transpose()?).unwrap_or(port);
    let addr = args.master_addr.as_ref().or_else(|| env.get("MASTER_ADDR"));
    let mut addr = addr.map(|addr| bare(addr));
    if let Some(endpoint) = &args.rdzv_endpoint {
        let (host, given) = split_endpoint(endpoint)?;
        addr = Some(host);
        port = given.or(args.master_port).unwrap_or(port);
    }
    if port == 0 {
        return Err(Trouble::usage(
            "--master-port 0 (a free port) works on one node only: the other nodes cannot know \
             it; give all nodes the same number",
        ));
    }
    Ok((addr, port))
}

/// `host:port`, `host`, `[::1]:port`.
fn split_endpoint(endpoint: &str) -> Result<(String, Option<u16>), Trouble> {
    let wrong = || {
        Trouble::usage(format!(
            "--rdzv-endpoint {endpoint}: expected HOST:PORT, such as node0:29500"
        ))
    };
    let (host, port) = match endpoint.rsplit_once(':') {
        Some((host, port)) if !host.contains(':') || host.ends_with(']') => (host, Some(port)),
        _ => (endpoint, None),
    };
    let port = port.map(|port| port.parse().map_err(|_| wrong())).transpose()?;
    if host.is_empty() { Err(wrong()) } else { Ok((bare(host), port)) }
}

fn inherited(args: &Args, env: &Env) -> Result<Placement, Trouble> {
    let rank = need(env, "RANK", "torchrun")?;
    let several = args.nnodes.is_some_and(|nodes| nodes.0 > 1)
        || args.nproc_per_node.is_some_and(|wanted| wanted != crate::cli::Processes::Count(1));
    if several {
        return Err(Trouble::usage(format!(
            "this ddp-run was itself started as rank {rank} of a run (TORCHELASTIC_RUN_ID is \
             set): leave --nproc-per-node and --nnodes to the outer launcher, or give \
             --standalone for a run of its own"
        )));
    }
    let local_rank = need(env, "LOCAL_RANK", "torchrun")?;
    Ok(Placement::Inherited { rank, local_rank, world_size: need(env, "WORLD_SIZE", "torchrun")? })
}

fn slurm(args: &Args, env: &Env) -> Result<Option<Placement>, Trouble> {
    if !env.contains_key("SLURM_JOB_ID") && !env.contains_key("SLURM_PROCID") {
        return Ok(None);
    }
    let Some(n_nodes) = first(env, &["SLURM_STEP_NUM_NODES", "SLURM_NNODES"])? else {
        return Ok(None);
    };
    let in_step = env.contains_key("SLURM_STEP_ID") || env.contains_key("SLURM_STEP_NUM_TASKS");
    if !in_step {
        if n_nodes > 1 {
            return Err(Trouble::usage(format!(
                "this Slurm job has {n_nodes} nodes, but ddp-run was started on one of them only: \
                 start it with srun --ntasks-per-node 1 ddp-run …, or give --standalone"
            )));
        }
        return Ok(None);
    }
    let need = |key| need(env, key, "srun");
    let n_tasks = match first(env, &["SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"])? {
        Some(n_tasks) => n_tasks,
        None => need("SLURM_NTASKS")?,
    };
    let (rank, node_rank) = (need("SLURM_PROCID")?, need("SLURM_NODEID")?);
    let master = slurm_master(args, env, n_nodes)?;
    if n_tasks == n_nodes {
        let n_local = n_local(args, env)?;
        return Ok(Some(Placement::Node { node_rank, n_nodes, n_local, master }));
    }
    refuse_n_local(args, "srun", n_tasks, "--ntasks-per-node 1")?;
    let per_node = ["SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE"];
    let local_world_size = per_node
        .iter()
        .find_map(|key| hostlist::tasks_on_node(env.get(*key)?, node_rank))
        .unwrap_or(n_tasks / n_nodes);
    let local_rank = need("SLURM_LOCALID")?;
    let task = Task { rank, world_size: n_tasks, local_rank, local_world_size, node_rank, n_nodes };
    checked(task, "SLURM_PROCID", "SLURM_LOCALID")?;
    Ok(Some(Placement::Task { task, master }))
}

/// The first node of the list, and a port that all tasks derive from the job's number: nobody
/// can tell the others before they have met.
fn slurm_master(args: &Args, env: &Env, n_nodes: usize) -> Result<Master, Trouble> {
    let job = number(env, "SLURM_JOB_ID")?.unwrap_or(0);
    let step = number(env, "SLURM_STEP_ID").ok().flatten().unwrap_or(0);
    let port = agreed_port(job.wrapping_add(step.wrapping_mul(1000)) as u64);
    let (addr, port) = told_master(args, env, port)?;
    let lists = ["SLURM_STEP_NODELIST", "SLURM_NODELIST", "SLURM_JOB_NODELIST"];
    let first_host = || lists.iter().find_map(|key| hostlist::first_host(env.get(*key)?));
    let addr = match addr {
        Some(addr) => Some(addr),
        None if n_nodes == 1 => Some("127.0.0.1".to_owned()),
        None => first_host(),
    };
    addr.map(|addr| Master { addr, port }).ok_or_else(|| {
        Trouble::usage(
            "SLURM_STEP_NODELIST names no node, so it is unknown where rank 0 is: give \
             --master-addr",
        )
    })
}

/// A port below the kernel's range of automatic ports (32768 and up).
fn agreed_port(number: u64) -> u16 {
    15000 + (number % 17000) as u16
}

fn open_mpi(args: &Args, env: &Env) -> Result<Placement, Trouble> {
    let need = |key| need(env, key, "mpirun");
    let (rank, world_size) = (need("OMPI_COMM_WORLD_RANK")?, need("OMPI_COMM_WORLD_SIZE")?);
    let local_rank = need("OMPI_COMM_WORLD_LOCAL_RANK")?;
    let local_world_size = need("OMPI_COMM_WORLD_LOCAL_SIZE")?;
    let name = ["PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid"].iter().find_map(|key| env.get(*key));
    let mixed = name.map_or(0, |name| {
        name.bytes().fold(7_u64, |sum, byte| sum.wrapping_mul(31).wrapping_add(byte.into()))
    });
    let port = if name.is_some() { agreed_port(mixed) } else { 29500 };
    let (addr, port) = told_master(args, env, port)?;
    let here = (local_world_size == world_size).then(|| "127.0.0.1".to_owned());
    let addr = addr.or(here).ok_or_else(|| {
        Trouble::usage(
            "Open MPI does not say where rank 0 is: start with mpirun -x MASTER_ADDR=HOST (the \
             host of rank 0), or give --master-addr",
        )
    })?;
    let master = Master { addr, port };
    if local_world_size == 1 {
        let n_local = n_local(args, env)?;
        return Ok(Placement::Node { node_rank: rank, n_nodes: world_size, n_local, master });
    }
    refuse_n_local(args, "mpirun", world_size, "--map-by ppr:1:node")?;
    let n_nodes = world_size.div_ceil(local_world_size.max(1));
    let node_rank = rank / local_world_size.max(1);
    let task = Task { rank, world_size, local_rank, local_world_size, node_rank, n_nodes };
    checked(task, "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK")?;
    Ok(Placement::Task { task, master })
}

/// Kubernetes' training operator gives each pod `RANK` (of the pod) and no `LOCAL_RANK`.
fn pods(args: &Args, env: &Env) -> Result<Placement, Trouble> {
    let node_rank = need(env, "RANK", "a PyTorchJob")?;
    let n_nodes = need(env, "WORLD_SIZE", "a PyTorchJob")?;
    if node_rank >= n_nodes {
        return Err(Trouble::usage(format!(
            "RANK is {node_rank} and WORLD_SIZE is {n_nodes}: expected a rank below the world size"
        )));
    }
    let (addr, port) = told_master(args, env, 29500)?;
    let master = Master { addr: addr.unwrap_or_default(), port };
    Ok(Placement::Node { node_rank, n_nodes, n_local: n_local(args, env)?, master })
}

fn refuse_n_local(args: &Args, by: &str, n_tasks: usize, one: &str) -> Result<(), Trouble> {
    match args.nproc_per_node {
        None | Some(crate::cli::Processes::Count(1)) => Ok(()),
        Some(_) => Err(Trouble::usage(format!(
            "{by} has started ddp-run once per rank ({n_tasks} times), and --nproc-per-node would \
             multiply that: drop the flag, or start one ddp-run per node ({by} {one})"
        ))),
    }
}

fn checked(task: Task, rank_key: &str, local_key: &str) -> Result<(), Trouble> {
    if task.rank >= task.world_size {
        return Err(Trouble::usage(format!(
            "{rank_key} is {}, but there are {} ranks: expected a smaller number",
            task.rank, task.world_size
        )));
    }
    if task.local_rank >= task.local_world_size {
        return Err(Trouble::usage(format!(
            "{local_key} is {}, but this node has {} ranks: expected a smaller number",
            task.local_rank, task.local_world_size
        )));
    }
    Ok(())
}

fn first(env: &Env, keys: &[&str]) -> Result<Option<usize>, Trouble> {
    for key in keys {
        if let Some(value) = number(env, key)? {
            return Ok(Some(value));
        }
    }
    Ok(None)
}

fn number(env: &Env, key: &str) -> Result<Option<usize>, Trouble> {
    let Some(value) = env.get(key) else { return Ok(None) };
    value
        .trim()
        .parse()
        .map(Some)
        .map_err(|_| Trouble::usage(format!("{key} is {value:?}: expected a number, 0 or more")))
}

fn need(env: &Env, key: &str, by: &str) -> Result<usize, Trouble> {
    number(env, key)?.ok_or_else(|| {
        Trouble::usage(format!(
            "{key} is not set, though other variables say that {by} started this: start ddp-run \
             under {by} itself, or give --standalone"
        ))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    fn placed(args: &str, env: &str) -> Result<Placement, String> {
        let args = format!("ddp-run {args} prog");
        let args = Args::try_parse_from(args.split_whitespace()).unwrap();
        let pair = |pair: &str| pair.split_once('=').map(|(k, v)| (k.to_owned(), v.to_owned()));
        place(&args, &env.split_whitespace().filter_map(pair).collect()).map_err(|e| e.text)
    }

    fn node(node_rank: usize, n_nodes: usize, n_local: usize, addr: &str, port: u16) -> Placement {
        let master = Master { addr: addr.into(), port };
        Placement::Node { node_rank, n_nodes, n_local, master }
    }

    const STEP: &str = "SLURM_JOB_ID=20007 SLURM_STEP_ID=0 SLURM_STEP_NODELIST=gpu[03-04] ";

    #[test]
    fn one_node_by_default() {
        assert_eq!(placed("", ""), Ok(node(0, 1, 1, "127.0.0.1", 0)));
        assert_eq!(placed("--nproc-per-node 3", ""), Ok(node(0, 1, 3, "127.0.0.1", 0)));
        assert_eq!(
            placed("--master-addr 10.0.0.1 --master-port 77", ""),
            Ok(node(0, 1, 1, "10.0.0.1", 77))
        );
    }

    #[test]
    fn one_node_in_torchruns_other_spellings() {
        let c10d = "--nnodes 1 --rdzv-backend c10d --rdzv-endpoint";
        assert_eq!(placed(&format!("{c10d} localhost:0"), ""), Ok(node(0, 1, 1, "localhost", 0)));
        assert_eq!(placed(&format!("{c10d} [::1]:7"), ""), Ok(node(0, 1, 1, "::1", 7)));
        assert_eq!(placed("--master-addr [::1]", ""), Ok(node(0, 1, 1, "::1", 0)));
    }

    #[test]
    fn nodes_by_flags() {
        let flags = "--nnodes 2 --node-rank 1 --nproc-per-node 2";
        assert_eq!(placed(&format!("{flags} --master-addr a"), ""), Ok(node(1, 2, 2, "a", 29500)));
        assert_eq!(
            placed(&format!("{flags} --rdzv-endpoint [fe80::1]:5 --rdzv-backend c10d"), ""),
            Ok(node(1, 2, 2, "fe80::1", 5))
        );
        assert!(placed(flags, "").unwrap_err().contains("--master-addr"));
        assert!(placed("--nnodes 2 --master-addr a", "").unwrap_err().contains("--node-rank"));
        let out = placed("--nnodes 2 --node-rank 2 --master-addr a", "");
        assert!(out.unwrap_err().contains("expected 0 to 1"));
        let free = placed("--nnodes 2 --node-rank 0 --master-addr a --master-port 0", "");
        assert!(free.unwrap_err().contains("one node only"));
        let elastic = placed("--nnodes 2 --rdzv-backend c10d --rdzv-endpoint a:1", "");
        assert!(elastic.unwrap_err().contains("torchrun"));
    }

    #[test]
    fn slurm_with_one_launcher_per_node() {
        let env = format!("{STEP} SLURM_NNODES=2 SLURM_NTASKS=2 SLURM_PROCID=1 SLURM_NODEID=1");
        assert_eq!(placed("--nproc-per-node 4", &env), Ok(node(1, 2, 4, "gpu03", 15000 + 3007)));
        assert_eq!(
            placed("--nproc-per-node 4", &format!("{env} MASTER_ADDR=x MASTER_PORT=9")),
            Ok(node(1, 2, 4, "x", 9))
        );
        assert_eq!(placed("--standalone", &env), Ok(node(0, 1, 1, "127.0.0.1", 0)));
    }

    #[test]
    fn slurm_with_one_launcher_per_rank() {
        let env = format!(
            "{STEP} SLURM_NNODES=2 SLURM_NTASKS=3 SLURM_PROCID=2 SLURM_NODEID=1 SLURM_LOCALID=0 \
             SLURM_TASKS_PER_NODE=2,1"
        );
        let task = Task {
            rank: 2,
            world_size: 3,
            local_rank: 0,
            local_world_size: 1,
            node_rank: 1,
            n_nodes: 2,
        };
        let master = Master { addr: "gpu03".into(), port: 18007 };
        assert_eq!(placed("", &env), Ok(Placement::Task { task, master }));
        assert!(placed("--nproc-per-node 2", &env).unwrap_err().contains("once per rank"));
    }

    #[test]
    fn a_batch_script_without_srun_is_no_step() {
        assert_eq!(placed("", "SLURM_JOB_ID=1 SLURM_NNODES=1"), Ok(node(0, 1, 1, "127.0.0.1", 0)));
        let two = placed("", "SLURM_JOB_ID=1 SLURM_NNODES=2 SLURM_PROCID=0");
        assert!(two.unwrap_err().contains("srun"));
    }

    #[test]
    fn open_mpi_needs_the_host_of_rank_0_on_several_nodes() {
        let env = "OMPI_COMM_WORLD_RANK=3 OMPI_COMM_WORLD_SIZE=4 OMPI_COMM_WORLD_LOCAL_RANK=1 \
                   OMPI_COMM_WORLD_LOCAL_SIZE=2";
        assert!(placed("", env).unwrap_err().contains("-x MASTER_ADDR"));
        let Ok(Placement::Task { task, master }) = placed("", &format!("{env} MASTER_ADDR=a"))
        else {
            panic!("a task");
        };
        assert_eq!((task.rank, task.node_rank, task.n_nodes), (3, 1, 2));
        assert_eq!(master, Master { addr: "a".into(), port: 29500 });
    }

    #[test]
    fn pods_are_nodes() {
        let env = "RANK=1 WORLD_SIZE=2 MASTER_ADDR=job-master-0 MASTER_PORT=23456";
        assert_eq!(placed("--nproc-per-node 8", env), Ok(node(1, 2, 8, "job-master-0", 23456)));
    }

    #[test]
    fn torchrun_outside_is_left_in_charge() {
        let env = "TORCHELASTIC_RUN_ID=x RANK=5 LOCAL_RANK=1 WORLD_SIZE=8";
        let inherited = Placement::Inherited { rank: 5, local_rank: 1, world_size: 8 };
        assert_eq!(placed("", env), Ok(inherited));
        assert!(placed("--nproc-per-node 2", env).unwrap_err().contains("outer launcher"));
        assert_eq!(placed("--standalone", env), Ok(node(0, 1, 1, "127.0.0.1", 0)));
    }

    #[test]
    fn nonsense_in_the_environment_is_named() {
        let env = format!("{STEP} SLURM_NNODES=two SLURM_NTASKS=2");
        assert_eq!(
            placed("", &env).unwrap_err(),
            "SLURM_NNODES is \"two\": expected a number, 0 or more"
        );
    }
}
