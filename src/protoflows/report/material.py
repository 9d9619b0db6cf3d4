"""What several sections share, measured once and when first asked for."""

from __future__ import annotations

from functools import cached_property

import torch
from torch import Tensor

from protoflows.data import Split
from protoflows.data.splits import stratified_choice
from protoflows.evaluation import Evaluation, evaluate
from protoflows.evaluation.evaluate import classify
from protoflows.explain.maps import PrototypeMap, map_prototypes
from protoflows.explain.neighbours import Neighbours, find_neighbours
from protoflows.explain.pictures import living_prototypes
from protoflows.explain.readout import read_out
from protoflows.report.decisions import Decision, Decisions, choose_decisions
from protoflows.report.source import Plan, Source


class Material:
    """A source with everything that is measured of it.

    Args:
        source: The model and its run.
        plan: How much is measured.
    """

    def __init__(self, source: Source, plan: Plan) -> None:
        self.source, self.plan = source, plan
        self.model = source.model
        self.class_names = source.model.config.class_names
        self.levels = source.model.config.flow.levels

    @cached_property
    def test(self) -> Split | None:
        """The test images that are looked at, every class by its share."""
        return self._some(self.source.test, self.plan.images)

    @cached_property
    def train(self) -> Split | None:
        """The training images that prototypes are compared with."""
        return self._some(self.source.train, self.plan.train_images)

    def _some(self, split: Split | None, count: int) -> Split | None:
        if split is None or len(split) == 0 or len(split) <= count:
            return split if split is not None and len(split) else None
        return split.select(stratified_choice(split.labels, count, self.plan.seed))

    @cached_property
    def evaluation(self) -> Evaluation | None:
        """Figures of the test images; None without any."""
        if self.test is None:
            return None
        plan = self.plan
        return evaluate(
            self.model, self.test, samples=plan.samples, batch_size=plan.batch_size, seed=plan.seed
        )

    @cached_property
    def neighbours(self) -> Neighbours | None:
        """What training images say of the prototypes; None without any."""
        if self.train is None:
            return None
        plan = self.plan
        return find_neighbours(
            self.model, self.train.images, seed=plan.seed, batch_size=plan.batch_size
        )

    @cached_property
    def map(self) -> PrototypeMap:
        """Divergences, t-SNE and weights."""
        return map_prototypes(self.model, seed=self.plan.seed)

    @cached_property
    def shown(self) -> Split:
        """Images that examples are taken of: of the test split, or what there is instead."""
        if self.test is not None:
            return self.test
        extras = self.model.extras
        if extras is not None and extras.images is not None and len(extras.images):
            labels = extras.labels
            if labels is None:
                labels = torch.full((len(extras.images),), -1)
            return Split(extras.images, labels)
        # Always there: the prototypes' own pictures, which nobody has labelled.
        means = [self.model.prototype_mean_image(c, k).cpu() for c, k in
                 living_prototypes(self.model)]  # fmt: skip
        return Split(torch.stack(means), torch.full((len(means),), -1))

    @property
    def shown_kind(self) -> str:
        """What `shown` holds, in words."""
        if self.test is not None:
            return "test images"
        extras = self.model.extras
        if extras is not None and extras.images is not None and len(extras.images):
            return "training images that were saved with the model"
        return "pictures of the prototypes' means"

    @cached_property
    def log_proba(self) -> Tensor:
        """log p(y|x) of the images `shown`, (N, C)."""
        if self.test is not None and self.evaluation is not None:
            return classify(self.model, self.evaluation.passes.logits)
        plan = self.plan
        found = read_out(
            self.model, self.shown.images, samples=plan.samples, seed=plan.seed,
            batch_size=plan.batch_size,
        )  # fmt: skip
        return found.posterior.clamp_min(torch.finfo(torch.float64).tiny).log()

    @cached_property
    def decisions(self) -> Decisions:
        """Which of the images `shown` are explained."""
        return choose_decisions(self.log_proba, self.shown.labels.cpu(), self.plan.examples)

    def name_of(self, label: int) -> str:
        """A class's name; "unlabelled" for −1."""
        return self.class_names[label] if label >= 0 else "unlabelled"

    def verdict(self, decision: Decision) -> str:
        """A decision in a few words."""
        predicted = self.name_of(decision.predicted)
        if decision.label < 0:
            return f"taken for {predicted} (unlabelled)"
        if decision.label == decision.predicted:
            return f"{predicted}, rightly"
        return f"{self.name_of(decision.label)}, taken for {predicted}"
