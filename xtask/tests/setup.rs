//! `cargo x setup` under the conditions that people meet: run as the real program, with a `PATH`,
//! a cache folder and a checkout of its own. pip is the real pip; torch is a tiny wheel.
#![cfg(unix)]

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use tempfile::TempDir;

/// A machine of its own: programs on `PATH`, the user's cache, one checkout.
struct Machine {
    folder: TempDir,
    variables: Vec<(&'static str, PathBuf)>,
}

impl Machine {
    /// With a C++ compiler and nothing else.
    fn bare() -> Machine {
        let machine = Machine { folder: TempDir::new().unwrap(), variables: Vec::new() };
        for folder in ["bin", "cache", "clone/xtask"] {
            fs::create_dir_all(machine.path(folder)).unwrap();
        }
        machine.program("c++", "exit 0");
        machine
    }

    /// With this computer's Python, which sees no installed torch and plenty of room on the disk.
    fn with_python() -> Machine {
        let machine = Machine::bare();
        machine.python("99000000000", r#"exec "$real" "$@""#);
        machine
    }

    /// A Python that is the real one, but for the free space it reports and for what it does when
    /// not called with `-c`.
    fn python(&self, free_bytes: &str, otherwise: &str) {
        let body = format!(
            "real={}\ncase \"$1 $2\" in\n\
             *disk_usage*) echo {free_bytes};;\n\
             '-c '*) exec \"$real\" -S \"$@\";;\n\
             *) {otherwise};;\nesac",
            real_python().display()
        );
        self.program("python3", &body);
    }

    fn program(&self, name: &str, body: &str) {
        let path = self.path("bin").join(name);
        fs::write(&path, format!("#!/bin/sh\n{body}\n")).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    }

    fn path(&self, relative: &str) -> PathBuf {
        self.folder.path().join(relative)
    }

    fn link(&self) -> PathBuf {
        self.path("clone/.libtorch")
    }

    fn venv(&self) -> PathBuf {
        self.path("cache/ddp-lint/torch-2.13.0/venv")
    }

    fn set(&mut self, name: &'static str, value: PathBuf) {
        self.variables.retain(|(other, _)| *other != name);
        self.variables.push((name, value));
    }

    /// pip finds these wheels and no others.
    fn index(&mut self, wheels: &Path) {
        self.set("PIP_NO_INDEX", "1".into());
        self.set("PIP_FIND_LINKS", wheels.to_path_buf());
    }

    fn start(&self) -> Child {
        let mut command = Command::new(env!("CARGO_BIN_EXE_xtask"));
        command
            .arg("setup")
            .env_clear()
            .env("PATH", self.path("bin"))
            .env("HOME", self.path("home"))
            .env("XDG_CACHE_HOME", self.path("cache"))
            .env("CARGO_MANIFEST_DIR", self.path("clone/xtask"))
            // As cargo sets it for every `cargo x`.
            .env("LIBTORCH", self.link())
            .envs(self.variables.iter().map(|(name, value)| (name, value)))
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command.spawn().unwrap()
    }

    fn setup(&self) -> Run {
        Run::from(self.start().wait_with_output().unwrap())
    }
}

struct Run {
    succeeded: bool,
    text: String,
}

impl From<Output> for Run {
    fn from(output: Output) -> Run {
        Run { succeeded: output.status.success(), text: String::from_utf8(output.stderr).unwrap() }
    }
}

impl Run {
    #[track_caller]
    fn succeeds(&self) {
        assert!(self.succeeded, "{}", self.text);
    }

    /// It fails, and what it says holds all of these words.
    #[track_caller]
    fn fails_with(&self, words: &[&str]) {
        assert!(!self.succeeded, "{}", self.text);
        for word in words {
            assert!(self.text.contains(word), "no {word:?} in: {}", self.text);
        }
    }

    #[track_caller]
    fn says(&self, words: &str) {
        assert!(self.text.contains(words), "no {words:?} in: {}", self.text);
    }
}

fn real_python() -> PathBuf {
    let program = "import sys; print(sys.executable)";
    let output = Command::new("python3").args(["-c", program]).output().expect("python3 runs");
    PathBuf::from(String::from_utf8(output.stdout).unwrap().trim())
}

/// A folder that looks like torch to a build.
fn torch_folder(folder: &Path, version: &str) {
    let headers = folder.join("include/torch/csrc/distributed/c10d");
    let api = folder.join("include/torch/csrc/api/include/torch");
    for folder in [&headers, &api, &folder.join("lib")] {
        fs::create_dir_all(folder).unwrap();
    }
    fs::write(folder.join("__init__.py"), "").unwrap();
    fs::write(folder.join("version.py"), format!("__version__ = '{version}'\n")).unwrap();
    fs::write(headers.join("reducer.hpp"), "// header\n").unwrap();
    fs::write(api.join("all.h"), "// header\n").unwrap();
    let library = if cfg!(target_os = "macos") { "libtorch_cpu.dylib" } else { "libtorch_cpu.so" };
    fs::write(folder.join("lib").join(library), "a library\n").unwrap();
}

const PACK: &str = r#"
import os, sys, zipfile
source, target, version = sys.argv[1:]
info = f"torch-{version}.dist-info/"
record = ""
with zipfile.ZipFile(f"{target}/torch-{version}-py3-none-any.whl", "w") as wheel:
    for folder, _, files in os.walk(f"{source}/torch"):
        for file in files:
            path = os.path.join(folder, file)
            name = os.path.relpath(path, source)
            wheel.write(path, name)
            record += f"{name},,{os.path.getsize(path)}\n"
    wheel.writestr(info + "METADATA", f"Metadata-Version: 2.1\nName: torch\nVersion: {version}\n")
    wheel.writestr(info + "WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
    wheel.writestr(info + "RECORD", record)
"#;

/// A folder of wheels with a torch that takes a few bytes.
fn wheels(machine: &Machine, version: &str) -> PathBuf {
    let (source, target) = (machine.path("source"), machine.path("wheels"));
    torch_folder(&source.join("torch"), &format!("{version}+cu130"));
    fs::create_dir_all(&target).unwrap();
    let mut pack = Command::new(real_python());
    let status = pack.args(["-c", PACK]).args([&source, &target]).arg(version).status().unwrap();
    assert!(status.success());
    target
}

fn fetching(run: &Run) -> bool {
    run.text.contains("fetching torch 2.13.0")
}

#[test]
fn missing_python_is_explained() {
    Machine::bare().setup().fails_with(&[
        "no Python 3 found",
        "apt-get install python3",
        "LIBTORCH",
    ]);
}

#[test]
fn python_that_torch_has_no_package_for_is_explained() {
    let machine = Machine::bare();
    machine.program("python3", "echo 3 8");
    machine.setup().fails_with(&["`python3` on PATH is Python 3.8", "3.10 to 3.14"]);
}

#[test]
fn missing_venv_module_is_explained_and_leaves_nothing_half_made() {
    let machine = Machine::bare();
    let debian = "The virtual environment was not created successfully because ensurepip is not\n\
                  available.  On Debian/Ubuntu systems, you need to install the python3-venv\n\
                  package using the following command.";
    machine
        .python("99000000000", &format!("/bin/mkdir -p \"$3/bin\"; /bin/echo '{debian}'; exit 1"));
    machine
        .setup()
        .fails_with(&["cannot make virtual environments", "apt-get install python3-venv"]);
    assert!(!machine.venv().exists());
}

#[test]
fn full_disk_is_told_before_the_download() {
    let machine = Machine::bare();
    machine.python("1200000000", r#"exec "$real" "$@""#);
    let run = machine.setup();
    run.fails_with(&["7.5 GB", "4.7 GB afterwards", "has 1.2 GB free", "XDG_CACHE_HOME"]);
    assert!(!fetching(&run));
}

#[test]
fn unreachable_index_is_explained_and_the_next_try_recovers() {
    let mut machine = Machine::with_python();
    machine.set("PIP_INDEX_URL", "http://127.0.0.1:9/simple".into());
    machine.set("PIP_RETRIES", "1".into());
    let run = machine.setup();
    run.fails_with(&["cannot be reached", "https_proxy", "pip.log"]);
    assert!(fetching(&run));
    assert!(!machine.link().exists());

    let wheels = wheels(&machine, "2.13.0");
    machine.index(&wheels);
    machine.setup().succeeds();
    assert!(machine.link().join("version.py").is_file());
}

#[test]
fn index_without_the_version_is_explained() {
    let mut machine = Machine::with_python();
    let wheels = wheels(&machine, "2.12.0");
    machine.index(&wheels);
    machine.setup().fails_with(&["there is no torch 2.13.0 for this Python and machine"]);
}

#[test]
fn size_is_said_first_and_a_second_clone_downloads_nothing() {
    let mut machine = Machine::with_python();
    let wheels = wheels(&machine, "2.13.0");
    machine.index(&wheels);
    let run = machine.setup();
    run.succeeds();
    run.says("4.7 GB");
    run.says("libtorch 2.13.0+cu130 (in this user's cache)");
    let first = fs::canonicalize(machine.link()).unwrap();
    assert!(first.starts_with(fs::canonicalize(machine.venv()).unwrap()));
    assert!(!machine.path("cache/ddp-lint/torch-2.13.0/wheels").exists());

    let again = machine.setup();
    again.succeeds();
    again.says("set up before");
    assert!(!fetching(&again));

    // A second clone: the same cache, no link yet; the index is gone.
    fs::remove_file(machine.link()).unwrap();
    fs::remove_dir_all(wheels).unwrap();
    let second = machine.setup();
    second.succeeds();
    assert!(!fetching(&second));
    assert_eq!(fs::canonicalize(machine.link()).unwrap(), first);
}

#[test]
fn half_finished_environments_are_made_anew() {
    let mut machine = Machine::with_python();
    let wheels = wheels(&machine, "2.13.0");
    machine.index(&wheels);
    fs::create_dir_all(machine.venv().join("bin")).unwrap();
    let run = machine.setup();
    run.succeeds();
    run.says("is broken (it has no site-packages): making it anew");

    let torch = fs::canonicalize(machine.link()).unwrap();
    let header = torch.join("include/torch/csrc/distributed/c10d/reducer.hpp");
    fs::write(&header, "cut").unwrap();
    let run = machine.setup();
    run.succeeds();
    run.says("`torch/include/torch/csrc/distributed/c10d/reducer.hpp` is missing or cut short");
    assert_eq!(fs::read_to_string(&header).unwrap(), "// header\n");

    fs::remove_file(torch.join("../torch-2.13.0.dist-info/RECORD")).unwrap();
    let run = machine.setup();
    run.succeeds();
    run.says("installation was not finished");

    fs::remove_file(machine.venv().join("bin/python")).unwrap();
    let run = machine.setup();
    run.succeeds();
    run.says("its Python does not run");
}

#[test]
fn two_setups_at_once_fetch_once() {
    let mut machine = Machine::with_python();
    let wheels = wheels(&machine, "2.13.0");
    machine.index(&wheels);
    let children = [machine.start(), machine.start()];
    let runs = children.map(|child| Run::from(child.wait_with_output().unwrap()));
    for run in &runs {
        run.succeeds();
    }
    assert_eq!(
        runs.iter().filter(|run| fetching(run)).count(),
        1,
        "{}\n{}",
        runs[0].text,
        runs[1].text
    );
    assert_eq!(runs.iter().filter(|run| run.text.contains("waiting for it")).count(), 1);
}

#[test]
fn python_with_the_pinned_torch_is_used_and_another_version_is_not() {
    let mut machine = Machine::with_python();
    let site = machine.path("site");
    torch_folder(&site.join("torch"), "2.13.0+cpu");
    machine.set("PYTHONPATH", site.clone());
    let run = machine.setup();
    run.succeeds();
    run.says("libtorch 2.13.0+cpu (from the Python on PATH)");
    assert_eq!(
        fs::canonicalize(machine.link()).unwrap(),
        fs::canonicalize(site.join("torch")).unwrap()
    );
    assert!(!machine.venv().exists());

    fs::write(site.join("torch/version.py"), "__version__ = '2.7.1'\n").unwrap();
    let wheels = wheels(&machine, "2.13.0");
    machine.index(&wheels);
    let run = machine.setup();
    run.succeeds();
    run.says("in this user's cache");
}

#[test]
fn libtorch_variable_is_obeyed_or_refused_with_the_reason() {
    let mut machine = Machine::bare();
    let own = machine.path("own");
    machine.set("LIBTORCH", own.clone());
    machine.setup().fails_with(&[
        "LIBTORCH is set to",
        "there is no such folder",
        "unset LIBTORCH",
    ]);

    fs::create_dir_all(&own).unwrap();
    machine.setup().fails_with(&["it holds no libtorch"]);

    torch_folder(&own, "2.7.1");
    machine.setup().fails_with(&["it holds torch 2.7.1, and this project needs 2.13.0"]);

    torch_folder(&own, "2.13.0");
    fs::remove_dir_all(own.join("lib")).unwrap();
    machine.setup().fails_with(&["it lacks `lib/libtorch_cpu."]);

    torch_folder(&own, "2.13.0");
    let run = machine.setup();
    run.succeeds();
    run.says("(from LIBTORCH)");
    assert_eq!(fs::canonicalize(machine.link()).unwrap(), fs::canonicalize(&own).unwrap());
}

#[test]
fn dead_links_are_replaced_and_folders_are_left_alone() {
    let mut machine = Machine::bare();
    let own = machine.path("own");
    torch_folder(&own, "2.13.1");
    machine.set("LIBTORCH", own);
    symlink(machine.path("gone"), machine.link()).unwrap();
    machine.setup().succeeds();
    assert!(machine.link().join("version.py").is_file());

    fs::remove_file(machine.link()).unwrap();
    fs::create_dir(machine.link()).unwrap();
    fs::write(machine.link().join("mine"), "").unwrap();
    machine.setup().fails_with(&["is in the way", "move it away"]);
    assert!(machine.link().join("mine").exists());
}

#[test]
fn missing_compiler_is_explained() {
    let mut machine = Machine::bare();
    let own = machine.path("own");
    torch_folder(&own, "2.13.0");
    machine.set("LIBTORCH", own);
    fs::remove_file(machine.path("bin/c++")).unwrap();
    machine.setup().fails_with(&["no C++ compiler found", "apt-get install g++"]);
}
