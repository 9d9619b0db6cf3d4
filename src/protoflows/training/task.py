"""What is trained, apart from how: the classifier, or the flow's density alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
from torch import Tensor, nn

from protoflows.data import Batch, Split
from protoflows.data.batches import derived_seed
from protoflows.distributed import all_reduce_sum
from protoflows.flows import DenseFlow, Noise
from protoflows.model import ProtoFlow
from protoflows.prototypes import (
    MixtureDropout,
    apply_statistics,
    em_statistics,
)
from protoflows.prototypes.em import EMStatistics
from protoflows.training import seeds
from protoflows.training.config import TrainConfig
from protoflows.training.initialize import start_flow, start_mixtures
from protoflows.training.losses import (
    Losses,
    bits_per_dim,
    classifier_losses,
    smoothed_cross_entropy,
)


class Where(NamedTuple):
    """A position in training.

    Attributes:
        epoch: Epochs completed.
        batch: Batches completed in this epoch.
        batches: Batches of an epoch.
        share: This process's part of the global batch.
        size: Images of the global batch.
        share_done: How much of training is done, from 0 to 1.
    """

    epoch: int
    batch: int
    batches: int
    share: slice
    size: int
    share_done: float = 0.0


class Sums(NamedTuple):
    """Sums over images, from which an epoch's figures come."""

    images: float = 0.0
    labelled: float = 0.0
    correct: float = 0.0
    cross_entropy: float = 0.0
    bits_per_dim: float = 0.0

    def plus(self, other: Sums) -> Sums:
        """Sums over both sets of images."""
        return Sums(*(a + b for a, b in zip(self, other, strict=True)))

    def figures(self, prefix: str) -> dict[str, float]:
        """Means by name: accuracy and cross-entropy (nats) where there are labels, bits/dim."""
        found = {}
        if self.labelled:
            found[f"{prefix}_accuracy"] = self.correct / self.labelled
            found[f"{prefix}_cross_entropy"] = self.cross_entropy / self.labelled
        if self.images:
            found[f"{prefix}_bits_per_dim"] = self.bits_per_dim / self.images
        return found


@dataclass
class Step:
    """What a task makes of a batch.

    Attributes:
        losses: The objective, differentiable.
        sums: What goes into the epoch's figures.
        latent: z, detached, for a closed-form update.
    """

    losses: Losses
    sums: Sums
    latent: Tensor


class Task(Protocol):
    """What the trainer needs to know of a task."""

    @property
    def model(self) -> nn.Module:
        """What is trained."""

    def initialize(self, split: Split) -> None:
        """Data-dependent start, over all processes."""

    def step(self, batch: Batch, where: Where) -> Step:
        """The objective on a training batch."""

    def after_step(self, batch: Batch, step: Step) -> None:
        """What is updated in closed form after the optimiser's step."""

    def validate(self, batch: Batch) -> Sums:
        """Figures of a validation batch; the model is in eval mode."""

    def parameter_groups(self) -> list[dict[str, object]]:
        """Parameters with their learning rate and weight decay, for AdamW."""


class ClassifierTask:
    """Flow and prototypes together, by the paper's objective.

    Args:
        model: The model, trained in place.
        config: The run's settings.
    """

    def __init__(self, model: ProtoFlow, config: TrainConfig) -> None:
        self.model, self.config = model, config
        self.em = config.prototypes.update == "em"
        self.model.mixtures.requires_grad_(not self.em)

    def initialize(self, split: Split) -> None:
        """Actnorm from a batch, then the mixtures from embeddings."""
        start_flow(self.model.flow, split, self.config)
        start_mixtures(self.model.flow, self.model.mixtures, split, self.config)

    def step(self, batch: Batch, where: Where) -> Step:
        """One pass of the first view; one more, without gradient, of the second where it is on."""
        config, mixtures = self.config, self.model.mixtures
        second = None
        if batch.x2 is not None and config.loss.consistency:
            second = self._classify_second_view(batch, where)
        noise = image_noise(batch.index, config.seed, where.epoch, seeds.TRAIN)
        encoding = self.model(batch.x, noise)
        class_log_prob = mixtures.class_log_prob(encoding.latent, self._dropout(where))
        class_log_prob = class_log_prob + encoding.log_det.to(class_log_prob.dtype).unsqueeze(1)
        losses = classifier_losses(
            class_log_prob,
            mixtures.log_prior,
            batch.y,
            self.model.flow.config.dims,
            config.loss,
            second_view_class=second,
            epoch=where.epoch + where.batch / where.batches,
            share=where.share_done,
            mixtures=None if self.em else mixtures,
        )
        sums = classifier_sums(class_log_prob.detach(), batch.y, self.model)
        return Step(losses, sums, encoding.latent.detach())

    @torch.no_grad()
    def _classify_second_view(self, batch: Batch, where: Where) -> Tensor:
        assert batch.x2 is not None
        flow = self.model.flow
        noise = image_noise(batch.index, self.config.seed, where.epoch, seeds.SECOND_VIEW)
        flow.eval()
        try:
            latent = flow(batch.x2, noise).latent
        finally:
            flow.train()
        return self.model.mixtures.posterior(latent).argmax(1)

    def _dropout(self, where: Where) -> MixtureDropout | None:
        seed = derived_seed(seeds.DROPOUT, self.config.seed, where.epoch, where.batch)
        generator = torch.Generator().manual_seed(seed)
        # Drawn for the global batch and cut like it, so that processes do not repeat one another.
        drawn = self.model.mixtures.draw_dropout(where.size, generator)
        if drawn is None:
            return None
        parts = [None if part is None else part[where.share] for part in drawn]
        return MixtureDropout(*parts)

    @torch.no_grad()
    def after_step(self, batch: Batch, step: Step) -> None:
        """The mixtures' stepwise EM, where they are trained so."""
        if not self.em:
            return
        mixtures = self.model.mixtures
        found = em_statistics(mixtures, step.latent, batch.y)
        statistics = EMStatistics(*(all_reduce_sum(t) for t in found.tensors()))
        apply_statistics(mixtures, statistics, mixtures.config.em_momentum)

    @torch.no_grad()
    def validate(self, batch: Batch) -> Sums:
        """Figures with one draw of the noise, the same in every epoch."""
        noise = image_noise(batch.index, self.config.seed, 0, seeds.VALIDATE)
        encoding = self.model(batch.x, noise)
        class_log_prob = self.model.mixtures.class_log_prob(encoding.latent)
        class_log_prob = class_log_prob + encoding.log_det.to(class_log_prob.dtype).unsqueeze(1)
        return classifier_sums(class_log_prob, batch.y, self.model)

    def parameter_groups(self) -> list[dict[str, object]]:
        """The flow, and the mixtures with a learning rate of their own and no decay."""
        groups = flow_groups(self.model.flow, self.config)
        mixtures = [p for p in self.model.mixtures.parameters() if p.requires_grad]
        if mixtures:
            lr = self.config.optim.prototype_lr
            groups.append({"params": mixtures, "lr": lr, "weight_decay": 0.0})
        return groups


class DensityTask:
    """The flow alone, by its unconditional density.

    Args:
        flow: The flow, trained in place.
        config: The run's settings.
    """

    def __init__(self, flow: DenseFlow, config: TrainConfig) -> None:
        self.model, self.config = flow, config

    def initialize(self, split: Split) -> None:
        """Actnorm from a batch."""
        start_flow(self.model, split, self.config)

    def step(self, batch: Batch, where: Where) -> Step:
        """-log p(x) in bits per dimension."""
        bits, latent = self._bits(batch, where.epoch, seeds.TRAIN)
        total = bits.mean()
        return Step(Losses(total, elbo=total), density_sums(bits.detach()), latent)

    def _bits(self, batch: Batch, epoch: int, stream: int) -> tuple[Tensor, Tensor]:
        noise = image_noise(batch.index, self.config.seed, epoch, stream)
        encoding = self.model(batch.x, noise)
        log_prob = encoding.log_det + self.model.base_log_prob(encoding.latent)
        return bits_per_dim(log_prob, self.model.config.dims), encoding.latent.detach()

    def after_step(self, batch: Batch, step: Step) -> None:
        """Nothing is updated in closed form."""

    @torch.no_grad()
    def validate(self, batch: Batch) -> Sums:
        """Figures with one draw of the noise, the same in every epoch."""
        return density_sums(self._bits(batch, 0, seeds.VALIDATE)[0])

    def parameter_groups(self) -> list[dict[str, object]]:
        """All of the flow; its base has no decay."""
        return flow_groups(self.model, self.config)


def image_noise(index: Tensor, seed: int, epoch: int, stream: int) -> Noise:
    """The injected noise of a batch, image by image."""
    return Noise(len(index), 1.0, seeds.image_noise_seeds(index, seed, epoch, stream))


def flow_groups(flow: DenseFlow, config: TrainConfig) -> list[dict[str, object]]:
    """Weights of convolutions decay; what is a vector (biases, scales, norms) does not."""
    params = [p for p in flow.parameters() if p.requires_grad]
    matrices, vectors = [p for p in params if p.ndim > 1], [p for p in params if p.ndim <= 1]
    lr = config.optim.lr
    return [
        {"params": matrices, "lr": lr, "weight_decay": config.optim.weight_decay},
        {"params": vectors, "lr": lr, "weight_decay": 0.0},
    ]


@torch.no_grad()
def classifier_sums(class_log_prob: Tensor, labels: Tensor, model: ProtoFlow) -> Sums:
    """An epoch's figures from log p(x|c), (N, C): bits per dimension are those of the marginal."""
    joint = class_log_prob + model.mixtures.log_prior
    known = labels >= 0
    target = labels.clamp_min(0)
    loss = smoothed_cross_entropy(joint, target)
    bits = bits_per_dim(joint.logsumexp(1), model.flow.config.dims)
    return Sums(
        images=float(len(labels)),
        labelled=float(known.sum()),
        correct=float(((joint.argmax(1) == target) & known).sum()),
        cross_entropy=float(torch.where(known, loss, torch.zeros_like(loss)).sum()),
        bits_per_dim=float(bits.sum()),
    )


@torch.no_grad()
def density_sums(bits: Tensor) -> Sums:
    """An epoch's figures of a density: no labels are looked at."""
    return Sums(images=float(len(bits)), bits_per_dim=float(bits.sum()))
