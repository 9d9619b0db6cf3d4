"""`protoflows pretrain`: the flow alone, by its unconditional density."""

from __future__ import annotations

from collections.abc import Sequence

from protoflows.cli.train import run_training


def main(argv: Sequence[str]) -> int:
    """Run the command; the result is a starting point for `protoflows train --flow-weights RUN`.

    Args:
        argv: The words after `pretrain`.
    """
    return run_training("pretrain", argv)
