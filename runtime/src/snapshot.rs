//! Snapshots of a training run that survive a crash at any moment: model, optimizer state, progress
//! and random states in one folder per step, complete or absent. Rank 0 writes and reads; all ranks
//! learn of failures. The newest snapshot whose checksums are right is the one that loads.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use tch::{Kind, Tensor};

use crate::checkpoint;
use crate::ddp::Ddp;
use crate::error::{Error, Result};
use crate::group::ProcessGroup;
use crate::optim::SavedState;
use crate::random;

const MODEL: &str = "model.safetensors";
const OPTIMIZER: &str = "optimizer.safetensors";
const RANDOM: &str = "random.safetensors";
const STATE: &str = "state.json";

/// How far a run has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Progress {
    /// Epochs completed; the sampler's next epoch.
    pub epoch: u64,
    /// Steps done over all epochs.
    pub step: u64,
}

/// The snapshots of a run, in a folder of their own.
///
/// Each is a folder `step-…` with `model.safetensors` (plain names: it loads in Python with
/// `safetensors.torch.load_file`), `optimizer.safetensors`, `random.safetensors` (each rank's state
/// of the CPU generator) and `state.json` (progress and checksums). tch's own optimizers keep their
/// state to themselves, so only those of [`optim`](crate::optim) are saved.
#[derive(Debug, Clone)]
pub struct Snapshots {
    folder: PathBuf,
    n_kept: usize,
}

/// What `state.json` holds.
#[derive(Debug, Serialize, Deserialize)]
struct State {
    progress: Progress,
    world_size: usize,
    /// FNV-1a of each file, 64 bits in hexadecimal.
    checksums: BTreeMap<String, String>,
}

/// What all ranks must know of the snapshot that rank 0 found.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Found {
    folder: PathBuf,
    progress: Progress,
    world_size: usize,
    /// Newer ones that are damaged, and how.
    damaged: Vec<String>,
}

impl Snapshots {
    /// Snapshots in `folder`, of which the two newest are kept.
    pub fn new(folder: impl Into<PathBuf>) -> Self {
        Self { folder: folder.into(), n_kept: 2 }
    }

    /// How many snapshots to keep, at least 1.
    #[must_use]
    pub fn keep(mut self, n_kept: usize) -> Self {
        self.n_kept = n_kept.max(1);
        self
    }

    /// Takes a snapshot. A collective. Older ones beyond the number to keep are removed once the
    /// new one is safe.
    ///
    /// # Errors
    /// Rank 0 cannot write (the same text on every rank), or a rank failed.
    pub fn save<M>(
        &self,
        ddp: &Ddp<M>,
        optimizer: Option<&dyn SavedState>,
        progress: Progress,
    ) -> Result<PathBuf> {
        let group = ddp.group();
        let random: Vec<u8> = Vec::try_from(&random::state()?)?;
        let random = group.all_gather_bytes(&random)?;
        let target = self.folder.join(format!("step-{:012}", progress.step));
        let outcome = if group.is_main() {
            let state =
                State { progress, world_size: group.world_size(), checksums: BTreeMap::new() };
            self.write(ddp, optimizer, &random, state, &target)
        } else {
            Ok(())
        };
        match group.agree(outcome)? {
            None => Ok(target),
            Some((_, reason)) => {
                Err(Error::Checkpoint(format!("cannot save `{}`: {reason}", target.display())))
            }
        }
    }

    /// Restores the newest snapshot that is whole; `None` when there is none. A collective.
    /// Damaged newer ones are named in a warning on rank 0.
    ///
    /// # Errors
    /// The snapshot does not fit the model or optimizer (the same text on every rank), or a rank
    /// failed.
    pub fn load_latest<M>(
        &self,
        ddp: &mut Ddp<M>,
        optimizer: Option<&mut dyn SavedState>,
    ) -> Result<Option<Progress>> {
        let group = ddp.group().clone();
        let found = if group.is_main() { Some(self.find()) } else { None };
        let Some(found) = group.broadcast_object(found.as_ref(), 0)? else { return Ok(None) };
        if group.is_main() {
            for damaged in &found.damaged {
                eprintln!("warning: {damaged}; falling back to `{}`", found.folder.display());
            }
        }
        ddp.load(found.folder.join(MODEL))?;
        if let Some(optimizer) = optimizer {
            restore_optimizer(optimizer, &found.folder.join(OPTIMIZER), &group)?;
        }
        if found.world_size == group.world_size() {
            restore_random(&found.folder.join(RANDOM), &group)?;
        }
        Ok(Some(found.progress))
    }

    fn write<M>(
        &self,
        ddp: &Ddp<M>,
        optimizer: Option<&dyn SavedState>,
        random: &[Vec<u8>],
        mut state: State,
        target: &Path,
    ) -> Result<(), String> {
        let name = target.file_name().unwrap_or_default().to_string_lossy();
        let temporary = self.folder.join(format!(".{}.tmp-{name}", std::process::id()));
        let text = |error: std::io::Error| error.to_string();
        fs::create_dir_all(&temporary).map_err(text)?;
        let mut written = || -> Result<(), String> {
            checkpoint::write(ddp.vars(), &temporary.join(MODEL))?;
            let mut tensors = vec![(MODEL, None)];
            if let Some(optimizer) = optimizer {
                tensors.push((OPTIMIZER, Some(optimizer.state())));
            }
            let random = random.iter().enumerate();
            let random =
                random.map(|(rank, bytes)| (format!("rank{rank}"), Tensor::from_slice(bytes)));
            tensors.push((RANDOM, Some(random.collect())));
            for (file, tensors) in tensors {
                if let Some(tensors) = tensors {
                    write_tensors(&tensors, &temporary.join(file))?;
                }
                let sum = checksum(&temporary.join(file)).map_err(text)?;
                state.checksums.insert(file.to_owned(), sum);
            }
            let json = serde_json::to_string_pretty(&state).map_err(|error| error.to_string())?;
            checkpoint::write_atomically(&temporary.join(STATE), |to| {
                fs::write(to, format!("{json}\n")).map_err(text)
            })?;
            if target.exists() {
                fs::remove_dir_all(target).map_err(text)?;
            }
            fs::rename(&temporary, target).map_err(text)?;
            File::open(&self.folder).and_then(|folder| folder.sync_all()).map_err(text)
        };
        let outcome = written();
        if outcome.is_err() {
            let _ = fs::remove_dir_all(&temporary);
        } else {
            self.prune();
        }
        outcome
    }

    /// Removes what is older than the snapshots to keep, and what a crash left half-written.
    fn prune(&self) {
        for (_, old) in self.list().into_iter().skip(self.n_kept) {
            let _ = fs::remove_dir_all(old);
        }
        for entry in fs::read_dir(&self.folder).into_iter().flatten().flatten() {
            if entry.file_name().to_string_lossy().contains(".tmp-step-") {
                let _ = fs::remove_dir_all(entry.path());
            }
        }
    }

    /// Snapshots by step, newest first.
    fn list(&self) -> Vec<(u64, PathBuf)> {
        let entries = fs::read_dir(&self.folder).into_iter().flatten().flatten();
        let mut all: Vec<(u64, PathBuf)> = entries
            .filter_map(|entry| {
                let name = entry.file_name().to_string_lossy().into_owned();
                Some((name.strip_prefix("step-")?.parse().ok()?, entry.path()))
            })
            .collect();
        all.sort_by_key(|(step, _)| std::cmp::Reverse(*step));
        all
    }

    fn find(&self) -> Option<Found> {
        let mut damaged = Vec::new();
        for (_, folder) in self.list() {
            match verify(&folder) {
                Ok(State { progress, world_size, .. }) => {
                    return Some(Found { folder, progress, world_size, damaged });
                }
                Err(why) => {
                    damaged.push(format!("the snapshot `{}` is damaged: {why}", folder.display()));
                }
            }
        }
        None
    }
}

fn verify(folder: &Path) -> Result<State, String> {
    let json =
        fs::read_to_string(folder.join(STATE)).map_err(|error| format!("{STATE}: {error}"))?;
    let state: State = serde_json::from_str(&json).map_err(|error| format!("{STATE}: {error}"))?;
    for (file, expected) in &state.checksums {
        let found = checksum(&folder.join(file)).map_err(|error| format!("{file}: {error}"))?;
        if found != *expected {
            return Err(format!("{file} has checksum {found} instead of {expected}"));
        }
    }
    Ok(state)
}

fn checksum(path: &Path) -> std::io::Result<String> {
    let mut file = File::open(path)?;
    let mut buffer = vec![0; 1 << 20];
    let mut hash = checkpoint::FNV_START;
    loop {
        let n = file.read(&mut buffer)?;
        if n == 0 {
            return Ok(format!("{hash:016x}"));
        }
        hash = checkpoint::fnv1a(hash, &buffer[..n]);
    }
}

fn write_tensors(tensors: &[(String, Tensor)], path: &Path) -> Result<(), String> {
    let tensors: Vec<(&String, Tensor)> = tensors
        .iter()
        .map(|(name, tensor)| (name, tensor.detach().to_device(tch::Device::Cpu).contiguous()))
        .collect();
    checkpoint::write_atomically(path, |to| {
        Tensor::write_safetensors(&tensors, to).map_err(|error| error.to_string())
    })
}

fn restore_optimizer(
    optimizer: &mut dyn SavedState,
    path: &Path,
    group: &ProcessGroup,
) -> Result<()> {
    let state = optimizer.state();
    let outcome = if group.is_main() { checkpoint::read_into(&state, path) } else { Ok(()) };
    if let Some((_, reason)) = group.agree(outcome)? {
        return Err(Error::Checkpoint(format!("cannot load `{}`: {reason}", path.display())));
    }
    checkpoint::broadcast(state.iter().map(|(_, tensor)| tensor), group)
}

fn restore_random(path: &Path, group: &ProcessGroup) -> Result<()> {
    // States of all ranks travel as one tensor per rank; each keeps its own.
    let all = if group.is_main() {
        let tensors = Tensor::read_safetensors(path).map_err(|error| error.to_string());
        tensors.and_then(|tensors| {
            let named: BTreeMap<String, Tensor> = tensors.into_iter().collect();
            (0..group.world_size())
                .map(|rank| {
                    let state =
                        named.get(&format!("rank{rank}")).ok_or("a rank's state is missing")?;
                    Vec::<u8>::try_from(state).map_err(|error| error.to_string())
                })
                .collect::<Result<Vec<Vec<u8>>, String>>()
        })
    } else {
        Ok(Vec::new())
    };
    let (all, outcome) = match all {
        Ok(all) => (all, Ok(())),
        Err(reason) => (Vec::new(), Err(reason)),
    };
    if let Some((_, reason)) = group.agree(outcome)? {
        return Err(Error::Checkpoint(format!("cannot load `{}`: {reason}", path.display())));
    }
    let all: Vec<Vec<u8>> = group.broadcast_object(group.is_main().then_some(&all), 0)?;
    let own = Tensor::from_slice(&all[group.rank()]).to_kind(Kind::Uint8);
    random::set_state(&own)
}
