"""Sphinx configuration. Builds without a network; warnings are errors (`make docs`)."""

from __future__ import annotations

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
    "sphinx.ext.napoleon",
    "sphinx_design",
    "mathml",
    "page_ages",
    "plain_fields",
    "reference_pages",
    "systems_page",
]
exclude_patterns = ["_build", "_ext"]
html_static_path = ["_static"]
html_css_files = ["pages.css"]

html_theme = "furo"
html_title = "wirewise"
html_math_renderer = "mathml"

# Names in docstrings stand in single backticks.
default_role = "code"

myst_enable_extensions = ["attrs_block", "deflist", "dollarmath"]
myst_heading_anchors = 3

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
napoleon_google_docstring = True
napoleon_numpy_docstring = False
# The annotation `type` is a class of Python, and the name of a field of several records.
suppress_warnings = ["ref.python"]
