"""How the site is built; the README has the command."""

import inspect
import sys
from importlib.util import find_spec
from pathlib import Path

import samplehold
import sklearn.base
import torch

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE / "_extensions"))
import members  # noqa: E402

# Autodoc imports the place of a name. `samplehold.chains` and its kin are attributes, whose modules have other names.
for name in samplehold.__all__:
    if inspect.ismodule(getattr(samplehold, name)):
        sys.modules[f"samplehold.{name}"] = getattr(samplehold, name)

project, author, copyright = "samplehold", "The samplehold developers", "The samplehold developers"
version = release = samplehold.__version__
extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
    "sphinx.ext.mathjax",
    "docstrings",
    "members",
    "notebooks",
]
exclude_patterns = ["_build", "_templates", "_extensions", "notebooks"]
templates_path = ["_templates"]

html_theme = "furo"
html_title = "samplehold"
html_theme_options = {"navigation_with_keys": True}
html_copy_source = False
html_show_sourcelink = False
copybutton_exclude = ".linenos, .gp, .go"

myst_enable_extensions = ["dollarmath", "deflist"]
myst_heading_anchors = 4
nb_execution_mode = "cache"
nb_execution_excludepatterns = ["tutorials/*"]  # these have their outputs, and CI runs them
nb_execution_raise_on_error = True
nb_execution_timeout = 300
nb_merge_streams = True
nb_output_stderr = "remove"  # notes on the terminal that a notebook has not

autosummary_generate = True
autosummary_context = {
    "foreign": {*dir(torch.nn.Module), *dir(sklearn.base.BaseEstimator)} - {"forward"},
    "first": members.FIRST,
    "internal": members.INTERNAL,
}
toc_object_entries = False  # every page has the tree of all pages; a class lists its methods itself
autodoc_member_order = "groupwise"
autodoc_typehints = "none"  # shapes stand in the signature
napoleon_google_docstring, napoleon_numpy_docstring = True, False
napoleon_attr_annotations = False
napoleon_custom_sections = [("Arguments of methods", "params_style"), ("More", "params_style")]
add_module_names = False
python_use_unqualified_type_names = True

mathjax = find_spec("sphinx-mathjax-offline")  # formulas without a network: this package holds MathJax
if mathjax is None or mathjax.origin is None:
    raise ModuleNotFoundError("sphinx-mathjax-offline is missing; install the extra `docs`.")
html_static_path = [str(Path(mathjax.origin).parent / "static"), "_static"]
html_css_files = ["site.css"]
mathjax_path = "mathjax/tex-chtml.js"
