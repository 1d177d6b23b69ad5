//! What a variable store holds, in the one order that all ranks share: sorted by name, each tensor
//! once. `VarStore::variables()` is a hash map whose order differs between processes, so nothing
//! else in this crate iterates it.

use std::collections::{BTreeMap, HashMap};
use std::fmt::Write as _;

use tch::{Device, Kind, Tensor, nn};

use crate::checkpoint;
use crate::error::{Error, Result};
use crate::ffi;
use crate::group::ProcessGroup;

/// One tensor of the store.
#[derive(Debug)]
pub(crate) struct Variable {
    pub(crate) name: String,
    /// Further names of the same tensor.
    pub(crate) aliases: Vec<String>,
    pub(crate) tensor: Tensor,
    pub(crate) role: Role,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    /// Gets a gradient, which is reduced.
    Parameter,
    /// Registered as trainable, but frozen.
    Frozen,
    /// Registered as not trainable.
    Buffer,
}

/// The store's tensors, sorted by name; tied tensors once, under their first name.
pub(crate) fn sorted(vs: &nn::VarStore) -> Vec<Variable> {
    let trainable: Vec<usize> = vs.trainable_variables().iter().map(ffi::tensor_identity).collect();
    let by_name: BTreeMap<String, Tensor> = vs.variables().into_iter().collect();
    let mut places: HashMap<usize, usize> = HashMap::new();
    let mut variables: Vec<Variable> = Vec::new();
    for (name, tensor) in by_name {
        let identity = ffi::tensor_identity(&tensor);
        if let Some(place) = places.get(&identity) {
            variables[*place].aliases.push(name);
            continue;
        }
        places.insert(identity, variables.len());
        let role = match (trainable.contains(&identity), tensor.requires_grad()) {
            (true, true) => Role::Parameter,
            (true, false) => Role::Frozen,
            (false, _) => Role::Buffer,
        };
        variables.push(Variable { name, aliases: Vec::new(), tensor, role });
    }
    variables
}

/// Checks that all ranks hold the same variables and use the same options.
///
/// # Errors
/// The same text on every rank, naming the first differences from rank 0.
pub(crate) fn agree(
    group: &ProcessGroup,
    variables: &[Variable],
    options: &[(&str, String)],
) -> Result<()> {
    let manifest = manifest(variables, options);
    let hash = checkpoint::fnv1a(checkpoint::FNV_START, manifest.as_bytes());
    // Two numbers settle the usual case; the manifests travel only when they differ.
    let hashes = group.all_gather(&Tensor::from_slice(&[hash as i64]))?;
    if hashes.iter().all(|other| other.int64_value(&[0]) as u64 == hash) {
        return Ok(());
    }
    let manifests: Vec<String> = group
        .all_gather_bytes(manifest.as_bytes())?
        .iter()
        .map(|bytes| String::from_utf8_lossy(bytes).into_owned())
        .collect();
    let differences: Vec<String> = manifests
        .iter()
        .enumerate()
        .skip(1)
        .filter_map(|(rank, other)| difference(&manifests[0], rank, other))
        .collect();
    Err(Error::Disagreement(format!(
        "{}; build the same model with the same options on every rank, independent of rank, \
         random state and hash order",
        differences.join("; ")
    )))
}

/// One number per tensor that changes with every bit of it and with their order; Int64, on the
/// CPU. Integers wrap around, so that the result does not depend on threads.
pub(crate) fn checksums(tensors: &[Tensor]) -> Result<Tensor> {
    let sums = tensors.iter().map(|tensor| -> Result<Tensor> {
        let flat = tensor.detach().contiguous().view(-1);
        let bits = match flat.kind() {
            Kind::Double | Kind::ComplexFloat => flat.f_view_dtype(Kind::Int64)?,
            Kind::Float => flat.f_view_dtype(Kind::Int)?.to_kind(Kind::Int64),
            Kind::Half | Kind::BFloat16 => flat.f_view_dtype(Kind::Int16)?.to_kind(Kind::Int64),
            _ => flat.to_kind(Kind::Int64),
        };
        let places = Tensor::arange(bits.numel() as i64, (Kind::Int64, bits.device()));
        Ok((bits * (places.remainder(65_521) + 1)).sum(Kind::Int64))
    });
    let sums = sums.collect::<Result<Vec<_>>>()?;
    Ok(Tensor::stack(&sums, 0).to_device(Device::Cpu))
}

/// One line per variable and option: `kind name<TAB>description`.
fn manifest(variables: &[Variable], options: &[(&str, String)]) -> String {
    let mut text = String::new();
    for variable in variables {
        let Variable { name, aliases, tensor, role } = variable;
        let role = match role {
            Role::Parameter => "parameter",
            Role::Frozen => "frozen parameter",
            Role::Buffer => "buffer",
        };
        let _ = write!(text, "{name}\t{role} {:?} {:?}", tensor.size(), tensor.kind());
        if !tensor.is_contiguous() {
            let _ = write!(text, " strides {:?}", tensor.stride());
        }
        if !aliases.is_empty() {
            let _ = write!(text, " tied to {}", aliases.join(", "));
        }
        text.push('\n');
    }
    for (name, value) in options {
        let _ = writeln!(text, "option {name}\t{value}");
    }
    text
}

/// The first difference of a rank's manifest from that of rank 0, and how many there are.
fn difference(main: &str, rank: usize, other: &str) -> Option<String> {
    let table = |text: &str| -> BTreeMap<String, String> {
        let lines = text.lines().filter_map(|line| line.split_once('\t'));
        lines.map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
    };
    let (main, other) = (table(main), table(other));
    let mut found = Vec::new();
    for (name, value) in &main {
        match other.get(name) {
            None => found.push(format!("`{name}` ({value}) is on rank 0 but not on rank {rank}")),
            Some(theirs) if theirs != value => {
                found.push(format!("`{name}` is {value} on rank 0 but {theirs} on rank {rank}"));
            }
            Some(_) => {}
        }
    }
    for (name, value) in other.iter().filter(|(name, _)| !main.contains_key(*name)) {
        found.push(format!("`{name}` ({value}) is on rank {rank} but not on rank 0"));
    }
    let shown = found.iter().take(3).cloned().collect::<Vec<_>>().join(", ");
    match found.len() {
        0 => None,
        1..=3 => Some(shown),
        n => Some(format!("{shown}, and {} more differences", n - 3)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sorted_by_name_with_roles_and_tied_tensors_once() {
        let mut vs = nn::VarStore::new(Device::Cpu);
        let root = vs.root();
        let b = root.zeros("b", &[2]);
        let _ = root.zeros_no_train("running", &[1]);
        let _ = root.zeros("a", &[1]);
        vs.variables_.lock().unwrap().named_variables.insert("tied".to_owned(), b.shallow_clone());
        let variables = sorted(&vs);
        let names: Vec<_> = variables.iter().map(|v| (v.name.as_str(), v.role)).collect();
        let expected = [("a", Role::Parameter), ("b", Role::Parameter), ("running", Role::Buffer)];
        assert_eq!(names, expected);
        assert_eq!(variables[1].aliases, ["tied"]);
        vs.freeze();
        assert_eq!(sorted(&vs)[0].role, Role::Frozen);
    }

    #[test]
    fn differences_name_the_variable_and_the_rank() {
        let of = |shape: i64, name: &str| {
            let tensor = Tensor::zeros([shape], (Kind::Float, Device::Cpu));
            let (name, aliases) = (name.to_owned(), Vec::new());
            manifest(&[Variable { name, aliases, tensor, role: Role::Buffer }], &[])
        };
        let text = difference(&of(1, "x"), 2, &of(2, "x")).unwrap();
        assert_eq!(text, "`x` is buffer [1] Float on rank 0 but buffer [2] Float on rank 2");
        let text = difference(&of(1, "x"), 1, &of(1, "y")).unwrap();
        assert!(text.contains("`x` (buffer [1] Float) is on rank 0 but not on rank 1"), "{text}");
        assert!(text.contains("`y` (buffer [1] Float) is on rank 1 but not on rank 0"), "{text}");
        assert_eq!(difference(&of(1, "x"), 1, &of(1, "x")), None);
    }
}
