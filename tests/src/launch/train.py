"""A small DistributedDataParallel training on Gloo that resumes from its checkpoint.

Deterministic: the parameters at the end depend on the number of ranks and steps only, not on
how the ranks were started or how often they were restarted.
"""

import argparse
import os
import time

import torch
import torch.distributed as dist
from torch.distributed.elastic.multiprocessing.errors import record
from torch.nn.parallel import DistributedDataParallel


def load(path, model, optimizer):
    if not os.path.exists(path):
        return 0
    state = torch.load(path)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    return state["step"]


def save(path, model, optimizer, step):
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
    torch.save(state, path + ".new")
    os.replace(path + ".new", path)


@record
def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--pause", type=float, default=0.0)
    parser.add_argument("--pause-until-restart", type=int, default=0)
    parser.add_argument("--checkpoint", default="")
    parser.add_argument("--fail-at", type=int, default=-1)
    parser.add_argument("--result", default="")
    args = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    first = load(args.checkpoint, model, optimizer) if args.checkpoint else 0
    ddp = DistributedDataParallel(model)
    print(f"rank {rank} begins at step {first}", flush=True)
    for step in range(first, args.steps):
        if step == args.fail_at and rank == 1:
            raise ValueError(f"the batch of step {step} is empty")
        generator = torch.Generator().manual_seed(1000 * step + rank)
        x = torch.randn(32, 8, generator=generator)
        loss = (ddp(x) - x.sum(1, keepdim=True).sin()).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if args.checkpoint and rank == 0:
            save(args.checkpoint, model, optimizer, step + 1)
        if int(os.environ["TORCHELASTIC_RESTART_COUNT"]) < args.pause_until_restart:
            time.sleep(args.pause)
    values = torch.cat([value.flatten() for value in model.state_dict().values()])
    print(f"rank {rank} ends", flush=True)
    if args.result and rank == 0:
        with open(args.result, "w") as file:
            file.write("\n".join(f"{value:.9e}" for value in values.tolist()))
    dist.barrier()
    dist.destroy_process_group()


main()
