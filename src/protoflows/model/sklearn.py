"""ProtoFlow as a scikit-learn classifier."""

from __future__ import annotations

import copy
import hashlib
from typing import Any

import numpy as np
import torch
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils import check_random_state
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor

from protoflows.data import Split
from protoflows.model.protoflow import ProtoFlow

_BYTE = 255
# Whole numbers up to here (digits: 16) are levels of their own; beyond, all 256 of a byte are.
_FEW_LEVELS = 64


class ProtoFlowClassifier(ClassifierMixin, BaseEstimator):
    """A `ProtoFlow` trained by `fit`, for arrays, by scikit-learn's conventions.

    X holds one row per sample, (n, features), or images (n, H, W) or (n, H, W, C). Whole numbers
    from 0 to 255 are taken as they are; images of fractions in [0, 1] are scaled to bytes; any
    other feature is cut into 256 levels between its least and its greatest value in the training
    data. Rows are laid out as near-square images, line by line (64 features are 8x8), and filled
    up with zeros; they are not augmented, as nobody knows whether neighbours in a row belong
    together.

    Args:
        epochs: Passes over the training data.
        num_prototypes: Prototypes per class.
        samples: Draws of the noise per image in prediction.
        random_state: Seed of training and of prediction, as scikit-learn takes it.
        settings: More settings of the training by section, as `training.fit_arrays` takes them:
            `{"recipe": "digits", "optim": {"lr": 1e-3}, "augmented": True}`.

    Attributes:
        classes_: Labels, sorted.
        n_features_in_: Features of a row; H·W·C for images.
        model_: The trained `ProtoFlow`, whose classes are the indices of `classes_`.
        image_shape_: Channels, height and width of what it sees.
        levels_: Number of levels a feature is cut into.

    >>> ProtoFlowClassifier(epochs=3)
    ProtoFlowClassifier(epochs=3)
    """

    def __init__(
        self,
        *,
        epochs: int = 30,
        num_prototypes: int = 3,
        samples: int = 4,
        random_state: int | np.random.RandomState | None = None,
        settings: dict[str, Any] | None = None,
    ) -> None:
        self.epochs = epochs
        self.num_prototypes = num_prototypes
        self.samples = samples
        self.random_state = random_state
        self.settings = settings

    def fit(self, X: Any, y: Any) -> ProtoFlowClassifier:  # noqa: N803
        """Train on samples X with labels y."""
        from protoflows.training import fit_arrays

        rows, shape = _flatten(X)
        rows, y = validate_data(self, rows, y, dtype="numeric", y_numeric=False)
        check_classification_targets(y)
        self.classes_, codes = np.unique(y, return_inverse=True)
        if len(self.classes_) < 2:
            raise ValueError(
                f"y must hold at least two classes, got only one class: {self.classes_[0]!r}"
            )
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        self._layout(rows, shape)
        settings = dict(self.settings or {})
        settings.setdefault("augmented", shape is not None)
        settings["prototypes"] = {
            "num_prototypes": self.num_prototypes,
            **settings.get("prototypes", {}),
        }
        train = Split(self._images(rows), torch.from_numpy(codes.astype(np.int64)))
        self.model_: ProtoFlow = fit_arrays(
            train,
            num_classes=len(self.classes_),
            levels=self.levels_,
            image_shape=self.image_shape_,
            epochs=self.epochs,
            seed=seed,
            **settings,
        )
        self._seed = seed
        return self

    def predict_proba(self, X: Any) -> np.ndarray:  # noqa: N803
        """Probabilities of `classes_`, (n, classes).

        The noise drawn for a sample follows from the sample itself: the same row gets the same
        answer wherever it stands.
        """
        check_is_fitted(self)
        rows, shape = _flatten(X)
        if shape is not None and shape != self._shape:
            wanted = f"images of shape {self._shape}" if self._shape else "rows (n, features)"
            raise ValueError(f"X must hold {wanted} as in fit, got images of shape {shape}")
        rows = validate_data(self, rows, dtype="numeric", reset=False)
        x = self._images(rows)
        # Float64, because a sample's result in float32 depends a little on the batch around it.
        # In a copy, because two threads may predict at once.
        model = copy.deepcopy(self.model_).double()
        proba = model.predict_proba(x, samples=self.samples, seed=_content_seeds(x, self._seed))
        return proba.cpu().numpy()

    def predict(self, X: Any) -> np.ndarray:  # noqa: N803
        """The most probable labels, (n,)."""
        proba = self.predict_proba(X)
        labels: np.ndarray = self.classes_[proba.argmax(axis=1)]
        return labels

    def _layout(self, rows: np.ndarray, shape: tuple[int, ...] | None) -> None:
        """Decide how a row becomes an image: shape, levels, and each feature's offset and scale."""
        self._shape = shape
        features = rows.shape[1]
        if shape is None:
            height = max(1, int(np.sqrt(features)))
            self.image_shape_ = (1, height, -(-features // height))
        else:
            self.image_shape_ = (shape[2] if len(shape) == 3 else 1, shape[0], shape[1])
        rows = rows.astype(np.float64)
        low, high = rows.min(), rows.max()
        if low >= 0 and high <= _BYTE and bool((rows == np.floor(rows)).all()):
            few = high < _FEW_LEVELS
            self.levels_ = max(2, int(high) + 1) if few else _BYTE + 1
            offset, scale = np.zeros(features), np.ones(features)
        elif shape is not None:  # one scale for all pixels, or the picture would be lost
            low, high = (0.0, 1.0) if low >= 0 and high <= 1 else (low, high)
            self.levels_ = _BYTE + 1
            offset = np.full(features, low)
            scale = np.full(features, _BYTE / (high - low) if high > low else 0.0)
        else:
            self.levels_ = _BYTE + 1
            offset, span = rows.min(axis=0), np.ptp(rows, axis=0)
            # A constant feature, or one whose span is lost in rounding, says nothing.
            known = span > np.finfo(np.float64).tiny * _BYTE
            scale = np.divide(_BYTE, span, out=np.zeros(features), where=known)
        self._offset, self._scale = offset, scale

    def _images(self, rows: np.ndarray) -> Tensor:
        """uint8 images (n, C, H, W) of rows; values outside what training has seen are clipped."""
        scaled = (rows.astype(np.float64) - self._offset) * self._scale
        values = np.rint(scaled).clip(0, self.levels_ - 1).astype(np.uint8)
        channels, height, width = self.image_shape_
        if self._shape is None:
            values = np.pad(values, ((0, 0), (0, height * width - values.shape[1])))
        images = torch.from_numpy(values).view(len(values), height, width, channels)
        return images.permute(0, 3, 1, 2).contiguous()


def _flatten(X: Any) -> tuple[Any, tuple[int, ...] | None]:  # noqa: N803
    """Rows of images (n, H, W[, C]) with the images' shape; anything else as it is, with None."""
    if hasattr(X, "columns") or (hasattr(X, "shape") and len(X.shape) not in (3, 4)):
        return X, None
    array = X if hasattr(X, "shape") else _array(X)
    if array is None or array.ndim not in (3, 4) or array.dtype == object:
        return X, None
    array = np.asarray(array)
    return array.reshape(len(array), -1), tuple(array.shape[1:])


def _array(X: Any) -> np.ndarray | None:  # noqa: N803
    try:
        return np.asarray(X)
    except ValueError:  # ragged lists: scikit-learn's own check has the words for it
        return None


def _content_seeds(x: Tensor, seed: int) -> Tensor:
    """One seed per image, a hash of its bytes and of the training's seed."""
    key = seed.to_bytes(8, "little")
    digests = [
        hashlib.blake2b(image.tobytes(), digest_size=8, key=key).digest() for image in x.numpy()
    ]
    return torch.tensor(
        [int.from_bytes(d, "little", signed=True) for d in digests], dtype=torch.int64
    )
