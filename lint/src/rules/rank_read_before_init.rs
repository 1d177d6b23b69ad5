use crate::analysis::models::{Access, Mention};
use crate::analysis::{Const, Event, EventKind, FrameId, Reach, SAMPLES, Taint, TermKind, Value};
use crate::prelude::*;
use crate::table::Role;

declare_rule! {
    /// A rank is asked for before the process group exists.
    ///
    /// `torch.distributed.get_rank()` raises there. Helpers that answer 0 while no group exists
    /// are worse: every rank takes itself for rank 0, and keeps doing so where the answer is
    /// kept in a variable. A module's top level runs at its import, mostly before the group.
    ///
    /// ```python bad
    /// import os
    /// import torch.distributed as dist
    ///
    /// def get_rank():
    ///     return dist.get_rank() if dist.is_initialized() else 0
    ///
    /// rank = get_rank()  # ~ rank-read-before-init
    /// dist.init_process_group("nccl")
    /// if rank == 0:
    ///     print("epoch 1")
    /// ```
    /// ```python good
    /// import os
    /// import torch.distributed as dist
    ///
    /// def get_rank():
    ///     return dist.get_rank() if dist.is_initialized() else 0
    ///
    /// dist.init_process_group("nccl")
    /// rank = get_rank()
    /// if rank == 0:
    ///     print("epoch 1")
    /// ```
    ///
    /// # Known limits
    /// A process group that unseen code may have made before is not known.
    pub static RULE = {
        name: "rank-read-before-init",
        level: Level::Error,
        harm: Harm::Wrong,
        tier: 2,
        languages: PYTHON,
        fix: FixKind::No,
        check,
    };
}

/// Who asks: the frame that holds the asking expression, and where.
#[derive(Clone, Copy)]
struct Asker {
    frame: FrameId,
    site: Site,
}

fn check(program: &Program<'_>, report: &mut Report<'_>) {
    let Some(init) = first_init(program) else { return };
    for role in [Role::Rank, Role::IsMain, Role::IsDistributed] {
        for (event, call) in program.calls(role) {
            let asks_group = call.name.is_some_and(|n| {
                n.starts_with("torch.distributed.")
                    && !n.ends_with("is_available")
                    && !n.ends_with("is_torchelastic_launched")
            });
            let before = event.id < init.id
                && event.modes.spawned == init.modes.spawned
                && !event.modes.caught
                && !program.is_orphan(event);
            if asks_group && before {
                judge(program, report, event, init, role);
            }
        }
    }
}

fn first_init<'a>(program: &'a Program<'_>) -> Option<&'a Event<'a>> {
    let (first, _) = program.calls(Role::InitGroup).min_by_key(|(event, _)| event.id)?;
    (!program.is_orphan(first)).then_some(first)
}

fn judge(
    program: &Program<'_>,
    report: &mut Report<'_>,
    event: &Event<'_>,
    init: &Event<'_>,
    role: Role,
) {
    let askers = askers(program, event);
    let guarded = is_tested_for_a_group(program, event) || role == Role::IsDistributed;
    if !guarded {
        tell_raises(program, report, event, init);
        return;
    }
    // The helper itself is fine: who keeps or trusts its answer is not.
    let helpers = askers.windows(2).take_while(|pair| answers(program, pair[0].frame));
    let mut answered = helpers.map(|pair| pair[1]);
    let Some(kept) = answered.find(|asker| is_kept(program, *asker, init)) else {
        if let Some((asker, write)) = trusted(program, &askers, init) {
            tell_trusted(report, asker.site, write, init);
        }
        return;
    };
    report
        .at(kept.site, "the rank is asked for before the process group exists")
        .why("the answer is that of a lone process, the same on all ranks, and it is kept")
        .help("ask after `init_process_group`, or read the launcher's `RANK` variable")
        .related(init.site, "the process group is made here, later");
}

/// The call itself and the calls that led to it, innermost first.
fn askers(program: &Program<'_>, event: &Event<'_>) -> Vec<Asker> {
    let mut askers = vec![Asker { frame: event.frame, site: event.site }];
    let mut at = event.frame;
    while let (Some(caller), Some(call)) = (program.frame(at).caller, program.frame(at).call) {
        askers.push(Asker { frame: caller, site: call });
        at = caller;
    }
    askers
}

/// What the function gives back is a number or a truth value on each rank: it answers a question.
fn answers(program: &Program<'_>, frame: FrameId) -> bool {
    let mut returned = program.events().iter().filter_map(|event| match &event.kind {
        EventKind::Return { value } if event.frame == frame => Some(value),
        _ => None,
    });
    let is_answer = |value: &Value| {
        let known = |term| program.terms().evaluate(term, SAMPLES[0]);
        value.terms().all(|t| matches!(known(t), Some(Const::Int(_) | Const::Bool(_))))
    };
    returned.next().is_some_and(is_answer) && returned.all(is_answer)
}

/// Some condition asks whether there is a group at all.
fn is_tested_for_a_group(program: &Program<'_>, event: &Event<'_>) -> bool {
    program.tests(event.path, &|kind| matches!(kind, TermKind::Distributed))
}

/// The answer goes into a variable that is read behind the making of the group.
fn is_kept(program: &Program<'_>, asker: Asker, init: &Event<'_>) -> bool {
    let file = program.project().file(asker.site.file);
    if let Some(name) = assigned_attribute(&file.text, asker.site) {
        return is_read_as_attribute(program, asker, init, name);
    }
    let Some(name) = assigned_name(&file.text, asker.site) else { return false };
    let is_global = program.frame(asker.frame).function.is_none();
    let after = if is_global { asker.site.span.end } else { init_in(program, asker, init) };
    let rest = &file.text[after as usize..];
    if is_global && program.project().files.iter().any(|f| f.id != file.id && reads(&f.text, name))
    {
        return program.reaches(asker.site.file);
    }
    after > asker.site.span.start && reads(rest, name)
}

/// Where, in the frame that asks, the group is made afterwards; the end of its text if there
/// it is not.
fn init_in(program: &Program<'_>, asker: Asker, init: &Event<'_>) -> u32 {
    let end = program.project().file(asker.site.file).text.len() as u32;
    let mut at = (init.frame, init.site);
    loop {
        if at.0 == asker.frame {
            return at.1.span.end;
        }
        match (program.frame(at.0).caller, program.frame(at.0).call) {
            (Some(caller), Some(call)) => at = (caller, call),
            _ => return end,
        }
    }
}

/// `main` of a statement `self.main = call()`.
fn assigned_attribute(text: &str, call: Site) -> Option<&str> {
    let before = text[..call.span.start as usize].trim_end();
    let target = before.strip_suffix('=')?.trim_end().rsplit('\n').next()?.trim_start();
    let (of, name) = target.rsplit_once('.')?;
    let is_name =
        |part: &str| !part.is_empty() && part.chars().all(|c| c.is_alphanumeric() || c == '_');
    (of.split('.').all(is_name) && is_name(name)).then_some(name)
}

/// The attribute is set nowhere else, and somebody reads it.
fn is_read_as_attribute(program: &Program<'_>, asker: Asker, init: &Event<'_>, name: &str) -> bool {
    let here = |site: Site| {
        site.file == asker.site.file && program.line_of(site) == program.line_of(asker.site)
    };
    let set_again = program.events().iter().any(|event| {
        matches!(&event.kind, EventKind::AttributeStore { name: set, .. } if &**set == name)
            && !here(event.site)
    });
    let is_read = |m: &&Mention| {
        &*m.name == name
            && m.access == Access::Read
            && !here(m.site)
            && program.reaches(m.site.file)
    };
    // What is read while the group is made goes into making it.
    let reads: Vec<&Mention> = program.models().mentions().filter(is_read).collect();
    let makes = |m: &&Mention| {
        program.frame(init.frame).function.is_some()
            && m.function == program.frame(init.frame).function
    };
    !set_again && reads.iter().any(|m| !makes(m))
}

/// `x` of a statement `x = call()`.
fn assigned_name(text: &str, call: Site) -> Option<&str> {
    let before = text[..call.span.start as usize].trim_end();
    let before = before.strip_suffix('=')?.trim_end();
    let line = before.rsplit('\n').next()?.trim_start();
    let name = line.split(':').next()?.trim();
    let is_name = !name.is_empty() && name.chars().all(|c| c.is_alphanumeric() || c == '_');
    is_name.then_some(name)
}

fn reads(text: &str, name: &str) -> bool {
    text.split(|c: char| !(c.is_alphanumeric() || c == '_')).any(|word| word == name)
}

/// A test of the answer that every rank passes before the group exists, around the writing of
/// a file.
fn trusted<'a>(
    program: &'a Program<'_>,
    askers: &[Asker],
    init: &Event<'_>,
) -> Option<(Asker, &'a Event<'a>)> {
    let roles = [
        Role::Save,
        Role::WriteFile,
        Role::MakeDirectory,
        Role::RemovePath,
        Role::Download,
        Role::Unpack,
        Role::Tracker,
    ];
    for role in roles {
        for (write, _) in program.calls(role) {
            if write.id > init.id || program.reach(write.path) == Reach::Every {
                continue;
            }
            for node in program.conditions(write.path) {
                let asked = |a: &&Asker| {
                    a.frame == node.frame
                        && a.site.file == node.site.file
                        && node.site.span.contains(a.site.span)
                        && program.terms().taint(node.condition).has(Taint::RANK)
                };
                if let Some(asker) = askers.iter().find(asked) {
                    return Some((*asker, write));
                }
            }
        }
    }
    None
}

fn tell_raises(
    program: &Program<'_>,
    report: &mut Report<'_>,
    event: &Event<'_>,
    init: &Event<'_>,
) {
    let name = program.callee_text(event).unwrap_or("get_rank");
    report
        .at(event.site, format!("`{name}` is called before the process group exists"))
        .harm(Harm::Crash)
        .why("it raises \"Default process group has not been initialized\"")
        .help("call it after `init_process_group`, or read the launcher's `RANK` variable")
        .related(init.site, "the process group is made here, later");
}

fn tell_trusted(report: &mut Report<'_>, site: Site, write: &Event<'_>, init: &Event<'_>) {
    report
        .at(site, "every rank passes this test: the process group does not exist yet")
        .why("without a group each process takes itself for rank 0, so all ranks do this at once")
        .help("make the process group first, or test the launcher's `RANK` variable")
        .related(write.site, "all ranks do this")
        .related(init.site, "the process group is made here, later");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flag_taken_at_import_and_used_elsewhere_counts() {
        check_files(&[
            (
                "utils/dist_util.py",
                "
import torch.distributed as dist
def is_main_process():
    if not dist.is_available() or not dist.is_initialized():
        return True
    return dist.get_rank() == 0
",
            ),
            ("utils/__init__.py", ""),
            (
                "log.py",
                "
from utils.dist_util import is_main_process
IS_MAIN = is_main_process()  # ~ rank-read-before-init
def say(text):
    if IS_MAIN:
        print(text)
",
            ),
            (
                "main.py",
                "
import torch.distributed as dist
from log import say
if __name__ == '__main__':
    dist.init_process_group('nccl')
    say('ready')
",
            ),
        ]);
    }

    #[test]
    fn a_bare_question_before_the_group_counts() {
        check_python(
            "
import torch.distributed as dist
def setup(args):
    args.rank = dist.get_rank()  # ~ rank-read-before-init: called before
    dist.init_process_group('nccl')
class Args:
    pass
setup(Args())
",
        );
    }

    #[test]
    fn a_guard_that_every_rank_passes_counts() {
        check_python(
            "
import os
import torch.distributed as dist
def rank():
    if dist.is_initialized():
        return dist.get_rank()
    return 0
def main(out):
    if rank() == 0:  # ~ rank-read-before-init: passes
        os.makedirs(out)
    dist.init_process_group('nccl')
if __name__ == '__main__':
    main('out')
",
        );
    }

    #[test]
    fn a_local_variable_that_outlives_the_setup_counts() {
        check_files(&[
            (
                "setup.py",
                "
import torch.distributed as dist
def world_rank():
    return dist.get_rank() if dist.is_initialized() else 0
def start():
    dist.init_process_group('gloo')
",
            ),
            (
                "train.py",
                "
from setup import start, world_rank
def main():
    me = world_rank()  # ~ rank-read-before-init
    start()
    if me == 0:
        print('hello')
if __name__ == '__main__':
    main()
",
            ),
        ]);
    }

    #[test]
    fn the_launchers_variables_and_questions_afterwards_are_silent() {
        check_python(
            "
import os
import torch.distributed as dist
def get_rank():
    return dist.get_rank() if dist.is_initialized() else 0
rank = int(os.environ['RANK'])
if not dist.is_initialized():
    dist.init_process_group('nccl', rank=rank)
mine = get_rank()
print(mine, rank)
",
        );
    }

    #[test]
    fn an_object_that_asks_when_it_is_made_is_silent() {
        check_python(
            "
import torch.distributed as dist
def get_rank():
    return dist.get_rank() if dist.is_initialized() else 0
class Logger:
    def __init__(self):
        self.rank = get_rank()
class Runner:
    def __init__(self):
        self.logger = Logger()
        dist.init_process_group('nccl')
    def train(self):
        print('training')
def main():
    runner = Runner()
    runner.train()
if __name__ == '__main__':
    main()
",
        );
    }

    #[test]
    fn an_answer_that_is_not_kept_is_silent() {
        check_python(
            "
import torch.distributed as dist
def get_rank():
    return dist.get_rank() if dist.is_initialized() else 0
def main():
    print('starting', get_rank())
    dist.init_process_group('nccl')
    print('ready', get_rank())
if __name__ == '__main__':
    main()
",
        );
    }

    #[test]
    fn an_answer_kept_in_an_attribute_counts() {
        check_python(
            r#"
import os
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
def is_main():
    return not dist.is_initialized() or dist.get_rank() == 0
class Runner:
    def __init__(self, out):
        self.out = out
        self.main = is_main()  # ~ rank-read-before-init
        self.setup()
    def setup(self):
        dist.init_process_group("nccl")
        self.gpu = int(os.environ["LOCAL_RANK"])
        torch.cuda.set_device(self.gpu)
        torch.manual_seed(dist.get_rank())
    def run(self):
        net = DDP(torch.nn.Linear(2, 2).cuda(), device_ids=[self.gpu])
        opt = torch.optim.SGD(net.parameters(), 0.1)
        for i in range(10):
            loss = net(torch.randn(4, 2).cuda()).mean()
            opt.zero_grad(); loss.backward(); opt.step()
        if self.main:
            torch.save(net.module.state_dict(), self.out)
if __name__ == "__main__":
    Runner("w.pt").run()
"#,
        );
    }
}
