"""`protoflows counterfactual`: the least change in the latent for another class."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from protoflows.cli.parser import CommandParser


def build_parser() -> argparse.ArgumentParser:
    """Describe the options."""
    parser = CommandParser(
        prog="protoflows counterfactual",
        description=(
            "The least change in latent space after which the picture, as an image of whole "
            "numbers encoded again with fresh noise, is of another class. Writes the image, "
            "counterfactual.png, .json and .html. The exit code is 1 where the class was not "
            "reached."
        ),
        examples=(
            ("what would make it a 7", "counterfactual mnist picture.png --to 7"),
            ("beyond doubt", "counterfactual mnist picture.png --to 7 --confidence 0.99"),
        ),
    )
    parser.add_argument("run", metavar="RUN", help="a run, a saved model, or a shipped one's name")
    parser.add_argument("picture", metavar="PICTURE", help="an image file of any size")
    parser.add_argument("--to", metavar="CLASS", required=True, help="name or number of the class")
    parser.add_argument("--out", metavar="FOLDER", default="cf", help="default: cf")
    parser.add_argument(
        "--confidence", type=float, default=0.8, help="probability of the class to reach"
    )
    parser.add_argument("--mc", type=int, default=4, metavar="N", help="noise draws")
    parser.add_argument("--batch-size", type=int, default=64, help="images per pass")
    parser.add_argument("--seed", type=int, default=0, help="seed of the draws")
    return parser


def main(argv: Sequence[str]) -> int:
    """Run the command.

    Args:
        argv: The words after `counterfactual`.
    """
    arguments = build_parser().parse_args(list(argv))
    from protoflows.cli.explain_inputs import (
        class_index,
        out_folder,
        read_image,
        write_json,
        write_picture,
    )
    from protoflows.explain.counterfactual import find_counterfactuals
    from protoflows.explain.figures.paths import draw_counterfactuals, draw_way
    from protoflows.explain.html import page, picture
    from protoflows.explain.readout import read_out
    from protoflows.model import load

    model = load(arguments.run)
    names, levels = model.config.class_names, model.config.flow.levels
    target = class_index(model, arguments.to, "to")
    x = read_image(model, arguments.picture)
    options = {"samples": arguments.mc, "seed": arguments.seed, "batch_size": arguments.batch_size}
    found = find_counterfactuals(model, x, target, confidence=arguments.confidence, **options)
    folder = out_folder(arguments.out)
    source = int(found.source[0])
    reached = bool(found.success[0])
    figures = [draw_counterfactuals(found, levels, names)]
    likelihoods = None
    if source != target:
        images, weights = found.way(model, 0)
        on_the_way = read_out(model, images, **options).class_log_prob[:, [source, target]]
        figures.append(
            draw_way(images, on_the_way, weights, levels, (names[source], names[target]))
        )
        likelihoods = {
            "way": weights.tolist(),
            names[source]: on_the_way[:, 0].tolist(),
            names[target]: on_the_way[:, 1].tolist(),
        }
    else:
        print(f"note: the picture is of class {names[target]} already", file=sys.stderr)
    write_picture(folder / "image.png", found.images[0], levels)
    for figure, name in zip(figures, ("counterfactual", "way"), strict=False):
        figure.savefig(folder / f"{name}.png", dpi=150)
    write_json(
        folder / "counterfactual.json",
        {
            "from": names[source],
            "to": names[target],
            "reached": reached,
            "prototype": int(found.prototype[0]),
            "probability": float(found.posterior[0, target]),
            "step": float(found.step[0]),
            "latent_distance_std": float(found.distance[0]),
            "pixel_change": float(found.pixel_change[0]),
            "log_prob": float(found.log_prob[0]),
            "percentile": None if found.percentile is None else float(found.percentile[0]),
            "log_likelihoods_on_the_way": likelihoods,
        },
    )
    captions = ("The image, what became of it, and the change.", "Likelihoods on the way.")
    body = [picture(f, caption) for f, caption in zip(figures, captions, strict=False)]
    title = f"What would make it {names[target]}?"
    (folder / "counterfactual.html").write_text(page(title, body), encoding="utf-8")
    print(
        f"{names[source]} → {names[target]}: {'reached' if reached else 'not reached'}, p = "
        f"{float(found.posterior[0, target]):.3f}, pixels change by "
        f"{100 * float(found.pixel_change[0]):.1f} %"
    )
    print(f"written in {folder}: counterfactual.html, .json, .png, image.png")
    return 0 if reached else 1
