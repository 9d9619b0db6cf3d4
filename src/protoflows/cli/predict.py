"""`protoflows predict`: classes of pictures, with how likely they are and when not to answer."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from protoflows.cli.parser import CommandParser

if TYPE_CHECKING:
    from protoflows.evaluation.held_out import HeldOut
    from protoflows.model import ProtoFlow


def build_parser() -> argparse.ArgumentParser:
    """Describe the options."""
    parser = CommandParser(
        prog="protoflows predict",
        description=(
            "Classify a picture, or all pictures in a folder: class, probabilities, log p(x) with "
            "its percentile among the training images, and the prototype that is most like it. "
            "The exit code is 1 where a picture could not be read."
        ),
        examples=(
            ("a picture, with a model that ships", "predict digits picture.png"),
            ("a folder of pictures, as a table", "predict runs/mnist pictures --out classes.csv"),
            (
                "no answer where more than 5 % of answers would be wrong",
                "predict runs/mnist pictures --reject 0.05",
            ),
        ),
    )
    parser.add_argument("run", metavar="RUN", help="a run, a saved model, or a shipped one's name")
    parser.add_argument("path", metavar="PATH", help="a picture, or a folder of pictures")
    parser.add_argument(
        "--reject",
        type=float,
        metavar="RISK",
        help="abstain (empty label) so that at most this share of the answers is wrong, by a "
        "threshold on the confidence fitted to validation images: those that `calibrate` has "
        "noted, else the run's data, else the model's own probabilities",
    )
    parser.add_argument(
        "--format", choices=("csv", "json"), help="default: by the name of --out, else csv"
    )
    parser.add_argument("--out", metavar="FILE", help="where to write (default: standard output)")
    parser.add_argument(
        "--mc",
        type=int,
        metavar="N",
        help="noise draws per picture (default: as calibrated, else 8)",
    )
    parser.add_argument("--data-root", metavar="DIR", help="folder that holds the run's data set")
    parser.add_argument("--batch-size", type=int, default=64, help="pictures per pass")
    parser.add_argument("--seed", type=int, default=0, help="seed of the draws")
    return parser


def main(argv: Sequence[str]) -> int:
    """Run the command.

    Args:
        argv: The words after `predict`.
    """
    arguments = build_parser().parse_args(list(argv))
    from protoflows.evaluation.predict import DEFAULT_SAMPLES
    from protoflows.evaluation.predict_files import find_pictures, format_rows, predict_files
    from protoflows.evaluation.reject import check_bound, fit_rejection, word_rule
    from protoflows.model import load

    if arguments.mc is not None and arguments.mc < 1:
        raise ValueError(f"mc must be at least 1, got {arguments.mc}")
    if arguments.batch_size < 1:
        raise ValueError(f"batch-size must be at least 1, got {arguments.batch_size}")
    if arguments.reject is not None:
        check_bound(arguments.reject)
    out = Path(arguments.out).expanduser() if arguments.out is not None else None
    if out is not None and not out.resolve().parent.is_dir():
        raise FileNotFoundError(f"out: there is no folder {out.resolve().parent}")
    kind: Literal["csv", "json"] = arguments.format or (
        "json" if out is not None and out.suffix == ".json" else "csv"
    )
    files = find_pictures(arguments.path)
    model = load(arguments.run)

    samples = arguments.mc or DEFAULT_SAMPLES
    rule = None
    if arguments.reject is not None:
        found = _held_out(model, arguments, samples)
        if found is None:
            rule = word_rule(arguments.reject)
        else:
            samples = arguments.mc or found.samples
            rule = fit_rejection(found.confidence, found.correct, arguments.reject)
        print(f"--reject {arguments.reject:g}: {rule.describe()}", file=sys.stderr)

    result = predict_files(
        model,
        files,
        samples=samples,
        reject=rule,
        seed=arguments.seed,
        batch_size=arguments.batch_size,
    )
    text = format_rows(result.rows, kind)
    if out is None:
        sys.stdout.write(text)
    else:
        out.write_text(text, encoding="utf-8")
        abstained = sum(row.label is None for row in result.rows)
        print(
            f"{len(result.rows)} pictures in {out}"
            + (f", {abstained} of them without an answer" * (rule is not None))
        )
    if result.skipped:
        print(
            f"protoflows predict: {len(result.skipped)} of {len(files)} pictures could not be "
            "read:",
            *result.skipped,
            sep="\n  ",
            file=sys.stderr,
        )
    return 1 if result.skipped else 0


def _held_out(model: ProtoFlow, arguments: argparse.Namespace, samples: int) -> HeldOut | None:
    """Validation confidences: as calibration noted them, or measured now, or None."""
    from protoflows.cli.run_data import open_run
    from protoflows.evaluation.held_out import held_out, read_held_out
    from protoflows.model import find_model_folder

    run = Path(arguments.run).expanduser()
    folder = find_model_folder(run)
    if folder is None:
        return None  # a shipped model, or one from the Hub
    noted = read_held_out(model, folder, run)
    if noted is not None and arguments.mc in (None, noted.samples):
        return noted
    if not (run / "config.yaml").is_file():
        return None
    try:
        split = open_run(run, data_root=arguments.data_root).split("validation")
    except (ValueError, OSError) as error:
        print(f"note: no validation images to go by ({error})", file=sys.stderr)
        return None
    print(
        f"note: measuring on {len(split)} validation images; `protoflows calibrate {run}` would "
        "note it once and for all",
        file=sys.stderr,
    )
    return held_out(model, split, samples=samples, batch_size=arguments.batch_size)
