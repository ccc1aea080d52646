"""JSON and safetensors files that carry a checksum of their own content.

Without one, a flipped bit in a weight or a figure would silently change a result.  The checksum is inside the file, so
that a file and its checksum cannot come from two different moments:

    JSON          key ``checksum`` of the outermost object: SHA-256 of the rest, serialised without spaces, keys sorted
    safetensors   metadata key ``checksum``: SHA-256 of the file with zeros in place of these digits; then all other
                  metadata as JSON, since safetensors writes several keys in no fixed order

``store`` does the same for Parquet, the journal for each of its lines.  A folder whose files belong together also lists
their checksums.
"""

from __future__ import annotations

import ast
import hashlib
import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tcl_core.errors import DataError
from tcl_core.files import place, reading, replacing, shown

KEY = "checksum"
AGAIN = "delete it and run its stage again, or fetch it with: dvc checkout"  # the remedy for a stage's damaged file
_BLANK = "0" * 64
_LARGEST = 1 << 30  # bytes; a larger file is none of TCL's JSON files


def write_json(path: str | Path, data: Mapping[str, Any]) -> Path:
    """Write an object; NaN and infinity become null, NumPy values plain ones; keys keep their order."""
    path, plain = Path(path), plain_json(data)
    with replacing(path) as file:
        file.write(json_bytes(plain))
    return path


def json_bytes(plain: Mapping[str, Any]) -> bytes:
    """Content of the file that ``write_json`` writes."""
    return json.dumps({**plain, KEY: _digest(plain)}, indent=2, allow_nan=False).encode() + b"\n"


def read_json(path: str | Path, remedy: str) -> dict[str, Any]:
    """Return what ``write_json`` wrote, without the checksum.

    ``remedy`` ends the message about a damaged file: what to do.  Raises DataError for a damaged file, PlatformError or
    UsageError for one that cannot be read, FileNotFoundError for a missing one.
    """
    path = place(path)
    with reading(path):
        size = path.stat().st_size
        raw = path.read_bytes() if size <= _LARGEST else b""
    try:
        found = json.loads(raw)
        given = found.pop(KEY, None) if isinstance(found, dict) else None
    except (ValueError, RecursionError):
        raise damaged(path, "it is no JSON", remedy) from None
    if given is None:
        raise damaged(path, "it has no checksum: it is of another version, or was changed by hand", remedy)
    if given != _digest(found):
        raise damaged(path, "its checksum does not fit", remedy)
    return found


CONTENTS = "contents.json"


def write_contents(folder: Path) -> None:
    """Write ``contents.json``: the SHA-256 of every file in a folder but hidden ones, so that another folder's file is noticed."""
    write_json(folder / CONTENTS, {"files": _digests(folder)})


def check_contents(folder: Path, remedy: str) -> None:
    """Raise DataError if a folder's files differ from its ``contents.json``; a folder without one passes."""
    try:
        told = read_json(folder / CONTENTS, remedy)["files"]
    except (FileNotFoundError, NotADirectoryError):
        return
    found = _digests(folder)
    for name in sorted(told.keys() | found.keys()):
        if told.get(name) != found.get(name):
            why = "is missing" if name not in found else "does not belong there" if name not in told else "is not as it was written"
            raise damaged(folder, f"{shown(name)} {why}", remedy)


def _digests(folder: Path) -> dict[str, str]:
    names = {path.relative_to(folder): path for path in folder.rglob("*") if path.is_file() and path.name != CONTENTS}
    seen = {name.as_posix(): path for name, path in names.items() if not any(part.startswith(".") for part in name.parts)}
    return {name: hashlib.sha256(path.read_bytes()).hexdigest() for name, path in sorted(seen.items())}


def running_code(source: str) -> str:
    """A Python file without comments, docstrings and layout, so that better words change no digest of it."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(body, list):
            body[:] = [part for part in body if not _is_text(part)]
    return ast.dump(tree).replace(", type_params=[]", "")  # which only newer Pythons say


def _is_text(part: ast.AST) -> bool:
    return isinstance(part, ast.Expr) and isinstance(part.value, ast.Constant) and isinstance(part.value.value, str)


def damaged(path: Path, why: str, remedy: str) -> DataError:
    return DataError(f"{shown(path)} is damaged ({why}); {remedy}")


def _digest(plain: Mapping[str, Any]) -> str:
    text = json.dumps(plain, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=True)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def plain_json(value: Any) -> Any:
    """Convert a value to what JSON can hold: NumPy's to Python's, NaN and infinity to None."""
    if isinstance(value, Mapping):
        return {str(key): plain_json(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain_json(item) for item in value]
    if hasattr(value, "tolist"):  # NumPy's
        return plain_json(value.tolist())
    return None if isinstance(value, float) and not math.isfinite(value) else value


def tensor_bytes(save: Callable[..., bytes], tensors: Mapping[str, Any], facts: Mapping[str, str] | None = None) -> bytes:
    """Content of a checked safetensors file; ``save`` comes from ``safetensors.torch`` or ``.numpy``, ``facts`` become its metadata."""
    raw = save(dict(tensors), metadata={KEY: _BLANK + json.dumps(facts or {}, sort_keys=True)})
    start = _place(raw)
    return raw[:start] + hashlib.sha256(raw).hexdigest().encode() + raw[start + len(_BLANK) :]


def write_tensors(path: str | Path, save: Callable[..., bytes], tensors: Mapping[str, Any], facts: Mapping[str, str] | None = None) -> None:
    """Write a checked safetensors file; arguments as of ``tensor_bytes``."""
    with replacing(Path(path)) as file:
        file.write(tensor_bytes(save, tensors, facts))


def read_tensors(path: str | Path, load: Callable[[bytes], dict[str, Any]], remedy: str) -> tuple[dict[str, Any], dict[str, str]]:
    """Tensors and metadata of a checked safetensors file; ``load`` comes from the same module as ``save``.

    Raises as ``read_json``.
    """
    path = Path(path)
    with reading(path):
        raw = path.read_bytes()
    try:
        start = _place(raw)
        given, blank = raw[start : start + len(_BLANK)], raw[:start] + _BLANK.encode() + raw[start + len(_BLANK) :]
        if hashlib.sha256(blank).hexdigest().encode() != given:
            raise ValueError("its checksum does not fit")
        return load(raw), json.loads(_header(raw)["__metadata__"][KEY][len(_BLANK) :])
    except Exception as error:  # safetensors raises a type of its own
        why = str(error) if type(error) is ValueError else "it is no checked safetensors file"
        raise damaged(path, why, remedy) from None


def _header(raw: bytes) -> dict[str, Any]:
    size = int.from_bytes(raw[:8], "little")
    return json.loads(raw[8 : 8 + size])


def _place(raw: bytes) -> int:
    """Offset of the checksum's 64 digits.  Raises ValueError if there are none."""
    size = int.from_bytes(raw[:8], "little")
    mark = f'"{KEY}":"'.encode()
    start = raw.find(mark, 8, 8 + size) + len(mark)
    if start < len(mark) or start + len(_BLANK) > 8 + size:
        raise ValueError("it has no checksum")
    return start
