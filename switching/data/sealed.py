"""Files of tensors and a JSON description, with a checksum: safetensors whose metadata has `samplehold`.

The description has the format, the SHA-256 of the whole file with zeros instead of this number, and other entries.
"""

import hashlib
import json
import re
from collections.abc import Mapping
from typing import Any

from safetensors.torch import load as tensors_of
from safetensors.torch import save as bytes_of
from torch import Tensor

KEY = "samplehold"
UNSEALED = "0" * 64
SEAL = re.compile(rb'(?<=\\"sha256\\": \\")[0-9a-f]{64}')


def sealed(structure: Mapping[str, Any], tensors: Mapping[str, Tensor], version: int) -> bytes:
    """The bytes of a file."""
    # two names may refer to one tensor, which safetensors does not allow
    stored = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}
    structure = {"format": version, "sha256": UNSEALED} | dict(structure)
    data = bytes_of(stored, {KEY: json.dumps(structure, allow_nan=False)})
    return SEAL.sub(hashlib.sha256(data).hexdigest().encode(), data, 1)


def unsealed(data: bytes, version: int, file: str) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The description and the tensors of a file, if they are as written.

    Arguments:
        version: of the format that is read.
        file: the name of the file, in errors.

    Raises:
        ValueError: a file that is cut off, damaged, of another kind, or of another version.
    """
    start = 8 + int.from_bytes(data[:8], "little")
    if len(data) < 8 or start > len(data):
        raise ValueError(f"{file} is incomplete, or not a safetensors file; restore it from a copy.")
    metadata = _json(data[8:start]).get("__metadata__", {})
    if KEY not in metadata:
        raise ValueError(f"{file} is of another kind: it has no description by samplehold.")
    structure = _json(metadata[KEY])
    found = structure["format"]
    if found != version:
        later = isinstance(found, int) and found > version
        cure = "update samplehold" if later else "use the samplehold that wrote it, or make it anew"
        raise ValueError(f"it has format {found!r}, and this version reads {version}; {cure}.")
    seal = SEAL.search(data, 0, start)
    without = b"" if seal is None else data[: seal.start()] + UNSEALED.encode() + data[seal.end() :]
    if structure["sha256"] != hashlib.sha256(without).hexdigest():
        raise ValueError(f"{file} is damaged: its checksum differs; restore it from a copy.")
    return structure, tensors_of(data)


def _json(text: str | bytes) -> dict[str, Any]:
    """A JSON object without duplicate names and without NaN."""

    def refuse(name: str) -> None:
        raise ValueError(f"its description has {name}, which is not a finite number.")

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        if len(dict(pairs)) < len(pairs):
            raise ValueError("its description has a name twice.")
        return dict(pairs)

    try:
        structure = json.loads(text, object_pairs_hook=unique, parse_constant=refuse)
    except RecursionError:
        raise ValueError("its description is nested too deeply.") from None
    except (json.JSONDecodeError, UnicodeDecodeError):
        raise ValueError("its description is not JSON, so it is damaged or not a safetensors file.") from None
    if not isinstance(structure, dict):
        raise ValueError(f"its description is a {type(structure).__name__}, expected an object.")
    return structure
