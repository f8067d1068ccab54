"""The order of the methods on the page of a class: the ones that users call come first, internals last."""

from typing import Any

from docutils import nodes
from sphinx import addnodes

FIRST = [
    *("fit", "summary", "diagnose", "smooth", "forecast", "states", "changes", "filter", "viterbi", "log_evidence"),
    *("conf_int", "simulate", "sample_posterior", "plot", "plot_forecast", "durations", "describe"),
    *("with_values", "with_prior", "read", "save", "load", "write", "to_arviz", "start", "update"),
]
INTERNAL = [  # of models
    *("at_ends", "chain_name", "chain_sizes", "check_apart", "collapsed", "counts", "differentiable", "emissions"),
    *("engine", "find", "forward", "fresh_probs", "from_parts", "gates_of", "graph", "holds", "in_any_basis"),
    *("inputs_of", "known", "latents", "log_prior", "made_of", "methods", "n_free", "of_emissions", "of_product"),
    *("order", "probabilities", "problem", "product", "product_of", "reading", "scaled_to", "scored", "sizes"),
    *("tables", "to_parts", "values_like", "without_values"),
]


def arrange(app: Any, doctree: nodes.document) -> None:
    """Sort the members of each class that is fitted, or is a fit; internals get a heading."""
    for kind in doctree.findall(addnodes.desc):
        members = [child for child in kind[-1] if isinstance(child, addnodes.desc)]
        names = [member[0].get("fullname", "").rpartition(".")[2] for member in members]
        if kind["objtype"] != "class" or not {"fit", "summary"} & set(names):
            continue
        content, pairs = kind[-1], []
        for name, member in zip(names, members, strict=True):  # a member has its entry of the index before it
            place = content.index(member)
            pairs.append((name, content[place - 1 : place + 1]))
            del content[place - 1 : place + 1]
        first = sorted((pair for pair in pairs if pair[0] in FIRST), key=lambda pair: FIRST.index(pair[0]))
        internal = [pair for pair in pairs if pair[0] in INTERNAL]
        others = [pair for pair in pairs if pair not in first and pair not in internal]
        for _, pair in (*first, *others):
            content += pair
        content += [nodes.rubric("", "Internals, for code that extends the library")] if internal else []
        for _, pair in internal:
            content += pair


def setup(app: Any) -> dict[str, bool]:
    app.connect("doctree-read", arrange)
    return {"parallel_read_safe": True}
