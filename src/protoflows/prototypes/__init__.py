"""Class-conditional Gaussian mixtures over the latent, whose components are the prototypes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from protoflows._lazy import lazy_names

if TYPE_CHECKING:
    from protoflows.prototypes.config import PrototypeConfig
    from protoflows.prototypes.densities import gaussian_log_prob
    from protoflows.prototypes.em import (
        EMHistory,
        EMStatistics,
        apply_statistics,
        em_statistics,
        em_step,
        fit_em,
    )
    from protoflows.prototypes.hellinger import (
        diversity_loss,
        modified_hellinger,
        pairwise_modified_hellinger,
    )
    from protoflows.prototypes.initialize import initialize_mixtures
    from protoflows.prototypes.mixture import ClassMixtures, MixtureDropout
    from protoflows.prototypes.truncated import sample_truncated_normal

__all__ = [
    "ClassMixtures",
    "EMHistory",
    "EMStatistics",
    "MixtureDropout",
    "PrototypeConfig",
    "apply_statistics",
    "diversity_loss",
    "em_statistics",
    "em_step",
    "fit_em",
    "gaussian_log_prob",
    "initialize_mixtures",
    "modified_hellinger",
    "pairwise_modified_hellinger",
    "sample_truncated_normal",
]

__getattr__ = lazy_names(
    __name__,
    {
        "config": ["PrototypeConfig"],
        "densities": ["gaussian_log_prob"],
        "em": [
            "EMHistory",
            "EMStatistics",
            "apply_statistics",
            "em_statistics",
            "em_step",
            "fit_em",
        ],
        "hellinger": ["diversity_loss", "modified_hellinger", "pairwise_modified_hellinger"],
        "initialize": ["initialize_mixtures"],
        "mixture": ["ClassMixtures", "MixtureDropout"],
        "truncated": ["sample_truncated_normal"],
    },
)
