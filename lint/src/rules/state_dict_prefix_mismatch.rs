use std::sync::Arc;

use crate::analysis::checkpoints::{LoadedState, SavedState, ToldState, ToldStates};
use crate::analysis::facts::Wrapper;
use crate::analysis::{Call, Event, Given, ObjectClass, ObjectId, Term, TermKind, Value};
use crate::model::ExprKind;
use crate::prelude::*;
use crate::python::edit::Editor;
use crate::table::Role;

declare_rule! {
    /// A state has the prefix `module.` on one side, and has it not on the other.
    ///
    /// The names of a wrapper's parameters begin with `module.`. A state that is saved through
    /// the wrapper does not fit the bare model: `Unexpected key(s) in state_dict:
    /// "module.fc.weight"`, `Missing key(s) in state_dict`; and a bare one does not fit the
    /// wrapper. With `strict=False` nothing is loaded, and nothing says so. The same holds for
    /// names that were taken from the model before it was wrapped: `KeyError:
    /// 'module.fc.weight'`. A wrapper that is pickled whole brings its devices along, and needs
    /// a process group to be loaded.
    ///
    /// ```python bad
    /// import torch
    /// import torch.nn as nn
    ///
    /// model = nn.DataParallel(nn.Linear(8, 1))
    /// torch.save(model.state_dict(), "model.pt")  # ~ state-dict-prefix-mismatch
    ///
    /// bare = nn.Linear(8, 1)
    /// bare.load_state_dict(torch.load("model.pt"))
    /// ```
    /// ```python fixed
    /// import torch
    /// import torch.nn as nn
    ///
    /// model = nn.DataParallel(nn.Linear(8, 1))
    /// torch.save(model.module.state_dict(), "model.pt")
    ///
    /// bare = nn.Linear(8, 1)
    /// bare.load_state_dict(torch.load("model.pt"))
    /// ```
    ///
    /// # Known limits
    /// Both sides through the wrapper are fine. What is saved and what is loaded are brought
    /// together by the name of the file, by an optimizer that is loaded with it, or by the class
    /// of the model in another program of the project. A file that speaks of `module.` is taken
    /// to handle the prefix.
    pub static RULE = {
        name: "state-dict-prefix-mismatch",
        level: Level::Error,
        harm: Harm::Crash,
        tier: 1,
        languages: PYTHON,
        fix: FixKind::Unsafe,
        check,
    };
}

fn check(program: &Program<'_>, report: &mut Report<'_>) {
    if !program.wraps_with(Wrapper::Ddp) && !program.wraps_with(Wrapper::Dp) {
        return;
    }
    let (saved, loaded) = (program.saved_states(), program.loaded_states());
    let through = |model: Term| program.wrapper_of(model).is_some();
    // The others are run where something could fit alone.
    let asks = saved.iter().any(|s| through(s.model)) || loaded.iter().any(|l| through(l.model));
    let others = if asks { program.others() } else { Vec::new() };
    saved_through_wrapper(program, report, (&saved, &loaded), &others);
    loaded_into_wrapper(program, report, (&saved, &loaded), &others);
    loaded_in_part(program, report, (&saved, &loaded));
    picked_in_part(program, report);
    pickled_whole(program, report);
    names_of_both(program, report);
}

type States<'s, 'e, 'p> = (&'s [SavedState<'e, 'p>], &'s [LoadedState<'e, 'p>]);

fn saved_through_wrapper(
    program: &Program<'_>,
    report: &mut Report<'_>,
    (saved, loaded): States<'_, '_, '_>,
    others: &[Arc<ToldStates>],
) {
    let through = |model: Term| program.wrapper_of(model).is_some();
    for state in saved.iter().filter(|s| through(s.model)) {
        if is_also_saved_bare(program, saved, state) {
            continue;
        }
        let here = loaded.iter().find(|l| !through(l.model) && fits(program, state, l));
        let there = || {
            let told = program.tell_saved(state);
            let mut loaded = others.iter().flat_map(|other| &other.loaded);
            let found = loaded.find(|l| !l.is_wrapped && fits_elsewhere(program, &told, l));
            found.map(|l| l.site)
        };
        let Some(load) = here.map(|l| l.into.0.site).or_else(there) else { continue };
        let model = program.receiver_text(state.state.0).unwrap_or("the wrapper");
        report
            .at(
                state.save.0.site,
                format!(
                    "the state of the wrapper `{model}` is saved, but loaded into a bare model"
                ),
            )
            .why("its keys begin with `module.`: the bare model finds none of them")
            .help(format!("save the state of what is wrapped: `{model}.module.state_dict()`"))
            .related(load, "loaded here, into a model that is not wrapped")
            .fix(bare_state(state.state.0));
    }
}

/// `model.state_dict()` to `model.module.state_dict()`.
fn bare_state(state: &Event<'_>) -> Option<Fix> {
    let ExprKind::Call { callee, .. } = &state.expr?.kind else { return None };
    let ExprKind::Attribute { value, .. } = &callee.kind else { return None };
    let end = value.span.end as usize;
    let site = Site { file: state.site.file, span: Span::new(end, end) };
    Some(Fix {
        applicability: Applicability::Unsafe,
        title: "save the state of the bare model".to_owned(),
        edits: vec![Edit { site, replacement: ".module".to_owned() }],
    })
}

/// Another call saves the bare state of this model: which of the two is loaded is not known.
fn is_also_saved_bare(
    program: &Program<'_>,
    saved: &[SavedState<'_, '_>],
    state: &SavedState<'_, '_>,
) -> bool {
    let names = |s: &SavedState<'_, '_>| {
        program.file_argument(s.save.1).map(|path| program.file_names(path)).unwrap_or_default()
    };
    let mine = names(state);
    saved.iter().any(|other| {
        other.save.0.site != state.save.0.site
            && program.wrapper_of(other.model).is_none()
            && is_same_model(program, state.model, other.model)
            && (mine.is_empty() || names(other).iter().any(|name| mine.contains(name)))
    })
}

fn loaded_into_wrapper(
    program: &Program<'_>,
    report: &mut Report<'_>,
    (saved, loaded): States<'_, '_, '_>,
    others: &[Arc<ToldStates>],
) {
    let through = |model: Term| program.wrapper_of(model).is_some();
    for state in loaded.iter().filter(|l| through(l.model)) {
        let fitting = saved.iter().filter(|s| fits(program, s, state));
        let (wrapped, bare): (Vec<&SavedState<'_, '_>>, Vec<_>) =
            fitting.partition(|s| through(s.model));
        let here = bare.first().map(|s| s.save.0.site);
        let there = || {
            let told = program.tell_loaded(state);
            let mut saved = others.iter().flat_map(|other| &other.saved);
            let found = saved.find(|s| !s.is_wrapped && fits_elsewhere(program, s, &told));
            found.map(|s| s.site)
        };
        if !wrapped.is_empty() {
            continue;
        }
        let Some(save) = here.or_else(there) else { continue };
        let model = program.receiver_text(state.into.0).unwrap_or("the wrapper");
        report
            .at(
                place_of_load(program, state, loaded),
                format!("a bare model's state is loaded into the wrapper `{model}`"),
            )
            .why("the wrapper's keys begin with `module.`: it finds none of them in the file")
            .help(format!("load it into what is wrapped: `{model}.module.load_state_dict(..)`"))
            .related(save, "saved here, from the bare model");
    }
}

/// A helper that other callers give bare models is right: the caller that gives it a wrapper is
/// at fault.
fn place_of_load(
    program: &Program<'_>,
    state: &LoadedState<'_, '_>,
    loaded: &[LoadedState<'_, '_>],
) -> Site {
    let (site, inner_frame) = (state.into.0.site, state.into.0.frame);
    let is_shared = loaded.iter().any(|l| {
        l.into.0.site == site
            && l.into.0.frame != inner_frame
            && program.wrapper_of(l.model).is_none()
    });
    let made_in = match *program.terms().kind(state.model) {
        TermKind::Object(id) => program.object(id).event.map(|e| program.event(e).frame),
        _ => None,
    };
    let (mut at, mut place) = (program.frame(inner_frame), site);
    while is_shared && Some(at.id) != made_in {
        let (Some(call), Some(caller)) = (at.call, at.caller) else { return site };
        (at, place) = (program.frame(caller), call);
    }
    place
}

/// `strict=False` on a wrapper: a file without the prefix loads nothing, silently.
fn loaded_in_part(
    program: &Program<'_>,
    report: &mut Report<'_>,
    (saved, loaded): States<'_, '_, '_>,
) {
    for state in loaded {
        let strict = state.into.1.argument("strict");
        let lax = matches!(strict, Given::Known(a) if a.value.single() == Some(program.terms().no));
        let files = [state.load.0.site.file, state.into.0.site.file];
        if !lax || program.wrapper_of(state.model).is_none() || handle_prefix(program, files) {
            continue;
        }
        let is_own = |s: &SavedState<'_, '_>| {
            program.wrapper_of(s.model).is_some() && is_same_file(program, s, state)
        };
        if saved.iter().any(is_own) {
            continue;
        }
        let model = program.receiver_text(state.into.0).unwrap_or("the wrapper");
        report
            .at(state.into.0.site, format!("`strict=False` on the wrapper `{model}`"))
            .level(Level::Warning)
            .harm(Harm::Wrong)
            .why("a file whose keys have no `module.` loads nothing at all, and nothing says so")
            .help(format!("load into what is wrapped: `{model}.module.load_state_dict(..)`"));
    }
}

/// The same, of a part of the file: `{k: v for k, v in state.items() if ..}`.
fn picked_in_part(program: &Program<'_>, report: &mut Report<'_>) {
    for (event, call) in program.calls(Role::LoadStateDict) {
        let lax = matches!(call.argument("strict"), Given::Known(a)
            if a.value.single() == Some(program.terms().no));
        let receiver = call.receiver.as_ref().and_then(Value::single);
        let wrapper = receiver.and_then(|term| program.wrapper_of(term));
        let state = call.value_at(0, "state_dict");
        let (Some(_), Some(state), true) = (wrapper, state, lax) else { continue };
        let is_picked = state.terms().all(|term| is_comprehension(program, term));
        let from_file = !program.calls_behind(state, Role::Load).is_empty();
        let text = &program.project().file(event.site.file).text;
        if !is_picked || !from_file || speaks_of_prefix(text) || text.contains("replace(") {
            continue;
        }
        let model = program.receiver_text(event).unwrap_or("the wrapper");
        report
            .at(event.site, format!("`strict=False` on the wrapper `{model}`"))
            .level(Level::Warning)
            .harm(Harm::Wrong)
            .why("a file whose keys have no `module.` loads nothing at all, and nothing says so")
            .help(format!("load into what is wrapped: `{model}.module.load_state_dict(..)`"));
    }
}

/// A dict that a comprehension fills, its keys as they are.
fn is_comprehension(program: &Program<'_>, term: Term) -> bool {
    let Some(dict) = program.object_of(term).filter(|o| o.class == ObjectClass::Dict) else {
        return false;
    };
    let text = program.text(dict.site);
    let key = text.trim_start_matches('{').split(':').next().map(str::trim);
    text.contains(" for ") && key.is_some_and(|key| key.chars().all(char::is_alphanumeric))
}

/// One state is what the other was, as far as the text tells.
fn fits(program: &Program<'_>, saved: &SavedState<'_, '_>, loaded: &LoadedState<'_, '_>) -> bool {
    let files = [loaded.load.0.site.file, loaded.into.0.site.file];
    if handle_prefix(program, files) || !saved.slot.fits(loaded.slot) {
        return false;
    }
    let in_one_run = || program.can_both_hold_paths(saved.state.0.path, loaded.into.0.path);
    if !in_one_run() && !are_modes(program, saved, loaded) {
        return false;
    }
    if is_same_file(program, saved, loaded) {
        return is_same_model(program, saved.model, loaded.model);
    }
    if !file_names(program, loaded.load.1).is_empty() {
        return false;
    }
    // The path is an argument: what is resumed is what this program saved.
    let path = program.file_argument(loaded.load.1).and_then(Value::single);
    let says = path.is_some_and(|path| {
        program.mentions(path, &|kind| match kind {
            TermKind::Attribute(_, name) | TermKind::Parameter { name, .. } => {
                name.contains("resume")
            }
            _ => false,
        })
    });
    (says || program.loads_optimizer_from(loaded.load.0))
        && is_same_model(program, saved.model, loaded.model)
}

/// The same for states of two programs: by the name of the file, else by the model alone.
fn fits_elsewhere(program: &Program<'_>, saved: &ToldState, loaded: &ToldState) -> bool {
    if handle_prefix(program, loaded.files) || !saved.slot.fits(loaded.slot) {
        return false;
    }
    let by_name = loaded.names.iter().any(|name| saved.names.contains(name));
    if !by_name && !loaded.names.is_empty() {
        return false;
    }
    match (saved.model, loaded.model) {
        (Some((ObjectClass::Project(a), _)), Some((ObjectClass::Project(b), _))) => a == b,
        (Some((ObjectClass::Outside(a), made)), Some((ObjectClass::Outside(b), made_there))) => {
            a == b && (by_name || made == made_there)
        }
        _ => false,
    }
}

/// `--train` and `--test` of one program: the model that is loaded is another one, made there.
fn are_modes(
    program: &Program<'_>,
    saved: &SavedState<'_, '_>,
    loaded: &LoadedState<'_, '_>,
) -> bool {
    let (saves, loads) = (saved.state.0, loaded.into.0);
    let apart = program.frame(saves.frame).function != program.frame(loads.frame).function;
    let once = |site: Site, role: Role| {
        program.calls(role).filter(|(event, _)| event.site == site).count() == 1
    };
    let same = original(program, saved.model) == original(program, loaded.model);
    program.object_of(loaded.model).is_some()
        && apart
        && !same
        && once(saves.site, Role::StateDict)
        && once(loads.site, Role::LoadStateDict)
}

fn file_names(program: &Program<'_>, call: &Call<'_>) -> Vec<String> {
    program.file_argument(call).map(|path| program.file_names(path)).unwrap_or_default()
}

/// The names of the files are the same, or the paths are one setting.
fn is_same_file(
    program: &Program<'_>,
    saved: &SavedState<'_, '_>,
    loaded: &LoadedState<'_, '_>,
) -> bool {
    let Some(to) = program.file_argument(saved.save.1) else { return false };
    let Some(from) = program.file_argument(loaded.load.1) else { return false };
    let names = program.file_names(to);
    let by_name = program.file_names(from).iter().any(|name| names.contains(name));
    let is_setting = |term: Term| matches!(program.terms().kind(term), TermKind::Attribute(..));
    let by_setting = to.single().is_some_and(|to| from.single() == Some(to) && is_setting(to));
    by_name || by_setting
}

/// Both are the same model, or of the same class.
fn is_same_model(program: &Program<'_>, a: Term, b: Term) -> bool {
    let (Some(a), Some(b)) = (program.bare_model(a), program.bare_model(b)) else { return false };
    if a == b {
        return true;
    }
    let (Some(a), Some(b)) = (program.object_of(a), program.object_of(b)) else { return false };
    match (a.class, b.class) {
        (ObjectClass::Project(a), ObjectClass::Project(b)) => a == b,
        (ObjectClass::Outside(a), ObjectClass::Outside(b)) => a == b,
        _ => false,
    }
}

fn inner(program: &Program<'_>, wrapper: ObjectId) -> Option<Term> {
    program.wrapped_module(wrapper)?.single()
}

/// The code around a load speaks of the prefix.
fn handle_prefix(program: &Program<'_>, files: [FileId; 2]) -> bool {
    files.iter().any(|&file| speaks_of_prefix(&program.project().file(file).text))
}

fn speaks_of_prefix(text: &str) -> bool {
    const WORDS: &[&str] = &[
        "'module.",
        "\"module.",
        "[7:]",
        "removeprefix",
        "_prefix(",
        "'module' in",
        "\"module\" in",
    ];
    WORDS.iter().any(|word| text.contains(word))
}

/// `torch.save(wrapper, path)`.
fn pickled_whole(program: &Program<'_>, report: &mut Report<'_>) {
    for (event, call) in program.calls(Role::Save) {
        let is_torch = call.name.is_some_and(|name| &*name == "torch.save");
        let Some(object) = call.argument_at(0, "obj").known().filter(|_| is_torch) else {
            continue;
        };
        let Some((wrapper, kind)) = object.value.terms().find_map(|t| program.wrapper_of(t)) else {
            continue;
        };
        let text = program.text(program.site_of(event.site.file, object.expr));
        let (name, why) = match kind {
            Wrapper::Ddp => (
                "DistributedDataParallel",
                "to load it there must be a process group, and the module's source as it is now",
            ),
            Wrapper::Dp => (
                "DataParallel",
                "to load it there must be the same devices, and the module's source as it is now",
            ),
        };
        report
            .at(event.site, format!("`{text}` is saved with its `{name}` around it"))
            .level(Level::Warning)
            .why(why)
            .help(format!("save the state of what is wrapped: `{text}.module.state_dict()`"))
            .related(program.object(wrapper).site, "wrapped here");
    }
}

/// Names of the bare model's parameters are keys and the wrapper's are looked up, or the reverse.
fn names_of_both(program: &Program<'_>, report: &mut Report<'_>) {
    let named: Vec<(&Event<'_>, Term)> = [Role::NamedParameters, Role::StateDict]
        .into_iter()
        .flat_map(|role| program.calls(role))
        .filter_map(|(event, call)| Some((event, call.receiver.as_ref().and_then(Value::single)?)))
        .collect();
    for &(used, asked) in &named {
        for (place, container) in lookups(program, used) {
            let taken = named.iter().find(|(event, of)| {
                let wrapped = [asked, *of].map(|t| program.wrapper_of(t).is_some());
                wrapped[0] != wrapped[1]
                    && original(program, asked) == original(program, *of)
                    && sees_the_same(program, [event, used], &container)
                    && program.can_both_hold_paths(event.path, used.path)
                    && fills(program, event, &container)
            });
            let Some((taken, _)) = taken else { continue };
            let (has, asks) = match program.wrapper_of(asked) {
                Some(_) => ("the bare model", "the wrapper"),
                None => ("the wrapper", "the bare model"),
            };
            report
                .at(
                    place,
                    format!("`{container}` has the names of {has}, these are those of {asks}"),
                )
                .why("the wrapper's names begin with `module.`: none of them is among the others")
                .help("take both from what is wrapped: `model.module`")
                .related(taken.site, "the other names are taken here");
        }
    }
}

/// The bare model behind a wrapper, what is in one, or a copy.
fn original(program: &Program<'_>, term: Term) -> Option<Term> {
    let mut at = term;
    for _ in 0..4 {
        let behind = match *program.terms().kind(at) {
            TermKind::Object(id) if program.wrapper_kind(id).is_some() => Some(inner(program, id)?),
            TermKind::Inner(id) => Some(inner(program, id)?),
            _ => program.attribute_now(at, "<copy of>").and_then(Value::single),
        };
        match behind {
            Some(behind) => at = behind,
            None => break,
        }
    }
    Some(at)
}

/// What is called `container` at both events is the same: an attribute in methods of one object,
/// a variable of one function.
fn sees_the_same(program: &Program<'_>, events: [&Event<'_>; 2], container: &str) -> bool {
    let [a, b] = events.map(|event| program.frame(event.frame));
    match (a.receiver, b.receiver) {
        (Some(x), Some(y)) if container.contains('.') => x == y,
        _ => a.function == b.function && a.file == b.file,
    }
}

/// What the statement around an event looks up under the names that the event gives:
/// `shadow` of `for name, p in model.named_parameters(): shadow[name]`.
fn lookups(program: &Program<'_>, event: &Event<'_>) -> Vec<(Site, String)> {
    let Some(around) = statement_around(program, event) else { return Vec::new() };
    let text = program.text(around);
    if speaks_of_prefix(text) || text.contains("replace(") {
        return Vec::new();
    }
    let start = (event.site.span.start - around.span.start) as usize;
    let Some(name) = loop_name(&text[..start]) else { return Vec::new() };
    let mut found = Vec::new();
    let is_part = |c: char| c.is_alphanumeric() || c == '_' || c == '.';
    let mut tell = |from: usize, to: usize, container: &str| {
        if !container.is_empty() {
            let start = around.span.start as usize;
            let span = Span::new(start + from, start + to);
            found.push((Site { file: around.file, span }, container.to_owned()));
        }
    };
    let subscript = format!("[{name}]");
    for (at, _) in text.match_indices(&subscript) {
        let head = &text[..at];
        let from = head.rfind(|c| !is_part(c)).map_or(0, |i| i + 1);
        // An assignment fills it.
        let rest = text[at + subscript.len()..].trim_start();
        let is_store = rest.starts_with('=') && !rest.starts_with("==");
        if !is_store {
            tell(from, at + subscript.len(), &head[from..]);
        }
    }
    for test in [format!(" {name} in "), format!(" {name} not in ")] {
        for (at, _) in text.match_indices(&test).filter(|(at, _)| !text[..*at].ends_with("for")) {
            let tail = &text[at + test.len()..];
            let end = tail.find(|c| !is_part(c)).unwrap_or(tail.len());
            tell(at + 1, at + test.len() + end, &tail[..end]);
        }
    }
    found.truncate(1);
    found
}

fn statement_around(program: &Program<'_>, event: &Event<'_>) -> Option<Site> {
    let editor = Editor::new(program.project().file(event.site.file));
    let statement = editor.statement_at(event.site.span)?;
    Some(Site { file: event.site.file, span: statement.span })
}

/// `name` of `for name, p in`.
fn loop_name(before: &str) -> Option<&str> {
    let (_, head) = before.rsplit_once("for ")?;
    let name = head.split([',', ' ']).next()?.trim_start_matches('(').trim();
    (!name.is_empty() && name.chars().all(|c| c.is_alphanumeric() || c == '_')).then_some(name)
}

/// The statement around an event assigns to the container, or to its items.
fn fills(program: &Program<'_>, event: &Event<'_>, container: &str) -> bool {
    let Some(around) = statement_around(program, event) else { return false };
    let text = program.text(around);
    text.match_indices(container).any(|(at, _)| {
        let rest = text[at + container.len()..].trim_start();
        let is_assigned = rest.starts_with('=') && !rest.starts_with("==");
        let is_filled = rest.starts_with('[')
            && rest.split_once(']').is_some_and(|(_, after)| {
                let after = after.trim_start();
                after.starts_with('=') && !after.starts_with("==")
            });
        is_assigned || is_filled
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unwrap_by_the_type_itself_is_silent() {
        check_files(&[
            (
                "parallel.py",
                "
import torch.nn as nn
def is_parallel(net):
    return type(net) in (nn.parallel.DataParallel, nn.parallel.DistributedDataParallel)
def bare(net):
    return net.module if is_parallel(net) else net
",
            ),
            (
                "main.py",
                "
import argparse, torch
import torch.nn as nn
from parallel import bare
args = argparse.ArgumentParser().parse_args()
net = nn.Linear(2, 2).cuda()
if args.resume:
    net.load_state_dict(torch.load('last.pt', map_location='cpu')['model'])
if args.gpus > 1:
    net = nn.DataParallel(net)
for x in range(3):
    net(x).sum().backward()
torch.save({'model': bare(net).state_dict()}, 'last.pt')
",
            ),
        ]);
    }

    #[test]
    fn a_program_of_its_own_that_loads_bare_counts() {
        check_files(&[
            ("model.py", "
import torch.nn as nn
class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 2)
    def forward(self, x):
        return self.fc(x)
"),
            ("predict.py", "
import argparse, torch
from model import Tagger
if __name__ == '__main__':
    parser = argparse.ArgumentParser()
    parser.add_argument('weights')
    args = parser.parse_args()
    tagger = Tagger()
    tagger.load_state_dict(torch.load(args.weights)['net'])
    print(tagger(torch.ones(4)))
"),
            ("train.py", "
import os, torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from model import Tagger
def save(net, opt, epoch):
    if dist.get_rank() == 0:
        torch.save({'net': net.state_dict(), 'opt': opt.state_dict()}, f'out/{epoch}.pt')  # ~ state-dict-prefix-mismatch: wrapper `net`
def main():
    dist.init_process_group('gloo')
    net = DDP(Tagger())
    opt = torch.optim.SGD(net.parameters(), 0.1)
    for epoch in range(3):
        net(torch.ones(4)).sum().backward()
        opt.step()
        save(net, opt, epoch)
if __name__ == '__main__':
    main()
"),
        ]);
    }

    #[test]
    fn a_resume_before_the_wrap_counts() {
        check_python(
            "
import argparse, os, torch
parser = argparse.ArgumentParser()
parser.add_argument('--resume')
args = parser.parse_args()
net = torch.nn.Sequential(torch.nn.Linear(2, 2))
opt = torch.optim.SGD(net.parameters(), 0.1)
if args.resume:
    state = torch.load(args.resume, map_location='cpu')
    net.load_state_dict(state['model'])
    opt.load_state_dict(state['opt'])
net = torch.nn.DataParallel(net)
for epoch in range(3):
    net(torch.ones(2, 2)).sum().backward()
    state = {'model': net.state_dict(), 'opt': opt.state_dict()}
    torch.save(state, os.path.join('out', 'last.pth'))  # ~ state-dict-prefix-mismatch
",
        );
    }

    #[test]
    fn a_bare_state_in_a_wrapper_counts() {
        check_files(&[
            (
                "checkpoint.py",
                "
import torch
def write(net, path):
    torch.save(net.module.state_dict(), path)
def read(net, path):
    net.load_state_dict(torch.load(path))  # ~ state-dict-prefix-mismatch: into the wrapper `net`
",
            ),
            (
                "main.py",
                "
import torch, checkpoint
net = torch.nn.DataParallel(torch.nn.Linear(2, 2).cuda())
for epoch in range(3):
    net(torch.ones(2, 2)).sum().backward()
    checkpoint.write(net, 'best.pt')
checkpoint.read(net, 'best.pt')
",
            ),
        ]);
    }

    #[test]
    fn the_caller_of_a_shared_helper_is_at_fault() {
        check_files(&[
            (
                "checkpoint.py",
                "
import torch
def write(net, path):
    torch.save(net.module.state_dict(), path)
def read(net, path):
    net.load_state_dict(torch.load(path))
",
            ),
            (
                "main.py",
                "
import torch, checkpoint
def train(bare):
    checkpoint.read(bare, 'best.pt')
    net = torch.nn.DataParallel(bare)
    for epoch in range(3):
        net(torch.ones(2, 2)).sum().backward()
        checkpoint.write(net, 'best.pt')
    checkpoint.read(net, 'best.pt')  # ~ state-dict-prefix-mismatch
train(torch.nn.Linear(2, 2).cuda())
",
            ),
        ]);
    }

    #[test]
    fn a_lax_load_and_a_pickled_wrapper_are_warnings() {
        check_python(
            "
import sys, torch
net = torch.nn.DataParallel(torch.nn.Linear(2, 2).cuda())
net.load_state_dict(torch.load(sys.argv[1]), strict=False)  # ~ state-dict-prefix-mismatch: strict
for _ in range(3):
    net(torch.ones(2, 2)).sum().backward()
torch.save(net, 'whole.pt')  # ~ state-dict-prefix-mismatch: DataParallel
",
        );
    }

    #[test]
    fn names_taken_before_the_wrap_count() {
        check_python(
            "
import torch
import torch.distributed as dist
dist.init_process_group('gloo')
class Average:
    def __init__(self, decay):
        self.decay, self.kept = decay, {}
    def register(self, net):
        for name, weight in net.named_parameters():
            if weight.requires_grad:
                self.kept[name] = weight.detach().clone()
    def update(self, net):
        for name, weight in net.named_parameters():
            if weight.requires_grad:
                new = self.decay * self.kept[name] + (1 - self.decay) * weight  # ~ state-dict-prefix-mismatch: `self.kept`
                self.kept[name] = new
net = torch.nn.Linear(2, 2)
average = Average(0.99)
average.register(net)
net = torch.nn.parallel.DistributedDataParallel(net)
for _ in range(3):
    net(torch.ones(2, 2)).sum().backward()
    average.update(net)
",
        );
    }

    #[test]
    fn a_copy_and_the_wrapper_count() {
        check_python(
            "
import copy, torch
torch.distributed.init_process_group('gloo')
class Average:
    def __init__(self, net):
        self.net = copy.deepcopy(net).eval()
    def update(self, net):
        new = net.state_dict()
        for key, value in self.net.state_dict().items():
            value.lerp_(new[key], 0.1)  # ~ state-dict-prefix-mismatch: `new` has the names of the wrapper
    def update_well(self, net):
        new = net.module.state_dict()
        for key, value in self.net.state_dict().items():
            value.lerp_(new[key], 0.1)
net = torch.nn.Linear(2, 2)
average = Average(net)
net = torch.nn.parallel.DistributedDataParallel(net)
for _ in range(3):
    net(torch.ones(2, 2)).sum().backward()
    average.update(net)
    average.update_well(net)
",
        );
    }

    #[test]
    fn names_in_a_list_count() {
        check_python(
            "
import torch
net = torch.nn.Linear(2, 2)
decayed = [name for name, p in net.named_parameters() if p.ndim > 1]
net = torch.nn.DataParallel(net.cuda())
groups = [
    {'params': [p for name, p in net.named_parameters() if name in decayed]},  # ~ state-dict-prefix-mismatch: `decayed`
]
opt = torch.optim.SGD(groups, 0.1)
for _ in range(3):
    net(torch.ones(2, 2)).sum().backward()
    opt.step()
",
        );
    }

    #[test]
    fn both_sides_wrapped_or_bare_are_silent() {
        check_python(
            "
import torch
net = torch.nn.DataParallel(torch.nn.Linear(2, 2).cuda())
net.load_state_dict(torch.load('a.pt'))
net.module.load_state_dict(torch.load('b.pt'))
for _ in range(3):
    net(torch.ones(2, 2)).sum().backward()
    torch.save(net.state_dict(), 'a.pt')
    torch.save(net.module.state_dict(), 'b.pt')
",
        );
        check_python(
            "
import torch
class Average:
    def __init__(self, net):
        self.kept = {name: p.clone() for name, p in net.named_parameters()}
    def update(self, net):
        for name, p in net.named_parameters():
            self.kept[name].lerp_(p, 0.1)
bare = torch.nn.Linear(2, 2)
average = Average(bare)
net = torch.nn.DataParallel(bare)
after = Average(net)
for _ in range(3):
    net(torch.ones(2, 2)).sum().backward()
    average.update(net.module)
    after.update(net)
",
        );
    }

    #[test]
    fn a_prefix_that_is_taken_off_is_silent() {
        check_files(&[
            (
                "eval.py",
                "
import torch
def load(path):
    net = torch.nn.Linear(2, 2)
    state = torch.load(path)
    net.load_state_dict({k.replace('module.', ''): v for k, v in state.items()})
    return net
if __name__ == '__main__':
    load('net.pt')
",
            ),
            (
                "train.py",
                "
import torch
net = torch.nn.DataParallel(torch.nn.Linear(2, 2).cuda())
for _ in range(3):
    net(torch.ones(2, 2)).sum().backward()
torch.save(net.state_dict(), 'net.pt')
",
            ),
        ]);
    }

    #[test]
    fn one_condition_on_both_sides_is_silent() {
        check_python(
            "
import argparse, torch
parser = argparse.ArgumentParser()
parser.add_argument('--multi', action='store_true')
args = parser.parse_args()
net = torch.nn.Linear(2, 2).cuda()
if args.multi:
    net = torch.nn.DataParallel(net)
net.load_state_dict(torch.load('net.pt'))
for _ in range(3):
    net(torch.ones(2, 2)).sum().backward()
    torch.save(net.state_dict(), 'net.pt')
",
        );
    }

    #[test]
    fn another_file_is_silent() {
        check_python(
            "
import torch
net = torch.nn.Linear(2, 2)
net.load_state_dict(torch.load('pretrained.pt'))
net = torch.nn.DataParallel(net.cuda())
for _ in range(3):
    net(torch.ones(2, 2)).sum().backward()
    torch.save(net.state_dict(), 'finetuned.pt')
",
        );
    }

    #[test]
    fn a_picked_state_in_a_wrapper_counts() {
        check_python(
            r#"
import os
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from torchvision.models import resnet18
def load_pretrained(model, path):
    ck = torch.load(path, map_location="cpu")
    sd = {k: v for k, v in ck.items() if not k.startswith("fc.")}
    model.load_state_dict(sd, strict=False)  # ~ state-dict-prefix-mismatch
def main():
    dist.init_process_group("nccl")
    g = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(g)
    torch.manual_seed(dist.get_rank())
    net = resnet18(num_classes=4).cuda()
    net = DDP(net, device_ids=[g])
    load_pretrained(net, "r18.pth")
    opt = torch.optim.SGD(net.parameters(), 0.1)
    for _ in range(10):
        loss = net(torch.randn(4, 3, 64, 64).cuda()).mean()
        opt.zero_grad(); loss.backward(); opt.step()
if __name__ == "__main__":
    main()
"#,
        );
    }

    #[test]
    fn two_modes_of_one_program_count() {
        check_python(
            r#"
import argparse
import torch
import torch.nn as nn
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.f = nn.Linear(3, 2)
    def forward(self, x):
        return self.f(x)
def train(path):
    net = nn.DataParallel(Net()).cuda()
    opt = torch.optim.Adam(net.parameters())
    for _ in range(9):
        loss = net(torch.randn(8, 3).cuda()).mean()
        opt.zero_grad(); loss.backward(); opt.step()
    torch.save({"model": net.state_dict(), "epoch": 9}, path)  # ~ state-dict-prefix-mismatch
def test(path):
    net = Net().cuda()
    ck = torch.load(path)
    net.load_state_dict(ck["model"])
    net.eval()
    with torch.no_grad():
        print(net(torch.randn(1, 3).cuda()))
if __name__ == "__main__":
    p = argparse.ArgumentParser()
    p.add_argument("--test", action="store_true")
    p.add_argument("--path", default="ck.pt")
    a = p.parse_args()
    test(a.path) if a.test else train(a.path)
"#,
        );
    }
}
