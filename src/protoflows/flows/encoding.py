"""What encoding an image gives: all that decoding needs."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Encoding:
    """A batch of images as the flow sees it.

    Attributes:
        latent: z, (N, C, h, w): what the prototypes are defined over.
        log_det: (N,): every term of log p(x|c) but log p(z|c), for the noise actually drawn.
        factored: What the transitions put out, first to last.
        dequantization: The noise u in [0, 1] added to the (padded) image before scaling.
    """

    latent: Tensor
    log_det: Tensor
    factored: tuple[Tensor, ...]
    dequantization: Tensor

    def __len__(self) -> int:
        """Return the number of images."""
        return len(self.latent)

    def __getitem__(self, index: int | slice | Tensor | list[int]) -> Encoding:
        """Select images; a single index keeps a batch of one."""
        if isinstance(index, int):
            index = slice(index, index + 1) if index != -1 else slice(-1, None)
        return Encoding(
            self.latent[index],
            self.log_det[index],
            tuple(f[index] for f in self.factored),
            self.dequantization[index],
        )

    def replace_latent(self, latent: Tensor) -> Encoding:
        """Return this encoding with another z, everything else kept."""
        if latent.shape != self.latent.shape:
            raise ValueError(
                f"latent must have shape {tuple(self.latent.shape)}, got {tuple(latent.shape)}"
            )
        return Encoding(latent, self.log_det, self.factored, self.dequantization)

    def detach(self) -> Encoding:
        """Cut the encoding from the graph that made it."""
        return Encoding(
            self.latent.detach(),
            self.log_det.detach(),
            tuple(f.detach() for f in self.factored),
            self.dequantization.detach(),
        )

    def to(self, device: torch.device | str) -> Encoding:
        """Move all tensors to a device."""
        return Encoding(
            self.latent.to(device),
            self.log_det.to(device),
            tuple(f.to(device) for f in self.factored),
            self.dequantization.to(device),
        )

    @staticmethod
    def cat(parts: list[Encoding]) -> Encoding:
        """Join encodings along the batch."""
        return Encoding(
            torch.cat([p.latent for p in parts]),
            torch.cat([p.log_det for p in parts]),
            tuple(torch.cat(fs) for fs in zip(*(p.factored for p in parts), strict=True)),
            torch.cat([p.dequantization for p in parts]),
        )
