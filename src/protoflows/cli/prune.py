"""`protoflows prune`: a run with fewer prototypes."""

from __future__ import annotations

import argparse
import math
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from protoflows.cli.parser import CommandParser

# Figures that the model's card shows; metrics.json has them all.
_ON_THE_CARD = ("accuracy", "ece", "nll", "bits", "dims", "images", "mc_samples")


def build_parser() -> argparse.ArgumentParser:
    """Describe the options."""
    parser = CommandParser(
        prog="protoflows prune",
        description=(
            "Make a new run without the prototypes of little weight: those below Otsu's threshold "
            "on the mixture weights of all classes. Measures both runs on the test images. The "
            "last prototype of a class always stays."
        ),
        examples=(
            (
                "without the prototypes below Otsu's threshold",
                "prune runs/digits --out runs/digits-pruned",
            ),
            (
                "without the lightest 80 %",
                "prune runs/digits --out runs/digits-fifth --fraction 0.8",
            ),
        ),
    )
    parser.add_argument("run", metavar="RUN", help="folder of the run")
    parser.add_argument("--out", metavar="RUN", required=True, help="folder of the new run")
    parser.add_argument(
        "--per-class", action="store_true", help="a threshold (or share) for every class by itself"
    )
    parser.add_argument(
        "--fraction", type=float, metavar="F", help="remove this share, lightest first"
    )
    parser.add_argument("--data-root", metavar="DIR", help="folder that holds the data set")
    parser.add_argument(
        "--mc", type=int, default=8, metavar="N", help="noise draws per image (default: 8)"
    )
    parser.add_argument("--limit", type=int, metavar="N", help="measure on at most N test images")
    parser.add_argument("--batch-size", type=int, default=256, help="images per pass")
    parser.add_argument("--seed", type=int, default=0, help="seed of the draws")
    parser.add_argument("--overwrite", action="store_true", help="replace the run in the folder")
    return parser


def main(argv: Sequence[str]) -> int:
    """Run the command.

    Args:
        argv: The words after `prune`.
    """
    arguments = build_parser().parse_args(list(argv))
    from protoflows.cli.evaluate import limited, show_progress
    from protoflows.cli.run_data import open_run
    from protoflows.evaluation.held_out import stored_dtype
    from protoflows.evaluation.prune import (
        choose_prototypes,
        measure_pruning,
        pruning_figure,
        pruning_table,
    )
    from protoflows.model import find_model_folder
    from protoflows.training.artefacts import make_extras
    from protoflows.training.runfolder import (
        CONFIG,
        METRICS,
        VERSIONS,
        create_run_folder,
        write_json,
    )

    out = Path(arguments.out).expanduser()
    if out.resolve() == Path(arguments.run).expanduser().resolve():
        raise ValueError(f"out: {out} is the run itself: choose another folder")
    if arguments.mc < 1 or arguments.batch_size < 1:
        raise ValueError("mc and batch-size must be at least 1")
    run = open_run(arguments.run, data_root=arguments.data_root)
    source = find_model_folder(run.folder)
    assert source is not None  # open_run has loaded it
    test = limited(run, "test", arguments.limit)
    pruning = choose_prototypes(
        run.model.mixtures, per_class=arguments.per_class, fraction=arguments.fraction
    )
    size = sum(file.stat().st_size for file in source.iterdir())
    create_run_folder(out, overwrite=arguments.overwrite, needed_bytes=2 * size)
    pruned = run.model.keep_prototypes(pruning.mask)
    measured = measure_pruning(
        (run.model, pruned), test, samples=arguments.mc, seed=arguments.seed,
        batch_size=arguments.batch_size, progress=show_progress,
    )  # fmt: skip
    about = {"data": run.bundle.name, "split": "test", "seed": arguments.seed}
    shares = (0.0, pruning.share)
    before, after = (
        {**about, **own, "pruned": share} for own, share in zip(measured, shares, strict=True)
    )

    for name in (CONFIG, VERSIONS):
        if (run.folder / name).is_file():
            shutil.copyfile(run.folder / name, out / name)
    # Fewer prototypes, another p(x): its quantiles over the training images are taken anew.
    licence = run.model.extras.licence if run.model.extras is not None else ""
    extras = make_extras(
        pruned,
        run.bundle,
        run.split("train"),
        {name: value for name, value in measured[1].items() if name.startswith(_ON_THE_CARD)},
        seed=arguments.seed,
        batch_size=arguments.batch_size,
    )
    pruned.extras = replace(extras, licence=licence)
    pruned.save_pretrained(out / "model", weights_dtype=stored_dtype(source))
    (out / "figures").mkdir(exist_ok=True)
    pruning_figure(pruning).savefig(out / "figures" / "pruning.png", dpi=150)
    report = {
        "source": str(run.folder),
        "prototypes_before": pruning.before,
        "prototypes_after": pruning.after,
        "share_pruned": pruning.share,
        "rule": "fraction" if arguments.fraction is not None else "otsu",
        "per_class": arguments.per_class,
        "fraction": arguments.fraction,
        "thresholds": pruning.thresholds.tolist(),
        "before": before,
        "after": after,
    }
    write_json(out / "pruning.json", _plain(report))
    write_json(out / METRICS, _plain(after))  # last: it says that the run is complete

    print(
        f"{pruning.before - pruning.after} of {pruning.before} prototypes are gone"
        + (
            f"; {len(pruning.spared)} light ones stay, the last of their class"
            * bool(pruning.spared)
        )
    )
    if arguments.fraction is not None and pruning.share < arguments.fraction - 1e-9:
        print(
            f"{100 * arguments.fraction:g} % were asked for: prototypes are whole, and every class "
            "keeps one"
        )
    print(f"{len(test)} test images, {arguments.mc} draws each")
    print(pruning_table(list(zip(shares, measured, strict=True))))
    print(f"results in      {out} (model/, metrics.json, pruning.json, figures/pruning.png)")
    return 0


def _plain(value: Any) -> Any:
    """JSON has no NaN: a figure that is not finite is null."""
    if isinstance(value, dict):
        return {key: _plain(entry) for key, entry in value.items()}
    if isinstance(value, list):
        return [_plain(entry) for entry in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
