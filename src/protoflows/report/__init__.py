"""A run as one page: how good it is, what it has learned, why it decides, how far to trust it."""

from protoflows._lazy import lazy_names

__all__ = ["Plan", "Source", "make_report"]

__getattr__ = lazy_names(__name__, {"source": ["Plan", "Source"], "page": ["make_report"]})
