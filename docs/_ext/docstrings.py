"""Docstrings as they are written here, read as reStructuredText.

They are meant to be read in the source: a formula stands between single backquotes or on an
indented line, and `|`, `*` and a trailing underscore are what they are in mathematics.
reStructuredText takes these for marks of its own, so they are escaped, and indented formulas become
literal blocks.
"""

from __future__ import annotations

import re
from typing import Any

from sphinx.application import Sphinx

_CODE = re.compile(r"(``[^`]+``|`[^`\n]+`(?:_{1,2})?)")
_MARKS = re.compile(r"(\*|\||(?<=\w)_(?=\W|$))")


def escape(line: str) -> str:
    r"""A line of prose whose marks are only characters; code between backquotes stays.

    >>> print(escape("Σ_k r_k, and |x| of `a|b`"))
    Σ_k r_k, and \|x\| of ``a|b``
    """
    parts = _CODE.split(line)
    for place, part in enumerate(parts):
        if place % 2:
            parts[place] = part if part.startswith("``") else f"`{part.rstrip('_')}`"
        else:
            parts[place] = _MARKS.sub(r"\\\1", part)
    return "".join(parts)


def convert(lines: list[str]) -> list[str]:
    """A docstring's lines, with the marks escaped and indented formulas as literal blocks."""
    found: list[str] = []
    literal = section = False
    for place, line in enumerate(lines):
        indented = line.startswith(" ")
        before = lines[place - 1] if place else ""
        if not line.strip():
            found.append("")
            continue
        if not indented:
            # "Args:" and its like open a section, whose lines napoleon reads.
            section = bool(re.fullmatch(r"[A-Z]\w+:", line.strip()))
            literal = line.startswith(">>>") or (literal and bool(before.strip()))
            found.append(line if literal or section else escape(line))
        elif section:
            literal = line.lstrip().startswith(">>>") or (literal and bool(before.strip()))
            found.append(line if literal else escape(line))
        else:
            if not before.strip() and not literal:
                found += ["::", ""]
                literal = True
            found.append(line)
    return found


def _process(
    app: Sphinx, what: str, name: str, thing: object, options: object, lines: list[str]
) -> None:
    lines[:] = convert(lines)


def _skip(app: Sphinx, what: str, name: str, thing: object, skip: bool, options: object) -> bool:
    """Leave out what a NamedTuple says of its fields: the class's docstring says more."""
    doc = getattr(thing, "__doc__", None) or ""
    return skip or doc.startswith("Alias for field number")


def setup(app: Sphinx) -> dict[str, Any]:
    """Convert before napoleon does."""
    app.connect("autodoc-process-docstring", _process, priority=100)
    app.connect("autodoc-skip-member", _skip, priority=100)
    return {"version": "1", "parallel_read_safe": True}
