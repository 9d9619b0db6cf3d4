"""`protoflows pretrain`: the flow alone, by its unconditional density."""

from __future__ import annotations

from collections.abc import Sequence

from jsonargparse import ArgumentParser

from protoflows.cli import train


def build_parser() -> ArgumentParser:
    """Describe the options."""
    return train.build_parser("pretrain")


def main(argv: Sequence[str]) -> int:
    """Run the command; the result is a starting point for `protoflows train --flow-weights RUN`.

    Args:
        argv: The words after `pretrain`.
    """
    return train.run_training("pretrain", argv)
