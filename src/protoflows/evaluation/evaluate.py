"""All figures of a model on a split, from one set of passes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from protoflows.data import Augment, Split
from protoflows.evaluation.accuracy import accuracy, hits
from protoflows.evaluation.bits import bits, bits_per_image
from protoflows.evaluation.brier import brier
from protoflows.evaluation.calibration_error import Reliability, calibration_error, reliability
from protoflows.evaluation.confusion import confusion
from protoflows.evaluation.curve import CurvePoint, curve_points
from protoflows.evaluation.distances import covariance_norms, quartiles
from protoflows.evaluation.diversity import diversity
from protoflows.evaluation.estimate import Estimate, wilson_interval
from protoflows.evaluation.nll import nll
from protoflows.evaluation.passes import Passes, run_passes
from protoflows.evaluation.per_class import ClassFigures, class_figures
from protoflows.evaluation.risk_coverage import RiskCoverage, log_odds, risk_coverage
from protoflows.evaluation.robustness import robustness
from protoflows.evaluation.settling import looks
from protoflows.evaluation.store import OnMismatch
from protoflows.model import ProtoFlow

Metrics = dict[str, float | int]


@dataclass(frozen=True, eq=False)
class Evaluation:
    """A model's figures on a split.

    Attributes:
        metrics: Every figure by name, each estimate followed by its `…_stderr`.
        passes: What they are made from.
        reliability: Confidence against accuracy; None without labels.
        risk: Risk against coverage; None without labels.
        confusion: Labels against predicted classes, (C, C); None without labels.
        classes: Figures of every class; empty without labels.
        curve: Figures against the number of draws; empty where images stopped early.
        covariance_norms: Norms of the living prototypes' covariances.
    """

    metrics: Metrics
    passes: Passes
    reliability: Reliability | None
    risk: RiskCoverage | None
    confusion: Tensor | None
    classes: tuple[ClassFigures, ...]
    curve: tuple[CurvePoint, ...]
    covariance_norms: Tensor

    @property
    def ece(self) -> Estimate | None:
        """Expected calibration error, where there are labels."""
        if "ece" not in self.metrics:
            return None
        return Estimate(self.metrics["ece"], self.metrics["ece_stderr"])


def evaluate(
    model: ProtoFlow,
    split: Split,
    *,
    samples: int = 25,
    tta: int = 0,
    augment: Augment | None = None,
    adaptive: float | None = None,
    verify: bool = False,
    batch_size: int = 256,
    seed: int = 0,
    store: Path | None = None,
    mismatch: OnMismatch = "refuse",
    progress: Callable[[int, int], None] | None = None,
) -> Evaluation:
    """Evaluate a model, one flow pass per image, draw and view; arguments as in `run_passes`.

    What decides the class is the mean of logits over draws and, with `tta`, over augmented views.
    Images labelled -1 count for densities and prototypes alone.
    """
    stops = adaptive is not None and not verify
    collect = ("robustness", "distances") if stops else ("robustness", "distances", "curve")
    passes = run_passes(
        model, split, samples=samples, tta=tta, augment=augment, batch_size=batch_size, seed=seed,
        adaptive=adaptive, verify=verify, collect=collect, store=store, mismatch=mismatch,
        progress=progress,
    )  # fmt: skip
    return summarise(model, passes, split.labels, seed=seed)


def summarise(model: ProtoFlow, passes: Passes, labels: Tensor, *, seed: int = 0) -> Evaluation:
    """All figures that passes allow.

    Args:
        model: The model that made the passes.
        passes: With "robustness" and "distances" collected.
        labels: (N,); -1 for unlabelled images.
        seed: Seed of bootstraps.
    """
    labels = labels.cpu()
    if tuple(labels.shape) != (len(passes),):
        raise ValueError(
            f"labels must hold one label for each of the {len(passes)} images, got "
            f"{tuple(labels.shape)}"
        )
    known = labels >= 0
    y = labels[known]
    log_proba = classify(model, passes.logits)[known]
    found: dict[str, Estimate | float | int] = {}
    shown: Reliability | None = None
    risk: RiskCoverage | None = None
    table: Tensor | None = None
    classes: tuple[ClassFigures, ...] = ()
    if len(y):
        proba = log_proba.exp()
        error = calibration_error(proba, y, seed=seed)
        risk = risk_coverage(log_odds(log_proba), hits(log_proba, y), seed=seed)
        shown, table = reliability(proba, y), confusion(log_proba, y)
        found["accuracy"] = accuracy(log_proba, y)
        found["accuracy_top5"] = accuracy(log_proba, y, k=5)
        found |= {"ece": error.ece, "mce": error.mce}
        found |= {"nll": nll(log_proba, y), "brier": brier(proba, y), "aurc": risk.aurc}
        importance = classify(model, passes.plain_logits_importance)[known]
        found["accuracy_importance"] = accuracy(importance, y)
        if passes.tta:
            plain = classify(model, passes.plain_logits)[known]
            found["accuracy_unaugmented"] = accuracy(plain, y)
        classes = class_figures(model, passes, log_proba, known, y)
    found |= _densities(model, passes)
    found |= _prototypes(model, passes)
    found |= _cost(model, passes)
    points = curve_points(model, passes, labels, seed=seed)
    norms = covariance_norms(model.mixtures)
    return Evaluation(_flat(found), passes, shown, risk, table, classes, points, norms)


def classify(model: ProtoFlow, logits: Tensor) -> Tensor:
    """log p(y|x) on the CPU from logits that `Passes` holds."""
    return model.classify(logits.to(model.mixtures.log_prior.device)).detach().double().cpu()


def _densities(model: ProtoFlow, passes: Passes) -> dict[str, Estimate | float | int]:
    dims = model.flow.config.dims
    three = bits(passes.log_prob_importance, passes.log_prob_mean, passes.log_prob_classes, dims)
    found: dict[str, Estimate | float | int] = {
        "bits_per_dim": three.marginal,
        "bits_per_dim_mean_bound": three.mean_bound,
        "bits_per_dim_best_class": three.best_class,
        "bits_per_image": three.per_image,
        "dims": dims,
        "levels": model.flow.config.levels,
    }
    if passes.tta:
        best = bits_per_image(passes.view_log_prob_classes.amax(1)).scaled(1 / dims)
        found["bits_per_dim_paper_protocol"] = best
    if passes.plain_samples > 1:
        # How much of the mean bound's error is the draws' and not the choice of images.
        variance = passes.log_prob_variance.mean() / (passes.plain_samples * len(passes))
        noise = Estimate(float(variance.sqrt()), 0.0).scaled(bits_scale(dims))
        found["bits_per_dim_mean_bound_mc_error"] = noise.value
    return found


def bits_scale(dims: int) -> float:
    """Bits per dimension of one nat."""
    return bits_per_image(torch.tensor([-1.0])).value / dims


def _prototypes(model: ProtoFlow, passes: Passes) -> dict[str, Estimate | float | int]:
    alive = int(model.mixtures.mask.sum())
    found: dict[str, Estimate | float | int] = {}
    if passes.winner_second is not None and passes.winner_noisy is not None:
        rob = robustness(passes.winner, passes.winner_second, passes.winner_noisy)
        found |= {"s_rob": rob.score, "s_rob_baseline": rob.baseline}
    if alive > 1:
        found["s_div"] = diversity(passes.winner, alive)
    found["prototypes"] = alive
    norms = quartiles(covariance_norms(model.mixtures))
    if passes.distance is not None:
        spread = quartiles(passes.distance)
        found |= {f"distance_{name}": value for name, value in spread._asdict().items()}
    found |= {f"covariance_norm_{name}": value for name, value in norms._asdict().items()}
    return found


def _cost(model: ProtoFlow, passes: Passes) -> dict[str, Estimate | float | int]:
    """Draws and passes; what stopping early saved, against samples x views for the decision."""
    full = len(passes) * passes.samples * max(1, passes.tta)
    found: dict[str, Estimate | float | int] = {
        "mc_samples": passes.samples,
        "mc_samples_density": passes.plain_samples,
        "samples": passes.samples,  # as training's metrics.json calls it
        "tta": passes.tta,
        "images": len(passes),
        "passes": int(passes.passes.sum()),
        "passes_full": full,
    }
    if passes.adaptive is None:
        return found
    found["adaptive"] = passes.adaptive
    taken = found["passes"]
    if passes.adaptive_rounds is not None and passes.adaptive_logits is not None:
        early = looks(passes.samples)
        draws = early[0] if early else passes.samples  # of the image itself, for densities
        noisy = int(passes.winner_noisy is not None)
        extra = noisy + max(0, 1 + noisy - draws) + (draws if passes.tta else 0)
        each = passes.adaptive_rounds * max(1, passes.tta) + extra
        taken = int(each.sum())
        whole = classify(model, passes.logits).argmax(1)
        same = int((classify(model, passes.adaptive_logits).argmax(1) == whole).sum())
        low, high = wilson_interval(same, len(passes))
        found |= {
            "adaptive_agreement": same / len(passes),
            "adaptive_agreement_low": low,
            "adaptive_agreement_high": high,
        }
    assert isinstance(taken, int)
    return found | {"adaptive_passes": taken, "adaptive_speedup": full / taken}


def _flat(found: dict[str, Estimate | float | int]) -> Metrics:
    flat: Metrics = {}
    for name, value in found.items():
        if isinstance(value, Estimate):
            flat[name], flat[f"{name}_stderr"] = value
        else:
            flat[name] = value
    return flat
