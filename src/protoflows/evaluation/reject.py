"""When to abstain: a threshold on confidence whose risk is bounded, fitted on held-out images."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

DELTA = 0.05
"""Chance, over the draw of the held-out images, that the promised risk is exceeded."""

_MAX_TESTS = 20
_IMAGES_PER_TEST = 60


class RejectRule(NamedTuple):
    """Answer where max_c p(c|x) is at least the threshold.

    Attributes:
        threshold: Least confidence that is answered; infinity where nothing is.
        bound: The share of wrong answers among those given that was asked for.
        coverage: Share of the held-out images that are answered; None where none were used.
        risk: Share of wrong answers among them; None where none were used or none is answered.
        risk_bound: Upper confidence bound on that share in new images; None where the risk is
            only estimated.
        images: Held-out images that there were.
    """

    threshold: float
    bound: float
    coverage: float | None = None
    risk: float | None = None
    risk_bound: float | None = None
    images: int = 0

    def accepts(self, confidence: Tensor) -> Tensor:
        """Which predictions are given, bool (N,); NaN is never confident enough."""
        return confidence >= self.threshold

    def describe(self) -> str:
        """The rule in a sentence."""
        if self.coverage is None:
            why = f"only {self.images} held-out images" if self.images else "no held-out images"
            return (
                f"abstains where 1 - max p(c|x) is above {self.bound:g}; {why}: the model's "
                "probabilities are taken at their word and nothing is promised"
            )
        if self.risk is None:
            return (
                f"abstains always: on {self.images} held-out images no threshold keeps the share "
                f"of wrong answers below {self.bound:g}"
            )
        answers = (
            f"answers where max p(c|x) >= {self.threshold:.6g}: {100 * self.coverage:.1f} % of "
            f"{self.images} held-out images, {100 * self.risk:.2f} % of these wrongly; "
        )
        if self.risk_bound is None:
            return f"{answers}too few images to promise more than this estimate"
        return (
            f"{answers}of new answers at most {100 * self.risk_bound:.2f} % are wrong (at "
            f"{100 * (1 - DELTA):g} % confidence)"
        )


def fit_rejection(
    confidence: Tensor, correct: Tensor, bound: float, *, delta: float = DELTA
) -> RejectRule:
    """The lowest threshold that keeps the risk of answers at most `bound`.

    Selection with guaranteed risk (after Geifman & El-Yaniv 2017): of M coverages, evenly spaced up
    to 1, each is a threshold θ; n_θ held-out images lie at or above it, e of them wrong, and the
    risk there is at most the exact (Clopper-Pearson) p with Pr[Binomial(n_θ, p) ≤ e] = δ/M. All M
    hold together with probability 1 − δ, if new images are drawn like the held-out ones and
    training has not looked at those. The lowest θ with p ≤ bound is taken. M grows with the number
    of images, up to 20: each further threshold makes the bounds looser.

    Where no threshold can promise that, the risk at θ is estimated by (e + 1)/(n_θ + 2) (Laplace's
    rule), and the lowest θ where this is at most the bound is taken; `risk_bound` is then None. It
    is no lower than the θ of the least risk that can be promised: a lower bound never answers more.
    Where no θ passes that either, nothing is answered; where there are so few images that none
    could pass, the model's probabilities are taken at their word (`word_rule`).

    Images of equal confidence are answered together: a flow's posterior saturates, and no threshold
    can tell them apart.

    Args:
        confidence: max_c p(c|x) of held-out images, (N,).
        correct: Whether that class is the right one, bool (N,).
        bound: Highest share of wrong answers among those given, above 0 and below 1.
        delta: Chance of a broken promise.

    >>> confidence = torch.tensor([0.9] * 300 + [0.4] * 60)
    >>> rule = fit_rejection(confidence, confidence > 0.5, 0.05)
    >>> round(rule.threshold, 3), round(rule.coverage, 3), rule.risk
    (0.9, 0.833, 0.0)
    """
    check_bound(bound)
    if not 0 < delta < 1:
        raise ValueError(f"delta must be above 0 and below 1, got {delta}")
    if confidence.ndim != 1 or confidence.shape != correct.shape:
        raise ValueError(
            "confidence and correct must both be (N,), got "
            f"{tuple(confidence.shape)} and {tuple(correct.shape)}"
        )
    num = len(confidence)
    if num == 0:
        return word_rule(bound)
    value, order = confidence.to(torch.float64).nan_to_num(-math.inf).sort(descending=True)
    wrong = (~correct.to(torch.bool))[order].cumsum(0)

    def counts(place: int) -> tuple[int, int]:
        """Images of at least this one's confidence, and those of them that are wrong."""
        answered = int((value >= value[place]).sum())
        return answered, int(wrong[answered - 1])

    def rule(place: int, risk_bound: float | None) -> RejectRule:
        answered, errors = counts(place)
        threshold = float(value[place])
        return RejectRule(threshold, bound, answered / num, errors / answered, risk_bound, num)

    tests = min(_MAX_TESTS, max(1, num // _IMAGES_PER_TEST))
    strictest, least_bound = -math.inf, math.inf
    for test in range(tests, 0, -1):  # from full coverage down: the first that holds is the answer
        place = math.ceil(num * test / tests) - 1
        answered, errors = counts(place)
        risk_bound = binomial_upper_bound(errors, answered, delta / tests)
        if risk_bound <= bound and bool(value[place].isfinite()):
            return rule(place, risk_bound)
        if risk_bound < least_bound:
            strictest, least_bound = float(value[place]), risk_bound
    ends = torch.cat([value[1:] != value[:-1], torch.ones(1, dtype=torch.bool)])
    for place in (ends & value.isfinite()).nonzero().flatten().flip(0).tolist():
        if value[place] >= strictest and (int(wrong[place]) + 1) / (place + 3) <= bound:
            return rule(place, None)
    if 1 / (num + 2) > bound:
        return word_rule(bound, num)
    return RejectRule(math.inf, bound, 0.0, None, None, num)


def word_rule(bound: float, images: int = 0) -> RejectRule:
    """The risk of an answer is what the model says, 1 − max_c p(c|x).

    Args:
        bound: Highest risk that is answered.
        images: Held-out images that there are, too few to go by.
    """
    check_bound(bound)
    return RejectRule(1 - bound, bound, images=images)


def check_bound(bound: float) -> None:
    """Refuse a risk that means nothing."""
    if not 0 < bound < 1:
        raise ValueError(f"reject must be a share above 0 and below 1, got {bound}")


def binomial_upper_bound(errors: int, num: int, delta: float) -> float:
    """p with Pr[Binomial(num, p) ≤ errors] = delta (Clopper-Pearson); 1 for no observations.

    >>> round(binomial_upper_bound(0, 100, 0.05), 6) == round(1 - 0.05 ** (1 / 100), 6)
    True
    """
    from scipy.stats import beta

    return 1.0 if errors >= num else float(beta.ppf(1 - delta, errors + 1, num - errors))
