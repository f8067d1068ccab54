"""The notebooks, with the outputs that they have in the repository, as pages of the site; and their data, which pages
read."""

import re
import shutil
from pathlib import Path
from typing import Any


def copy(app: Any) -> None:
    """Lay the notebooks beside the other pages, if they changed."""
    here = Path(app.srcdir) / "tutorials"
    here.mkdir(exist_ok=True)
    for path in sorted(here.parents[1].glob("notebooks/*.ipynb")):
        target = here / path.name
        if not target.exists() or target.read_bytes() != path.read_bytes():
            shutil.copyfile(path, target)
    shutil.copytree(here.parents[1] / "notebooks/data", here.parent / "notebooks/data", dirs_exist_ok=True)


def relink(app: Any, name: str, text: list[str]) -> None:
    """Links to notebooks lead to their pages."""
    text[0] = re.sub(r"\]\(((?:\.\./)*)\.\./notebooks/(\w+\.ipynb)", r"](\1tutorials/\2", text[0])


def setup(app: Any) -> dict[str, bool]:
    app.connect("builder-inited", copy)
    app.connect("source-read", relink)
    return {"parallel_read_safe": True}
