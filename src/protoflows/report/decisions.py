"""Which of many decisions are shown: a rule, so that nobody picks the pretty ones."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from protoflows.evaluation.risk_coverage import log_odds


@dataclass(frozen=True)
class Decision:
    """One decision.

    Attributes:
        index: Which image.
        predicted: Its most probable class.
        label: Its class as labelled; −1 where unknown.
        rank: "surest", "middle" or "least sure" among its kind; a number for errors.
    """

    index: int
    predicted: int
    label: int
    rank: str


class Decisions(NamedTuple):
    """Decisions that are shown.

    Attributes:
        right: Right ones (of unlabelled images: unjudged ones).
        wrong: Errors, the surest first.
        num_right: How many were right in all.
        num_wrong: How many were wrong in all.
        judged: Whether there were labels.
    """

    right: tuple[Decision, ...]
    wrong: tuple[Decision, ...]
    num_right: int
    num_wrong: int
    judged: bool

    @property
    def shown(self) -> tuple[Decision, ...]:
        """All that are shown, right ones first."""
        return self.right + self.wrong


def choose_decisions(log_proba: Tensor, labels: Tensor, count: int) -> Decisions:
    """From the surest to the least sure right ones at even distances, and the surest errors.

    Sureness is the log-odds of the top class, which never saturates.

    Args:
        log_proba: log p(y|x), (N, C).
        labels: (N,); −1 for unlabelled images.
        count: How many of each kind, at most.

    >>> sure = torch.tensor([[0.9, 0.1], [0.6, 0.4], [0.3, 0.7]]).log()
    >>> found = choose_decisions(sure, torch.tensor([0, 0, 0]), 2)
    >>> [d.index for d in found.right], [d.index for d in found.wrong]
    ([0, 1], [2])
    """
    predicted, sure = log_proba.argmax(1), log_odds(log_proba)
    known = labels >= 0
    judged = bool(known.any())
    good = known & (predicted == labels) if judged else torch.ones_like(known)
    bad = known & (predicted != labels)
    right = _ordered(good, sure)
    places = torch.linspace(0, len(right) - 1, min(count, len(right))).round().long().tolist()
    names = {0: "surest", len(right) - 1: "least sure"}
    wrong = _ordered(bad, sure)
    return Decisions(
        tuple(_decision(right[p], predicted, labels, names.get(p, "in between")) for p in places),
        tuple(
            _decision(i, predicted, labels, f"error {n + 1} of {len(wrong)} by sureness")
            for n, i in enumerate(wrong[:count])
        ),
        len(right), len(wrong), judged,
    )  # fmt: skip


def _ordered(chosen: Tensor, sure: Tensor) -> list[int]:
    index = chosen.nonzero().flatten()
    found: list[int] = index[sure[index].argsort(descending=True, stable=True)].tolist()
    return found


def _decision(index: int, predicted: Tensor, labels: Tensor, rank: str) -> Decision:
    return Decision(index, int(predicted[index]), int(labels[index]), rank)
