"""Deals samples with Python's DistributedSampler.

Reads cases `[n, world size, rank, seed, epoch, flags]` (flags: 1 keeps the order, 2 pads) from the first
file and writes the indices of each to the second.
"""

import json
import sys
from pathlib import Path

from torch.utils.data import DistributedSampler


def indices(n, world_size, rank, seed, epoch, flags):
    sampler = DistributedSampler(
        range(n), world_size, rank, shuffle=not flags & 1, seed=seed, drop_last=not flags & 2
    )
    sampler.set_epoch(epoch)
    return list(sampler)


cases = json.loads(Path(sys.argv[1]).read_text())
Path(sys.argv[2]).write_text(json.dumps([indices(*case) for case in cases]))
