"""`protoflows evaluate`: every figure of a run, with error bars, beside the paper's."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from protoflows.cli.parser import CommandParser

if TYPE_CHECKING:
    from protoflows.cli.run_data import OpenRun
    from protoflows.data import Split

_UNFINISHED = "unfinished"
_OOD = "ood_"


def build_parser() -> argparse.ArgumentParser:
    """Describe the options."""
    parser = CommandParser(
        prog="protoflows evaluate",
        description=(
            "Measure a run on its data: accuracy, calibration, bits per dimension, robustness and "
            "diversity of its prototypes, all with standard errors. Writes metrics.json, "
            "metrics.csv, evaluation/ and figures/ into the run. Interrupted, it goes on from its "
            "finished batches when given again. Started by torchrun, its processes share the work."
        ),
        examples=(
            ("every figure of a run, into the run", "evaluate runs/digits"),
            (
                "as in the paper: 100 draws of the noise, 5 augmented views",
                "evaluate runs/digits --mc 100 --tta 5",
            ),
            (
                "can the run tell other images from its own?",
                "evaluate runs/mnist --ood fashion-mnist --data-root DIR",
            ),
        ),
    )
    parser.add_argument("run", metavar="RUN", help="the run's folder")
    parser.add_argument(
        "--mc",
        type=int,
        default=25,
        metavar="N",
        help="draws of the noise (default: 25; paper: 100)",
    )
    parser.add_argument(
        "--tta", type=int, default=0, metavar="N",
        help="augmented views per image that decide its class together (default: 0; paper: 5)",
    )  # fmt: skip
    parser.add_argument(
        "--adaptive", type=float, metavar="P",
        help="stop drawing for an image once its class is settled at this confidence (0.99)",
    )  # fmt: skip
    parser.add_argument(
        "--verify", action="store_true",
        help="with --adaptive: make all draws, and say how often stopping early would have agreed",
    )  # fmt: skip
    parser.add_argument(
        "--split", choices=("train", "validation", "test"), default="test", help="default: test"
    )
    parser.add_argument("--data-root", metavar="DIR", help="folder that holds the data set now")
    parser.add_argument("--ood", metavar="DATA", help="a data set to tell from the run's own")
    parser.add_argument("--limit", type=int, metavar="N", help="at most so many images")
    parser.add_argument(
        "--batch-size", type=int, default=256, metavar="N", help="images per pass (default: 256)"
    )
    parser.add_argument("--seed", type=int, default=0, help="seed of all draws (default: 0)")
    parser.add_argument("--device", help="where the model runs (default: a GPU where there is one)")
    parser.add_argument(
        "--out", metavar="DIR", help="folder for the results (default: the run's own)"
    )
    again = parser.add_mutually_exclusive_group()
    again.add_argument(
        "--resume", action="store_true",
        help="insist on going on: refuse where finished batches are of another evaluation",
    )  # fmt: skip
    again.add_argument("--fresh", action="store_true", help="forget finished batches")
    return parser


def main(argv: Sequence[str]) -> int:
    """Run the command.

    Args:
        argv: The words after `evaluate`.
    """
    parser = build_parser()
    options = parser.parse_args(list(argv))
    if options.verify and options.adaptive is None:
        parser.error("--verify needs --adaptive P, the rule to verify")
    with _processes() as rank:
        return _evaluate(options, rank)


def _evaluate(options: argparse.Namespace, rank: int) -> int:
    from protoflows.cli.run_data import open_run
    from protoflows.evaluation import evaluate
    from protoflows.evaluation.report import TABLES, write_report

    device = options.device or _default_device()
    opened = open_run(options.run, data_root=options.data_root, device=device)
    split = limited(opened, options.split, options.limit)
    # Before the passes: what is wrong with the other data set is said at once.
    other = _other_data(opened, split, options) if options.ood and rank == 0 else None
    out = Path(options.out).expanduser() if options.out else opened.folder
    store = out / TABLES / _UNFINISHED
    if options.fresh and rank == 0:
        shutil.rmtree(store, ignore_errors=True)
    try:
        evaluation = evaluate(
            opened.model, split, samples=options.mc, tta=options.tta,
            augment=opened.augment() if options.tta else None, adaptive=options.adaptive,
            verify=options.verify, batch_size=options.batch_size, seed=options.seed, store=store,
            mismatch="refuse" if options.resume else "clear", progress=show_progress,
        )  # fmt: skip
    except KeyboardInterrupt:
        print(
            f"\nInterrupted; finished batches are kept in {store}. Give the same command to go on.",
            file=sys.stderr,
        )
        return 130
    if rank != 0:
        return 0
    if other is not None:
        evaluation.metrics.update(_out_of_distribution(opened, split, other, options))
    about = {"data": opened.bundle.name, "split": options.split, "seed": options.seed}
    write_report(out, evaluation, about, opened.model.config.class_names)
    shutil.rmtree(store, ignore_errors=True)
    print(render(str(opened.folder), opened.bundle.name, evaluation.metrics))
    print(f"results in {out} (metrics.json, metrics.csv, evaluation/, figures/)")
    return 0


@contextmanager
def _processes() -> Iterator[int]:
    """Join the other processes where a launcher has started several; this one's rank."""
    import torch.distributed as dist

    if int(os.environ.get("WORLD_SIZE", "1")) == 1 or dist.is_initialized():
        yield dist.get_rank() if dist.is_available() and dist.is_initialized() else 0
        return
    dist.init_process_group("gloo")  # results are gathered on the CPU
    try:
        yield dist.get_rank()
    finally:
        dist.destroy_process_group()


def _default_device() -> str:
    import torch

    if not torch.cuda.is_available():
        return "cpu"
    return f"cuda:{os.environ.get('LOCAL_RANK', '0')}"


def render(title: str, dataset: str, metrics: dict[str, float | int]) -> str:
    """The figures beside the paper's rows for that data set, where it has any."""
    from protoflows.evaluation.paper import paper_rows_for
    from protoflows.evaluation.table import Column, paper_column, text_table

    own = Column(title, metrics)
    rows = [row for row in paper_rows_for(dataset) if not row.figures.get("pruned")]
    text = text_table([own, *(paper_column(row, [own]) for row in rows)])
    ood = {n.removeprefix(_OOD): value for n, value in metrics.items() if n.startswith(_OOD)}
    return f"{text}\n\n{_ood_text(ood)}" if ood else text


def _ood_text(ood: dict[str, float | int]) -> str:
    """How well other images are told apart, and a warning where likelihoods mislead."""
    from protoflows.evaluation.ood import ood_table

    lines = [
        f"{ood['in_images']:.0f} images of its own against {ood['out_images']:.0f} others",
        ood_table(ood),
    ]
    if ood["log_prob_auroc"] < 0.5:
        lines.append(
            "The others are the likelier ones (auroc of log_prob below 0.5): simple images are, "
            "whatever they show. Go by typicality here."
        )
    return "\n".join(lines)


def limited(opened: OpenRun, name: str, limit: int | None) -> Split:
    """A split of the run, or so many of its images, class by class and the same every time."""
    from protoflows.data.splits import stratified_choice

    split = opened.split(name)
    if limit is None or limit >= len(split):
        return split
    if limit < 1:
        raise ValueError(f"--limit must be ≥ 1, got {limit}")
    return split.select(stratified_choice(split.labels, limit, opened.config.data.split_seed))


def show_progress(done: int, total: int) -> None:
    """Say on a terminal how many images are done, in one line that is written over."""
    if sys.stderr.isatty():
        end = "\n" if done == total else ""
        print(f"\r{done} of {total} images", end=end, file=sys.stderr, flush=True)


def _other_data(opened: OpenRun, split: Split, options: argparse.Namespace) -> tuple[Split, int]:
    """Test images of the data set to be told from the split's, at most as many; their levels."""
    from protoflows.data import DataConfig, load_data
    from protoflows.data.splits import stratified_choice

    root = options.data_root or opened.config.data.root
    size = opened.model.config.flow.image_shape[1]
    bundle = load_data(DataConfig(name=options.ood, root=root, image_size=size))
    other = bundle.test if len(bundle.test) else bundle.train
    if len(other) > len(split):
        other = other.select(stratified_choice(other.labels, len(split), seed=options.seed))
    return other, bundle.levels


def _out_of_distribution(
    opened: OpenRun, split: Split, other: tuple[Split, int], options: argparse.Namespace
) -> dict[str, float]:
    """Figures of telling another data set's images from the split's, named `ood_…`."""
    from protoflows.evaluation.ood import run_ood

    found = run_ood(
        opened.model, split.images, other[0].images, samples=options.mc, seed=options.seed,
        batch_size=options.batch_size, out_levels=other[1],
    )  # fmt: skip
    return {f"{_OOD}{name}": value for name, value in found.metrics.items()}
