//! `ddp-lint check`: reads, lints, and then prints, fixes, allows or remembers.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use super::args::Check;
use super::{Environment, Status, fail, fix, say, tell, terminal};
use crate::baseline::{self, Baseline};
use crate::config::Overrides;
use crate::driver::{self, ConfigChoice, Loaded, Request, Workspace, absolute};
use crate::finding::{Applicability, Finding, Level};
use crate::render::{self, Item, Look};

pub(super) fn run(check: &Check, environment: &Environment) -> Status {
    let request = match request(check, environment) {
        Ok(request) => request,
        Err(why) => return fail(&why),
    };
    if check.watch {
        return super::watch::run(check, environment, &request);
    }
    if !check.relays_cargo {
        return once(check, environment, &request);
    }
    // Cargo's messages go straight to standard output; ours wait until it is done.
    match cargo_check(&check.cargo_arguments, environment) {
        Ok(()) => once(check, environment, &request),
        Err(why) => fail(&why),
    }
}

fn cargo_check(arguments: &[String], environment: &Environment) -> Result<(), String> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let status = Command::new(&cargo)
        .args(["check", "--message-format=json", "--workspace"])
        .args(arguments)
        .current_dir(&environment.folder)
        .status();
    // What it found is in its messages; that it found something is no failure of ours.
    status
        .map(|_| ())
        .map_err(|error| format!("{} cannot be run: {error}", cargo.to_string_lossy()))
}

/// One run from reading to printing.
pub(super) fn once(check: &Check, environment: &Environment, request: &Request) -> Status {
    let workspace = driver::load(request);
    let mistakes = workspace.mistakes.iter().map(ToString::to_string);
    let mistakes: Vec<String> = mistakes.chain(workspace.missing.iter().cloned()).collect();
    if !mistakes.is_empty() {
        for mistake in mistakes {
            tell(&format!("error: {mistake}"));
        }
        return Status::Failure;
    }
    let mut run = Run { check, environment, request, is_complete: workspace.problems.is_empty() };
    for note in &workspace.notes {
        tell(&format!("note: {note}"));
    }
    for problem in &workspace.problems {
        tell(&format!("error: {problem}"));
    }
    let status = run.work(workspace);
    match status {
        // What was found is told; that something could not be looked at counts more.
        _ if !run.is_complete => Status::Failure,
        Status::Findings if check.exit_zero => Status::Clean,
        status => status,
    }
}

struct Run<'r> {
    check: &'r Check,
    environment: &'r Environment,
    request: &'r Request,
    /// Everything could be looked at so far.
    is_complete: bool,
}

/// A project with its findings.
struct Linted {
    loaded: Loaded,
    findings: Vec<Finding>,
}

impl Run<'_> {
    fn work(&mut self, workspace: Workspace) -> Status {
        let mut linted: Vec<Linted> =
            workspace.projects.into_iter().map(|loaded| self.lint(loaded)).collect();
        if let Some(path) = &self.check.baseline
            && let Err(why) = self.drop_known(&mut linted, path)
        {
            return fail(&why);
        }
        if let Some(path) = &self.check.write_baseline {
            return self.remember(&linted, path);
        }
        if self.check.add_allow {
            return self.allow(&linted);
        }
        if self.check.fix || self.check.diff {
            return self.fix(linted);
        }
        self.print(&linted, "")
    }

    fn lint(&mut self, loaded: Loaded) -> Linted {
        let outcome = loaded.lint();
        for crash in &outcome.crashes {
            self.is_complete = false;
            tell(&format!("error: {crash}"));
        }
        Linted { loaded, findings: outcome.findings }
    }

    fn drop_known(&self, linted: &mut [Linted], path: &Path) -> Result<(), String> {
        let path = absolute(path, &self.environment.folder);
        let text = std::fs::read_to_string(&path)
            .map_err(|error| format!("cannot read the baseline {}: {error}", path.display()))?;
        let baseline = Baseline::parse(&text)
            .map_err(|why| format!("{} is no baseline: {why}", path.display()))?;
        let known = baseline.knows(&items(linted), folder_of(&path));
        let mut known = known.into_iter();
        for one in linted {
            one.findings.retain(|_| !known.next().unwrap_or(false));
        }
        Ok(())
    }

    fn remember(&self, linted: &[Linted], path: &Path) -> Status {
        let path = absolute(path, &self.environment.folder);
        let items = items(linted);
        if let Err(error) = std::fs::write(&path, baseline::write(&items, folder_of(&path))) {
            return fail(&format!("cannot write {}: {error}", path.display()));
        }
        let path = render::relative_path(&path, &self.environment.folder);
        say(&format!("remembered {} in {path}\n", count(items.len(), "finding")))
    }

    fn allow(&self, linted: &[Linted]) -> Status {
        let mut n_files = 0;
        let mut n_findings = 0;
        for Linted { loaded, findings } in linted {
            let wanted: Vec<&Finding> = findings
                .iter()
                .filter(|finding| self.check.advice || finding.level > Level::Advice)
                .collect();
            let allowed = super::allow::add(loaded, &wanted);
            n_findings += allowed.n_findings;
            n_files += allowed.texts.len();
            for (file, text) in allowed.texts {
                if let Err(why) = write(loaded.facts(file), &text) {
                    return fail(&why);
                }
            }
        }
        let (findings, files) = (count(n_findings, "finding"), count(n_files, "file"));
        say(&format!("allowed {findings} in {files}\n"))
    }

    fn fix(&mut self, linted: Vec<Linted>) -> Status {
        let mut fixed = Vec::new();
        let mut n_fixed = 0;
        let mut diff = String::new();
        for Linted { loaded, findings } in linted {
            let result = fix::fix(loaded, findings, self.check.unsafe_fixes);
            for crash in &result.crashes {
                self.is_complete = false;
                tell(&format!("error: {crash}"));
            }
            n_fixed += result.n_mended;
            if self.check.diff {
                diff.push_str(&fix::diff(&result, &self.environment.folder));
            } else if self.request.overlay.is_empty()
                && let Err(why) = write_all(&result)
            {
                return fail(&why);
            }
            fixed.push(result);
        }
        if self.check.diff {
            let status = say(&diff);
            // Nothing was changed: what is there decides.
            return status.max_of(status_of(fixed.iter().flat_map(|fixed| &fixed.before)));
        }
        if !self.request.overlay.is_empty() {
            return print_fixed(&fixed, self.request);
        }
        let linted: Vec<Linted> = fixed
            .into_iter()
            .map(|fixed| Linted { loaded: fixed.loaded, findings: fixed.findings })
            .collect();
        let done = match n_fixed {
            0 => String::new(),
            n => format!("mended {}\n", count(n, "finding")),
        };
        self.print(&linted, &done)
    }

    fn print(&self, linted: &[Linted], before_summary: &str) -> Status {
        let check = self.check;
        let items = items(linted);
        let look = terminal::look(
            check.color,
            check.advice,
            check.output_file.is_some(),
            &self.environment.folder,
        );
        let mut text = if check.statistics {
            render::statistics(check.format(), &items)
        } else {
            render::render(check.format(), &items, &look)
        };
        let mut last = String::new();
        if check.format().is_for_people() {
            last = format!("{before_summary}{}", summary(linted, &items, &look));
        }
        let printed = match &check.output_file {
            None => {
                text.push_str(&last);
                say(&text)
            }
            Some(path) => {
                let path = absolute(path, &self.environment.folder);
                match std::fs::write(&path, text) {
                    Ok(()) => say(&last),
                    Err(error) => fail(&format!("cannot write {}: {error}", path.display())),
                }
            }
        };
        printed.max_of(status_of(items.iter().map(|item| item.finding)))
    }
}

/// The last line for people.
fn summary(linted: &[Linted], items: &[Item<'_>], look: &Look) -> String {
    let files = linted.iter().flat_map(|one| &one.loaded.project.files);
    let n_files = files.filter(|file| file.reported).count();
    let of_level = |level: Level| items.iter().filter(|item| item.finding.level == level).count();
    let [n_errors, n_warnings, n_advice] =
        [Level::Error, Level::Warning, Level::Advice].map(of_level);
    let mut parts = Vec::new();
    for (n, word) in [(n_errors, "error"), (n_warnings, "warning")] {
        if n > 0 {
            parts.push(count(n, word));
        }
    }
    if parts.is_empty() {
        parts.push("no errors or warnings".to_owned());
    }
    let mut summary = format!("{} in {}", parts.join(", "), count(n_files, "file"));
    if n_advice > 0 {
        let hint = if look.advice { "" } else { " (--advice lists them)" };
        let _ = write!(summary, "; {}{hint}", count(n_advice, "piece of advice"));
    }
    summary.push_str(&fixable(items, look));
    summary.push('\n');
    summary
}

/// What `--fix` could do.
fn fixable(items: &[Item<'_>], look: &Look) -> String {
    let n = |applicability: Applicability| {
        let listed = items.iter().filter(|item| look.advice || item.finding.level > Level::Advice);
        let fixes = listed.filter_map(|item| item.finding.fix.as_ref());
        fixes.filter(|fix| fix.applicability == applicability).count()
    };
    match (n(Applicability::Safe), n(Applicability::Unsafe)) {
        (0, 0) => String::new(),
        (safe, 0) => format!("; --fix mends {safe}"),
        (0, n_unsafe) => format!("; --fix --unsafe-fixes mends {n_unsafe}"),
        (safe, n_unsafe) => format!("; --fix mends {safe}, with --unsafe-fixes {n_unsafe} more"),
    }
}

impl Status {
    fn max_of(self, other: Self) -> Self {
        if other as u8 > self as u8 { other } else { self }
    }
}

fn status_of<'f>(findings: impl IntoIterator<Item = &'f Finding>) -> Status {
    let counts = findings.into_iter().any(|finding| finding.level > Level::Advice);
    if counts { Status::Findings } else { Status::Clean }
}

fn items(linted: &[Linted]) -> Vec<Item<'_>> {
    linted
        .iter()
        .flat_map(|one| one.findings.iter().map(|finding| Item { finding, loaded: &one.loaded }))
        .collect()
}

fn request(check: &Check, environment: &Environment) -> Result<Request, String> {
    let folder = &environment.folder;
    let mut overlay = BTreeMap::new();
    let paths: Vec<PathBuf> = if let Some(path) = &check.stdin_filename {
        let path = absolute(path, folder);
        overlay.insert(path.clone(), standard_input()?);
        vec![path]
    } else if check.paths.is_empty() {
        driver::default_paths(folder, environment.is_cargo)
    } else {
        check.paths.iter().map(|path| absolute(path, folder)).collect()
    };
    let config = match &check.config {
        Some(path) => ConfigChoice::File(absolute(path, folder)),
        None if check.isolated => ConfigChoice::Isolated,
        None => ConfigChoice::Closest,
    };
    let per_file_ignores = check.per_file_ignores.iter();
    let overrides = Overrides {
        select: check.select.clone(),
        ignore: check.ignore.clone(),
        extend_select: check.extend_select.clone(),
        per_file_ignores: per_file_ignores
            .map(|(pattern, selector)| (pattern.clone(), vec![*selector]))
            .collect(),
        exclude: check.exclude.clone(),
        target_torch: check.target_torch,
        folder: folder.clone(),
    };
    Ok(Request { paths, config, overrides, overlay })
}

fn standard_input() -> Result<Arc<str>, String> {
    let mut text = String::new();
    std::io::stdin()
        .read_to_string(&mut text)
        .map_err(|error| format!("standard input cannot be read: {error}"))?;
    Ok(text.into())
}

fn folder_of(path: &Path) -> &Path {
    path.parent().unwrap_or(path)
}

fn write(facts: &driver::FileFacts, text: &str) -> Result<(), String> {
    driver::write(facts, text)
        .map_err(|error| format!("cannot write {}: {error}", facts.path.display()))
}

fn write_all(fixed: &fix::Fixed) -> Result<(), String> {
    fixed.changed().try_for_each(|file| write(fixed.loaded.facts(file.id), &file.text))
}

/// Standard input mended goes to standard output, and nothing else.
fn print_fixed(fixed: &[fix::Fixed], request: &Request) -> Status {
    for fixed in fixed {
        for file in &fixed.loaded.project.files {
            if request.overlay.contains_key(&fixed.loaded.facts(file.id).path) {
                return say(&file.text).max_of(status_of(&fixed.findings));
            }
        }
    }
    Status::Clean
}

/// "1 file", "2 files".
fn count(n: usize, word: &str) -> String {
    match (n, word.split_once(' ')) {
        (1, _) => format!("1 {word}"),
        (n, Some((first, rest))) => format!("{n} {first}s {rest}"),
        (n, None) => format!("{n} {word}s"),
    }
}
