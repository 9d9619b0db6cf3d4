"""`protoflows train`: a classifier from data."""

from __future__ import annotations

import signal
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
    out = Path(place) if place is not None else None
    known = None
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
            known = _begun(out)
            run = begin(
                config, out, overwrite=given.get("overwrite", False),
                argv=["protoflows", command, *argv],
            )  # fmt: skip
    except TrainingDivergedError as error:
        print(f"protoflows {command}: error: {error}", file=sys.stderr)
        return 1
    except (KeyboardInterrupt, SystemExit) as error:
        # Lightning makes an exit of a Ctrl-C that reaches it.
        cause = error.__context__ if isinstance(error, SystemExit) else error
        begun = None if out is None else _begun(out)
        if not isinstance(cause, KeyboardInterrupt) or begun is None or begun == known:
            raise
        assert out is not None
        print(_how_to_go_on(command, out), file=sys.stderr)
        return 128 + signal.SIGINT
    if run.signal:
        if run.is_first_process:
            print(_how_to_go_on(command, run.folder), file=sys.stderr)
        return 128 + run.signal
    if run.is_first_process:
        print(report(run.folder, run.metrics))
    return 0


def _begun(folder: Path) -> int | None:
    """When the run in a folder was begun, as the file system has it; None where there is none."""
    head = folder / "versions.json"
    return head.stat().st_mtime_ns if head.is_file() else None


def _how_to_go_on(command: str, folder: Path) -> str:
    last = folder / "checkpoints" / "last.ckpt"
    state = "a checkpoint is written" if last.is_file() else "no checkpoint was written yet"
    return f"Interrupted; {state}. Go on with:\n  protoflows {command} --resume {folder}"


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
    content = ("log.csv", "metrics.json", "model/", "flow/")
    there = ", ".join(name for name in content if (folder / name).exists())
    lines.append(f"results in      {folder} ({there})")
    return "\n".join(lines)
