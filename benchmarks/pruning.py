"""What pruning costs: all figures before and after, for several ways to prune.

    python benchmarks/pruning.py runs/mnist --data-root DIR --out results/pruning-mnist.csv

Otsu's threshold over all classes and for each class, and fixed shares. All of them are measured on
the same flow passes, as a pruned model has the same flow: the differences are the pruning's own.
"""

from __future__ import annotations

import argparse
import csv
import time
from pathlib import Path

import torch

from protoflows.cli.evaluate import limited, show_progress
from protoflows.cli.run_data import open_run
from protoflows.evaluation.prune import choose_prototypes, measure_pruning, pruning_table


def main() -> None:
    """Prune, measure and write."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("run", help="a trained run")
    parser.add_argument("--data-root", default=None, help="folder that holds the run's data set")
    parser.add_argument("--fractions", type=float, nargs="*", default=[0.2, 0.4, 0.5, 0.6, 0.8])
    parser.add_argument("--images", type=int, default=None, help="test images (default: all)")
    parser.add_argument("--mc", type=int, default=8, help="draws of the noise per image")
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=None, help="torch threads (default: all)")
    parser.add_argument("--out", type=Path, default=Path("results/pruning.csv"))
    options = parser.parse_args()
    if options.threads is not None:
        torch.set_num_threads(options.threads)
    opened = open_run(options.run, data_root=options.data_root)
    model, split = opened.model, limited(opened, "test", options.images)
    mixtures = model.mixtures
    rules = {
        "Otsu": choose_prototypes(mixtures),
        "Otsu, each class": choose_prototypes(mixtures, per_class=True),
        **{f"share {f:g}": choose_prototypes(mixtures, fraction=f) for f in options.fractions},
    }
    models = [model, *(model.keep_prototypes(pruning.mask) for pruning in rules.values())]
    start = time.perf_counter()
    found = measure_pruning(
        models, split, samples=options.mc, seed=options.seed, batch_size=options.batch_size,
        progress=show_progress,
    )  # fmt: skip
    shares = [0.0, *(pruning.share for pruning in rules.values())]
    rows = [
        {"data": opened.bundle.name, "rule": rule, "pruned": share, **metrics}
        for rule, share, metrics in zip(["none", *rules], shares, found, strict=True)
    ]
    options.out.parent.mkdir(parents=True, exist_ok=True)
    with options.out.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    print(pruning_table(list(zip(shares, found, strict=True))))
    print(f"{len(split)} images, {time.perf_counter() - start:.0f} s, {options.out}")


if __name__ == "__main__":
    main()
