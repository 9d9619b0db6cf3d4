"""`protoflows explain`: why a picture got its class, as a figure, as JSON and as one HTML page."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from protoflows.cli.parser import CommandParser

if TYPE_CHECKING:
    from protoflows.explain.retrieved import RetrievedParts
    from protoflows.model import ProtoFlow


def build_parser() -> argparse.ArgumentParser:
    """Describe the options."""
    parser = CommandParser(
        prog="protoflows explain",
        description=(
            "This looks like that: class, likelihood, top prototypes with their parts and "
            "heatmaps, and the exact evidence for the class. Writes why.html, why.json and why.png."
        ),
        examples=(
            ("why a picture got its class, in why/why.html", "explain digits picture.png"),
            (
                "with smaller patches, elsewhere",
                "explain runs/mnist picture.png --patch 2 --out why-2",
            ),
        ),
    )
    parser.add_argument("run", metavar="RUN", help="a run, a saved model, or a shipped one's name")
    parser.add_argument("picture", metavar="PICTURE", help="an image file of any size")
    parser.add_argument("--out", metavar="FOLDER", default="why", help="default: why")
    parser.add_argument("--top", type=int, default=3, help="prototypes to show")
    parser.add_argument("--patch", type=int, help="side of a patch (default: 4, small images 2)")
    parser.add_argument("--stride", type=int, help="distance of patches (default: half a patch)")
    parser.add_argument(
        "--by", choices=("latent", "image"), default="latent",
        help="heatmaps of p(z|prototype), as in the paper, or of p(x|prototype)",
    )  # fmt: skip
    parser.add_argument("--mc", type=int, default=8, metavar="N", help="noise draws")
    parser.add_argument("--batch-size", type=int, default=64, help="images per pass")
    parser.add_argument("--seed", type=int, default=0, help="seed of the draws")
    return parser


def main(argv: Sequence[str]) -> int:
    """Run the command.

    Args:
        argv: The words after `explain`.
    """
    arguments = build_parser().parse_args(list(argv))
    from protoflows.cli.explain_inputs import out_folder
    from protoflows.explain.explanation import explain
    from protoflows.model import load

    model = load(arguments.run)
    found = explain(
        model,
        arguments.picture,
        top=arguments.top,
        samples=arguments.mc,
        patch=arguments.patch,
        stride=arguments.stride,
        by=arguments.by,
        parts=_parts(arguments.run, model),
        perturbations_per_eval=arguments.batch_size,
        seed=arguments.seed,
    )
    folder = out_folder(arguments.out)
    for name in ("why.html", "why.json", "why.png"):
        found.save(folder / name)
    print(f"class      {found.prediction} ({100 * float(found.posterior[found.label]):.1f} %)")
    print(f"log p(x)   {found.log_prob:.1f} nats. {found.usual()}")
    for p in found.prototypes:
        print(f"looks like {p.title} ({100 * p.share:.1f} % of the decision)")
    for note in found.notes:
        print(f"note       {note}")
    print(f"written    {folder / 'why.html'}, why.json, why.png")
    return 0


def _parts(run: str, model: ProtoFlow) -> RetrievedParts | None:
    """The training set's likeliest parts, where they were stored with the model."""
    from protoflows.explain.retrieved import load_parts
    from protoflows.model import find_model_folder, shipped_models
    from protoflows.model.shipped import shipped_folder

    home = find_model_folder(Path(run).expanduser())
    if home is not None:
        return load_parts(home, model)
    if run in shipped_models():
        with shipped_folder(run) as folder:
            return load_parts(folder, model)
    return None
