"""Files that are there whole, or as they were: written under another name, then put in place in one step.

A process that is killed meanwhile leaves a hidden file or folder, `.NAME.*.unfinished`, which the next to write NAME
removes. A lock tells it from one at which another process is still at work.
"""

import glob
import os
import secrets
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

try:
    import fcntl
except ImportError:  # as on Windows, where nothing is removed
    fcntl = None

ENDING = ".unfinished"
SETTLED = 1.0  # seconds after which what is made has long been locked


def write_file(path: Path, data: bytes) -> None:
    """Write a file all or not at all. A link in its place is replaced, not followed.

    Raises:
        OSError: it cannot be written; what was there is as it was.
    """
    new = unfinished(path.parent, path.name)
    try:
        with open(new, "xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        if path.is_file():
            shutil.copymode(path, new)
        with locked(new):
            os.replace(new, path)
    except BaseException:
        new.unlink(missing_ok=True)
        raise
    sync(path.parent)
    remove_unfinished(path.parent, path.name)


def write_output(path: Path, data: bytes) -> None:
    """The same for a file that a user names: a link keeps its place, a pipe or device is written to."""
    if path.exists() and not path.is_file() and not path.is_dir():
        path.write_bytes(data)
    else:
        write_file(path.resolve(), data)


def unfinished(folder: Path, name: str) -> Path:
    """A name in the folder for what is to become `name`."""
    return folder / f".{name}.{secrets.token_hex(8)}{ENDING}"


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """While this lasts no other process removes the unfinished file or folder."""
    if fcntl is None:
        yield
        return
    held = os.open(path, os.O_RDONLY)
    try:
        with suppress(OSError):  # a file system without locks, where nothing is removed
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(held)


def remove_unfinished(folder: Path, name: str) -> None:
    """Remove what killed processes have left of what was to become `name`."""
    for left in folder.glob(f".{glob.escape(name)}.*{ENDING}"):
        if _abandoned(left):
            shutil.rmtree(left, ignore_errors=True)
            with suppress(OSError):
                left.unlink(missing_ok=True)


def _abandoned(left: Path) -> bool:
    if fcntl is None:
        return False
    try:
        if time.time() - left.lstat().st_mtime < SETTLED:
            return False
        held = os.open(left, os.O_RDONLY | os.O_NOFOLLOW)
    except OSError:
        return False
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    finally:
        os.close(held)
    return True


def sync(path: Path) -> None:
    """Have a file, or the names in a folder, on the disk before what comes next."""
    try:
        held = os.open(path, os.O_RDONLY)
    except OSError:  # a folder on Windows
        return
    try:
        os.fsync(held)
    finally:
        os.close(held)
