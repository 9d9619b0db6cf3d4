"""How long heatmaps take, and what explanations of a run reach.

    python benchmarks/explain.py                            # heatmaps, random weights, 3x32x32
    python benchmarks/explain.py --run RUN --images 1000    # a trained run as well

The first part compares the heatmaps of one image under all prototypes with encoding as many images
as it has patches, and with one pass per patch and prototype. The second measures, on test images:
the exact decomposition, the ends of interpolations, counterfactuals to a random other class, and
the relevance ordering test.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor

from protoflows.explain.attribution import attribute_classes, attribute_prototypes
from protoflows.explain.counterfactual import find_counterfactuals
from protoflows.explain.faithfulness import relevance_ordering
from protoflows.explain.interpolation import interpolate
from protoflows.explain.parts import PrototypeParts, default_patch, patch_grid
from protoflows.flows import DenseFlowConfig
from protoflows.model import ModelConfig, ProtoFlow
from protoflows.prototypes import PrototypeConfig


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
def heatmap_times(model: ProtoFlow, x: Tensor, baseline: Tensor, repeats: int) -> None:
    """Print the times of the heatmaps of one image."""
    patch = default_patch(model)
    rows, _, _ = patch_grid((x.shape[2], x.shape[3]), patch)
    num, prototypes = len(rows), int(model.mixtures.mask.sum())
    many = x[:1].expand(num, *x.shape[1:]).contiguous()
    parts = PrototypeParts(model)

    def heat() -> object:
        return parts.attribute(x[:1], baseline, (0, 0), patch=patch, perturbations_per_eval=num)

    # Turn about, so that a machine that slows down slows both.
    encode, attribute = [], []
    for _ in range(repeats):
        encode.append(seconds(lambda: model.encode(many, temperature=0.0), 1))
        attribute.append(seconds(heat, 1))
    one = seconds(
        lambda: model.prototype_log_likelihood(model.encode(many[:1], temperature=0.0))[:, 0, 0],
        repeats,
    )
    whole, plain = statistics.median(attribute), statistics.median(encode)
    print(
        f"{num} patches of {patch}x{patch}, {prototypes} prototypes, {x.shape[1:].numel()} values"
    )
    print(f"encoding {num} images              {1000 * plain:9.1f} ms")
    print(f"heatmaps of all prototypes        {1000 * whole:9.1f} ms   {whole / plain:.2f} times")
    naive = one * num * prototypes
    print(
        f"a pass per patch and prototype    {1000 * naive:9.0f} ms   {naive / whole:.0f} times "
        "(one pass measured)"
    )


@torch.no_grad()
def run_figures(run: str, data_root: str | None, images: int, seed: int) -> None:
    """Print what the explanations of a run reach on its test images."""
    from protoflows.cli.run_data import open_run

    opened = open_run(run, data_root=data_root)
    model, split = opened.model, opened.split("test")
    x = split.images[:images]
    generator = torch.Generator().manual_seed(seed)
    classes = model.config.num_classes

    enc = model.encode(x[:32], seed=seed)
    errors = []
    for target, against in ((0, 1), (classes - 1, 0)):
        for found in (
            attribute_classes(model, enc, target, against),
            attribute_prototypes(
                model, enc, *((c, int(model.mixtures.mask[c].nonzero()[0])) for c in
                              (target, against)),
            ),
        ):  # fmt: skip
            errors.append(float(((found.total - found.log_odds).abs() / found.magnitude).max()))
    print(f"decomposition: |sum - log-odds| ≤ {max(errors):.1e} of the terms' magnitudes")

    pairs = min(len(x) // 2, 50)
    exact = 0
    for a, b in zip(x[:pairs], x[pairs : 2 * pairs], strict=True):
        ends = interpolate(model, a, b, steps=2, samples=1, seed=seed).images
        exact += int(torch.equal(ends[0], a.cpu()) and torch.equal(ends[1], b.cpu()))
    print(f"interpolation: both ends identical for {exact} of {pairs} pairs")

    start = time.perf_counter()
    source = model.predict(x, samples=4, seed=seed).cpu()
    target = (source + torch.randint(1, classes, (len(x),), generator=generator)) % classes
    cf = find_counterfactuals(model, x, target, seed=seed)
    took = time.perf_counter() - start
    print(
        f"counterfactuals: {100 * float(cf.success.double().mean()):.1f} % of {len(x)} reach a "
        f"random other class, pixels change by {100 * float(cf.pixel_change.median()):.2f} % "
        f"(median), {took:.0f} s"
    )
    if cf.percentile is not None:
        low, middle, high = cf.percentile.quantile(torch.tensor([0.25, 0.5, 0.75]).double())
        print(f"  percentile of log p(x): {middle:.0f} (quartiles {low:.0f} and {high:.0f})")

    patch = default_patch(model)
    for control in ("pixels", "patches"):
        test = relevance_ordering(
            model, x[: min(len(x), 200)], patch=patch, stride=max(1, patch // 2), control=control,
            seed=seed,
        )  # fmt: skip
        mean, low, high = test.gap_interval()
        print(
            f"relevance ordering against random {control}: gap {mean:+.2f} nats "
            f"[{low:+.2f}, {high:+.2f}], p = {test.p_value():.2g}, {len(test.gap)} images"
        )


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--run", default=None, help="a trained run")
    parser.add_argument("--data-root", default=None, help="folder that holds the run's data set")
    parser.add_argument("--images", type=int, default=1000, help="test images of the run")
    parser.add_argument("--classes", type=int, default=10)
    parser.add_argument("--prototypes", type=int, default=10)
    parser.add_argument("--width", type=int, default=32, help="channels of the random flow's nets")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=None, help="torch threads (default: all)")
    arguments = parser.parse_args()
    if arguments.threads is not None:
        torch.set_num_threads(arguments.threads)
    model = random_model(arguments.classes, arguments.prototypes, arguments.width)
    generator = torch.Generator().manual_seed(arguments.seed)
    x = torch.randint(0, 256, (1, 3, 32, 32), generator=generator, dtype=torch.uint8)
    heatmap_times(model, x, torch.full((3, 32, 32), 128.0), arguments.repeats)
    if arguments.run is not None:
        run_figures(arguments.run, arguments.data_root, arguments.images, arguments.seed)


if __name__ == "__main__":
    main()
