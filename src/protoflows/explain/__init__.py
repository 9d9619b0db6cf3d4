"""Explanations: what prototypes are, why an image got its class, and how far to trust that."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from protoflows.explain.attribution import Attribution, attribute_classes, attribute_prototypes
    from protoflows.explain.counterfactual import Counterfactuals, find_counterfactuals
    from protoflows.explain.explanation import Explanation, PrototypeEvidence, explain
    from protoflows.explain.faithfulness import RelevanceOrdering, relevance_ordering
    from protoflows.explain.informativeness import Informativeness, measure_informativeness
    from protoflows.explain.interpolation import Interpolation, interpolate
    from protoflows.explain.maps import PrototypeMap, map_prototypes
    from protoflows.explain.matching import PrototypeMatches, match_prototypes
    from protoflows.explain.neighbours import Neighbours, find_neighbours
    from protoflows.explain.parts import PartsAttribution, PrototypeParts
    from protoflows.explain.pictures import (
        PrototypePictures,
        living_prototypes,
        picture_prototype,
    )
    from protoflows.explain.reading import Prepared, prepare_images
    from protoflows.explain.readout import Readout, read_out
    from protoflows.explain.retrieved import RetrievedParts, load_parts, retrieve_parts
    from protoflows.explain.sanity import (
        Randomisation,
        Stability,
        check_randomisation,
        check_stability,
    )

# Public name → its file. Imported on first use: matplotlib alone takes half a second.
_HOME = {
    "Counterfactuals": "counterfactual",
    "find_counterfactuals": "counterfactual",
    "RelevanceOrdering": "faithfulness",
    "relevance_ordering": "faithfulness",
    "Interpolation": "interpolation",
    "interpolate": "interpolation",
    "PrototypeMap": "maps",
    "map_prototypes": "maps",
    "PrototypeMatches": "matching",
    "match_prototypes": "matching",
    "Prepared": "reading",
    "prepare_images": "reading",
    "Randomisation": "sanity",
    "Stability": "sanity",
    "check_randomisation": "sanity",
    "check_stability": "sanity",
    "Attribution": "attribution",
    "attribute_classes": "attribution",
    "attribute_prototypes": "attribution",
    "Explanation": "explanation",
    "PrototypeEvidence": "explanation",
    "explain": "explanation",
    "Informativeness": "informativeness",
    "measure_informativeness": "informativeness",
    "Neighbours": "neighbours",
    "find_neighbours": "neighbours",
    "PartsAttribution": "parts",
    "PrototypeParts": "parts",
    "PrototypePictures": "pictures",
    "living_prototypes": "pictures",
    "picture_prototype": "pictures",
    "Readout": "readout",
    "read_out": "readout",
    "RetrievedParts": "retrieved",
    "load_parts": "retrieved",
    "retrieve_parts": "retrieved",
}

__all__ = [
    "Attribution",
    "Counterfactuals",
    "Explanation",
    "Informativeness",
    "Interpolation",
    "Neighbours",
    "PartsAttribution",
    "Prepared",
    "PrototypeEvidence",
    "PrototypeMap",
    "PrototypeMatches",
    "PrototypeParts",
    "PrototypePictures",
    "Randomisation",
    "Readout",
    "RelevanceOrdering",
    "RetrievedParts",
    "Stability",
    "attribute_classes",
    "attribute_prototypes",
    "check_randomisation",
    "check_stability",
    "explain",
    "find_counterfactuals",
    "find_neighbours",
    "interpolate",
    "living_prototypes",
    "load_parts",
    "map_prototypes",
    "match_prototypes",
    "measure_informativeness",
    "picture_prototype",
    "prepare_images",
    "read_out",
    "relevance_ordering",
    "retrieve_parts",
]


def __getattr__(name: str) -> Any:
    """Import what `name` stands for on first use (PEP 562)."""
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{home}"), name)
    globals()[name] = value
    return value
