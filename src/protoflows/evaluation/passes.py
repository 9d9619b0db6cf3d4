"""The Monte-Carlo loop: one flow pass per (image, draw, view), from which all figures are made."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from protoflows.data import Augment, Split
from protoflows.distributed import world_size
from protoflows.evaluation.batch import evaluate_batch
from protoflows.evaluation.plan import BatchPlan
from protoflows.evaluation.settling import looks
from protoflows.evaluation.store import BatchStore, OnMismatch, fingerprint
from protoflows.model import ProtoFlow, evaluating

CURVE = (1, 2, 5, 10, 25, 50, 100)
COLLECTABLE = ("robustness", "distances", "curve")


@dataclass(frozen=True, eq=False)
class Passes:
    """What the draws of the noise say about N images, averaged image by image.

    "Decision" figures come from the augmented views where there are any (`tta` > 0), else from the
    image itself; densities always come from the image itself, because an average over augmented
    views bounds nothing. Logits are log p(x|c) at the model's variance temperature, without priors:
    `model.classify` turns them into log p(y|x).

    Attributes:
        logits: What decides: mean over draws and views, (N, C).
        logits_importance: The same with log-mean-exp over draws and views.
        plain_logits: Mean over draws of the image itself; `logits` where `tta` is 0 and nothing
            stopped early.
        plain_logits_importance: The same with log-mean-exp.
        log_prob_classes: log p(x|c) as trained, mean over draws of the image itself, (N, C).
        view_log_prob_classes: log p(x|c) as trained, mean over draws and decision views, (N, C):
            the paper's protocol.
        log_prob_mean: log p(x), the mean of one-draw bounds, (N,).
        log_prob_importance: log p(x), the bound by log-mean-exp over draws, (N,).
        log_prob_variance: Variance of the one-draw bound over the image's draws, (N,); NaN for one
            draw.
        winner: Most likely prototype (`eq:ml`) of the image itself, as c·K + k, (N,).
        rounds: Draws of every decision view that each image took, (N,).
        passes: Flow passes that each image took, all views together, (N,).
        winner_second: `winner` by a second draw, (N,); with "robustness".
        winner_noisy: `winner` of the noisy image by a second draw, (N,); with "robustness".
        distance: From the embedding to the nearest prototype's mean, (N,); with "distances".
        curve_logits: `logits` after the first `curve` draws, float32 (N, J, C); with "curve".
        curve_log_prob: log p(x) after as many: mean bound, importance bound, and the class most
            likely on average, float64 (N, J, 3); with "curve".
        adaptive_logits: `logits` as they stood where the adaptive rule would have stopped, (N, C);
            with `verify`.
        adaptive_rounds: `rounds` at which it would have stopped, (N,); with `verify`.
        samples: Draws of the full protocol.
        plain_samples: Draws of the image itself that densities come from.
        tta: Augmented views.
        adaptive: The confidence of the adaptive rule, or None.
        curve: Numbers of draws of the curve.
    """

    logits: Tensor
    logits_importance: Tensor
    plain_logits: Tensor
    plain_logits_importance: Tensor
    log_prob_classes: Tensor
    view_log_prob_classes: Tensor
    log_prob_mean: Tensor
    log_prob_importance: Tensor
    log_prob_variance: Tensor
    winner: Tensor
    rounds: Tensor
    passes: Tensor
    winner_second: Tensor | None = None
    winner_noisy: Tensor | None = None
    distance: Tensor | None = None
    curve_logits: Tensor | None = None
    curve_log_prob: Tensor | None = None
    adaptive_logits: Tensor | None = None
    adaptive_rounds: Tensor | None = None
    samples: int = 1
    plain_samples: int = 1
    tta: int = 0
    adaptive: float | None = None
    curve: tuple[int, ...] = ()

    def __len__(self) -> int:
        """Number of images."""
        return len(self.logits)


@torch.no_grad()
def run_passes(
    model: ProtoFlow,
    images: Tensor | Split,
    *,
    samples: int,
    tta: int = 0,
    augment: Augment | None = None,
    batch_size: int = 256,
    seed: int = 0,
    start_index: int = 0,
    adaptive: float | None = None,
    verify: bool = False,
    collect: Collection[str] = (),
    store: Path | None = None,
    mismatch: OnMismatch = "refuse",
    progress: Callable[[int, int], None] | None = None,
) -> Passes:
    """Evaluate images by several draws of the noise and, if asked, several views.

    Memory is bounded by the batch: a draw leaves only what it adds to running sums, and what is
    kept of an image are the rows of `Passes`. Every draw follows from the seed, the image's place
    and the draw's number, so that results do not depend on the batch size (but for the rounding of
    float32, which differs with it). Several processes share the batches, and all get the whole.

    Args:
        model: The model, on the device that does the work.
        images: uint8 images (N, C, H, W), or a split.
        samples: Draws per view of an image.
        tta: Augmented views per image; they decide the class, together. 0: the image itself does.
        augment: What makes augmented views.
        batch_size: Images per pass.
        seed: From which all draws follow.
        start_index: Place of the first image in its data set.
        adaptive: Stop drawing for an image once its class is settled at this confidence, see
            `Settling`; the image itself then gets `looks(samples)[0]` draws. None: draw all.
        verify: Draw all in spite of `adaptive`, noting where it would have stopped.
        collect: What else to keep: any of "robustness" (one or two passes more per image),
            "distances", "curve" (not where images stop early).
        store: Folder for finished batches: an interrupted evaluation, repeated, goes on from them.
        mismatch: What to do where `store` holds batches of another evaluation: "refuse" or "clear".
        progress: Called with the images done and all images, after every batch.
    """
    x = images.images if isinstance(images, Split) else images
    if len(x) == 0:
        raise ValueError("images must hold at least one image, got none")
    plan = _plan(model, samples, tta, augment, batch_size, seed, adaptive, verify, collect)
    starts = range(0, len(x), batch_size)
    rank, processes = (dist.get_rank(), world_size()) if world_size() > 1 else (0, 1)
    keep = None
    if store is not None:
        keep = _open_store(store, model, x, plan, batch_size, start_index, mismatch, rank)
    mine: dict[int, dict[str, Tensor]] = {}
    with evaluating(model):
        for number, start in enumerate(starts):
            if number % processes != rank:
                continue
            part = x[start : start + batch_size]
            done = keep.read(start) if keep is not None else None
            if done is None:
                done = evaluate_batch(model, part, plan, start_index + start)
                if keep is not None:
                    keep.write(start, done)
            mine[start] = done
            if progress is not None:
                progress(min(len(x), start + batch_size), len(x))
    parts = _gather(mine)
    names = parts[0].keys()
    fields: dict[str, Any] = {name: torch.cat([part[name] for part in parts]) for name in names}
    return Passes(
        **fields,
        samples=samples,
        plain_samples=plan.plain_samples,
        tta=tta,
        adaptive=adaptive,
        curve=plan.curve,
    )


def _plan(
    model: ProtoFlow,
    samples: int,
    tta: int,
    augment: Augment | None,
    batch_size: int,
    seed: int,
    adaptive: float | None,
    verify: bool,
    collect: Collection[str],
) -> BatchPlan:
    for name, value, least in (
        ("samples", samples, 1),
        ("batch_size", batch_size, 1),
        ("tta", tta, 0),
    ):
        if value < least:
            raise ValueError(f"{name} must be ≥ {least}, got {value}")
    if tta and augment is None:
        raise ValueError(f"tta={tta} needs augment, an Augment that makes the views; got None")
    if adaptive is not None and not 0.5 < adaptive < 1:
        raise ValueError(f"adaptive must be above 0.5 and below 1 (or None), got {adaptive}")
    if verify and adaptive is None:
        raise ValueError("verify needs adaptive, the confidence of the rule to verify; got None")
    if unknown := sorted(set(collect) - set(COLLECTABLE)):
        raise ValueError(f"collect must hold {', '.join(COLLECTABLE)}, got {', '.join(unknown)}")
    stops = adaptive is not None and not verify
    if stops and "curve" in collect:
        raise ValueError("collect: the curve needs all draws; leave adaptive out, or set verify")
    early = looks(samples)
    return BatchPlan(
        samples=samples,
        plain_samples=early[0] if stops and early else samples,
        tta=tta,
        augment=augment,
        rows=batch_size,
        seed=seed,
        adaptive=adaptive,
        verify=verify,
        robustness="robustness" in collect,
        distances="distances" in collect,
        curve=tuple(sorted({n for n in (*CURVE, samples) if n <= samples}))
        if "curve" in collect
        else (),
    )


def _open_store(
    folder: Path,
    model: ProtoFlow,
    x: Tensor,
    plan: BatchPlan,
    batch_size: int,
    start_index: int,
    mismatch: OnMismatch,
    rank: int,
) -> BatchStore:
    settings = {f.name: getattr(plan, f.name) for f in dataclasses.fields(plan)}
    settings |= {"batch_size": batch_size, "start_index": start_index}
    settings.pop("augment")
    mark = fingerprint(model, x, plan.augment if plan.tta else None, settings)
    if rank == 0:
        opened = BatchStore(folder, mark, mismatch=mismatch)
    if world_size() > 1:
        dist.barrier()
    return opened if rank == 0 else BatchStore(folder, mark)


def _gather(mine: dict[int, dict[str, Tensor]]) -> list[dict[str, Tensor]]:
    """The batches of all processes, in order."""
    shares: list[Any] = [mine]
    if world_size() > 1:
        shares = [None] * world_size()
        dist.all_gather_object(shares, mine)
    merged = {start: batch for share in shares for start, batch in share.items()}
    return [merged[start] for start in sorted(merged)]
