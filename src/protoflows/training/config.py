"""Every choice of a training run: frozen dataclasses, from which YAML and flags are made."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal

from protoflows.data import AugmentConfig, DataConfig
from protoflows.flows import DenseFlowConfig
from protoflows.prototypes import PrototypeConfig


@dataclass(frozen=True)
class LossConfig:
    """Weights of the objective's terms (`eq:Ltotal`); a weight of 0 switches a term off at no cost.

    Attributes:
        cross_entropy: Weight of -log p(y|x), in nats.
        temperature: What the cross-entropy divides log p(x|c) by, its gradient being scaled back.
            Classes' likelihoods differ by many nats, which at 1 leaves no gradient once an image is
            barely right; above 1 the term asks for margins that noise does not undo.
        elbo: Weight of the class-conditional bound on -log p(x|y), in bits per dimension. Images
            without a label enter through -log p(x).
        elbo_final: What that weight comes down to: it stays in the first third of training, falls
            geometrically in the second, and is this in the last. The density of images is learned
            first, the borders between classes have the last word. None: it stays.
        consistency: Weight of the consistency term (`eq:Lconsistency`), in bits per dimension. It
            needs a second view of every image, and one more forward pass.
        consistency_ramp_epochs: Epochs over which that weight rises linearly from 0.
        diversity: Weight of the diversity term (`eq:Ldiversity`), from -1 (all apart) to 0.
        label_smoothing: Share of the cross-entropy's target spread evenly over all classes.
    """

    cross_entropy: float = 1.0
    temperature: float = 1.0
    elbo: float = 1.0
    elbo_final: float | None = None
    consistency: float = 1.0
    consistency_ramp_epochs: float = 50.0
    diversity: float = 1.0
    label_smoothing: float = 0.0

    def __post_init__(self) -> None:
        """Refuse weights that make no objective."""
        for name in (
            "cross_entropy",
            "elbo",
            "consistency",
            "consistency_ramp_epochs",
            "diversity",
        ):
            _at_least_0("loss", name, getattr(self, name))
        if self.cross_entropy == 0 and self.elbo == 0:
            raise ValueError(
                "loss.cross_entropy and loss.elbo are both 0: one of them has to tell classes apart"
            )
        if self.elbo_final is not None and not (0 < self.elbo_final < math.inf and self.elbo > 0):
            raise ValueError(
                "loss.elbo_final must be above 0 (or null), and loss.elbo with it, got "
                f"elbo_final={self.elbo_final} and elbo={self.elbo}"
            )
        if not 0 < self.temperature < math.inf:
            raise ValueError(f"loss.temperature must be above 0, got {self.temperature}")
        if not 0 <= self.label_smoothing < 1:
            raise ValueError(
                f"loss.label_smoothing must be at least 0 and below 1, got {self.label_smoothing}"
            )


@dataclass(frozen=True)
class OptimConfig:
    """AdamW, its schedule and what keeps it safe.

    Attributes:
        epochs: Passes over the training images.
        max_minutes: End training after this time, the learning rate having come down by then. The
            result then depends on the machine's speed. None: only epochs count.
        batch_size: Images per step and over all processes; a last batch that is not full is left
            out, and data sets smaller than it are one batch.
        accumulate: Batches whose gradients are averaged into one step.
        lr: Learning rate of the flow.
        prototype_lr: Learning rate of the prototypes.
        weight_decay: Of the flow's weights; prototypes have none.
        beta2: AdamW's second-moment decay.
        warmup_epochs: Epochs over which learning rates rise linearly from 0.
        schedule: Learning rates after that: "cosine" falls to `final_lr`, "constant" stays.
        final_lr: Where the cosine ends, as a share of the learning rate.
        clip_norm: Gradients longer than this are shortened to it; 0 leaves them.
        ema_decay: Decay of the moving average of all weights that is validated and exported; 0
            makes it the weights themselves. It starts small, (1 + step) / (10 + step).
        max_skipped: Steps in a row with a loss or gradient that is not finite (each is skipped)
            before training stops with an error.
    """

    epochs: int = 150
    max_minutes: float | None = None
    batch_size: int = 256
    accumulate: int = 1
    lr: float = 1e-4
    prototype_lr: float = 1e-3
    weight_decay: float = 1e-5
    beta2: float = 0.999
    warmup_epochs: float = 5.0
    schedule: Literal["cosine", "constant"] = "cosine"
    final_lr: float = 0.0
    clip_norm: float = 100.0
    ema_decay: float = 0.999
    max_skipped: int = 5

    def __post_init__(self) -> None:
        """Refuse what cannot train."""
        for name in ("epochs", "batch_size", "accumulate", "max_skipped"):
            if getattr(self, name) < 1:
                raise ValueError(f"optim.{name} must be at least 1, got {getattr(self, name)}")
        for name in ("lr", "prototype_lr", "weight_decay", "warmup_epochs", "clip_norm"):
            _at_least_0("optim", name, getattr(self, name))
        if self.max_minutes is not None and not self.max_minutes > 0:
            raise ValueError(f"optim.max_minutes must be above 0 (or null), got {self.max_minutes}")
        for name in ("ema_decay", "beta2"):
            if not 0 <= getattr(self, name) < 1:
                raise ValueError(
                    f"optim.{name} must be at least 0 and below 1, got {getattr(self, name)}"
                )
        if not 0 <= self.final_lr <= 1:
            raise ValueError(f"optim.final_lr is a share from 0 to 1, got {self.final_lr}")
        if self.schedule not in ("cosine", "constant"):
            raise ValueError(f"optim.schedule must be cosine or constant, got {self.schedule!r}")


@dataclass(frozen=True)
class TrainerConfig:
    """Where training runs, what it writes, and when it stops early.

    Attributes:
        accelerator: Lightning's name of the hardware: auto, cpu, gpu, mps.
        devices: Processes (one per GPU) on each machine.
        num_nodes: Machines.
        checkpoint_minutes: Longest time between checkpoints within an epoch; every epoch ends with
            one. 0 writes one after every step.
        monitor: What tells good epochs from bad ones on validation images: loss (cross-entropy plus
            bits per dimension, in the objective's weights), accuracy, or bits_per_dim.
        export: Which weights become the final model: those of the last epoch, or of the best.
        patience: Stop after this many epochs without a better one, and export the best.
        init_images: Most training images from which the prototypes start.
        test_samples: Noise draws for the figures in metrics.json.
        eval_batch_size: Images per batch where nothing is trained.
        tensorboard: Write TensorBoard logs beside log.csv.
        progress: Show a progress bar (a line per epoch where the output is not a terminal).
    """

    accelerator: str = "auto"
    devices: int = 1
    num_nodes: int = 1
    checkpoint_minutes: float = 5.0
    monitor: Literal["loss", "accuracy", "bits_per_dim"] = "loss"
    export: Literal["last", "best"] = "last"
    patience: int | None = None
    init_images: int = 10_000
    test_samples: int = 8
    eval_batch_size: int = 256
    tensorboard: bool = True
    progress: bool = True

    def __post_init__(self) -> None:
        """Refuse numbers and names that mean nothing."""
        for name in ("devices", "num_nodes", "init_images", "test_samples", "eval_batch_size"):
            if getattr(self, name) < 1:
                raise ValueError(f"trainer.{name} must be at least 1, got {getattr(self, name)}")
        _at_least_0("trainer", "checkpoint_minutes", self.checkpoint_minutes)
        if self.patience is not None and self.patience < 1:
            raise ValueError(f"trainer.patience must be at least 1 (or null), got {self.patience}")
        if self.monitor not in ("loss", "accuracy", "bits_per_dim"):
            raise ValueError(
                f"trainer.monitor must be loss, accuracy or bits_per_dim, got {self.monitor!r}"
            )
        if self.export not in ("last", "best"):
            raise ValueError(f"trainer.export must be last or best, got {self.export!r}")


@dataclass(frozen=True)
class TrainConfig:
    """A training run.

    Attributes:
        data: Which images.
        augment: How training images are moved about.
        flow: The flow. image_shape and levels come from the data: leave them out.
        prototypes: The class mixtures.
        loss: The objective.
        optim: The optimiser.
        trainer: Machine, checkpoints and logs.
        augmented: Whether training images are augmented at all.
        flow_weights: Folder of published DenseFlow weights or of a `pretrain` run to start from;
            the flow then has that checkpoint's architecture.
        seed: Seed of everything: weights, order, augmentation, noise, K-means.
    """

    data: DataConfig = field(default_factory=DataConfig)
    augment: AugmentConfig = field(default_factory=AugmentConfig)
    flow: DenseFlowConfig = field(default_factory=DenseFlowConfig)
    prototypes: PrototypeConfig = field(default_factory=PrototypeConfig)
    loss: LossConfig = field(default_factory=LossConfig)
    optim: OptimConfig = field(default_factory=OptimConfig)
    trainer: TrainerConfig = field(default_factory=TrainerConfig)
    augmented: bool = True
    flow_weights: str | None = None
    seed: int = 0

    @property
    def world_size(self) -> int:
        """Processes that train together."""
        return self.trainer.devices * self.trainer.num_nodes


def _at_least_0(section: str, name: str, value: float) -> None:
    if not (math.isfinite(value) and value >= 0):
        raise ValueError(f"{section}.{name} must be a finite number ≥ 0, got {value}")
