use crate::analysis::facts::Wrapper;
use crate::analysis::{EventKind, Object, ObjectId, Term, Via};
use crate::model::Literal;
use crate::prelude::*;
use crate::table::Role;

declare_rule! {
    /// BatchNorm takes its statistics from a small batch of one rank.
    ///
    /// Under `DistributedDataParallel` each rank normalises by its own samples. With few of them
    /// the statistics are noise, and a model that trained well on one device does not.
    /// `SyncBatchNorm` takes them over all ranks. With `broadcast_buffers=False` the running
    /// statistics, too, stay those of each rank, and what rank 0 saves is its own.
    ///
    /// ```python bad
    /// import torch.nn as nn
    /// from torch.nn.parallel import DistributedDataParallel as DDP
    ///
    /// net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8))
    /// model = DDP(net, broadcast_buffers=False)  # ~ batchnorm-not-synced
    /// for x in []:
    ///     model(x).sum().backward()
    /// ```
    /// ```python good
    /// import torch.nn as nn
    /// import torch.distributed as dist
    /// from torch.nn.parallel import DistributedDataParallel as DDP
    ///
    /// dist.init_process_group("nccl")
    /// net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8))
    /// model = DDP(nn.SyncBatchNorm.convert_sync_batchnorm(net))
    /// for x in []:
    ///     model(x).sum().backward()
    /// ```
    ///
    /// # Known limits
    /// A batch size that is not written out in the program is not judged.
    pub static RULE = {
        name: "batchnorm-not-synced",
        level: Level::Advice,
        harm: Harm::Wrong,
        tier: 3,
        languages: PYTHON,
        fix: FixKind::No,
        check,
    };
}

/// Fewer samples on a rank than this make poor statistics.
const BATCH_MIN: i64 = 8;

fn check(program: &Program<'_>, report: &mut Report<'_>) {
    if !program.wraps_with(Wrapper::Ddp) {
        return;
    }
    let converts = program.calls(Role::ConvertSyncBatchNorm).next().is_some()
        || program.models().mentions().any(|m| m.name.contains("sync_batchnorm"));
    if program.language != Language::Python || converts {
        return;
    }
    for (wrapper, parts) in program.wrapped_models(Wrapper::Ddp) {
        let Some(layer) = parts.iter().find_map(|&part| batch_norm(program, part)) else {
            continue;
        };
        if !program.trains_through(wrapper) || is_evaluated_only(program, layer) {
            continue;
        }
        let object = program.object(wrapper);
        let draft = if let Some(batch) = small_batch(program, wrapper) {
            report
                .at(object.site, format!("BatchNorm sees {batch} samples on each rank"))
                .why("statistics of so few samples are noise, and each rank has its own")
        } else if program.wrapper_option(wrapper, "broadcast_buffers") == Some(Some(false)) {
            report.at(object.site, "BatchNorm's running statistics differ between the ranks").why(
                "with `broadcast_buffers=False` each rank keeps its own; what rank 0 saves \
                     saw its part of the data only",
            )
        } else {
            continue;
        };
        draft
            .help(
                "convert before the wrap: \
                 `model = nn.SyncBatchNorm.convert_sync_batchnorm(model)`",
            )
            .related(layer.site, "this layer takes statistics of the batch");
    }
}

fn batch_norm<'a, 'p>(program: &'a Program<'p>, part: Term) -> Option<&'a Object<'p>> {
    let object = program.object_of(part)?;
    let class = program.outside_class(object)?;
    let is_plain =
        class.contains("BatchNorm") && !class.contains("Sync") && !class.contains("Frozen");
    is_plain.then_some(object)
}

/// The layer does not take statistics of the batch.
fn is_evaluated_only(program: &Program<'_>, layer: &Object<'_>) -> bool {
    program.calls(Role::EvalMode).any(|(_, call)| {
        call.receiver.as_ref().is_some_and(|r| r.terms().any(|t| t == program.term_of(layer.id)))
    })
}

/// The batch size of a loader whose items the wrapper trains on, where it is small.
fn small_batch(program: &Program<'_>, wrapper: ObjectId) -> Option<i64> {
    let trained = program.forwards().filter(|(event, forward)| {
        forward.via == Via::Wrapper(wrapper) && program.trained().contains(&event.id)
    });
    let origins = trained.flat_map(|(_, forward)| {
        forward.arguments.iter().flat_map(|a| a.value.origins(program.terms())).collect::<Vec<_>>()
    });
    origins
        .filter_map(|origin| match &program.event(origin).kind {
            EventKind::Call(call) if call.role == Role::Loader => {
                let size = call.argument("batch_size").known()?;
                match size.expr.literal() {
                    Some(Literal::Int(size)) => Some(*size),
                    _ => program.terms().as_int(size.value.single()?),
                }
            }
            _ => None,
        })
        .find(|size| (1..BATCH_MIN).contains(size))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn program(batch: &str, options: &str, prepare: &str, mark: &str) -> String {
        format!(
            "
import torch
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 3, 1)
        self.norm = nn.BatchNorm2d(3)
    def forward(self, x):
        return self.norm(self.conv(x))
def main(data):
    torch.distributed.init_process_group('nccl')
    net = Net().cuda()
    {prepare}
    net = nn.parallel.DistributedDataParallel(net{options}){mark}
    loader = DataLoader(data, batch_size={batch}, sampler=DistributedSampler(data))
    for x, y in loader:
        (net(x.cuda()) - y).sum().backward()
if __name__ == '__main__':
    main(torch.utils.data.TensorDataset())
"
        )
    }

    const MARK: &str = "  # ~ batchnorm-not-synced";

    #[test]
    fn a_small_batch_counts() {
        check_python(&program("2", "", "pass", &format!("{MARK}: sees 2 samples")));
    }

    #[test]
    fn statistics_that_are_not_sent_count() {
        let options = ", broadcast_buffers=False";
        check_python(&program("256", options, "pass", &format!("{MARK}: differ")));
    }

    #[test]
    fn a_backbone_in_another_file_counts() {
        check_files(&[
            (
                "backbone.py",
                "
from torch import nn
def block():
    return nn.Sequential(nn.Conv1d(2, 2, 1), nn.BatchNorm1d(2), nn.ReLU())
class Backbone(nn.Module):
    def __init__(self):
        super().__init__()
        self.stages = nn.ModuleList([block() for _ in range(3)])
    def forward(self, x):
        for stage in self.stages:
            x = stage(x)
        return x
",
            ),
            (
                "main.py",
                "
import torch
from backbone import Backbone
torch.distributed.init_process_group('nccl')
net = torch.nn.parallel.DistributedDataParallel(  # ~ batchnorm-not-synced
    Backbone().cuda(), broadcast_buffers=False)
for x in []:
    net(x).sum().backward()
",
            ),
        ]);
    }

    #[test]
    fn converted_layers_are_silent() {
        let convert = "net = nn.SyncBatchNorm.convert_sync_batchnorm(net)";
        check_python(&program("2", ", broadcast_buffers=False", convert, ""));
    }

    #[test]
    fn a_batch_that_is_large_or_unknown_is_silent() {
        check_python(&program("64", "", "pass", ""));
        check_python(&program("int(input())", "", "pass", ""));
    }

    #[test]
    fn other_norms_are_silent() {
        let text = program("2", ", broadcast_buffers=False", "pass", "");
        check_python(&text.replace("nn.BatchNorm2d(3)", "nn.GroupNorm(1, 3)"));
        check_python(&text.replace("nn.BatchNorm2d(3)", "nn.SyncBatchNorm(3)"));
    }

    #[test]
    fn a_block_made_in_another_file_counts() {
        check_files(&[
            (
                "blocks.py",
                "
import torch.nn as nn
def conv_bn(a, b):
    return nn.Sequential(nn.Conv2d(a, b, 3), nn.BatchNorm2d(b), nn.ReLU())
",
            ),
            (
                "main.py",
                r#"
import torch
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler
from blocks import conv_bn
def main(data):
    torch.distributed.init_process_group("nccl")
    net = DistributedDataParallel(conv_bn(3, 8).cuda())  # ~ batchnorm-not-synced
    loader = DataLoader(data, batch_size=2, sampler=DistributedSampler(data))
    opt = torch.optim.SGD(net.parameters(), 0.1)
    for image in loader:
        net(image.cuda()).mean().backward()
        opt.step()
if __name__ == "__main__":
    main([1, 2, 3])
"#,
            ),
        ]);
    }
}
