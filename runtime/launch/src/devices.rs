//! How many GPUs and cores there are, without loading a driver: a launcher that touched CUDA
//! would break it in the ranks.

use std::collections::HashMap;
use std::fs;
use std::path::Path;

use crate::cli::Processes;
use crate::trouble::Trouble;

/// Number of ranks that `--nproc-per-node` means on this machine.
pub(crate) fn count(wanted: Processes, env: &HashMap<String, String>) -> Result<usize, Trouble> {
    match wanted {
        Processes::Count(count) => Ok(count),
        Processes::Cpu => Ok(cores()),
        Processes::Auto => Ok(match gpus(env, Path::new("/")) {
            0 => cores(),
            count => count,
        }),
        Processes::Gpu => match gpus(env, Path::new("/")) {
            0 => Err(Trouble::usage(
                "--nproc-per-node gpu: no GPU found (looked for CUDA_VISIBLE_DEVICES, \
                 HIP_VISIBLE_DEVICES, /dev/nvidia0 and AMD's nodes under /sys/class/kfd); give a \
                 number, or `cpu`",
            )),
            count => Ok(count),
        },
    }
}

/// Cores that this process may use.
pub(crate) fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// Visible GPUs: what the environment selects, else what the drivers show below `root`.
fn gpus(env: &HashMap<String, String>, root: &Path) -> usize {
    for key in ["CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"] {
        if let Some(list) = env.get(key) {
            // As CUDA has it: the list ends at the first entry that is no device.
            return list
                .split(',')
                .take_while(|entry| !entry.trim().is_empty() && entry.trim() != "-1")
                .count();
        }
    }
    match nvidia_devices(&root.join("dev")) {
        0 => amd_devices(&root.join("sys/class/kfd/kfd/topology/nodes")),
        count => count,
    }
}

fn nvidia_devices(dev: &Path) -> usize {
    let is_gpu = |name: &str| {
        name.strip_prefix("nvidia")
            .is_some_and(|rest| !rest.is_empty() && rest.bytes().all(|byte| byte.is_ascii_digit()))
    };
    let Ok(entries) = fs::read_dir(dev) else { return 0 };
    entries.flatten().filter(|entry| entry.file_name().to_str().is_some_and(is_gpu)).count()
}

/// Nodes of AMD's topology that have vector units; the others are processors.
fn amd_devices(nodes: &Path) -> usize {
    let Ok(entries) = fs::read_dir(nodes) else { return 0 };
    let is_gpu = |node: &fs::DirEntry| {
        let properties = fs::read_to_string(node.path().join("properties")).unwrap_or_default();
        let units = properties.lines().find_map(|line| line.strip_prefix("simd_count "));
        units.is_some_and(|units| units.trim() != "0")
    };
    entries.flatten().filter(is_gpu).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_environment_selects_gpus() {
        let gpus = |value: &str| {
            let env = HashMap::from([("CUDA_VISIBLE_DEVICES".to_owned(), value.to_owned())]);
            gpus(&env, Path::new("/"))
        };
        assert_eq!([gpus("0,2,3"), gpus(""), gpus("0,-1,2"), gpus("GPU-8932f937")], [3, 0, 1, 1]);
    }

    #[test]
    fn drivers_show_gpus() {
        let root = tempfile::tempdir().unwrap();
        let make = |path: &str, text: &str| {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        let env = HashMap::new();
        assert_eq!(gpus(&env, root.path()), 0);
        make("sys/class/kfd/kfd/topology/nodes/0/properties", "cpu_cores_count 8\nsimd_count 0\n");
        make("sys/class/kfd/kfd/topology/nodes/1/properties", "simd_count 304\n");
        assert_eq!(gpus(&env, root.path()), 1);
        for name in ["nvidia0", "nvidia11", "nvidiactl", "nvidia-uvm"] {
            make(&format!("dev/{name}"), "");
        }
        assert_eq!(gpus(&env, root.path()), 2);
    }
}
