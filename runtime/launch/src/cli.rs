//! The command line: torchrun's flags, its `PET_*` variables and a few of our own.
//! Only parses; what the values mean together is `plan`'s business.

use std::ffi::OsString;
use std::path::PathBuf;
use std::str::FromStr;

use clap::Parser;
use clap::builder::FalseyValueParser;

const AFTER_HELP: &str = "\
Examples:
  ddp-run --nproc-per-node gpu ./target/release/train --epochs 3
  ddp-run --nproc-per-node 4 --max-restarts 3 --log-dir logs ./train
  ddp-run --nnodes 2 --node-rank 0 --master-addr node0 --nproc-per-node 8 ./train
  srun --ntasks-per-node 1 ddp-run --nproc-per-node gpu ./train

Every flag of torchrun may also be given by its PET_* variable (PET_NNODES=2).
Exit code: that of the rank that failed first (128 + n for signal n), 2 for wrong usage,
126 or 127 when the program cannot be started, 1 when the launcher could not do its work.";

/// Start one process per rank, watch them, and restart or end them together.
#[expect(clippy::struct_excessive_bools, reason = "each is a flag of the command line")]
#[derive(Parser, Clone, Debug)]
#[command(name = "ddp-run", bin_name = "ddp-run", version, after_help = AFTER_HELP)]
pub(crate) struct Args {
    /// Ranks on this node: a number, `gpu` (one per GPU), `cpu` (one per core), or `auto`
    /// (GPUs if there are any, else cores) [default: 1]
    #[arg(short = 'n', long, alias = "nproc_per_node", env = "PET_NPROC_PER_NODE")]
    #[arg(value_name = "N|auto|gpu|cpu")]
    pub nproc_per_node: Option<Processes>,

    /// Number of nodes [default: 1, or what Slurm says]
    #[arg(long, env = "PET_NNODES", value_name = "N")]
    pub nnodes: Option<Nodes>,

    /// This node's number, from 0
    #[arg(long, alias = "node_rank", env = "PET_NODE_RANK", value_name = "N")]
    pub node_rank: Option<usize>,

    /// Address of node 0, as the other nodes reach it
    #[arg(long, alias = "master_addr", env = "PET_MASTER_ADDR", value_name = "HOST")]
    pub master_addr: Option<String>,

    /// Port of node 0 (0: a free one, held for rank 0) [default: 0 on one node, else 29500]
    #[arg(long, alias = "master_port", env = "PET_MASTER_PORT", value_name = "PORT")]
    pub master_port: Option<u16>,

    /// One node on a free port, whatever the environment says
    #[arg(long, env = "PET_STANDALONE", value_parser = FalseyValueParser::new())]
    pub standalone: bool,

    /// torchrun's spelling of the address: HOST:PORT of node 0
    #[arg(long, alias = "rdzv_endpoint", env = "PET_RDZV_ENDPOINT", value_name = "HOST:PORT")]
    pub rdzv_endpoint: Option<String>,

    /// `static` (or `c10d` on one node); elastic membership is torchrun's job
    #[arg(long, alias = "rdzv_backend", env = "PET_RDZV_BACKEND", value_name = "NAME")]
    pub rdzv_backend: Option<String>,

    /// Name of this run: a folder in the log directory, and `TORCHELASTIC_RUN_ID`
    #[arg(long, visible_alias = "run-id", alias = "rdzv_id", env = "PET_RDZV_ID")]
    #[arg(value_name = "NAME")]
    pub rdzv_id: Option<String>,

    /// Seconds to wait until all nodes have joined
    #[arg(long, default_value_t = 600.0, value_name = "SECONDS", value_parser = seconds)]
    pub join_timeout: f64,

    /// Seconds without a sign of life after which a node counts as lost
    #[arg(long, default_value_t = 60.0, value_name = "SECONDS", value_parser = seconds)]
    pub node_timeout: f64,

    /// How often all ranks may be started anew after a failure
    #[arg(long, alias = "max_restarts", env = "PET_MAX_RESTARTS", default_value_t = 0)]
    #[arg(value_name = "N")]
    pub max_restarts: usize,

    /// Longest pause between the restarts of a crash loop
    #[arg(long, default_value_t = 30.0, value_name = "SECONDS", value_parser = seconds)]
    pub max_restart_delay: f64,

    /// Folder for log files, error files and the state of the run
    #[arg(long, alias = "log_dir", env = "PET_LOG_DIR", value_name = "FOLDER")]
    pub log_dir: Option<PathBuf>,

    /// Streams that go to log files only: 0 none, 1 stdout, 2 stderr, 3 both, or per local
    /// rank: 0:1,1:3
    #[arg(short, long, env = "PET_REDIRECTS", value_name = "STREAMS")]
    pub redirects: Option<Streams>,

    /// Streams that go to log files and to the console [default: 3 with --log-dir, else 0]
    #[arg(short, long, env = "PET_TEE", value_name = "STREAMS")]
    pub tee: Option<Streams>,

    /// Local ranks that the console shows, e.g. 0,3; log files keep all
    #[arg(long, alias = "local_ranks_filter", env = "PET_LOCAL_RANKS_FILTER")]
    #[arg(value_name = "RANKS", value_delimiter = ',')]
    pub local_ranks_filter: Vec<usize>,

    /// Show lines without the rank that wrote them
    #[arg(long)]
    pub no_prefix: bool,

    /// How to show the run: `live` keeps a table below the lines
    #[arg(long, value_enum, default_value_t = View::Auto)]
    pub view: View,

    /// OMP_NUM_THREADS of each rank: a number or `auto` (cores / ranks) [default: 1 with
    /// several ranks, unless the variable is set]
    #[arg(long, value_name = "N|auto")]
    pub omp_threads: Option<Threads>,

    /// Seconds between SIGTERM and SIGKILL [default: 30]
    #[arg(long, alias = "shutdown_timeout", env = "PET_SHUTDOWN_TIMEOUT", value_parser = seconds)]
    #[arg(value_name = "SECONDS")]
    pub shutdown_timeout: Option<f64>,

    /// Seconds after which a rank that is stopped (SIGSTOP) counts as failed [default: never;
    /// a warning is shown]
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    pub stop_timeout: Option<f64>,

    /// A variable for each rank; {rank}, {local_rank}, {world_size}, {local_world_size},
    /// {node_rank}, {nnodes} and {restart} are replaced
    #[arg(long, value_name = "KEY=PATTERN")]
    pub rank_env: Vec<RankEnv>,

    /// Give each rank one GPU as its device 0: LOCAL_RANK=0, CUDA_VISIBLE_DEVICES=its own
    #[arg(long, alias = "virtual_local_rank", env = "PET_VIRTUAL_LOCAL_RANK")]
    #[arg(value_parser = FalseyValueParser::new())]
    pub virtual_local_rank: bool,

    /// Name of the role (ROLE_NAME)
    #[arg(long, env = "PET_ROLE", default_value = "default", value_name = "NAME")]
    pub role: String,

    /// Signals that are passed on and end the run; SIGUSR1 and SIGUSR2 are passed on always
    #[arg(long, alias = "signals_to_handle", env = "PET_SIGNALS_TO_HANDLE", value_delimiter = ',')]
    #[arg(default_value = "SIGTERM,SIGINT,SIGHUP,SIGQUIT", value_name = "NAMES")]
    pub signals_to_handle: Vec<String>,

    /// The program is a Python module (python -m)
    #[arg(short, long, env = "PET_MODULE", value_parser = FalseyValueParser::new())]
    pub module: bool,

    /// Start the program itself even if its name ends in .py
    #[arg(long, alias = "no_python", env = "PET_NO_PYTHON")]
    #[arg(value_parser = FalseyValueParser::new())]
    pub no_python: bool,

    /// Accepted for torchrun's sake; failures are seen at once, nothing is polled
    #[arg(long, alias = "monitor_interval", env = "PET_MONITOR_INTERVAL", hide = true)]
    pub monitor_interval: Option<f64>,

    /// Accepted for torchrun's sake; ranks are programs of their own in any case
    #[arg(long, alias = "start_method", env = "PET_START_METHOD", hide = true)]
    pub start_method: Option<String>,

    /// The program and its arguments
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    #[arg(value_name = "PROGRAM")]
    pub command: Vec<OsString>,
}

/// How the run is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum View {
    /// `live` on a terminal, else `plain`
    Auto,
    /// Lines below each other
    Plain,
    /// Lines, and a table of the ranks below them
    Live,
}

/// Number of ranks on a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Processes {
    Count(usize),
    Auto,
    Gpu,
    Cpu,
}

impl FromStr for Processes {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "auto" => Ok(Self::Auto),
            "gpu" => Ok(Self::Gpu),
            "cpu" => Ok(Self::Cpu),
            _ => match text.parse() {
                Ok(count) if count > 0 => Ok(Self::Count(count)),
                _ => Err("expected a number of at least 1, `auto`, `gpu` or `cpu`".into()),
            },
        }
    }
}

/// Number of nodes, `2` or `2:2`; a range is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Nodes(pub usize);

impl FromStr for Nodes {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let number = |text: &str| text.parse::<usize>().ok().filter(|&count| count > 0);
        let (min, max) = text.split_once(':').unwrap_or((text, text));
        match (number(min), number(max)) {
            (Some(min), Some(max)) if min == max => Ok(Self(min)),
            (Some(_), Some(_)) => Err("a range of nodes is elastic: nodes may come and go; \
                 ddp-run needs one number, use torchrun for a range"
                .into()),
            _ => Err("expected a number of nodes, at least 1".into()),
        }
    }
}

/// Threads per rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Threads {
    Count(usize),
    Auto,
}

impl FromStr for Threads {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.parse() {
            _ if text == "auto" => Ok(Self::Auto),
            Ok(count) if count > 0 => Ok(Self::Count(count)),
            _ => Err("expected a number of at least 1, or `auto`".into()),
        }
    }
}

/// Which standard streams, for all local ranks or for some: `3`, `0:1,1:3`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Streams {
    All(u8),
    Some(Vec<(usize, u8)>),
}

impl Streams {
    /// Whether the stream (1 stdout, 2 stderr) of a local rank is meant.
    pub(crate) fn covers(&self, local_rank: usize, stream: u8) -> bool {
        let mask = match self {
            Self::All(mask) => *mask,
            Self::Some(ranks) => {
                ranks.iter().find(|(rank, _)| *rank == local_rank).map_or(0, |(_, mask)| *mask)
            }
        };
        mask & stream != 0
    }

    /// Whether any stream is meant at all.
    pub(crate) fn any(&self) -> bool {
        match self {
            Self::All(mask) => *mask != 0,
            Self::Some(ranks) => ranks.iter().any(|(_, mask)| *mask != 0),
        }
    }
}

impl FromStr for Streams {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || {
            "expected 0 (none), 1 (stdout), 2 (stderr) or 3 (both), or pairs of local rank and \
             that number, such as 0:1,1:3"
                .to_owned()
        };
        let mask = |text: &str| text.parse::<u8>().ok().filter(|mask| *mask <= 3);
        if let Some(mask) = mask(text) {
            return Ok(Self::All(mask));
        }
        let pair = |pair: &str| {
            let (rank, value) = pair.split_once(':')?;
            Some((rank.trim().parse().ok()?, mask(value.trim())?))
        };
        text.split(',').map(pair).collect::<Option<_>>().map(Self::Some).ok_or_else(wrong)
    }
}

/// A variable that differs by rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RankEnv {
    pub key: String,
    pub pattern: String,
}

impl FromStr for RankEnv {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once('=') {
            Some((key, pattern)) if !key.is_empty() => {
                Ok(Self { key: key.into(), pattern: pattern.into() })
            }
            _ => Err("expected KEY=PATTERN, such as CUDA_VISIBLE_DEVICES={local_rank}".into()),
        }
    }
}

fn seconds(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(value) if (0.0..=1e9).contains(&value) => Ok(value),
        _ => Err("expected a number of seconds, not negative".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn flags_are_consistent() {
        Args::command().debug_assert();
    }

    #[test]
    fn program_arguments_are_not_ours() {
        let args = ["ddp-run", "--nproc_per_node", "2", "train.py", "--nnodes", "-r", "--", "x"];
        let args = Args::try_parse_from(args).unwrap();
        assert_eq!(args.nproc_per_node, Some(Processes::Count(2)));
        assert_eq!(args.nnodes, None);
        assert_eq!(args.command, ["train.py", "--nnodes", "-r", "--", "x"]);
    }

    #[test]
    fn streams_are_read_as_torchrun_reads_them() {
        assert_eq!("3".parse(), Ok(Streams::All(3)));
        let some: Streams = "0:1,1:2".parse().unwrap();
        assert!(some.covers(0, 1) && !some.covers(0, 2));
        assert!(some.covers(1, 2) && !some.covers(2, 1));
        for wrong in ["4", "", "a", "0:", "0:4", "0:1,"] {
            assert!(wrong.parse::<Streams>().is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn a_range_of_nodes_is_left_to_torchrun() {
        assert_eq!("2:2".parse(), Ok(Nodes(2)));
        assert!("1:4".parse::<Nodes>().unwrap_err().contains("torchrun"));
        assert!("0".parse::<Nodes>().is_err());
    }
}
