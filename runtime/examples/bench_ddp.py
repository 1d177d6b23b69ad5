"""Measures a step of Python's DistributedDataParallel, as bench_ddp.rs measures that of tch-ddp."""

import argparse
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

STEPS = {"mlp64": 1500, "mlp256": 500, "mlp1024": 60, "resnet18": 30}


class Block(nn.Module):
    """A basic block of ResNet-18."""

    def __init__(self, inputs, outputs, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.shortcut = None
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs)
            )

    def forward(self, x):
        out = self.bn2(self.conv2(functional.relu(self.bn1(self.conv1(x)))))
        return functional.relu(out + (x if self.shortcut is None else self.shortcut(x)))


def build(name):
    if name == "resnet18":
        layers = [
            nn.Conv2d(3, 64, 7, 2, 3, bias=False),
            nn.BatchNorm2d(64),
            nn.ReLU(),
            nn.MaxPool2d(3, 2, 1),
        ]
        inputs = 64
        for outputs, stride in [(64, 1), (128, 2), (256, 2), (512, 2)]:
            layers += [Block(inputs, outputs, stride), Block(outputs, outputs, 1)]
            inputs = outputs
        layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 10)]
        return nn.Sequential(*layers)
    width = int(name.removeprefix("mlp"))
    layers = []
    for _ in range(7):
        layers += [nn.Linear(width, width), nn.ReLU()]
    return nn.Sequential(*layers)


def batch(name, rows):
    if name == "resnet18":
        rows = rows or 8
        return torch.randn(rows, 3, 64, 64), torch.randn(rows, 10)
    width = int(name.removeprefix("mlp"))
    rows = rows or 32
    return torch.randn(rows, width), torch.randn(rows, width)


def timed(n, call):
    """Milliseconds per call, after a few that do not count."""
    for _ in range(min(50, max(3, -(-n // 5)))):
        call()
    started = time.perf_counter()
    for _ in range(n):
        call()
    return (time.perf_counter() - started) * 1e3 / n


def peak_mib():
    with open("/proc/self/status") as status:
        for line in status:
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) / 1024
    return 0.0


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", default="mlp256", choices=STEPS)
    parser.add_argument("--steps", type=int)
    parser.add_argument("--rows", type=int)
    parser.add_argument("--momentum", type=float, default=0.0)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    dist.init_process_group("gloo")
    x, y = batch(arguments.model, arguments.rows)
    n = arguments.steps or STEPS[arguments.model]
    net = build(arguments.model)
    ddp = DistributedDataParallel(net)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=1e-3, momentum=arguments.momentum)

    def step(model):
        optimizer.zero_grad()
        # ddp-lint: allow(unwrapped-alias-trained) -- also times the step without the wrapper
        functional.mse_loss(model(x), y).backward()
        optimizer.step()

    step_ms = timed(n, lambda: step(ddp))
    peak = peak_mib()
    flat = torch.zeros(sum(p.numel() for p in net.parameters()))
    all_reduce_ms = timed(-(-n // 3), lambda: dist.all_reduce(flat))
    del ddp
    compute_ms = timed(-(-n // 3), lambda: step(net))
    dist.barrier()
    if dist.get_rank() == 0:
        print(
            f"steps_per_second={1e3 / step_ms:.2f} compute_ms={compute_ms:.3f} "
            f"all_reduce_ms={all_reduce_ms:.3f} peak_mib={peak:.0f}"
        )
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
