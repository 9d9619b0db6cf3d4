"""Ways through the latent: every picture on them is made before the slider moves."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from protoflows.app.encoded import Progress
from protoflows.explain.counterfactual import find_counterfactuals
from protoflows.explain.interpolation import interpolate
from protoflows.explain.readout import read_out
from protoflows.model import ProtoFlow

_AT_ONCE = 8
_FRESH = 1001
_SMALL, _MEDIUM = 1024, 4096  # values per image


@dataclass(frozen=True, eq=False)
class Way:
    """Pictures from an image to another one.

    Attributes:
        images: uint8 (S, C, H, W).
        posterior: p(c|x) of each, encoded again with fresh noise, (S, num_classes).
        log_prob: log p(x) of each, nats (S,).
        percentile: Per cent of the training images that are less likely, (S,); None if unknown.
        notes: What its ends are.
    """

    images: Tensor
    posterior: Tensor
    log_prob: Tensor
    percentile: Tensor | None
    notes: tuple[str, ...]


def steps_for(model: ProtoFlow) -> int:
    """How many pictures a way has: fewer where each of them takes longer."""
    dims = model.config.flow.dims
    return 41 if dims <= _SMALL else 21 if dims <= _MEDIUM else 11


def _draws_for(model: ProtoFlow) -> int:
    """Draws of the noise for every picture: few leave curves rough."""
    return 16 if model.config.flow.dims <= _SMALL else 4


def way_to_image(model: ProtoFlow, a: Tensor, b: Tensor, progress: Progress | None = None) -> Way:
    """From an image straight through the latent to another one.

    Args:
        model: The model.
        a: The first image, uint8 (1, C, H, W).
        b: The last one.
        progress: Called with the pictures done and all pictures.
    """
    weights = torch.linspace(0, 1, steps_for(model), dtype=torch.float64)
    parts = []
    for part in weights.split(_AT_ONCE):
        parts.append(interpolate(model, a, b, steps=part.tolist(), samples=_draws_for(model)))
        if progress is not None:
            progress(min(len(parts) * _AT_ONCE, len(weights)), len(weights))
    images = torch.cat([p.images for p in parts])
    known = [p.percentile for p in parts if p.percentile is not None]
    exact = torch.equal(images[0], a[0].cpu()) and torch.equal(images[-1], b[0].cpu())
    said = (
        "Both ends are exact: the first picture and the last are the two images, every pixel "
        "(compared just now). All between are decoded from z(t) = (1 − t) z₀ + t z₁."
        if exact
        else "The ends differ from the images: the inverse is not exact on this machine."
    )
    return Way(
        images, torch.cat([p.posterior for p in parts]), torch.cat([p.log_prob for p in parts]),
        torch.cat(known) if len(known) == len(parts) else None, (said,),
    )  # fmt: skip


def way_to_class(
    model: ProtoFlow, a: Tensor, target: int, progress: Progress | None = None
) -> Way | None:
    """From an image to the nearest one of another class; None where it is of that class already.

    Args:
        model: The model.
        a: The image, uint8 (1, C, H, W).
        target: The class.
        progress: Called with the steps done and all steps.
    """

    def report(done: int) -> None:
        if progress is not None:
            progress(done, 3)

    report(0)
    found = find_counterfactuals(model, a, target)
    if int(found.source[0]) == target:
        return None
    report(1)
    images, _ = found.way(model, 0, steps_for(model))
    report(2)
    # Noise that neither the search nor its verdict has seen.
    answers = read_out(model, images, samples=_draws_for(model), seed=_FRESH)
    report(3)
    extras = model.extras
    known = extras is not None and extras.log_prob_quantiles is not None
    percentile = extras.percentile(answers.log_prob_mean) if known and extras is not None else None
    name = model.config.class_names[target]
    if bool(found.success[0]):
        said = (
            f"The least change found in z that makes it {name}: "
            f"{100 * float(answers.posterior[-1, target]):.0f} % with noise that the search has "
            f"not seen; pixels change by {100 * float(found.pixel_change[0]):.1f} % of their range "
            "on average."
        )
    else:
        said = f"No change was found that makes it {name}: the way ends at the nearest prototype."
    start = torch.equal(images[0], a[0].cpu())
    end = torch.equal(images[-1], found.images[0])
    exact = (
        "Both ends are exact: the first picture is the image itself, the last the one that was "
        "judged, every pixel (compared just now)."
        if start and end
        else "The ends differ from the images: the inverse is not exact on this machine."
    )
    return Way(images, answers.posterior, answers.log_prob, percentile, (said, exact))
