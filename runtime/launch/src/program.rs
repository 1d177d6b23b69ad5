//! Finds the program before any rank is started, so that a wrong name is one message and not
//! one failure per rank.

use std::env;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

use rustix::fs::Access;

use crate::cli::Args;
use crate::trouble::Trouble;

/// What each rank executes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Program {
    pub path: PathBuf,
    pub name: OsString,
    pub args: Vec<OsString>,
}

/// The program of the command line; a `.py` file or a module is run by Python.
pub(crate) fn find(args: &Args) -> Result<Program, Trouble> {
    let Some((first, rest)) = args.command.split_first() else {
        return Err(Trouble::usage("no program was given"));
    };
    if args.module && args.no_python {
        return Err(Trouble::usage("--module and --no-python contradict each other: drop one"));
    }
    let script = Path::new(first).extension() == Some(OsStr::new("py")) && !args.no_python;
    if !args.module && !script {
        let path = locate(first)?;
        return Ok(Program { path, name: first.clone(), args: rest.to_vec() });
    }
    if script && !Path::new(first).is_file() {
        let script = first.to_string_lossy();
        return Err(Trouble::program(127, format!("the script {script} does not exist here")));
    }
    let python = env::var_os("PYTHON_EXEC").unwrap_or_else(|| "python3".into());
    let path = locate(&python)?;
    let mut all: Vec<OsString> = vec!["-u".into()];
    if args.module {
        all.push("-m".into());
    }
    all.extend(args.command.iter().cloned());
    Ok(Program { path, name: python, args: all })
}

/// The file behind a name: the name itself if it holds a slash, else the first on `PATH`.
fn locate(name: &OsStr) -> Result<PathBuf, Trouble> {
    let shown = name.to_string_lossy();
    if shown.contains('/') {
        let path = PathBuf::from(name);
        return match check(&path) {
            Ok(()) => Ok(path),
            Err(trouble) => Err(trouble),
        };
    }
    let folders = env::var_os("PATH").unwrap_or_else(|| "/usr/local/bin:/usr/bin:/bin".into());
    let candidates: Vec<_> = env::split_paths(&folders).map(|folder| folder.join(name)).collect();
    if let Some(path) = candidates.iter().find(|path| check(path).is_ok()) {
        return Ok(path.clone());
    }
    if let Some(trouble) =
        candidates.iter().find_map(|path| check(path).err().filter(|t| t.code == 126))
    {
        return Err(trouble);
    }
    let hint = if Path::new(name).is_file() {
        format!("there is a file of that name here: write ./{shown}")
    } else {
        "check the spelling, or give its path".to_owned()
    };
    Err(Trouble::program(127, format!("the program {shown} is not on PATH: {hint}")))
}

fn check(path: &Path) -> Result<(), Trouble> {
    let shown = path.display();
    let data = match path.metadata() {
        Ok(data) => data,
        Err(error) => {
            return Err(Trouble::program(
                127,
                format!("the program {shown} cannot be found: {error}"),
            ));
        }
    };
    if data.is_dir() {
        return Err(Trouble::program(126, format!("{shown} is a folder, not a program")));
    }
    rustix::fs::access(path, Access::EXEC_OK).map_err(|_| {
        Trouble::program(
            126,
            format!(
                "{shown} may not be executed: chmod +x {shown}, or name the \
             interpreter before it"
            ),
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;
    use std::fs;

    fn found(words: &[&str]) -> Result<Program, Trouble> {
        find(&Args::try_parse_from([&["ddp-run"], words].concat()).unwrap())
    }

    #[test]
    fn programs_are_found_on_the_path() {
        let program = found(&["sh", "-c", "true"]).unwrap();
        assert!(program.path.ends_with("sh") && program.path.is_absolute());
        assert_eq!((program.name.to_str(), program.args.len()), (Some("sh"), 2));
    }

    #[test]
    fn what_cannot_run_is_named_with_its_reason() {
        let folder = tempfile::tempdir().unwrap();
        let plain = folder.path().join("plain");
        fs::write(&plain, "x").unwrap();
        let cases = [
            ("no-such-program-here", 127, "not on PATH"),
            ("/no/such/file", 127, "cannot be found"),
            ("no-such-script.py", 127, "does not exist"),
            (folder.path().to_str().unwrap(), 126, "is a folder"),
            (plain.to_str().unwrap(), 126, "chmod +x"),
        ];
        for (name, code, words) in cases {
            let trouble = found(&[name]).unwrap_err();
            assert_eq!(trouble.code, code, "{name}");
            assert!(trouble.text.contains(words), "{trouble}");
        }
    }

    #[test]
    fn modules_run_under_python() {
        if let Ok(program) = found(&["-m", "this.module", "--x"]) {
            assert_eq!(program.args, ["-u", "-m", "this.module", "--x"]);
        }
        assert_eq!(found(&["-m", "--no-python", "x"]).unwrap_err().code, 2);
    }
}
