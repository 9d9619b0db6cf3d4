"""`protoflows interpolate`: from one picture to another through the latent."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from protoflows.cli.parser import CommandParser


def build_parser() -> argparse.ArgumentParser:
    """Describe the options."""
    parser = CommandParser(
        prog="protoflows interpolate",
        description=(
            "Images on the way from A to B through the latent, exact at both ends, with log p(x) "
            "and class probabilities along it. Writes interpolation.png, .json, .html and the "
            "images themselves."
        ),
        examples=(
            ("nine images from one to the other", "interpolate mnist a.png b.png"),
            ("finer steps", "interpolate mnist a.png b.png --steps 17 --out slow"),
        ),
    )
    parser.add_argument("run", metavar="RUN", help="a run, a saved model, or a shipped one's name")
    parser.add_argument("a", metavar="A", help="the first picture")
    parser.add_argument("b", metavar="B", help="the last picture")
    parser.add_argument("--out", metavar="FOLDER", default="path", help="default: path")
    parser.add_argument("--steps", type=int, default=9, help="images, both ends included")
    parser.add_argument(
        "--factored", choices=("interpolate", "keep"), default="interpolate",
        help="what transitions put out: interpolated too, or kept as in A (the end is then not B)",
    )  # fmt: skip
    parser.add_argument("--mc", type=int, default=8, metavar="N", help="noise draws")
    parser.add_argument("--batch-size", type=int, default=64, help="images per pass")
    parser.add_argument("--seed", type=int, default=0, help="seed of the draws")
    return parser


def main(argv: Sequence[str]) -> int:
    """Run the command.

    Args:
        argv: The words after `interpolate`.
    """
    arguments = build_parser().parse_args(list(argv))
    from protoflows.cli.explain_inputs import out_folder, read_image, write_json, write_picture
    from protoflows.explain.figures.paths import draw_interpolation
    from protoflows.explain.html import page, picture
    from protoflows.explain.interpolation import interpolate
    from protoflows.model import load

    model = load(arguments.run)
    found = interpolate(
        model,
        read_image(model, arguments.a),
        read_image(model, arguments.b),
        steps=arguments.steps,
        factored=arguments.factored,
        samples=arguments.mc,
        seed=arguments.seed,
        batch_size=arguments.batch_size,
    )
    folder = out_folder(arguments.out)
    names, levels = model.config.class_names, model.config.flow.levels
    figure = draw_interpolation(found, levels, names)
    figure.savefig(folder / "interpolation.png", dpi=150)
    for place, image in enumerate(found.images):
        write_picture(folder / f"{place:03d}.png", image, levels)
    write_json(
        folder / "interpolation.json",
        {
            "factored": found.factored,
            "weights": found.weights.tolist(),
            "classes": [names[c] for c in found.posterior.argmax(1).tolist()],
            "log_prob": found.log_prob.tolist(),
            "percentile": None if found.percentile is None else found.percentile.tolist(),
            "posterior": found.posterior.tolist(),
        },
    )
    text = page("Interpolation", [picture(figure, f"From {arguments.a} to {arguments.b}")])
    (folder / "interpolation.html").write_text(text, encoding="utf-8")
    print(f"{len(found.images)} images, interpolation.png, .json and .html in {folder}")
    return 0
