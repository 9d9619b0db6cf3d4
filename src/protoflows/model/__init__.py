"""Flow and prototypes as one classifier: densities and samples; saved, edited, imported."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from protoflows.model.config import ModelConfig
from protoflows.model.extras import Extras
from protoflows.model.loading import find_model_folder, load, shipped_models
from protoflows.model.montecarlo import Scores, evaluating
from protoflows.model.protoflow import ProtoFlow
from protoflows.model.reference import import_reference
from protoflows.model.sampling import DrawnLatents
from protoflows.model.seeds import image_seeds

if TYPE_CHECKING:
    from protoflows.model.sklearn import ProtoFlowClassifier

__all__ = [
    "DrawnLatents",
    "Extras",
    "ModelConfig",
    "ProtoFlow",
    "ProtoFlowClassifier",
    "Scores",
    "evaluating",
    "find_model_folder",
    "image_seeds",
    "import_reference",
    "load",
    "shipped_models",
]


def __getattr__(name: str) -> Any:
    """Import scikit-learn, which takes a second, only for whom wants the estimator."""
    if name == "ProtoFlowClassifier":
        from protoflows.model.sklearn import ProtoFlowClassifier

        return ProtoFlowClassifier
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
