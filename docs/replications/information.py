"""When may the state be ignored in the update of the gate?

`samplehold.models.studies.information` has the models and the sweep.
"""

import sys
from itertools import product
from typing import Any

import pandas as pd
from samplehold.models.bridge.input_gate import HELD_EVIDENCE, LOGITS, PROBABILITIES
from samplehold.models.studies.information import EMITTING, EMITTING_UPDATES, information_sweep
from study import Findings, Track

ENDS = (0.0, 4.0, 8.0)


def study(scale: str, track: Track[Any], seed: int = 0) -> Findings:
    """The sweep, and its ends at other redraw probabilities and distances of the states."""
    size: dict[str, Any] = {"n_sequences": 4, "n_steps": 500 if scale == "quick" else 10_000, "seed": seed}
    sweep, rows = information_sweep(**size), []
    redraw_probs = (0.2,) if scale == "quick" else (0.05, 0.2, 0.5)
    for redraw_prob, spread in track(list(product(redraw_probs, (1.0, 2.0, 4.0))), "models"):
        ends = information_sweep(ENDS, spread, redraw_prob, **size)
        curves = {name: ends.of(EMITTING, name) for name in EMITTING_UPDATES}
        for i, separation in enumerate(ENDS):
            row = {"redraw_prob": redraw_prob, "spread": spread, "separation": separation}
            row["I / H(z)"] = curves[LOGITS]["I / H(z)"][i]
            row |= {f"TV, {name}": curve["TV"][i] for name, curve in curves.items()}
            row |= {f"nats lost, {name}": curves[name]["nats lost"][i] for name in (PROBABILITIES, HELD_EVIDENCE)}
            rows.append(row | {"bound on TV": curves[HELD_EVIDENCE]["bound on TV"][i]})
    tables = {"information": sweep.table, "information_models": pd.DataFrame(rows)}
    return Findings(tables, {"information": sweep.plot()}, (seed,))


if __name__ == "__main__":
    from samplehold.cli.app import app

    app(["study", "information", *sys.argv[1:]])
