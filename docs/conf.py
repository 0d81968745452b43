"""Settings of the documentation site: `make docs` builds it into build/docs.

The source folder is the whole repository, so that links from a page to SECURITY.md or to an example
work in the repository and in the site. Warnings are errors: a link to a missing page or heading, or
a name that autodoc cannot import, fails the build.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from pygments.lexers.special import TextLexer

from plexus.version import __version__

project = "Substrate"
author = "The authors of Substrate"
version = release = __version__
language = "en"

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
root_doc = "docs/index"
include_patterns = [
    "docs/**.md",
    "examples/README.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
]
exclude_patterns = [".*", "artifacts", "build", "dist", "tests", "bench", "**/node_modules"]

myst_heading_anchors = 4
#: Single backticks in docstrings are code, as in Markdown.
default_role = "code"
#: Transcripts are JSON with arrows, and generated files of other programs: no lexer reads them.
UNKNOWN_TO_PYGMENTS = ("jsonc", "caddy")

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_default_options = {"show-inheritance": False}
python_use_unqualified_type_names = True
python_display_short_literal_types = True
add_module_names = False

html_theme = "pydata_sphinx_theme"
html_title = "Substrate"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_favicon = "_static/icon.svg"
html_show_sourcelink = False
html_copy_source = False
html_logo = "_static/icon.svg"
# The theme's own sidebar shows the pages of one section only, and the header the sections.
templates_path = ["_templates"]
html_sidebars = {"**": ["contents.html"]}
html_theme_options = {
    "logo": {"text": "Substrate"},
    "navbar_align": "left",
    "navbar_center": [],
    "navigation_with_keys": True,
    "pygments_light_style": "tango",
    "pygments_dark_style": "monokai",
    "secondary_sidebar_items": ["page-toc"],
    "show_prev_next": True,
}

#: The first page of the site, in front of the folder `docs`.
REDIRECT = """<!doctype html>
<html lang="en"><meta charset="utf-8"><title>Substrate</title>
<meta http-equiv="refresh" content="0; url=docs/index.html">
<a href="docs/index.html">Substrate</a></html>
"""


def setup(app: Any) -> None:
    """Register what the settings cannot express."""
    for name in UNKNOWN_TO_PYGMENTS:
        app.add_lexer(name, TextLexer)
    app.connect("autodoc-process-docstring", _as_restructured_text)
    app.connect("build-finished", _write_redirect)


def _as_restructured_text(
    _: Any, __: str, ___: str, ____: Any, _____: Any, lines: list[str]
) -> None:
    """Separate lists from the text before them, which Markdown does not demand."""
    separated: list[str] = []
    for line in lines:
        previous = separated[-1] if separated else ""
        is_item = re.match(r"\s*- ", line)
        if is_item and previous.strip() and not re.match(r"\s*- |\s{2,}", previous):
            separated.append("")
        separated.append(line)
    lines[:] = separated


def _write_redirect(app: Any, error: Exception | None) -> None:
    if error is None and app.builder.format == "html":
        Path(app.outdir, "index.html").write_text(REDIRECT)
