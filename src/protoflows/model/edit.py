"""Prototypes switched off, merged, named or pruned, always in a copy of the model."""

from __future__ import annotations

import copy
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from protoflows.model.sampling import is_index
from protoflows.prototypes import ClassMixtures
from protoflows.prototypes.densities import accumulation_dtype

if TYPE_CHECKING:
    from protoflows.model.protoflow import ProtoFlow


def edit_prototypes(
    model: ProtoFlow,
    disable: Collection[tuple[int, int]],
    merge: Collection[tuple[tuple[int, int], tuple[int, int]]],
    names: Mapping[tuple[int, int], str],
) -> ProtoFlow:
    """Switch off, then merge, then name; see `ProtoFlow.with_prototypes`."""
    edited = _copy(model)
    mixtures = edited.mixtures
    for pair in disable:
        c, k = _living(mixtures, pair, "disable")
        mask = mixtures.mask.clone()
        mask[c, k] = False
        if not bool(mask[c].any()):
            raise ValueError(
                f"disable={pair!r} would leave class {c} ({model.config.class_names[c]}) "
                "without a prototype"
            )
        mixtures.set_mask(mask)
    for pairs in merge:
        if len(pairs) != 2:
            raise ValueError(
                f"merge must hold pairs of prototypes ((class, k), (class, k)), got {pairs!r}"
            )
        merge_pair(mixtures, *(_living(mixtures, pair, "merge") for pair in pairs))
    _name(edited, names)
    return edited


def keep_prototypes(model: ProtoFlow, mask: Tensor) -> ProtoFlow:
    """Switch off every prototype that mask (C, K) does not mark; those switched off stay off."""
    mixtures = model.mixtures
    if mask.dtype != torch.bool or mask.shape != mixtures.mask.shape:
        raise ValueError(
            f"mask must be bool of shape {tuple(mixtures.mask.shape)}, "
            f"got {mask.dtype} of shape {tuple(mask.shape)}"
        )
    edited = _copy(model)
    edited.mixtures.set_mask(mask.to(mixtures.mask.device) & mixtures.mask)
    _name(edited, {})
    return edited


@torch.no_grad()
def merge_pair(mixtures: ClassMixtures, first: tuple[int, int], second: tuple[int, int]) -> None:
    """Put the Gaussian with the moments of two into the place of the first; the second is masked.

    With weights w₁, w₂, shares s_i = w_i/(w₁ + w₂) and Gaussians N(μ_i, σ_i²):

        w = w₁ + w₂,   μ = Σ s_i μ_i,   σ² = Σ s_i (σ_i² + (μ_i − μ)²).

    No single Gaussian is nearer to the two in Kullback-Leibler divergence from them.
    """
    (c, a), (other, b) = first, second
    if c != other:
        raise ValueError(f"merge takes two prototypes of one class, got {first} and {second}")
    if a == b:
        raise ValueError(f"merge takes two different prototypes, got {first} twice")
    # In float64, so that all other prototypes come back from the round trip as they were.
    wide = accumulation_dtype(mixtures.mean.device)
    mean, std = mixtures.mean.to(wide), mixtures.log_std.to(wide).exp() + mixtures.config.min_std
    log_weights = mixtures.log_weights.to(wide)
    pair = torch.tensor([a, b], device=mean.device)
    log_weight = log_weights[c, pair].logsumexp(0)
    share = (log_weights[c, pair] - log_weight).exp()[:, None]
    centre = (share * mean[c, pair]).sum(0)
    variance = (share * (std[c, pair].square() + (mean[c, pair] - centre).square())).sum(0)
    mean[c, a], std[c, a] = centre, variance.sqrt()
    logits, mask = mixtures.logits.to(wide), mixtures.mask.clone()
    logits[c] = torch.where(
        mask[c], log_weights[c], logits[c]
    )  # on one scale with the merged weight
    logits[c, a] = log_weight
    mask[c, b] = False
    mixtures.set_mixture(mean, std, logits, mask)


def _copy(model: ProtoFlow) -> ProtoFlow:
    """A copy that shares nothing; figures measured on the original are not the copy's.

    The quantiles of log p(x) stay: an edited model is compared with what the original found usual,
    until someone measures them again.
    """
    edited = copy.deepcopy(model)
    if edited.extras is not None:
        edited.extras = replace(edited.extras, metrics={})
    return edited


def _living(mixtures: ClassMixtures, pair: tuple[int, int], argument: str) -> tuple[int, int]:
    num_classes, num_prototypes = mixtures.mask.shape
    if (
        not isinstance(pair, tuple | list)
        or len(pair) != 2
        or not all(is_index(i) for i in pair)
        or not (0 <= pair[0] < num_classes and 0 <= pair[1] < num_prototypes)
    ):
        raise ValueError(
            f"{argument} must name prototypes as (class, prototype) with class in "
            f"0…{num_classes - 1} and prototype in 0…{num_prototypes - 1}, got {pair!r}"
        )
    c, k = int(pair[0]), int(pair[1])
    if not bool(mixtures.mask[c, k]):
        living = mixtures.mask[c].nonzero().flatten().tolist()
        raise ValueError(
            f"{argument} names prototype {(c, k)}, which is switched off; class {c} has {living}"
        )
    return c, k


def _name(model: ProtoFlow, names: Mapping[tuple[int, int], str]) -> None:
    """Add names, and drop those of prototypes that are gone."""
    given = {_living(model.mixtures, pair, "names"): name for pair, name in names.items()}
    merged = {**model.config.prototype_names, **given}
    kept = {
        pair: name
        for pair, name in merged.items()
        if name != "" and bool(model.mixtures.mask[pair])
    }
    model.config = replace(model.config, prototype_names=kept)
