"""What a visitor did to the prototypes: a list of edits, replayed on the model that was loaded.

A visitor holds the list and nothing else, so that visitors never touch one another's model, and
taking an edit back is leaving it out of the list.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass

from torch import nn

from protoflows.explain.pictures import prototype_title
from protoflows.model import ProtoFlow

Pair = tuple[int, int]
_LONGEST_NAME = 60


@dataclass(frozen=True)
class SwitchOff:
    """A prototype that takes no part any more."""

    prototype: Pair


@dataclass(frozen=True)
class Merge:
    """The first prototype takes in the second."""

    first: Pair
    second: Pair


@dataclass(frozen=True)
class Rename:
    """What a prototype is called; an empty name takes it away."""

    prototype: Pair
    name: str


Edit = SwitchOff | Merge | Rename
Edits = tuple[Edit, ...]


def apply_edit(model: ProtoFlow, edit: Edit) -> ProtoFlow:
    """A new model; the flow is shared with the one given, which nothing here changes.

    Raises ValueError, in words for the visitor, where the edit cannot be made.
    """
    bare = _without_flow(model)
    match edit:
        case SwitchOff(prototype):
            edited = bare.with_prototypes(disable=[prototype])
        case Merge(first, second):
            edited = bare.with_prototypes(merge=[(first, second)])
        case Rename(prototype, name):
            edited = bare.with_prototypes(names={prototype: clean_name(name)})
    edited.eval()
    edited.flow = model.flow
    return edited


def _without_flow(model: ProtoFlow) -> ProtoFlow:
    """The model with nothing in its flow's place: edits copy what they edit, flows can be huge."""
    bare = copy.copy(model)
    modules = {**model._modules, "flow": nn.Identity()}
    object.__setattr__(bare, "_modules", modules)
    return bare


def clean_name(name: str) -> str:
    """A name as it is kept: printable, on one line, of bounded length.

    >>> clean_name("  seven with a  bar ")
    'seven with a bar'
    """
    plain = " ".join("".join(c if c.isprintable() else " " for c in name).split())
    if len(plain) > _LONGEST_NAME:
        raise ValueError(f"a name has at most {_LONGEST_NAME} characters, got {len(plain)}")
    return plain


def describe(model: ProtoFlow, edit: Edit) -> str:
    """An edit in words; the model is any that knows the classes."""
    match edit:
        case SwitchOff(prototype):
            return f"{prototype_title(model, prototype)} switched off"
        case Merge(first, (_, k)):
            return f"{prototype_title(model, first)} took in prototype {k}"
        case Rename((c, k), name):
            where = f"{model.config.class_names[c]} · prototype {k}"
            return f"{where} named “{name}”" if name.strip() else f"{where} lost its name"


def switched_off(edits: Edits) -> set[Pair]:
    """Prototypes that were switched off, those that were merged into others left out."""
    return {edit.prototype for edit in edits if isinstance(edit, SwitchOff)}


def merged_into(edits: Edits) -> dict[Pair, Pair]:
    """Prototypes that are gone, by the one that took each of them in."""
    return {edit.second: edit.first for edit in edits if isinstance(edit, Merge)}


def merges_of(edits: Edits, label: int) -> tuple[Merge, ...]:
    """What was merged in a class: all that moves its means."""
    return tuple(e for e in edits if isinstance(e, Merge) and e.first[0] == label)


def switch_on(edits: Edits, prototype: Pair) -> Edits:
    """The list without switching that prototype off."""
    return tuple(e for e in edits if not (isinstance(e, SwitchOff) and e.prototype == prototype))
