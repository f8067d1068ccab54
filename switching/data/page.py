"""The HTML of a series for notebooks."""

from html import escape
from typing import Any

import pandas as pd

from .timeline import label_text, time_index

MOST = 60  # sequences that are shown


def series_page(series: Any) -> str:
    """A row for each sequence: its steps, their first and last labels, and the number of missing values."""
    n, lengths = series.n_sequences, (series.last + 1).flatten().tolist()
    missing = series.counted(lambda rows: rows.isnan().sum(-1)).tolist()
    rows = []
    for i, (length, gone) in enumerate(zip(lengths, missing, strict=True)):
        labels = time_index(series.index_of(i), series.n_steps)[:length]
        rows.append((length, label_text(labels[0]), label_text(labels[-1]), gone))
        if len(rows) == MOST:
            break
    names = series.sequences[: len(rows)] if series.sequences is not None else range(len(rows))
    table = pd.DataFrame(rows, columns=["steps", "from", "to", "missing values"], index=list(names))
    features = ", ".join(map(str, series.features_of())) if n else str(series.n_features)
    title = f"Series of {n} sequence{'' if n == 1 else 's'}, features {features}"
    title += f", inputs {', '.join(series.drivers)}" if series.drivers else ""
    title += ", with gaps" if series.dt is not None else ""
    title += f"; the first {MOST} below" if n > MOST else ""
    return f"<p><b>{escape(title)}</b></p>{table.to_html(border=0)}"
