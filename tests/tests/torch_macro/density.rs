//! The density model in Python and in Rust: the same names in their state dicts, weights that move
//! both ways through safetensors, and the same outputs from them.

#[path = "../../../fixtures/rust/src/bin/density_after/model.rs"]
mod model;

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use ddp_tests::torch::models::fill;
use ddp_tests::torch::python;
use tch::{Device, Kind, Tensor, nn};

use model::Codec;

const TOLERANCE: f64 = 1e-6;

fn codec() -> Result<(Codec, nn::VarStore)> {
    let vs = nn::VarStore::new(Device::Cpu);
    let codec = Codec::new(&vs.root())?;
    Ok((codec, vs))
}

/// Pictures [3, 1, 8, 8] between 0 and 1.
fn pictures() -> Tensor {
    let steps = Tensor::arange(3 * 64, (Kind::Float, Device::Cpu));
    ((steps * 0.37).sin() * 0.5 + 0.5).view([3, 1, 8, 8])
}

fn load(path: &Path) -> Result<BTreeMap<String, Tensor>> {
    Ok(Tensor::read_safetensors(path)?.into_iter().collect())
}

fn ensure_equal(codec: &Codec, python: &BTreeMap<String, Tensor>) -> Result<()> {
    let (restored, likelihood) = tch::no_grad(|| codec.forward_t(&pictures(), false));
    for (name, ours) in [("restored", restored), ("likelihood", likelihood)] {
        let difference = f64::try_from((ours - &python[name]).abs().max())?;
        ensure!(difference <= TOLERANCE, "`{name}` differs by {difference:e}");
    }
    Ok(())
}

#[test]
fn the_lists_of_the_model_are_registered_as_the_recipe_names_them() -> Result<()> {
    let (codec, vs) = codec()?;
    let report = codec.register(&vs.root())?;
    assert_eq!(report.late().count(), 0, "the generated constructor has registered them");
    let names = vs.variables();
    for k in 0..4 {
        for letter in ["H", "a", "b"] {
            let name = format!("density.{letter}_{k}");
            assert!(names.contains_key(&name), "{name} is missing");
        }
    }
    assert_eq!(names.len(), 12 + 8);
    assert_eq!(names["density.H_1"].size(), [32, 3, 3]);
    assert_eq!(names["density.H_3"].size(), [32, 1, 3]);
    Ok(())
}

#[test]
fn names_outputs_and_weights_are_those_of_the_python_model() -> Result<()> {
    let Some(python) = python::python() else { return Ok(()) };
    let folder = tempfile::tempdir()?;
    let file = |name: &str| folder.path().join(name).with_extension("safetensors");
    let (codec, mut vs) = codec()?;
    codec.register(&vs.root())?;
    fill(&vs);
    vs.save(file("rust"))?;
    Tensor::write_safetensors(&[("pictures", pictures())], file("pictures"))?;

    let tests = Path::new(env!("CARGO_MANIFEST_DIR"));
    let output = python::command(&python)
        .arg(tests.join("tests/torch_macro/density.py"))
        .arg(tests.join("../fixtures/python/density_after"))
        .arg(folder.path())
        .env("OMP_NUM_THREADS", "1")
        .output()
        .with_context(|| format!("cannot start `{}`", python.display()))?;
    // Python loads strictly, so a name more or less ends here.
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));

    ensure_equal(&codec, &load(&file("python_with_rust_weights"))?)?;
    let theirs = load(&file("python"))?;
    let ours: BTreeMap<_, _> = vs.variables().into_iter().collect();
    ensure!(ours.keys().eq(theirs.keys()), "{:?} and {:?}", ours.keys(), theirs.keys());
    vs.load(file("python"))?;
    ensure_equal(&codec, &load(&file("python_with_own_weights"))?)
}
