"""Temperatures fitted on held-out images: of the logits, or of the prototypes' variances."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from protoflows.data import Split
from protoflows.evaluation.accuracy import accuracy
from protoflows.evaluation.calibration_error import calibration_error
from protoflows.evaluation.estimate import Estimate
from protoflows.evaluation.nll import nll
from protoflows.evaluation.predict import DEFAULT_SAMPLES
from protoflows.model import ProtoFlow, evaluating
from protoflows.model.seeds import draw_seeds

MIN_IMAGES = 30
"""Fewer labelled images than this say nothing about how sure to be."""

Method = Literal["none", "logits", "variances"]
_METHODS: tuple[Method, ...] = ("none", "logits", "variances")
_FOLDS = 5
_RANGE = (1e-2, 1e4)
_GRID = 37  # six steps per power of ten
# Numbers handled at once: 32 MB per float64 temporary.
_BLOCK_NUMBERS = 1 << 22
# Figures that temperatures cannot change.
_LIKELIHOODS = ("bits", "dims", "levels", "images", "samples")


class Candidate(NamedTuple):
    """One way to calibrate.

    Attributes:
        method: What the temperature is of; "none" is the model as it was trained.
        temperature: Fitted on all held-out images; 1 for "none".
        log_proba: log p(y|x) of each held-out image with the temperature fitted without its fifth
            of them, (N, C): figures from it are not the better for having been fitted.
        nll: Mean −log p(label|x) by `log_proba`, in nats: what the choice goes by.
        ece: Expected calibration error by `log_proba`.
        accuracy: Share of right classes by `log_proba`.
    """

    method: Method
    temperature: float
    log_proba: Tensor
    nll: Estimate
    ece: Estimate
    accuracy: Estimate


class Calibration(NamedTuple):
    """The candidates, best first, and the labels of the images they were compared on.

    Attributes:
        candidates: By rising `nll`.
        labels: Labels of the images used, int64 (N,).
        proba: p(y|x) of these images at the best candidate's own temperature, (N, C).
        samples: Draws of the noise per image.
    """

    candidates: tuple[Candidate, ...]
    labels: Tensor
    proba: Tensor
    samples: int

    @property
    def best(self) -> Candidate:
        """The candidate of the lowest cross-validated loss."""
        return self.candidates[0]

    def of(self, method: Method) -> Candidate:
        """The candidate of a method."""
        return next(c for c in self.candidates if c.method == method)


class QuadraticTerms(NamedTuple):
    """All that classes are compared by, at any temperatures, of N images with S draws.

    Attributes:
        distance: q = Σ_d ((z − μ)/σ)², float32 (N, S, C, K), less its least value of each image and
            draw (a common term, which Bayes' rule cancels; what matters is near it and keeps its
            digits); infinite where a prototype is absent.
        offset: log π_ck − ½ Σ_d log σ², float64 (C, K).
        log_prior: log p(c), float64 (C,).
    """

    distance: Tensor
    offset: Tensor
    log_prior: Tensor

    def logits(self, variance_temperature: float = 1.0) -> Tensor:
        """log p(x|c) + log p(c) up to a term common to all classes, float64 (N, C).

        With every variance times T, log N_T = −q/2T − ½ Σ_d log σ² − ½D log 2πT: the prototypes'
        quadratic terms are all that has to be known of an image, and the last term cancels. Means
        over draws, as in `ProtoFlow.predict_proba`.
        """
        per_image = self.distance[0].numel() if len(self.distance) else 1
        parts = []
        for block in self.distance.split(max(1, _BLOCK_NUMBERS // per_image)):
            scaled = block.to(torch.float64).mul_(-0.5 / variance_temperature).add_(self.offset)
            parts.append(scaled.logsumexp(3).mean(1))
        return torch.cat(parts) + self.log_prior


@torch.no_grad()
def quadratic_terms(
    model: ProtoFlow, images: Tensor, *, samples: int, seed: int, batch_size: int
) -> QuadraticTerms:
    """One flow pass per image and draw; whatever temperatures are tried later needs no other.

    Memory: 4·N·S·C·K bytes.

    Args:
        model: The model; its temperatures play no part.
        images: uint8 (N, C, H, W).
        samples: Draws of the noise per image.
        seed: From which all draws follow.
        batch_size: Images per pass.
    """
    mixtures = model.mixtures
    std = mixtures.std.to("cpu", torch.float64)
    log_variance = 2 * std.log().sum(2)
    constant = log_variance + mixtures.num_dims * math.log(2 * math.pi)
    distance = torch.empty((len(images), samples, *mixtures.mask.shape))
    with evaluating(model):
        for start in range(0, len(images), batch_size):
            x = images[start : start + batch_size]
            for draw in range(samples):
                scores = model.score(x, seeds=draw_seeds(seed, start, len(x), draw))
                table = scores.prototype_log_likelihood.to("cpu", torch.float64)
                q = -2 * table - constant
                distance[start : start + len(x), draw] = q - q.amin((1, 2), keepdim=True)
    log_weights = mixtures.log_weights.to("cpu", torch.float64)
    offset = log_weights - 0.5 * log_variance
    return QuadraticTerms(distance, offset, mixtures.log_prior.to("cpu", torch.float64))


def calibrate(
    model: ProtoFlow,
    split: Split,
    *,
    samples: int = DEFAULT_SAMPLES,
    seed: int = 0,
    batch_size: int = 256,
) -> Calibration:
    """Fit both temperatures on held-out images, and rank them with the model as it was trained.

    Logits: log p(y|x) = log softmax(l/τ) (Guo et al. 2017). Variances: every σ² times T where
    classes are compared (FlowGMM, Izmailov et al. 2020). Each minimises the negative log-likelihood
    of the labels; which is best is decided by five-fold cross-validation, "none" included, so a
    model that needs no calibration is left alone. The fit starts from the trained model:
    temperatures that it has already change nothing, and a second call gives the same result.

    The fit reckons with one wrong label that has not been seen: 1/(N + 2) of every image's weight
    goes to a label drawn evenly (Laplace's rule). Without errors the loss alone would ask for
    infinite certainty.

    Args:
        model: The model; not changed, see `apply`.
        split: Held-out images; unlabelled ones are left out.
        samples: Draws of the noise per image.
        seed: From which the draws and the folds follow.
        batch_size: Images per pass.
    """
    known = (split.labels >= 0).nonzero().flatten()
    if len(known) < MIN_IMAGES:
        raise ValueError(
            f"calibration needs at least {MIN_IMAGES} labelled held-out images, got {len(known)}: "
            "train with a larger data.validation_fraction"
        )
    if samples < 1 or batch_size < 1:
        raise ValueError(
            f"samples and batch_size must be ≥ 1, got samples={samples}, batch_size={batch_size}"
        )
    if int(split.labels.max()) >= model.config.num_classes:
        raise ValueError(
            f"labels must be below {model.config.num_classes}, the model's number of classes, got "
            f"{int(split.labels.max())}"
        )
    labels = split.labels[known].cpu()
    terms = quadratic_terms(
        model, split.images[known], samples=samples, seed=seed, batch_size=batch_size
    )
    if not bool(terms.logits().isfinite().all()):
        raise ValueError("the model gives NaN or infinite densities: see `protoflows doctor`")
    folds = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed)) % _FOLDS
    found = [_candidate(method, terms, labels, folds) for method in _METHODS]
    ranked = tuple(
        sorted(found, key=lambda c: c.nll.value)
    )  # stable: a tie goes to the simpler one
    best = ranked[0]
    proba = _log_proba(best.method, terms, best.temperature).exp()
    return Calibration(ranked, labels, proba, samples)


def calibration_table(calibration: Calibration) -> str:
    """The candidates side by side, the trained model first."""
    figures = ("nll", "ece", "accuracy")
    header = [f"{'temperature of':<15}", f"{'value':>9}", *(f"{name:>19}" for name in figures)]
    lines = ["  ".join(header)]
    for method in _METHODS:
        candidate = calibration.of(method)
        cells = []
        for name in figures:
            value, stderr = getattr(candidate, name)
            cells.append(f"{f'{value:.5f} ± {stderr:.5f}':>19}")
        mark = "  <- best" if candidate is calibration.best else ""
        lines.append("  ".join([f"{method:<15}", f"{candidate.temperature:>9.4g}", *cells]) + mark)
    return "\n".join(lines)


def apply(model: ProtoFlow, candidate: Candidate) -> None:
    """Set the model's temperatures; figures of it that hold no longer are dropped."""
    model.config = replace(
        model.config,
        logit_temperature=candidate.temperature if candidate.method == "logits" else 1.0,
        variance_temperature=candidate.temperature if candidate.method == "variances" else 1.0,
    )
    if model.extras is not None:
        kept = {k: v for k, v in model.extras.metrics.items() if k.startswith(_LIKELIHOODS)}
        model.extras = replace(model.extras, metrics=kept)


def _log_proba(method: Method, terms: QuadraticTerms, temperature: float) -> Tensor:
    """log p(y|x), (N, C)."""
    if method == "variances":
        return terms.logits(temperature).log_softmax(1)
    return (terms.logits() / temperature).log_softmax(1)


def _candidate(method: Method, terms: QuadraticTerms, labels: Tensor, folds: Tensor) -> Candidate:
    trained = terms.logits()

    def evaluate(index: Tensor, temperature: float) -> Tensor:
        if method == "variances":
            return terms._replace(distance=terms.distance[index]).logits(temperature).log_softmax(1)
        return (trained[index] / temperature).log_softmax(1)

    def losses_of(index: Tensor, temperature: float) -> Tensor:
        return _losses(evaluate(index, temperature), labels[index], 1 / (len(labels) + 2))

    everything = torch.arange(len(labels))
    log_proba = torch.empty_like(trained)
    temperature = 1.0
    if method == "none":
        log_proba = evaluate(everything, 1.0)
    else:
        grid = np.geomspace(*_RANGE, _GRID)
        # Every image's loss on the grid, once: a fold's coarse minimum is then a mean of rows.
        losses = torch.stack([losses_of(everything, t) for t in grid.tolist()])
        for fold in range(_FOLDS):
            out, rest = (folds == fold).nonzero().flatten(), (folds != fold).nonzero().flatten()
            fitted = _minimise(losses_of, losses[:, rest].mean(1), grid, rest)
            log_proba[out] = evaluate(out, fitted)
        temperature = _minimise(losses_of, losses.mean(1), grid, everything)
    return Candidate(
        method,
        temperature,
        log_proba,
        nll=nll(log_proba, labels),
        ece=calibration_error(log_proba.exp(), labels).ece,
        accuracy=accuracy(log_proba, labels),
    )


def _minimise(
    losses_of: Callable[[Tensor, float], Tensor], coarse: Tensor, grid: np.ndarray, index: Tensor
) -> float:
    """The temperature of the least loss: on the grid, then between the neighbours of its minimum.

    The loss is convex in 1/τ for the logits; for the variances nothing is known of it.
    """
    from scipy.optimize import minimize_scalar

    at = int(coarse.argmin())
    ends = float(grid[max(at - 1, 0)]), float(grid[min(at + 1, len(grid) - 1)])
    result = minimize_scalar(
        lambda log_t: float(losses_of(index, math.exp(log_t)).mean()),
        bounds=(math.log(ends[0]), math.log(ends[1])),
        method="bounded",
        options={"xatol": 1e-3},
    )
    return math.exp(result.x) if result.fun <= float(coarse[at]) else float(grid[at])


def _losses(log_proba: Tensor, labels: Tensor, share: float) -> Tensor:
    """−log p(label|x) with a share of the label spread over all classes, (N,)."""
    own = log_proba.gather(1, labels[:, None])[:, 0]
    return -(1 - share) * own - share * log_proba.mean(1)
