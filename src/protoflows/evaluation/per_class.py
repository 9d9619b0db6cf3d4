"""Figures class by class."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from protoflows.evaluation.accuracy import hits
from protoflows.evaluation.diversity import diversity
from protoflows.evaluation.estimate import Estimate, mean_estimate
from protoflows.evaluation.passes import Passes
from protoflows.model import ProtoFlow


class ClassFigures(NamedTuple):
    """What is known of the images of one class.

    Attributes:
        label: The class.
        name: Its name.
        images: Number of its images; the rest is None where there is none.
        accuracy: Share that is classified right.
        s_rob: Share that keeps its winning prototype under noise.
        s_rob_baseline: Share that keeps it by another draw alone.
        s_div: Entropy of the winning prototypes, in units of log(K·C).
    """

    label: int
    name: str
    images: int
    accuracy: Estimate | None = None
    s_rob: Estimate | None = None
    s_rob_baseline: Estimate | None = None
    s_div: Estimate | None = None


def class_figures(
    model: ProtoFlow, passes: Passes, log_proba: Tensor, known: Tensor, labels: Tensor
) -> tuple[ClassFigures, ...]:
    """One entry per class.

    Args:
        model: The model that made the passes.
        passes: With "robustness" collected, or those figures stay None.
        log_proba: log p(y|x) of the labelled images, (M, C).
        known: Which images are labelled, bool (N,).
        labels: Their labels, (M,).
    """
    right = hits(log_proba, labels).double()
    winner = passes.winner[known]
    alive = int(model.mixtures.mask.sum())
    same: dict[str, Tensor] = {}
    for name, other in (("s_rob", passes.winner_noisy), ("s_rob_baseline", passes.winner_second)):
        if other is not None:
            same[name] = (winner == other[known]).double()
    found = []
    for label, name in enumerate(model.config.class_names):
        members = labels == label
        count = int(members.sum())
        if count == 0:
            found.append(ClassFigures(label, name, 0))
            continue
        shares = {key: mean_estimate(value[members]) for key, value in same.items()}
        spread = diversity(winner[members], alive) if alive > 1 else None
        own = mean_estimate(right[members])
        found.append(ClassFigures(label, name, count, own, s_div=spread, **shares))
    return tuple(found)
