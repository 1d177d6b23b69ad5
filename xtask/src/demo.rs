//! `cargo x demo`: the whole product at work. Lints the fixture programs, trains a model with one
//! process and with two ranks, and proves that both give the same parameters.

mod parameters;
mod plot;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context, Result, bail};

use crate::cargo::{build_release, relay, release_linter, release_program, show};
use crate::setup;
use crate::workspace::Workspace;
use plot::{Labels, Series, plot};

/// Largest difference between parameters that rounding in float32 explains.
const DIFFERENCE_MAX: f64 = 1e-5;
const ACCURACY_MIN: f64 = 0.95;
/// Where the demo writes, relative to the checkout.
const OUT: &str = "out/demo";
const CORRECTED: [&str; 3] = [
    "fixtures/python/imagenet_after",
    "fixtures/python/density_after",
    "fixtures/rust/src/bin/digits_after.rs",
];
/// One process takes whole global batches, each of two ranks half of one.
const GLOBAL_BATCH: usize = 64;

/// Exit status 0 only when the two trainings agree and the model reads digits.
pub(crate) fn run(workspace: &Workspace) -> Result<ExitCode> {
    setup::run(workspace)?;
    heading("building the linter, the launcher and the example");
    release_linter(workspace)?;
    build_release(workspace, &["--package", "tch-ddp", "--example", "digits"])?;

    heading("what the linter says about programs in the middle of their migration");
    lint(workspace, &["fixtures/python", "fixtures/rust"], 1)?;
    heading("and about their corrected twins");
    lint(workspace, &CORRECTED, 0)?;

    let out = workspace.root().join(OUT);
    if out.exists() {
        fs::remove_dir_all(&out).with_context(|| format!("cannot delete `{}`", out.display()))?;
    }
    let digits = shown_path(workspace, &release_program(workspace, "examples/digits"));
    heading("training on handwritten digits: one process");
    let alone = train(workspace, Command::new(&digits), GLOBAL_BATCH, "one-process")?;

    heading("training on handwritten digits: two ranks");
    let mut launcher = Command::new(shown_path(workspace, &release_program(workspace, "ddp-run")));
    launcher.args(["--standalone", "--nproc-per-node", "2", "--"]).arg(&digits);
    let ranks = train(workspace, launcher, GLOBAL_BATCH / 2, "two-ranks")?;

    heading("the two side by side");
    compare(workspace, &alone, &ranks)
}

/// A path as short as it can be, for a command that runs in the root of the checkout.
fn shown_path(workspace: &Workspace, path: &Path) -> PathBuf {
    path.strip_prefix(workspace.root()).map_or_else(|_| path.to_owned(), Path::to_owned)
}

fn heading(text: &str) {
    println!("\n== {text}");
}

/// Shows the findings as a user sees them; 1 is the exit status with findings, 0 without.
fn lint(workspace: &Workspace, paths: &[&str], expected: i32) -> Result<()> {
    let mut lint = Command::new(release_program(workspace, "ddp-lint"));
    lint.arg("check").args(paths).current_dir(workspace.root());
    println!("$ {}\n", show(&lint));
    let status = lint.status().context("cannot start ddp-lint")?;
    if status.code() != Some(expected) {
        bail!("`{}` ended with {status}, not with {expected}", show(&lint));
    }
    Ok(())
}

/// What a training left behind.
struct Training {
    /// Relative to the checkout.
    folder: PathBuf,
    accuracy: f64,
    samples_per_second: f64,
    /// Mean loss of each step.
    losses: Vec<f64>,
}

/// Runs the example, which shows its own progress, and reads its last line and its files.
fn train(
    workspace: &Workspace,
    mut command: Command,
    batch_size: usize,
    name: &str,
) -> Result<Training> {
    let folder = Path::new(OUT).join(name);
    command.args(["--batch-size", &batch_size.to_string(), "--out"]).arg(&folder);
    command.current_dir(workspace.root());
    println!("$ {}", show(&command));
    let mut text = String::new();
    let status = relay(&mut command, |line| {
        text.push_str(line);
        text.push('\n');
    })?;
    if !status.success() {
        bail!("`{}` failed ({status})", show(&command));
    }
    let figure = |name| figure(&text, name);
    Ok(Training {
        accuracy: figure("accuracy")?,
        samples_per_second: figure("samples_per_second")?,
        losses: losses(&workspace.root().join(&folder).join("loss.csv"))?,
        folder,
    })
}

/// The number behind `name=` in the last line that has one.
fn figure(output: &str, name: &str) -> Result<f64> {
    let key = format!("{name}=");
    let word = output.split_whitespace().rev().find_map(|word| word.strip_prefix(&key));
    let word = word.with_context(|| format!("the training printed no `{key}…`"))?;
    word.parse().with_context(|| format!("`{key}{word}` is no number"))
}

/// The last column of `step,epoch,loss`.
fn losses(path: &Path) -> Result<Vec<f64>> {
    let text =
        fs::read_to_string(path).with_context(|| format!("cannot read `{}`", path.display()))?;
    let losses = text.lines().skip(1).map(|line| {
        let loss = line.rsplit(',').next().unwrap_or_default();
        loss.parse().with_context(|| format!("`{}`: no loss in `{line}`", path.display()))
    });
    losses.collect()
}

fn compare(workspace: &Workspace, alone: &Training, ranks: &Training) -> Result<ExitCode> {
    let model = |training: &Training| {
        parameters::read(&workspace.root().join(&training.folder).join("model.safetensors"))
    };
    let (name, difference) = parameters::largest_difference(&model(alone)?, &model(ranks)?)?;
    let svg = Path::new(OUT).join("loss.svg");
    fs::write(workspace.root().join(&svg), loss_plot(alone, ranks))
        .with_context(|| format!("cannot write `{}`", svg.display()))?;

    let last = |training: &Training| training.losses.last().copied().unwrap_or(f64::NAN);
    let row = |label: &str, one: String, two: String| println!("{label:<28}{one:>12}{two:>12}");
    row("", "one process".into(), "two ranks".into());
    let percent = |accuracy: f64| format!("{:.1} %", 100.0 * accuracy);
    row("accuracy on held-out digits", percent(alone.accuracy), percent(ranks.accuracy));
    row("loss of the last step", format!("{:.5}", last(alone)), format!("{:.5}", last(ranks)));
    let whole = |training: &Training| format!("{:.0}", training.samples_per_second);
    row("samples per second", whole(alone), whole(ranks));
    println!("max |Δparam| = {difference:.2e} (in `{name}`; at most {DIFFERENCE_MAX:.0e})\n");

    println!("loss, one process and two ranks on one plot: {}", svg.display());
    println!(
        "TensorBoard event files: {} and {} (tensorboard --logdir {OUT})",
        alone.folder.display(),
        ranks.folder.display()
    );
    Ok(verdict(difference, alone.accuracy.min(ranks.accuracy)))
}

fn verdict(difference: f64, accuracy: f64) -> ExitCode {
    let mut code = ExitCode::SUCCESS;
    if difference.is_nan() || difference > DIFFERENCE_MAX {
        eprintln!("error: the parameters differ by {difference:.2e}, more than rounding explains");
        code = ExitCode::FAILURE;
    }
    if accuracy.is_nan() || accuracy < ACCURACY_MIN {
        eprintln!("error: the accuracy is {accuracy:.3}, less than {ACCURACY_MIN}");
        code = ExitCode::FAILURE;
    }
    code
}

fn loss_plot(alone: &Training, ranks: &Training) -> String {
    let points = |training: &Training| -> Vec<(f64, f64)> {
        training.losses.iter().enumerate().map(|(step, loss)| (step as f64, *loss)).collect()
    };
    let (one, two) = (points(alone), points(ranks));
    let labels = Labels {
        title: "Handwritten digits: loss over the same global batches",
        x: "step",
        y: "cross entropy",
    };
    let series = [
        Series { name: "one process", colour: "#9ecae1", width: 5.0, dashed: false, points: &one },
        Series { name: "two ranks", colour: "#b2182b", width: 1.5, dashed: true, points: &two },
    ];
    plot(&labels, &series)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_read_from_the_last_line_that_has_them() {
        let text = "epoch 1 accuracy=0.5\n[0] final accuracy=0.9750 samples_per_second=1234\n";
        assert!((figure(text, "accuracy").unwrap() - 0.975).abs() < 1e-12);
        assert!((figure(text, "samples_per_second").unwrap() - 1234.0).abs() < 1e-12);
        assert!(figure(text, "loss").is_err());
        assert!(figure("accuracy=high", "accuracy").is_err());
    }

    #[test]
    fn only_agreement_and_accuracy_together_succeed() {
        let success = format!("{:?}", ExitCode::SUCCESS);
        assert_eq!(format!("{:?}", verdict(1e-7, 0.97)), success);
        for (difference, accuracy) in [(2e-5, 0.97), (1e-7, 0.94), (f64::NAN, 0.97)] {
            assert_ne!(format!("{:?}", verdict(difference, accuracy)), success);
        }
    }
}
