"""How good a model is on encoded images, and what an edit changed about it."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from protoflows.app.encoded import Answers
from protoflows.evaluation.accuracy import accuracy, hits
from protoflows.evaluation.bits import bits_per_image
from protoflows.evaluation.brier import brier
from protoflows.evaluation.calibration_error import calibration_error
from protoflows.evaluation.estimate import Estimate
from protoflows.evaluation.nll import nll
from protoflows.evaluation.risk_coverage import log_odds, risk_coverage
from protoflows.model import ProtoFlow


class Score(NamedTuple):
    """Figures of a model on labelled images.

    Attributes:
        accuracy: Share of right answers.
        nll: −log p(y|x), nats.
        brier: Brier score.
        ece: Expected calibration error.
        aurc: Area under the risk-coverage curve.
        bits: −log2 p(x) per dimension, marginal over classes, importance-weighted.
        prototypes: How many are alive.
    """

    accuracy: Estimate
    nll: Estimate
    brier: Estimate
    ece: Estimate
    aurc: Estimate
    bits: Estimate
    prototypes: int


class Change(NamedTuple):
    """What an edit did to answers, image by image.

    Attributes:
        changed: Answers that are another class now.
        mended: Of those, answers that became right.
        spoiled: Of those, answers that became wrong.
    """

    changed: int
    mended: int
    spoiled: int


def score(model: ProtoFlow, found: Answers, labels: Tensor) -> Score:
    """Measure answers that a model gave.

    Args:
        model: The model.
        found: Its answers.
        labels: What is right, (N,).
    """
    proba = found.log_proba.exp()
    right = hits(found.log_proba, labels)
    whole = bits_per_image(found.log_prob)
    return Score(
        accuracy(found.log_proba, labels),
        nll(found.log_proba, labels),
        brier(proba, labels),
        calibration_error(proba, labels).ece,
        risk_coverage(log_odds(found.log_proba), right).aurc,
        whole.scaled(1 / model.config.flow.dims),
        int(model.mixtures.mask.sum()),
    )


def compare(before: Answers, after: Answers, labels: Tensor) -> Change:
    """Count the answers that changed.

    Args:
        before: Answers of the model as it was.
        after: Answers about the same images.
        labels: What is right, (N,).

    >>> import torch
    >>> one, other = torch.tensor([[0.0, -9.0]] * 2), torch.tensor([[-9.0, 0.0], [0.0, -9.0]])
    >>> none = torch.zeros(2)
    >>> compare(Answers(one, *[none] * 3), Answers(other, *[none] * 3), torch.tensor([1, 0]))
    Change(changed=1, mended=1, spoiled=0)
    """
    was, now = (hits(found.log_proba, labels) for found in (before, after))
    changed = before.log_proba.argmax(1) != after.log_proba.argmax(1)
    return Change(int(changed.sum()), int((~was & now).sum()), int((was & ~now).sum()))
