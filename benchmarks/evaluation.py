"""Speed and memory of the Monte-Carlo passes against the bare flow.

    python benchmarks/evaluation.py                               # 32x32x3, C=10, K=10
    python benchmarks/evaluation.py --classes 100 --seconds 60
    python benchmarks/evaluation.py --memory                      # more images and more draws

Bare is `encode` on the same images in the same batches with the same seeds, and nothing else; the
passes score every prototype and keep all running figures (robustness, distances and the curve
included). Both are timed in turns, so that a busy machine slows both, and each turn gives one
ratio; the median counts. Images per second are images times draws. Memory is the highest resident
set of a process of its own, less what it holds before the first pass.
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import subprocess
import sys
import time

import torch
from torch import Tensor

from protoflows.evaluation import run_passes
from protoflows.flows import DenseFlowConfig
from protoflows.model import ModelConfig, ProtoFlow, evaluating, image_seeds
from protoflows.prototypes import PrototypeConfig

EVERYTHING = ("robustness", "distances", "curve")
MEGABYTE = 1024  # ru_maxrss counts kilobytes
# glibc hands every freed block of 64 KiB or more back at once: the peak is what is really in use.
EAGER = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "0"}


def make_model(options: argparse.Namespace) -> ProtoFlow:
    """A flow of a tenth of the paper's cost, with as many prototypes as asked for."""
    size = options.size
    flow = DenseFlowConfig(
        (3, size, size), 256, (2, 2, 1), (2, 2, 4), (24, 24, 24), net_depth=3, net_growth=24
    )
    torch.manual_seed(0)
    return ProtoFlow(ModelConfig(options.classes, flow, PrototypeConfig(options.prototypes))).eval()


def make_images(num: int, size: int) -> Tensor:
    """Random pixels: what they show costs nothing."""
    generator = torch.Generator().manual_seed(0)
    return torch.randint(0, 256, (num, 3, size, size), generator=generator, dtype=torch.uint8)


@torch.no_grad()
def bare(model: ProtoFlow, x: Tensor, samples: int, batch: int) -> int:
    """Encode every image `samples` times; the number of passes."""
    with evaluating(model):
        for start in range(0, len(x), batch):
            part = x[start : start + batch]
            for sample in range(samples):
                model.encode(part, seed=image_seeds(start, len(part), sample, 0))
    return len(x) * samples


def scored(model: ProtoFlow, x: Tensor, samples: int, batch: int) -> int:
    """The passes with all that they keep; the number of passes, the noisy copy's included."""
    found = run_passes(model, x, samples=samples, batch_size=batch, collect=EVERYTHING)
    return int(found.passes.sum())


def measure_speed(options: argparse.Namespace) -> None:
    """Print passes per second of both, and their ratio."""
    model, x = make_model(options), make_images(options.images, options.size)
    for run in (bare, scored):  # caches of the weights, and the allocator
        run(model, x[: options.batch], 1, options.batch)
    rates: dict[str, list[float]] = {"bare": [], "scored": []}
    end = time.perf_counter() + options.seconds
    turn = 0
    while turn < 3 or time.perf_counter() < end:
        order = (bare, scored) if turn % 2 == 0 else (scored, bare)
        for run in order:
            begin = time.perf_counter()
            passes = run(model, x, options.samples, options.batch)
            rates[run.__name__].append(passes / (time.perf_counter() - begin))
        turn += 1
    ratios = [s / b for s, b in zip(rates["scored"], rates["bare"], strict=True)]
    dims = model.config.flow.latent_dims
    print(
        f"{options.images} images, {options.samples} draws, batch {options.batch}, "
        f"C={options.classes}, K={options.prototypes}, D={dims}, "
        f"{torch.get_num_threads()} thread(s)"
    )
    for name, values in rates.items():
        print(f"{name:<8} {statistics.median(values):8.1f} passes/s")
    low, high = min(ratios), max(ratios)
    print(f"ratio    {statistics.median(ratios):8.3f} (of {turn} turns: {low:.3f} to {high:.3f})")


def measure_memory(options: argparse.Namespace) -> None:
    """Print how far memory rises with more images and with more draws."""
    cases = [(1, 1), (1, 4), (4, 1), (4, 4)]
    print("images  draws   highest above the start, MB")
    for images, draws in cases:
        num, samples = images * options.images, draws * options.samples
        words = [sys.executable, __file__, "--child", "--images", str(num)]
        for name in ("classes", "prototypes", "size", "batch"):
            words += [f"--{name}", str(getattr(options, name))]
        words += ["--samples", str(samples)]
        found = subprocess.run(
            words, check=True, capture_output=True, text=True, env={**os.environ, **EAGER}
        )
        print(f"{num:6d} {samples:6d}   {float(found.stdout):8.1f}")


def child(options: argparse.Namespace) -> None:
    """Run one case of `measure_memory` and print its rise."""
    model, x = make_model(options), make_images(options.images, options.size)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    scored(model, x, options.samples, options.batch)
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print((after - before) / MEGABYTE)


def main() -> None:
    """Read the options and measure."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--images", type=int, default=64)
    parser.add_argument("--samples", type=int, default=2)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--classes", type=int, default=10)
    parser.add_argument("--prototypes", type=int, default=10)
    parser.add_argument("--size", type=int, default=32)
    parser.add_argument("--seconds", type=float, default=30)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--memory", action="store_true", help="memory instead of speed")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    if options.child:
        child(options)
    elif options.memory:
        measure_memory(options)
    else:
        measure_speed(options)


if __name__ == "__main__":
    main()
