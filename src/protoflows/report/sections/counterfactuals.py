"""The least change that makes an image another class."""

from __future__ import annotations

import torch

from protoflows.explain.counterfactual import find_counterfactuals
from protoflows.explain.figures.paths import draw_counterfactuals
from protoflows.explain.html import paragraph, picture
from protoflows.report.decisions import Decision
from protoflows.report.material import Material
from protoflows.report.section import Section, missing


def counterfactuals(material: Material) -> Section:
    """Right decisions towards the runner-up, wrong ones towards the label."""
    shown = material.decisions.shown
    if len(material.class_names) < 2:  # noqa: PLR2004
        body = [missing("another class: the model has one.")]
    else:
        plan = material.plan
        index = torch.tensor([d.index for d in shown])
        target = torch.tensor([_target(material, d) for d in shown])
        found = find_counterfactuals(
            material.model, material.shown.images[index], target, seed=plan.seed,
            batch_size=plan.batch_size,
        )  # fmt: skip
        figure = draw_counterfactuals(found, material.levels, material.class_names, len(shown))
        body = [
            picture(figure, "Images, what became of them, and what changed."),
            paragraph(f"{int(found.success.sum())} of {len(shown)} reached their class."),
        ]
    return Section(
        "counterfactuals", "What would have made it another class",
        "For each image of the section above, the least change in latent space after which the "
        "model gives it another class: the runner-up where it was right, the true class where it "
        "was wrong. The result is an image of whole numbers that was shown to the model anew, with "
        "fresh noise. The map shows what became brighter (orange) and darker (purple), of "
        "coloured images how much changed.",
        "It is the least change along two kinds of path, towards the prototype and parallel to the "
        "way between prototypes, not the least of all. It says what changes the model's mind, not "
        "what makes something another thing in the world. A low percentile of log p(x) means that "
        "the result is an unusual image.",
        tuple(body), short="Counterfactuals",
    )  # fmt: skip


def _target(material: Material, decision: Decision) -> int:
    if decision.label >= 0 and decision.label != decision.predicted:
        return decision.label
    order = material.log_proba[decision.index].argsort(descending=True, stable=True)
    return next(c for c in order.tolist() if c != decision.predicted)
