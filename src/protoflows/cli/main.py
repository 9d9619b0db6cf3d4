"""The entry point of the command `protoflows`."""

import argparse
from collections.abc import Sequence

from protoflows._version import __version__


def build_parser() -> argparse.ArgumentParser:
    """Describe the command line, without importing anything heavy."""
    parser = argparse.ArgumentParser(
        prog="protoflows",
        description=(
            "Image classifiers that explain themselves: an invertible flow whose latent space "
            "holds prototypes of every class."
        ),
        # An abbreviation that works today would break when a longer option joins it.
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code.

    Args:
        argv: the words after the program's name; those of the process if None.

    Returns:
        0 for success. What the parser rejects leaves through `SystemExit(2)`, and `--help` and
        `--version` through `SystemExit(0)`, as everywhere in argparse.
    """
    parser = build_parser()
    parser.parse_args(argv)
    parser.print_help()
    return 0
