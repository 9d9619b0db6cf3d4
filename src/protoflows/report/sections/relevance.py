"""Do the pixels that heatmaps name first matter first?"""

from __future__ import annotations

import torch

from protoflows.explain.faithfulness import RelevanceOrdering, relevance_ordering
from protoflows.explain.figures.trust import draw_relevance
from protoflows.explain.html import paragraph, picture, table
from protoflows.explain.parts import default_patch
from protoflows.report.material import Material
from protoflows.report.section import Section, missing


def relevance(material: Material) -> Section:
    """The relevance ordering test against random pixels and random patches."""
    extras = material.model.extras
    if extras is None or extras.mean_image is None:
        body = [
            missing("heatmaps need the mean training image, which this model was saved without.")
        ]
    else:
        tests = _measure(material)
        body = [
            picture(
                draw_relevance(test),
                f"Against random {test.control}: median likelihood while pixels come back, and "
                "each image's gap in area.",
            )
            for test in tests
        ]
        body.append(
            table(
                [
                    "heatmap's order against",
                    "median gap in nats",
                    "95 % interval",
                    "p (rank test)",
                    "random orders it beats",
                ],
                [_row(test) for test in tests],
            )
        )
        body.append(
            paragraph(
                f"{len(tests[0].gap)} {material.shown_kind}. `protoflows faithfulness` takes more, "
                "and checks the heatmaps with randomised weights too.",
                "note",
            )  # fmt: skip
        )
    return Section(
        "relevance", "How far to trust the heatmaps",
        "A random picture is turned into the image, the pixels that the heatmap finds relevant "
        "first. If heatmaps tell the truth, the likelihood under the prototype rises sooner than "
        "in random order: the solid curve lies above the dashed one, and gaps lie right of 0.",
        "Beating scattered pixels is easy, as any whole patch of a picture is likelier than "
        "scattered ones: the test against random patches is the harder one. It starts from noise, "
        "which is no image that the model knows: likelihoods there are wild, so that medians and "
        "ranks are shown and not means. Passing it says that the order is better than "
        "chance, not that it is the best.",
        tuple(body), short="Trust in heatmaps",
    )  # fmt: skip


def _measure(material: Material) -> list[RelevanceOrdering]:
    plan, images = material.plan, material.shown.images
    generator = torch.Generator().manual_seed(plan.seed)
    chosen = torch.randperm(len(images), generator=generator)[: plan.relevance_images]
    patch = default_patch(material.model)
    return [
        relevance_ordering(
            material.model, images[chosen], patch=patch, stride=max(1, patch // 2), orderings=2,
            control=control, seed=plan.seed, batch_size=plan.batch_size,
        )
        for control in ("pixels", "patches")
    ]  # fmt: skip


def _row(test: RelevanceOrdering) -> list[str]:
    gap, low, high = test.gap_interval()
    return [
        f"random {test.control}", f"{gap:+,.2f}", f"{low:+,.2f} to {high:+,.2f}",
        f"{test.p_value():.2g}", f"{100 * float(test.wins.mean()):.0f} %",
    ]  # fmt: skip
