"""Options of the class-conditional mixtures."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class PrototypeConfig:
    """How many prototypes a class has, how they start and how they are trained.

    Attributes:
        num_prototypes: Gaussians per class (K). Pruning and merging may leave a class with fewer.
        init: start of the mixtures: "kmeans" clusters each class's embeddings, "random" draws the
            means from a normal as wide as the embeddings.
        prior: class probabilities: "uniform" (the paper's), "empirical" (shares of the labels
            seen at initialisation), or one positive number per class.
        initial_std: standard deviation of every Gaussian before any data is seen; "random" counts
            it in units of the embeddings' spread.
        min_std: floor of the standard deviations, in units of the latent.
        prototype_dropout: probability that a prototype is hidden from an image in training. A
            class always keeps at least one.
        latent_dropout: probability that a latent dimension is left out of an image's densities in
            training; the others are scaled up so that the expectation stays.
        update: how the mixtures are trained: "sgd" with the flow, or "em" in closed form.
        em_momentum: share of the old statistics that a mini-batch EM step keeps; 0 forgets them.
    """

    num_prototypes: int = 10
    init: Literal["kmeans", "random"] = "kmeans"
    prior: Literal["uniform", "empirical"] | tuple[float, ...] = "uniform"
    initial_std: float = 1.0
    min_std: float = 1e-4
    prototype_dropout: float = 0.0
    latent_dropout: float = 0.0
    update: Literal["sgd", "em"] = "sgd"
    em_momentum: float = 0.9

    def __post_init__(self) -> None:
        """Refuse values that cannot work, naming the field."""
        if isinstance(self.prior, list):  # what JSON and YAML make of a tuple
            object.__setattr__(self, "prior", tuple(self.prior))
        if self.num_prototypes < 1:
            raise ValueError(f"num_prototypes must be at least 1, got {self.num_prototypes}")
        _one_of("init", self.init, ("kmeans", "random"))
        _one_of("update", self.update, ("sgd", "em"))
        if not isinstance(self.prior, tuple):
            _one_of("prior", self.prior, ("uniform", "empirical"), "one positive number per class")
        elif not self.prior or not all(math.isfinite(p) and p > 0 for p in self.prior):
            raise ValueError(f"prior must hold positive finite numbers, got {self.prior}")
        if not (math.isfinite(self.min_std) and self.min_std > 0):
            raise ValueError(f"min_std must be a positive number, got {self.min_std}")
        if not (math.isfinite(self.initial_std) and self.initial_std > self.min_std):
            raise ValueError(
                f"initial_std must be above min_std ({self.min_std}), got {self.initial_std}"
            )
        for name in ("prototype_dropout", "latent_dropout", "em_momentum"):
            value = getattr(self, name)
            if not 0 <= value < 1:
                raise ValueError(f"{name} must be at least 0 and below 1, got {value}")


def _one_of(name: str, value: object, choices: tuple[str, ...], other: str | None = None) -> None:
    if value not in choices:
        expected = " or ".join([repr(choice) for choice in choices] + ([other] if other else []))
        raise ValueError(f"{name} must be {expected}, got {value!r}")
