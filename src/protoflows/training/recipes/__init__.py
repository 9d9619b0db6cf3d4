"""Recipes: named configurations, shipped as YAML, that may build on one another through `base`."""

from __future__ import annotations

from importlib import resources
from typing import Any

from protoflows.training.settings import merge, nearest, parse_yaml


def recipe_names() -> list[str]:
    """All recipes, in alphabetical order."""
    folder = resources.files(__name__)
    return sorted(
        f.name.removesuffix(".yaml") for f in folder.iterdir() if f.name.endswith(".yaml")
    )


def read_recipe(name: str) -> dict[str, Any]:
    """A recipe's settings as nested mappings, those of the recipe it builds on included."""
    seen: list[str] = []
    layers: list[dict[str, Any]] = []
    base: str | None = name
    while base is not None:
        if base in seen:
            raise ValueError(f"recipe {name!r} builds on itself: {' -> '.join([*seen, base])}")
        seen.append(base)
        content = _read(base)
        content.pop("about", None)
        base = content.pop("base", None)
        layers.append(content)
    return merge(*reversed(layers))


def describe_recipe(name: str) -> str:
    """What a recipe is for, in its own words."""
    return str(_read(name).get("about", "")).strip()


def _read(name: str) -> dict[str, Any]:
    if name not in recipe_names():
        raise ValueError(f"unknown recipe {name!r}.{nearest(name, recipe_names())}")
    text = resources.files(__name__).joinpath(f"{name}.yaml").read_text(encoding="utf-8")
    return parse_yaml(text, f"recipe {name!r}")
