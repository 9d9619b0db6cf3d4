"""`protoflows train`: a classifier from data."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from jsonargparse import ArgumentParser

from protoflows.cli.options import default_out, parse, settings, training_parser

_SETTINGS = "Settings come from a recipe, then a YAML file, then options."
_DESCRIPTIONS = {
    "train": "Train a classifier whose prototypes can be seen, into a run folder with its "
    f"settings, log, figures, checkpoints and model. {_SETTINGS}",
    "pretrain": "Train the flow alone, without classes, into a run folder: a start for `protoflows "
    f"train --flow-weights RUN`. {_SETTINGS}",
}
_EXAMPLES = {
    "train": (
        ("scikit-learn's digits, in minutes, into runs/digits", "train"),
        ("your pictures, one sub-folder per class", "train pictures --out runs/mine"),
        ("another number of prototypes per class", "train --prototypes.num_prototypes 5"),
        ("go on where it stopped", "train --resume runs/mine"),
    ),
    "pretrain": (
        ("the flow alone, as the paper does first", "pretrain cub200 --data-root DIR"),
        ("then the classifier", "train cub200 --data-root DIR --flow-weights runs/cub200-flow"),
    ),
}


def build_parser(command: str = "train") -> ArgumentParser:
    """Describe the options.

    Args:
        command: `train` or `pretrain`.
    """
    return training_parser(command, _DESCRIPTIONS[command], _EXAMPLES[command])


def main(argv: Sequence[str]) -> int:
    """Run the command.

    Args:
        argv: The words after `train`.
    """
    return run_training("train", argv)


def run_training(command: str, argv: Sequence[str]) -> int:
    """What `train` and `pretrain` have in common; the exit code."""
    given = parse(build_parser(command), argv)
    from protoflows.training import pretrain, resume, train
    from protoflows.training.module import TrainingDivergedError

    begin, suffix = (train, "") if command == "train" else (pretrain, "-flow")
    place = given.get("resume")
    if place is not None and (extra := sorted(set(given) - {"resume", "overwrite", "strict"})):
        raise ValueError(
            f"--resume goes on with the run's own settings: leave out {', '.join(extra)}, or begin "
            "a new run"
        )
    try:
        if place is not None:
            run = resume(place)
        else:
            config = settings(given)
            out = Path(given["out"]) if "out" in given else default_out(config, suffix)
            run = begin(
                config, out, overwrite=given.get("overwrite", False),
                argv=["protoflows", command, *argv],
            )  # fmt: skip
    except TrainingDivergedError as error:
        print(f"protoflows {command}: error: {error}", file=sys.stderr)
        return 1
    if run.signal:
        if run.is_first_process:
            print(
                f"Interrupted; a checkpoint is written. Go on with:\n  protoflows {command} "
                f"--resume {run.folder}",
                file=sys.stderr,
            )
        return 128 + run.signal
    if run.is_first_process:
        print(report(run.folder, run.metrics))
    return 0


def report(folder: Path, metrics: dict[str, float]) -> str:
    """A run's figures and where to find the rest, in a few lines."""
    lines = []
    if "accuracy" in metrics:
        lines.append(f"test accuracy   {100 * metrics['accuracy']:.2f} %")
    if "bits_per_dim" in metrics:
        lines.append(
            f"bits/dim        {metrics['bits_per_dim']:.4f} over {metrics['dims']} values of "
            f"{metrics['levels']} levels ({metrics['bits_per_image']:.1f} bits per image)"
        )
    if metrics.get("images"):
        draws = metrics["samples"]
        lines.append(
            f"measured on     {metrics['images']} test images, {draws} draw{'s' * (draws != 1)}"
        )
    kind = "model" if (folder / "model").is_dir() else "flow"
    lines.append(f"results in      {folder} (log.csv, metrics.json, {kind}/)")
    return "\n".join(lines)
