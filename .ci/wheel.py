"""Exit with an error unless a wheel installs one package, with its code, stubs and nothing else."""

import sys
import zipfile
from pathlib import PurePosixPath

SUFFIXES = {".py", ".pyi", ".typed"}
KERNELS = "samplehold/inference/native/kernels-"
MARKS = {"samplehold/py.typed", "samplehold/__init__.pyi"}  # of a package with types

files = [PurePosixPath(name) for name in zipfile.ZipFile(sys.argv[1]).namelist()]
about = {file for file in files if file.parts[0].endswith(".dist-info")}
code = set(files) - about
if {file.parts[0] for file in code} != {"samplehold"}:
    sys.exit(f"wheel: installs {sorted({file.parts[0] for file in code})}, expected samplehold alone.")
kernels = {file for file in code if str(file).startswith(KERNELS)}
if not kernels:
    sys.exit(f"wheel: holds no {KERNELS}*, the library of CPU kernels.")
strange = sorted(str(file) for file in code - kernels if file.suffix not in SUFFIXES)
kept_out = sorted(str(file) for file in code if file.parts[1] in {"tests", "docs", "notebooks", "build"})
if strange or kept_out:
    sys.exit(f"wheel: holds {(strange + kept_out)[:5]}, which users do not need.")
if missing := MARKS - {str(file) for file in code}:
    sys.exit(f"wheel: lacks {sorted(missing)}.")
print(f"wheel: {len(code)} files of samplehold")
