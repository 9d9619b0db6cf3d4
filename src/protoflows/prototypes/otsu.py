"""Otsu's threshold: where light mixture weights end and heavy ones begin."""

from __future__ import annotations

import math

from torch import Tensor

_BINS = 256


def otsu_threshold(weights: Tensor) -> float:
    """The cut that leaves the least variance within both sides (by scikit-image); NaN if none.

    It lies in the middle between the two weights that it parts, so that what is not above it is the
    lower group, however few weights there are.

    Args:
        weights: Mixture weights, (P,).

    >>> import torch
    >>> round(otsu_threshold(torch.tensor([0.1, 0.1, 0.9, 0.9]).double()), 6)
    0.5
    """
    from skimage.filters import threshold_otsu

    values = weights.detach().cpu().double().numpy()
    if len(values) < 2 or values.max() - values.min() <= 1e-6 * values.max():
        return math.nan  # a single value, or one value many times over
    # What comes back is the middle of the histogram's bin in which the lower group ends. Of few
    # values the last of that group may lie in the bin's upper half: cut at the bin's end.
    half_bin = (values.max() - values.min()) / (2 * _BINS)
    lower = values < threshold_otsu(values, nbins=_BINS) + half_bin
    return float((values[lower].max() + values[~lower].min()) / 2)
