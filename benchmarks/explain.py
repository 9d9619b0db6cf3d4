"""How long heatmaps take, and what explanations of a run reach.

    python benchmarks/explain.py --out results/explain.csv      # heatmaps, random weights, 3x32x32
    python benchmarks/explain.py --run RUN --images 1000 --out results/explain-mnist.csv
    python benchmarks/explain.py --run RUN --only counterfactuals

The first part compares the heatmaps of one image under all prototypes with encoding as many images
as it has patches, and with one pass per patch and prototype. The others measure, on test images of
a run: the exact decomposition, the ends of interpolations, counterfactuals to a random other class,
and the relevance ordering test. The table is written anew after each part.
"""

from __future__ import annotations

import argparse
import csv
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from protoflows.evaluation.estimate import wilson_interval
from protoflows.explain.attribution import attribute_classes, attribute_prototypes
from protoflows.explain.counterfactual import find_counterfactuals
from protoflows.explain.faithfulness import relevance_ordering
from protoflows.explain.interpolation import interpolate
from protoflows.explain.parts import PrototypeParts, default_patch, patch_grid
from protoflows.flows import DenseFlowConfig
from protoflows.model import ModelConfig, ProtoFlow
from protoflows.prototypes import PrototypeConfig

Rows = list[tuple[str, str]]


def seconds(make: Callable[[], object], repeats: int) -> float:
    """Median seconds of a call, after one to warm up."""
    make()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        make()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def random_model(classes: int, prototypes: int, width: int) -> ProtoFlow:
    """A flow for 3x32x32 whose weights are not trained: that does not change the time."""
    flow = DenseFlowConfig(
        (3, 32, 32), 256, units=(2, 2, 1), couplings=(2, 2, 4), mid_channels=(width,) * 3,
        noise_growth=4, net_depth=3, net_growth=width, dequantization_channels=width // 2,
        dequantization_depth=2, dequantization_growth=width // 2,
    )  # fmt: skip
    torch.manual_seed(0)
    config = PrototypeConfig(num_prototypes=prototypes)
    return ProtoFlow(ModelConfig(classes, flow, config)).eval()


@torch.no_grad()
def heatmap_times(options: argparse.Namespace) -> Rows:
    """Times of the heatmaps of one image."""
    model = random_model(options.classes, options.prototypes, options.width)
    generator = torch.Generator().manual_seed(options.seed)
    x = torch.randint(0, 256, (1, 3, 32, 32), generator=generator, dtype=torch.uint8)
    baseline = torch.full((3, 32, 32), 128.0)
    patch = default_patch(model)
    num = len(patch_grid((32, 32), patch)[0])
    prototypes = int(model.mixtures.mask.sum())
    many = x.expand(num, 3, 32, 32).contiguous()
    parts = PrototypeParts(model)

    def heat() -> object:
        return parts.attribute(x, baseline, (0, 0), patch=patch, perturbations_per_eval=num)

    # Turn about, so that a machine that slows down slows both.
    encode, attribute = [], []
    for _ in range(options.repeats):
        encode.append(seconds(lambda: model.encode(many, temperature=0.0), 1))
        attribute.append(seconds(heat, 1))
    one = seconds(
        lambda: model.prototype_log_likelihood(model.encode(x, temperature=0.0))[:, 0, 0],
        options.repeats,
    )
    ratios = [a / e for a, e in zip(attribute, encode, strict=True)]
    naive = one * num * prototypes
    return [
        ("heatmaps: patches", f"{num} of {patch}x{patch}"),
        ("heatmaps: prototypes", str(prototypes)),
        (f"heatmaps: encoding {num} images, ms", f"{1000 * statistics.median(encode):.1f}"),
        ("heatmaps: all prototypes, ms", f"{1000 * statistics.median(attribute):.1f}"),
        ("heatmaps: times encoding", _spread(ratios)),
        ("heatmaps: a pass per patch and prototype, ms (one measured)", f"{1000 * naive:.0f}"),
        ("heatmaps: times faster than that", f"{naive / statistics.median(attribute):.0f}"),
    ]


def _spread(values: list[float]) -> str:
    return f"{statistics.median(values):.3f} [{min(values):.3f}, {max(values):.3f}]"


@torch.no_grad()
def decomposition(model: ProtoFlow, x: Tensor, options: argparse.Namespace) -> Rows:
    """|sum − log-odds| as a share of the terms' magnitudes, the worst of many pairs."""
    classes = model.config.num_classes
    enc = model.encode(x[:32], seed=options.seed)
    first = {c: (c, int(model.mixtures.mask[c].nonzero()[0])) for c in range(classes)}
    errors = []
    for c in range(classes):
        other = (c + 1) % classes
        for found in (
            attribute_classes(model, enc, c, other),
            attribute_prototypes(model, enc, first[c], first[other]),
        ):
            errors.append(float(((found.total - found.log_odds).abs() / found.magnitude).max()))
    what = f"decomposition: |sum - log-odds| / sum |terms|, worst of {len(errors) * len(x[:32])}"
    return [(what, f"{max(errors):.2g}")]


def interpolation(model: ProtoFlow, x: Tensor, options: argparse.Namespace) -> Rows:
    """Pairs of images whose interpolations end in them, every pixel."""
    pairs = min(len(x) // 2, options.pairs)
    exact = 0
    for a, b in zip(x[:pairs], x[pairs : 2 * pairs], strict=True):
        ends = interpolate(model, a, b, steps=2, samples=1, seed=options.seed).images
        exact += int(torch.equal(ends[0], a.cpu()) and torch.equal(ends[1], b.cpu()))
    return [("interpolation: both ends identical, pairs", f"{exact} of {pairs}")]


@torch.no_grad()
def counterfactuals(model: ProtoFlow, x: Tensor, options: argparse.Namespace) -> Rows:
    """Counterfactuals to a random other class."""
    generator = torch.Generator().manual_seed(options.seed)
    classes = model.config.num_classes
    start = time.perf_counter()
    source = model.predict(x, samples=4, seed=options.seed).cpu()
    target = (source + torch.randint(1, classes, (len(x),), generator=generator)) % classes
    found = find_counterfactuals(model, x, target, seed=options.seed)
    took = time.perf_counter() - start
    reached = int(found.success.sum())
    low, high = wilson_interval(reached, len(x))
    rows = [
        ("counterfactuals: images", str(len(x))),
        ("counterfactuals: of the target's class", f"{reached / len(x):.4f}"),
        ("counterfactuals: 95 % interval", f"{low:.4f} to {high:.4f}"),
        ("counterfactuals: pixel change, median", f"{float(found.pixel_change.median()):.4f}"),
        (
            "counterfactuals: latent distance in std, median",
            f"{float(found.distance.median()):.3f}",
        ),
        ("counterfactuals: seconds", f"{took:.0f}"),
    ]
    if found.percentile is not None:
        quartiles = found.percentile.quantile(torch.tensor([0.5, 0.25, 0.75]).double()).tolist()
        text = f"{quartiles[0]:.1f} [{quartiles[1]:.1f}, {quartiles[2]:.1f}]"
        rows.append(("counterfactuals: log p(x) percentile, median [quartiles]", text))
    return rows


def relevance(model: ProtoFlow, x: Tensor, options: argparse.Namespace) -> Rows:
    """The relevance ordering test against both controls."""
    patch = default_patch(model)
    rows = []
    for control in ("pixels", "patches"):
        start = time.perf_counter()
        test = relevance_ordering(
            model, x[: options.relevance_images], patch=patch, stride=max(1, patch // 2),
            control=control, seed=options.seed,
        )  # fmt: skip
        gap, low, high = test.gap_interval()
        name = f"relevance, random {control}:"
        rows += [
            (f"{name} images", str(len(test.gap))),
            (f"{name} median gap in nats [95 %]", f"{gap:.1f} [{low:.1f}, {high:.1f}]"),
            (f"{name} random orders beaten", f"{float(test.wins.mean()):.4f}"),
            (f"{name} p (rank test)", f"{test.p_value():.2g}"),
            (f"{name} seconds", f"{time.perf_counter() - start:.0f}"),
        ]
    return rows


PARTS = {
    "decomposition": decomposition,
    "interpolation": interpolation,
    "counterfactuals": counterfactuals,
    "relevance": relevance,
}


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--run", default=None, help="a trained run")
    parser.add_argument("--data-root", default=None, help="folder that holds the run's data set")
    parser.add_argument("--only", nargs="+", choices=("heatmaps", *PARTS), help="these parts alone")
    parser.add_argument("--images", type=int, default=1000, help="test images of the run")
    parser.add_argument("--relevance-images", type=int, default=200)
    parser.add_argument("--pairs", type=int, default=50, help="of images to interpolate between")
    parser.add_argument("--classes", type=int, default=10)
    parser.add_argument("--prototypes", type=int, default=10)
    parser.add_argument("--width", type=int, default=32, help="channels of the random flow's nets")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=None, help="torch threads (default: all)")
    parser.add_argument("--out", type=Path, default=None, help="CSV to write")
    options = parser.parse_args()
    if options.threads is not None:
        torch.set_num_threads(options.threads)
    wanted = options.only or ("heatmaps", *(PARTS if options.run is not None else ()))
    if options.run is None and set(wanted) != {"heatmaps"}:
        parser.error("--only: all parts but heatmaps need --run")
    rows: Rows = [("threads", str(torch.get_num_threads()))]
    if options.run is not None:
        from protoflows.cli.evaluate import limited
        from protoflows.cli.run_data import open_run

        opened = open_run(options.run, data_root=options.data_root)
        # Every class by its share, in an order that has nothing to do with them.
        images = limited(opened, "test", options.images).images
        generator = torch.Generator().manual_seed(options.seed)
        x = images[torch.randperm(len(images), generator=generator)]
        rows.append(("data", opened.bundle.name))
    for part in wanted:
        made = (
            heatmap_times(options) if part == "heatmaps" else PARTS[part](opened.model, x, options)
        )
        for what, value in made:
            print(f"{what:<62} {value}", flush=True)
        rows += made
        if options.out is not None:
            options.out.parent.mkdir(parents=True, exist_ok=True)
            with options.out.open("w", newline="", encoding="utf-8") as file:
                csv.writer(file, lineterminator="\n").writerows([("what", "value"), *rows])


if __name__ == "__main__":
    main()
