"""Load ``.pt2`` archives as data: whatever would make ``torch.export.load`` run code is refused before it is loaded.

A pickle, a script object, a compiled library, a symbolic expression (SymPy evaluates its text), a guard and an operator's
name (any function reachable from ``torch``) can all run code.  The check reads the archive with PyTorch's own reader; the
functions that unpickle or evaluate are also disabled in this process.  Use it in a confined process only.
"""

from __future__ import annotations

import io
import json
import math
import os
import re
import zipfile
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, BinaryIO, NoReturn

from tcl_core import errors
from tcl_core.errors import UsageError
from tcl_core.files import shown

MOST_MEMBERS = 100_000
LARGEST_BYTES = 8 << 30  # of one tensor
LIBRARIES = (".so", ".o", ".a", ".cpp", ".cu", ".cubin", ".py", ".pyc")
OPERATOR = re.compile(r"torch\.ops\.(?!_)\w+\.\w+\.\w+|torch\.ops\.higher_order\.\w+|torch\.sym_\w+|_operator\.\w+|math\.\w+", re.ASCII)
FROM_FILES = "torch.ops.aten.from_file"


class Refused(Exception):
    """Why an archive is not loaded."""


def load_pt2(file: BinaryIO, path: str) -> tuple[Any, tuple[Any, ...]]:
    """A ``torch.export`` program and its example inputs; ``path`` names it in errors.

    Raises UsageError for a damaged archive, one that holds code, dynamic shapes, and missing positional example inputs.
    """
    os.environ["TORCH_FORCE_WEIGHTS_ONLY_LOAD"] = "1"
    try:
        _check_sizes(file)  # before PyTorch is imported, which takes seconds
        import torch

        _check_members(file)
        _disarm()
        file.seek(0)
        program = torch.export.load(file)
    except Refused as why:
        raise UsageError(f"{path} is refused: {why}; export it again, with tensors only") from None
    except UsageError as error:
        raise UsageError(f"{path} {error}") from None
    except Exception as error:  # a damaged archive fails in zipfile, json or torch, each in its own way
        raise UsageError(f"{path} is not a readable torch.export archive ({last_line(error)}); export it again") from error
    program._guards_code = []  # Python that `module()` would run; the shapes are fixed
    inputs, by_name = program.example_inputs or ((), {})
    if by_name or not inputs or not all(isinstance(given, torch.Tensor) for given in inputs):
        raise UsageError(f"{path} has no positional example inputs; export it as torch.export.export(model, (input, ...))")
    return program, tuple(inputs)


def last_line(error: BaseException) -> str:
    return shown(errors.last_line(error).rstrip("."))


def _check_sizes(file: BinaryIO) -> None:
    """Refuse zip bombs and duplicate names: ``torch.export.save`` compresses nothing, so no archive unpacks to more than its size."""
    size = file.seek(0, os.SEEK_END)
    with zipfile.ZipFile(file) as archive:
        members = archive.infolist()
    if len(members) > MOST_MEMBERS:
        raise Refused(f"it has {len(members):,} members")
    if len({member.filename for member in members}) < len(members):
        raise Refused("two of its members have one name")
    unpacked = sum(member.file_size for member in members)
    if unpacked > size:
        raise Refused(f"it would unpack to {unpacked:,} bytes, and has {size:,}")


def _check_members(file: BinaryIO) -> None:
    from torch.export.pt2_archive._package import PT2ArchiveReader

    file.seek(0)
    with PT2ArchiveReader(file) as archive:
        names = archive.get_file_names()
        for name in names:
            _check_name(name)
        for name in names:
            if name.endswith(".pt"):
                _check_pickle(name, archive.read_bytes(name))
            if name.endswith("_config.json"):
                _check_config(archive, name, json.loads(archive.read_bytes(name)))
            if name.startswith("models/"):
                _check_program(json.loads(archive.read_bytes(name)))


def _check_name(name: str) -> None:
    base = name.rsplit("/", 1)[-1]
    if name.startswith("data/aotinductor/") or base.endswith(LIBRARIES) or ".so." in base:
        raise Refused(f"it holds compiled code or sources ({shown(name)})")
    if base.startswith(("custom_obj_", "opaque_obj_")):
        raise Refused(f"it holds an object that is no tensor ({shown(name)})")


def _check_config(archive: Any, name: str, config: Any) -> None:
    folder = name.rsplit("/", 1)[0]
    for payload in config["config"].values():
        _check_name(str(payload["path_name"]))
        if payload["use_pickle"]:
            member = os.path.join(folder, payload["path_name"])
            _check_pickle(member, archive.read_bytes(member))
        else:
            _check_declared(payload)


def _check_declared(payload: Any) -> None:
    """Refuse a tensor that declares too many elements, at four bytes each: one without bytes would be filled with zeros."""
    size = 4 * math.prod(int(dim["as_int"]) for dim in payload["tensor_meta"]["sizes"])
    if size > LARGEST_BYTES:
        raise Refused(f"its tensor {shown(payload['path_name'])} would have {size / 2**30:,.1f} GiB")


def _check_pickle(name: str, content: bytes) -> None:
    """Refuse a pickle that PyTorch's restricted unpickler does not load: it takes tensors in plain containers."""
    import torch

    if content:
        try:
            torch.load(io.BytesIO(content), weights_only=True)
        except Exception:
            raise Refused(f"it holds a pickle of more than tensors ({shown(name)}), which may run any code") from None


def _check_program(program: Any) -> None:
    if dynamic := program.get("range_constraints"):
        raise _dynamic(*dynamic)
    for key, value in _entries(program):
        if key in ("as_expr", "expr_str"):
            raise _dynamic(value["expr_str"] if isinstance(value, dict) else value)
        if key in ("as_custom_obj", "custom_obj") or (key == "custom_obj_values" and value):
            raise Refused("it holds a script object")
        if key in ("target", "as_operator") and not _is_operator(value):
            raise Refused(f"it calls {shown(value)}, which is no operator of a network")
        if key in ("in_spec", "out_spec") and ("default_factory" in str(value) or "__enum__" in str(value)):
            raise Refused("its inputs or outputs are Python objects")


def _is_operator(name: Any) -> bool:
    return isinstance(name, str) and bool(OPERATOR.fullmatch(name)) and not name.startswith(FROM_FILES)


def _dynamic(*symbols: Any) -> UsageError:
    return UsageError(f"has dynamic shapes ({shown(', '.join(map(str, symbols)))}); export it with fixed input shapes")


def _entries(tree: Any) -> Iterator[tuple[str, Any]]:
    """Every (key, value) of nested JSON."""
    todo = [tree]
    while todo:
        node = todo.pop()
        if isinstance(node, dict):
            yield from node.items()
            todo += node.values()
        elif isinstance(node, list):
            todo += node


def _disarm() -> None:
    """Disable for good the functions that would run code if PyTorch's loader read the archive differently from the check."""
    import torch
    from sympy.parsing import sympy_parser
    from torch.export.pt2_archive import _package

    _package.pickle = SimpleNamespace(loads=_refuse)
    torch._C._pickle_load_obj = _refuse
    sympy_parser.eval_expr = _refuse


def _refuse(*_: Any, **__: Any) -> NoReturn:
    raise Refused("it holds code")
