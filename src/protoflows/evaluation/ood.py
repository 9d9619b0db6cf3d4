"""Out-of-distribution detection: can the model's densities tell its own images from others?

Likelihoods mislead in a known way: smooth or simple images are likely under most flows, whatever
they show, because few bits describe them (a flow trained on CIFAR-10 finds SVHN likelier than
CIFAR-10's own test images; Nalisnick et al. 2019). AUROCs far *below* one half for log p(x) are the
sign of it. The typicality score, which distrusts images that are too likely as well, is the answer
to that, and no answer to images that are exactly as likely as the model's own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from protoflows.data.images import set_channels, set_size
from protoflows.evaluation.predict import DEFAULT_SAMPLES, Predictions, predict_images
from protoflows.evaluation.predict_files import requantize
from protoflows.model import ProtoFlow

SCORES = ("log_prob", "typicality", "prototype")
_BOOTSTRAPS = 200
_RECALL = 0.95


class OodResult(NamedTuple):
    """How well each score separates a model's own images from others.

    Attributes:
        metrics: Flat: "{score}_{figure}" and "…_stderr", with the scores of `SCORES` and the
            figures of `ood_metrics`; "in_images" and "out_images".
        in_scores: The scores of the model's own images, by name, float64 (N,).
        out_scores: The scores of the others, (M,).
    """

    metrics: dict[str, float]
    in_scores: dict[str, Tensor]
    out_scores: dict[str, Tensor]


def ood_metrics(in_scores: Tensor, out_scores: Tensor, *, seed: int = 0) -> dict[str, float]:
    """AUROC, AUPR both ways, and FPR95 of a score that is higher for the model's own images.

    `auroc`: a model's own image scores higher than another one, ties counting half. `aupr_in`:
    average precision in finding its own images, `aupr_out` in finding the others; both depend on
    how many there are of each. `fpr95`: share of the others that pass the threshold which at least
    95 % of its own images pass. Standard errors are bootstrapped, each set resampled by itself.

    Args:
        in_scores: (N,), finite.
        out_scores: (M,), finite.
        seed: Of the bootstrap.

    >>> metrics = ood_metrics(torch.tensor([2.0, 3.0]), torch.tensor([0.0, 1.0]))
    >>> metrics["auroc"], metrics["aupr_in"], metrics["fpr95"]
    (1.0, 1.0, 0.0)
    """
    from sklearn.metrics import average_precision_score, roc_auc_score

    own, other = _checked("in_scores", in_scores), _checked("out_scores", out_scores)
    score = np.concatenate([own, other])
    is_own = np.concatenate([np.ones(len(own), bool), np.zeros(len(other), bool)])
    metrics = {
        "auroc": float(roc_auc_score(is_own, score)),
        "aupr_in": float(average_precision_score(is_own, score)),
        "aupr_out": float(average_precision_score(~is_own, -score)),
        "fpr95": _fpr(own, other),
    }
    rng = np.random.default_rng(seed)
    counting = _Counting(own, other)
    draws = [
        counting.figures(
            rng.multinomial(len(own), np.full(len(own), 1 / len(own))),
            rng.multinomial(len(other), np.full(len(other), 1 / len(other))),
        )
        for _ in range(_BOOTSTRAPS)
    ]
    for i, name in enumerate(metrics.copy()):
        metrics[f"{name}_stderr"] = float(np.std([draw[i] for draw in draws], ddof=1))
    return metrics


def run_ood(
    model: ProtoFlow,
    in_images: Tensor,
    out_images: Tensor,
    *,
    samples: int = DEFAULT_SAMPLES,
    seed: int = 0,
    batch_size: int = 256,
    out_levels: int = 256,
) -> OodResult:
    """Score a model's own test images and those of another data set, and compare.

    Scores, all in nats and higher for images like the model's own:
    - `log_prob`: log p(x), importance-weighted bound.
    - `typicality`: −|log p(x) − median of log p over the training images| (after Nalisnick et al.
      2019, for one image). By mean bounds, as that median is one. Where the model was saved without
      quantiles, the median of `in_images` takes its place.
    - `prototype`: log p(x|c, k) of the winning prototype.

    Args:
        model: The model.
        in_images: uint8 images like its training images, (N, C, H, W).
        out_images: uint8 images of any size and number of channels; brought to the model's, see
            `fit_images`.
        samples: Draws of the noise per image.
        seed: From which all draws follow.
        batch_size: Images per pass.
        out_levels: Number of levels of `out_images`.
    """
    if len(in_images) == 0 or len(out_images) == 0:
        raise ValueError(
            f"in_images and out_images must both hold images, got {len(in_images)} and "
            f"{len(out_images)}"
        )
    own = predict_images(model, in_images, samples=samples, seed=seed, batch_size=batch_size)
    # The seed of the others is another one: the same noise would make a difference look surer.
    fitted = fit_images(model, out_images, out_levels)
    other = predict_images(model, fitted, samples=samples, seed=seed + 1, batch_size=batch_size)
    extras = model.extras
    if extras is not None and extras.log_prob_quantiles is not None:
        median = extras.log_prob_quantiles[len(extras.log_prob_quantiles) // 2]
    else:
        median = own.log_prob_mean.median()
    in_scores, out_scores = _scores(own, median), _scores(other, median)
    metrics: dict[str, float] = {"in_images": len(in_images), "out_images": len(out_images)}
    for name in SCORES:
        found = ood_metrics(in_scores[name], out_scores[name], seed=seed)
        metrics |= {f"{name}_{figure}": value for figure, value in found.items()}
    return OodResult(metrics, in_scores, out_scores)


def fit_images(model: ProtoFlow, images: Tensor, levels: int = 256) -> Tensor:
    """Bring uint8 images of any size, channels and levels to what the model takes.

    As the data sets do it: grey images are repeated or coloured ones made grey, the shortest side
    is resized and the centre cropped; levels are stretched.
    """
    if images.dtype != torch.uint8 or images.ndim != 4:
        raise ValueError(
            f"images must be uint8 (N, C, H, W), got {images.dtype} {tuple(images.shape)}"
        )
    config = model.config.flow
    channels, height, width = config.image_shape
    if tuple(images.shape[1:]) != (channels, height, width):
        if height != width:
            raise ValueError(
                f"images of another shape, {tuple(images.shape[1:])}, can be fitted to square ones "
                f"only, and this model takes {channels} x {height} x {width}"
            )
        images = set_size(set_channels(images, channels), height, levels)
    return requantize(images, levels, config.levels)


def ood_table(metrics: Mapping[str, float]) -> str:
    """The figures of `run_ood`, a line per score."""
    figures = ("auroc", "aupr_in", "aupr_out", "fpr95")
    lines = [" ".join([f"{'score':<12}", *(f"{figure:>17}" for figure in figures)])]
    for name in SCORES:
        cells = [
            f"{metrics[f'{name}_{f}']:>8.4f} ± {metrics[f'{name}_{f}_stderr']:.4f}" for f in figures
        ]
        lines.append(" ".join([f"{name:<12}", *(f"{cell:>17}" for cell in cells)]))
    return "\n".join(lines)


def _scores(found: Predictions, median: Tensor) -> dict[str, Tensor]:
    return {
        "log_prob": found.log_prob.double(),
        "typicality": -(found.log_prob_mean.double() - median).abs(),
        "prototype": found.prototype_log_prob.double(),
    }


def _checked(name: str, scores: Tensor) -> np.ndarray:
    if scores.ndim != 1 or len(scores) == 0 or not bool(scores.isfinite().all()):
        raise ValueError(
            f"{name} must be a list of at least one finite number, got shape "
            f"{tuple(scores.shape)} with {int((~scores.isfinite()).sum())} not finite"
        )
    values: np.ndarray = scores.detach().to("cpu", torch.float64).numpy()
    return values


def _fpr(own: np.ndarray, other: np.ndarray) -> float:
    """Share of the others at or above the highest threshold that 95 % of the own reach."""
    needed = int(np.ceil(_RECALL * len(own)))
    threshold = np.sort(own)[::-1][needed - 1]
    return float((other >= threshold).mean())


class _Counting:
    """The figures for images that count several times or not at all: what a bootstrap asks for.

    Scores are sorted once; equal ones form a group, and every figure is a sum over groups.
    """

    def __init__(self, own: np.ndarray, other: np.ndarray) -> None:
        values, place = np.unique(-np.concatenate([own, other]), return_inverse=True)
        self.own, self.other, self.groups = place[: len(own)], place[len(own) :], len(values)

    def figures(self, own: np.ndarray, other: np.ndarray) -> tuple[float, float, float, float]:
        """AUROC, AUPR (in), AUPR (out), FPR95, with each image counted so many times."""
        inside = np.bincount(self.own, own, self.groups)  # by falling score
        outside = np.bincount(self.other, other, self.groups)
        passed, wrong = inside.cumsum(), outside.cumsum()
        auroc = (outside * (passed - inside / 2)).sum() / (passed[-1] * wrong[-1])
        at = np.searchsorted(passed, np.ceil(_RECALL * passed[-1]))
        fpr = wrong[at] / wrong[-1]
        aupr_in = _average_precision(inside, outside)
        return auroc, aupr_in, _average_precision(outside[::-1], inside[::-1]), fpr


def _average_precision(wanted: np.ndarray, others: np.ndarray) -> float:
    """Σ (recall gained) · precision over groups from the most likely on."""
    found = wanted.cumsum()
    all_found = found + others.cumsum()
    precision = np.divide(found, all_found, out=np.zeros_like(found), where=all_found > 0)
    return float((wanted * precision).sum() / found[-1])
