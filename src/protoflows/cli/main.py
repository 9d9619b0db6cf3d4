"""The entry point of the command `protoflows`."""

from __future__ import annotations

import argparse
import difflib
import importlib
import os
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import NoReturn

from protoflows._version import __version__
from protoflows.cli.parser import HelpFormatter, examples_text

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
    "report": ("protoflows.cli.report", "all of a run as one page that opens offline"),
    "app": ("protoflows.cli.app", "explore a model in the browser"),
    "doctor": ("protoflows.cli.doctor", "look over a model's health"),
    "import": ("protoflows.cli.import_", "turn a published checkpoint into a run"),
    "completion": ("protoflows.cli.completion", "a script that completes words in your shell"),
}

EXAMPLES = (
    ("train on scikit-learn's digits, in minutes, into runs/digits", "train"),
    ("why a picture got its class, by the model that ships with the package",
     "explain digits picture.png"),
    ("your own pictures, one sub-folder per class", "train pictures --out runs/mine"),
)  # fmt: skip

# Packages that only some installations have, and what brings them.
_EXTRAS = {"gradio": "protoflows[app]"}
# What a shell reports for a program that a signal ended: 128 and the signal's number.
_INTERRUPTED, _BROKEN_PIPE = 130, 141


def build_parser() -> argparse.ArgumentParser:
    """Describe the command line, without importing anything heavy."""
    width = max(map(len, COMMANDS))
    listed = "\n".join(f"  {name:<{width}}  {line}" for name, (_, line) in COMMANDS.items())
    parser = argparse.ArgumentParser(
        prog="protoflows",
        usage="protoflows [-h] [--version] [--debug] COMMAND ...",
        description=(
            "Image classifiers that explain themselves: an invertible flow whose latent space\n"
            "holds prototypes of every class."
        ),
        epilog=f"commands (each has its own --help):\n{listed}\n\n{examples_text(EXAMPLES)}",
        formatter_class=HelpFormatter,
        # An abbreviation that works today would break when a longer option joins it.
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    parser.add_argument(
        "--debug", action="store_true", help="show where in the program an error arose (traceback)"
    )
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code.

    Args:
        argv: the words after the program's name; those of the process if None.

    Returns:
        0 for success, 1 for an error that was reported, 130 after Ctrl-C, and 141 where whoever
        read the output has gone (`| head`). What a parser rejects leaves through `SystemExit(2)`,
        and `--help` and `--version` through `SystemExit(0)`, as everywhere in argparse.
    """
    words, debug = take_debug(list(sys.argv[1:] if argv is None else argv))
    debug = debug or bool(os.environ.get("PROTOFLOWS_TRACEBACK"))
    try:
        try:
            return _dispatch(words, debug)
        finally:
            sys.stdout.flush()  # here, where a broken pipe can still be met in silence
    except BrokenPipeError:
        _forget_output()
        return _BROKEN_PIPE


def take_debug(words: list[str]) -> tuple[list[str], bool]:
    """The words without `--debug`, wherever it stands, and whether it was there.

    >>> take_debug(["--debug", "doctor", "digits"])
    (['doctor', 'digits'], True)
    >>> take_debug(["doctor", "--", "--debug"])
    (['doctor', '--', '--debug'], False)
    """
    end = words.index("--") if "--" in words else len(words)
    kept = [word for word in words[:end] if word != "--debug"]
    return kept + words[end:], len(kept) < end


def _dispatch(words: list[str], debug: bool) -> int:
    if words and words[0] in COMMANDS:
        return _run(words[0], words[1:], debug)
    if words and not words[0].startswith("-"):
        _unknown(words[0])
    parser = build_parser()
    parser.parse_args(words)
    parser.print_help()
    return 0


def _unknown(word: str) -> NoReturn:
    near = difflib.get_close_matches(word, COMMANDS, 1, 0.5)
    hint = f" Did you mean {near[0]!r}?" if near else f" There are: {', '.join(COMMANDS)}."
    print(
        f"protoflows: error: unknown command {word!r}.{hint}\n(see `protoflows --help`)",
        file=sys.stderr,
    )
    raise SystemExit(2)


def _run(name: str, argv: list[str], debug: bool) -> int:
    """Run a command; what its user got wrong is a message, not a traceback."""
    try:
        with _short_warnings(name, debug):
            return int(importlib.import_module(COMMANDS[name][0]).main(argv))
    except BrokenPipeError:
        raise
    except KeyboardInterrupt:
        if debug:
            raise
        print(f"\nprotoflows {name}: interrupted", file=sys.stderr)
        return _INTERRUPTED
    except Exception as error:
        if debug:
            raise
        print(f"protoflows {name}: {describe_error(error, name)}", file=sys.stderr)
        return 1


def describe_error(error: Exception, command: str) -> str:
    """An error in a line or two, for people who did not write the program.

    >>> describe_error(ValueError("top must be at least 1, got 0"), "explain")
    'error: top must be at least 1, got 0'
    """
    if isinstance(error, ModuleNotFoundError) and error.name:
        package = error.name.split(".")[0]
        missing = f"error: the Python package {package!r} is not installed"
        if package in _EXTRAS:
            return f"{missing}: pip install '{_EXTRAS[package]}'"
        return f"{missing}: is the installation of protoflows complete? (pip check)"
    if isinstance(error, ValueError | OSError) and str(error):
        return f"error: {error}"
    said = str(error).strip().split("\n")[0]
    return (
        f"unexpected error: {type(error).__name__}{': ' * bool(said)}{said}\n"
        f"(`protoflows --debug {command} ...` shows where it arose; please report it with that)"
    )


@contextmanager
def _short_warnings(name: str, debug: bool) -> Iterator[None]:
    """Show warnings for users as one line, without the place in the program that gave them."""
    before = warnings.formatwarning

    def line(
        message: Warning | str, category: type[Warning], *rest: object, **named: object
    ) -> str:
        if issubclass(category, UserWarning):
            return f"protoflows {name}: warning: {message}\n"
        return before(message, category, *rest, **named)  # type: ignore[arg-type]

    if not debug:
        warnings.formatwarning = line
    try:
        yield
    finally:
        warnings.formatwarning = before


def _forget_output() -> None:
    """Send what is still to be written nowhere, so that Python's exit meets no broken pipe."""
    with suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)
