"""Sanity checks: heatmaps must depend on the weights, and not on the noise."""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass
from typing import Any

import torch
from scipy import stats
from torch import Tensor

from protoflows.explain.parts import PrototypeParts
from protoflows.explain.readout import read_out
from protoflows.model import ProtoFlow


@dataclass(frozen=True, eq=False)
class Randomisation:
    """Rank correlations (Spearman) of heatmaps before and after weights were randomised.

    Attributes:
        flow: With the flow's weights randomised, (N,).
        prototypes: With every prototype replaced by another class's, (N,).
        lead: The same of the maps of the lead over other classes, (N,); NaN without other classes.
    """

    flow: Tensor
    prototypes: Tensor
    lead: Tensor


@dataclass(frozen=True, eq=False)
class Stability:
    """How much noise changes an explanation, over pairs of draws.

    Attributes:
        heatmap: Mean rank correlation of heatmaps between draws, (N,).
        top_prototype: Share of draws whose top prototype is the most frequent one, (N,).
        draws: Number of draws.
    """

    heatmap: Tensor
    top_prototype: Tensor
    draws: int


def summary(values: Tensor) -> dict[str, Any]:
    """Mean with its 95 % interval over images, and their number; values that are NaN do not count.

    >>> summary(torch.tensor([1.0, 1.0]))["mean_95"]
    [1.0, 1.0]
    """
    kept = values[values.isfinite()].double()
    if not len(kept):
        return {"mean": None, "mean_95": None, "images": 0}
    half = 1.96 * float(kept.std()) / math.sqrt(len(kept)) if len(kept) > 1 else 0.0
    mean = float(kept.mean())
    return {"mean": mean, "mean_95": [mean - half, mean + half], "images": len(kept)}


@torch.no_grad()
def randomise_flow(model: ProtoFlow, seed: int = 0) -> ProtoFlow:
    """A copy whose flow has forgotten: values of each weight shuffled, 1x1 convolutions rotations.

    Shuffling keeps every layer's scale, so that latents stay finite; a shuffled 1x1 convolution
    could be singular, so it becomes a random orthogonal matrix.

    Args:
        model: The model; it stays as it is.
        seed: Of the randomisation.
    """
    generator = torch.Generator().manual_seed(seed)
    other = copy.deepcopy(model).eval()
    for parameter in other.flow.parameters():
        if parameter.dim() == 2 and parameter.shape[0] == parameter.shape[1]:
            draw = torch.randn(parameter.shape, generator=generator)
            parameter.copy_(torch.linalg.qr(draw).Q)
        else:
            order = torch.randperm(parameter.numel(), generator=generator).to(parameter.device)
            parameter.copy_(parameter.flatten()[order].view(parameter.shape))
    # Layers cache what they compute of their weights until they train again.
    return other.train().eval()


@torch.no_grad()
def shift_prototypes(model: ProtoFlow) -> ProtoFlow:
    """A copy in which every class has the prototypes of the next one."""
    other = copy.deepcopy(model)
    mixtures = other.mixtures
    mean, std, logits = (
        t.detach().roll(1, 0) for t in (mixtures.mean, mixtures.std, mixtures.logits)
    )
    mixtures.set_mixture(mean, std, logits, mixtures.mask.roll(1, 0))
    return other


@torch.no_grad()
def check_randomisation(
    model: ProtoFlow, x: Tensor, *, patch: int = 4, stride: int | None = None, seed: int = 0,
    batch_size: int = 256, baselines: Tensor | None = None,
) -> Randomisation:  # fmt: skip
    """Compare heatmaps of each image's top prototype with those of randomised models.

    A heatmap that hardly changes shows the image and not what the model has learned (Adebayo et al.
    2018). With the next class's prototype in its place, the heatmap is of the same rank order only
    as far as it says how usual a patch is for any prototype.

    Args:
        model: The model.
        x: Images, uint8 (N, C, H, W).
        patch: Side of patches.
        stride: Their distance.
        seed: Of the randomisation.
        batch_size: Images per pass.
        baselines: See `PrototypeParts.attribute`.
    """
    if not len(x):
        raise ValueError("x must hold at least one image, got none")
    tops = read_out(model, x, seed=seed, batch_size=batch_size).top_prototypes().tolist()
    (heat, lead), (lost, _) = (
        _heatmaps(m, x, tops, patch, stride, batch_size, baselines, seed)
        for m in (model, randomise_flow(model, seed))
    )
    shifted = shift_prototypes(model)
    # The place of a prototype may be empty in the class that moved there: take one that lives.
    living = [[c, k if bool(shifted.mixtures.mask[c, k]) else int(
        shifted.mixtures.mask[c].nonzero()[0])] for c, k in tops]  # fmt: skip
    moved, moved_lead = _heatmaps(shifted, x, living, patch, stride, batch_size, baselines, seed)
    return Randomisation(
        rank_correlation(heat, lost), rank_correlation(heat, moved),
        rank_correlation(lead, moved_lead),
    )  # fmt: skip


@torch.no_grad()
def check_stability(
    model: ProtoFlow, x: Tensor, *, draws: int = 8, patch: int = 4, stride: int | None = None,
    seed: int = 0, batch_size: int = 256, baselines: Tensor | None = None,
) -> Stability:  # fmt: skip
    """Repeat explanations with other draws of the noise, one draw each.

    Args:
        model: The model.
        x: Images, uint8 (N, C, H, W).
        draws: How many.
        patch: Side of patches.
        stride: Their distance.
        seed: Of the draws.
        batch_size: Images per pass.
        baselines: See `PrototypeParts.attribute`.
    """
    if draws < 2 or not len(x):
        raise ValueError(f"draws must be ≥ 2 and x hold images, got {draws} and {len(x)} images")
    most = read_out(model, x, samples=draws, seed=seed, batch_size=batch_size)
    tops = most.top_prototypes().tolist()
    num = model.mixtures.num_prototypes
    maps, names = [], []
    for d in range(draws):
        own = 1_000_003 * (d + 1) + seed
        found = read_out(model, x, samples=1, seed=own, batch_size=batch_size).top_prototypes()
        names.append(found[:, 0] * num + found[:, 1])
        found_maps = _heatmaps(model, x, tops, patch, stride, batch_size, baselines, own, draws=1)
        maps.append(found_maps[0])
    pairs = [rank_correlation(maps[i], maps[j]) for i in range(draws) for j in range(i + 1, draws)]
    votes = torch.stack(names)
    agreed = (votes == votes.mode(0).values).double().mean(0)
    return Stability(torch.stack(pairs).mean(0), agreed, draws)


def rank_correlation(a: Tensor, b: Tensor) -> Tensor:
    """Spearman's correlation of each pair of heatmaps, (N, H, W) → (N,); NaN for a constant one.

    >>> rank_correlation(torch.tensor([[[1.0, 2.0, 3.0]]]), torch.tensor([[[0.0, 4.0, 4.5]]]))
    tensor([1.], dtype=torch.float64)
    """
    out = []
    for first, second in zip(a.flatten(1), b.flatten(1), strict=True):
        ranks = [torch.from_numpy(stats.rankdata(v.numpy())) for v in (first, second)]
        r, s = (v - v.mean() for v in ranks)
        out.append((r * s).sum() / (r.square().sum() * s.square().sum()).sqrt())
    return torch.stack(out).double()


def _heatmaps(
    model: ProtoFlow, x: Tensor, prototypes: list[list[int]], patch: int, stride: int | None,
    batch_size: int, baselines: Tensor | None, seed: int, draws: int = 0,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Heatmaps and maps of the lead over other classes, (N, H, W) each."""
    maps, leads = [], []
    for image, (c, k) in zip(x, prototypes, strict=True):
        found = PrototypeParts(model).attribute(
            image[None], baselines, (c, k), patch=patch, stride=stride, draws=draws, seed=seed,
            perturbations_per_eval=batch_size,
        )  # fmt: skip
        maps.append(found.heatmap()[0])
        # A constant map has no ranks: its correlation is NaN.
        several = model.config.num_classes > 1
        leads.append(found.contrast()[0] if several else torch.zeros_like(maps[-1]))
    return torch.stack(maps), torch.stack(leads)
