"""Image classifiers that explain themselves: an invertible flow with prototypes in its latent.

Everything is reached from here, `import protoflows as pf` then `pf.flows.DenseFlow` or `pf.load`,
but nothing is imported before it is asked for: torch alone takes seconds, and `protoflows --help`
should not.
"""

import importlib
from typing import TYPE_CHECKING

from protoflows._version import __version__

if TYPE_CHECKING:
    from protoflows import data, evaluation, explain, flows, model, prototypes, training
    from protoflows.model import ProtoFlow, ProtoFlowClassifier, load

__all__ = [
    "ProtoFlow",
    "ProtoFlowClassifier",
    "__version__",
    "data",
    "evaluation",
    "explain",
    "flows",
    "load",
    "model",
    "prototypes",
    "training",
]

# Public name → the module that it is, or that defines it.
_LAZY = {
    "data": "protoflows.data",
    "evaluation": "protoflows.evaluation",
    "explain": "protoflows.explain",
    "flows": "protoflows.flows",
    "model": "protoflows.model",
    "prototypes": "protoflows.prototypes",
    "training": "protoflows.training",
    "ProtoFlow": "protoflows.model",
    "ProtoFlowClassifier": "protoflows.model",
    "load": "protoflows.model",
}


def __getattr__(name: str) -> object:
    """Import what `name` stands for on first use (PEP 562)."""
    target = _LAZY.get(name)
    if target is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        module = importlib.import_module(target)
    except ModuleNotFoundError as error:
        # A dependency that is missing must keep its own message; only our own absence is an
        # absent attribute.
        if error.name != target:
            raise
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}") from error
    value = module if target == f"{__name__}.{name}" else getattr(module, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """List the public names, imported already or not."""
    return sorted({*globals(), *__all__})
