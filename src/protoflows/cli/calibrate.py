"""`protoflows calibrate`: probabilities that mean what they say."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from protoflows.cli.parser import CommandParser


def build_parser() -> argparse.ArgumentParser:
    """Describe the options."""
    parser = CommandParser(
        prog="protoflows calibrate",
        description=(
            "Fit temperatures of the logits and of the prototypes' variances on the run's "
            "validation images, and store the better one with the model (none, if none helps). "
            "Also notes confidences on those images, from which `predict --reject` takes its "
            "threshold. Densities and samples stay as they are."
        ),
        examples=(
            ("temperatures from the run's validation images", "calibrate runs/digits"),
            ("steadier, with more draws of the noise", "calibrate runs/digits --mc 25"),
        ),
    )
    parser.add_argument("run", metavar="RUN", help="folder of the run")
    parser.add_argument("--data-root", metavar="DIR", help="folder that holds the data set")
    parser.add_argument(
        "--mc", type=int, default=8, metavar="N", help="noise draws per image (default: 8)"
    )
    parser.add_argument("--batch-size", type=int, default=256, help="images per pass")
    parser.add_argument("--seed", type=int, default=0, help="seed of the draws")
    return parser


def main(argv: Sequence[str]) -> int:
    """Run the command.

    Args:
        argv: The words after `calibrate`.
    """
    arguments = build_parser().parse_args(list(argv))
    from protoflows.cli.run_data import open_run
    from protoflows.evaluation.calibrate import calibrate, calibration_table
    from protoflows.evaluation.held_out import store_calibration
    from protoflows.model import find_model_folder
    from protoflows.training.runfolder import VERSIONS, read_head

    run = open_run(arguments.run, data_root=arguments.data_root)
    versions = run.folder / VERSIONS
    if versions.is_file() and read_head(run.folder).get("kind") == "import":
        print(
            "note: a published checkpoint may have been trained on the images that are held out "
            "here: its temperatures and risks can come out too low",
            file=sys.stderr,
        )
    folder = find_model_folder(run.folder)
    assert folder is not None  # open_run has loaded it
    found = calibrate(
        run.model,
        run.split("validation"),
        samples=arguments.mc,
        seed=arguments.seed,
        batch_size=arguments.batch_size,
    )
    print(
        f"{len(found.labels)} validation images, {found.samples} draws each; figures from "
        "five-fold cross-validation"
    )
    print(calibration_table(found))
    store_calibration(run.model, found, folder, run.folder)
    config, best = run.model.config, found.best
    print(
        f"stored in {folder}: logit temperature {config.logit_temperature:.5g}, variance "
        f"temperature {config.variance_temperature:.5g}"
    )
    if best.method != "none":
        print(
            f"figures measured before hold no longer: run `protoflows evaluate {run.folder}` again"
        )
    return 0
