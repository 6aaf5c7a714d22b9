"""The documentation site: `tox -e docs` writes its pages (`pages.py`) and builds them."""

project = "attention-oracles"
html_title = project
extensions = ["myst_parser"]
# Anchors of headings, as in the links between the documents of the repository.
myst_heading_anchors = 3
# The index includes the README.
exclude_patterns = ["README.md"]
# A block without a language is output.
highlight_language = "text"
html_theme = "furo"
html_static_path = ["static"]
html_css_files = ["style.css"]
html_show_copyright = False
html_show_sphinx = False
html_copy_source = False
