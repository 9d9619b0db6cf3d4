"""The page: its tabs, its looks."""

from __future__ import annotations

from pathlib import Path

import gradio as gr

from protoflows.app import markup as m
from protoflows.app.explain_tab import ExplainTab
from protoflows.app.prototypes_tab import PrototypesTab
from protoflows.app.travel_tab import TravelTab
from protoflows.app.trust_tab import TrustTab
from protoflows.app.visitor import Visitor, html, script
from protoflows.app.workspace import Workspace

DEFAULT_UPLOAD = 10
"""Largest upload in MB, where nothing else is said."""


def build_page(
    workspace: Workspace, *, upload_limit: int = DEFAULT_UPLOAD * 2**20, keep: Path | None = None
) -> gr.Blocks:
    """All tabs of the explorer.

    Args:
        workspace: The model and its data.
        upload_limit: Largest upload in bytes.
        keep: Folder that edited models are saved in; None where nothing is saved.
    """
    with gr.Blocks(
        analytics_enabled=False, title=f"{workspace.name} · protoflows", delete_cache=(3600, 3600)
    ) as page:
        visitor = Visitor()
        html(_head(workspace), "pf-top")
        with gr.Tabs(selected="explain") as tabs:
            with gr.Tab("Explain", id="explain") as explained:
                explain = ExplainTab(workspace, visitor, upload_limit)
            with gr.Tab("Prototypes", id="prototypes") as prototypes:
                edited = PrototypesTab(workspace, visitor, keep)
            with gr.Tab("Travel", id="travel") as travel:
                ways = TravelTab(workspace, visitor)
            with gr.Tab("Trust", id="trust") as trust:
                trusted = TrustTab(workspace, visitor, explain, tabs)
        explain.refresh(explained.select)
        edited.show_score(prototypes.select)
        ways.show_first(travel.select)
        trusted.show(trust.select)
    return page


def theme() -> gr.themes.Base:
    """Calm, and with the system's own fonts: none are fetched."""
    return gr.themes.Base(
        primary_hue=gr.themes.colors.blue, neutral_hue=gr.themes.colors.slate,
        font=["system-ui", "-apple-system", "Segoe UI", "sans-serif"],
        font_mono=["ui-monospace", "monospace"],
    )  # fmt: skip


def style() -> str:
    """The page's CSS."""
    return script("style.css")


def _head(workspace: Workspace) -> str:
    model = workspace.model
    config, extras = model.config, model.extras
    channels, height, width = config.flow.image_shape
    alive = int(model.mixtures.mask.sum())
    facts = [
        f"{config.num_classes} classes",
        f"{alive} prototypes",
        f"images {width} x {height}, {'grey' if channels == 1 else f'{channels} channels'}",
    ]
    accuracy = extras.metrics.get("accuracy") if extras is not None else None
    if accuracy is not None:
        facts.append(f"{100 * accuracy:.1f} % of test images right")
    notes = "".join(m.message(words) for words in workspace.notes)
    return m.page(
        f'<div class="pf-title"><h1>{m.text(workspace.name)}</h1>'
        f"<p>{m.text(' · '.join(facts))}</p></div>{notes}"
    )
