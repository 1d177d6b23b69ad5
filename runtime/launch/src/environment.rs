//! The variables that each rank gets: torchrun's, so that any program written for it runs.
//! Pure; nothing is read from this process here except what is passed in.

use crate::cli::{Args, RankEnv, Threads};
use crate::cluster::{Env, Placement};
use crate::devices;

/// One rank's place in the run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Seat {
    pub rank: usize,
    pub local_rank: usize,
    pub world_size: usize,
    pub local_world_size: usize,
    pub node_rank: usize,
    pub n_nodes: usize,
}

/// What all ranks of an attempt have in common.
#[derive(Clone, Debug)]
pub(crate) struct Attempt {
    pub run_id: String,
    pub restart: usize,
    pub max_restarts: usize,
    pub master_addr: String,
    pub master_port: u16,
}

/// Seats of the ranks that this launcher starts; `first_rank` and `world_size` are what the
/// nodes agreed on.
pub(crate) fn seats(placement: &Placement, first_rank: usize, world_size: usize) -> Vec<Seat> {
    match placement {
        Placement::Node { node_rank, n_nodes, n_local, .. } => (0..*n_local)
            .map(|local_rank| Seat {
                rank: first_rank + local_rank,
                local_rank,
                world_size,
                local_world_size: *n_local,
                node_rank: *node_rank,
                n_nodes: *n_nodes,
            })
            .collect(),
        Placement::Task { task, .. } => vec![Seat {
            rank: task.rank,
            local_rank: task.local_rank,
            world_size: task.world_size,
            local_world_size: task.local_world_size,
            node_rank: task.node_rank,
            n_nodes: task.n_nodes,
        }],
        Placement::Inherited { rank, local_rank, world_size } => vec![Seat {
            rank: *rank,
            local_rank: *local_rank,
            world_size: *world_size,
            local_world_size: 1,
            node_rank: 0,
            n_nodes: 1,
        }],
    }
}

/// The variables that the launcher adds to its own for one rank.
pub(crate) fn variables(
    args: &Args,
    env: &Env,
    seat: &Seat,
    attempt: &Attempt,
) -> Vec<(String, String)> {
    let mut variables = Vec::new();
    let mut set = |key: &str, value: String| variables.push((key.to_owned(), value));
    set("RANK", seat.rank.to_string());
    set("WORLD_SIZE", seat.world_size.to_string());
    set("LOCAL_WORLD_SIZE", seat.local_world_size.to_string());
    set("GROUP_RANK", seat.node_rank.to_string());
    set("GROUP_WORLD_SIZE", seat.n_nodes.to_string());
    set("ROLE_NAME", args.role.clone());
    set("ROLE_RANK", seat.rank.to_string());
    set("ROLE_WORLD_SIZE", seat.world_size.to_string());
    set("MASTER_ADDR", attempt.master_addr.clone());
    set("MASTER_PORT", attempt.master_port.to_string());
    set("TORCHELASTIC_RESTART_COUNT", attempt.restart.to_string());
    set("TORCHELASTIC_MAX_RESTARTS", attempt.max_restarts.to_string());
    set("TORCHELASTIC_RUN_ID", attempt.run_id.clone());
    // Rank 0 hosts the store on the port that the launcher holds for it; see `port`.
    set("TORCHELASTIC_USE_AGENT_STORE", "False".to_owned());
    set("TORCHELASTIC_SIGNALS_TO_HANDLE", args.signals_to_handle.join(","));
    let nccl = "TORCH_NCCL_ASYNC_ERROR_HANDLING";
    set(nccl, env.get(nccl).cloned().unwrap_or_else(|| "1".to_owned()));
    if args.virtual_local_rank {
        set("LOCAL_RANK", "0".to_owned());
        set("CUDA_VISIBLE_DEVICES", own_device(env, seat.local_rank));
    } else {
        set("LOCAL_RANK", seat.local_rank.to_string());
    }
    let threads = match args.omp_threads {
        Some(Threads::Count(count)) => Some(count),
        Some(Threads::Auto) => Some((devices::cores() / seat.local_world_size).max(1)),
        None => (seat.local_world_size > 1 && !env.contains_key("OMP_NUM_THREADS")).then_some(1),
    };
    if let Some(threads) = threads {
        set("OMP_NUM_THREADS", threads.to_string());
    }
    if !env.contains_key("PYTHONUNBUFFERED") {
        // Lines are to arrive when they are written, not when a buffer is full.
        set("PYTHONUNBUFFERED", "1".to_owned());
    }
    variables.extend(rank_env(&args.rank_env, seat, attempt.restart));
    variables
}

/// The user's own variables (`--rank-env`).
pub(crate) fn rank_env(own: &[RankEnv], seat: &Seat, restart: usize) -> Vec<(String, String)> {
    let fill = |pattern: &str| {
        pattern
            .replace("{rank}", &seat.rank.to_string())
            .replace("{local_rank}", &seat.local_rank.to_string())
            .replace("{world_size}", &seat.world_size.to_string())
            .replace("{local_world_size}", &seat.local_world_size.to_string())
            .replace("{node_rank}", &seat.node_rank.to_string())
            .replace("{nnodes}", &seat.n_nodes.to_string())
            .replace("{restart}", &restart.to_string())
    };
    own.iter().map(|own| (own.key.clone(), fill(&own.pattern))).collect()
}

/// The GPU of a local rank: its entry among those that are visible, else its number.
fn own_device(env: &Env, local_rank: usize) -> String {
    env.get("CUDA_VISIBLE_DEVICES")
        .and_then(|list| list.split(',').nth(local_rank))
        .map_or_else(|| local_rank.to_string(), |device| device.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;
    use std::collections::HashMap;

    fn given(args: &str, env: &[(&str, &str)]) -> HashMap<String, String> {
        let args = format!("ddp-run {args} prog");
        let args = Args::try_parse_from(args.split_whitespace()).unwrap();
        let env = env.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
        let seat = Seat {
            rank: 5,
            local_rank: 1,
            world_size: 8,
            local_world_size: 4,
            node_rank: 1,
            n_nodes: 2,
        };
        let attempt = Attempt {
            run_id: "r".into(),
            restart: 2,
            max_restarts: 3,
            master_addr: "a".into(),
            master_port: 7,
        };
        variables(&args, &env, &seat, &attempt).into_iter().collect()
    }

    #[test]
    fn several_ranks_get_one_thread_each_unless_told_otherwise() {
        assert_eq!(given("", &[])["OMP_NUM_THREADS"], "1");
        assert_eq!(given("--omp-threads 3", &[])["OMP_NUM_THREADS"], "3");
        assert!(!given("", &[("OMP_NUM_THREADS", "2")]).contains_key("OMP_NUM_THREADS"));
    }

    #[test]
    fn own_variables_are_filled_in_and_come_last() {
        let own = given(
            "--rank-env A={rank}/{world_size}:{local_rank}@{node_rank} \
             --rank-env RANK=x{restart}",
            &[],
        );
        assert_eq!(own["A"], "5/8:1@1");
        assert_eq!(own["RANK"], "x2");
    }

    #[test]
    fn a_virtual_local_rank_sees_its_gpu_only() {
        let own = given("--virtual-local-rank", &[("CUDA_VISIBLE_DEVICES", "4, 6,7")]);
        assert_eq!((own["LOCAL_RANK"].as_str(), own["CUDA_VISIBLE_DEVICES"].as_str()), ("0", "6"));
        assert_eq!(given("--virtual-local-rank", &[])["CUDA_VISIBLE_DEVICES"], "1");
    }
}
