//! `cargo ddp-run`: builds one program of a package with cargo and hands it to the launcher.

use std::ffi::OsString;
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

use clap::{Args as _, CommandFactory, FromArgMatches, Parser};
use serde_json::Value;

use crate::cli::{Args, RankEnv};
use crate::trouble::Trouble;

/// Where a program looks for shared libraries beside the usual folders.
const LIBRARY_PATH: &str = "LD_LIBRARY_PATH";

/// Why there is nothing to launch.
pub(crate) enum Stop {
    Usage(clap::Error),
    Trouble(Trouble),
}

/// What cargo is to build; the launcher's own flags stand beside these.
#[derive(Parser, Debug)]
struct Build {
    /// Package to build
    #[arg(short, long, value_name = "NAME")]
    package: Option<String>,
    /// Program of the package, if it has several
    #[arg(long, value_name = "NAME")]
    bin: Option<String>,
    /// Example of the package
    #[arg(long, value_name = "NAME", conflicts_with = "bin")]
    example: Option<String>,
    /// Optimised
    #[arg(long)]
    release: bool,
    /// Profile to build with
    #[arg(long, value_name = "NAME", conflicts_with = "release")]
    profile: Option<String>,
    /// Features to build with
    #[arg(short = 'F', long, value_name = "FEATURES")]
    features: Vec<String>,
    /// Path of a Cargo.toml
    #[arg(long, value_name = "PATH")]
    manifest_path: Option<OsString>,
}

/// Builds, and returns the launcher's arguments with the program in place.
pub(crate) fn build(mut args: Vec<OsString>) -> Result<Args, Stop> {
    // Cargo starts `cargo-ddp-run ddp-run …`.
    if args.get(1).is_some_and(|arg| arg == "ddp-run") {
        args.remove(1);
    }
    let (build, mut launch) = parse(args).map_err(Stop::Usage)?;
    let (program, folders) = compile(&build).map_err(Stop::Trouble)?;
    launch.command.insert(0, program);
    if std::env::var_os(LIBRARY_PATH).is_none() && !folders.is_empty() {
        // First, so that a variable of the user's own wins.
        let found = RankEnv { key: LIBRARY_PATH.into(), pattern: folders.join(":") };
        launch.rank_env.insert(0, found);
    }
    Ok(launch)
}

/// One parser for both sets of flags; what is left goes to the program.
fn parse(args: Vec<OsString>) -> Result<(Build, Args), clap::Error> {
    let command = Build::augment_args(Args::command())
        .name("cargo ddp-run")
        .bin_name("cargo ddp-run")
        .about("Build a program of a package, then start it with ddp-run")
        .after_help(
            "Example:\n  cargo ddp-run --release --bin train --nproc-per-node 4 -- --epochs 3",
        )
        .mut_arg("command", |arg| {
            arg.required(false).value_name("ARGUMENTS").help("Arguments of the program, after --")
        });
    let matches = command.try_get_matches_from(args)?;
    Ok((Build::from_arg_matches(&matches)?, Args::from_arg_matches(&matches)?))
}

/// Builds the program; its path, and the folders that it was linked from (libtorch's, say), where
/// it will not look by itself.
fn compile(build: &Build) -> Result<(OsString, Vec<String>), Trouble> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(&cargo);
    command.arg("build").arg("--message-format=json-render-diagnostics");
    let mut pair = |key: &str, value: &Option<String>| {
        if let Some(value) = value {
            command.args([key, value]);
        }
    };
    pair("--package", &build.package);
    pair("--bin", &build.bin);
    pair("--example", &build.example);
    pair("--profile", &build.profile);
    if build.release {
        command.arg("--release");
    }
    for features in &build.features {
        command.args(["--features", features]);
    }
    if let Some(path) = &build.manifest_path {
        command.arg("--manifest-path").arg(path);
    }
    let no_cargo = |error| Trouble::work(format!("cannot start {}: {error}", cargo.display()));
    let mut child = command.stdout(Stdio::piped()).spawn().map_err(no_cargo)?;
    let messages = child.stdout.take().map(BufReader::new);
    let lines = messages.into_iter().flat_map(BufRead::lines).map_while(Result::ok);
    let (mut programs, mut folders) = (Vec::new(), Vec::new());
    for message in lines.filter_map(|line| serde_json::from_str::<Value>(&line).ok()) {
        programs.extend(executable(&message));
        folders.extend(linked_folders(&message));
    }
    folders.sort_unstable();
    folders.dedup();
    let status = child.wait().map_err(no_cargo)?;
    if !status.success() {
        return Err(Trouble { code: 101, text: "the program does not build; see above".into() });
    }
    Ok((choose(&programs)?, folders))
}

/// Name and path of an executable that cargo reports.
fn executable(message: &Value) -> Option<(String, String)> {
    let path = message.get("executable")?.as_str()?;
    let name = message.get("target")?.get("name")?.as_str()?;
    Some((name.to_owned(), path.to_owned()))
}

/// Folders that a build script has told the linker: `native=/opt/libtorch/lib`, or without a kind.
fn linked_folders(message: &Value) -> Vec<String> {
    let paths = message.get("linked_paths").and_then(Value::as_array);
    let folder = |path: &Value| {
        let path = path.as_str()?;
        let (kind, folder) = path.split_once('=').unwrap_or(("all", path));
        matches!(kind, "all" | "native" | "dependency").then(|| folder.to_owned())
    };
    paths.into_iter().flatten().filter_map(folder).collect()
}

fn choose(programs: &[(String, String)]) -> Result<OsString, Trouble> {
    match programs {
        [(_, path)] => Ok(path.into()),
        [] => Err(Trouble::usage(
            "the package has no program: name a package with one (--package), or an example \
             (--example)",
        )),
        several => {
            let names: Vec<_> = several.iter().map(|(name, _)| name.as_str()).collect();
            Err(Trouble::usage(format!(
                "there are several programs: choose one with --bin ({})",
                names.join(", ")
            )))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_of_cargo_and_launcher_stand_side_by_side() {
        let words = "cargo-ddp-run --release --nproc-per-node 3 --bin train -F nccl -- --epochs 3";
        let words = words.split(' ').map(OsString::from).collect();
        let (build, launch) = parse(words).unwrap();
        assert!(build.release);
        assert_eq!(build.bin.as_deref(), Some("train"));
        assert_eq!(launch.nproc_per_node, Some(crate::cli::Processes::Count(3)));
        assert_eq!(launch.command, ["--epochs", "3"]);
    }

    #[test]
    fn one_program_is_chosen_and_several_are_named() {
        let pair = |name: &str| (name.to_owned(), format!("/t/{name}"));
        assert_eq!(choose(&[pair("a")]), Ok("/t/a".into()));
        let several = choose(&[pair("a"), pair("b")]).unwrap_err();
        assert!(several.text.contains("--bin (a, b)"), "{several}");
        assert_eq!(choose(&[]).unwrap_err().code, 2);
    }
}
