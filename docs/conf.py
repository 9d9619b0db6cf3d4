"""How the documentation is built (`make docs`). Neither the build nor a page fetches anything."""

from __future__ import annotations

import importlib
import os
import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE / "_ext"))
sys.path.insert(0, str(HERE.parent / "src"))
os.environ.setdefault("MPLBACKEND", "Agg")

from protoflows import __version__  # noqa: E402

project = "protoflows"
copyright = "the protoflows authors"  # noqa: A001
version = release = __version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "mathml", "docstrings"]
exclude_patterns = ["_build", "_ext"]
root_doc = "index"
nitpicky = False

# ---- Markdown -------------------------------------------------------------------------------
myst_enable_extensions = ["colon_fence", "dollarmath"]
myst_heading_anchors = 3
html_math_renderer = "mathml"

# ---- API ------------------------------------------------------------------------------------
PACKAGES = ("data", "flows", "prototypes", "model", "training", "evaluation", "explain")
for _name in PACKAGES:
    # Names are imported on first use; autodoc lists what is there.
    _package = importlib.import_module(f"protoflows.{_name}")
    for _public in _package.__all__:
        getattr(_package, _public)
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
python_use_unqualified_type_names = True
maximum_signature_line_length = 88
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_ivar = True
default_role = "code"

# ---- HTML -----------------------------------------------------------------------------------
html_theme = "furo"
html_title = f"protoflows {__version__}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_sourcelink = False


def _contributing(app: object, docname: str, source: list[str]) -> None:
    """CONTRIBUTING.md lies where code hosts look for it; its links are seen from there."""
    if docname == "contributing":
        text = (HERE.parent / "CONTRIBUTING.md").read_text(encoding="utf-8")
        source[0] = text.replace("](docs/", "](").replace("](LICENSE)", "](../LICENSE)")


def setup(app: object) -> None:
    """Called by Sphinx."""
    app.connect("source-read", _contributing)  # type: ignore[attr-defined]
