"""Builds the documentation site: `sphinx-build -W -n docs site`. It needs no network, and the pages open from disk."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "site"))
sys.path.insert(0, str(Path(__file__).parents[1]))

from graphflops.version import __version__

project = "graphflops"
release = version = __version__
copyright = "the graphflops developers, Apache-2.0"

extensions = ["myst_parser", "reference", "twins"]
exclude_patterns = ["site"]
myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 4  # sections have the anchors that a repository's page gives them
nitpicky = True
smartquotes = False  # an option is `--dim`, not an n-dash and `dim`

html_theme = "furo"
html_title = f"graphflops {version}"
html_static_path = ["site/static"]
html_css_files = ["site.css"]
html_copy_source = False  # twins.py writes the Markdown of each page beside it
html_show_sourcelink = False
