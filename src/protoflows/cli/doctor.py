"""`protoflows doctor`: is a model in good health?"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from protoflows.cli.parser import CommandParser

_IMAGES = 16


def build_parser() -> argparse.ArgumentParser:
    """Describe the options."""
    parser = CommandParser(
        prog="protoflows doctor",
        description=(
            "Look a model over: NaN, exploding scales, dead and duplicate prototypes, whether "
            "images survive the way into the latent and back, and whether log-determinants are "
            "what autograd says. The exit code is 1 where anything fails."
        ),
        examples=(
            ("a model that ships", "doctor digits"),
            ("a run, on test images of its data", "doctor runs/mnist --data-root DIR"),
        ),
    )
    parser.add_argument("run", metavar="RUN", help="a run, a saved model, or a shipped one's name")
    parser.add_argument(
        "--data-root",
        metavar="DIR",
        help="folder that holds the run's data set: test images are then used, not the examples "
        "that were saved with the model",
    )
    parser.add_argument("--seed", type=int, default=0, help="seed of noise and of what is drawn")
    return parser


def main(argv: Sequence[str]) -> int:
    """Run the command.

    Args:
        argv: The words after `doctor`.
    """
    arguments = build_parser().parse_args(list(argv))
    from protoflows.evaluation.doctor import diagnose
    from protoflows.model import load

    images = None
    if arguments.data_root is not None:
        from protoflows.cli.run_data import open_run

        run = open_run(arguments.run, data_root=arguments.data_root)
        model, images = run.model, run.split("test").images[:_IMAGES]
    else:
        model = load(arguments.run)
    diagnosis = diagnose(model, images, seed=arguments.seed)
    print(diagnosis.table())
    if diagnosis.status == "FAIL":
        print("do not trust this model: see the lines marked FAIL", file=sys.stderr)
    return 1 if diagnosis.status == "FAIL" else 0
