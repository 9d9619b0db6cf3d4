"""The paper's augmentation (Reproducibility appendix) on a whole batch at once.

Mirror image, edge padding, one or more of rotation, translation and shear, centre crop: together
one affine map per image, read off the image by one bilinear `grid_sample` whose border mode is the
edge padding, made as large as needed. Image by image in Pillow this would cost as much as a model.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from protoflows.data.config import AugmentConfig

# Columns of the table of uniform draws: one row per image, so that an image's fate depends on its
# own row alone, whatever share of a batch a process holds.
_KEEP, _FLIP, _SUBSET, _ROTATE, _TRANSLATE_X, _TRANSLATE_Y, _SHEAR = range(7)
NUM_DRAWS = 7


class Augment:
    """Augments uint8 batches (N, C, H, W) with parameters drawn per image.

    `levels` is the number of grey levels that results are rounded to; `flip` is the data set's
    hint, which `config.flip` overrules.
    """

    def __init__(self, config: AugmentConfig, levels: int = 256, flip: bool = False) -> None:
        """Remember the ranges."""
        if not 2 <= levels <= 256:
            raise ValueError(f"levels must be from 2 to 256, got {levels}")
        self.config = config
        self.levels = levels
        self.flip = flip if config.flip is None else config.flip

    def __repr__(self) -> str:
        """The whole set-up in one line."""
        return f"Augment({self.config}, levels={self.levels}, flip={self.flip})"

    def __call__(self, x: Tensor, generator: torch.Generator) -> Tensor:
        """Augmented copies of the images, same shape and type."""
        return self.apply(x, self.draw(len(x), generator))

    def draw(self, num: int, generator: torch.Generator) -> Tensor:
        """Uniform numbers (num, 7) that decide everything about `num` images."""
        return torch.rand(num, NUM_DRAWS, generator=generator, device=generator.device)

    def apply(self, x: Tensor, draws: Tensor) -> Tensor:
        """Augment every image by its row of `draws`."""
        if x.dtype != torch.uint8 or x.ndim != 4:
            raise ValueError(
                f"x must be a uint8 tensor (N, C, H, W), got {x.dtype} of shape {tuple(x.shape)}"
            )
        if draws.shape != (len(x), NUM_DRAWS):
            raise ValueError(
                f"draws must be of shape {(len(x), NUM_DRAWS)}, got {tuple(draws.shape)}"
            )
        draws = draws.to(x.device)
        moved = (draws[:, _KEEP] >= self.config.share_unaugmented).nonzero().flatten()
        if len(moved) == 0:
            return x.clone()
        warped = self.warp(x[moved], self.matrices(draws[moved]))
        return x.clone().index_copy_(0, moved, warped)

    def matrices(self, draws: Tensor) -> Tensor:
        """Affine maps (N, 2, 3) from output to input pixels, centred, x before y.

        The image goes through flip F, shear S, rotation R, shift t: o = R S F i + t. What
        resampling needs is the way back, i = F S⁻¹ R⁻¹ (o − t); t is a share of the side here.
        """
        config = self.config
        signed = 2 * draws - 1
        # A non-empty subset of the three, all seven equally likely: its bits are 1, 2 and 4.
        subset = (draws[:, _SUBSET] * 7).long().clamp(max=6) + 1
        rotated, shifted, sheared = ((subset & bit) > 0 for bit in (1, 2, 4))
        angle = signed[:, _ROTATE] * math.radians(config.rotate) * rotated
        slant = torch.tan(signed[:, _SHEAR] * math.radians(config.shear) * sheared)
        shift = signed[:, [_TRANSLATE_X, _TRANSLATE_Y]] * config.translate * shifted.unsqueeze(1)
        mirror = torch.where((draws[:, _FLIP] < 0.5) & self.flip, -1.0, 1.0)
        cos, sin = angle.cos(), angle.sin()
        # F S⁻¹ R⁻¹ with S⁻¹ = [[1, -slant], [0, 1]] and R⁻¹ = [[cos, sin], [-sin, cos]].
        linear = torch.stack(
            [mirror * (cos + slant * sin), mirror * (sin - slant * cos), -sin, cos], dim=1
        ).view(-1, 2, 2)
        return torch.cat([linear, shift.unsqueeze(2)], dim=2)

    def warp(self, x: Tensor, matrices: Tensor) -> Tensor:
        """Resample images by their maps, with the edge pixels repeated outside, and round."""
        height, width = x.shape[2:]
        linear, shift = matrices[:, :, :2], matrices[:, :, 2:]
        # grid_sample measures both axes from -1 to 1: divide by half a side, per axis.
        half = torch.tensor([width / 2, height / 2], device=x.device)
        theta = linear * half.view(1, 1, 2) / half.view(1, 2, 1)
        offset = -theta @ (2 * shift)
        grid = F.affine_grid(torch.cat([theta, offset], 2), list(x.shape), align_corners=False)
        y = F.grid_sample(
            x.float(), grid, self.config.interpolation, padding_mode="border", align_corners=False
        )
        return y.round_().clamp_(0, self.levels - 1).to(torch.uint8)
