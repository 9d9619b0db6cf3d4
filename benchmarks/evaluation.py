"""Speed and memory of the Monte-Carlo passes against the bare flow.

    python benchmarks/evaluation.py                               # 32x32x3, C=10, K=10
    python benchmarks/evaluation.py --run RUN --out results/evaluation_speed.csv  # a run's model
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
import csv
import os
import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path

import torch
from torch import Tensor

from protoflows.evaluation import run_passes
from protoflows.flows import DenseFlowConfig
from protoflows.model import ModelConfig, ProtoFlow, evaluating, image_seeds, load
from protoflows.prototypes import PrototypeConfig

EVERYTHING = ("robustness", "distances", "curve")
MEGABYTE = 1024  # ru_maxrss counts kilobytes
# glibc hands every freed block of 64 KiB or more back at once: the peak is what is really in use.
EAGER = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "0"}


def make_model(options: argparse.Namespace) -> ProtoFlow:
    """A run's model, or a flow of a tenth of the paper's cost with as many prototypes as asked."""
    if options.run is not None:
        return load(options.run)
    size = options.size
    flow = DenseFlowConfig(
        (3, size, size), 256, (2, 2, 1), (2, 2, 4), (24, 24, 24), net_depth=3, net_growth=24
    )
    torch.manual_seed(0)
    return ProtoFlow(ModelConfig(options.classes, flow, PrototypeConfig(options.prototypes))).eval()


def make_images(model: ProtoFlow, num: int) -> Tensor:
    """Random pixels: what they show costs nothing."""
    config = model.config.flow
    generator = torch.Generator().manual_seed(0)
    shape = (num, *config.image_shape)
    return torch.randint(0, config.levels, shape, generator=generator, dtype=torch.uint8)


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
    model = make_model(options)
    x = make_images(model, options.images)
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
    classes, prototypes = model.mixtures.mask.shape
    rows = [
        ("model", Path(options.run).name if options.run is not None else "random weights"),
        ("images", str(options.images)),
        ("draws", str(options.samples)),
        ("batch", str(options.batch)),
        ("C, K, D", f"{classes}, {prototypes}, {model.config.flow.latent_dims}"),
        ("threads", str(torch.get_num_threads())),
        *(
            (f"{name}, passes per second", f"{statistics.median(values):.1f}")
            for name, values in rates.items()
        ),
        (
            f"scored / bare, median of {turn} turns [lowest, highest]",
            f"{statistics.median(ratios):.3f} [{min(ratios):.3f}, {max(ratios):.3f}]",
        ),
    ]
    for what, value in rows:
        print(f"{what:<56} {value}")
    if options.out is not None:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        with options.out.open("w", newline="", encoding="utf-8") as file:
            csv.writer(file, lineterminator="\n").writerows([("what", "value"), *rows])


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
        words += ["--run", options.run] if options.run is not None else []
        found = subprocess.run(
            words, check=True, capture_output=True, text=True, env={**os.environ, **EAGER}
        )
        print(f"{num:6d} {samples:6d}   {float(found.stdout):8.1f}")


def child(options: argparse.Namespace) -> None:
    """Run one case of `measure_memory` and print its rise."""
    model = make_model(options)
    x = make_images(model, options.images)
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
    parser.add_argument("--run", help="a run, or a saved model, instead of random weights")
    parser.add_argument("--out", type=Path, help="CSV to write the speed to")
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
