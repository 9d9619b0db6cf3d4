"""Running sums over the draws of a batch: what is kept instead of the draws."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from protoflows.evaluation.plan import BatchPlan
from protoflows.evaluation.settling import Settling
from protoflows.evaluation.views import NOISY, PLAIN
from protoflows.model import ProtoFlow
from protoflows.prototypes.densities import LOG_2PI, accumulation_dtype, gaussian_log_prob


class Draw(NamedTuple):
    """One draw of one view for the images at the places `images`."""

    view: int
    sample: int
    images: Tensor
    logits: Tensor  # (M, C) what classes are compared by
    log_prob: Tensor  # (M, C) as trained
    table: Tensor  # (M, C, K) log N of every prototype
    latent: Tensor  # (M, …)
    log_det: Tensor  # (M,)

    def read_by(self, model: ProtoFlow) -> Draw:
        """What a model with the same flow, and fewer of the prototypes, says of the same draw."""
        table = self.table.masked_fill(~model.mixtures.mask, -math.inf)
        log_prob = self.log_det[:, None] + model.mixtures.mix(self.table)
        logits = log_prob
        if model.config.variance_temperature != 1:
            logits = self.log_det[:, None] + model.tempered_log_likelihood(self.table)
        return self._replace(logits=logits, log_prob=log_prob, table=table)


class RunningMean:
    """Running mean and log-mean-exp over draws, for every image its own number of them.

    Args:
        shape: One row per image, (B, …).
        like: A tensor on the device.
    """

    def __init__(self, shape: tuple[int, ...], like: Tensor) -> None:
        dtype = accumulation_dtype(like.device)
        self.total = torch.zeros(shape, dtype=dtype, device=like.device)
        self.log_total = torch.full(shape, -math.inf, dtype=dtype, device=like.device)
        self.count = torch.zeros(shape[0], dtype=torch.int64, device=like.device)

    def add(self, index: Tensor, value: Tensor) -> None:
        """Take in a draw (M, …) of the images at `index`, ascending (M,)."""
        value = value.to(self.total.dtype)
        if len(index) == len(self.count):
            self.total += value
            self.log_total = torch.logaddexp(self.log_total, value)
            self.count += 1
            return
        self.total[index] += value
        self.log_total[index] = torch.logaddexp(self.log_total[index], value)
        self.count[index] += 1

    def _per_image(self) -> Tensor:
        return self.count.to(self.total.dtype).view(-1, *[1] * (self.total.dim() - 1))

    def mean(self) -> Tensor:
        """The mean over draws."""
        return self.total / self._per_image()

    def log_mean_exp(self) -> Tensor:
        """The log of the mean of exp over draws."""
        return self.log_total - self._per_image().log()


class PlainSums:
    """What the image itself says: densities, and the winning prototypes.

    Args:
        model: The model.
        num: Images of the batch.
        plan: What is drawn.
    """

    def __init__(self, model: ProtoFlow, num: int, plan: BatchPlan) -> None:
        like = model.mixtures.log_prior
        self.model, self.plan = model, plan
        self.logits = RunningMean((num, len(like)), like)
        tempered = model.config.variance_temperature != 1
        self.classes = RunningMean((num, len(like)), like) if tempered else self.logits
        self.density = RunningMean((num,), like)
        self.spread = torch.zeros_like(self.density.total)  # Welford's sum of squares
        self.found: dict[str, Tensor] = {}
        self.curve: list[Tensor] = []

    def add(self, draw: Draw) -> None:
        """Take in a draw of the images themselves or of their noisy copies, all of the batch."""
        if draw.view == NOISY:
            self.found["winner_noisy"] = _winner(draw.table)
            return
        if draw.sample == 0:
            self.found["winner"] = _winner(draw.table)
            if self.plan.distances:
                self.found["distance"] = nearest_distance(self.model, draw.latent)
        elif draw.sample == 1 and self.plan.robustness:
            self.found["winner_second"] = _winner(draw.table)
        if draw.sample >= self.plan.plain_samples:
            return
        self.logits.add(draw.images, draw.logits)
        if self.classes is not self.logits:
            self.classes.add(draw.images, draw.log_prob)
        bound = (draw.log_prob + self.model.mixtures.log_prior).logsumexp(1)
        before = bound - (self.density.mean() if draw.sample else 0)
        self.density.add(draw.images, bound)
        if draw.sample:
            self.spread += before * (bound - self.density.mean())
        if draw.sample + 1 in self.plan.curve:
            best = self.classes.mean().amax(1)
            bounds = [self.density.mean(), self.density.log_mean_exp(), best]
            self.curve.append(torch.stack(bounds, dim=1))

    def rows(self) -> dict[str, Tensor]:
        """Its part of the fields of `Passes`."""
        draws = self.plan.plain_samples
        lacking = torch.full_like(self.spread, math.nan)
        found = {
            **self.found,
            "plain_logits": self.logits.mean(),
            "plain_logits_importance": self.logits.log_mean_exp(),
            "log_prob_classes": self.classes.mean(),
            "log_prob_mean": self.density.mean(),
            "log_prob_importance": self.density.log_mean_exp(),
            "log_prob_variance": self.spread / (draws - 1) if draws > 1 else lacking,
        }
        if self.curve:
            found["curve_log_prob"] = torch.stack(self.curve, dim=1)
        return found


class DecisionSums:
    """What decides the class: sums over the decision views, and when they are enough.

    Args:
        model: The model.
        num: Images of the batch.
        plan: What is drawn.

    Attributes:
        stops: Numbers of draws after which `look` may be asked; the last is all.
    """

    def __init__(self, model: ProtoFlow, num: int, plan: BatchPlan) -> None:
        like = model.mixtures.log_prior
        self.plan, self.views = plan, max(1, plan.tta)
        self.logits = RunningMean((num, len(like)), like)
        tempered = model.config.variance_temperature != 1
        self.classes = RunningMean((num, len(like)), like) if tempered else self.logits
        self.rounds = torch.zeros_like(self.logits.count)
        self.round = torch.zeros_like(self.logits.total)  # sum over the views of one draw
        self.curve: list[Tensor] = []
        self.settling: Settling | None = None
        if plan.adaptive is not None:
            self.settling = Settling(like, num, plan.samples, plan.adaptive)
            self.kept_logits = torch.zeros_like(self.logits.total)
            self.kept_rounds = torch.zeros_like(self.rounds)
        self.stops = (*(self.settling.looks if self.settling else ()), plan.samples)

    def add(self, draw: Draw) -> None:
        """Take in a draw of a decision view; the views of a draw come in their order."""
        self.logits.add(draw.images, draw.logits)
        if self.classes is not self.logits:
            self.classes.add(draw.images, draw.log_prob)
        first = draw.view in (PLAIN, 1)
        self.round[draw.images] = draw.logits + (0 if first else self.round[draw.images])
        if draw.view == self.plan.tta:  # the last view; without augmented ones PLAIN, which is 0
            self._end_round(draw.images, draw.sample)

    def _end_round(self, index: Tensor, sample: int) -> None:
        self.rounds[index] += 1
        if self.settling is not None:
            self.settling.add(index, self.round[index] / self.views, sample)
            if sample + 1 in self.settling.looks:
                self._note(index, sample + 1)
        if sample + 1 in self.plan.curve:
            self.curve.append(self.logits.mean().float())

    def _note(self, index: Tensor, draws: int) -> None:
        """Remember the averages of images that have just settled."""
        assert self.settling is not None
        fresh = self.settling.settled(index, draws) & (self.kept_rounds[index] == 0)
        chosen = index[fresh]
        self.kept_logits[chosen] = self.logits.mean()[chosen]
        self.kept_rounds[chosen] = draws

    def look(self, active: Tensor, draws: int) -> Tensor:
        """The images that need more draws after `draws` of them."""
        if draws == self.plan.samples:
            return active[:0]
        if self.plan.verify:
            return active
        return active[self.kept_rounds[active] == 0]

    def rows(self) -> dict[str, Tensor]:
        """Its part of the fields of `Passes`."""
        found = {
            "logits": self.logits.mean(),
            "logits_importance": self.logits.log_mean_exp(),
            "view_log_prob_classes": self.classes.mean(),
            "rounds": self.rounds,
        }
        if self.plan.verify:
            late = self.kept_rounds == 0
            found["adaptive_rounds"] = torch.where(late, self.rounds, self.kept_rounds)
            found["adaptive_logits"] = torch.where(late[:, None], found["logits"], self.kept_logits)
        if self.curve:
            found["curve_logits"] = torch.stack(self.curve, dim=1)
        return found


def nearest_distance(model: ProtoFlow, latent: Tensor) -> Tensor:
    """min_{c,k} ‖z − μ_{c,k}‖ over living prototypes, (N,) (`fig:distance_closest_proto`).

    Read off the log-density of unit Gaussians, −½‖z − μ‖² − ½D log 2π, which is computed in wide
    floats block by block: the means are never copied whole.
    """
    mixtures = model.mixtures
    means = mixtures.mean[mixtures.mask]
    unit = means.new_ones(()).expand(means.shape)
    nearest = gaussian_log_prob(mixtures.flatten(latent), means, unit).amax(1)
    return (-2 * nearest - mixtures.num_dims * LOG_2PI).clamp_min(0).sqrt()


def _winner(table: Tensor) -> Tensor:
    """argmax_{c,k} p(f(x) | P_{c,k}) (`eq:ml`) as c·K + k, (N,)."""
    return table.flatten(1).argmax(1)
