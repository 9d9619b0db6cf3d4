"""Put the model of a finished run into the package, so that its name alone loads it.

    python benchmarks/ship.py runs/digits digits
    python benchmarks/ship.py runs/mnist mnist --data-root DIR

Writes src/protoflows/models/NAME: weights, configuration, a card, a few training images per class
and the training set's likeliest parts. What is written is loaded again and compared with the run on
its test images. Nothing is left behind where that fails or the folder is too large.
"""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
from dataclasses import replace
from pathlib import Path

import torch

from protoflows.cli.run_data import OpenRun, open_run
from protoflows.explain.parts import default_patch
from protoflows.explain.retrieved import retrieve_parts
from protoflows.model import Extras, ProtoFlow, load
from protoflows.model.saving import WeightsDtype
from protoflows.training import measure

MODELS = Path(__file__).parents[1] / "src" / "protoflows" / "models"
MAX_BYTES = 5_000_000
_COMPARED = 512


def few_images(extras: Extras, per_class: int) -> Extras:
    """The extras with at most so many images of every class."""
    if extras.images is None or extras.labels is None:
        return extras
    seen: dict[int, int] = {}
    kept = []
    for place, label in enumerate(extras.labels.tolist()):
        seen[label] = seen.get(label, 0) + 1
        if seen[label] <= per_class:
            kept.append(place)
    return replace(extras, images=extras.images[kept], labels=extras.labels[kept])


def figures(run: OpenRun, model: ProtoFlow, weights_dtype: str) -> dict[str, float]:
    """The figures of the card: the run's own, or measured anew where the weights are not."""
    noted = json.loads((run.folder / "metrics.json").read_text(encoding="utf-8"))
    if weights_dtype == "float32":
        return dict(noted)
    return measure(
        model, run.split("test"), samples=int(noted.get("samples", 8)), seed=run.config.seed
    )


def write(run: OpenRun, folder: Path, arguments: argparse.Namespace) -> ProtoFlow:
    """Write the shipped model into a folder; the model as it loads from there."""
    model, dtype = run.model, arguments.weights_dtype
    if model.extras is None:
        raise ValueError(f"RUN: {run.folder} has no extras: was it made by `protoflows train`?")
    model.extras = replace(
        few_images(model.extras, arguments.images_per_class), licence=arguments.licence
    )
    model.save_pretrained(folder, weights_dtype=dtype)
    shipped = load(folder)
    assert shipped.extras is not None  # just written
    shipped.extras = replace(shipped.extras, metrics=figures(run, shipped, dtype))
    shipped.save_pretrained(folder, weights_dtype=dtype)
    train = run.split("train")
    patch = default_patch(shipped)
    retrieve_parts(
        shipped, train.images, train.labels, patch=patch, stride=max(1, patch // 2)
    ).save(folder)  # fmt: skip
    return shipped


def agreement(run: OpenRun, shipped: ProtoFlow) -> float:
    """Share of test images (at most 512) to which both models give one class, by equal noise."""
    x = run.split("test").images[:_COMPARED]
    there = run.model.predict(x, samples=4, seed=0)
    here = shipped.predict(x, samples=4, seed=0)
    return float((there == here).double().mean())


def main() -> None:
    """Write, check, and move into place."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("run", metavar="RUN", help="folder of a finished run")
    parser.add_argument("name", metavar="NAME", help="what `protoflows explain NAME ...` calls it")
    parser.add_argument("--data-root", metavar="DIR", help="folder that holds the run's data set")
    parser.add_argument("--licence", default="Apache-2.0", help="licence of the weights")
    parser.add_argument("--images-per-class", type=int, default=8, help="training images to keep")
    parser.add_argument(
        "--weights-dtype", choices=WeightsDtype.__args__, default="float32",
        help="what kernels are stored in; other than float32 the figures are measured anew",
    )  # fmt: skip
    parser.add_argument("--models", type=Path, default=MODELS, help="where shipped models live")
    arguments = parser.parse_args()
    run = open_run(arguments.run, data_root=arguments.data_root)
    with tempfile.TemporaryDirectory() as scratch:
        fresh = Path(scratch) / arguments.name
        with torch.no_grad():
            shipped = write(run, fresh, arguments)
            same = agreement(run, shipped)
        size = sum(file.stat().st_size for file in fresh.iterdir())
        print(f"{size / 1e6:.2f} MB; {100 * same:.2f} % of decisions as the run's")
        if size > MAX_BYTES:
            raise SystemExit(f"too large to ship (over {MAX_BYTES / 1e6:g} MB): --weights-dtype")
        if same < (1 if arguments.weights_dtype == "float32" else 0.99):
            raise SystemExit("does not decide as the run does: not shipped")
        target = arguments.models / arguments.name
        shutil.rmtree(target, ignore_errors=True)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copytree(fresh, target)
        for file in target.iterdir():
            file.chmod(0o644)
    print(f"written: {target}")


if __name__ == "__main__":
    main()
