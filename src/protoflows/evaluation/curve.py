"""Figures against the number of draws (`fig:monte-carlo-ablation`)."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from protoflows.evaluation.accuracy import accuracy
from protoflows.evaluation.bits import bits_per_image
from protoflows.evaluation.brier import brier
from protoflows.evaluation.calibration_error import calibration_error
from protoflows.evaluation.estimate import Estimate
from protoflows.evaluation.nll import nll
from protoflows.evaluation.passes import Passes
from protoflows.model import ProtoFlow

BOUNDS = ("bits_per_dim_mean_bound", "bits_per_dim", "bits_per_dim_best_class")
"""Names of the columns of `Passes.curve_log_prob`."""


class CurvePoint(NamedTuple):
    """Figures after some draws.

    Attributes:
        samples: Number of draws.
        figures: Estimates by their name in metrics.json.
    """

    samples: int
    figures: dict[str, Estimate]


def curve_points(
    model: ProtoFlow, passes: Passes, labels: Tensor, *, seed: int = 0
) -> tuple[CurvePoint, ...]:
    """Every figure after each of `passes.curve` draws; empty where no curve was collected.

    Args:
        model: The model that made the passes.
        passes: With "curve" collected.
        labels: (N,); -1 for unlabelled images.
        seed: Seed of bootstraps.
    """
    if passes.curve_logits is None or passes.curve_log_prob is None:
        return ()
    known = labels.cpu() >= 0
    y, device = labels.cpu()[known], model.mixtures.log_prior.device
    points = []
    for place, samples in enumerate(passes.curve):
        figures: dict[str, Estimate] = {}
        if len(y):
            logits = passes.curve_logits[:, place].double()
            log_proba = model.classify(logits.to(device)).detach().cpu()[known]
            proba = log_proba.exp()
            error = calibration_error(proba, y, seed=seed)
            figures |= {"accuracy": accuracy(log_proba, y), "ece": error.ece, "mce": error.mce}
            figures |= {"nll": nll(log_proba, y), "brier": brier(proba, y)}
        for column, name in enumerate(BOUNDS):
            whole = bits_per_image(passes.curve_log_prob[:, place, column])
            figures[name] = whole.scaled(1 / model.flow.config.dims)
        points.append(CurvePoint(samples, figures))
    return tuple(points)
