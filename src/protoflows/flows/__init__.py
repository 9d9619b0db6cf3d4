"""Invertible flows for images: x → z with log-determinant and a true inverse.

Knows nothing of classes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from protoflows._lazy import lazy_names

if TYPE_CHECKING:
    from protoflows.flows.actnorm import ActNorm
    from protoflows.flows.augment import CrossUnitCoupling
    from protoflows.flows.base import Bijection, ConstantJacobian
    from protoflows.flows.chain import Chain
    from protoflows.flows.config import DenseFlowConfig
    from protoflows.flows.conv1x1 import InvertibleConv
    from protoflows.flows.coupling import AffineCoupling
    from protoflows.flows.denseflow import DenseFlow, DenseFlowBlock
    from protoflows.flows.dequantize import (
        SigmoidOf,
        UniformDequantization,
        VariationalDequantization,
    )
    from protoflows.flows.encoding import Encoding
    from protoflows.flows.logit import Logit
    from protoflows.flows.noise import Noise
    from protoflows.flows.reference import load_reference
    from protoflows.flows.reshape import Squeeze, SwapHalves
    from protoflows.flows.reversible import RoundTripWarning
    from protoflows.flows.transition import Transition

__all__ = [
    "ActNorm",
    "AffineCoupling",
    "Bijection",
    "Chain",
    "ConstantJacobian",
    "CrossUnitCoupling",
    "DenseFlow",
    "DenseFlowBlock",
    "DenseFlowConfig",
    "Encoding",
    "InvertibleConv",
    "Logit",
    "Noise",
    "RoundTripWarning",
    "SigmoidOf",
    "Squeeze",
    "SwapHalves",
    "Transition",
    "UniformDequantization",
    "VariationalDequantization",
    "load_reference",
]

__getattr__ = lazy_names(
    __name__,
    {
        "actnorm": ["ActNorm"],
        "augment": ["CrossUnitCoupling"],
        "base": ["Bijection", "ConstantJacobian"],
        "chain": ["Chain"],
        "config": ["DenseFlowConfig"],
        "conv1x1": ["InvertibleConv"],
        "coupling": ["AffineCoupling"],
        "denseflow": ["DenseFlow", "DenseFlowBlock"],
        "dequantize": ["SigmoidOf", "UniformDequantization", "VariationalDequantization"],
        "encoding": ["Encoding"],
        "logit": ["Logit"],
        "noise": ["Noise"],
        "reference": ["load_reference"],
        "reshape": ["Squeeze", "SwapHalves"],
        "reversible": ["RoundTripWarning"],
        "transition": ["Transition"],
    },
)
