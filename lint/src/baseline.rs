//! Findings that are known already, recognised again when lines have moved.
//!
//! No I/O: texts in, texts out.

use std::path::Path;

use rustc_hash::{FxHashMap, FxHashSet};
use serde::{Deserialize, Serialize};

use crate::lines::Lines;
use crate::render::{Item, relative_path};

const VERSION: u32 = 1;

#[derive(Serialize, Deserialize, Debug)]
struct File {
    version: u32,
    findings: Vec<Entry>,
}

#[derive(Serialize, Deserialize, Debug)]
struct Entry {
    path: String,
    rule: String,
    fingerprint: String,
}

/// The known findings.
#[derive(Debug, Default)]
pub struct Baseline {
    fingerprints: FxHashSet<String>,
}

impl Baseline {
    pub fn parse(text: &str) -> Result<Self, String> {
        let file: File = serde_json::from_str(text).map_err(|error| error.to_string())?;
        if file.version != VERSION {
            return Err(format!(
                "this is version {} of the format, known is {VERSION}; write it anew",
                file.version
            ));
        }
        Ok(Self {
            fingerprints: file.findings.into_iter().map(|entry| entry.fingerprint).collect(),
        })
    }

    /// Whether each item is known. `folder` is that of the baseline's file.
    pub fn knows(&self, items: &[Item<'_>], folder: &Path) -> Vec<bool> {
        let known = |fingerprint: &String| self.fingerprints.contains(fingerprint);
        fingerprints(items, folder).iter().map(known).collect()
    }
}

/// The text of a baseline that knows exactly these items.
pub fn write(items: &[Item<'_>], folder: &Path) -> String {
    let entries = items.iter().zip(fingerprints(items, folder)).map(|(item, fingerprint)| Entry {
        path: path(*item, folder),
        rule: item.finding.rule.to_owned(),
        fingerprint,
    });
    let file = File { version: VERSION, findings: entries.collect() };
    let json = serde_json::to_string_pretty(&file);
    json.unwrap_or_else(|error| unreachable!("a baseline is plain data: {error}")) + "\n"
}

/// What stays the same when lines are added or removed elsewhere in the file: path, rule, the
/// words of the source line, and the how-manieth such finding it is.
pub fn fingerprints(items: &[Item<'_>], folder: &Path) -> Vec<String> {
    let mut n_alike: FxHashMap<u64, u64> = FxHashMap::default();
    items
        .iter()
        .map(|item| {
            let site = item.finding.site;
            let lines = Lines::new(&item.loaded.project.file(site.file).text);
            let line = lines.line(lines.line_at(site.span.start));
            let mut hash = Fnv::default();
            hash.add(&path(*item, folder));
            hash.add(item.finding.rule);
            line.split_whitespace().for_each(|word| hash.add(word));
            let nth = n_alike.entry(hash.0).or_default();
            *nth += 1;
            hash.add(&nth.to_string());
            format!("{:016x}", hash.0)
        })
        .collect()
}

fn path(item: Item<'_>, folder: &Path) -> String {
    relative_path(&item.loaded.facts(item.finding.file()).path, folder)
}

/// FNV-1a, 64 bits: the same in every build and for ever.
struct Fnv(u64);

impl Default for Fnv {
    fn default() -> Self {
        Self(0xcbf2_9ce4_8422_2325)
    }
}

impl Fnv {
    fn add(&mut self, text: &str) {
        for byte in text.bytes().chain([0]) {
            self.0 = (self.0 ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Fnv;

    #[test]
    fn the_hash_is_fnv_1a() {
        // The published test vector of "foobar" ends here with our separator, a zero byte.
        let mut hash = Fnv::default();
        hash.add("foobar");
        let foobar: u64 = 0x8594_4171_f739_67e8;
        assert_eq!(hash.0, foobar.wrapping_mul(0x0100_0000_01b3));
    }
}
