"""What is drawn for every batch of an evaluation."""

from __future__ import annotations

from dataclasses import dataclass

from protoflows.data import Augment


@dataclass(frozen=True)
class BatchPlan:
    """What is drawn for every batch.

    Attributes:
        samples: Draws per decision view (most draws, where images stop early).
        plain_samples: Draws of the image itself that densities come from.
        tta: Augmented views; they are the decision views, or the image itself is where there are
            none.
        augment: What makes them.
        rows: Images per flow pass.
        seed: From which all draws follow.
        adaptive: Confidence at which an image's class counts as settled; None draws all.
        verify: Whether settled images are drawn all the same.
        robustness: Whether a noisy copy and a second draw tell their winning prototypes.
        distances: Whether distances to prototypes are taken.
        curve: Numbers of draws after which averages are noted.
    """

    samples: int
    plain_samples: int
    tta: int = 0
    augment: Augment | None = None
    rows: int = 256
    seed: int = 0
    adaptive: float | None = None
    verify: bool = False
    robustness: bool = False
    distances: bool = False
    curve: tuple[int, ...] = ()
