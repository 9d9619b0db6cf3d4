"""Fewer prototypes: which ones go, what it costs, and a figure of the weights."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from torch import Tensor

from protoflows.data import Split
from protoflows.evaluation.accuracy import accuracy
from protoflows.evaluation.bits import bits
from protoflows.evaluation.calibration_error import calibration_error
from protoflows.evaluation.estimate import Estimate
from protoflows.evaluation.nll import nll
from protoflows.model import ProtoFlow, evaluating, image_seeds
from protoflows.prototypes import ClassMixtures

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_OTSU_BINS = 256
_NUM_BINS = 40
# Blue for what stays, orange for what goes: told apart with every kind of colour vision.
_KEPT, _PRUNED = "#0072B2", "#D55E00"


class Pruning(NamedTuple):
    """Which prototypes stay.

    Attributes:
        mask: True where one stays, bool (C, K).
        weights: Mixture weights before, float64 (C, K); 0 where a prototype was gone already.
        thresholds: A prototype goes if its weight is not above this, (1,) for all classes together
            or (C,); NaN where a class has nothing to divide, empty where a share was asked for.
        spared: Prototypes (class, index) below their threshold, kept as the last of their class.
        asked: Share that was asked for; None with thresholds.
    """

    mask: Tensor
    weights: Tensor
    thresholds: Tensor
    spared: tuple[tuple[int, int], ...] = ()
    asked: float | None = None

    @property
    def before(self) -> int:
        """Living prototypes before."""
        return int((self.weights > 0).sum())

    @property
    def after(self) -> int:
        """Living prototypes after."""
        return int(self.mask.sum())

    @property
    def share(self) -> float:
        """Share of the living prototypes that goes."""
        return 1 - self.after / self.before


def choose_prototypes(
    mixtures: ClassMixtures, *, per_class: bool = False, fraction: float | None = None
) -> Pruning:
    """Which prototypes have weights worth keeping (the paper's "Pruning").

    The threshold ε on the mixture weights π_ck (softmaxed over the living prototypes of a class) is
    Otsu's, by scikit-image: of all thresholds it leaves the least variance within the two groups. A
    class never loses its last prototype: where all are below ε, the heaviest stays. Weights that
    are all equal have no threshold, and none goes.

    Args:
        mixtures: The prototypes.
        per_class: One threshold for each class, instead of one for all.
        fraction: Instead of a threshold, the share of the living prototypes to remove, lightest
            first (of every class with `per_class`), rounded down; the last of each class stays, so
            it can be less.
    """
    if fraction is not None and not 0 < fraction < 1:
        raise ValueError(f"fraction must be above 0 and below 1, got {fraction}")
    alive = mixtures.mask.cpu()
    weights = mixtures.weights.detach().to("cpu", torch.float64).masked_fill(~alive, 0)
    # A living prototype may weigh nothing at all: it still counts as one.
    weights = torch.where(alive, weights.clamp_min(torch.finfo(torch.float64).tiny), weights)
    if fraction is not None:
        mask = _without_lightest(weights, alive, fraction, per_class)
        return Pruning(mask, weights, torch.empty(0, dtype=torch.float64), asked=fraction)
    groups = list(alive) if per_class else [alive]
    values = list(weights) if per_class else [weights]
    found = [_otsu(w[a]) for w, a in zip(values, groups, strict=True)]
    thresholds = torch.tensor(found, dtype=torch.float64)
    limit = thresholds.nan_to_num(-math.inf)[:, None]  # (1, 1) or (C, 1)
    mask = alive & (weights > limit)
    bare = (~mask.any(1)).nonzero().flatten()
    heaviest = weights[bare].argmax(1)
    mask[bare, heaviest] = True
    spared = tuple(zip(bare.tolist(), heaviest.tolist(), strict=True))
    return Pruning(mask, weights, thresholds, spared)


def _otsu(weights: Tensor) -> float:
    from skimage.filters import threshold_otsu

    values = weights.numpy()
    if len(values) < 2 or values.max() - values.min() <= 1e-6 * values.max():
        return math.nan  # a single value, or one value many times over
    # What comes back is the middle of the histogram's bin in which the lower group ends. Of few
    # values the last of that group may lie in the bin's upper half: cut at the bin's end.
    half_bin = (values.max() - values.min()) / (2 * _OTSU_BINS)
    lower = values < threshold_otsu(values, nbins=_OTSU_BINS) + half_bin
    return float((values[lower].max() + values[~lower].min()) / 2)


def _without_lightest(weights: Tensor, alive: Tensor, fraction: float, per_class: bool) -> Tensor:
    mask = alive.clone()
    removable = alive.clone()
    removable[torch.arange(len(weights)), weights.argmax(1)] = False
    rows = range(len(weights)) if per_class else (slice(None),)
    for row in rows:
        chosen = removable.clone()
        if per_class:
            chosen[:] = False
            chosen[row] = removable[row]
        places = chosen.nonzero()
        count = min(int(fraction * int(alive[row].sum()) + 1e-9), len(places))
        order = weights[chosen].argsort(stable=True)[:count]
        mask[places[order, 0], places[order, 1]] = False
    return mask


# ---- what it costs ---------------------------------------------------------------------------

_FIGURES = ("accuracy", "bits_per_dim", "ece", "mce", "nll")


class _Averages(NamedTuple):
    """What figures are made of, by image.

    Means over draws of the logits as classes are compared and of log p(x|c) as trained, (N, C);
    log p(x) by its mean bound and by its importance-weighted one, (N,).
    """

    logits: Tensor
    log_prob_classes: Tensor
    log_prob_mean: Tensor
    log_prob_importance: Tensor


def measure_pruning(
    before: ProtoFlow,
    after: ProtoFlow,
    split: Split,
    *,
    samples: int,
    seed: int = 0,
    batch_size: int = 256,
) -> tuple[dict[str, float], dict[str, float]]:
    """The figures of the paper's pruning table, and the label's loss, before and after.

    Both come from the same flow passes, one per image and draw: a pruned model has the same flow
    and the same densities of the prototypes that it has left.

    Args:
        before: The model as it was.
        after: `before.keep_prototypes(…)`.
        split: Images to measure on; of unlabelled ones only the bits count.
        samples: Draws of the noise per image.
        seed: From which all draws follow.
        batch_size: Images per pass.
    """
    if len(split) == 0:
        raise ValueError("split must hold at least one image, got none")
    if samples < 1 or batch_size < 1:
        raise ValueError(
            f"samples and batch_size must be ≥ 1, got samples={samples}, batch_size={batch_size}"
        )
    models = (before, after)
    parts: list[list[_Averages]] = []
    with evaluating(before):
        for start in range(0, len(split), batch_size):
            x = split.images[start : start + batch_size]
            parts.append(_score_both(models, x, start, samples, seed))
    first, second = (
        _figures(
            model,
            _Averages(*(torch.cat(values) for values in zip(*found, strict=True))),
            split.labels.cpu(),
            seed,
        )
        for model, found in zip(models, zip(*parts, strict=True), strict=True)
    )
    about = {"images": len(split), "mc_samples": samples}
    return {**first, **about}, {**second, **about}


@torch.no_grad()
def _score_both(
    models: tuple[ProtoFlow, ProtoFlow], x: Tensor, start: int, samples: int, seed: int
) -> list[_Averages]:
    zero, low = torch.zeros(()), torch.full((), -math.inf)
    sums = [[zero, zero, zero, low] for _ in models]
    for draw in range(samples):
        scores = models[0].score(x, seeds=image_seeds(start, len(x), draw, seed))
        table, log_det = scores.prototype_log_likelihood, scores.log_det[:, None]
        for model, total in zip(models, sums, strict=True):
            # Prototypes that a model does not have weigh nothing when it mixes the table.
            log_prob = (log_det + model.mixtures.mix(table)).cpu()
            marginal = (log_prob + model.mixtures.log_prior.cpu()).logsumexp(1)
            total[0] = total[0] + (log_det + model.tempered_log_likelihood(table)).cpu()
            total[1] = total[1] + log_prob
            total[2] = total[2] + marginal
            total[3] = torch.logaddexp(total[3], marginal)
    return [
        _Averages(t[0] / samples, t[1] / samples, t[2] / samples, t[3] - math.log(samples))
        for t in sums
    ]


def _figures(model: ProtoFlow, found: _Averages, labels: Tensor, seed: int) -> dict[str, float]:
    dims = model.flow.config.dims
    counted = bits(found.log_prob_importance, found.log_prob_mean, found.log_prob_classes, dims)
    estimates: dict[str, Estimate] = {
        "bits_per_dim": counted.marginal,
        "bits_per_dim_mean_bound": counted.mean_bound,
        "bits_per_dim_best_class": counted.best_class,
        "bits_per_image": counted.per_image,
    }
    known = labels >= 0
    if bool(known.any()):
        prior = model.mixtures.log_prior.to(found.logits)
        logits = (found.logits[known] + prior) / model.config.logit_temperature
        log_proba, labels = logits.log_softmax(1), labels[known]
        errors = calibration_error(log_proba.exp(), labels, seed=seed)
        estimates |= {
            "accuracy": accuracy(log_proba, labels),
            "ece": errors.ece,
            "mce": errors.mce,
            "nll": nll(log_proba, labels),
        }
    metrics: dict[str, float] = {}
    for name, (value, stderr) in estimates.items():
        metrics |= {name: value, f"{name}_stderr": stderr}
    return {**metrics, "dims": dims}


def pruning_table(share: float, before: Mapping[str, float], after: Mapping[str, float]) -> str:
    """Before and after, as in the paper's pruning table (`tab:pruneResults`)."""
    names = [name for name in _FIGURES if name in before]
    lines = [" ".join([f"{'% pruned':>9}", *(f"{name:>19}" for name in names)])]
    for part, metrics in ((0.0, before), (share, after)):
        cells = []
        for name in names:
            factor, digits = (100, 2) if name == "accuracy" else (1, 4)
            value, error = factor * metrics[name], factor * metrics[f"{name}_stderr"]
            cells.append(f"{value:>9.{digits}f} ± {error:<7.{digits}f}")
        lines.append(" ".join([f"{100 * part:>9.1f}", *(f"{cell:>19}" for cell in cells)]))
    return "\n".join(lines)


def pruning_figure(pruning: Pruning) -> Figure:
    """Histogram of the weights with what goes and the threshold (`fig:cifar100-otsu-pruning`)."""
    from matplotlib.figure import Figure

    living = pruning.weights > 0
    weights = pruning.weights[living].numpy()
    kept = pruning.mask[living].numpy()
    figure = Figure(figsize=(5.5, 3.4), layout="constrained")
    axes = figure.subplots()
    edges = np.linspace(0, max(weights.max() * 1.02, 1e-6), _NUM_BINS + 1)
    axes.hist(
        [weights[~kept], weights[kept]],
        bins=edges,  # type: ignore[arg-type]
        stacked=True,
        color=[_PRUNED, _KEPT],
        label=[f"pruned ({int((~kept).sum())})", f"kept ({int(kept.sum())})"],
    )
    thresholds = _finite(pruning.thresholds.tolist())
    for i, threshold in enumerate(thresholds):
        label = "threshold" if len(thresholds) == 1 else "threshold of a class"
        axes.axvline(
            threshold, color="black", linewidth=1 if len(thresholds) == 1 else 0.5,
            linestyle="--", label=label if i == 0 else None,
        )  # fmt: skip
    axes.set_xlabel(r"mixture weight $\pi_{c,k}$")
    axes.set_ylabel("prototypes")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
    return figure


def _finite(values: Sequence[float]) -> list[float]:
    return [value for value in values if math.isfinite(value)]
