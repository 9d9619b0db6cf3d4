"""Fewer prototypes: which ones go, what it costs, and a figure of the weights."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from protoflows.data import Split
from protoflows.evaluation.batch import evaluate_together
from protoflows.evaluation.evaluate import Metrics, summarise
from protoflows.evaluation.passes import Passes
from protoflows.evaluation.plan import BatchPlan
from protoflows.model import ProtoFlow, evaluating
from protoflows.prototypes import ClassMixtures
from protoflows.prototypes.otsu import otsu_threshold

if TYPE_CHECKING:
    from matplotlib.figure import Figure

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
    found = [otsu_threshold(w[a]) for w, a in zip(values, groups, strict=True)]
    thresholds = torch.tensor(found, dtype=torch.float64)
    limit = thresholds.nan_to_num(-math.inf)[:, None]  # (1, 1) or (C, 1)
    mask = alive & (weights > limit)
    bare = (~mask.any(1)).nonzero().flatten()
    heaviest = weights[bare].argmax(1)
    mask[bare, heaviest] = True
    spared = tuple(zip(bare.tolist(), heaviest.tolist(), strict=True))
    return Pruning(mask, weights, thresholds, spared)


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

_FIGURES = ("accuracy", "bits_per_dim", "ece", "mce", "nll", "brier", "s_rob", "s_div")


def measure_pruning(
    models: Sequence[ProtoFlow],
    split: Split,
    *,
    samples: int,
    seed: int = 0,
    batch_size: int = 256,
    progress: Callable[[int, int], None] | None = None,
) -> list[Metrics]:
    """All figures of a model and of what prunings have left of it.

    They come from the same flow passes: a pruned model has the same flow, and the same densities
    of the prototypes that it has left. Each equals what `evaluate` finds.

    Args:
        models: The model as it was, then its `keep_prototypes(…)`.
        split: Images to measure on; of unlabelled ones only the densities count.
        samples: Draws of the noise per image.
        seed: From which all draws follow.
        batch_size: Images per pass.
        progress: Called with the images done and all images, after every batch.
    """
    if len(split) == 0:
        raise ValueError("split must hold at least one image, got none")
    if samples < 1 or batch_size < 1:
        raise ValueError(
            f"samples and batch_size must be ≥ 1, got samples={samples}, batch_size={batch_size}"
        )
    plan = BatchPlan(samples, samples, rows=batch_size, seed=seed, robustness=True, distances=True)
    batches: list[list[dict[str, Tensor]]] = []
    with evaluating(models[0]), torch.no_grad():
        for start in range(0, len(split), batch_size):
            x = split.images[start : start + batch_size]
            batches.append(evaluate_together(models, x, plan, start))
            if progress is not None:
                progress(min(len(split), start + batch_size), len(split))
    found = []
    for model, own in zip(models, zip(*batches, strict=True), strict=True):
        fields: dict[str, Any] = {name: torch.cat([rows[name] for rows in own]) for name in own[0]}
        passes = Passes(**fields, samples=samples, plain_samples=samples)
        found.append(summarise(model, passes, split.labels, seed=seed).metrics)
    return found


def pruning_table(parts: Sequence[tuple[float, Mapping[str, Any]]]) -> str:
    """Shares that are gone and figures, as in the paper's pruning table (`tab:pruneResults`).

    Args:
        parts: (share pruned, metrics), the model as it was first.
    """
    names = [name for name in _FIGURES if all(name in metrics for _, metrics in parts)]
    lines = [" ".join([f"{'% pruned':>9}", *(f"{name:>16}" for name in names)])]
    for share, metrics in parts:
        cells = []
        for name in names:
            factor, digits = (100, 2) if name == "accuracy" else (1, 4)
            value, error = factor * metrics[name], factor * metrics[f"{name}_stderr"]
            cells.append(f"{value:.{digits}f} ± {error:.{digits}f}")
        lines.append(" ".join([f"{100 * share:>9.1f}", *(f"{cell:>16}" for cell in cells)]))
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
