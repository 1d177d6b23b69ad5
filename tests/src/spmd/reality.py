"""Runs generated programs for real, one after the other, as one of two Gloo ranks.

Usage: reality.py FOLDER N TIMEOUT_S, with RANK, LOCAL_RANK and WORLD_SIZE set. Runs
FOLDER/0.py to FOLDER/N-1.py and writes one word for each to FOLDER/rank-R.json: "ended", "failed"
(the program raised its own error), or what torch said of the collectives.
"""

import datetime
import json
import os
import runpy
import sys
import time

import torch.distributed as dist

FOLDER, N, TIMEOUT_S = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
RANK, WORLD_SIZE = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
TIMEOUT = datetime.timedelta(seconds=TIMEOUT_S)
# A machine may be slow to start both ranks; a hang of the programs ends much sooner.
PATIENCE_S = 120

init_process_group, new_group = dist.init_process_group, dist.new_group


def run(path, store):
    def init(backend):
        init_process_group(backend, store=store, rank=RANK, world_size=WORLD_SIZE, timeout=TIMEOUT)

    dist.init_process_group = init
    dist.new_group = lambda ranks: new_group(ranks, timeout=TIMEOUT)
    sys.argv = [path]
    try:
        runpy.run_path(path, run_name="__main__")
    except SystemExit:
        pass
    except RuntimeError as error:
        text = str(error)
        return "failed" if text == "failed" else text or "an error without words"
    return "ended"


def meet(store, key):
    """Waits until all ranks are here."""
    store.add(key, 1)
    start = time.monotonic()
    while store.add(key, 0) < WORLD_SIZE:
        if time.monotonic() - start > PATIENCE_S:
            raise SystemExit(f"the other rank never came to {key}")
        time.sleep(0.01)


def main():
    store = dist.FileStore(os.path.join(FOLDER, "store"), WORLD_SIZE)
    results = []
    for index in range(N):
        meet(store, f"start-{index}")
        results.append(run(os.path.join(FOLDER, f"{index}.py"), dist.PrefixStore(str(index), store)))
        # Who leaves first would break the connections of who still waits.
        meet(store, f"end-{index}")
        if dist.is_initialized():
            dist.destroy_process_group()
    with open(os.path.join(FOLDER, f"rank-{RANK}.json"), "w") as file:
        json.dump(results, file)


main()
