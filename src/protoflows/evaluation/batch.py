"""All draws and views of one batch of images."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from protoflows.evaluation.plan import BatchPlan
from protoflows.evaluation.sums import DecisionSums, Draw, PlainSums
from protoflows.evaluation.views import NOISY, PLAIN, augmented_view, flow_seeds, noisy_view
from protoflows.model import ProtoFlow


def evaluate_batch(model: ProtoFlow, x: Tensor, plan: BatchPlan, start: int) -> dict[str, Tensor]:
    """The rows of `Passes` for one batch, on the CPU, by name.

    Args:
        model: The model, in eval mode.
        x: uint8 images (B, C, H, W), at most `plan.rows`.
        plan: What to draw.
        start: Place of the first image in its data set.
    """
    device = model.mixtures.mean.device
    views = _make_views(model, x, plan, start)
    everyone = torch.arange(len(x), device=device)
    plain, decision = PlainSums(model, len(x), plan), DecisionSums(model, len(x), plan)
    passes = torch.zeros(len(x), dtype=torch.int64, device=device)

    jobs = _plain_jobs(plan)
    for draw in _draws(model, views, jobs, everyone, plan, start):
        plain.add(draw)
        if plan.tta == 0 and draw.view == PLAIN and draw.sample < plan.samples:
            decision.add(draw)
    passes += len(jobs)

    deciding = range(1, plan.tta + 1) if plan.tta else (PLAIN,)
    active, drawn = everyone, 0
    for until in decision.stops:
        jobs = [(v, s) for s in range(drawn, until) for v in deciding]
        if not plan.tta:  # the first draws of the image itself were made above
            jobs = [(v, s) for v, s in jobs if s >= plan.plain_samples]
        for draw in _draws(model, views, jobs, active, plan, start):
            decision.add(draw)
        passes[active] += len(jobs)
        active, drawn = decision.look(active, until), until
        if len(active) == 0:
            break
    rows = {**plain.rows(), **decision.rows(), "passes": passes}
    return {name: tensor.cpu() for name, tensor in rows.items()}


def evaluate_together(
    models: Sequence[ProtoFlow], x: Tensor, plan: BatchPlan, start: int
) -> list[dict[str, Tensor]]:
    """The rows for several models with one flow, from passes that they share.

    The first model has all prototypes of the others. The images themselves decide, and all draws
    are made.

    Args:
        models: The models, in eval mode.
        x: uint8 images (B, C, H, W), at most `plan.rows`.
        plan: What to draw; neither views nor early stopping.
        start: Place of the first image in its data set.
    """
    if plan.tta or plan.adaptive is not None:
        raise ValueError("plan must have no augmented views and no adaptive rule")
    views = _make_views(models[0], x, plan, start)
    everyone = torch.arange(len(x), device=views[PLAIN].device)
    sums = [(PlainSums(m, len(x), plan), DecisionSums(m, len(x), plan)) for m in models]
    jobs = _plain_jobs(plan)
    for draw in _draws(models[0], views, jobs, everyone, plan, start):
        for model, (plain, decision) in zip(models, sums, strict=True):
            own = draw if model is models[0] else draw.read_by(model)
            plain.add(own)
            if own.view == PLAIN and own.sample < plan.samples:
                decision.add(own)
    passes = torch.full_like(everyone, len(jobs))
    rows = [{**plain.rows(), **decision.rows(), "passes": passes} for plain, decision in sums]
    return [{name: tensor.cpu() for name, tensor in own.items()} for own in rows]


def _plain_jobs(plan: BatchPlan) -> list[tuple[int, int]]:
    """(view, sample) of what is drawn of the image itself and of its noisy copy."""
    jobs = [(PLAIN, s) for s in range(max(plan.plain_samples, 1 + plan.robustness))]
    return [*jobs, (NOISY, 1)] if plan.robustness else jobs


def _make_views(model: ProtoFlow, x: Tensor, plan: BatchPlan, start: int) -> dict[int, Tensor]:
    x = x.to(model.mixtures.mean.device)
    views = {PLAIN: x}
    for view in range(1, plan.tta + 1):
        assert plan.augment is not None
        views[view] = augmented_view(x, plan.augment, view, start, plan.seed)
    if plan.robustness:
        views[NOISY] = noisy_view(x, model.flow.config.levels, start, plan.seed)
    return views


def _draws(
    model: ProtoFlow,
    views: dict[int, Tensor],
    jobs: Sequence[tuple[int, int]],
    index: Tensor,
    plan: BatchPlan,
    start: int,
) -> Iterator[Draw]:
    """Score (view, sample) jobs for the images at `index`; few images travel several to a pass."""
    size, num = len(views[PLAIN]), len(index)
    whole = num == size
    places = index.cpu()
    together = max(1, plan.rows // num)
    for first in range(0, len(jobs), together):
        now = jobs[first : first + together]
        seeds = torch.cat([flow_seeds(start, size, v, s, plan.seed)[places] for v, s in now])
        chosen = [views[v] if whole else views[v][index] for v, _ in now]
        scores = model.score(chosen[0] if len(now) == 1 else torch.cat(chosen), seeds=seeds)
        table, logits = scores.prototype_log_likelihood, scores.log_prob_classes
        if model.config.variance_temperature != 1:
            logits = scores.log_det[:, None] + model.tempered_log_likelihood(table)
        for i, (view, sample) in enumerate(now):
            rows = slice(i * num, (i + 1) * num)
            yield Draw(
                view, sample, index, logits[rows], scores.log_prob_classes[rows], table[rows],
                scores.latent[rows], scores.log_det[rows],
            )  # fmt: skip
