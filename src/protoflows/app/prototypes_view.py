"""Prototypes as pages: all of them, one of them, and what editing them did to the figures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from protoflows.app import markup as m
from protoflows.app.edits import Edits, Pair, describe, merged_into, switched_off
from protoflows.app.score import Change, Score
from protoflows.evaluation.estimate import Estimate
from protoflows.explain.pictures import prototype_title
from protoflows.model import ProtoFlow
from protoflows.prototypes import modified_hellinger

CLOSEST = 6
_SMALL = 1e-12


# ---- all of them ------------------------------------------------------------------------------


def render_gallery(
    model: ProtoFlow,
    edits: Edits,
    images: dict[Pair, Tensor],
    chosen: Pair | None,
) -> str:
    """Means to press, a row for each class.

    Args:
        model: The edited model.
        edits: What was done to it.
        images: The prototypes to show, by class and number.
        chosen: The one that is open.
    """
    names, levels = model.config.class_names, model.config.flow.levels
    off, gone = switched_off(edits), merged_into(edits)
    weights = model.mixtures.weights.detach()
    rows = []
    for c in dict.fromkeys(c for c, _ in images):
        buttons = []
        for pair, image in images.items():
            if pair[0] != c:
                continue
            share = 100 * float(weights[pair])
            called = model.config.prototype_names.get(pair, "")
            state, caption = "", f"{share:.0f} %"
            if pair in gone:
                state, caption = "merged", f"in {gone[pair][1]}"
            elif pair in off:
                state, caption = "switched off", "off"
            label = f"prototype {pair[1]} of {names[c]}, {state or f'weight {share:.1f} %'}"
            kind = "pf-gone" if state else ""
            picture = m.img(m.image_url(image, levels), "")
            buttons.append(
                m.button(picture, pick_value(pair), f"{called + ': ' if called else ''}{label}",
                         called or caption, kind, pair == chosen)
            )  # fmt: skip
        rows.append(
            f'<section class="pf-class"><h4>{m.text(names[c])}</h4>'
            f'<div class="pf-row">{"".join(buttons)}</div></section>'
        )
    return m.page(f'<div class="pf-classes">{"".join(rows)}</div>')


def pick_value(prototype: Pair) -> str:
    """What a press on a prototype reports."""
    return f"{prototype[0]}-{prototype[1]}"


# ---- what editing did ---------------------------------------------------------------------------


def render_score(was: Score, now: Score, change: Change | None, where: str) -> str:
    """Figures now, and by how much they differ from the model as it was loaded.

    Args:
        was: Of the model as loaded.
        now: Of the edited model.
        change: Answers that changed; None where nothing was edited.
        where: What they were measured on.
    """
    edited = change is not None
    chips = [
        _chip("accuracy", now.accuracy, was.accuracy, 100, " %", 1, up=True, edited=edited),
        _chip("−log p(class)", now.nll, was.nll, 1, "", 3, up=False, edited=edited),
        _chip("calibration error", now.ece, was.ece, 1, "", 3, up=False, edited=edited),
        _chip("bits/dim", now.bits, was.bits, 1, "", 3, up=False, edited=edited),
    ]
    gone = was.prototypes - now.prototypes
    said = f"{-gone:+d}" if gone else ("no change" if edited else "as loaded")
    chips.append(m.chip("prototypes", str(now.prototypes), said.replace("-", "−")))
    words = f"Measured on {where}."
    if change is not None:
        words = (
            f"{_count(change.changed, 'answer')} of {where} changed: {change.mended} became right, "
            f"{change.spoiled} wrong."
        )
        if where.endswith("test images"):
            words += " Chosen by these images, an edit looks better on them than on others."
    return m.page(f'<div class="pf-chips">{"".join(chips)}</div>', m.note(words))


def _chip(
    name: str,
    now: Estimate,
    was: Estimate,
    factor: float,
    unit: str,
    digits: int,
    *,
    up: bool,
    edited: bool,
) -> str:
    value = f"{factor * now.value:.{digits}f}{unit}"
    difference = factor * (now.value - was.value)
    if not edited:
        return m.chip(name, value, f"± {factor * now.stderr:.{digits}f}")
    if abs(difference) < 0.5 * 10**-digits:
        return m.chip(name, value, "no change")
    better = (difference > 0) == up
    words = f"{difference:+.{digits}f} {'better' if better else 'worse'}".replace("-", "−")
    return m.chip(name, value, words, "pf-better" if better else "pf-worse")


def render_edits(model: ProtoFlow, edits: Edits) -> str:
    """All edits in words, the last one last."""
    if not edits:
        return m.page(m.note("Nothing edited yet: only you see what you edit here."))
    items = "".join(f"<li>{m.text(describe(model, edit))}</li>" for edit in edits)
    return m.page(f'<ol class="pf-edits">{items}</ol>')


def _count(number: int, word: str) -> str:
    return f"{number} {word}" if number == 1 else f"{number} {word}s"


# ---- one of them --------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Samples:
    """Samples of a prototype at growing truncation radii.

    Attributes:
        radii: In standard deviations of each dimension.
        images: uint8 (R, S, C, H, W); column s is one direction, followed outwards.
        seed: That they were drawn with.
    """

    radii: tuple[float, ...]
    images: Tensor
    seed: int


@dataclass(frozen=True, eq=False)
class Nearest:
    """Training images near a prototype's mean.

    Attributes:
        images: uint8 (M, C, H, W).
        labels: Theirs, −1 where unknown.
        explained: How many images this prototype explains better than all others.
        total: Of how many.
        source: What they are.
    """

    images: Tensor
    labels: Tensor
    explained: int
    total: int
    source: str


def render_head(model: ProtoFlow, prototype: Pair, mean: Tensor, state: str = "") -> str:
    """What is known of a prototype at once.

    Args:
        model: The edited model.
        prototype: Which.
        mean: Its mean's image.
        state: "switched off" or what else it is now; empty for a living one.
    """
    c, _ = prototype
    weight = float(model.mixtures.weights.detach()[prototype])
    bar = m.bar(weight, "weight in its class", f"{100 * weight:.1f} %", strong=True)
    about = m.message(f"This prototype is {state}.") if state else bar
    picture = m.img(m.image_url(mean, model.config.flow.levels), "image of the mean", "pf-large")
    return (
        f'<div class="pf-verdict">{picture}<div><span>class {m.text(model.config.class_names[c])}'
        f'</span><strong class="pf-name">{m.text(prototype_title(model, prototype))}</strong>'
        f"{about}</div></div>"
    )


def render_samples(found: Samples, levels: int, shown: int) -> str:
    """Samples behind a slider that chooses the radius in the browser, without the server.

    Args:
        found: The samples.
        levels: Of the model's images.
        shown: Which radius is seen first.
    """
    frames = []
    for i, (radius, row) in enumerate(zip(found.radii, found.images, strict=True)):
        pictures = "".join(m.img(m.image_url(image, levels), f"sample {n + 1}")
                           for n, image in enumerate(row))  # fmt: skip
        hidden = "" if i == shown else " hidden"
        frames.append(
            f'<div data-frame="{i}"{hidden}><p class="pf-note">every dimension within '
            f"<b>{radius:g}</b> standard deviations of the mean</p>"
            f'<div class="pf-samples">{pictures}</div></div>'
        )
    draw = (
        '<button type="button" class="pf-plain" data-pick="draw" data-with-frame="draw">'
        "New draw</button>"
    )
    return (
        m.heading("Samples", "drawn about the mean")
        + '<div class="pf-way">'
        + m.slider(len(frames), shown, "truncation", "at the mean", "far out")
        + "".join(frames)
        + f'<div class="pf-buttons">{draw}</div></div>'
    )


def render_nearest(found: Nearest | None, model: ProtoFlow, label: int) -> str:
    """Training images whose latents are nearest."""
    if found is None:
        return m.note("No training images are within reach to compare with.")
    names, tiles = model.config.class_names, []
    for image, c in zip(found.images, found.labels.tolist(), strict=True):
        name = names[c] if c >= 0 else "no label"
        kind = "" if c in (label, -1) else "pf-other"
        picture = m.img(m.image_url(image, model.config.flow.levels), f"labelled {name}")
        tiles.append(m.tile(picture, name + (" (other class)" if kind else ""), kind))
    return (
        m.heading("Nearest images", f"among {found.source}")
        + f'<div class="pf-tiles pf-few">{"".join(tiles)}</div>'
        + m.note(f"It explains {found.explained:,} of these {found.total:,} images better than any "
                 "other prototype does.")
    )  # fmt: skip


def closest_prototypes(
    model: ProtoFlow, prototype: Pair, num: int = CLOSEST
) -> Sequence[tuple[Pair, float]]:
    """The living prototypes at the least modified Hellinger divergence (`eq:hell`)."""
    mixtures = model.mixtures
    with torch.no_grad():
        where = mixtures.mask.nonzero()
        where = where[(where != torch.tensor(prototype, device=where.device)).any(1)]
        own = mixtures.mean[prototype].cpu().double(), mixtures.std[prototype].cpu().double()
        rows = []
        for part in where.split(256):
            c, k = part.T
            others = mixtures.mean[c, k].cpu().double(), mixtures.std[c, k].cpu().double()
            rows.append(modified_hellinger(*own, *others))
    if not rows or not len(where):
        return []
    values, order = torch.cat(rows).sort(stable=True)
    pairs = [(int(c), int(k)) for c, k in where[order[:num]].tolist()]
    return list(zip(pairs, values[:num].tolist(), strict=True))


def render_closest(
    model: ProtoFlow, found: Sequence[tuple[Pair, float]], images: dict[Pair, Tensor], label: int
) -> str:
    """Prototypes that are most alike, to press."""
    if not found:
        return ""
    names, buttons = model.config.class_names, []
    for pair, value in found:
        picture = m.img(m.image_url(images[pair], model.config.flow.levels), "")
        title = prototype_title(model, pair)
        buttons.append(
            m.button(picture, pick_value(pair), f"open {title}",
                     f"{names[pair[0]]} · {pair[1]}\n{_short(value)}")
        )  # fmt: skip
    alike = sum(pair[0] == label for pair, _ in found)
    return (
        m.heading("Closest prototypes", "modified Hellinger divergence: 0 alike, 1 apart")
        + f'<div class="pf-grid-few">{"".join(buttons)}</div>'
        + (m.note("Two of one class that are nearly alike can be merged.") if alike else "")
    )


def _short(value: float) -> str:
    return f"{value:.3f}" if value >= 0.0005 or value < _SMALL else f"{value:.1e}"  # noqa: PLR2004
