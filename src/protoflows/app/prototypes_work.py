"""What the tab Prototypes computes, once for everybody: of a prototype, and of an edit."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch

from protoflows.app import markup as m
from protoflows.app import prototypes_view as view
from protoflows.app.edits import Edits, Pair, merged_into, merges_of, switch_on, switched_off
from protoflows.app.encoded import Progress, explained, nearest_images
from protoflows.app.prototypes_view import Nearest, Samples
from protoflows.app.score import compare
from protoflows.app.workspace import Workspace
from protoflows.explain.pictures import prototype_title
from protoflows.model import evaluating

RADII = (0.0, 0.1, 0.2, 0.35, 0.5, 0.7, 1.0, 1.5, 2.0, 3.0)
FIRST_RADIUS = 4
"""Index of the radius that is shown first."""
_FEW_RADII = (0.0, 0.25, 0.5, 1.0, 2.0)
_LARGE = 4096  # values per image above which decoding a hundred samples takes too long
_SAMPLES, _FEW_SAMPLES = 12, 6


@dataclass(frozen=True)
class Opened:
    """The prototype that a visitor looks at.

    Attributes:
        prototype: Which.
        seed: Of its samples.
        radius: Index of the radius that is seen.
    """

    prototype: Pair
    seed: int = 0
    radius: int = FIRST_RADIUS


@torch.no_grad()
def draw_samples(
    workspace: Workspace, edits: Edits, prototype: Pair, seed: int, progress: Progress | None = None
) -> Samples:
    """Samples of a living prototype inside growing radii, along the same directions.

    Args:
        workspace: The model.
        edits: What was done to it.
        prototype: Which.
        seed: Of the draw.
        progress: Called with the radii done and all radii.
    """
    label, index = prototype
    large = workspace.model.config.flow.dims > _LARGE
    radii, num = (_FEW_RADII, _FEW_SAMPLES) if large else (RADII, _SAMPLES)

    def draw() -> Samples:
        model, rows = workspace.edited(edits), []
        with evaluating(model):
            for done, radius in enumerate(radii):
                # One seed for every radius: the draw is an inverted distribution function, so
                # that a sample moves along its direction as the radius grows.
                z = model.draw_latents(
                    num, label=label, prototype=index, truncation=radius, seed=seed
                ).latent
                rows.append(model.decode_latent(z, temperature=0).cpu())
                if progress is not None:
                    progress(done + 1, len(radii))
        return Samples(radii, torch.stack(rows), seed)

    # Only merging moves a prototype: other edits leave its samples as they are.
    return workspace.cached(("samples", merges_of(edits, label), prototype, seed), draw)


def find_nearest(
    workspace: Workspace, edits: Edits, prototype: Pair, progress: Progress | None = None
) -> Nearest | None:
    """The training images nearest to a prototype's mean; None where no images are there.

    Args:
        workspace: The model and its data.
        edits: What was done to the model.
        prototype: Which.
        progress: Called with the batches encoded and all batches.
    """
    found = workspace.neighbourhood()
    if found is None:
        return None
    split, source = found
    encoded = workspace.encode(split, 1, progress)
    model = workspace.edited(edits)
    counts = workspace.cached(("explained", edits), lambda: explained(model, encoded))
    near = nearest_images(model, encoded, prototype)
    return Nearest(
        split.images[near], split.labels[near], int(counts[prototype]), len(split), source
    )


def head_of(workspace: Workspace, edits: Edits, prototype: Pair) -> str:
    """What a prototype is, at once."""
    model, gone = workspace.edited(edits), merged_into(edits)
    state = "switched off" if prototype in switched_off(edits) else ""
    if prototype in gone:
        state = f"part of {prototype_title(model, gone[prototype])} now"
    mean = workspace.mean_images(edits, prototype[0])[prototype]
    return view.render_head(model, prototype, mean, state)


def open_pages(
    workspace: Workspace, edits: Edits, opened: Opened, report: Callable[[str], Progress]
) -> Iterator[str]:
    """All about a prototype: what is quick first, its nearest images once they are found.

    Args:
        workspace: The model and its data.
        edits: What was done to the model.
        opened: Which prototype.
        report: Makes a report of progress from what is being done.
    """
    pair = opened.prototype
    if pair in merged_into(edits):
        yield ""
        return
    edits = switch_on(edits, pair)  # one that is off is looked at as it was before
    model, levels = workspace.edited(edits), workspace.model.config.flow.levels
    found = draw_samples(workspace, edits, pair, opened.seed, report("Drawing samples"))
    samples = view.render_samples(found, levels, min(opened.radius, len(found.radii) - 1))
    close = view.closest_prototypes(model, pair)
    images = {p: workspace.mean_images(edits, p[0])[p] for p, _ in close}
    shown = [samples, view.render_closest(model, close, images, pair[0])]
    yield m.page(*shown, m.note("Looking for the nearest images …"))
    near = find_nearest(workspace, edits, pair, report("Encoding images"))
    yield m.page(*shown, view.render_nearest(near, model, pair[0]))


def score_page(workspace: Workspace, edits: Edits, report: Progress) -> str:
    """How good the edited model is, and what became of its answers.

    Args:
        workspace: The model and its data.
        edits: What was done to the model.
        report: Told of the first encoding's progress.
    """
    found = workspace.held_out()
    if found is None:
        return m.page(m.message("No labelled images to measure edits on are within reach."))
    split, where = found
    was = workspace.score((), split, report)
    if not edits:
        return view.render_score(was, was, None, where)
    now = workspace.score(edits, split, report)
    before, after = workspace.answers((), split), workspace.answers(edits, split)
    return view.render_score(was, now, compare(before, after, split.labels), where)
