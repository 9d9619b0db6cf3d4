"""What a prototype of a biased data set looks like: digits of one class carry a spurious mark.

Every training image of one digit gets a bright square in its lower left corner, as photographs of
one clinic carry its label. Two models are trained, with and without the marks, and measured on test
images with marks where they do not belong. The figures go into a CSV, the picture into a PNG.

    python benchmarks/bias.py
"""

from __future__ import annotations

import argparse
import csv
import time
from pathlib import Path

import torch
from matplotlib.figure import Figure
from torch import Tensor

from protoflows.data import DataBundle, DataConfig, Split, load_data
from protoflows.explain import PrototypeParts, living_prototypes
from protoflows.explain.figures.style import (
    frame_box,
    limit_of,
    png_bytes,
    show_heat,
    show_image,
)
from protoflows.model import ProtoFlow
from protoflows.training import fit_arrays

DIGIT = 5
MARK = torch.tensor([6, 0, 2, 2])  # row, column, height, width
_DRAWS = 8


def mark(images: Tensor, levels: int) -> Tensor:
    """The images with a bright square in the lower left corner."""
    row, column, height, width = MARK.tolist()
    marked = images.clone()
    marked[:, :, row : row + height, column : column + width] = levels - 1
    return marked


def biased(split: Split, levels: int) -> Split:
    """The split with every image of the digit marked."""
    images = split.images.clone()
    own = split.labels == DIGIT
    images[own] = mark(images[own], levels)
    return Split(images, split.labels)


def train(split: Split, bundle: DataBundle, epochs: int, seed: int) -> ProtoFlow:
    """A model of the `digits` recipe."""
    return fit_arrays(
        split,
        num_classes=bundle.num_classes,
        levels=bundle.levels,
        image_shape=bundle.image_shape,
        epochs=epochs,
        seed=seed,
        class_names=bundle.class_names,
    )


def measure(model: ProtoFlow, bundle: DataBundle) -> dict[str, float]:
    """Shares of test images, and how usual marked images of other digits seem to the model."""
    test, levels = bundle.test, bundle.levels
    own = test.labels == DIGIT
    plain = model.predict(test.images, samples=_DRAWS)
    marked_images = mark(test.images, levels)
    marked = model.predict(marked_images, samples=_DRAWS)
    assert model.extras is not None  # fit_arrays has put them there
    others = marked_images[~own]
    percentile = model.extras.percentile(model.log_prob(others, samples=1))
    as_collected = torch.where(own, marked, plain)
    return {
        "accuracy_as_collected": float((as_collected == test.labels).double().mean()),
        "accuracy_without_marks": float((plain == test.labels).double().mean()),
        "recall_with_mark": float((marked[own] == DIGIT).double().mean()),
        "recall_without_mark": float((plain[own] == DIGIT).double().mean()),
        "others_called_it_without_mark": float((plain[~own] == DIGIT).double().mean()),
        "others_called_it_with_mark": float((marked[~own] == DIGIT).double().mean()),
        "others_with_mark_median_percentile": float(percentile.median()),
    }


def draw(models: dict[str, ProtoFlow], bundle: DataBundle) -> Figure:
    """Prototypes of the digit in both models, and what the mark does to one test image."""
    levels = bundle.levels
    count = max(len(living_prototypes(model, DIGIT)) for model in models.values())
    figure = Figure(figsize=(9.2, 4.3))
    spec = figure.add_gridspec(
        2, count + 4, width_ratios=[*[1] * count, 0.5, 1, 1, 1], left=0.11, right=0.99, top=0.87,
        bottom=0.04, wspace=0.12, hspace=0.32,
    )  # fmt: skip
    query = chosen_query(models["with marks"], bundle)
    shown = torch.cat([query, mark(query, levels)])
    heats = {}
    for name, model in models.items():
        first = living_prototypes(model, DIGIT)[0]
        parts = PrototypeParts(model).attribute(shown[1:], target=first, patch=2, stride=1)
        likeliest = int(parts.log_likelihood[0, :, DIGIT].amax(0).argmax())
        heats[name] = parts.heatmap((DIGIT, likeliest))[0]
    for row, (name, model) in enumerate(models.items()):
        for column, (label, k) in enumerate(living_prototypes(model, DIGIT)):
            axes = figure.add_subplot(spec[row, column])
            show_image(axes, model.prototype_mean_image(label, k), levels)
            if name == "with marks":
                frame_box(axes, MARK)
            if row == 0:
                axes.set_title(f"“{DIGIT}”, prototype {k}", fontsize=8)
            if column == 0:
                axes.set_ylabel(f"trained\n{name}", fontsize=10)
        proba = model.predict_proba(shown, samples=_DRAWS)
        for place in range(2):
            axes = figure.add_subplot(spec[row, count + 1 + place])
            best = int(proba[place].argmax())
            said = f"“{bundle.class_names[best]}”, {100 * float(proba[place, best]):.0f} %"
            show_image(axes, shown[place], levels, f"a test image: {said}" if not place else said)
        axes = figure.add_subplot(spec[row, count + 3])
        show_heat(axes, heats[name], limit_of(heats[name]))
        axes.set_title(f"speaks for “{DIGIT}”", fontsize=8)
        frame_box(axes, MARK)
    figure.suptitle(
        f"One digit, “{DIGIT}”, was collected with a mark in the corner: its prototypes show it",
        fontsize=11,
    )
    return figure


def chosen_query(model: ProtoFlow, bundle: DataBundle) -> Tensor:
    """The first test image of another digit that is right without and wrong with the mark."""
    test = bundle.test
    others = (test.labels != DIGIT).nonzero().flatten()
    images = test.images[others]
    plain = model.predict(images, samples=_DRAWS)
    marked = model.predict(mark(images, bundle.levels), samples=_DRAWS)
    fooled = ((plain == test.labels[others]) & (marked == DIGIT)).nonzero().flatten()
    return images[fooled[:1] if len(fooled) else slice(0, 1)]


def main() -> None:
    """Train, measure, draw."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--picture", type=Path, default=Path("docs/images/bias.png"))
    parser.add_argument("--out", type=Path, default=Path("results/bias.csv"))
    arguments = parser.parse_args()
    bundle = load_data(DataConfig(name="digits"))
    splits = {"with marks": biased(bundle.train, bundle.levels), "without marks": bundle.train}
    models, figures = {}, {}
    for name, split in splits.items():
        begun = time.perf_counter()
        models[name] = train(split, bundle, arguments.epochs, arguments.seed)
        figures[name] = measure(models[name], bundle)
        print(f"trained {name} in {(time.perf_counter() - begun) / 60:.1f} minutes")
    with arguments.out.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["figure", *figures])
        for metric in figures["with marks"]:
            writer.writerow([metric, *(f"{found[metric]:.4f}" for found in figures.values())])
    print(arguments.out.read_text(encoding="utf-8"))
    arguments.picture.write_bytes(png_bytes(draw(models, bundle)))
    print(f"drawn: {arguments.picture}")


if __name__ == "__main__":
    main()
