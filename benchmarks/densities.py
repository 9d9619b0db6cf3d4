"""Speed, memory and accuracy of the prototype densities against a loop over classes.

    python benchmarks/densities.py                     # the paper's largest: C=100, K=10, D=4928
    python benchmarks/densities.py --classes 10 --prototypes 5 --dims 784 --batch 128

The loop broadcasts (N, K, D) differences class by class, the obvious way to write the densities.
Both are timed in turns, so that a busy machine slows both. Memory is how far the resident set rises
above where it stood, sampled during one evaluation, each case in a process of its own; "inputs +
outputs" counts z, means, standard deviations and the table, and with a backward pass their
gradients as well. The loop's backward pass needs 10 GB at the default sizes: only on demand.
"""

from __future__ import annotations

import argparse
import math
import resource
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from protoflows.prototypes.densities import gaussian_log_prob

Densities = Callable[[Tensor, Tensor, Tensor], Tensor]
MEGABYTE = 1e6


def class_loop(z: Tensor, mean: Tensor, std: Tensor) -> Tensor:
    """Per-class broadcasts in float32; mean and std (C, K, D), result (N, C, K)."""
    table = []
    for mu, sigma in zip(mean, std, strict=True):
        scaled = (z[:, None] - mu) / sigma
        table.append(-0.5 * (scaled.square() + 2 * sigma.log() + math.log(2 * math.pi)).sum(-1))
    return torch.stack(table, dim=1)


def one_pass(z: Tensor, mean: Tensor, std: Tensor) -> Tensor:
    """The package's densities, same arguments and result."""
    table = gaussian_log_prob(z, mean.flatten(0, 1), std.flatten(0, 1))
    return table.unflatten(1, mean.shape[:2])


METHODS: dict[str, Densities] = {"loop": class_loop, "one pass": one_pass}


def make_inputs(options: argparse.Namespace) -> tuple[Tensor, Tensor, Tensor]:
    """Embeddings that lie at prototypes whose means are tens of standard deviations apart."""
    generator = torch.Generator().manual_seed(0)
    shape = (options.classes, options.prototypes, options.dims)
    mean = 30.0 * torch.randn(shape, generator=generator)
    std = torch.rand(shape, generator=generator).add_(0.5)
    owner = torch.arange(options.batch) % (options.classes * options.prototypes)
    z = torch.randn(options.batch, options.dims, generator=generator)
    z.mul_(std.flatten(0, 1)[owner]).add_(mean.flatten(0, 1)[owner])
    return z, mean, std


def call(method: Densities, inputs: tuple[Tensor, Tensor, Tensor], backward: bool) -> None:
    """One evaluation, with gradients to all three inputs if asked."""
    if not backward:
        with torch.no_grad():
            method(*inputs)
        return
    leaves = [t.detach().requires_grad_() for t in inputs]
    method(*leaves).sum().backward()


def time_in_turns(
    options: argparse.Namespace, methods: dict[str, Densities], backward: bool
) -> dict[str, list[float]]:
    """Seconds of each method, after a warm-up, alternating."""
    inputs = make_inputs(options)
    for method in methods.values():
        call(method, inputs, backward)
    seconds: dict[str, list[float]] = {name: [] for name in methods}
    for _ in range(options.repeats):
        for name, method in methods.items():
            start = time.perf_counter()
            call(method, inputs, backward)
            seconds[name].append(time.perf_counter() - start)
    return seconds


def peak_growth(options: argparse.Namespace) -> float:
    """Rise of this process's resident memory (bytes) during one evaluation, inputs not counted."""
    method = METHODS[options.measure]
    tiny = argparse.Namespace(classes=2, prototypes=2, dims=256, batch=64)
    call(method, make_inputs(tiny), True)  # libraries and thread pools take their memory first
    inputs = make_inputs(options)
    before = peak = resident()
    worker = threading.Thread(target=call, args=(method, inputs, options.backward))
    worker.start()
    while worker.is_alive():
        peak = max(peak, resident())
        time.sleep(0.0005)
    worker.join()
    return float(peak - before)


def resident() -> int:
    """Resident memory of this process, in bytes (Linux)."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()


def peak_in_subprocess(options: argparse.Namespace, method: str, backward: bool) -> float:
    """`peak_growth` of one method in a fresh process."""
    command = [sys.executable, __file__, "--measure", method]
    for name in ("classes", "prototypes", "dims", "batch", "threads"):
        command += [f"--{name}", str(getattr(options, name))]
    command += ["--backward"] if backward else []
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return float(done.stdout)


def worst_error(options: argparse.Namespace) -> tuple[float, float]:
    """Largest difference from float64 broadcasts (nats) on some images, and the largest value."""
    z, mean, std = make_inputs(options)
    z = z[:16]
    expected = class_loop(z.double(), mean.double(), std.double())
    error = (one_pass(z, mean, std) - expected).abs().max()
    return error.item(), expected.abs().max().item()


def report(options: argparse.Namespace) -> None:
    """Print the table."""
    prototypes = options.classes * options.prototypes
    parameters = 2 * prototypes * options.dims
    moved = 4 * (options.batch * options.dims + parameters) + 8 * options.batch * prototypes
    print(
        f"C={options.classes} K={options.prototypes} D={options.dims} N={options.batch}, "
        f"{torch.get_num_threads()} threads, torch {torch.__version__}, "
        f"{options.repeats} repeats in turns"
    )
    for backward in (False, True):
        print("forward + backward" if backward else "forward")
        chosen = dict(METHODS)
        if backward and not options.loop_backward:
            del chosen["loop"]
        seconds = time_in_turns(options, chosen, backward)
        for name, values in seconds.items():
            low, high = 1e3 * min(values), 1e3 * max(values)
            peak = peak_in_subprocess(options, name, backward) / MEGABYTE
            print(
                f"  {name:9s} median {1e3 * statistics.median(values):9.2f} ms "
                f"(from {low:.2f} to {high:.2f}), extra peak memory {peak:7.1f} MB"
            )
        print(f"  inputs + outputs {moved * (2 if backward else 1) / MEGABYTE:.1f} MB")
        if "loop" in seconds:
            ratios = [a / b for a, b in zip(seconds["loop"], seconds["one pass"], strict=True)]
            print(
                f"  one pass is {statistics.median(ratios):.1f}x faster "
                f"(from {min(ratios):.1f} to {max(ratios):.1f})"
            )
    error, largest = worst_error(options)
    print(f"largest error against float64: {error:.2e} nat, where values reach {largest:.2e}")


def main() -> None:
    """Parse the command line and report, or measure one case for the parent process."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--classes", type=int, default=100)
    parser.add_argument("--prototypes", type=int, default=10)
    parser.add_argument("--dims", type=int, default=4928)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--loop-backward", action="store_true")
    parser.add_argument("--measure", choices=sorted(METHODS), help=argparse.SUPPRESS)
    parser.add_argument("--backward", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    if options.measure:
        print(peak_growth(options))
    else:
        report(options)


if __name__ == "__main__":
    main()
