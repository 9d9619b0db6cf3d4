"""`protoflows faithfulness`: how far a run's explanations can be trusted."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from protoflows.cli.parser import CommandParser

if TYPE_CHECKING:
    from torch import Tensor

    from protoflows.model import ProtoFlow


def build_parser() -> argparse.ArgumentParser:
    """Describe the options."""
    parser = CommandParser(
        prog="protoflows faithfulness",
        description=(
            "The relevance ordering test against random pixels and random patches, and sanity "
            "checks: heatmaps under randomised weights, under other noise, and prototypes of "
            "another training. Writes faithfulness.json, index.html and figures."
        ),
        examples=(
            ("curves and sanity checks on the run's test images", "faithfulness runs/digits"),
            (
                "how like are the prototypes of another training?",
                "faithfulness runs/digits --other runs/digits-1",
            ),
        ),
    )
    parser.add_argument("run", metavar="RUN", help="a run, a saved model, or a shipped one's name")
    parser.add_argument(
        "--out", metavar="FOLDER", help="default: RUN/faithfulness, or faithfulness without a run"
    )
    parser.add_argument("--images", type=int, default=200, help="test images of the ordering test")
    parser.add_argument("--sanity-images", type=int, default=30, help="of the sanity checks")
    parser.add_argument("--step", type=int, help="pixels at a time (default: a 32nd of the image)")
    parser.add_argument("--orderings", type=int, default=3, help="random orderings per image")
    parser.add_argument("--patch", type=int, help="side of a patch (default: 4, small images 2)")
    parser.add_argument("--stride", type=int, help="distance of patches (default: half a patch)")
    parser.add_argument(
        "--by", choices=("latent", "image"), default="latent",
        help="likelihoods p(z|prototype), as in the paper, or p(x|prototype)",
    )  # fmt: skip
    parser.add_argument("--draws", type=int, default=4, help="noise draws compared for stability")
    parser.add_argument("--other", metavar="RUN", help="match prototypes with this run's")
    parser.add_argument("--data-root", metavar="DIR", help="folder that holds the run's data set")
    parser.add_argument("--batch-size", type=int, default=256, help="images per pass")
    parser.add_argument("--seed", type=int, default=0, help="seed of everything")
    return parser


def main(argv: Sequence[str]) -> int:
    """Run the command.

    Args:
        argv: The words after `faithfulness`.
    """
    arguments = build_parser().parse_args(list(argv))
    from protoflows.cli.explain_inputs import out_folder, write_json
    from protoflows.explain.faithfulness import relevance_ordering
    from protoflows.explain.figures.trust import draw_relevance, draw_sanity
    from protoflows.explain.html import heading, page, paragraph, picture
    from protoflows.explain.parts import default_patch
    from protoflows.explain.sanity import check_randomisation, check_stability, summary
    from protoflows.model import load

    for name in ("images", "sanity_images"):
        if getattr(arguments, name) < 1:
            option = name.replace("_", "-")
            raise ValueError(f"{option} must be at least 1, got {getattr(arguments, name)}")
    model = load(arguments.run)
    x = _images(model, arguments)
    patch = arguments.patch or default_patch(model)
    shared = {
        "patch": patch,
        "stride": arguments.stride or max(1, patch // 2),
        "seed": arguments.seed,
        "batch_size": arguments.batch_size,
    }
    tests = [
        relevance_ordering(
            model, x, step=arguments.step, orderings=arguments.orderings, by=arguments.by,
            control=control, **shared,
        )
        for control in ("pixels", "patches")
    ]  # fmt: skip
    few = x[: arguments.sanity_images]
    randomisation = check_randomisation(model, few, **shared)
    stability = check_stability(model, few, draws=arguments.draws, **shared)
    matches = _matches(model, arguments.other, x) if arguments.other else None
    content = {
        "relevance_ordering": [test.to_dict() for test in tests],
        "randomised_flow": summary(randomisation.flow),
        "next_class_prototype": summary(randomisation.prototypes),
        "next_class_prototype_lead": summary(randomisation.lead),
        "other_noise": summary(stability.heatmap),
        "top_prototype_stable": summary(stability.top_prototype),
        "other_training": matches,
    }
    default = Path(arguments.run).expanduser()
    place = str(default / "faithfulness") if default.is_dir() else "faithfulness"
    folder = out_folder(arguments.out or place)
    write_json(folder / "faithfulness.json", content)
    body = []
    for test in tests:
        figure = draw_relevance(test)
        figure.savefig(folder / f"relevance-{test.control}.png", dpi=130)
        gap, low, high = test.gap_interval()
        line = (
            f"heatmap − random {test.control}: median {gap:+,.2f} nats "
            f"[{low:+,.2f}, {high:+,.2f}], beats {100 * float(test.wins.mean()):.1f} % of random "
            f"orders, p = {test.p_value():.2g}, {len(x)} images"
        )
        print(line)
        body += [heading(f"Relevance ordering against random {test.control}"), paragraph(line)]
        body.append(picture(figure, "Likelihood while pixels come back, and the gap in area."))
    figure = draw_sanity(randomisation, stability)
    figure.savefig(folder / "sanity.png", dpi=130)
    body += [heading("Sanity checks"), picture(figure, "Rank correlations of heatmaps.")]
    if matches:
        lines = [f"{k}: {v}" for k, v in matches.items()]
        body += [heading("Prototypes of another training"), *map(paragraph, lines)]
    title = f"How far to trust the explanations of {default.name}"
    (folder / "index.html").write_text(page(title, body), encoding="utf-8")
    print(f"written    {folder / 'index.html'}, faithfulness.json")
    return 0


def _images(model: ProtoFlow, arguments: argparse.Namespace) -> Tensor:
    """Test images of every class, or the few training images that were saved with the model."""
    from protoflows.cli.explain_inputs import run_split
    from protoflows.data.splits import stratified_choice

    split = run_split(arguments.run, "test", arguments.data_root)
    if split is not None:
        count = min(arguments.images, len(split))
        # Shuffled, so that the first few are of every class too.
        chosen = stratified_choice(split.labels, count, arguments.seed)
        return split.images[chosen[_shuffle(len(chosen), arguments.seed)]]
    extras = model.extras
    if extras is None or extras.images is None or not len(extras.images):
        raise ValueError(
            f"RUN: {arguments.run} has neither its data nor saved training images to test with"
        )
    print(
        f"note: testing with {min(arguments.images, len(extras.images))} training images that "
        "were saved with the model",
        file=sys.stderr,
    )
    return extras.images[_shuffle(len(extras.images), arguments.seed)[: arguments.images]]


def _shuffle(count: int, seed: int) -> Tensor:
    import torch

    return torch.randperm(count, generator=torch.Generator().manual_seed(seed))


def _matches(model: ProtoFlow, other: str, x: Tensor) -> dict[str, float]:
    from protoflows.explain.matching import match_prototypes
    from protoflows.model import load

    second = load(other)
    image = match_prototypes(model, second)
    explained = match_prototypes(model, second, images=x)
    return {
        "image_divergence": float(image.cost.mean()),
        "image_divergence_at_random": float(image.chance.mean()),
        "explained_images_differ": float(explained.cost.mean()),
        "explained_images_differ_at_random": float(explained.chance.mean()),
    }
