"""Edited models saved on the server: in one folder, under names that cannot lead out of it."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

from protoflows.app.edits import Edits, describe
from protoflows.model import ProtoFlow

EDITS_FILE = "edits.json"
MOST_FOLDERS = 100
"""How many models are kept in a folder: visitors must not fill the disk."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,59}")


class SaveError(ValueError):
    """A model that is not saved; the message is for the visitor."""


def save_edited(model: ProtoFlow, edits: Edits, folder: Path, name: str) -> Path:
    """Save an edited model as a new folder, with its edits in words beside the weights.

    Args:
        model: The edited model.
        edits: How it came about.
        folder: Where models are kept; made where it does not exist.
        name: Of the new folder in it: letters, digits, "-" and "_".
    """
    name = name.strip()
    if not _NAME.fullmatch(name):
        raise SaveError(
            "A name has 1 to 60 letters, digits, “-” and “_”, and begins with a letter or digit."
        )
    folder.mkdir(parents=True, exist_ok=True)
    home = folder.resolve()
    if sum(1 for _ in home.iterdir()) >= MOST_FOLDERS:
        raise SaveError(f"{home} holds {MOST_FOLDERS} models already: no more are saved there.")
    target = home / name
    try:
        target.mkdir()  # refuses what is there, were it a dangling link, and whoever comes second
    except FileExistsError as error:
        raise SaveError(f"There is a {name} already: choose another name.") from error
    try:
        model.save_pretrained(target)
        words = [describe(model, edit) for edit in edits]
        text = json.dumps({"edits": words}, indent=2, ensure_ascii=False)
        (target / EDITS_FILE).write_text(text + "\n", encoding="utf-8")
    except BaseException:
        shutil.rmtree(target, ignore_errors=True)
        raise
    return target
