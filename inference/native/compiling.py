"""Building the library of CPU kernels, by the standard library alone: an installation and a source tree do it.

A library is made for one level of instructions, and its name says which. It tells the digest of the sources that it was
made from, by which a stale one is known. Objects are kept in the user's cache by a digest of all that they depend on.
"""

import hashlib
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from importlib.util import find_spec
from pathlib import Path

HERE = Path(__file__).parent
FLAGS = (
    "-std=c++17", "-O3", "-fPIC", "-fvisibility=hidden", "-fno-exceptions", "-fno-math-errno", "-fno-trapping-math",
    "-ffp-contract=fast", "-Wno-psabi", "-Wno-unknown-pragmas",
)  # fmt: skip
LEVELS = "x86-64-v2", "x86-64-v3", "baseline"
V3 = "__AVX2__", "__FMA__", "__BMI2__", "__LZCNT__"  # of a processor that has all of them


class BuildError(Exception):
    """The library could not be built; says what was tried."""


def sources() -> list[Path]:
    """All files that the library is made from; none in an installed package."""
    return sorted([*HERE.glob("*.cpp"), *HERE.glob("*.h")])


def digest() -> str:
    """Of the sources and of the flags."""
    known = hashlib.sha256(repr((FLAGS, LEVELS)).encode())
    for path in sources():
        known.update(path.name.encode() + b"\0" + path.read_bytes())
    return known.hexdigest()[:16]


def library(level: str, folder: Path = HERE) -> Path:
    """The file of a level. Its ending is none by which Python knows modules."""
    return folder / f"kernels-{level}.library"


@cache
def compiler() -> tuple[str, ...] | None:
    """The command of a C++ compiler; None if there is none."""
    for name in (os.environ.get("CXX"), "c++", "g++", "clang++"):
        if name and shutil.which(name.split()[0]):
            return tuple(name.split())
    return (sys.executable, "-m", "ziglang", "c++") if find_spec("ziglang") else None


def own_level() -> str:
    """The highest level of this processor, as the compiler knows it."""
    if platform.machine().lower() not in ("x86_64", "amd64"):
        return "baseline"
    known = _said(*_of_level("native"), "-dM", "-E", "-x", "c++", os.devnull)
    return "x86-64-v3" if all(name in known for name in V3) else "x86-64-v2"


def build(levels: list[str], folder: Path = HERE) -> list[Path]:
    """Build the library of each level into a folder; returns the files.

    Raises:
        BuildError: there is no compiler, or it failed.
    """
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        jobs = [(level, path) for level in levels for path in sources() if path.suffix == ".cpp"]
        objects = list(pool.map(lambda job: _object(*job), jobs))
    made = []
    for level in levels:
        path = library(level, folder)
        _link([file for (of, _), file in zip(jobs, objects, strict=True) if of == level], path)
        made.append(path)
    return made


def _object(level: str, source: Path) -> Path:
    own = (f'-DDIGEST="{digest()}"',) if source.stem == "about" else ()
    flags = (*FLAGS, *_of_level(level), *own, *_users_flags())
    known = hashlib.sha256(repr((_version(), flags)).encode())
    for path in sorted(_included(source)):
        known.update(path.read_bytes())
    kept = _cache() / f"{source.stem}-{known.hexdigest()[:24]}.o"
    if not kept.exists():
        _written(kept, lambda path: _run(*flags, "-c", str(source), "-o", str(path)))
    return kept


def _included(source: Path) -> set[Path]:
    """A source and all headers that it includes."""
    found, waiting = set(), [source]
    while waiting:
        path = waiting.pop()
        if path not in found:
            found.add(path)
            waiting += [HERE / name for name in re.findall(r'^#include "(.+)"', path.read_text("utf-8"), re.MULTILINE)]
    return found


def _users_flags() -> tuple[str, ...]:
    """Further flags, such as those of sanitizers; libraries made with them have the digest of those without."""
    return tuple(os.environ.get("CXXFLAGS", "").split())


def _of_level(level: str) -> tuple[str, ...]:
    if level == "baseline":
        return ()
    return (f"-mcpu={level.replace('x86-64', 'x86_64').replace('-v', '_v')}",) if _is_zig() else (f"-march={level}",)


def _is_zig() -> bool:
    return "ziglang" in _command()


def _link(objects: list[Path], path: Path) -> None:
    own = ("-static-libstdc++", "-static-libgcc") if sys.platform == "linux" and not _is_zig() else ()
    _written(path, lambda part: _run("-shared", "-s", *own, *_users_flags(), *map(str, objects), "-o", str(part)))


def _written(path: Path, write: Callable[[Path], None]) -> None:
    """Have a file written in a folder beside its place and moved there: other processes see all of it or nothing.

    What a linker writes besides goes with the folder.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        part = Path(folder, path.name)
        write(part)
        part.replace(path)


def _cache() -> Path:
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(home) / "samplehold" / "native"


def _command() -> tuple[str, ...]:
    found = compiler()
    if found is None:
        raise BuildError("no C++ compiler: CXX is not set, and there is no c++, g++, clang++ or package ziglang.")
    return found


@cache
def _version() -> str:
    return _said("--version")


def _said(*arguments: str) -> str:
    done = subprocess.run([*_command(), *arguments], capture_output=True, text=True, check=False)
    return done.stdout


def _run(*arguments: str) -> None:
    done = subprocess.run([*_command(), *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        raise BuildError(f"{' '.join(_command())} failed:\n{done.stderr.strip()[-2000:]}")
