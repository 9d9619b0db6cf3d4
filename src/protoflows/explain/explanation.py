"""Why this image got this class: prediction, likelihood, prototypes, parts and exact evidence."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from matplotlib.figure import Figure
from torch import Tensor

from protoflows.explain.attribution import CELL_NOTE, Attribution, attribute_classes
from protoflows.explain.parts import By, PrototypeParts, default_patch, top_pixels
from protoflows.explain.pictures import prototype_title
from protoflows.explain.reading import prepare_images
from protoflows.explain.readout import Readout, read_out
from protoflows.explain.retrieved import RetrievedPart, RetrievedParts, retrieve_part
from protoflows.model import ProtoFlow, evaluating, image_seeds


@dataclass(frozen=True, eq=False)
class PrototypeEvidence:
    """What one prototype has to do with the decision.

    Attributes:
        prototype: (class, index).
        title: What it is called.
        log_likelihood: log p(z|prototype), mean over draws, nats.
        share: p(c, k|x): its share of the decision, from 0 to 1.
        mean_image: The picture of its mean, uint8 (C, H, W).
        heatmap: Nats that each pixel's patches add to the baseline's log-likelihood, (H, W); None
            where no baseline is known.
        contrast: Nats that each pixel's patches add to the prototype's lead over other classes,
            (H, W); None where no baseline is known, or no other class.
        top: The 5 % of pixels with the largest values, bool (H, W).
        part: The query's likeliest part as a box (row, column, height, width).
        retrieved: The likeliest part of training images; None where none are known.
    """

    prototype: tuple[int, int]
    title: str
    log_likelihood: float
    share: float
    mean_image: Tensor
    heatmap: Tensor | None
    contrast: Tensor | None
    top: Tensor | None
    part: Tensor | None
    retrieved: RetrievedPart | None


@dataclass(frozen=True, eq=False)
class Explanation:
    """An image, its class, and why.

    Attributes:
        image: What the model saw, uint8 (C, H, W).
        levels: Number of values that a pixel can take.
        label: The most probable class.
        class_names: Names of all classes.
        posterior: p(c|x), (C,).
        log_prob: log p(x), importance-weighted bound, nats.
        percentile: Per cent of the training images that are less likely; None where not known.
        prototypes: Those with the largest shares, largest first.
        evidence: Exact log-odds of the class against the runner-up over the latent's grid; None
            for a single class.
        by: What heatmaps are of: "latent" or "image".
        patch: Side of a patch in pixels.
        notes: What was done to the image, and what could not be shown and why.
    """

    image: Tensor
    levels: int
    label: int
    class_names: tuple[str, ...]
    posterior: Tensor
    log_prob: float
    percentile: float | None
    prototypes: tuple[PrototypeEvidence, ...]
    evidence: Attribution | None
    by: By
    patch: int
    notes: tuple[str, ...]

    @property
    def prediction(self) -> str:
        """Name of the most probable class."""
        return self.class_names[self.label]

    def usual(self) -> str:
        """A sentence on whether the image is like the training data."""
        if self.percentile is None:
            return "How usual the image is, is not known: the model was saved without quantiles."
        p = self.percentile
        if p < 1:
            return (
                "Less likely than 99 % of the training images: very unusual, do not trust the "
                "class."
            )
        words = "unusual" if p < 5 else "usual"
        return f"More likely than {p:.0f} % of the training images: {words}."

    def figure(self) -> Figure:
        """All of it as one picture."""
        from protoflows.explain.figures.why import draw_explanation

        return draw_explanation(self)

    def to_dict(self) -> dict[str, Any]:
        """All of it but the pictures, as plain numbers, strings, lists and dicts."""
        return {
            "prediction": self.prediction,
            "label": self.label,
            "posterior": dict(zip(self.class_names, map(_finite, self.posterior.tolist()),
                                  strict=True)),
            "log_prob": _finite(self.log_prob),
            "percentile": self.percentile,
            "usual": self.usual(),
            "by": self.by,
            "patch": self.patch,
            "prototypes": [_evidence_dict(p) for p in self.prototypes],
            "evidence": None if self.evidence is None else _attribution_dict(self),
            "notes": list(self.notes),
        }  # fmt: skip

    def to_json(self) -> str:
        """`to_dict` as text."""
        return json.dumps(self.to_dict(), indent=2, ensure_ascii=False, allow_nan=False) + "\n"

    def to_html(self) -> str:
        """A page that stands alone: pictures are in it, nothing is fetched."""
        from protoflows.explain.html import explanation_page

        return explanation_page(self)

    def save(self, path: str | Path) -> None:
        """Write `.html`, `.json`, or the figure as `.png`, `.pdf` or `.svg`.

        Args:
            path: File; its ending says what is written.
        """
        file = Path(path)
        if not file.resolve().parent.is_dir():
            raise FileNotFoundError(f"path: there is no folder {file.resolve().parent}")
        if file.suffix == ".html":
            file.write_text(self.to_html(), encoding="utf-8")
        elif file.suffix == ".json":
            file.write_text(self.to_json(), encoding="utf-8")
        elif file.suffix in (".png", ".pdf", ".svg"):
            self.figure().savefig(file, dpi=150)
        else:
            raise ValueError(
                f"path must end in .html, .json, .png, .pdf or .svg, got {str(path)!r}"
            )


@torch.no_grad()
def explain(
    model: ProtoFlow,
    x: Tensor | str | Path,
    *,
    top: int = 3,
    samples: int = 8,
    patch: int | None = None,
    stride: int | None = None,
    by: By = "latent",
    baselines: Tensor | None = None,
    parts: RetrievedParts | None = None,
    perturbations_per_eval: int = 64,
    seed: int = 0,
) -> Explanation:
    """Explain the class of one image.

    Args:
        model: The model.
        x: One image, uint8 (C, H, W) or (1, C, H, W), or a picture's file; other sizes and channels
            are brought to the model's as in training, which the notes say.
        top: Prototypes to show.
        samples: Draws of the noise for class and likelihood.
        patch: Side of a patch; 4 as in the paper when None, 2 for images below 16 pixels.
        stride: Distance of patches; half a patch when None, so that borders blur less.
        by: "latent" for p(z|prototype) as in the paper, "image" for p(x|prototype).
        baselines: What surrounds a patch; the mean training image when None.
        parts: Retrieved parts stored with the run; without them the few training images that came
            with the model are searched.
        perturbations_per_eval: Images per pass.
        seed: Of the noise.
    """
    if top < 1:
        raise ValueError(f"top must be ≥ 1, got {top}")
    images, notes = prepare_images(model, x)
    if len(images) != 1:
        raise ValueError(f"x must be one image, got {len(images)}")
    config, extras = model.config, model.extras
    found = read_out(
        model, images, samples=samples, seed=seed, batch_size=max(1, perturbations_per_eval)
    )
    said = list(notes)
    patch = default_patch(model) if patch is None else patch
    stride = max(1, patch // 2) if stride is None else stride
    patches = None
    if baselines is None and (extras is None or extras.mean_image is None):
        said.append(
            "No heatmaps and parts: they need the mean training image, which this model was saved "
            "without."
        )
    else:
        patches = PrototypeParts(model).attribute(
            images, baselines, patch=patch, stride=stride, by=by, seed=seed,
            perturbations_per_eval=perturbations_per_eval,
        )  # fmt: skip
    evidence = []
    chosen = _largest(found, top)
    retrieved: list[RetrievedPart | None] = []
    for prototype in chosen:
        part = None
        if patches is not None and parts is not None:
            part = RetrievedPart(*parts.of(prototype))
        elif patches is not None and extras is not None and extras.images is not None:
            assert extras.labels is not None
            part = retrieve_part(
                model, prototype, extras.images, extras.labels, baselines=baselines, patch=patch,
                stride=stride, by=by, perturbations_per_eval=perturbations_per_eval, seed=seed,
            )  # fmt: skip
        retrieved.append(part)
    if patches is not None and parts is None:
        said.append(
            "Retrieved parts are of the few training images saved with the model, not of all."
            if any(retrieved)
            else "No retrieved parts: the model was saved without training images."
        )
    for prototype, part in zip(chosen, retrieved, strict=True):
        c, k = prototype
        heat = patches.heatmap(prototype)[0] if patches is not None else None
        evidence.append(
            PrototypeEvidence(
                prototype,
                prototype_title(model, prototype),
                float(found.prototype_log_likelihood[0, c, k]),
                float(found.prototype_posterior[0, c, k]),
                model.prototype_mean_image(c, k).cpu(),
                heat,
                patches.contrast(prototype)[0]
                if patches is not None and config.num_classes > 1
                else None,
                top_pixels(heat[None])[0] if heat is not None else None,
                patches.part(prototype)[0] if patches is not None else None,
                part,
            )
        )
    known = extras is not None and extras.log_prob_quantiles is not None
    percentile = float(extras.percentile(found.log_prob_mean)[0]) if known and extras else None
    return Explanation(
        images[0], config.flow.levels, int(found.labels[0]), config.class_names,
        found.posterior[0], float(found.log_prob[0]), percentile, tuple(evidence),
        _against_runner_up(model, images, found, seed), by, patch, tuple(said),
    )  # fmt: skip


def _largest(found: Readout, top: int) -> list[tuple[int, int]]:
    """The prototypes with the largest shares; those that are switched off have none."""
    alive = found.prototype_log_likelihood[0].isfinite().flatten()
    # Shares underflow to 0 soon; the log-likelihood orders those that are left.
    share = found.prototype_posterior[0].flatten()
    order = sorted(
        alive.nonzero().flatten().tolist(),
        key=lambda i: (-float(share[i]), -float(found.prototype_log_likelihood[0].flatten()[i])),
    )
    num = found.prototype_posterior.shape[2]
    return [divmod(i, num) for i in order[:top]]


def _against_runner_up(
    model: ProtoFlow, images: Tensor, found: Readout, seed: int
) -> Attribution | None:
    if model.config.num_classes < 2:
        return None
    first, second = found.posterior[0].argsort(descending=True, stable=True)[:2].tolist()
    with evaluating(model):
        enc = model.encode(images, seed=image_seeds(0, 1, 0, seed))
    return attribute_classes(model, enc, first, second)


def _evidence_dict(p: PrototypeEvidence) -> dict[str, Any]:
    return {
        "class": p.prototype[0],
        "prototype": p.prototype[1],
        "title": p.title,
        "log_likelihood": _finite(p.log_likelihood),
        "share": _finite(p.share),
        "heatmap": None if p.heatmap is None else p.heatmap.tolist(),
        "contrast": None if p.contrast is None else p.contrast.tolist(),
        "part": None if p.part is None else p.part.tolist(),
        "retrieved": None
        if p.retrieved is None
        else {"label": p.retrieved.label, "part": p.retrieved.box.tolist()},
    }


def _attribution_dict(e: Explanation) -> dict[str, Any]:
    assert e.evidence is not None
    found = e.evidence
    return {
        "target": e.class_names[found.target[0]],
        "against": e.class_names[found.against[0]],
        "log_odds": float(found.log_odds[0]),
        "cells": found.cells[0].tolist(),
        "weights": float(found.weights[0]),
        "entropy": float(found.entropy[0]),
        "prior": float(found.prior[0]),
        "what_a_cell_is": CELL_NOTE,
    }


def _finite(value: float) -> float | None:
    """JSON has no NaN and no infinity."""
    return value if math.isfinite(value) else None
