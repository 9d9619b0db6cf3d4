"""`protoflows import`: a published checkpoint becomes a run."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from protoflows.cli.parser import CommandParser


def build_parser() -> argparse.ArgumentParser:
    """Describe the options."""
    parser = CommandParser(
        prog="protoflows import",
        description=(
            "Turn a published ProtoFlow checkpoint (checkpoint*.pt with config.json) into a run. "
            "With --data it is measured on the test images and gets class names, mean image and "
            "examples."
        ),
        examples=(
            ("a published checkpoint becomes a run", "import published/cifar10 --out runs/paper"),
            (
                "and is measured",
                "import published/cifar10 --out runs/paper --data cifar10 --data-root DIR",
            ),
        ),
    )
    parser.add_argument("source", metavar="FOLDER", help="the checkpoint's folder, or its .pt file")
    parser.add_argument("--out", metavar="RUN", required=True, help="folder of the run")
    parser.add_argument("--data", metavar="DATA", help="the data set that it was trained on")
    parser.add_argument("--data-root", metavar="DIR", help="folder that holds the data set")
    parser.add_argument("--image-size", type=int, help="side of the images (default: as published)")
    parser.add_argument("--ema", action="store_true", help="take the averaged weights")
    parser.add_argument("--samples", type=int, default=1, help="noise draws for the figures")
    parser.add_argument("--limit", type=int, help="measure on at most this many images")
    parser.add_argument("--overwrite", action="store_true", help="replace the run in the folder")
    return parser


def main(argv: Sequence[str]) -> int:
    """Run the command.

    Args:
        argv: The words after `import`.
    """
    arguments = build_parser().parse_args(list(argv))
    from protoflows.cli.train import report
    from protoflows.training.importing import import_checkpoint

    out = Path(arguments.out)
    metrics = import_checkpoint(
        arguments.source,
        out,
        data=arguments.data,
        data_root=arguments.data_root,
        image_size=arguments.image_size,
        ema=arguments.ema,
        samples=arguments.samples,
        limit=arguments.limit,
        overwrite=arguments.overwrite,
        argv=["protoflows", "import", *argv],
    )
    print(report(out, metrics))
    return 0
