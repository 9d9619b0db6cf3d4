"""Measure a flow: exactness, gradient of the reversible mode, memory, step and inverse time.

    python benchmarks/flow.py                       # the paper's configuration, all but profile
    python benchmarks/flow.py --only speed memory --batch 16 --repeats 5
    python benchmarks/flow.py --units 2 2 --couplings 4 4 --mid 32 32 --image 1 28 28
    python benchmarks/flow.py --device cuda --only exactness gradient inverse speed --batch 64

Every timing has a warm-up and is reported as median [min, max]; variants that are compared run in
turns, flows that train each in a process of its own. Memory is the growth of the process's peak
resident size with the batch, measured in fresh processes.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, replace
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Literal, TypeAlias

import numpy as np
import torch
from torch import Tensor

from protoflows.flows import DenseFlow, DenseFlowConfig

Mode: TypeAlias = Literal["store", "checkpoint", "reversible"]
Dtype: TypeAlias = Literal["float32", "bfloat16"]

SECTIONS = ("exactness", "gradient", "speed", "memory", "inverse", "profile")
DEFAULT_SECTIONS = SECTIONS[:-1]
OPERATIONS = {
    "convolutions, forward": ("mkldnn_convolution", "cudnn_convolution"),
    "convolutions, backward, by the library": ("convolution_backward",),
    "matrix products": ("mm", "addmm", "addmm_", "bmm", "baddbmm", "baddbmm_"),
    "copies and conversions": ("copy_",),
    "ReLUs and their gradients": ("threshold_backward", "clamp_min", "clamp_min_"),
    "AdamW": ("_fused_adamw_",),
}
# glibc hands every freed block of 64 KiB or more back at once: the peak is what is really in use.
EAGER = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "0"}
MEMORY_CHILD = """
import json, pathlib, re, resource, sys, warnings
import torch
from protoflows.flows import DenseFlow, DenseFlowConfig
warnings.simplefilter("ignore")
config, batch = json.loads(sys.argv[1]), int(sys.argv[2])
flow = DenseFlow(DenseFlowConfig(**config)).train()
x = torch.randint(0, config["levels"], (batch, *config["image_shape"]), dtype=torch.uint8)
for _ in range(2):
    (-flow.log_prob(x, seed=0).mean()).backward()
status = pathlib.Path("/proc/self/status")
if status.exists():  # ru_maxrss would start from what the parent process held
    print(int(re.search(r"VmHWM:\\s+(\\d+) kB", status.read_text())[1]) / 1024)
else:
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
"""


def perturb(flow: DenseFlow, seed: int = 1) -> DenseFlow:
    """Move every weight away from its start.

    Last layers start at zero, 1x1 convolutions as rotations.
    """
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, p in flow.named_parameters():
            noise = torch.randn(p.shape, generator=generator)
            if p.dim() == 2:
                p.add_(0.1 * noise / len(p) ** 0.5)
            elif "project_out" in name or "net.2" in name:
                p.add_(0.3 * noise / (p.shape[1] ** 0.5 if p.dim() == 4 else 5))
            else:
                p.add_(0.1 * noise * p.abs().mean().clamp_min(0.05))
    return flow


def clock(function: Callable[[], object], device: str = "cpu") -> float:
    """Return how many seconds a call takes, to the end of what it leaves to a device."""
    wait = torch.cuda.synchronize if device == "cuda" else lambda: None
    wait()
    start = time.perf_counter()
    function()
    wait()
    return time.perf_counter() - start


def spread(values: list[float], digits: int = 2) -> str:
    """Write values as median [min, max]."""
    median = statistics.median(values)
    return f"{median:.{digits}f} [{min(values):.{digits}f}, {max(values):.{digits}f}]"


def matmul_gflops(repeats: int = 5, device: str = "cpu") -> float:
    """Return the machine's float32 2048³ matrix product, in GFLOP/s."""
    a, b = torch.randn(2, 2048, 2048, device=device)
    a @ b
    seconds = statistics.median(clock(lambda: a @ b, device) for _ in range(repeats))
    return 2 * 2048**3 / seconds / 1e9


def step_gflop(config: DenseFlowConfig) -> float:
    """Return the convolutions' multiply-adds of one image's step, in GFLOP.

    Forward and backward together count as three times forward.
    """
    flow = DenseFlow(replace(config, memory="store", net_dtype="float32")).eval()
    from torch.utils.flop_counter import FlopCounterMode

    with FlopCounterMode(display=False) as counter, torch.no_grad():
        flow.log_prob(torch.zeros(1, *config.image_shape, dtype=torch.uint8), seed=0)
    return 3 * counter.get_total_flops() / 1e9


def training_images(config: DenseFlowConfig, batch: int) -> Tensor:
    """Return random images: half noise, half smooth."""
    noise = torch.randint(0, config.levels, (batch, *config.image_shape), dtype=torch.uint8)
    low = torch.rand(batch, config.image_shape[0], 4, 4)
    smooth = torch.nn.functional.interpolate(low, config.image_shape[1:], mode="bilinear") * (
        config.levels - 1
    )
    return torch.where(
        torch.arange(batch).view(-1, 1, 1, 1) % 2 == 0, noise, smooth.to(torch.uint8)
    )


def digit_images(config: DenseFlowConfig, batch: int) -> Tensor:
    """Return scikit-learn's scanned digits, in the config's image size, channels and levels."""
    from sklearn.datasets import load_digits

    x = torch.from_numpy(load_digits().images[:batch]).float()[:, None] / 16
    x = torch.nn.functional.interpolate(x, config.image_shape[1:], mode="bilinear")
    return (
        (x * (config.levels - 1))
        .round()
        .to(torch.uint8)
        .expand(-1, config.image_shape[0], -1, -1)
        .contiguous()
    )


def exactness(config: DenseFlowConfig, batch: int, device: str) -> list[tuple[str, str]]:
    """Count the pixels that encode and decode give back."""
    flow = perturb(DenseFlow(replace(config, net_dtype="float32"))).to(device)
    rows = []
    for kind, x in (
        ("noise", training_images(config, batch)),
        ("digits", digit_images(config, batch)),
    ):
        x = x.to(device)
        flow.train()
        with torch.no_grad():
            flow.encode(x, seed=0)  # data-dependent start
            for mode in ("train", "eval"):
                flow.train(mode == "train")
                same = (flow.decode(flow.encode(x, seed=1)) == x).float().mean().item()
                rows.append(
                    (
                        f"pixels identical after encode, decode ({kind}, {mode})",
                        f"{100 * same:.6f} %",
                    )
                )
    return rows


def gradient(config: DenseFlowConfig, batch: int, device: str) -> list[tuple[str, str]]:
    """Compare reversible gradients with stored ones, and bfloat16 nets with float32 ones."""
    rows = []
    x = training_images(config, batch).to(device)
    for dtype in ("float32", "bfloat16"):
        store = perturb(DenseFlow(replace(config, memory="store", net_dtype=dtype))).to(device)
        reverse = DenseFlow(replace(config, memory="reversible", net_dtype=dtype)).to(device)
        with torch.no_grad():
            store.train().encode(x, seed=3)
        reverse.load_state_dict(store.state_dict())
        for flow in (store, reverse):
            (-flow.train().log_prob(x, seed=0).mean()).backward()
        pairs = [
            (p.grad.double().flatten(), q.grad.double().flatten())
            for p, q in zip(store.parameters(), reverse.parameters(), strict=True)
            if p.grad is not None and q.grad is not None
        ]
        del store, reverse
        a, b = (torch.cat(parts) for parts in zip(*pairs, strict=True))
        size = a.norm()
        cosines = [
            torch.cosine_similarity(g, h, dim=0).item() for g, h in pairs if g.norm() > 1e-6 * size
        ]
        name = f"reversible against store, {dtype}:"
        rows += [
            (f"{name} worst cosine of a parameter", f"{min(cosines):.7f}"),
            (f"{name} cosine of the whole", f"{torch.cosine_similarity(a, b, dim=0):.7f}"),
            (f"{name} relative error of the whole", f"{(a - b).norm() / size:.2e}"),
        ]
    flow = perturb(DenseFlow(replace(config, net_dtype="float32"))).to(device)
    low = DenseFlow(replace(config, net_dtype="bfloat16")).to(device)
    with torch.no_grad():
        flow.train().encode(x, seed=3)
        low.load_state_dict(flow.state_dict())
        nats = flow.eval().log_prob(x, seed=0) - low.eval().log_prob(x, seed=0)
    bits = nats.mean().abs() / (config.dims * math.log(2))
    rows.append(("bits/dim, bfloat16 against float32 nets, |difference|", f"{bits:.5f}"))
    return rows


class Stepper:
    """A flow in training, alone in its process as it would be: it steps when it is told to."""

    def __init__(self, config: DenseFlowConfig, x: Tensor, device: str) -> None:
        context = get_context("spawn")
        self._ours, theirs = context.Pipe()
        self._process = context.Process(
            target=_serve_steps, args=(config, x.numpy(), device, theirs)
        )
        self._process.start()
        self._ours.recv()

    def step(self) -> tuple[float, float]:
        """Return the seconds of one step and the GFLOP/s of a matrix product right before it."""
        self._ours.send("step")
        return self._ours.recv()

    def close(self) -> None:
        """End the process."""
        self._ours.send("end")
        self._process.join()


def _serve_steps(
    config: DenseFlowConfig, images: np.ndarray, device: str, connection: Connection
) -> None:
    torch.manual_seed(0)
    x = torch.from_numpy(images).to(device)
    flow = DenseFlow(config).train().to(device)
    optimizer = torch.optim.AdamW(flow.parameters(), lr=1e-5, fused=True)

    def step() -> None:
        (-flow.log_prob(x, seed=0).mean()).backward()
        optimizer.step()
        optimizer.zero_grad()

    for _ in range(3):
        step()
    connection.send("ready")
    while connection.recv() == "step":
        base = matmul_gflops(3, device)
        connection.send((clock(step, device), base))


def speed(config: DenseFlowConfig, batch: int, repeats: int, device: str) -> list[tuple[str, str]]:
    """Time training steps of each memory mode and dtype, in seconds and in matrix products."""
    x = training_images(config, batch)
    gflop = step_gflop(config)
    variants: list[tuple[Mode, Dtype]] = [
        ("store", "bfloat16"),
        ("reversible", "bfloat16"),
        ("checkpoint", "bfloat16"),
        ("store", "float32"),
    ]
    steppers = {
        (mode, dtype): Stepper(replace(config, memory=mode, net_dtype=dtype), x, device)
        for mode, dtype in variants
    }
    found: dict[tuple[str, str], list[tuple[float, float]]] = {v: [] for v in variants}
    for _ in range(repeats):
        for variant, stepper in steppers.items():
            found[variant].append(stepper.step())
    for stepper in steppers.values():
        stepper.close()
    times = {variant: [seconds for seconds, _ in pairs] for variant, pairs in found.items()}
    ratio = [
        r / s
        for r, s in zip(times["reversible", "bfloat16"], times["store", "bfloat16"], strict=True)
    ]
    bases = [base for pairs in found.values() for _, base in pairs]
    rows = [
        ("matmul float32 2048³", f"{spread(bases, 0)} GFLOP/s"),
        ("a step of one image", f"{gflop:.1f} GFLOP"),
    ]
    for variant, pairs in found.items():
        multiples = [batch * gflop / seconds / base for seconds, base in pairs]
        name = f"step of {batch} (forward, backward, AdamW), {variant[0]}, {variant[1]}"
        rows.append((name, f"{spread(times[variant])} s = {spread(multiples)} x matmul"))
    return [*rows, ("time of reversible / store, bfloat16", spread(ratio))]


def profile(config: DenseFlowConfig, batch: int) -> list[tuple[str, str]]:
    """Share a training step's time (store, bfloat16, third step) out among its operations."""
    from torch.profiler import ProfilerActivity
    from torch.profiler import profile as recording

    flow = DenseFlow(replace(config, memory="store", net_dtype="bfloat16")).train()
    optimizer = torch.optim.AdamW(flow.parameters(), lr=1e-5, fused=True)
    x = training_images(config, batch)

    def step() -> None:
        (-flow.log_prob(x, seed=0).mean()).backward()
        optimizer.step()
        optimizer.zero_grad()

    step()
    step()
    with recording(activities=[ProfilerActivity.CPU]) as found:
        step()
    own = {e.key.removeprefix("aten::"): e.self_cpu_time_total for e in found.key_averages()}
    whole = sum(own.values())
    shares = {
        name: sum(own.pop(key, 0) for key in keys) / whole for name, keys in OPERATIONS.items()
    }
    shares["everything else"] = sum(own.values()) / whole
    return [(f"share of a step: {name}", f"{100 * share:.1f} %") for name, share in shares.items()]


def memory(config: DenseFlowConfig, batches: tuple[int, int]) -> Iterator[tuple[str, str]]:
    """Measure the peak memory that each further image of a batch takes."""
    double = tuple(2 * c for c in config.couplings)
    variants: list[tuple[Mode, Dtype, tuple[int, ...], str]] = [
        ("reversible", "float32", config.couplings, ""),
        ("reversible", "float32", double, ", twice the couplings"),
        ("reversible", "bfloat16", config.couplings, ""),
        ("checkpoint", "float32", config.couplings, ""),
        ("store", "float32", config.couplings, ""),
    ]
    for memory_mode, dtype, couplings, note in variants:
        described = json.dumps(
            asdict(replace(config, memory=memory_mode, net_dtype=dtype, couplings=couplings))
        )
        command = [sys.executable, "-c", MEMORY_CHILD, described]
        small, large = (
            float(
                subprocess.run(
                    [*command, str(n)], check=True, capture_output=True, env=os.environ | EAGER
                ).stdout
            )
            for n in batches
        )
        per_image = (large - small) / (batches[1] - batches[0])
        yield f"peak memory per image, {memory_mode}, {dtype}{note}", f"{per_image:.1f} MB"


def inverse(
    config: DenseFlowConfig, batch: int, repeats: int, device: str
) -> list[tuple[str, str]]:
    """Time encoding and decoding."""
    flow = perturb(DenseFlow(replace(config, net_dtype="float32"))).eval().to(device)
    x = training_images(config, batch).to(device)
    encodes, decodes = [], []
    with torch.no_grad():
        encoding = flow.encode(x, seed=0)
        flow.decode(encoding)
        for _ in range(repeats):
            encodes.append(clock(lambda: flow.encode(x, seed=0), device))
            decodes.append(clock(lambda: flow.decode(encoding), device))
    ratio = [d / e for d, e in zip(decodes, encodes, strict=True)]
    return [
        ("encode", f"{spread(encodes)} s"),
        ("decode", f"{spread(decodes)} s"),
        ("decode / encode", spread(ratio)),
    ]


def _name(device: str) -> str:
    if device == "cuda":
        return torch.cuda.get_device_name()
    return f"CPU, {torch.get_num_threads()} threads"


def main() -> None:
    """Run the chosen sections and print their table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", choices=SECTIONS, default=DEFAULT_SECTIONS)
    parser.add_argument("--image", nargs=3, type=int, default=(3, 32, 32))
    parser.add_argument("--levels", type=int, default=256)
    parser.add_argument("--units", nargs="+", type=int, default=(6, 4, 1))
    parser.add_argument("--couplings", nargs="+", type=int, default=(5, 6, 20))
    parser.add_argument("--mid", nargs="+", type=int, default=(48, 48, 48))
    parser.add_argument("--growth", type=int, default=10)
    parser.add_argument("--depth", type=int, default=7)
    parser.add_argument("--net-growth", type=int, default=64)
    parser.add_argument(
        "--uniform", action="store_true", help="uniform instead of variational dequantisation"
    )
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--memory-batches", nargs=2, type=int, default=(4, 16))
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--out", type=Path, help="write the table there as CSV")
    args = parser.parse_args()
    if args.device != "cpu" and "memory" in args.only:
        parser.error("memory is measured on CPUs alone: choose other sections with --only")
    if args.device != "cpu" and "profile" in args.only:
        parser.error("profile is of CPUs alone: choose other sections with --only")
    config = DenseFlowConfig(
        image_shape=tuple(args.image),
        levels=args.levels,
        units=tuple(args.units),
        couplings=tuple(args.couplings),
        mid_channels=tuple(args.mid),
        noise_growth=args.growth,
        net_depth=args.depth,
        net_growth=args.net_growth,
        dequantization="uniform" if args.uniform else "variational",
    )
    torch.manual_seed(0)
    parameters = sum(p.numel() for p in DenseFlow(config).parameters())
    rows = [
        ("parameters", f"{parameters:,}"),
        ("device", _name(args.device)),
        ("torch", torch.__version__),
    ]
    sections: dict[str, Callable[[], Iterable[tuple[str, str]]]] = {
        "exactness": lambda: exactness(config, args.batch, args.device),
        "gradient": lambda: gradient(config, max(2, args.batch // 4), args.device),
        "speed": lambda: speed(config, args.batch, args.repeats, args.device),
        "memory": lambda: memory(config, tuple(args.memory_batches)),
        "profile": lambda: profile(config, args.batch),
        "inverse": lambda: inverse(config, args.batch, args.repeats, args.device),
    }
    for row in rows:
        print("{:<75} {}".format(*row))
    for name in args.only:
        for row in sections[name]():
            print("{:<75} {}".format(*row), flush=True)
            rows.append(row)
    if args.out:
        with args.out.open("w", newline="") as file:
            csv.writer(file).writerows([("what", "value"), *rows])


if __name__ == "__main__":
    main()
