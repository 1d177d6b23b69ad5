use crate::analysis::Term;
use crate::prelude::*;
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
    /// ```python good
    /// from torch.utils.data import DataLoader, DistributedSampler
    ///
    /// data = list(range(8))
    /// loader = DataLoader(data, sampler=DistributedSampler(data))
    /// ```
    ///
    /// # Known limits
    /// Silent where the two may hang on one setting.
    pub static RULE = {
        name: "sampler-with-shuffle",
        level: Level::Error,
        harm: Harm::Crash,
        tier: 1,
        languages: PYTHON,
        fix: FixKind::No,
        check,
    };
}

fn check(program: &Program<'_>, report: &mut Report<'_>) {
    for (event, call) in program.calls(Role::Loader) {
        let (Some(sampler), Some(shuffle)) =
            (call.argument("sampler").known(), call.argument("shuffle").known())
        else {
            continue;
        };
        let yes = program.terms().yes;
        let on = shuffle.value.alternatives.iter().filter(|a| a.term == yes);
        let both = on.flat_map(|on| {
            sampler
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
            if let Some(made) = made {
                draft.related(made, "the sampler is made here");
            }
        }
    }
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
}
