//! The test harness: marked sources through the whole linter, and the documentation's examples.

mod programs;

use std::fmt::Write as _;
use std::sync::{Arc, LazyLock};

use super::{Block, BlockKind, FixKind, Rule};
use crate::config::Settings;
use crate::finding::{Finding, Level};
use crate::fixes;
use crate::lines::Lines;
use crate::linter::{self, Input, Source};
use crate::marks::{self, Found};
use crate::model::Language;
use crate::project::Project;
use crate::torch::TorchRange;

/// Rounds of fixing after which something does not converge.
const N_ROUNDS_MAX: usize = 10;

/// A policy that also acts, `agent.py`, and its training, `ppo.py`; the test writes `rollout.py`,
/// with the `collect` that lets the policy act.
pub(crate) const ACTOR_CRITIC: &str = "
import torch
import torch.nn as nn
class ActorCritic(nn.Module):
    def __init__(self, obs, act):
        super().__init__()
        self.pi = nn.Sequential(nn.Linear(obs, 64), nn.Tanh(), nn.Linear(64, act))
        self.v = nn.Linear(obs, 1)
    def forward(self, obs):
        return self.pi(obs), self.v(obs)
    @torch.no_grad()
    def act(self, obs):
        logits, value = self(obs)
        return torch.distributions.Categorical(logits=logits).sample(), value
";
pub(crate) const PPO: &str = r#"
import os
import gym
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from agent import ActorCritic
from rollout import collect
def update(policy, optim, batch):
    obs = torch.stack([b[0] for b in batch])
    ret = torch.tensor([b[2] for b in batch], device=obs.device)
    logits, value = policy(obs)
    loss = (value.squeeze(-1) - ret).pow(2).mean() - 0.01 * logits.softmax(-1).mean()
    optim.zero_grad(set_to_none=True)
    loss.backward()
    optim.step()
def run():
    local = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local)
    dist.init_process_group(backend="nccl", init_method="env://")
    env = gym.make("CartPole-v1")
    ac = ActorCritic(4, 2).to(local)
    ac = DistributedDataParallel(ac, device_ids=[local], output_device=local)
    optim = torch.optim.Adam(ac.parameters(), 3e-4)
    for _ in range(500):
        update(ac, optim, collect(ac, env, 128, local))
if __name__ == "__main__":
    run()
"#;

/// Lints one marked Python file, `main.py`, as `check_files` does.
#[track_caller]
pub(crate) fn check_python(source: &str) {
    check_files(&[("main.py", source)]);
}

/// Lints one marked Rust file, `main.rs`, as `check_files` does.
#[track_caller]
pub(crate) fn check_rust(source: &str) {
    check_files(&[("main.rs", source)]);
}

/// Lints several marked files of one project. Findings count of the rule in whose file the
/// test stands, and of the rules that the marks name.
#[track_caller]
pub(crate) fn check_files(files: &[(&str, &str)]) {
    let project = project(files);
    let findings = lint(&project);
    let tested = rule_of(std::panic::Location::caller().file());
    let mut counted: Vec<String> = vec![tested];
    for file in &project.files {
        let marks = marks::parse(&file.text, file.module.language);
        counted.extend(marks.into_iter().map(|mark| mark.rule));
    }
    let findings: Vec<&Finding> =
        findings.iter().filter(|f| counted.iter().any(|rule| rule == f.rule)).collect();
    if let Err(difference) = compare(&project, &findings) {
        panic!("{difference}");
    }
}

/// The rule that lies in a file: `rules/unguarded_save.rs` holds `unguarded-save`.
fn rule_of(path: &str) -> String {
    let name = path.rsplit(['/', '\\']).next().unwrap_or_default();
    name.trim_end_matches(".rs").replace('_', "-")
}

/// Holds a rule's documentation to what it promises: `bad` blocks give exactly the marked
/// findings of the rule and, advice aside, none of others; `good` and `fixed` blocks give
/// none but advice; fixing a `bad` block gives the `fixed` block behind it, and fixing that
/// changes nothing.
#[track_caller]
pub(crate) fn examples(rule: &Rule) {
    let blocks = rule.blocks();
    let mut complaints = complaints_about_blocks(rule, &blocks);
    for (index, block) in blocks.iter().enumerate() {
        let checked = match block.kind {
            BlockKind::Bad => check_bad(rule, block),
            BlockKind::Good | BlockKind::Fixed => check_good(block),
        };
        let fixed = match (block.kind, index.checked_sub(1).map(|before| &blocks[before])) {
            (BlockKind::Fixed, Some(bad)) => check_fixed(rule, bad, block),
            _ => Ok(()),
        };
        complaints.extend(checked.err());
        complaints.extend(fixed.err());
    }
    assert!(complaints.is_empty(), "{}:{}\n{}", rule.file, rule.line, complaints.join("\n"));
}

fn complaints_about_blocks(rule: &Rule, blocks: &[Block]) -> Vec<String> {
    let mut complaints = Vec::new();
    let has = |language: Language, kinds: &[BlockKind]| {
        blocks.iter().any(|block| block.language == language && kinds.contains(&block.kind))
    };
    for language in rule.languages {
        if !has(*language, &[BlockKind::Bad]) {
            complaints.push(format!("no `bad` example for {language:?}"));
        }
        if !has(*language, &[BlockKind::Good, BlockKind::Fixed]) {
            complaints.push(format!("no `good` or `fixed` example for {language:?}"));
        }
    }
    for (index, block) in blocks.iter().enumerate() {
        let follows_bad = index > 0
            && blocks[index - 1].kind == BlockKind::Bad
            && blocks[index - 1].language == block.language;
        if block.kind == BlockKind::Fixed && !follows_bad {
            complaints.push("a `fixed` example must follow its `bad` one".to_owned());
        }
    }
    let has_fixed = blocks.iter().any(|block| block.kind == BlockKind::Fixed);
    if has_fixed != (rule.fix != FixKind::No) {
        complaints.push(format!("`fix` is {:?}, has a `fixed` example: {has_fixed}", rule.fix));
    }
    complaints
}

fn check_bad(rule: &Rule, block: &Block) -> Result<(), String> {
    let project = project_of(block, false);
    let findings = lint(&project);
    let counted = |finding: &&Finding| finding.rule == rule.name || finding.level > Level::Advice;
    if !findings.iter().any(|finding| finding.rule == rule.name) {
        return Err(format!("`bad` example without a finding of the rule:\n{}", block.text));
    }
    compare(&project, &findings.iter().filter(counted).collect::<Vec<_>>())
}

fn check_good(block: &Block) -> Result<(), String> {
    let project = project_of(block, false);
    let findings = lint(&project);
    let counted = |finding: &&Finding| finding.level > Level::Advice;
    compare(&project, &findings.iter().filter(counted).collect::<Vec<_>>())
}

/// Comments, quotes and line ends survive, whatever the line ends are.
fn check_fixed(rule: &Rule, bad: &Block, fixed: &Block) -> Result<(), String> {
    for line_end in ["\n", "\r\n"] {
        let [bad, fixed] = [bad, fixed].map(|block| with_line_ends(block, line_end));
        check_fixes(rule, bad, &fixed)?;
    }
    Ok(())
}

fn with_line_ends(block: &Block, line_end: &str) -> Project {
    let project = project_of(block, true);
    let texts = project.files.iter().map(|file| file.text.replace('\n', line_end));
    let texts: Vec<(String, String)> =
        project.files.iter().map(|file| file.path.clone()).zip(texts).collect();
    self::project(&texts.iter().map(|(path, text)| (&**path, &**text)).collect::<Vec<_>>())
}

fn check_fixes(rule: &Rule, bad: Project, fixed: &Project) -> Result<(), String> {
    let original = bad.files.first().map_or_else(String::new, |file| file.text.to_string());
    let mut project = bad;
    for _ in 0..N_ROUNDS_MAX {
        let findings = lint(&project);
        let fixes = findings.iter().filter(|finding| finding.rule == rule.name);
        let round = fixes::apply(&project, fixes.filter_map(|finding| finding.fix.as_ref()));
        if round.texts.is_empty() {
            return compare_texts(&project, fixed);
        }
        let sources = project.files.iter().map(|file| {
            let new = round.texts.iter().find(|(id, _)| *id == file.id);
            let text = new.map_or_else(|| file.text.clone(), |(_, text)| text.as_str().into());
            Source { path: file.path.clone(), text, reported: true, error: None }
        });
        project = load(sources.collect());
        if let Some(file) = project.files.iter().find(|file| !file.module.errors.is_empty()) {
            let errors = &file.module.errors;
            return Err(format!("the fix breaks the syntax: {errors:?}\n{}", file.text));
        }
    }
    Err(format!("fixes do not come to an end:\n{original}"))
}

fn compare_texts(got: &Project, expected: &Project) -> Result<(), String> {
    let mut differences = String::new();
    for (got, expected) in got.files.iter().zip(&expected.files) {
        if got.path != expected.path || got.text != expected.text {
            let _ = writeln!(
                differences,
                "the fix of `{}` gives\n{}instead of `{}`\n{}",
                got.path, got.text, expected.path, expected.text
            );
        }
    }
    if got.files.len() != expected.files.len() {
        differences.push_str("`bad` and `fixed` hold different files");
    }
    if differences.is_empty() { Ok(()) } else { Err(differences) }
}

/// Compares the findings with the marks of all files.
fn compare(project: &Project, findings: &[&Finding]) -> Result<(), String> {
    let mut differences = String::new();
    for file in &project.files {
        let lines = Lines::new(&file.text);
        let here = findings.iter().filter(|finding| finding.file() == file.id);
        let found: Vec<Found<'_>> = here
            .map(|finding| Found {
                line: lines.line_at(finding.site.span.start),
                rule: finding.rule,
                message: &finding.message,
            })
            .collect();
        let marks = marks::parse(&file.text, file.module.language);
        if let Err(difference) = marks::compare(&file.text, &marks, &found) {
            let _ = writeln!(differences, "{}: {difference}", file.path);
        }
    }
    if differences.is_empty() { Ok(()) } else { Err(differences) }
}

pub(crate) fn project(files: &[(&str, &str)]) -> Project {
    let sources = files.iter().map(|(path, text)| Source {
        path: (*path).to_owned(),
        text: Arc::from(*text),
        reported: true,
        error: None,
    });
    load(sources.collect())
}

/// A line `# torch: 1.13` says which release the project runs on; without one, the newest.
#[track_caller]
fn load(sources: Vec<Source>) -> Project {
    let stated = sources.iter().find_map(|source| {
        let mut lines = source.text.lines();
        lines.find_map(|line| line.strip_prefix("# torch: ")?.parse().ok())
    });
    let torch = stated.map_or_else(TorchRange::default, TorchRange::exactly);
    let (project, crashes) = linter::load(Input { sources, torch, ..Input::default() });
    assert!(crashes.is_empty(), "{crashes:?}");
    project
}

#[track_caller]
fn lint(project: &Project) -> Vec<Finding> {
    let settings: &'static Settings = &SETTINGS;
    let outcome = linter::lint(project, &|_| settings);
    assert!(outcome.crashes.is_empty(), "{:?}", outcome.crashes);
    outcome.findings
}

static SETTINGS: LazyLock<Settings> = LazyLock::new(Settings::default);

/// The files of an example: one, or several behind lines `# file: a.py`, `// file: a.rs`.
fn project_of(block: &Block, stripped: bool) -> Project {
    let (sign, path) = match block.language {
        Language::Python => ("# file: ", "main.py"),
        Language::Rust => ("// file: ", "main.rs"),
    };
    let mut files: Vec<(&str, String)> = Vec::new();
    for line in block.text.lines() {
        if let Some(path) = line.strip_prefix(sign) {
            files.push((path.trim(), String::new()));
            continue;
        }
        if files.is_empty() {
            files.push((path, String::new()));
        }
        let text = &mut files.last_mut().expect("just pushed").1;
        text.push_str(line);
        text.push('\n');
    }
    if stripped {
        for (_, text) in &mut files {
            *text = marks::strip(text, block.language);
        }
    }
    project(&files.iter().map(|(path, text)| (*path, text.as_str())).collect::<Vec<_>>())
}
