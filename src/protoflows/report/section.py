"""A section of the report: a heading, how to read it, how it misleads, and what it shows."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape

from protoflows.explain.html import heading, paragraph


@dataclass(frozen=True)
class Section:
    """One part of the page.

    Attributes:
        anchor: Its address on the page.
        title: Plain text.
        see: What a reader sees, in plain words.
        misleads: How it misleads.
        body: HTML.
        short: What the table of contents calls it; the title when empty.
    """

    anchor: str
    title: str
    see: str
    misleads: str
    body: tuple[str, ...]
    short: str = ""

    def to_html(self) -> str:
        """The section with its heading and its help."""
        return "\n".join(
            [
                f'<section id="{escape(self.anchor, quote=True)}">',
                heading(self.title),
                '<div class="help">',
                f"<p><b>What you see.</b> {escape(self.see)}</p>",
                f"<p><b>How it misleads.</b> {escape(self.misleads)}</p>",
                "</div>",
                *self.body,
                "</section>",
            ]
        )


def missing(text: str) -> str:
    """Says that something is not shown, and why."""
    return paragraph(f"Not shown: {text}", "missing")


def contents(groups: tuple[tuple[str, tuple[Section, ...]], ...]) -> str:
    """The table of contents.

    Args:
        groups: Title of each group, and its sections.
    """
    lists = []
    for title, sections in groups:
        links = "".join(
            f'<li><a href="#{escape(s.anchor, quote=True)}">{escape(s.short or s.title)}</a></li>'
            for s in sections
        )
        lists.append(f"<div><b>{escape(title)}</b><ul>{links}</ul></div>")
    return f'<nav aria-label="Contents">{"".join(lists)}</nav>'
