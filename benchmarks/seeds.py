"""Train a recipe with several seeds and write its figures as CSV: a row per seed, mean and sd.

python benchmarks/seeds.py digits --seeds 5 --out results/digits.csv
python benchmarks/seeds.py compact mnist --data-root DIR --seeds 1 --out results/mnist.csv

With --runs FOLDER the runs stay there as seed0, seed1, ...; those that are finished already are
taken as they are, and those that were interrupted go on.
"""

from __future__ import annotations

import argparse
import csv
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

FIGURES = ("accuracy", "bits_per_dim", "bits_per_image", "cross_entropy")


def run_seed(recipe: str, rest: list[str], seed: int, runs: Path) -> dict[str, float | int | str]:
    """Train one seed in a process of its own; its figures and how they came about."""
    folder = runs / f"seed{seed}"
    command = [sys.executable, "-m", "protoflows", "train"]
    if (folder / "versions.json").is_file():
        command += ["--resume", str(folder)]
    else:
        command += [*rest, "--recipe", recipe, "--seed", str(seed), "--out", str(folder)]
    if not (folder / "metrics.json").is_file():
        subprocess.run(command, check=True)
    metrics = json.loads((folder / "metrics.json").read_text())
    head = json.loads((folder / "versions.json").read_text())
    about = {"minutes": head["minutes"], "epochs": head["epochs"], "data": head["data"]}
    about |= {"data_fingerprint": head["data_fingerprint"], "platform": head["platform"]}
    about |= {f"{name}_version": head["versions"][name] for name in ("protoflows", "torch")}
    return {"recipe": recipe, "seed": seed, **metrics, **about}


def summary(rows: list[dict[str, float | int | str]]) -> list[dict[str, float | str]]:
    """Mean and sample standard deviation of the figures over seeds."""
    columns = {name: [float(row[name]) for row in rows] for name in FIGURES}
    found: list[dict[str, float | str]] = [
        {"seed": "mean", **{name: statistics.mean(values) for name, values in columns.items()}}
    ]
    if len(rows) > 1:
        found.append(
            {"seed": "sd", **{name: statistics.stdev(values) for name, values in columns.items()}}
        )
    return found


def main() -> None:
    """Run all seeds; the table is written anew after each of them."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("recipe")
    parser.add_argument("--seeds", type=int, default=5, help="seeds 0, 1, ... (default: 5)")
    parser.add_argument("--out", type=Path, required=True, help="the CSV file")
    parser.add_argument(
        "--runs", type=Path, help="keep the runs in this folder, and those that are there"
    )
    arguments, rest = parser.parse_known_args()
    if arguments.seeds < 1:
        parser.error(f"--seeds must be at least 1, got {arguments.seeds}")
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        runs = arguments.runs or Path(scratch)
        rows: list[dict[str, float | int | str]] = []
        for seed in range(arguments.seeds):
            rows.append(run_seed(arguments.recipe, rest, seed, runs))
            with arguments.out.open("w", newline="", encoding="utf-8") as file:
                writer = csv.DictWriter(file, list(rows[0]))
                writer.writeheader()
                writer.writerows([*rows, *summary(rows)])
    print(arguments.out.read_text())


if __name__ == "__main__":
    main()
