"""`protoflows report`: all of a run as one page that opens offline."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from protoflows.cli.parser import CommandParser

# Options that are fields of `Plan`, what they stand for, and their values when not given.
_AMOUNTS = (
    ("images", 1000, "test images looked at, at most"),
    ("mc", 8, "noise draws"),
    ("train-images", 5000, "training images that prototypes are compared with, at most"),
    ("relevance-images", 48, "images of the relevance ordering test"),
    ("examples", 3, "right and wrong decisions explained, of each so many"),
    ("classes", 20, "classes whose prototypes are shown in full"),
    ("batch-size", 256, "images per pass"),
)


def build_parser() -> argparse.ArgumentParser:
    """Describe the options."""
    parser = CommandParser(
        prog="protoflows report",
        description=(
            "All of a run as one file that opens offline: metrics, reliability, right and wrong "
            "decisions explained, counterfactuals, interpolations, prototypes, pruning, maps, and "
            "how far to trust all that. Each section says how to read it and how it misleads. "
            "Without the run's data the sections that need it say so."
        ),
        examples=(
            ("runs/digits/report.html", "report runs/digits"),
            ("a closer look, which takes longer", "report runs/mnist --images 10000 --mc 25"),
            ("a model that ships, without its data", "report digits --out digits.html"),
        ),
    )
    parser.add_argument("run", metavar="RUN", help="a run, a saved model, or a shipped one's name")
    parser.add_argument(
        "--out", metavar="FILE", help="default: RUN/report.html, or report.html without a run"
    )
    for name, value, text in _AMOUNTS:
        parser.add_argument(
            f"--{name}", type=int, default=value, metavar="N", help=f"{text} (default: {value})"
        )
    parser.add_argument("--data-root", metavar="DIR", help="folder that holds the run's data set")
    parser.add_argument("--seed", type=int, default=0, help="seed of everything")
    return parser


def main(argv: Sequence[str]) -> int:
    """Run the command.

    Args:
        argv: The words after `report`.
    """
    arguments = build_parser().parse_args(list(argv))
    from protoflows.cli.explain_inputs import run_splits
    from protoflows.explain.retrieved import load_parts
    from protoflows.model import find_model_folder, load
    from protoflows.report import Plan, Source, make_report

    start = time.perf_counter()
    plan = Plan(
        images=arguments.images, samples=arguments.mc, train_images=arguments.train_images,
        relevance_images=arguments.relevance_images, examples=arguments.examples,
        classes=arguments.classes, seed=arguments.seed, batch_size=arguments.batch_size,
    )  # fmt: skip
    model = load(arguments.run)
    folder = Path(arguments.run).expanduser()
    file = _file(arguments.out, folder)
    train, test = run_splits(arguments.run, ("train", "test"), arguments.data_root)
    home = find_model_folder(folder)
    notes = []
    if test is None:
        notes.append(
            "This run's data was out of reach: sections that need it say so, and examples are "
            "taken from what was saved with the model."
        )
    source = Source(
        model, folder.resolve().name if folder.is_dir() else arguments.run,
        data_name=(model.extras.data_name if model.extras is not None else ""),
        metrics=_metrics(folder), train=train, test=test,
        parts=load_parts(home, model) if home is not None else None, notes=tuple(notes),
    )  # fmt: skip
    text = make_report(source, plan, progress=_progress())
    file.write_text(text, encoding="utf-8")
    took = time.perf_counter() - start
    print(f"{file}   {len(text.encode()) / 1e6:.1f} MB in {took:.0f} s")
    return 0


def _file(out: str | None, run: Path) -> Path:
    """Where to write, refused before any time is spent."""
    default = run / "report.html" if run.is_dir() else Path("report.html")
    file = default if out is None else Path(out).expanduser()
    if file.is_dir():
        raise ValueError(f"out: {file} is a folder: give a file, such as {file / 'report.html'}")
    if file.suffix not in (".html", ".htm"):
        raise ValueError(f"out must end in .html, got {str(file)!r}")
    file.parent.mkdir(parents=True, exist_ok=True)
    return file


def _metrics(run: Path) -> dict[str, Any]:
    """metrics.json of a run; none of a model without one."""
    from protoflows.evaluation.report import METRICS_JSON, read_metrics

    return read_metrics(run) if (run / METRICS_JSON).is_file() else {}


def _progress() -> Callable[[str], None] | None:
    if not sys.stderr.isatty():
        return None
    return lambda name: print(f"\r{name:<20}", end="", file=sys.stderr, flush=True)
