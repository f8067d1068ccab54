"""Exit with an error unless notebooks have the outputs that are stored: of the same kinds, with the same words.

`python .ci/same_outputs.py STORED EXECUTED`: two folders. Numbers may differ between machines, and pictures are not
compared.
"""

import difflib
import json
import re
import sys
from pathlib import Path

NUMBER = re.compile(r"-?\d+(\.\d*)?(e[-+]?\d+)?|\b(nan|inf)\b|[-+.\d]+(?=\s|$)", re.IGNORECASE)


def outputs(path: Path) -> list[str]:
    """The outputs of each cell as lines: kinds, and the words of plain text."""
    lines = []
    for number, cell in enumerate(json.loads(path.read_text(encoding="utf-8"))["cells"]):
        for output in cell.get("outputs", []):
            if output.get("name") == "stderr":
                continue
            data = output.get("data", {})
            text = "".join(output.get("text", data.get("text/plain", "") if set(data) == {"text/plain"} else ""))
            words = " ".join(NUMBER.sub("#", text).split())
            lines.append(f"cell {number}: {output['output_type']} {sorted(data)} {words}")
    return lines


stored, executed = map(Path, sys.argv[1:])
for path in sorted(stored.glob("*.ipynb")):
    changes = [*difflib.unified_diff(outputs(path), outputs(executed / path.name), "stored", "executed", "", "", 0, "")]
    if changes:
        sys.exit(
            "\n".join([f"{path.name}: its outputs differ from those that are stored; execute it again.", *changes])
        )
