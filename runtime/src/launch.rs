//! Who this process is: rank, world size and meeting point, read from the variables that torchrun,
//! ddp-run, Slurm (`srun`) and Open MPI set. Opens no connection and touches no device.

use std::net::IpAddr;

use crate::error::{Error, Result};

/// This process's place among the ranks and where they meet.
///
/// ```no_run
/// # fn main() -> tch_ddp::Result<()> {
/// let launch = tch_ddp::Launch::from_env()?;
/// println!("rank {} of {}", launch.rank(), launch.world_size());
/// # Ok(()) }
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Launch {
    rank: usize,
    local_rank: usize,
    world_size: usize,
    local_world_size: usize,
    /// `None` for a world of one that nobody launched.
    meeting: Option<Meeting>,
    launcher: Launcher,
}

/// Where the ranks' key-value store is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Meeting {
    pub(crate) host: String,
    pub(crate) port: u16,
    /// The launcher keeps the store; otherwise rank 0 does.
    pub(crate) kept_by_launcher: bool,
    /// A listening socket that the launcher bound for rank 0.
    pub(crate) listen_fd: Option<i32>,
    /// Counts restarts by the launcher, which keeps its store over them.
    pub(crate) restart: u32,
}

/// Which program started the ranks, as far as the environment tells.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Launcher {
    /// Nobody: a world of one.
    Alone,
    /// `torchrun`, `ddp-run`, or another that sets `RANK` and `WORLD_SIZE`.
    Torchrun,
    /// Open MPI's `mpirun`.
    OpenMpi,
    /// Slurm's `srun`.
    Slurm,
}

const RANK_VARIABLES: [&str; 5] =
    ["RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"];

impl Launch {
    /// Reads the launch from the environment; nothing set is a world of one.
    ///
    /// # Errors
    /// Variables that are partly set, contradict each other or are not numbers; the text names them.
    pub fn from_env() -> Result<Self> {
        Self::from_variables(|name| std::env::var(name).ok())
    }

    /// As [`Launch::from_env`], with the variables looked up by `variable`.
    ///
    /// # Errors
    /// As for [`Launch::from_env`].
    pub fn from_variables(variable: impl Fn(&str) -> Option<String>) -> Result<Self> {
        let get = |name: &str| variable(name).filter(|value| !value.trim().is_empty());
        if ["RANK", "WORLD_SIZE", "LOCAL_RANK"].iter().any(|name| get(name).is_some()) {
            return from_torchrun(&get);
        }
        if get("OMPI_COMM_WORLD_RANK").is_some() {
            return from_open_mpi(&get);
        }
        // A batch script or an `salloc` shell has SLURM_PROCID without a step: not launched.
        if get("SLURM_PROCID").is_some() && get("SLURM_STEP_ID").is_some() {
            return from_slurm(&get);
        }
        if get("MASTER_ADDR").is_some() || get("MASTER_PORT").is_some() {
            return from_torchrun(&get);
        }
        Ok(Self::alone())
    }

    /// A world of one, whatever the environment says.
    pub fn alone() -> Self {
        Self {
            rank: 0,
            local_rank: 0,
            world_size: 1,
            local_world_size: 1,
            meeting: None,
            launcher: Launcher::Alone,
        }
    }

    /// A rank with a given meeting point, for programs that start their own ranks.
    ///
    /// All ranks are taken to be on one node, so the local rank is the rank.
    ///
    /// # Errors
    /// `rank` is not below `world_size`.
    pub fn local(rank: usize, world_size: usize, host: &str, port: u16) -> Result<Self> {
        let meeting = Meeting {
            host: host.to_owned(),
            port,
            kept_by_launcher: false,
            listen_fd: None,
            restart: 0,
        };
        Self {
            rank,
            local_rank: rank,
            world_size,
            local_world_size: world_size,
            meeting: Some(meeting),
            launcher: Launcher::Torchrun,
        }
        .checked(["rank", "world_size", "rank", "world_size"])
    }

    /// The global rank, `0..world_size`.
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// The rank among the processes on this node; it picks the device.
    pub fn local_rank(&self) -> usize {
        self.local_rank
    }

    /// The number of ranks on all nodes.
    pub fn world_size(&self) -> usize {
        self.world_size
    }

    /// The number of ranks on this node.
    pub fn local_world_size(&self) -> usize {
        self.local_world_size
    }

    /// Rank 0.
    pub fn is_main(&self) -> bool {
        self.rank == 0
    }

    /// Who started the ranks.
    pub fn launcher(&self) -> Launcher {
        self.launcher
    }

    pub(crate) fn meeting(&self) -> Option<&Meeting> {
        self.meeting.as_ref()
    }

    /// Whether all ranks are on this node.
    pub(crate) fn is_one_node(&self) -> bool {
        self.local_world_size == self.world_size
            || self.meeting.as_ref().is_none_or(|meeting| is_loopback(&meeting.host))
    }

    fn checked(self, names: [&str; 4]) -> Result<Self> {
        let [rank, world_size, local_rank, local_world_size] = names;
        let wrong = |name: &str, value: usize, below: &str, limit: usize| {
            Err(Error::Launch(format!(
                "the launch is inconsistent: {name}={value} is not below {below}={limit}; start \
                 every rank with the same launcher and world size"
            )))
        };
        if self.rank >= self.world_size {
            return wrong(rank, self.rank, world_size, self.world_size);
        }
        if self.local_rank >= self.local_world_size {
            return wrong(local_rank, self.local_rank, local_world_size, self.local_world_size);
        }
        Ok(self)
    }
}

pub(crate) fn is_loopback(host: &str) -> bool {
    host == "localhost" || host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

type Lookup<'a> = dyn Fn(&str) -> Option<String> + 'a;

fn from_torchrun(get: &Lookup<'_>) -> Result<Launch> {
    let missing: Vec<&str> =
        RANK_VARIABLES.into_iter().filter(|name| get(name).is_none()).collect();
    if !missing.is_empty() {
        let set: Vec<String> = RANK_VARIABLES
            .into_iter()
            .filter_map(|name| Some(format!("{name}={}", get(name)?)))
            .collect();
        return Err(Error::Launch(format!(
            "the launch environment is incomplete: {} set, but {} missing; start the program with \
             `ddp-run` or `torchrun`, or set all of {}, or none of them to run alone",
            set.join(" "),
            missing.join(", "),
            RANK_VARIABLES.join(", ")
        )));
    }
    let world_size = number(get, "WORLD_SIZE")?;
    let local_world_size = match get("LOCAL_WORLD_SIZE") {
        Some(_) => number(get, "LOCAL_WORLD_SIZE")?,
        None => world_size,
    };
    let restart = match get("TORCHELASTIC_RESTART_COUNT") {
        Some(_) => number(get, "TORCHELASTIC_RESTART_COUNT")?,
        None => 0,
    };
    let listen_fd = match get("TCH_DDP_LISTEN_FD") {
        Some(_) => Some(number(get, "TCH_DDP_LISTEN_FD")?),
        None => None,
    };
    Launch {
        rank: number(get, "RANK")?,
        local_rank: number(get, "LOCAL_RANK")?,
        world_size,
        local_world_size,
        meeting: Some(Meeting {
            host: get("MASTER_ADDR").unwrap_or_default(),
            port: number(get, "MASTER_PORT")?,
            kept_by_launcher: get("TORCHELASTIC_USE_AGENT_STORE").as_deref() == Some("True"),
            listen_fd,
            restart,
        }),
        launcher: Launcher::Torchrun,
    }
    .checked(["RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"])
}

fn from_open_mpi(get: &Lookup<'_>) -> Result<Launch> {
    let names = [
        "OMPI_COMM_WORLD_RANK",
        "OMPI_COMM_WORLD_SIZE",
        "OMPI_COMM_WORLD_LOCAL_RANK",
        "OMPI_COMM_WORLD_LOCAL_SIZE",
    ];
    require(get, &names, "start the program with Open MPI's `mpirun`")?;
    let world_size = number(get, names[1])?;
    if world_size > 1 {
        let hint = "Open MPI names no meeting point: give one with `mpirun -x MASTER_ADDR=<host \
                    of rank 0> -x MASTER_PORT=<free port> …`";
        require(get, &["MASTER_ADDR", "MASTER_PORT"], hint)?;
    }
    Launch {
        rank: number(get, names[0])?,
        local_rank: number(get, names[2])?,
        world_size,
        local_world_size: number(get, names[3])?,
        meeting: meeting_or_none(get, world_size)?,
        launcher: Launcher::OpenMpi,
    }
    .checked(names)
}

fn from_slurm(get: &Lookup<'_>) -> Result<Launch> {
    let names = ["SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", "SLURM_TASKS_PER_NODE"];
    let hint = "start the program with `srun`";
    require(get, &names[..3], hint)?;
    let world_size = number(get, "SLURM_NTASKS")?;
    let node: usize = match get("SLURM_NODEID") {
        Some(_) => number(get, "SLURM_NODEID")?,
        None => 0,
    };
    let local_world_size = ["SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE"]
        .iter()
        .find_map(|name| tasks_on_node(&get(name)?, node))
        .unwrap_or(world_size);
    let meeting = if get("MASTER_ADDR").is_some() && get("MASTER_PORT").is_some() {
        meeting_or_none(get, world_size)?
    } else if world_size > 1 {
        Some(slurm_meeting(get)?)
    } else {
        None
    };
    Launch {
        rank: number(get, "SLURM_PROCID")?,
        local_rank: number(get, "SLURM_LOCALID")?,
        world_size,
        local_world_size,
        meeting,
        launcher: Launcher::Slurm,
    }
    .checked(names)
}

/// The first node of the step, and a port that all its ranks compute alike.
fn slurm_meeting(get: &Lookup<'_>) -> Result<Meeting> {
    let nodes = ["SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", "SLURM_NODELIST"]
        .iter()
        .find_map(|name| get(name))
        .ok_or_else(|| {
            Error::Launch(
                "Slurm set SLURM_PROCID but no SLURM_STEP_NODELIST, so rank 0's node is unknown; \
                 set MASTER_ADDR and MASTER_PORT"
                    .to_owned(),
            )
        })?;
    let job: u64 = number(get, "SLURM_JOB_ID")?;
    let step: u64 = number(get, "SLURM_STEP_ID")?;
    // Below the ephemeral range (32768 and up on Linux), where the system hands out ports.
    let port = match get("MASTER_PORT") {
        Some(_) => number(get, "MASTER_PORT")?,
        None => 15_000 + (job.wrapping_mul(31).wrapping_add(step) % 15_000) as u16,
    };
    let host = get("MASTER_ADDR").unwrap_or_else(|| first_node(&nodes));
    Ok(Meeting { host, port, kept_by_launcher: false, listen_fd: None, restart: 0 })
}

fn meeting_or_none(get: &Lookup<'_>, world_size: usize) -> Result<Option<Meeting>> {
    let Some(host) = get("MASTER_ADDR").filter(|_| world_size > 1) else { return Ok(None) };
    let port = number(get, "MASTER_PORT")?;
    Ok(Some(Meeting { host, port, kept_by_launcher: false, listen_fd: None, restart: 0 }))
}

fn require(get: &Lookup<'_>, names: &[&str], hint: &str) -> Result<()> {
    let missing: Vec<&str> = names.iter().copied().filter(|name| get(name).is_none()).collect();
    if missing.is_empty() {
        return Ok(());
    }
    let missing = missing.join(", ");
    Err(Error::Launch(format!("the launch environment is incomplete: {missing} missing; {hint}")))
}

fn number<T: std::str::FromStr>(get: &Lookup<'_>, name: &str) -> Result<T> {
    let value = get(name).unwrap_or_default();
    value.trim().parse().map_err(|_| {
        Error::Launch(format!("{name} must be a number in range, but it is `{value}`"))
    })
}

/// `2(x3),1` means two tasks on each of three nodes and one on the fourth.
fn tasks_on_node(text: &str, node: usize) -> Option<usize> {
    let mut node_first = 0;
    for part in text.split(',') {
        let (tasks, times) = match part.split_once("(x") {
            Some((tasks, times)) => (tasks, times.strip_suffix(')')?.parse().ok()?),
            None => (part, 1),
        };
        if node < node_first + times {
            return tasks.trim().parse().ok();
        }
        node_first += times;
    }
    None
}

/// The first of `gpu[03-05,09],login1`, which is `gpu03`.
fn first_node(list: &str) -> String {
    let Some(open) = list.find('[') else {
        return list.split(',').next().unwrap_or(list).to_owned();
    };
    let (prefix, rest) = list.split_at(open);
    if let Some((first, _)) = prefix.split_once(',') {
        return first.to_owned();
    }
    let inside = rest.trim_start_matches('[').split(']').next().unwrap_or_default();
    let first = inside.split([',', '-']).next().unwrap_or_default();
    let suffix = rest.split_once(']').map_or("", |(_, after)| after);
    let suffix = suffix.split(',').next().unwrap_or_default();
    format!("{prefix}{first}{suffix}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn launch(variables: &[(&str, &str)]) -> Result<Launch> {
        Launch::from_variables(|name| {
            variables.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned())
        })
    }

    #[test]
    fn nothing_set_is_a_world_of_one() {
        assert_eq!(launch(&[]).unwrap(), Launch::alone());
    }

    #[test]
    fn partly_set_names_what_is_missing() {
        let error = launch(&[("RANK", "1"), ("WORLD_SIZE", "2")]).unwrap_err().to_string();
        assert!(error.contains("LOCAL_RANK, MASTER_ADDR, MASTER_PORT missing"), "{error}");
        let error = launch(&[("MASTER_ADDR", "localhost")]).unwrap_err().to_string();
        assert!(error.contains("RANK, WORLD_SIZE, LOCAL_RANK, MASTER_PORT missing"), "{error}");
    }

    #[test]
    fn torchrun_variables_are_read() {
        let launch = launch(&[
            ("RANK", "3"),
            ("LOCAL_RANK", "1"),
            ("WORLD_SIZE", "4"),
            ("LOCAL_WORLD_SIZE", "2"),
            ("MASTER_ADDR", "node1"),
            ("MASTER_PORT", "29400"),
            ("TORCHELASTIC_USE_AGENT_STORE", "True"),
            ("TORCHELASTIC_RESTART_COUNT", "2"),
        ])
        .unwrap();
        assert_eq!((launch.rank(), launch.local_rank(), launch.world_size()), (3, 1, 4));
        let meeting = launch.meeting().unwrap();
        assert!(meeting.kept_by_launcher && meeting.restart == 2 && meeting.port == 29400);
        assert!(!launch.is_one_node());
    }

    #[test]
    fn numbers_out_of_range_are_errors() {
        let base = [("LOCAL_RANK", "0"), ("MASTER_ADDR", "localhost"), ("MASTER_PORT", "1")];
        let with = |rank: &'static str, size: &'static str| {
            let mut all = base.to_vec();
            all.extend([("RANK", rank), ("WORLD_SIZE", size)]);
            launch(&all).unwrap_err().to_string()
        };
        assert!(with("2", "2").contains("RANK=2 is not below WORLD_SIZE=2"));
        assert!(with("x", "2").contains("RANK must be a number in range, but it is `x`"));
        assert!(with("-1", "2").contains("`-1`"));
    }

    #[test]
    fn slurm_step_is_read_and_a_batch_script_is_alone() {
        let batch = [("SLURM_PROCID", "0"), ("SLURM_NTASKS", "8")];
        assert_eq!(launch(&batch).unwrap(), Launch::alone());
        let launch = launch(&[
            ("SLURM_PROCID", "5"),
            ("SLURM_NTASKS", "7"),
            ("SLURM_LOCALID", "1"),
            ("SLURM_NODEID", "2"),
            ("SLURM_STEP_ID", "1"),
            ("SLURM_JOB_ID", "4711"),
            ("SLURM_STEP_TASKS_PER_NODE", "2(x3),1"),
            ("SLURM_STEP_NODELIST", "gpu[03-05,09]"),
        ])
        .unwrap();
        assert_eq!((launch.rank(), launch.local_world_size()), (5, 2));
        let meeting = launch.meeting().unwrap();
        assert_eq!(meeting.host, "gpu03");
        assert!((15_000..30_000).contains(&meeting.port));
    }

    #[test]
    fn open_mpi_needs_a_meeting_point() {
        let mut variables = vec![
            ("OMPI_COMM_WORLD_RANK", "1"),
            ("OMPI_COMM_WORLD_SIZE", "2"),
            ("OMPI_COMM_WORLD_LOCAL_RANK", "1"),
            ("OMPI_COMM_WORLD_LOCAL_SIZE", "2"),
        ];
        // MASTER_ADDR alone must not be taken for torchrun.
        variables.push(("MASTER_ADDR", "localhost"));
        let error = launch(&variables).unwrap_err().to_string();
        assert!(error.contains("MASTER_PORT missing") && error.contains("mpirun -x"), "{error}");
        variables.push(("MASTER_PORT", "4000"));
        assert_eq!(launch(&variables).unwrap().rank(), 1);
    }

    #[test]
    fn node_lists_begin_with_their_first_node() {
        assert_eq!(first_node("a,b"), "a");
        assert_eq!(first_node("n[1,3-5]"), "n1");
        assert_eq!(first_node("a,n[1-2]"), "a");
        assert_eq!(first_node("n[01-02]-ib,x"), "n01-ib");
    }
}
