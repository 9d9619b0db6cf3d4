"""What couplings compute: ordinary networks that never need an inverse."""

from protoflows.flows.nets.attention import NystromAttention
from protoflows.flows.nets.coupling_net import ConditionalNet, CouplingNet
from protoflows.flows.nets.dense_block import DenseBlock
from protoflows.flows.nets.norm import BatchNorm, frozen_statistics

__all__ = [
    "BatchNorm",
    "ConditionalNet",
    "CouplingNet",
    "DenseBlock",
    "NystromAttention",
    "frozen_statistics",
]
