"""Two processes share the batches, and both get what one process gets."""

from __future__ import annotations

import socket
import sys
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from protoflows.evaluation import run_passes
from tests.evaluation.test_passes import assert_same
from tests.model.helpers import small_model, some_images

OPTIONS = {"samples": 2, "batch_size": 3, "collect": ("robustness", "distances", "curve")}


def evaluate_share(rank: int, port: int, folder: str, root: str) -> None:
    sys.path.insert(0, root)
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    model, x = small_model(), some_images(11)
    calls = []
    encode = model.encode

    def counting(images, **options):
        calls.append(len(images))
        return encode(images, **options)

    model.encode = counting
    found = run_passes(model, x, store=Path(folder) / "store", **OPTIONS)
    torch.save({"passes": found, "rows": sum(calls)}, Path(folder) / f"{rank}.pt")
    dist.destroy_process_group()


def test_two_processes(tmp_path):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    root = str(Path(__file__).parents[2])
    mp.spawn(evaluate_share, (port, str(tmp_path), root), nprocs=2)
    found = [torch.load(tmp_path / f"{rank}.pt", weights_only=False) for rank in (0, 1)]
    alone = run_passes(small_model(), some_images(11), **OPTIONS)
    for one in found:
        assert_same(one["passes"], alone, rtol=0, atol=0)
    assert [one["rows"] for one in found] == [6 * 3, 5 * 3]
