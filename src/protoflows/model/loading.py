"""One door for all models: run folders, saved folders, shipped models, the Hugging Face Hub."""

from __future__ import annotations

import difflib
import re
import warnings
from pathlib import Path

import torch

from protoflows.model.protoflow import ProtoFlow
from protoflows.model.saving import is_model_folder, read_folder
from protoflows.model.shipped import shipped_folder, shipped_models

RUN_MODEL_FOLDER = "model"
_REPOSITORY = re.compile(r"[\w.-]+/[\w.-]+")


def load(name: str | Path, *, device: torch.device | str = "cpu") -> ProtoFlow:
    """Load a trained model, in eval mode.

    Looked for in this order: a folder of that name (a run, or what `save_pretrained` wrote), a
    model that ships with the package, a repository of the Hugging Face Hub (only for
    "organisation/name"; needs the network).

    Args:
        name: What to load.
        device: Where the model is to be.

    Raises:
        FileNotFoundError: there is no such model.
        ValueError: there is one, but it cannot be read.
    """
    path = Path(name).expanduser()
    shipped = shipped_models()
    folder = find_model_folder(path)
    if folder is not None:
        if str(name) in shipped:
            warnings.warn(
                f"loading the folder {path.resolve()}, not the model {str(name)!r} that ships with "
                "protoflows",
                stacklevel=2,
            )
        return read_folder(folder).to(device)
    if str(name) in shipped:
        if path.exists():
            warnings.warn(
                f"loading the model {str(name)!r} that ships with protoflows: {path.resolve()} "
                "holds no model",
                stacklevel=2,
            )
        with shipped_folder(str(name)) as shipped_place:
            return read_folder(shipped_place).to(device)
    if path.exists():
        raise FileNotFoundError(_unfinished(path))
    # "runs/digits", mistyped, looks like a repository; a folder "runs" that exists says it is none.
    if isinstance(name, str) and _REPOSITORY.fullmatch(name) and not path.parent.exists():
        return _from_hub(name, device)
    raise FileNotFoundError(_not_found(name, path, shipped))


def find_model_folder(path: Path) -> Path | None:
    """The folder that holds the model of a run or of `save_pretrained`, or None."""
    for folder in (path, path / RUN_MODEL_FOLDER):
        if is_model_folder(folder):
            return folder
    return None


def _from_hub(name: str, device: torch.device | str) -> ProtoFlow:
    try:
        return ProtoFlow.from_pretrained(name, device=device)
    except Exception as error:  # no network, no such repository, no access: each has its own class
        if isinstance(error, ValueError) and not isinstance(error, OSError):
            raise  # it was there, and is damaged or no model: the message says so
        raise FileNotFoundError(
            f"there is no folder {name}, and the Hugging Face repository {name!r} could not be "
            f"fetched: {type(error).__name__}: {error}"
        ) from error


def _unfinished(path: Path) -> str:
    if path.is_file():
        return f"name must be a folder or the name of a model, but {path} is a file"
    if (path / "checkpoints").is_dir():
        return (
            f"{path} is a run without a finished model (no {RUN_MODEL_FOLDER}/model.safetensors): "
            f"go on with `protoflows train --resume {path}`"
        )
    return (
        f"{path} holds no model: neither model.safetensors and config.json nor "
        f"{RUN_MODEL_FOLDER}/ with both"
    )


def _not_found(name: str | Path, path: Path, shipped: tuple[str, ...]) -> str:
    siblings = []
    if path.parent.is_dir():
        siblings = [
            p.name for p in path.parent.iterdir() if p.is_dir() and not p.name.startswith(".")
        ]
    near = [str(path.parent / n) for n in difflib.get_close_matches(path.name, siblings, 2, 0.6)]
    near += difflib.get_close_matches(str(name), shipped, 1, 0.6)
    hint = f"; did you mean {' or '.join(near)}?" if near else ""
    known = f"; models that ship with protoflows: {', '.join(shipped)}" if shipped else ""
    return f"there is no model {str(name)!r}: no folder of that name{known}{hint}"
