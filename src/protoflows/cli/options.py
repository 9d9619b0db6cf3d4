"""Options made from the training configuration's dataclasses, and how they are merged."""

from __future__ import annotations

import argparse
import dataclasses
import functools
import re
import sys
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

from jsonargparse import ArgumentParser, DefaultHelpFormatter

from protoflows.cli.parser import Examples, add_debug, examples_text
from protoflows.training.config import TrainConfig
from protoflows.training.recipes import describe_recipe, read_recipe, recipe_names
from protoflows.training.settings import describe, from_dict, merge, nearest, read_yaml

# Shorter names of settings that are often given.
_SHORT = {"data_root": ("data", "root"), "strict": ("data", "strict")}


class _HelpFormatter(DefaultHelpFormatter):
    """Leaves the lines of recipes and examples as they are."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return text if "\n" in text else super()._fill_text(text, width, indent)


def training_parser(command: str, description: str, examples: Examples = ()) -> ArgumentParser:
    """A parser with an option for every field of `TrainConfig`, from its type and documentation."""
    recipes = "\n".join(f"  {name}: {describe_recipe(name)}" for name in recipe_names())
    parser = ArgumentParser(
        prog=f"protoflows {command}", usage=f"protoflows {command} [DATA] [options]",
        description=description, epilog=f"recipes:\n{recipes}\n\n{examples_text(examples)}",
        formatter_class=_HelpFormatter, exit_on_error=False, allow_abbrev=False,
    )  # fmt: skip
    add = functools.partial(parser.add_argument, default=argparse.SUPPRESS)
    add("data_name", metavar="DATA", nargs="?", help="a data set's name or an image folder")
    add("--recipe", help="settings to start from, see below")
    add("--config", metavar="FILE", help="YAML with settings, which count before the recipe's")
    add("--out", metavar="RUN", help="folder of the run (default: runs/DATA)")
    add("--resume", metavar="RUN", help="go on with an interrupted run")
    add("--overwrite", action="store_true", help="replace the run that the folder holds")
    add("--data-root", metavar="DIR", help="short for --data.root")
    add("--strict", action="store_true", help="short for --data.strict true")
    add("--flow-weights", metavar="FOLDER", help="short for --flow_weights")
    add_debug(parser)
    parser.add_class_arguments(TrainConfig)
    return parser


def parse(parser: ArgumentParser, argv: Sequence[str]) -> dict[str, Any]:
    """Only what was given on the command line, as nested mappings; usage errors exit with 2."""
    known = list(parser._option_string_actions)
    for word in argv:
        option = word.split("=", 1)[0]
        if option == "--":
            break
        if option.startswith("--") and option not in known:
            _refuse(parser, f"unknown option {option}.{nearest(option, known)}")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # notes on jsonargparse's own next version
            given = parser.parse_args(list(argv), defaults=False).as_dict()
    except argparse.ArgumentError as error:
        _refuse(parser, _in_our_words(str(error)))
    return {key: v for key, v in given.items() if v is not None and key != "debug"}


def _in_our_words(message: str) -> str:
    """What jsonargparse says of a value or key that does not fit, as a configuration file hears it.

    >>> _in_our_words("Group 'flow' does not accept option 'unit'")
    "unknown setting 'flow.unit'. Did you mean 'flow.units'?"
    """
    pattern = r'Parser key "([\w.]+)":\s.*?(?:Got value: |Given value: |Unable to load config )(.*)'
    if (wrong := re.fullmatch(pattern, message, re.DOTALL)) and (hint := _hint(wrong[1])):
        value = wrong[2].split("\n")[0].strip("'")
        wanted = describe(hint)
        if dataclasses.is_dataclass(hint):
            wanted = f"settings by name, such as --{wrong[1]}.{dataclasses.fields(hint)[0].name}"
        elif get_origin(hint) is tuple and get_args(hint)[-1] is Ellipsis:
            wanted += " such as [2, 4]"
        return f"--{wrong[1]} must be {wanted}, got {value!r}"
    if odd := re.fullmatch(r"Group '([\w.]+)' does not accept option '([\w.]+)'", message):
        kind = _hint(odd[1])
        if dataclasses.is_dataclass(kind):
            names = [f.name for f in dataclasses.fields(kind)]
            return f"unknown setting '{odd[1]}.{odd[2]}'.{nearest(odd[2], names, odd[1])}"
    return message


def _hint(dotted: str) -> Any:
    """The type of a setting by its dotted name; None where there is no such setting."""
    found: Any = TrainConfig
    for name in dotted.split("."):
        found = get_type_hints(found).get(name) if dataclasses.is_dataclass(found) else None
    return found


def _refuse(parser: ArgumentParser, message: str) -> None:
    print(f"{parser.prog}: error: {message}\n(see `{parser.prog} --help`)", file=sys.stderr)
    raise SystemExit(2)


def settings(given: dict[str, Any], default_recipe: str | None = None) -> TrainConfig:
    """The configuration: recipe, then configuration file, then options; the last one counts.

    Args:
        given: What `parse` returned.
        default_recipe: Used where none is named; None chooses by the data.
    """
    flags = {key: v for key, v in given.items() if key in TrainConfig.__dataclass_fields__}
    short: dict[str, Any] = {}
    if "data_name" in given:
        short = {"data": {"name": given["data_name"]}}
    for name, (section, key) in _SHORT.items():
        if given.get(name):
            short = merge(short, {section: {key: given[name]}})
    if "flow_weights" in given:
        short["flow_weights"] = given["flow_weights"]
    file = read_yaml(given["config"]) if "config" in given else {}
    chosen = given.get("recipe") or file.pop("recipe", None) or default_recipe
    file.pop("recipe", None)
    layers = merge(file, short, flags)
    if chosen is None:
        data = layers.get("data") or {}
        data_name = data.get("name", "digits") if isinstance(data, Mapping) else None
        chosen = "digits" if data_name == "digits" else "compact"
    return from_dict(TrainConfig, merge(read_recipe(chosen), layers))


def default_out(config: TrainConfig, suffix: str = "") -> Path:
    """runs/<data>, next to where the command is given."""
    return Path("runs") / f"{Path(config.data.name).expanduser().resolve().name}{suffix}"
