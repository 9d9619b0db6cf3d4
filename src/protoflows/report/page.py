"""All sections as one page that stands alone."""

from __future__ import annotations

from collections.abc import Callable

from protoflows.explain.html import page, paragraph
from protoflows.report.material import Material
from protoflows.report.section import Section, contents
from protoflows.report.sections.confusion import confusion
from protoflows.report.sections.counterfactuals import counterfactuals
from protoflows.report.sections.distances import distances
from protoflows.report.sections.divergence import divergence
from protoflows.report.sections.explanations import explanations
from protoflows.report.sections.headline import headline
from protoflows.report.sections.interpolations import interpolations
from protoflows.report.sections.making import making
from protoflows.report.sections.prototypes import prototypes
from protoflows.report.sections.pruning import pruning
from protoflows.report.sections.relevance import relevance
from protoflows.report.sections.reliability import reliability
from protoflows.report.sections.risk import risk
from protoflows.report.sections.tsne import tsne
from protoflows.report.source import Plan, Source

GROUPS: tuple[tuple[str, tuple[Callable[[Material], Section], ...]], ...] = (
    ("How good it is", (headline, reliability, confusion, risk)),
    ("Why it decides", (explanations, counterfactuals, interpolations, relevance)),
    ("What it has learned", (prototypes, pruning, distances, divergence, tsne)),
    ("About", (making,)),
)
"""The sections in the page's order, by what they are about."""

_STYLE = """
nav { display: grid; grid-template-columns: repeat(auto-fit, minmax(12rem, 1fr)); gap: .5rem 1.5rem;
      background: var(--card); border: 1px solid var(--line); border-radius: 8px;
      padding: .8rem 1.2rem; }
nav ul { list-style: none; margin: .2rem 0; padding: 0; } nav li { padding: .1rem 0; }
section { border-top: 1px solid var(--line); margin-top: 2.5rem; }
h2 { font-size: 1.3rem; margin-top: 1.2rem; } h3 { font-size: 1.05rem; margin: 1.6rem 0 0; }
.help { background: var(--card); border-left: 4px solid var(--accent); border-radius: 4px;
        padding: .1rem 1rem; max-width: 56rem; font-size: .95rem; }
.help p { margin: .6rem 0; }
.missing { border: 1px dashed var(--quiet); border-radius: 6px; padding: .6rem 1rem; }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(9rem, 1fr)); gap: .8rem;
         margin: 1rem 0; }
.tiles div { background: var(--card); border: 1px solid var(--line); border-radius: 8px;
             padding: .7rem 1rem; }
.tiles b { display: block; font-size: 1.5rem; font-variant-numeric: tabular-nums; }
.tiles span { color: var(--quiet); font-size: .9rem; }
.top { position: fixed; right: 1rem; bottom: 1rem; background: var(--card);
       border: 1px solid var(--line); border-radius: 6px; padding: .2rem .7rem; }
@media print { .top { display: none; } }
"""


def make_report(
    source: Source, plan: Plan | None = None, *, progress: Callable[[str], None] | None = None
) -> str:
    """Measure, draw and write the page, HTML.

    Args:
        source: The model and its run.
        plan: How much is measured; the defaults when None.
        progress: Called with the name of each section before it is made.
    """
    material = Material(source, plan or Plan())
    groups = []
    for title, makers in GROUPS:
        made = []
        for make in makers:
            if progress is not None:
                progress(make.__name__)
            made.append(make(material))
        groups.append((title, tuple(made)))
    body = [paragraph(note, "missing") for note in source.notes]
    body.append(contents(tuple(groups)))
    body += [section.to_html() for _, sections in groups for section in sections]
    body.append('<a class="top" href="#">Contents</a>')
    return page(f"Report of {source.name}", body, _STYLE)
