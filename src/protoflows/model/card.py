"""The model card: what a model is, written from the model itself."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from protoflows._version import __version__

if TYPE_CHECKING:
    from protoflows.model.protoflow import ProtoFlow

CARD_MARK = "<!-- Written by protoflows on every save. Remove this line to keep your own edits. -->"
_MAX_NAMES = 20


def model_card(model: ProtoFlow) -> str:
    """Markdown with the metadata block that the Hugging Face Hub reads."""
    sections = [
        _front_matter(model),
        CARD_MARK,
        _summary(model),
        _facts(model),
        _metrics(model),
        _usage(model),
        _limits(),
    ]
    return "\n\n".join(section for section in sections if section) + "\n"


def _front_matter(model: ProtoFlow) -> str:
    # JSON strings are YAML strings: names that come from folders can hold anything.
    lines = ["---", "library_name: protoflows", "pipeline_tag: image-classification"]
    extras = model.extras
    if extras is not None and extras.licence:
        lines.append(f"license: {json.dumps(extras.licence)}")
    tags = [
        "explainable-ai",
        "image-classification",
        "normalizing-flow",
        "prototypes",
        "pytorch_model_hub_mixin",
        "model_hub_mixin",
    ]
    return "\n".join([*lines, "tags:", *(f"- {tag}" for tag in tags), "---"])


def _summary(model: ProtoFlow) -> str:
    extras = model.extras
    data = (
        f" trained on {_inline(extras.data_name)}"
        if extras is not None and extras.data_name
        else ""
    )
    return (
        f"# ProtoFlow{data}\n\n"
        "An image classifier that explains itself: an invertible flow maps an image to a latent,\n"
        "where every class is a mixture of Gaussians, its prototypes. Bayes' rule over the\n"
        "mixtures gives the class; the flow's inverse shows any prototype as an image. The method\n"
        "is that of *This Probably Looks Exactly Like That: An Invertible Prototypical Network*\n"
        "(Carmichael, Redgrave, Gonzalez Cedre and Scheirer, ECCV 2024)."
    )


def _facts(model: ProtoFlow) -> str:
    config, mixtures, extras = model.config, model.mixtures, model.extras
    channels, height, width = config.flow.image_shape
    names = [_inline(name) for name in config.class_names]
    shown = ", ".join(names[:_MAX_NAMES])
    if len(names) > _MAX_NAMES:
        shown += f" and {len(names) - _MAX_NAMES} more"
    alive, places = int(mixtures.mask.sum()), mixtures.mask.numel()
    prototypes = (
        f"{alive}"
        if alive == places
        else f"{alive} of {places} (the others pruned, merged or switched off)"
    )
    rows = [
        ("Images", f"{channels} x {height} x {width}, values 0 to {config.flow.levels - 1}"),
        ("Classes", f"{config.num_classes}: {shown}"),
        ("Prototypes", prototypes),
        ("Latent dimensions", str(config.flow.latent_dims)),
        ("Parameters", f"{sum(p.numel() for p in model.parameters()):,}"),
        ("Logit temperature", f"{config.logit_temperature:g}"),
        ("Variance temperature", f"{config.variance_temperature:g}"),
        (
            "Training data",
            _inline(extras.data_name) if extras is not None and extras.data_name else "not stated",
        ),
    ]
    if extras is not None and extras.data_fingerprint:
        rows.append(("Data fingerprint (SHA-256)", f"`{_inline(extras.data_fingerprint)}`"))
    licence = extras.licence if extras is not None else ""
    rows.append(
        ("Licence of the weights", _inline(licence) or "not stated by whoever trained them")
    )
    rows.append(("Written by", f"protoflows {__version__}"))
    return "\n".join(
        ["| what | |", "|---|---|", *(f"| {name} | {value} |" for name, value in rows)]
    )


def _metrics(model: ProtoFlow) -> str:
    if model.extras is None or not model.extras.metrics:
        return "## Figures\n\nNone are stored with this model."
    rows = [f"| {_inline(name)} | {value:.6g} |" for name, value in model.extras.metrics.items()]
    return "\n".join(["## Figures on the test split", "", "| metric | value |", "|---|---|", *rows])


def _usage(model: ProtoFlow) -> str:
    channels, height, width = model.config.flow.image_shape
    return (
        "## Use\n\n"
        "```python\n"
        "import protoflows as pf\n\n"
        'model = pf.load("FOLDER")  # or the name of a repository on the Hugging Face Hub\n'
        f"model.predict_proba(x)  # x: uint8 images (N, {channels}, {height}, {width})\n"
        "model.log_prob(x)  # how usual the images are, in nats\n"
        "model.sample(16, label=0, truncation=1.0)  # what the model takes class 0 to be\n"
        "```"
    )


def _limits() -> str:
    return (
        "## Limits\n\n"
        "- A prototype shows what the model has learned from its data, biases included, and not\n"
        "  what is true of a class.\n"
        "- Probabilities are conditional on the image being of one of the classes above. For\n"
        "  anything else look at log p(x), which can mislead too: smooth images are likely under\n"
        "  most flows.\n"
        "- Likelihoods are bounds that depend on the noise drawn; compare figures of equal sample\n"
        "  counts alone."
    )


def _inline(text: str) -> str:
    """Text that cannot break a table's row or pass for markup."""
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")
