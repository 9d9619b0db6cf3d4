"""Does stopping early decide as the full protocol does, and what does it save?

    python benchmarks/adaptive.py runs/mnist --data-root DIR --images 2000 \
        --out results/adaptive-mnist.csv

Both answers come from the same draws, in the same order: all of them are made (100 draws of 5 views
of each image, and 100 of the image itself for the densities), and where the rule would have stopped
is noted on the way. Passes of the early protocol are counted as if it had run alone, with all that
it draws beside the decision. Interrupted, the same command goes on from its finished batches.
"""

from __future__ import annotations

import argparse
import csv
import shutil
import time
from pathlib import Path

import torch

from protoflows.cli.evaluate import limited, show_progress
from protoflows.cli.run_data import open_run
from protoflows.evaluation import evaluate

# What the CSV holds of all the metrics.
NAMES = (
    "images", "mc_samples", "tta", "adaptive", "passes", "passes_full", "adaptive_passes",
    "adaptive_speedup", "adaptive_agreement", "adaptive_agreement_low", "adaptive_agreement_high",
    "accuracy", "accuracy_stderr", "bits_per_dim", "bits_per_dim_stderr",
    "bits_per_dim_paper_protocol", "bits_per_dim_paper_protocol_stderr",
)  # fmt: skip


def main() -> None:
    """Evaluate, and write the figures."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("run", help="a trained run")
    parser.add_argument("--data-root", default=None, help="folder that holds the run's data set")
    parser.add_argument("--images", type=int, default=2000, help="test images, at most")
    parser.add_argument("--mc", type=int, default=100)
    parser.add_argument("--tta", type=int, default=5)
    parser.add_argument("--adaptive", type=float, default=0.99)
    parser.add_argument("--batch-size", type=int, default=100, help="an interruption costs so many")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=None, help="torch threads (default: all)")
    parser.add_argument("--out", type=Path, default=Path("results/adaptive.csv"))
    options = parser.parse_args()
    if options.threads is not None:
        torch.set_num_threads(options.threads)
    opened = open_run(options.run, data_root=options.data_root)
    split = limited(opened, "test", options.images)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    store = options.out.with_suffix(".partial")
    start = time.perf_counter()
    found = evaluate(
        opened.model, split, samples=options.mc, tta=options.tta,
        augment=opened.augment() if options.tta else None, adaptive=options.adaptive, verify=True,
        batch_size=options.batch_size, seed=options.seed,
        store=store, mismatch="clear", progress=show_progress,
    ).metrics  # fmt: skip
    seconds = time.perf_counter() - start
    rows = [("what", "value"), ("data", opened.bundle.name)]
    rows += [(name, str(found[name])) for name in NAMES if name in found]
    rows.append(("seconds", f"{seconds:.1f}"))
    with options.out.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file, lineterminator="\n").writerows(rows)
    shutil.rmtree(store, ignore_errors=True)
    print(
        f"{len(split)} images: {100 * found['adaptive_agreement']:.2f} % of decisions as in the "
        f"full protocol [{100 * found['adaptive_agreement_low']:.2f}, "
        f"{100 * found['adaptive_agreement_high']:.2f}], "
        f"{found['adaptive_speedup']:.1f} times fewer passes; {seconds:.0f} s, {options.out}"
    )


if __name__ == "__main__":
    main()
