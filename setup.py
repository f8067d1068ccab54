"""The build: setuptools, and the library of CPU kernels. All else is said in pyproject.toml.

The file is both the backend, which asks for a compiler as a package where the system has none, and the script that
setuptools runs.
"""

import os
import sys
import warnings
from pathlib import Path
from typing import Any

from setuptools import Distribution, build_meta, setup
from setuptools.build_meta import *  # noqa: F403  the hooks of PEP 517 and 660
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_py import build_py

sys.path.insert(0, str(Path(__file__).parent / "inference" / "native"))
import compiling

COMPILER = "ziglang>=0.13"


def get_requires_for_build_wheel(config_settings: Any = None) -> list[str]:
    return _with_compiler(build_meta.get_requires_for_build_wheel(config_settings))


def get_requires_for_build_editable(config_settings: Any = None) -> list[str]:
    return _with_compiler(build_meta.get_requires_for_build_editable(config_settings))


def _with_compiler(required: list[str]) -> list[str]:
    return required if compiling.compiler() else [*required, COMPILER]


class Build(build_py):
    """With `SAMPLEHOLD_LEVELS=x86-64-v2,x86-64-v3` for these levels of instructions; else for the highest of this
    processor."""

    def find_package_modules(self, package: str, package_dir: str) -> list[Any]:
        return [found for found in super().find_package_modules(package, package_dir) if found[1] != "setup"]

    def run(self) -> None:
        super().run()
        folder = compiling.HERE if self.editable_mode else Path(self.build_lib, "samplehold", "inference", "native")
        levels = os.environ.get("SAMPLEHOLD_LEVELS")
        try:
            compiling.build(levels.split(",") if levels else [compiling.own_level()], folder)
        except (compiling.BuildError, OSError) as error:
            warnings.warn(f"samplehold is installed without its library of CPU kernels: {error}", stacklevel=1)


class Wheel(bdist_wheel):
    """For every Python 3, and for one platform."""

    def get_tag(self) -> tuple[str, str, str]:
        return "py3", "none", super().get_tag()[2]


class WithLibrary(Distribution):
    def has_ext_modules(self) -> bool:
        return True


if __name__ == "__main__":
    setup(cmdclass={"build_py": Build, "bdist_wheel": Wheel}, distclass=WithLibrary)
