"""How a model becomes a fit: starts, a search among them, and runs to the end, by EM, messages or draws."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach(
    __name__,
    submod_attrs={
        "chain_graph": ["ChainGraph", "message_form"],
        "checkpoint": ["Checkpoint"],
        "chunked": ["ChunkedVMP", "engine_from", "engine_of"],
        "density": ["Density"],
        "em": ["EM"],
        "em_in_parts": ["EMInParts"],
        "message_passing": ["Passing"],
        "options": ["Options"],
        "perturbation": ["End"],
        "points": ["AtPoints"],
        "starts": ["Starts", "first_guesses", "sample_of"],
        "units": ["Units"],
        "whole": ["Whole"],
    },
)
