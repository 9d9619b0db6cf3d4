"""What calibration leaves in a run: temperatures, and confidences on held-out images."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from protoflows.data import Split
from protoflows.evaluation.calibrate import Calibration, apply
from protoflows.evaluation.predict import predict_images
from protoflows.model import ProtoFlow
from protoflows.model.saving import WEIGHTS_FILE, WeightsDtype

CALIBRATION_FILE = "calibration.json"
HELD_OUT_FILE = "held_out.safetensors"
_ABOUT = "protoflows"


class HeldOut(NamedTuple):
    """What a model said about held-out images: confidence of its answer and whether it was right.

    Attributes:
        confidence: max_c p(c|x), float64 (N,).
        correct: Whether that class is the label, bool (N,).
        samples: Draws of the noise per image.
    """

    confidence: Tensor
    correct: Tensor
    samples: int


def held_out(
    model: ProtoFlow, split: Split, *, samples: int, seed: int = 0, batch_size: int = 256
) -> HeldOut:
    """Confidence and correctness on labelled held-out images, for `fit_rejection`."""
    known = (split.labels >= 0).nonzero().flatten()
    found = predict_images(
        model, split.images[known], samples=samples, seed=seed, batch_size=batch_size
    )
    return _held_out(found.proba, split.labels[known].cpu(), samples)


def store_calibration(
    model: ProtoFlow, calibration: Calibration, model_folder: Path, run: Path
) -> None:
    """Set the best temperatures, save the model over itself, and note figures and confidences.

    Args:
        model: What `model_folder` holds.
        calibration: The result of `calibrate`.
        model_folder: Where the model is saved.
        run: Where `calibration.json` and `held_out.safetensors` are to be.
    """
    apply(model, calibration.best)
    model.save_pretrained(model_folder, weights_dtype=stored_dtype(model_folder))
    found = _held_out(calibration.proba, calibration.labels, calibration.samples)
    about = {"model": model_mark(model, model_folder), "samples": found.samples}
    # One entry: safetensors writes several in an order that changes from one call to the next.
    mark = {_ABOUT: json.dumps(about)}
    tensors = {"confidence": found.confidence.contiguous(), "correct": found.correct.contiguous()}
    _replace_file(run / HELD_OUT_FILE, lambda place: save_file(tensors, place, metadata=mark))
    content: dict[str, Any] = {
        "method": calibration.best.method,
        "logit_temperature": model.config.logit_temperature,
        "variance_temperature": model.config.variance_temperature,
        "images": len(calibration.labels),
        "mc_samples": calibration.samples,
    }
    for candidate in calibration.candidates:
        content[f"{candidate.method}_temperature"] = candidate.temperature
        for name in ("nll", "ece", "accuracy"):
            value, stderr = getattr(candidate, name)
            content[f"{candidate.method}_{name}"] = value
            content[f"{candidate.method}_{name}_stderr"] = stderr
    text = json.dumps(content, indent=2) + "\n"
    _replace_file(run / CALIBRATION_FILE, lambda place: place.write_text(text, encoding="utf-8"))


def read_held_out(model: ProtoFlow, model_folder: Path, run: Path) -> HeldOut | None:
    """What `store_calibration` noted; None where there is nothing, or it is of another model."""
    file = run / HELD_OUT_FILE
    if not file.is_file():
        return None
    with safe_open(file, "pt") as opened:
        noted = opened.metadata() or {}
    about = json.loads(noted.get(_ABOUT, "{}"))
    if about.get("model") != model_mark(model, model_folder):
        return None
    tensors = load_file(file)
    return HeldOut(tensors["confidence"], tensors["correct"], int(about["samples"]))


def model_mark(model: ProtoFlow, model_folder: Path) -> str:
    """A hash of all that probabilities depend on: the weights' file and the temperatures."""
    with (model_folder / WEIGHTS_FILE).open("rb") as file:
        digest = hashlib.file_digest(file, "sha256")
    config = model.config
    digest.update(repr((config.logit_temperature, config.variance_temperature)).encode())
    return digest.hexdigest()


def stored_dtype(model_folder: Path) -> WeightsDtype:
    """What a saved model's convolution kernels are stored in, to save it as it was."""
    names: dict[str, WeightsDtype] = {"F16": "float16", "BF16": "bfloat16"}
    with safe_open(model_folder / WEIGHTS_FILE, "pt") as opened:
        for name in opened.keys():  # noqa: SIM118 - no mapping
            found = opened.get_slice(name).get_dtype()
            if found in names:
                return names[found]
    return "float32"


def _held_out(proba: Tensor, labels: Tensor, samples: int) -> HeldOut:
    confidence, answer = proba.to(torch.float64).max(1)
    return HeldOut(confidence, answer == labels, samples)


def _replace_file(path: Path, write: Callable[[Path], object]) -> None:
    """Write beside the file and rename, so that it is never half there."""
    fresh = path.with_name(f".{path.name}.new")
    write(fresh)
    fresh.replace(path)
