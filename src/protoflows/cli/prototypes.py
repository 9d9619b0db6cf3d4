"""`protoflows prototypes`: a gallery of what a model has learned, and maps of it."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from protoflows.cli.parser import CommandParser

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from protoflows.data import Split
    from protoflows.explain.neighbours import Neighbours
    from protoflows.explain.pictures import PrototypePictures
    from protoflows.model import ProtoFlow


def build_parser() -> argparse.ArgumentParser:
    """Describe the options."""
    parser = CommandParser(
        prog="protoflows prototypes",
        description=(
            "Pictures of every prototype (mean, samples inside radii), its weight, the training "
            "images nearest to it and likeliest under it, and how many it explains; maps of the "
            "model. Writes index.html, prototypes.json and figures, and stores the likeliest parts "
            "of the training set with the run, for `explain`."
        ),
        examples=(
            (
                "a gallery of a run, with its training images",
                "prototypes runs/digits --out gallery",
            ),
            ("two classes of a model that ships", "prototypes mnist --class 4 --class 9"),
        ),
    )
    parser.add_argument("run", metavar="RUN", help="a run, a saved model, or a shipped one's name")
    parser.add_argument("--out", metavar="FOLDER", default="gallery", help="default: gallery")
    parser.add_argument(
        "--class", dest="classes", metavar="CLASS", action="append",
        help="only this class (name or number); may be repeated",
    )  # fmt: skip
    parser.add_argument("--samples", type=int, default=6, help="samples per prototype and radius")
    parser.add_argument(
        "--radii", type=float, nargs="+", default=[0.0, 0.25, 0.5, 1.0, 2.0], metavar="R",
        help="truncation radii, in standard deviations",
    )  # fmt: skip
    parser.add_argument("--no-parts", action="store_true", help="store no parts with the run")
    parser.add_argument(
        "--candidates", type=int, default=3, help="images searched for each prototype's part"
    )
    parser.add_argument("--patch", type=int, help="side of a part (default: 4, small images 2)")
    parser.add_argument("--data-root", metavar="DIR", help="folder that holds the run's data set")
    parser.add_argument("--batch-size", type=int, default=256, help="images per pass")
    parser.add_argument("--seed", type=int, default=0, help="seed of samples and noise")
    return parser


def main(argv: Sequence[str]) -> int:
    """Run the command.

    Args:
        argv: The words after `prototypes`.
    """
    arguments = build_parser().parse_args(list(argv))
    from protoflows.cli.explain_inputs import class_index, out_folder, run_split, write_json
    from protoflows.explain.figures.gallery import (
        draw_class_gallery,
        draw_informativeness,
        draw_sheet,
        draw_truncation_grid,
    )
    from protoflows.explain.html import heading, page, paragraph, picture
    from protoflows.explain.informativeness import measure_informativeness
    from protoflows.explain.neighbours import find_neighbours
    from protoflows.explain.pictures import living_prototypes, picture_prototype
    from protoflows.model import load

    model = load(arguments.run)
    names = model.config.class_names
    wanted = [class_index(model, text, "class") for text in arguments.classes or ()]
    classes = wanted or list(range(len(names)))
    split, full = run_split(arguments.run, "train", arguments.data_root), True
    notes = []
    if split is None:
        split, full = _saved_images(model), False
        notes.append(
            "The training data is out of reach: training images shown are of the few that were "
            "saved with the model, and nothing is counted."
            if split is not None
            else "There are no training images: nearest and likeliest ones are left out."
        )
        print(f"note: {notes[0]}", file=sys.stderr)
    options = {"seed": arguments.seed, "batch_size": arguments.batch_size}
    neighbours = find_neighbours(model, split.images, **options) if split is not None else None
    images = split.images if split is not None else None
    pictures = {
        pair: picture_prototype(
            model, pair, radii=arguments.radii, samples=arguments.samples, **options
        )
        for c in classes
        for pair in living_prototypes(model, c)
    }
    chosen = list(pictures)
    informative = measure_informativeness(model, prototypes=chosen, **options)

    folder = out_folder(arguments.out)
    body = [paragraph(note, "note") for note in notes]

    def show(figure: Figure, name: str, caption: str) -> None:
        figure.savefig(folder / f"{name}.png", dpi=130)
        body.append(picture(figure, caption))

    means = [pictures[pair].mean for pair in chosen]
    titles = [f"{names[c]} · {k}" for c, k in chosen]
    import torch

    body.append(heading("All prototypes"))
    show(draw_sheet(model, torch.stack(means), titles), "means", "The prototypes' means.")
    if neighbours is not None and images is not None and full:
        best = images[neighbours.likeliest_of_class[classes]]
        show(
            draw_sheet(model, best, [names[c] for c in classes]), "likeliest",
            "The most likely training image of each class.",
        )  # fmt: skip
    for c in classes:
        body.append(heading(f"Class {names[c]}"))
        mine = [pictures[pair] for pair in chosen if pair[0] == c]
        figure = draw_class_gallery(model, mine, neighbours, images, counts=full)
        show(figure, f"class-{c:03d}", f"Prototypes of class {names[c]}.")
        for pic in mine:
            grid = draw_truncation_grid(model, pic)
            grid.savefig(folder / f"radii-{c:03d}-{pic.prototype[1]:03d}.png", dpi=130)
    body.append(heading("How far a neighbourhood stays its prototype's"))
    show(
        draw_informativeness(informative), "informativeness",
        "Samples that the model gives back to their class and prototype, and their log p(x).",
    )  # fmt: skip
    _draw_maps(model, arguments.seed, body, show)
    content = {
        "training_images": len(split) if split is not None and full else None,
        "prototypes": [_row(model, pictures[p], neighbours if full else None) for p in chosen],
        "informativeness": {
            "radii": list(informative.radii),
            "samples": informative.samples,
            "class_share": informative.class_share.mean(1).tolist(),
            "prototype_share": informative.prototype_share.mean(1).tolist(),
            "log_prob": informative.log_prob.mean(1).tolist(),
        },
    }
    write_json(folder / "prototypes.json", content)
    title = f"Prototypes of {Path(arguments.run).name}"
    (folder / "index.html").write_text(page(title, body), encoding="utf-8")
    print(f"{len(chosen)} prototypes of {len(classes)} classes: {folder / 'index.html'}")
    if full and split is not None and neighbours is not None and not arguments.no_parts:
        _store_parts(model, arguments, split, neighbours)
    return 0


def _saved_images(model: ProtoFlow) -> Split | None:
    from protoflows.data import Split

    extras = model.extras
    if extras is None or extras.images is None or extras.labels is None or not len(extras.images):
        return None
    return Split(extras.images, extras.labels)


def _draw_maps(model: ProtoFlow, seed: int, body: list[str], show: Any) -> None:
    from protoflows.explain.figures.maps import draw_divergence, draw_tsne, draw_weights
    from protoflows.explain.html import heading
    from protoflows.explain.maps import map_prototypes

    found, names = map_prototypes(model, seed=seed), model.config.class_names
    body.append(heading("Maps of the model"))
    show(draw_divergence(found, names), "divergence", "How far all prototypes lie apart.")
    if found.positions is not None:
        show(draw_tsne(found, names), "tsne", "Where the prototypes' means lie (t-SNE).")
    show(draw_weights(found), "weights", "The prototypes' weights, with Otsu's threshold.")


def _row(
    model: ProtoFlow, pictures: PrototypePictures, neighbours: Neighbours | None
) -> dict[str, Any]:
    c, k = pictures.prototype
    row = {
        "class": model.config.class_names[c],
        "label": c,
        "prototype": k,
        "name": model.config.prototype_names.get((c, k), ""),
        "weight": float(model.mixtures.weights[c, k].detach()),
        "explained": None,
        "nearest": None,
        "likeliest": None,
    }
    if neighbours is not None:
        row["explained"] = int(neighbours.explained[c, k])
        row["nearest"] = neighbours.nearest[c, k].tolist()
        row["likeliest"] = neighbours.likeliest[c, k].tolist()
    return row


def _store_parts(
    model: ProtoFlow, arguments: argparse.Namespace, split: Split, neighbours: Neighbours
) -> None:
    """Where the folder can be written to; the gallery is done either way."""
    from protoflows.explain.parts import default_patch
    from protoflows.explain.retrieved import PARTS_FILE, retrieve_parts
    from protoflows.model import find_model_folder

    home = find_model_folder(Path(arguments.run).expanduser())
    if home is None:
        return
    patch = arguments.patch or default_patch(model)
    parts = retrieve_parts(
        model, split.images, split.labels, candidates=arguments.candidates, neighbours=neighbours,
        patch=patch, stride=max(1, patch // 2), perturbations_per_eval=arguments.batch_size,
        seed=arguments.seed,
    )  # fmt: skip
    try:
        parts.save(home)
    except OSError as error:
        print(f"note: no parts stored in {home}: {error.strerror or error}", file=sys.stderr)
        return
    print(f"the training set's likeliest parts: {home / PARTS_FILE}")
