"""Formulas as MathML, written into the page when the site is built.

Every present browser draws MathML by itself: no script, no font and no picture has to be fetched,
so that the documentation reads the same offline.
"""

from __future__ import annotations

import re
from typing import Any

from docutils import nodes
from latex2mathml.converter import convert
from sphinx.application import Sphinx
from sphinx.errors import ExtensionError
from sphinx.writers.html5 import HTML5Translator

# A command that the converter does not know comes out as an identifier with its backslash.
_UNKNOWN = re.compile(r"<m[io]>(\\[A-Za-z]+)</m[io]>")


def to_mathml(formula: str, *, block: bool) -> str:
    """MathML of a LaTeX formula.

    Args:
        formula: LaTeX, without dollars.
        block: On a line of its own, or within a sentence.
    """
    try:
        text: str = convert(formula, display="block" if block else "inline")
    except Exception as error:  # the converter has a dozen kinds, none of them says which formula
        raise ExtensionError(f"formula {formula!r}: {type(error).__name__}: {error}") from error
    unknown = _UNKNOWN.search(text)
    if unknown:
        raise ExtensionError(f"formula {formula!r}: {unknown[1]} cannot be drawn")
    return text


def visit_inline(self: HTML5Translator, node: nodes.math) -> None:
    """A formula within a sentence."""
    self.body.append(to_mathml(node.astext(), block=False))
    raise nodes.SkipNode


def visit_block(self: HTML5Translator, node: nodes.math_block) -> None:
    """A formula on a line of its own; wide ones scroll, the page does not."""
    self.body.append(f'<div class="formula">{to_mathml(node.astext(), block=True)}</div>\n')
    raise nodes.SkipNode


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the renderer `mathml`."""
    app.add_html_math_renderer("mathml", (visit_inline, None), (visit_block, None))
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
