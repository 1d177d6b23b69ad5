"""Trains a model with Python's own DistributedDataParallel, for comparison with tch-ddp.

Started by torchrun with the folders of cases. Each holds `case.json` (model, optimizer, steps, lr),
`start.safetensors` (the variables) and `data.safetensors` (x and y of the whole batch). Rank 0 writes
`python.json` there: the mean loss of every step and the sizes of the gradient buckets.
"""

import json
import struct
import sys
from pathlib import Path

import numpy
import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

KINDS = {"F32": numpy.float32, "F64": numpy.float64, "I64": numpy.int64}


def read_safetensors(path):
    """The tensors of a file by name; the format is a length, a JSON header, and raw values."""
    data = path.read_bytes()
    (header_len,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + header_len])
    tensors = {}
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        first, end = (8 + header_len + offset for offset in entry["data_offsets"])
        values = numpy.frombuffer(data[first:end], KINDS[entry["dtype"]])
        tensors[name] = torch.tensor(values.reshape(entry["shape"]))
    return tensors


class Mlp(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(6, 16)
        self.second = nn.Linear(16, 2)

    def forward(self, x):
        return self.second(torch.tanh(self.first(x)))


class Conv(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(1, 4, 3, padding=1)
        self.norm = nn.BatchNorm2d(4)
        self.head = nn.Linear(4 * 16, 3)

    def forward(self, x):
        return self.head(functional.relu(self.norm(self.conv(x))).flatten(1))


class Words(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(11, 8)
        self.norm = nn.LayerNorm(8)
        self.head = nn.Linear(8, 11)

    def forward(self, x):
        return self.head(self.norm(self.embed(x).mean(1)))


class Wide(nn.Module):
    def __init__(self):
        super().__init__()
        widths = [6, 600, 600, 600, 600, 2]
        for layer, (inputs, outputs) in enumerate(zip(widths, widths[1:])):
            setattr(self, f"layer{layer}", nn.Linear(inputs, outputs))

    def forward(self, x):
        for layer in self.children():
            x = torch.tanh(layer(x))
        return x


MODELS = {"mlp": Mlp, "conv": Conv, "words": Words, "wide": Wide}
OPTIMIZERS = {
    "sgd": lambda params, lr: torch.optim.SGD(params, lr, momentum=0.9),
    "adamw": lambda params, lr: torch.optim.AdamW(params, lr, weight_decay=0.01),
}


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    for folder in sys.argv[1:]:
        train(Path(folder))
    dist.destroy_process_group()


def train(folder):
    case = json.loads((folder / "case.json").read_text())
    model = MODELS[case["model"]]()
    model.load_state_dict(read_safetensors(folder / "start.safetensors"), strict=False)
    model = DistributedDataParallel(model)
    optimizer = OPTIMIZERS[case["optimizer"]](model.parameters(), case["lr"])
    data = read_safetensors(folder / "data.safetensors")
    share = len(data["x"]) // dist.get_world_size()
    mine = slice(dist.get_rank() * share, (dist.get_rank() + 1) * share)
    x, y = data["x"][mine], data["y"][mine]
    criterion = functional.mse_loss if y.is_floating_point() else functional.cross_entropy
    losses = []
    for _ in range(case["steps"]):
        optimizer.zero_grad()
        loss = criterion(model(x), y)
        loss.backward()
        optimizer.step()
        mean = loss.detach() / dist.get_world_size()
        dist.all_reduce(mean)
        losses.append(mean.item())
    if dist.get_rank() == 0:
        logged = model._get_ddp_logging_data()
        sizes = logged.get("rebuilt_bucket_sizes") or logged["bucket_sizes"]
        result = {"losses": losses, "buckets": [int(size) for size in sizes.split(",")]}
        (folder / "python.json").write_text(json.dumps(result))


if __name__ == "__main__":
    main()
