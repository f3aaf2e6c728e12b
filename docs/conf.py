"""Sphinx configuration. Builds without a network; warnings are errors (`make docs`)."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "_ext"))

import wirewise

project = "wirewise"
author = "The wirewise developers"
copyright = author
release = version = wirewise.__version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.napoleon",
    "mathml",
    "systems_page",
]
exclude_patterns = ["_build", "_ext", "_templates"]
templates_path = ["_templates"]
html_static_path = ["_static"]
html_css_files = ["pages.css"]

html_theme = "furo"
html_title = "wirewise"
html_math_renderer = "mathml"

myst_enable_extensions = ["attrs_block", "deflist", "dollarmath"]
myst_heading_anchors = 3

autosummary_generate = True
# Each folder's page lists what the folder exports, wherever it is defined.
autosummary_ignore_module_all = False
autosummary_imported_members = True
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
napoleon_google_docstring = True
napoleon_numpy_docstring = False

# Folders import their parts on first use; autodoc sees only what is there.
for _name in ("codec", "graph", "graph.ops", "lab", "report", "runtime.full_graph", "topology"):
    _module = importlib.import_module(f"wirewise.{_name}")
    vars(_module).update({_public: getattr(_module, _public) for _public in _module.__all__})
