//! What a store holds, as seen from one of its paths. tch gives a path no way to list names, so
//! they are read from its `Debug` text and each is confirmed by asking the path for its tensor:
//! a misread can lose a name, never invent one.

use std::collections::{HashMap, HashSet};

use tch::Tensor;
use tch::nn::{Path, VarStore};

/// Two tensors are the same variable when they share memory, shape and layout.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Identity {
    address: usize,
    size: Vec<i64>,
    stride: Vec<i64>,
}

impl Identity {
    /// `None` for what has no memory of its own to compare: undefined, empty or sparse tensors.
    pub(super) fn of(tensor: &Tensor) -> Option<Self> {
        let dense = tensor.defined() && !tensor.is_sparse() && !tensor.is_mkldnn();
        if !dense || tensor.numel() == 0 {
            return None;
        }
        let address = tensor.data_ptr() as usize;
        Some(Self { address, size: tensor.size(), stride: tensor.stride() })
    }
}

/// The variables below a path.
#[derive(Debug, Default)]
pub(super) struct Known {
    names: HashSet<String>,
    by_identity: HashMap<Identity, String>,
}

impl Known {
    pub(super) fn in_store(vs: &VarStore) -> Self {
        Self::from_variables(vs.variables())
    }

    /// Names are relative to `root`; variables outside of it are not seen.
    pub(super) fn below(root: &Path<'_>) -> Self {
        let prefix = root.path("");
        let names = map_keys(&format!("{root:?}"));
        let below = names.iter().filter_map(|name| name.strip_prefix(&prefix));
        Self::from_variables(below.filter_map(|name| Some((name.to_owned(), get(root, name)?))))
    }

    fn from_variables(variables: impl IntoIterator<Item = (String, Tensor)>) -> Self {
        let mut variables: Vec<_> = variables.into_iter().collect();
        variables.sort_by(|(a, _), (b, _)| a.cmp(b));
        let mut known = Self::default();
        for (name, tensor) in variables {
            if let Some(identity) = Identity::of(&tensor) {
                known.by_identity.entry(identity).or_insert_with(|| name.clone());
            }
            known.names.insert(name);
        }
        known
    }

    pub(super) fn name_of(&self, tensor: &Tensor) -> Option<&str> {
        self.by_identity.get(&Identity::of(tensor)?).map(String::as_str)
    }

    pub(super) fn has_name(&self, name: &str) -> bool {
        self.names.contains(name)
    }

    /// Names in their order.
    pub(super) fn names(&self) -> Vec<&str> {
        let mut names: Vec<_> = self.names.iter().map(String::as_str).collect();
        names.sort_unstable();
        names
    }
}

/// The path of `parts`, without its last one, and that last one.
pub(super) fn place<'a, 'n, S: AsRef<str>>(
    root: &Path<'a>,
    parts: &'n [S],
) -> Option<(Path<'a>, &'n str)> {
    let (last, outer) = parts.split_last()?;
    let path = outer.iter().fold(root.clone(), |path, part| path.sub(part.as_ref()));
    Some((path, last.as_ref()))
}

fn get(root: &Path<'_>, name: &str) -> Option<Tensor> {
    let parts: Vec<_> = name.split('.').collect();
    let (path, last) = place(root, &parts)?;
    path.get(last)
}

/// The string literals in a `Debug` text that are followed by a colon: the keys of its maps.
fn map_keys(text: &str) -> Vec<String> {
    let mut keys = Vec::new();
    let mut rest = text;
    while let Some(start) = rest.find('"') {
        rest = &rest[start + 1..];
        let Some(end) = closing_quote(rest) else { break };
        if rest[end + 1..].starts_with(": ") {
            keys.push(unescape(&rest[..end]));
        }
        rest = &rest[end + 1..];
    }
    keys
}

fn closing_quote(text: &str) -> Option<usize> {
    let mut escaped = false;
    text.char_indices().find_map(|(at, c)| {
        let closes = c == '"' && !escaped;
        escaped = c == '\\' && !escaped;
        closes.then_some(at)
    })
}

/// Undoes what `Debug` does to quotes, backslashes and whitespace; rarer escapes stay.
fn unescape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        if c != '\\' {
            out.push(c);
            continue;
        }
        match chars.next() {
            Some('n') => out.push('\n'),
            Some('t') => out.push('\t'),
            Some('r') => out.push('\r'),
            Some(other) => out.push(other),
            None => out.push('\\'),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use tch::{Device, Kind, nn};

    use super::*;

    #[test]
    fn all_names_of_a_store_are_seen_from_its_root() {
        let vs = VarStore::new(Device::Cpu);
        let root = vs.root();
        nn::linear(&root / "a" / 0, 2, 3, nn::LinearConfig::default());
        nn::linear(&root / "a" / 0, 2, 3, nn::LinearConfig::default());
        nn::batch_norm2d(&root / "bn \"x\" \\ é", 4, nn::BatchNormConfig::default());
        let _ = root.add("few", Tensor::from_slice(&[1i64, 2]), false);
        let _ = root.add("scalar", Tensor::from(0.5f32), true);
        let _ = root.add("big", Tensor::zeros([100], (Kind::Half, Device::Cpu)), false);
        let mut expected: Vec<String> = vs.variables().into_keys().collect();
        expected.sort();
        assert_eq!(Known::below(&root).names(), expected);
    }

    #[test]
    fn a_path_sees_its_own_part_with_relative_names() {
        let vs = VarStore::new(Device::Cpu);
        nn::linear(vs.root() / "enc" / 0, 2, 3, nn::LinearConfig::default());
        nn::linear(vs.root() / "encoder", 2, 3, nn::LinearConfig::default());
        let known = Known::below(&(vs.root() / "enc"));
        assert_eq!(known.names(), ["0.bias", "0.weight"]);
    }

    #[test]
    fn a_view_of_a_variable_is_not_the_variable() {
        let vs = VarStore::new(Device::Cpu);
        let w = vs.root().zeros("w", &[2, 3]);
        let known = Known::in_store(&vs);
        assert_eq!(known.name_of(&w), Some("w"));
        assert_eq!(known.name_of(&w.shallow_clone()), Some("w"));
        assert_eq!(known.name_of(&w.tr()), None);
        assert_eq!(known.name_of(&w.narrow(0, 0, 1)), None);
        assert_eq!(known.name_of(&Tensor::new()), None);
    }
}
