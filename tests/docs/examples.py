"""The blocks of code in README and docs, in the order in which a reader meets them."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))
_PAGES = tuple(page for page in PAGES if "_build" not in page.parts)

_BLOCK = re.compile(
    r"(?:^<!-- (?P<mark>[^\n]*?) -->\n)?^```(?P<language>[^\n]*)\n(?P<code>.*?)^```$",
    re.DOTALL | re.MULTILINE,
)
NOT_RUN = "not run: "
RUN = "run"


@dataclass(frozen=True)
class Block:
    """A fenced block of a page.

    Attributes:
        page: Where it stands, as seen from the repository.
        line: Its first line there.
        language: What stands behind the fence.
        mark: What the comment before it says, or nothing.
        code: Its content.
    """

    page: str
    line: int
    language: str
    mark: str
    code: str

    @property
    def name(self) -> str:
        """Page and line, for messages and tracebacks."""
        return f"{self.page}:{self.line}"

    @property
    def reason(self) -> str:
        """Why it is not run; empty where it is."""
        return self.mark.removeprefix(NOT_RUN) if self.mark.startswith(NOT_RUN.strip()) else ""


def pages() -> list[Path]:
    """Every page that a reader can meet."""
    return list(_PAGES)


def blocks(page: Path) -> list[Block]:
    """A page's blocks."""
    text = page.read_text(encoding="utf-8")
    return [
        Block(
            page.relative_to(ROOT).as_posix(),
            text.count("\n", 0, found.start("language")) + 1,
            found["language"].strip(),
            found["mark"] or "",
            found["code"],
        )
        for found in _BLOCK.finditer(text)
    ]


def commands(block: Block) -> list[list[str]]:
    """The words of each command of a shell block: lines joined, comments gone, `&&` apart."""
    found: list[list[str]] = []
    for line in block.code.replace("\\\n", " ").splitlines():
        words = shlex.split(line, comments=True)
        while "&&" in words:
            at = words.index("&&")
            found.append(words[:at])
            words = words[at + 1 :]
        if words:
            found.append(words)
    return found


def program_words(words: list[str]) -> list[str] | None:
    """What follows `protoflows` in a command, also behind python or torchrun; None without it."""
    if words[0] == "protoflows":
        return words[1:]
    for place, word in enumerate(words[:-1]):
        if word == "-m" and words[place + 1] == "protoflows":
            return words[place + 2 :]
    return None
