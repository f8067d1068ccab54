"""Exit with an error unless cells of notebooks put out things of the kinds that are stored; print words that changed.

`python .ci/same_outputs.py STORED EXECUTED`: two folders. Numbers may differ between machines and so may some words, as
those of a table of starts. Pictures are not compared.
"""

import difflib
import json
import re
import sys
from pathlib import Path

NUMBER = re.compile(r"-?\d+(\.\d*)?(e[-+]?\d+)?|\b(nan|inf)\b|[-+.\d]+(?=\s|$)", re.IGNORECASE)


def outputs(path: Path) -> tuple[list[str], list[str]]:
    """A line for each output of each cell: its kind; and its words, if it is plain text."""
    kinds, texts = [], []
    for number, cell in enumerate(json.loads(path.read_text(encoding="utf-8"))["cells"]):
        printed = [output for output in cell.get("outputs", []) if output.get("name") == "stdout"]
        shown = [output for output in cell.get("outputs", []) if "name" not in output]
        kinds += [f"cell {number}: {output['output_type']} {sorted(output.get('data', {}))}" for output in shown]
        kinds += [f"cell {number}: prints"] if printed else []
        plain = [output["data"]["text/plain"] for output in shown if set(output.get("data", {})) == {"text/plain"}]
        text = "".join("".join(part) for part in [*(output["text"] for output in printed), *plain])
        texts += [f"cell {number}: {' '.join(NUMBER.sub('#', text).split())}"] if text else []
    return kinds, texts


stored, executed = map(Path, sys.argv[1:])
failed = False
for path in sorted(stored.glob("*.ipynb")):
    for number, pair in enumerate(zip(outputs(path), outputs(executed / path.name), strict=True)):
        changes = [*difflib.unified_diff(*pair, path.name, "executed", n=0, lineterm="")]
        print("\n".join(changes)) if changes else None
        failed = failed or (number == 0 and bool(changes))
if failed:
    sys.exit("The kinds of outputs differ from those that are stored; execute the notebook again.")
