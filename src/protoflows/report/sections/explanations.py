"""Right and wrong decisions, explained."""

from __future__ import annotations

from protoflows.explain.explanation import explain
from protoflows.explain.html import paragraph, picture, subheading
from protoflows.report.decisions import Decision
from protoflows.report.material import Material
from protoflows.report.section import Section, missing


def explanations(material: Material) -> Section:
    """This looks like that, for decisions from sure to unsure and for the surest errors."""
    found = material.decisions
    body = [paragraph(f"Of {len(material.shown):,} {material.shown_kind}: {_counts(material)}")]
    title = "Right decisions" if found.judged else "Decisions that nobody has judged"
    if found.right:
        body.append(subheading(title))
        body += [_explained(material, d) for d in found.right]
    if found.judged:
        body.append(subheading("Wrong decisions"))
        body += [_explained(material, d) for d in found.wrong]
        if not found.wrong:
            body.append(missing("errors: there were none among these images."))
    return Section(
        "explanations", "Why it decided as it did",
        "At the top of each picture: the image, the probabilities, and the exact evidence, a sum "
        "over positions for the class (orange) against the runner-up (purple). Below, the "
        "prototypes with the largest shares of the decision: “this” part of the image looks like "
        "“that” part of a training image; the map shows how much each patch raises the prototype's "
        "likelihood. Decisions are picked by rule, from the surest to the least sure; of the "
        "errors, the surest.",
        "Patch maps are an approximation, made by setting patches into the mean image: they show "
        "what a patch does there, not in the whole image. The parts that look alike are the "
        "likeliest ones, which are often plain ones. The exact evidence is exact, but with "
        "attention in the nets each of its positions sees the whole image. A convincing "
        "explanation does not make a decision right: compare the errors.",
        tuple(body), short="Right and wrong decisions",
    )  # fmt: skip


def _counts(material: Material) -> str:
    found = material.decisions
    if not found.judged:
        return "no labels to judge them by."
    text = f"{found.num_right:,} decided right, {found.num_wrong:,} wrong."
    return text if material.test is not None else text + " The model has been trained on them."


def _explained(material: Material, decision: Decision) -> str:
    plan, shown = material.plan, material.shown
    e = explain(
        material.model, shown.images[decision.index], samples=plan.samples, seed=plan.seed,
        parts=material.source.parts, perturbations_per_eval=plan.batch_size,
    )  # fmt: skip
    return picture(e.figure(), f"{material.verdict(decision)} ({decision.rank}).")
