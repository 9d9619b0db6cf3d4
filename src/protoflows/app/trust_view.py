"""Trust as a page: figures with their errors, diagrams with how to read them, wrong decisions."""

from __future__ import annotations

import torch

from protoflows.app import markup as m
from protoflows.app.encoded import Answers
from protoflows.app.score import Score
from protoflows.app.trust_work import Apart
from protoflows.data import Split
from protoflows.evaluation.accuracy import hits
from protoflows.evaluation.calibration_error import calibration_error, reliability
from protoflows.evaluation.confusion import confusion
from protoflows.evaluation.estimate import Estimate
from protoflows.evaluation.figures import (
    draw_likelihoods,
    draw_reliability,
    draw_risk_coverage,
)
from protoflows.evaluation.risk_coverage import log_odds, risk_coverage
from protoflows.report.sections.confusion import draw_confusion

SHOWN = 48
"""Wrong decisions that are shown."""
_NEARLY = 99.5


def render_summary(found: Score, where: str, edits: int) -> str:
    """The figures, of which model, and on what.

    Args:
        found: The figures.
        where: What they were measured on.
        edits: How many edits the visitor made.
    """
    model = "the model as it was loaded"
    if edits:
        model = f"the model as you edited it ({edits} edit{'s' if edits > 1 else ''})"
    chips = [
        _chip("accuracy", found.accuracy, 100, " %", 1),
        _chip("−log p(class), nats", found.nll, 1, "", 3),
        _chip("Brier score", found.brier, 1, "", 3),
        _chip("calibration error", found.ece, 1, "", 3),
        _chip("area under risk curve", found.aurc, 1, "", 4),
        _chip("bits/dim", found.bits, 1, "", 3),
    ]
    return m.page(
        m.message(f"Measured: {model}, on {where}. ± is one standard error over images."),
        f'<div class="pf-chips">{"".join(chips)}</div>',
    )


def _chip(name: str, value: Estimate, factor: float, unit: str, digits: int) -> str:
    shown, spread = (f"{factor * v:.{digits}f}" for v in value)
    return m.chip(name, shown + unit, f"± {spread}")


def render_errors(
    split: Split, found: Answers, wrong: list[int], names: tuple[str, ...], levels: int
) -> str:
    """Wrong decisions to press, the surest first.

    Args:
        split: The images with their labels.
        found: What the model says of them.
        wrong: Indices of those it is wrong about.
        names: Of the classes.
        levels: Of the images.
    """
    head = m.heading("Wrong decisions", f"{len(wrong):,} of {len(split):,}, the surest first")
    if not wrong:
        return m.page(head, m.note("None of these images was classified wrong."))
    buttons = []
    for i in wrong[:SHOWN]:
        said = int(found.log_proba[i].argmax())
        sure = 100 * float(found.log_proba[i, said].exp())
        percent = "> 99 %" if sure > _NEARLY else f"{sure:.0f} %"  # never sure beyond doubt
        true, told = names[int(split.labels[i])], names[said]
        buttons.append(
            m.button(
                m.img(m.image_url(split.images[i], levels), ""), i,
                f"why {told} and not {true}? image {i}", f"{true} → {told}\n{percent}",
            )
        )  # fmt: skip
    more = "" if len(wrong) <= SHOWN else f" {len(wrong) - SHOWN:,} more are not shown."
    return m.page(
        head,
        f'<div class="pf-grid-few">{"".join(buttons)}</div>',
        m.note(
            f"Label → what the model said, and how sure it was. Press one to see why.{more} "
            "Labels can be wrong, too."
        ),
    )


def render_diagrams(found: Answers, labels: torch.Tensor, names: tuple[str, ...]) -> str:
    """Reliability, risk against coverage, and confusion.

    Args:
        found: What the model says.
        labels: What is right, (N,).
        names: Of the classes.
    """
    proba = found.log_proba.exp()
    right = hits(found.log_proba, labels)
    ece = calibration_error(proba, labels).ece
    risk = risk_coverage(log_odds(found.log_proba), right)
    counts = confusion(found.log_proba, labels)
    cards = [
        _card(
            "Do its probabilities mean what they say?",
            m.figure(draw_reliability(reliability(proba, labels), ece), "reliability diagram"),
            "Bars are the share of right answers among images of that confidence. On the dashed "
            "line, 90 % sure means right nine times in ten; below it the model is too sure.",
        ),
        _card(
            "Which classes are taken for which?",
            m.figure(draw_confusion(counts, names), "confusion matrix"),
            "A row is a true class, a column what the model said; blue is right, orange the share "
            "of the row that is wrong.",
        ),
        _card(
            "What would abstaining gain?",
            m.figure(draw_risk_coverage(risk), "risk against coverage"),
            "From right to left, the images that it is least sure of are left out. A curve that "
            "falls says that it knows what it does not know.",
        ),
    ]
    return m.page(f'<div class="pf-cards">{"".join(cards)}</div>')


def _card(title: str, drawn: str, note: str) -> str:
    return f'<section class="pf-card"><h4>{m.text(title)}</h4>{drawn}{m.note(note)}</section>'


def render_apart(found: Apart, kind: str) -> str:
    """How well other images are told from its own.

    Args:
        found: The comparison.
        kind: What the others are.
    """
    drawn = m.figure(
        draw_likelihoods(found.own, found.other, kind), f"log p(x) of its own images and of {kind}"
    )
    chips = [
        m.chip("AUROC of log p(x)", f"{found.auroc[0]:.3f}", f"± {found.auroc[1]:.3f}"),
        m.chip("AUROC of typicality", f"{found.typicality[0]:.3f}", f"± {found.typicality[1]:.3f}"),
        m.chip("pass for its own", f"{100 * found.passing:.0f} %", "at 95 % recall"),
    ]
    warning = ""
    if found.auroc[0] < 0.5:  # noqa: PLR2004
        warning = m.message(
            "These images are likelier than the model's own: likelihood alone does not tell them "
            "apart. That is known of flows, which find simple images likely whatever they show."
        )
    note = (
        "AUROC is the chance that one of its own images scores higher than one of the others: 1 "
        "tells all apart, 0.5 none. Typicality distrusts images that are too likely, too."
    )
    return m.page(f'<div class="pf-chips">{"".join(chips)}</div>', drawn, warning, m.note(note))
