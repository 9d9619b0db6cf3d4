"""The parser that all commands share: examples in the help, and hints at what was meant."""

from __future__ import annotations

import argparse
import difflib
from collections.abc import Sequence
from typing import NoReturn

Examples = Sequence[tuple[str, str]]
"""Pairs of what is done and the words after `protoflows` that do it."""


class CommandParser(argparse.ArgumentParser):
    """A command's options.

    Args:
        prog: The command as it is given, `protoflows explain`.
        description: What it does.
        examples: Commands as somebody would type them, each with what it does.
    """

    def __init__(self, prog: str, description: str, examples: Examples) -> None:
        super().__init__(
            prog=prog,
            description=description,
            epilog=examples_text(examples),
            formatter_class=HelpFormatter,
            # An abbreviation that works today would break when a longer option joins it.
            allow_abbrev=False,
        )
        self.examples = tuple(examples)
        add_debug(self)

    def parse_args(self, args=None, namespace=None):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN201
        """As argparse has it; an unknown option is refused with the nearest one."""
        found, rest = self.parse_known_args(args, namespace)
        if rest:
            self.error(unknown_words(rest, list(self._option_string_actions)))
        return found

    def error(self, message: str) -> NoReturn:
        """Say what is wrong and where help is, in two lines, and leave with 2."""
        self.exit(2, f"{self.prog}: error: {message}\n(see `{self.prog} --help`)\n")


class HelpFormatter(argparse.RawDescriptionHelpFormatter):
    """Wraps the description, and leaves the examples at the end as they are."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        if "\n" in text:
            return super()._fill_text(text, width, indent)
        return argparse.HelpFormatter._fill_text(self, text, width, indent)


def add_debug(parser: argparse.ArgumentParser) -> None:
    """List `--debug`, which `cli.main` has taken out of the words before any parser sees them."""
    parser.add_argument(
        "--debug",
        action="store_true",
        default=argparse.SUPPRESS,
        help="show where in the program an error arose (traceback)",
    )


def examples_text(examples: Examples) -> str:
    """Examples as they stand at the end of a help text.

    >>> examples_text([("what ships", "doctor digits")]).splitlines()
    ['examples:', '  # what ships', '  protoflows doctor digits']
    """
    lines = ["examples:"]
    for purpose, words in examples:
        lines += [f"  # {purpose}", f"  protoflows {words}"]
    return "\n".join(lines)


def unknown_words(words: Sequence[str], options: Sequence[str]) -> str:
    """What to say of words that no option takes."""
    first = words[0].split("=", 1)[0]
    near = difflib.get_close_matches(first, options, 1, 0.6) if first.startswith("-") else []
    hint = f". Did you mean {near[0]!r}?" if near else ""
    kind = "unknown option" if first.startswith("-") else "unexpected word"
    return f"{kind} {first!r}{hint}"
