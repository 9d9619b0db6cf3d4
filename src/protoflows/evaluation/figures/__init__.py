"""Pictures of an evaluation: each function draws and returns a Figure."""

from protoflows.evaluation.figures.distances import draw_distances
from protoflows.evaluation.figures.likelihoods import draw_likelihoods
from protoflows.evaluation.figures.mc_curve import draw_mc_curve
from protoflows.evaluation.figures.reliability import draw_reliability
from protoflows.evaluation.figures.risk_coverage import draw_risk_coverage

__all__ = [
    "draw_distances",
    "draw_likelihoods",
    "draw_mc_curve",
    "draw_reliability",
    "draw_risk_coverage",
]
