"""Cases that several gloo processes run together: ``python ranks.py SIZE RESULTS [CASE...]``.

A case is a function of :mod:`sharded_cases` that takes the mesh's device count and draws the same
inputs in every process. RESULTS gets the name of each case and None, or what went wrong.
"""

import datetime
import json
import os
import pathlib
import sys
import tempfile
import traceback
import warnings


def run(rank, size, folder, results, chosen):
    import pytest
    import sharded_cases
    import torch

    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    torch.distributed.init_process_group(
        "gloo",
        init_method=f"file://{folder}/rendezvous",
        rank=rank,
        world_size=size,
        timeout=datetime.timedelta(seconds=60),
    )
    found = {}
    for name, case in sharded_cases.CASES.items():
        if chosen and name not in chosen:
            continue
        try:
            case(size)
            found[name] = None
        except pytest.skip.Exception as skipped:
            found[name] = f"skipped: {skipped}"
        except Exception:
            found[name] = f"rank {rank}: {traceback.format_exc()}"
            print(name, found[name], file=sys.stderr, flush=True)  # the others may wait
        each = [None] * size
        torch.distributed.all_gather_object(each, found[name])
        found[name] = next((wrong for wrong in each if wrong), None)
    if rank == 0:
        pathlib.Path(results).write_text(json.dumps(found))
    torch.distributed.barrier()
    sys.stdout.flush()
    os._exit(0)  # gloo's destructor, with the GIL, may wait for a thread that waits for the GIL


if __name__ == "__main__":
    import sharded_cases  # noqa: F401  once, before the fork
    import torch.multiprocessing

    size, results, *chosen = sys.argv[1:]
    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.start_processes(
            run, (int(size), folder, results, chosen), nprocs=int(size), start_method="fork"
        )
