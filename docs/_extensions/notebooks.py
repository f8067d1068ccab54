"""Copy the notebooks and their data beside the pages, and point links at the copies.

A notebook is shown with the outputs that are stored in it.
"""

import re
import shutil
from pathlib import Path
from typing import Any


def copy(app: Any) -> None:
    """Lay the notebooks beside the other pages, if they changed."""
    here = Path(app.srcdir) / "tutorials"
    source = here.parents[1] / "notebooks"
    for old in here.glob("*.ipynb"):
        if not (source / old.name).exists():
            old.unlink()
    for path in sorted(source.glob("*.ipynb")):
        target = here / path.name
        if not target.exists() or target.read_bytes() != path.read_bytes():
            shutil.copyfile(path, target)
    shutil.copytree(source / "data", here.parent / "notebooks/data", dirs_exist_ok=True)


def relink(app: Any, name: str, text: list[str]) -> None:
    """Links to notebooks lead to their pages."""
    text[0] = re.sub(r"\]\(((?:\.\./)*)\.\./notebooks/(\w+\.ipynb)", r"](\1tutorials/\2", text[0])


def setup(app: Any) -> dict[str, bool]:
    app.connect("builder-inited", copy)
    app.connect("source-read", relink)
    return {"parallel_read_safe": True}
