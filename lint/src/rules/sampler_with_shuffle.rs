use crate::analysis::{ArgumentValue, Event, Term};
use crate::model::Literal;
use crate::prelude::*;
use crate::python::edit::Editor;
use crate::table::Role;

declare_rule! {
    /// A loader is given a sampler and `shuffle=True`.
    ///
    /// `DataLoader` refuses both: `ValueError: sampler option is mutually exclusive with
    /// shuffle`. The sampler shuffles by itself.
    ///
    /// ```python bad
    /// from torch.utils.data import DataLoader, DistributedSampler
    ///
    /// data = list(range(8))
    /// loader = DataLoader(data, shuffle=True, sampler=DistributedSampler(data))  # ~ sampler-with-shuffle
    /// ```
    /// ```python fixed
    /// from torch.utils.data import DataLoader, DistributedSampler
    ///
    /// data = list(range(8))
    /// loader = DataLoader(data, sampler=DistributedSampler(data))
    /// ```
    ///
    /// # Known limits
    /// Silent where the two may hang on one setting. The fix is offered where `shuffle=True` is
    /// written in the call.
    pub static RULE = {
        name: "sampler-with-shuffle",
        level: Level::Error,
        harm: Harm::Crash,
        tier: 1,
        languages: PYTHON,
        fix: FixKind::Safe,
        check,
    };
}

fn check(program: &Program<'_>, report: &mut Report<'_>) {
    for (event, call) in program.calls(Role::Loader) {
        let (Some(given), Some(shuffle)) =
            (call.argument("sampler").known(), call.argument("shuffle").known())
        else {
            continue;
        };
        let yes = program.terms().yes;
        let on = shuffle.value.alternatives.iter().filter(|a| a.term == yes);
        let both = on.flat_map(|on| {
            given
                .value
                .alternatives
                .iter()
                .filter(move |s| is_sampler(program, s.term))
                .map(move |s| (on.when, s))
        });
        let mut both = both.filter(|(when, s)| program.can_both_hold(*when, s.when));
        if let Some((_, sampler)) = both.next() {
            let made = program.object_of(sampler.term).map(|o| o.site);
            let draft = report
                .at(event.site, "this loader gets both a sampler and `shuffle=True`")
                .why("`DataLoader` refuses the pair and raises ValueError")
                .help(
                    "leave `shuffle` out: the sampler shuffles, or write `shuffle=sampler is None`",
                );
            let draft = draft.fix(leave_out(program, event, given, shuffle));
            if let Some(made) = made {
                draft.related(made, "the sampler is made here");
            }
        }
    }
}

/// Without `shuffle=True`; with `shuffle=sampler is None` where there may be no sampler.
fn leave_out(
    program: &Program<'_>,
    event: &Event<'_>,
    sampler: &ArgumentValue<'_>,
    shuffle: &ArgumentValue<'_>,
) -> Option<Fix> {
    let call = event.expr.filter(|call| call.span.contains(shuffle.expr.span))?;
    let is_written = shuffle.expr.literal() == Some(&Literal::Bool(true)) && !sampler.spread;
    if !is_written || !call.span.contains(sampler.expr.span) {
        return None;
    }
    let editor = Editor::new(program.project().file(event.site.file));
    let edits = if sampler.value.terms().all(|term| is_sampler(program, term)) {
        editor.remove_keyword(call, "shuffle")?
    } else {
        sampler.expr.path()?;
        let text = program.text(program.site_of(event.site.file, sampler.expr));
        editor.set_keyword(call, "shuffle", &format!("{text} is None"))?
    };
    let title = "let the sampler shuffle".to_owned();
    Some(Fix { applicability: Applicability::Safe, title, edits })
}

fn is_sampler(program: &Program<'_>, term: Term) -> bool {
    let known = |term: Term| {
        program.object_of(term).is_some_and(|o| {
            matches!(o.role, Role::DistributedSampler | Role::OtherSampler)
                || program.class_of(o).is_some()
        })
    };
    known(term)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sampler_made_under_a_condition_counts() {
        check_python(
            "
import argparse
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler
args = argparse.ArgumentParser().parse_args()
data = [1, 2, 3]
sampler = DistributedSampler(data) if args.distributed else None
loader = DataLoader(data, batch_size=2, shuffle=True, sampler=sampler)  # ~ sampler-with-shuffle
for x in loader:
    pass
",
        );
    }

    #[test]
    fn shuffle_where_there_is_no_sampler_is_silent() {
        check_python(
            "
import argparse
from torch.utils.data import DataLoader, DistributedSampler
args = argparse.ArgumentParser().parse_args()
data = [1, 2, 3]
if args.distributed:
    sampler = DistributedSampler(data)
else:
    sampler = None
for x in DataLoader(data, shuffle=(sampler is None), sampler=sampler):
    pass
for x in DataLoader(data, shuffle=not args.distributed, sampler=sampler):
    pass
shuffle = False if args.distributed else True
for x in DataLoader(data, shuffle=shuffle, sampler=sampler):
    pass
for x in DataLoader(data, sampler=None, shuffle=True):
    pass
",
        );
    }

    #[test]
    fn a_factory_in_another_file_counts() {
        check_files(&[
            (
                "data.py",
                "
import torch.utils.data as tud
def loader(dataset, sampler=None, **more):
    return tud.DataLoader(dataset, 4, True, sampler)  # ~ sampler-with-shuffle
",
            ),
            (
                "main.py",
                "
import torch.utils.data as tud
from data import loader
if __name__ == '__main__':
    loader([1], sampler=tud.DistributedSampler([1]))
",
            ),
        ]);
    }

    #[test]
    fn a_sampler_under_two_conditions_is_silent() {
        check_python(
            "
import sys
from torch.utils.data import DataLoader, DistributedSampler
def loaders(data, cfg):
    sampler = None
    if cfg.run.distributed:
        cfg.run.size = 4
        if cfg.run.train:
            sampler = DistributedSampler(data, shuffle=True)
    return DataLoader(data, shuffle=(sampler is None), sampler=sampler)
loaders([1, 2], sys.modules['settings'])
",
        );
    }

    #[test]
    fn a_default_of_a_helper_in_another_file_counts() {
        check_files(&[
            (
                "loaders.py",
                "
from torch.utils.data import DataLoader, DistributedSampler
def build_loader(dataset, batch_size, shuffle=True, distributed=False, workers=4):
    sampler = DistributedSampler(dataset) if distributed else None
    return DataLoader(dataset, batch_size, shuffle, sampler, num_workers=workers)  # ~ sampler-with-shuffle
",
            ),
            (
                "train.py",
                r#"
import os
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import TensorDataset
from loaders import build_loader
def main():
    dist.init_process_group("nccl")
    g = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(g)
    dl = build_loader(TensorDataset(torch.randn(64, 3)), 8, distributed=True)
    net = DDP(torch.nn.Linear(3, 3).cuda(), device_ids=[g])
    opt = torch.optim.AdamW(net.parameters())
    for ep in range(3):
        dl.sampler.set_epoch(ep)
        for (x,) in dl:
            loss = net(x.cuda()).mean()
            opt.zero_grad(); loss.backward(); opt.step()
if __name__ == "__main__":
    main()
"#,
            ),
        ]);
    }

    #[test]
    fn options_collected_in_a_dict_count() {
        check_python(
            r#"
import os
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset, DistributedSampler
def loader(ds, args, train):
    kwargs = dict(batch_size=args["bs"], num_workers=2, shuffle=train)
    sampler = None
    if args["dist"]:
        sampler = DistributedSampler(ds, shuffle=train)
        kwargs["sampler"] = sampler
    return DataLoader(ds, **kwargs), sampler  # ~ sampler-with-shuffle
def main():
    args = {"bs": 8, "dist": "RANK" in os.environ}
    g = int(os.environ.get("LOCAL_RANK", 0))
    torch.cuda.set_device(g)
    net = torch.nn.Linear(3, 3).cuda()
    if args["dist"]:
        dist.init_process_group("nccl")
        net = DDP(net, device_ids=[g])
    dl, sampler = loader(TensorDataset(torch.randn(64, 3)), args, True)
    opt = torch.optim.AdamW(net.parameters())
    for ep in range(3):
        if sampler:
            sampler.set_epoch(ep)
        for (x,) in dl:
            loss = net(x.cuda()).mean()
            opt.zero_grad(); loss.backward(); opt.step()
if __name__ == "__main__":
    main()
"#,
        );
    }
}
