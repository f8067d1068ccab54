"""Atomic writes: a file is written under another name, then renamed in one step. It is complete or unchanged.

A process that is killed during a write leaves a hidden file or folder, `.NAME.*.unfinished`. The next process that
writes NAME removes it. A lock protects a file that another process is still writing.
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
except ImportError:  # as on Windows, where no leftovers are removed
    fcntl = None

ENDING = ".unfinished"
SETTLED = 1.0  # seconds after which a new file is surely locked


def write_file(path: Path, data: bytes) -> None:
    """Write a file completely or not at all. A link in its place is replaced, not followed.

    Raises:
        OSError: the file cannot be written; an existing file stays unchanged.
    """
    with whole_file(path) as new, open(new, "wb") as file:
        file.write(data)


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """The path of a new file that replaces a file when the block ends, or is removed if it ends by an error.

    Raises:
        OSError: the file cannot be written; it names the path, and an existing file stays unchanged.
    """
    new = unfinished(path.parent, path.name)
    try:
        new.touch(exist_ok=False)
        with locked(new):
            yield new
            sync(new)
            if path.is_file():
                shutil.copymode(path, new)
            os.replace(new, path)
    except BaseException as error:
        new.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.filename in (None, str(new)):  # as of a full disk
            raise OSError(error.errno, error.strerror or str(error), str(path)) from error
        raise
    sync(path.parent)
    remove_unfinished(path.parent, path.name)


def write_output(path: Path, data: bytes) -> None:
    """The same for a path of the user: a link stays and its target is replaced; a pipe or device is written to."""
    if path.exists() and not path.is_file() and not path.is_dir():
        path.write_bytes(data)
    else:
        write_file(path.resolve(), data)


def unfinished(folder: Path, name: str) -> Path:
    """A temporary name in the folder for `name`."""
    return folder / f".{name}.{secrets.token_hex(8)}{ENDING}"


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """While this is active, no other process removes the unfinished file or folder."""
    if fcntl is None:
        yield
        return
    handle = os.open(path, os.O_RDONLY)
    try:
        with suppress(OSError):  # a file system without locks, where no leftovers are removed
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(handle)


def remove_unfinished(folder: Path, name: str) -> None:
    """Remove unfinished files of `name` that killed processes have left."""
    for leftover in folder.glob(f".{glob.escape(name)}.*{ENDING}"):
        if _abandoned(leftover):
            shutil.rmtree(leftover, ignore_errors=True)
            with suppress(OSError):
                leftover.unlink(missing_ok=True)


def _abandoned(leftover: Path) -> bool:
    if fcntl is None:
        return False
    try:
        if time.time() - leftover.lstat().st_mtime < SETTLED:
            return False
        handle = os.open(leftover, os.O_RDONLY | os.O_NOFOLLOW)
    except OSError:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    finally:
        os.close(handle)
    return True


def sync(path: Path) -> None:
    """Write a file, or the names in a folder, to disk before the next operation."""
    try:
        handle = os.open(path, os.O_RDONLY)
    except OSError:  # a folder on Windows
        return
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
