"""How far a model is to be trusted, measured on images that it has not learned from."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from protoflows.app.edits import Edits
from protoflows.app.encoded import Answers, Progress
from protoflows.app.workspace import Workspace
from protoflows.evaluation.accuracy import hits
from protoflows.evaluation.ood import ood_metrics
from protoflows.evaluation.risk_coverage import log_odds


@dataclass(frozen=True, eq=False)
class Apart:
    """How well a model tells its own images from others.

    Attributes:
        own: log p(x) of its test images, mean of one-draw bounds, nats (N,).
        other: Of the others, (M,).
        auroc: Chance that one of its own is likelier than another one, with standard error.
        typicality: The same for −|log p(x) − median|, with standard error.
        passing: Share of the others that are as likely as its 95 % likeliest own.
    """

    own: Tensor
    other: Tensor
    auroc: tuple[float, float]
    typicality: tuple[float, float]
    passing: float


def errors(found: Answers, labels: Tensor) -> list[int]:
    """Wrong decisions, the surest first: those do the most harm.

    >>> import torch
    >>> log_proba = torch.tensor([[0.6, 0.4], [0.9, 0.1], [0.2, 0.8]]).double().log()
    >>> errors(Answers(log_proba, *[torch.zeros(3)] * 3), torch.tensor([1, 1, 1]))
    [1, 0]
    """
    wrong = ~hits(found.log_proba, labels)
    order = log_odds(found.log_proba).argsort(descending=True, stable=True)
    return order[wrong[order]].tolist()


def tell_apart(
    workspace: Workspace, edits: Edits, kind: str, progress: Progress | None = None
) -> Apart | None:
    """Compare a model's test images with others; None where it has none.

    Both are scored with as many draws of the noise, by the mean of one-draw bounds, as the
    training images' quantiles are.

    Args:
        workspace: The model and its data.
        edits: What was done to the model.
        kind: One of `Workspace.other_kinds`.
        progress: Called with the batches encoded and all batches.
    """
    measured = workspace.measured()
    if measured is None:
        return None
    own = workspace.answers(edits, measured[0], progress).log_prob_mean
    other = workspace.answers(edits, workspace.other(kind), progress).log_prob_mean

    def compare() -> Apart:
        extras = workspace.model.extras
        known = extras.log_prob_quantiles if extras is not None else None
        median = own.median() if known is None else known[len(known) // 2]
        plain = ood_metrics(own, other)
        typical = ood_metrics(-(own - median).abs(), -(other - median).abs())
        return Apart(
            own, other, (plain["auroc"], plain["auroc_stderr"]),
            (typical["auroc"], typical["auroc_stderr"]), plain["fpr95"],
        )  # fmt: skip

    return workspace.cached(("apart", edits, kind), compare)
