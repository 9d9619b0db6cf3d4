"""Configurations as plain mappings: merged, checked key by key, read from and written to YAML."""

from __future__ import annotations

import dataclasses
import difflib
import types
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

Config = TypeVar("Config")


def from_dict(cls: type[Config], mapping: Mapping[str, Any], where: str = "") -> Config:
    """Build a configuration from nested mappings; what they leave out keeps its default.

    A key that does not exist is refused with the nearest one that does, a value of the wrong type
    with what would do. Whole numbers pass for fractions, lists for tuples, and "3e-4" (which YAML
    takes for a string) for a number.

    Args:
        cls: A dataclass.
        mapping: Its fields' values; nested dataclasses as mappings.
        where: Dotted name of this level, for messages.
    """
    if not isinstance(mapping, Mapping):
        raise ValueError(
            f"{where or 'the configuration'} must hold keys and values, got {mapping!r}"
        )
    hints = get_type_hints(cls)
    names = [f.name for f in dataclasses.fields(cls)]  # type: ignore[arg-type]
    values = {}
    for key, value in mapping.items():
        dotted = f"{where}.{key}" if where else str(key)
        if key not in names:
            raise ValueError(f"unknown setting {dotted!r}.{nearest(str(key), names, where)}")
        hint = hints[key]
        if dataclasses.is_dataclass(hint):
            values[key] = from_dict(hint, value if value is not None else {}, dotted)  # type: ignore[arg-type]
        else:
            values[key] = convert(value, hint, dotted)
    return cls(**values)


def nearest(key: str, names: list[str], where: str = "") -> str:
    """What was probably meant, as the end of a message."""
    prefix = f"{where}." if where else ""
    near = difflib.get_close_matches(key, names, n=1, cutoff=0.5)
    if near:
        return f" Did you mean {prefix + near[0]!r}?"
    return f" There are: {', '.join(prefix + name for name in names)}"


def convert(value: Any, hint: Any, where: str) -> Any:
    """`value` as the type `hint` asks for, or a ValueError that names both."""
    if get_origin(hint) in (Union, types.UnionType):
        for option in get_args(hint):
            try:
                return convert(value, option, where)
            except ValueError:
                continue
    elif hint is type(None) and value is None:
        return None
    elif get_origin(hint) is Literal:
        if value in get_args(hint):
            return value
    elif get_origin(hint) is tuple and isinstance(value, list | tuple):
        inner = get_args(hint)
        if inner[-1] is Ellipsis:
            return tuple(convert(v, inner[0], f"{where}[{i}]") for i, v in enumerate(value))
        if len(inner) == len(value):
            return tuple(convert(v, h, where) for v, h in zip(value, inner, strict=True))
    elif hint is float and not isinstance(value, bool):
        if isinstance(value, int | float):
            return float(value)
        if isinstance(value, str) and _is_number(value):
            return float(value)
    elif hint in (int, bool, str) and type(value) is hint:
        return value
    raise ValueError(f"{where} must be {describe(hint)}, got {value!r}")


def describe(hint: Any) -> str:
    """A type in words."""
    words = {int: "a whole number", float: "a number", str: "text", bool: "true or false"}
    if hint is type(None):
        return "null"
    if get_origin(hint) in (Union, types.UnionType):
        return " or ".join(describe(option) for option in get_args(hint))
    if get_origin(hint) is Literal:
        return "one of " + ", ".join(map(repr, get_args(hint)))
    if get_origin(hint) is tuple:
        inner = get_args(hint)
        count = "" if inner[-1] is Ellipsis else f"{len(inner)} of "
        return f"a list ({count}{describe(inner[0])})"
    return words.get(hint, str(hint))


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def to_dict(config: Any) -> dict[str, Any]:
    """A configuration as nested dicts, lists and scalars: what YAML and JSON can hold."""

    def plain(value: Any) -> Any:
        if isinstance(value, Mapping):
            return {key: plain(v) for key, v in value.items()}
        return [plain(v) for v in value] if isinstance(value, list | tuple) else value

    return {key: plain(value) for key, value in dataclasses.asdict(config).items()}


def merge(*mappings: Mapping[str, Any]) -> dict[str, Any]:
    """Nested mappings in one; where several hold a key the last one counts."""
    merged: dict[str, Any] = {}
    for mapping in mappings:
        for key, value in mapping.items():
            old = merged.get(key)
            if isinstance(value, Mapping):
                merged[key] = merge(old if isinstance(old, Mapping) else {}, value)
            else:
                merged[key] = value
    return merged


def read_yaml(path: str | Path) -> dict[str, Any]:
    """The mapping in a YAML file."""
    file = Path(path).expanduser()
    if not file.is_file():
        raise FileNotFoundError(f"no configuration file at {file}")
    return parse_yaml(file.read_text(encoding="utf-8"), str(file))


def parse_yaml(text: str, name: str) -> dict[str, Any]:
    """The mapping in a YAML text; `name` says in messages where it came from."""
    import yaml

    try:
        content = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ValueError(f"{name} is not valid YAML: {error}") from None
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise ValueError(f"{name} must hold keys and values, got {type(content).__name__}")
    return content


def to_yaml(config: Any) -> str:
    """A configuration as YAML, in the order of its fields."""
    import yaml

    return yaml.safe_dump(to_dict(config), sort_keys=False, default_flow_style=None, width=100)
