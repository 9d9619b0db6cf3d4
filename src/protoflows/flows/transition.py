"""Transition between blocks: squeeze, then half of the channels leaves the flow."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from protoflows.flows.noise import Noise, standard_normal_log_prob
from protoflows.flows.reshape import channels_to_space, halves, space_to_channels


class TransitionOutput(NamedTuple):
    """The half that goes on, the half that leaves, and log N(0, I) of the latter."""

    z: Tensor
    factored: Tensor
    log_prob: Tensor


class Transition(nn.Module):
    """Squeeze 2x2, keep the first half of the channels, put the second out.

    The second is scored under N(0, I). Putting out, not throwing away: with the second half the
    layer is a bijection, without it nothing upstream can be undone exactly.
    """

    def forward(self, x: Tensor) -> TransitionOutput:
        """Split x (N, C, H, W) into two halves of 4C channels at half the size."""
        z, factored = halves(space_to_channels(x))
        return TransitionOutput(z, factored, standard_normal_log_prob(factored))

    def inverse(self, z: Tensor, factored: Tensor) -> Tensor:
        """Join both halves and unsqueeze."""
        return channels_to_space(torch.cat([z, factored], 1))

    def draw(self, z: Tensor, noise: Noise) -> Tensor:
        """Draw a second half for z from N(0, T²I).

        Of 4C channels, both halves have the same size.
        """
        return noise.normal(tuple(z.shape[1:]), like=z)
