"""What a ProtoFlow is made of, as data: everything that has to stand beside its weights."""

from __future__ import annotations

import dataclasses
import difflib
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from protoflows.flows import DenseFlowConfig
from protoflows.prototypes import PrototypeConfig

FORMAT_VERSION = 1
"""Goes up when an older program could misread what a newer one has written."""

_Config = TypeVar("_Config", DenseFlowConfig, PrototypeConfig)


@dataclass(frozen=True)
class ModelConfig:
    """Every choice that defines a `ProtoFlow`, and what was added to it after training.

    Attributes:
        num_classes: Number of classes (C).
        flow: What the flow is made of.
        prototypes: How many prototypes a class has and how they are trained.
        class_names: One name per class; "0" … "C − 1" when empty.
        logit_temperature: Divides log p(x|c) + log p(c) before classes are compared; 1 leaves
            Bayes' rule alone.
        variance_temperature: Multiplies all variances where classes are compared; densities and
            samples keep theirs.
        prototype_names: Names that people gave to prototypes, by (class, prototype).

    >>> ModelConfig(2, class_names=("cat", "dog")).to_dict()["class_names"]
    ['cat', 'dog']
    """

    num_classes: int
    flow: DenseFlowConfig = field(default_factory=DenseFlowConfig)
    prototypes: PrototypeConfig = field(default_factory=PrototypeConfig)
    class_names: tuple[str, ...] = ()
    logit_temperature: float = 1.0
    variance_temperature: float = 1.0
    prototype_names: Mapping[tuple[int, int], str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Check every field, naming the one that is wrong."""
        if not _is_int(self.num_classes) or self.num_classes < 1:
            raise ValueError(f"num_classes must be a whole number ≥ 1, got {self.num_classes!r}")
        for name, wanted in (("flow", DenseFlowConfig), ("prototypes", PrototypeConfig)):
            if not isinstance(getattr(self, name), wanted):
                got = type(getattr(self, name)).__name__
                raise ValueError(f"{name} must be a {wanted.__name__}, got {got}")
        if isinstance(self.class_names, str):
            raise ValueError(
                f"class_names must be a sequence of names, got the string {self.class_names!r}"
            )
        names = tuple(self.class_names) or tuple(str(c) for c in range(self.num_classes))
        if len(names) != self.num_classes or not all(isinstance(n, str) for n in names):
            raise ValueError(
                f"class_names must hold one string for each of the {self.num_classes} classes, "
                f"got {names!r}"
            )
        object.__setattr__(self, "class_names", names)
        for name in ("logit_temperature", "variance_temperature"):
            value = getattr(self, name)
            if (
                isinstance(value, bool)
                or not isinstance(value, int | float)
                or not (math.isfinite(value) and value > 0)
            ):
                raise ValueError(f"{name} must be a finite number above 0, got {value!r}")
        object.__setattr__(self, "prototype_names", self._checked_names())

    def _checked_names(self) -> dict[tuple[int, int], str]:
        limits = (self.num_classes, self.prototypes.num_prototypes)
        checked = {}
        for key, name in self.prototype_names.items():
            inside = len(key) == 2 and all(
                _is_int(i) and 0 <= i < n for i, n in zip(key, limits, strict=True)
            )
            if not inside or not isinstance(name, str):
                raise ValueError(
                    "prototype_names must map (class, prototype), both counted from 0 and below "
                    f"{limits}, to strings; got {key!r}: {name!r}"
                )
            checked[key[0], key[1]] = name
        return checked

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers, strings, lists and dicts, as JSON has them, with the format's version."""
        return {
            "format_version": FORMAT_VERSION,
            "num_classes": self.num_classes,
            "class_names": list(self.class_names),
            "flow": _plain(self.flow),
            "prototypes": _plain(self.prototypes),
            "logit_temperature": self.logit_temperature,
            "variance_temperature": self.variance_temperature,
            "prototype_names": {
                f"{c},{k}": name for (c, k), name in sorted(self.prototype_names.items())
            },
        }

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> ModelConfig:
        """Undo `to_dict`.

        Raises:
            ValueError: a key is unknown or missing, a value of the wrong kind, or the version newer
                than this program.
        """
        version = content.get("format_version", FORMAT_VERSION)
        if not _is_int(version) or version > FORMAT_VERSION:
            raise ValueError(
                f"format_version is {version!r}, but this protoflows reads up to {FORMAT_VERSION}: "
                "update protoflows"
            )
        values = {key: value for key, value in content.items() if key != "format_version"}
        _check_keys(values, [f.name for f in dataclasses.fields(cls)], "the model's configuration")
        if "num_classes" not in values:
            raise ValueError("the model's configuration lacks the key 'num_classes'")
        values["flow"] = _build(DenseFlowConfig, values.get("flow", {}), "flow")
        values["prototypes"] = _build(PrototypeConfig, values.get("prototypes", {}), "prototypes")
        values["class_names"] = tuple(values.get("class_names") or ())
        values["prototype_names"] = _parse_names(values.get("prototype_names") or {})
        return cls(**values)


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _plain(config: DenseFlowConfig | PrototypeConfig) -> dict[str, Any]:
    values = dataclasses.asdict(config)
    return {
        key: list(value) if isinstance(value, tuple) else value for key, value in values.items()
    }


def _build(kind: type[_Config], values: object, where: str) -> _Config:
    if not isinstance(values, Mapping):
        raise ValueError(f"{where} must be an object of settings, got {values!r}")
    _check_keys(values, [f.name for f in dataclasses.fields(kind)], where)
    try:
        return kind(**values)
    except TypeError as error:  # a string where a number is compared
        raise ValueError(f"{where} holds a value of the wrong type: {error}") from None


def _check_keys(values: Mapping[str, Any], known: Iterable[str], where: str) -> None:
    known = list(known)
    for key in values:
        if key not in known:
            near = difflib.get_close_matches(str(key), known, 1, 0.5)
            hint = f"did you mean {near[0]!r}?" if near else f"known are: {', '.join(known)}"
            raise ValueError(f"unknown key {key!r} in {where}: {hint}")


def _parse_names(names: object) -> dict[tuple[int, int], str]:
    if not isinstance(names, Mapping):
        raise ValueError(f"prototype_names must be an object, got {names!r}")
    parsed = {}
    for key, name in names.items():
        parts = str(key).split(",")
        if len(parts) != 2 or not all(part.strip().isdecimal() for part in parts):
            raise ValueError(
                f"prototype_names must have keys like '3,0' (class, prototype), got {key!r}"
            )
        parsed[int(parts[0]), int(parts[1])] = name
    return parsed
