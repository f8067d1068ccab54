"""A folder of results that is completely of the new run, or completely of the old one, even if the run is interrupted.

The results are written into a new folder beside the old one. Other files of the old folder are linked into the new one.
Then the two folders are exchanged in one step, and the old one is removed. A working directory, a mount point, or a
folder on some systems cannot be exchanged. There the results replace the old ones one by one at the end, and only
an interruption within those microseconds leaves a mixture.
"""

import ctypes
import os
import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from ..switching.data.writing import locked, remove_unfinished, sync, unfinished

RESULTS = MODEL, POSTERIOR, STATES, PLOT = "model", "posterior.nc", "states.csv", "plot.png"
AT_FDCWD, RENAME_EXCHANGE, RENAME_SWAP = -100, 2, 2


def check_folder(out: Path) -> None:
    """Make the folder if it is missing; ValueError if it is not writable."""
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(f"--out: cannot make the folder {out} ({error.strerror}); give another one.") from None
    if not os.access(out, os.W_OK):
        raise ValueError(f"--out: the folder {out} is not writable; give another one.")


def check_results(out: Path, force: bool) -> None:
    """ValueError if a result would overwrite something in the folder without permission."""
    check_folder(out)
    check_new([out / name for name in RESULTS], force)
    for name in RESULTS:
        place = out / name
        if place.exists() and place.is_dir() != (name == MODEL):
            raise ValueError(f"--out: {place} is in the way of a result; move it elsewhere.")


def check_new(paths: Sequence[Path], force: bool) -> None:
    """ValueError if one of the paths exists, unless `force`."""
    there = [path for path in paths if path.exists()]
    if there and not force:
        raise ValueError(f"{there[0]} exists; add --force to replace it.")


@contextmanager
def replacing(out: Path) -> Iterator[Path]:
    """A new folder, whose files move into the folder `out` when the block ends without an error.

    A link to a folder stays a link.

    Raises:
        ValueError: the files cannot be written.
    """
    new = None
    try:
        out = out.resolve()
        out.mkdir(parents=True, exist_ok=True)
        new = _new_folder(out)
        with locked(new):
            yield new
            for folder in (out, out.parent):
                remove_unfinished(folder, out.name)
            _place(new, out)
    except OSError as error:
        raise ValueError(f"--out: {out} cannot be written ({error.strerror or error}).") from None
    finally:
        if new is not None:
            shutil.rmtree(new, ignore_errors=True)


def _new_folder(out: Path) -> Path:
    """A folder beside `out` if the two can be exchanged, otherwise a folder in it."""
    new = unfinished(out, out.name)
    new.mkdir()
    beside = out.parent / new.name
    if not _in_use(out):
        with suppress(OSError):  # another disk, or a folder that cannot be written
            new.rename(beside)
            return beside
    return new


def _in_use(out: Path) -> bool:
    """Whether some process works in the folder, and would be left in a removed one."""
    links = [os.getcwd(), *(os.path.realpath(link) for link in Path("/proc").glob("[0-9]*/cwd"))]
    return any(Path(link).is_relative_to(out) for link in links)


def _place(new: Path, out: Path) -> None:
    files = [path.relative_to(new) for path in new.rglob("*") if path.is_file()]
    for path in (*new.rglob("*"), new):
        sync(path)
    if new.parent == out.parent:
        try:
            _keep(out, new)
            os.chown(new, out.stat().st_uid, out.stat().st_gid)
            shutil.copystat(out, new)
            _exchange(new, out)
        except (OSError, AttributeError):  # the call does not exist, or does not work here
            pass
        else:
            with suppress(OSError):
                sync(out.parent)
                _keep(new, out)  # files that appeared meanwhile
            return
    for file in files:
        place = out / file
        if place.parent.is_symlink() and place.parent != out:
            place.parent.unlink()
        place.parent.mkdir(exist_ok=True)
        os.replace(new / file, place)
    sync(out)


def _keep(old: Path, new: Path) -> None:
    """Link into the new folder the files of the old one that it does not have."""
    for entry in os.scandir(old):
        place = new / entry.name
        if entry.is_dir(follow_symlinks=False):
            if not place.is_dir():
                place.mkdir()
                shutil.copystat(entry.path, place)
            _keep(Path(entry.path), place)
        elif not os.path.lexists(place):
            try:
                os.link(entry.path, place, follow_symlinks=False)
            except OSError:  # some file systems, and files of other owners, do not support this
                shutil.copy2(entry.path, place, follow_symlinks=False)


def _exchange(a: Path, b: Path) -> None:
    """Exchange two folders in one step."""
    system, paths = ctypes.CDLL(None, use_errno=True), [os.fsencode(path) for path in (a, b)]
    if sys.platform == "darwin":
        failed = system.renamex_np(*paths, RENAME_SWAP)
    else:
        failed = system.renameat2(AT_FDCWD, paths[0], AT_FDCWD, paths[1], RENAME_EXCHANGE)
    if failed:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
