"""Shows on two ranks what Python's own DistributedDataParallel lets pass.

Each function walks into one trap and returns what happened: `error` (the first exception's text, or
null), and the values of both ranks that show the damage. Rank 0 writes them to the file given.
"""

import json
import sys
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def of_both_ranks(value):
    both = [None, None]
    dist.all_gather_object(both, value)
    return both


def attempt(body):
    """The text of the exception that `body` ends with, or None."""
    try:
        body()
    except RuntimeError as error:
        return str(error)
    return None


def model():
    torch.manual_seed(0)
    return nn.Linear(1, 1, bias=False)


def local_input():
    return torch.full((1, 1), float(dist.get_rank() + 1))


def unused_parameter():
    class TwoHeads(nn.Module):
        def __init__(self):
            super().__init__()
            self.used, self.spare = model(), model()

        def forward(self, x):
            return self.used(x)

    ddp = DistributedDataParallel(TwoHeads())
    error = attempt(lambda: ddp(local_input()).sum().backward())
    return error, ddp.module.used.weight.grad.item()


def other_order():
    class Pair(nn.Module):
        def __init__(self):
            super().__init__()
            for name in ["a", "b"] if dist.get_rank() == 0 else ["b", "a"]:
                self.register_parameter(name, nn.Parameter(torch.zeros(1)))

        def forward(self):
            return (self.a * 1 + self.b * 10).sum()

    ddp = DistributedDataParallel(Pair())
    error = attempt(lambda: ddp().backward())
    return error, [ddp.module.a.grad.item(), ddp.module.b.grad.item()]


def other_shapes():
    # A group of its own, because the ranks part in it.
    group = dist.new_group(timeout=timedelta(seconds=5))
    module = nn.Linear(1, 1 + dist.get_rank(), bias=False)
    error = attempt(lambda: DistributedDataParallel(module, process_group=group))
    return error, list(module.weight.shape)


def other_names():
    class Single(nn.Module):
        def __init__(self):
            super().__init__()
            name = "a" if dist.get_rank() == 0 else "b"
            self.register_parameter(name, nn.Parameter(torch.zeros(1)))

        def forward(self):
            return sum(parameter.sum() for parameter in self.parameters())

    ddp = DistributedDataParallel(Single())
    error = attempt(lambda: ddp().backward())
    return error, [name for name, _ in ddp.module.named_parameters()]


def kind_changed():
    ddp = DistributedDataParallel(model())
    ddp.double()

    def two_steps():
        for _ in range(2):
            ddp.zero_grad()
            ddp(local_input().double()).sum().backward()

    error = attempt(two_steps)
    return error, ddp.module.weight.grad.item()


def frozen_late():
    ddp = DistributedDataParallel(TwoLayers())
    ddp.module.second.requires_grad_(False)
    error = attempt(lambda: ddp(local_input()).sum().backward())
    return error, ddp.module.first.weight.grad.item()


def second_backward():
    ddp = DistributedDataParallel(model())
    loss = ddp(local_input()).sum()
    loss.backward(retain_graph=True)
    error = attempt(loss.backward)
    return error, ddp.module.weight.grad.item()


def bypassed():
    ddp = DistributedDataParallel(model())
    error = attempt(lambda: ddp.module(local_input()).sum().backward())
    return error, ddp.module.weight.grad.item()


class TwoLayers(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = model(), model()

    def forward(self, x):
        return self.first(x) + self.second(x)


def added_late():
    class Grown(TwoLayers):
        def forward(self, x):
            return super().forward(x) + self.late * x

    module = Grown()
    ddp = DistributedDataParallel(module)
    module.late = nn.Parameter(torch.zeros(1))
    return attempt(lambda: ddp(local_input()).sum().backward()), module.late.grad.item()


def outside():
    factor = torch.ones(1, requires_grad=True)

    class Scaled(TwoLayers):
        def forward(self, x):
            return super().forward(x) * factor

    ddp = DistributedDataParallel(Scaled())

    def two_steps():
        for _ in range(2):
            factor.grad = None
            ddp(local_input()).sum().backward()

    return attempt(two_steps), factor.grad.item()


def drifted():
    ddp = DistributedDataParallel(TwoLayers())

    def two_steps():
        for _ in range(2):
            ddp(local_input()).sum().backward()
            if dist.get_rank() == 1:
                with torch.no_grad():
                    ddp.module.first.weight.add_(1e-3)

    return attempt(two_steps), ddp.module.first.weight.item()


def uneven_batches():
    ddp = DistributedDataParallel(TwoLayers())
    rows = torch.tensor([[1.0], [2.0, 2.0, 5.0]][dist.get_rank()]).unsqueeze(1)
    return attempt(lambda: ddp(rows).mean().backward()), ddp.module.first.weight.grad.item()


def joined_adam():
    ddp = DistributedDataParallel(model())
    optimizer = torch.optim.Adam(ddp.parameters(), lr=0.1)

    def step():
        optimizer.zero_grad()
        (ddp(local_input()) ** 2).sum().backward()
        optimizer.step()

    def train():
        with ddp.join():
            for _ in range([4, 1][dist.get_rank()]):
                step()
        step()

    error = attempt(train)
    return error, ddp.module.weight.item()


TRAPS = [
    unused_parameter,
    other_order,
    other_shapes,
    other_names,
    kind_changed,
    frozen_late,
    second_backward,
    bypassed,
    added_late,
    outside,
    drifted,
    uneven_batches,
    joined_adam,
]


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    results = {}
    for trap in TRAPS:
        error, value = trap()
        results[trap.__name__] = {"error": of_both_ranks(error), "values": of_both_ranks(value)}
    if dist.get_rank() == 0:
        Path(sys.argv[1]).write_text(json.dumps(results))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
