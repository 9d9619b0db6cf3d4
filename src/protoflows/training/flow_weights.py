"""Weights of a flow alone: saved by `pretrain`, and taken up by `--flow-weights`."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from protoflows.flows import DenseFlow, DenseFlowConfig
from protoflows.flows.reference import load_reference
from protoflows.training.settings import from_dict, to_dict

FOLDER = "flow"
_WEIGHTS, _CONFIG = "model.safetensors", "config.json"


def save_flow(flow: DenseFlow, folder: Path) -> None:
    """Write a flow as model.safetensors and config.json."""
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {name: t.detach().cpu().contiguous() for name, t in flow.state_dict().items()}
    try:
        save_file(tensors, folder / _WEIGHTS, metadata={"format": "pt"})
    except SafetensorError as error:  # a full disk
        raise OSError(f"the flow could not be written to {folder} ({error})") from error
    content = {"model_type": "denseflow", "flow": to_dict(flow.config)}
    (folder / _CONFIG).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def read_flow(folder: Path) -> DenseFlow:
    """Read what `save_flow` wrote, or the flow of a saved model, in eval mode."""
    try:
        content = json.loads((folder / _CONFIG).read_text(encoding="utf-8"))
        tensors = load_file(folder / _WEIGHTS)
    except (ValueError, SafetensorError) as error:
        raise ValueError(f"the flow saved in {folder} is damaged: {error}") from error
    if not isinstance(content, dict) or "flow" not in content:
        raise ValueError(f"{folder / _CONFIG} describes no flow: the key 'flow' is missing")
    flow = DenseFlow(from_dict(DenseFlowConfig, content["flow"], "flow"))
    if content.get("model_type") == "protoflow":
        prefix = "flow."
        tensors = {n.removeprefix(prefix): t for n, t in tensors.items() if n.startswith(prefix)}
    own = flow.state_dict()
    try:
        flow.load_state_dict(
            {n: t.to(own[n].dtype if n in own else t.dtype) for n, t in tensors.items()}
        )
    except RuntimeError as error:
        raise ValueError(
            f"{folder / _WEIGHTS} does not fit the {_CONFIG} beside it: {error}"
        ) from None
    return flow.eval()


def pretrained_flow(path: str | Path, wanted: DenseFlowConfig) -> DenseFlow:
    """A flow to start from, with that checkpoint's architecture and this run's way of computing.

    Args:
        path: A `pretrain` or `train` run, a folder of published DenseFlow weights, or their file.
        wanted: Says what images it has to take, and how to compute: memory and net_dtype.
    """
    place = Path(path).expanduser()
    if not place.exists():
        raise FileNotFoundError(f"flow_weights: there is nothing at {place}")
    found: DenseFlow | None = None
    for folder in (place / FOLDER, place / "model", place):
        if (folder / _WEIGHTS).is_file() and (folder / _CONFIG).is_file():
            found = read_flow(folder)
            break
    if found is None and (place / "config.yaml").is_file() and (place / "checkpoints").is_dir():
        raise ValueError(
            f"flow_weights: {place} is a run that has not ended, it has no flow yet: go on with it "
            "first (--resume)"
        )
    if found is None:
        found = load_reference(place)
    config = found.config
    if config.image_shape[0] != wanted.image_shape[0] or config.levels != wanted.levels:
        raise ValueError(
            f"flow_weights: {place} is for images of {config.image_shape[0]} channels and "
            f"{config.levels} levels, the data has {wanted.image_shape[0]} channels and "
            f"{wanted.levels} levels" + _advice(config, wanted)
        )
    # Nothing in the weights depends on the images' height and width.
    config = replace(
        config,
        image_shape=wanted.image_shape,
        memory=wanted.memory,
        net_dtype=wanted.net_dtype,
    )
    with torch.random.fork_rng(devices=[]):
        flow = DenseFlow(config)
    flow.load_state_dict(found.state_dict())
    return flow


def _advice(config: DenseFlowConfig, wanted: DenseFlowConfig) -> str:
    if config.image_shape[0] == 3 and wanted.image_shape[0] == 1:
        return ": data.channels=3 repeats grey images (--data.channels 3)"
    return ""
