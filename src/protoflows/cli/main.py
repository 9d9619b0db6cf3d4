"""The entry point of the command `protoflows`."""

import argparse
import importlib
import os
import sys
from collections.abc import Sequence

from protoflows._version import __version__

# Command → (module with `main(argv) -> int`, one line for the list). Imported when called.
COMMANDS = {
    "train": ("protoflows.cli.train", "train a classifier; without arguments on built-in digits"),
    "pretrain": ("protoflows.cli.pretrain", "train a flow alone, as a start for `train`"),
    "evaluate": ("protoflows.cli.evaluate", "measure a run: every figure, with error bars"),
    "compare": ("protoflows.cli.compare", "runs side by side, with the paper's rows"),
    "calibrate": ("protoflows.cli.calibrate", "make a run's probabilities mean what they say"),
    "prune": ("protoflows.cli.prune", "a new run without the prototypes of little weight"),
    "predict": ("protoflows.cli.predict", "classify pictures, abstaining where it is risky"),
    "prototypes": ("protoflows.cli.prototypes", "a gallery of what a model has learned"),
    "explain": ("protoflows.cli.explain", "why a picture got its class"),
    "interpolate": ("protoflows.cli.interpolate", "from one picture to another, exactly"),
    "counterfactual": ("protoflows.cli.counterfactual", "what would make it another class"),
    "faithfulness": ("protoflows.cli.faithfulness", "how far to trust explanations"),
    "doctor": ("protoflows.cli.doctor", "look over a model's health"),
    "import": ("protoflows.cli.import_", "turn a published checkpoint into a run"),
}


def build_parser() -> argparse.ArgumentParser:
    """Describe the command line, without importing anything heavy."""
    width = max(map(len, COMMANDS))
    listed = "\n".join(f"  {name:<{width}}  {line}" for name, (_, line) in COMMANDS.items())
    parser = argparse.ArgumentParser(
        prog="protoflows",
        description=(
            "Image classifiers that explain themselves: an invertible flow whose latent space\n"
            "holds prototypes of every class."
        ),
        epilog=f"commands (each has its own --help):\n{listed}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        # An abbreviation that works today would break when a longer option joins it.
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    parser.add_argument("command", nargs="?", choices=list(COMMANDS), help="what to do")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code.

    Args:
        argv: the words after the program's name; those of the process if None.

    Returns:
        0 for success, 1 for an error that was reported. What a parser rejects leaves through
        `SystemExit(2)`, and `--help` and `--version` through `SystemExit(0)`, as everywhere in
        argparse.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    if words and words[0] in COMMANDS:
        return _run(words[0], words[1:])
    parser = build_parser()
    parser.parse_args(words)
    parser.print_help()
    return 0


def _run(name: str, argv: list[str]) -> int:
    """Run a command; what its user got wrong is a message, not a traceback."""
    module = importlib.import_module(COMMANDS[name][0])
    try:
        return int(module.main(argv))
    except (ValueError, OSError) as error:
        if os.environ.get("PROTOFLOWS_TRACEBACK"):
            raise
        print(f"protoflows {name}: error: {error}", file=sys.stderr)
        return 1
