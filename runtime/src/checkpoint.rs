//! Saving so that a crash at any moment leaves either the old file or the new one, and loading so
//! that all ranks get the same values or the same error. Only rank 0 touches the disk.

use std::collections::{HashMap, HashSet};
use std::fs::{self, File};
use std::path::Path;

use tch::{Device, Tensor, nn};

use crate::error::{Error, Result};
use crate::group::ProcessGroup;
use crate::variables::{self, Variable};

/// Pieces in which values travel from rank 0 to the others.
pub(crate) const BROADCAST_BYTES_MAX: usize = 250 << 20;

/// Saves the store's variables to `path` from rank 0, atomically. A collective: all ranks call it,
/// wait, and learn of a failure.
///
/// The extension decides the format, as in tch: `.safetensors`, else libtorch's own.
///
/// # Errors
/// Rank 0 could not write; every rank gets the same text. A rank failed.
pub fn save(vs: &nn::VarStore, path: impl AsRef<Path>, group: &ProcessGroup) -> Result<()> {
    let path = path.as_ref();
    let outcome = if group.is_main() { write(vs, path) } else { Ok(()) };
    match group.agree(outcome)? {
        None => Ok(()),
        Some((_, reason)) => {
            Err(Error::Checkpoint(format!("cannot save `{}`: {reason}", path.display())))
        }
    }
}

/// Runs `write` on a temporary file beside `path`, flushes it to disk and renames it to `path`.
///
/// # Errors
/// What `write` or the file system says; the temporary file is gone then.
pub fn write_atomically(
    path: &Path,
    write: impl FnOnce(&Path) -> Result<(), String>,
) -> Result<(), String> {
    let folder = match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    let name = path.file_name().ok_or("the path names no file")?.to_string_lossy().into_owned();
    fs::create_dir_all(folder).map_err(|e| format!("cannot make `{}`: {e}", folder.display()))?;
    // The name keeps its extension, which tch takes the format from.
    let temporary = folder.join(format!(".{}.tmp-{name}", std::process::id()));
    remove_abandoned(folder, &name);
    let written = write(&temporary).and_then(|()| {
        let flush = || -> std::io::Result<()> {
            File::open(&temporary)?.sync_all()?;
            fs::rename(&temporary, path)?;
            // The rename itself is only safe once the folder is on disk.
            File::open(folder)?.sync_all()
        };
        flush().map_err(|error| error.to_string())
    });
    if written.is_err() {
        let _ = fs::remove_file(&temporary);
    }
    written
}

/// Removes what processes that were killed while they wrote `name` have left in `folder`.
fn remove_abandoned(folder: &Path, name: &str) {
    let suffix = format!(".tmp-{name}");
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let file = entry.file_name();
        let id = file
            .to_str()
            .and_then(|file| file.strip_prefix('.')?.strip_suffix(&suffix)?.parse::<u32>().ok());
        if id.is_some_and(|id| Path::new("/proc/self").exists() && !is_alive(id)) {
            let _ = fs::remove_file(entry.path());
        }
    }
}

fn is_alive(process: u32) -> bool {
    Path::new("/proc").join(process.to_string()).exists()
}

pub(crate) fn write(vs: &nn::VarStore, path: &Path) -> Result<(), String> {
    let named: Vec<(String, Tensor)> = variables::sorted(vs)
        .into_iter()
        .flat_map(|Variable { name, aliases, tensor, .. }| {
            // A tied tensor is written under each of its names, as tch loads by name.
            let copies: Vec<_> =
                aliases.into_iter().map(|alias| (alias, tensor.shallow_clone())).collect();
            std::iter::once((name, tensor)).chain(copies)
        })
        .map(|(name, tensor)| (name, tensor.detach().to_device(Device::Cpu).contiguous()))
        .collect();
    write_atomically(path, |temporary| {
        let done = if is_safetensors(temporary) {
            Tensor::write_safetensors(&named, temporary)
        } else {
            Tensor::save_multi(&named, temporary)
        };
        done.map_err(|error| error.to_string())
    })
}

fn is_safetensors(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "safetensors")
}

/// Loads `path` on rank 0 and copies its values to the variables of every rank. A collective.
///
/// # Errors
/// The same text on every rank: the file cannot be read, lacks a variable, or a shape differs.
pub(crate) fn load(variables: &[Variable], path: &Path, group: &ProcessGroup) -> Result<()> {
    let outcome = if group.is_main() { read(variables, path) } else { Ok(()) };
    if let Some((_, reason)) = group.agree(outcome)? {
        return Err(Error::Checkpoint(format!("cannot load `{}`: {reason}", path.display())));
    }
    broadcast(variables.iter().map(|variable| &variable.tensor), group)
}

/// Gives all ranks the values of rank 0.
pub(crate) fn broadcast<'a>(
    tensors: impl IntoIterator<Item = &'a Tensor>,
    group: &ProcessGroup,
) -> Result<()> {
    let tensors: Vec<Tensor> = tensors.into_iter().map(Tensor::shallow_clone).collect();
    if tensors.is_empty() || group.world_size() == 1 {
        return Ok(());
    }
    group.usable()?;
    let inside = group.peers().enter("the broadcast of variables");
    let done = group.lock_group().broadcast_coalesced(&tensors, BROADCAST_BYTES_MAX, 0);
    drop(inside);
    done.map_err(|error| group.failed("the broadcast of variables", &error))
}

fn read(variables: &[Variable], path: &Path) -> Result<(), String> {
    let mut found = named_tensors(path)?;
    strip_wrapper_prefix(&mut found);
    check_no_others(variables, &found)?;
    let lookup = |variable: &Variable| {
        let names = std::iter::once(&variable.name).chain(&variable.aliases);
        names.into_iter().find_map(|name| found.get(name))
    };
    let missing: Vec<&str> = variables
        .iter()
        .filter(|variable| lookup(variable).is_none())
        .map(|variable| variable.name.as_str())
        .collect();
    if !missing.is_empty() {
        return Err(format!(
            "the file has no `{}`; it has {} tensors: is it of this model, and was `register` \
             called before?",
            missing.join("`, `"),
            found.len()
        ));
    }
    for variable in variables {
        let Some(source) = lookup(variable) else { continue };
        if source.size() != variable.tensor.size() {
            return Err(format!(
                "`{}` has shape {:?} in the file but {:?} in the model",
                variable.name,
                source.size(),
                variable.tensor.size()
            ));
        }
    }
    for variable in variables {
        let Some(source) = lookup(variable) else { continue };
        // `copy_` converts the kind and keeps the tensor; replacing its data would cut the
        // Reducer's hooks off.
        let mut target = variable.tensor.detach();
        tch::no_grad(|| target.f_copy_(source)).map_err(|error| error.to_string())?;
    }
    Ok(())
}

/// A name that the store does not know would be lost without a word.
fn check_no_others(variables: &[Variable], found: &HashMap<String, Tensor>) -> Result<(), String> {
    let known: HashSet<&str> = variables
        .iter()
        .flat_map(|variable| std::iter::once(&variable.name).chain(&variable.aliases))
        .map(String::as_str)
        .collect();
    // Python counts batches in a buffer that tch's layers do not have.
    let mut others: Vec<&str> = found
        .keys()
        .map(String::as_str)
        .filter(|name| !known.contains(name) && !name.ends_with("num_batches_tracked"))
        .collect();
    others.sort_unstable();
    if others.is_empty() {
        return Ok(());
    }
    Err(format!(
        "the file has `{}`, which the model does not know; is it of this model, and was `register` \
         called before?",
        others.join("`, `")
    ))
}

/// Copies named tensors of a file into `targets`, all of which must be there with their shapes.
pub(crate) fn read_into(targets: &[(String, Tensor)], path: &Path) -> Result<(), String> {
    let found = named_tensors(path)?;
    for (name, target) in targets {
        let source = found.get(name).ok_or_else(|| format!("the file has no `{name}`"))?;
        if source.size() != target.size() {
            let (file, here) = (source.size(), target.size());
            return Err(format!("`{name}` has shape {file:?} in the file but {here:?} here"));
        }
    }
    for (name, target) in targets {
        let mut target = target.detach();
        tch::no_grad(|| target.f_copy_(&found[name])).map_err(|error| error.to_string())?;
    }
    Ok(())
}

/// Where FNV-1a starts.
pub(crate) const FNV_START: u64 = 0xcbf2_9ce4_8422_2325;

/// FNV-1a over more bytes, 64 bits: equal on every machine and compiler.
pub(crate) fn fnv1a(hash: u64, bytes: &[u8]) -> u64 {
    bytes.iter().fold(hash, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3))
}

fn named_tensors(path: &Path) -> Result<HashMap<String, Tensor>, String> {
    if !path.is_file() {
        return Err("there is no such file".to_owned());
    }
    let extension = path.extension().and_then(|extension| extension.to_str());
    let named = match extension {
        Some("safetensors") => Tensor::read_safetensors(path),
        Some("bin" | "pt") => Tensor::loadz_multi_with_device(path, Device::Cpu),
        _ => Tensor::load_multi_with_device(path, Device::Cpu),
    };
    Ok(named.map_err(|error| error.to_string())?.into_iter().collect())
}

/// Python's DDP and DataParallel put `module.` before every name.
fn strip_wrapper_prefix(named: &mut HashMap<String, Tensor>) {
    const PREFIX: &str = "module.";
    if named.is_empty() || !named.keys().all(|name| name.starts_with(PREFIX)) {
        return;
    }
    *named =
        named.drain().map(|(name, tensor)| (name[PREFIX.len()..].to_owned(), tensor)).collect();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_write_keeps_the_old_file_and_leaves_no_other() {
        let folder = std::env::temp_dir().join(format!("tch-ddp-atomic-{}", std::process::id()));
        let path = folder.join("model.txt");
        write_atomically(&path, |to| fs::write(to, "old").map_err(|e| e.to_string())).unwrap();
        let failed = write_atomically(&path, |to| {
            fs::write(to, "half").map_err(|e| e.to_string())?;
            Err("disk full".to_owned())
        });
        assert_eq!(failed, Err("disk full".to_owned()));
        assert_eq!(fs::read_to_string(&path).unwrap(), "old");
        let files: Vec<_> = fs::read_dir(&folder).unwrap().map(|f| f.unwrap().path()).collect();
        assert_eq!(files, [path]);
        fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn the_half_written_file_of_a_killed_process_goes_with_the_next_write() {
        let folder = std::env::temp_dir().join(format!("tch-ddp-stale-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        // No process has the first number (it is above the kernel's limit); this one's parent has
        // the second and may be writing.
        let stale = folder.join(".4194305.tmp-model.txt");
        let kept = [
            folder.join(format!(".{}.tmp-model.txt", std::os::unix::process::parent_id())),
            folder.join(".4194305.tmp-other.txt"),
        ];
        for path in kept.iter().chain([&stale]) {
            fs::write(path, "half").unwrap();
        }
        let path = folder.join("model.txt");
        write_atomically(&path, |to| fs::write(to, "new").map_err(|e| e.to_string())).unwrap();
        assert!(!stale.exists() && kept.iter().all(|path| path.exists()));
        fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn the_wrapper_prefix_goes_only_when_all_have_it() {
        let tensor = || Tensor::from(1.0);
        let mut all = HashMap::from([("module.a".to_owned(), tensor())]);
        strip_wrapper_prefix(&mut all);
        assert!(all.contains_key("a"));
        let mut some =
            HashMap::from([("module.a".to_owned(), tensor()), ("b".to_owned(), tensor())]);
        strip_wrapper_prefix(&mut some);
        assert!(some.contains_key("module.a"));
    }
}
