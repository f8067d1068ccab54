"""Exit with an error unless a notebook on disk has the cells of the one on standard input: the pair was edited
together."""

import json
import sys


def cells(notebook: dict) -> list[tuple[str, str]]:
    return [(cell["cell_type"], "".join(cell["source"]).strip()) for cell in notebook["cells"]]


path = sys.argv[1]
with open(path, encoding="utf-8") as file:
    stored = cells(json.load(file))
paired = cells(json.load(sys.stdin))
if stored != paired:
    sys.exit(f"{path}: its cells differ from those of its text; run `jupytext --sync` and execute it again.")
