//! The parameters in a safetensors file, read without libtorch, and how far two files are apart.
//!
//! Format: the length of a JSON text (8 bytes, little endian), the text (name → `dtype`, `shape`,
//! `data_offsets`), then the numbers.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail};
use serde_json::Value;

pub(crate) type Parameters = BTreeMap<String, Vec<f64>>;

pub(crate) fn read(path: &Path) -> Result<Parameters> {
    let bytes = fs::read(path).with_context(|| format!("cannot read `{}`", path.display()))?;
    parse(&bytes).with_context(|| format!("`{}` is no safetensors file", path.display()))
}

fn parse(bytes: &[u8]) -> Result<Parameters> {
    let (length, rest) = bytes.split_first_chunk::<8>().context("it is too short")?;
    let length = usize::try_from(u64::from_le_bytes(*length))?;
    let (header, data) = rest.split_at_checked(length).context("it is cut short")?;
    let header: BTreeMap<String, Value> = serde_json::from_slice(header)?;
    let tensors = header.into_iter().filter(|(name, _)| name != "__metadata__");
    tensors
        .map(|(name, entry)| {
            let numbers = numbers(&entry, data).with_context(|| format!("at `{name}`"))?;
            Ok((name, numbers))
        })
        .collect()
}

fn numbers(entry: &Value, data: &[u8]) -> Result<Vec<f64>> {
    let offset = |index: usize| -> Result<usize> {
        let value = entry["data_offsets"][index].as_u64().context("it has no data_offsets")?;
        Ok(usize::try_from(value)?)
    };
    let bytes = data.get(offset(0)?..offset(1)?).context("its data is cut short")?;
    match entry["dtype"].as_str() {
        Some("F32") => {
            let chunks = bytes.as_chunks::<4>().0;
            Ok(chunks.iter().map(|chunk| f64::from(f32::from_le_bytes(*chunk))).collect())
        }
        Some("F64") => {
            Ok(bytes.as_chunks::<8>().0.iter().map(|chunk| f64::from_le_bytes(*chunk)).collect())
        }
        other => bail!("its kind {other:?} is neither F32 nor F64"),
    }
}

/// The largest difference of two numbers in the same place, and the parameter it is in. A
/// difference that is not a number counts as the largest of all.
pub(crate) fn largest_difference(one: &Parameters, two: &Parameters) -> Result<(String, f64)> {
    if !one.keys().eq(two.keys()) {
        bail!("the parameters have other names: {:?} and {:?}", one.keys(), two.keys());
    }
    let mut largest = (String::new(), 0.0);
    for ((name, one), two) in one.iter().zip(two.values()) {
        if one.len() != two.len() {
            bail!("`{name}` has {} numbers in one file and {} in the other", one.len(), two.len());
        }
        for difference in one.iter().zip(two).map(|(one, two)| (one - two).abs()) {
            if difference.is_nan() {
                return Ok((name.clone(), f64::NAN));
            }
            if largest.0.is_empty() || difference > largest.1 {
                largest = (name.clone(), difference);
            }
        }
    }
    if largest.0.is_empty() {
        bail!("there are no parameters");
    }
    Ok(largest)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(header: &str, data: &[u8]) -> Vec<u8> {
        let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
        bytes.extend_from_slice(header.as_bytes());
        bytes.extend_from_slice(data);
        bytes
    }

    #[test]
    fn numbers_of_both_kinds_are_read() {
        let header = r#"{"__metadata__": {"format": "pt"},
            "b": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]},
            "w": {"dtype": "F64", "shape": [1], "data_offsets": [8, 16]}}"#;
        let mut data = [1.5_f32.to_le_bytes(), (-2.0_f32).to_le_bytes()].concat();
        data.extend_from_slice(&0.25_f64.to_le_bytes());
        let parameters = parse(&file(header, &data)).unwrap();
        assert_eq!(parameters["b"], [1.5, -2.0]);
        assert_eq!(parameters["w"], [0.25]);
    }

    #[test]
    fn broken_files_are_errors() {
        assert!(parse(&[1, 2]).is_err());
        assert!(parse(&file("{", &[])).is_err());
        let header = r#"{"w": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}"#;
        assert!(parse(&file(header, &[0; 4])).is_err());
        let header = r#"{"w": {"dtype": "I8", "shape": [2], "data_offsets": [0, 2]}}"#;
        assert!(parse(&file(header, &[0; 2])).is_err());
    }

    #[test]
    fn the_largest_difference_is_found() {
        let parameters =
            |b: [f64; 2], w: f64| Parameters::from([("b".into(), b.into()), ("w".into(), vec![w])]);
        let one = parameters([1.0, 2.0], 3.0);
        let (name, difference) = largest_difference(&one, &parameters([1.0, 2.5], 3.25)).unwrap();
        assert_eq!((name.as_str(), difference), ("b", 0.5));
        let (name, _) = largest_difference(&one, &one).unwrap();
        assert_eq!(name, "b");
        let (_, difference) = largest_difference(&one, &parameters([1.0, 2.0], f64::NAN)).unwrap();
        assert!(difference.is_nan());
        assert!(largest_difference(&one, &Parameters::from([("b".into(), vec![0.0])])).is_err());
        assert!(largest_difference(&Parameters::new(), &Parameters::new()).is_err());
    }
}
