"""A checkpoint in the published layout, filled with weights that a seed determines."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import torch

FIXTURES = Path(__file__).parents[1] / "fixtures"
CONSTANTS = {
    "initialized": 1.0,
    "temperature": 1.0,
    "_shift": -0.5,
    "_scale": 1.0,
    "buffer": 0.0,
    "ldj_per_dim": -math.log(256.0),
    "num_batches_tracked": 0,
}


def layout() -> dict[str, Any]:
    return json.loads((FIXTURES / "reference_small.json").read_text())


def values() -> dict[str, torch.Tensor]:
    with np.load(FIXTURES / "reference_small.npz") as arrays:
        return {name: torch.from_numpy(arrays[name]) for name in arrays.files}


def weights() -> dict[str, torch.Tensor]:
    """Draw every key's values from one generator, keys in sorted order."""
    described = layout()
    rng = np.random.default_rng(described["seed"])
    return {
        key: torch.from_numpy(_draw(key, tuple(described["keys"][key]), rng))
        for key in sorted(described["keys"])
    }


def _draw(key: str, shape: tuple[int, ...], rng: np.random.Generator) -> np.ndarray:
    last = key.rsplit(".", 1)[-1]
    if last in CONSTANTS:
        return np.full(
            shape, CONSTANTS[last], np.int64 if last == "num_batches_tracked" else np.float32
        )
    noise = rng.standard_normal(shape)
    if last in ("running_var", "var"):
        value = 0.25 + np.abs(noise)
    elif last in ("running_mean", "shift", "log_scale", "loc", "bias"):
        value = 0.05 * noise
    elif last in ("mu", "pi"):
        value = noise
    elif len(shape) == 4:
        value = noise / math.sqrt(shape[1] * shape[2] * shape[3])
        if key.endswith(("transform.2.weight", "transformation.2.weight")):
            value = 0.2 * value
    elif len(shape) == 2:
        q, r = np.linalg.qr(noise)
        value = q * np.sign(np.diag(r)) * np.exp(0.03 * rng.standard_normal(len(q)))[:, None]
    else:
        value = 1.0 + 0.1 * noise
    return value.astype(np.float32)


def save_protoflow(folder: Path, **changes: Any) -> Path:
    """Write the checkpoint as the published ProtoFlow models are laid out; return the folder."""
    described = layout()
    folder.mkdir(parents=True, exist_ok=True)
    state = {**weights(), **changes}
    torch.save(
        {"model": {k: v for k, v in state.items() if v is not None}, "epoch": 3, "global_step": 7},
        folder / "checkpoint.pt",
    )
    names = ("block_conf", "layers_conf", "layer_mid_chnls", "growth_rate")
    config = {
        "flow_args": {name: described[name] for name in names},
        "img_size": 16,
        "protos_per_class": 2,
    }
    (folder / "config.json").write_text(json.dumps(config))
    return folder
