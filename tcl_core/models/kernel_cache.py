"""Compiled kernels on the disk: the next process has one in milliseconds, without importing the compiler.

    $XDG_CACHE_HOME/tcl/kernels/NAME-DIGEST.so      ~/.cache where that is not set

The digest is over what the kernel is made of, the versions of TVM and tvm-ffi, and the processor; files of others are never
looked at, and may be deleted at any time.  They are code: a file is loaded only if its last 64 characters are the SHA-256 of
the rest, and if nobody but this user, or root, could have written it.
"""

from __future__ import annotations

import hashlib
import logging
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tcl_core.checked import damaged
from tcl_core.compat import FFI_VERSION, TVM_VERSION, load_compiled
from tcl_core.errors import DataError
from tcl_core.files import replacing, user_cache
from tcl_core.platforms import host_fingerprint

DIGITS = 64

log = logging.getLogger(__name__)


def cached(name: str, made_of: object, build: Callable[[], Any]) -> Callable:
    """The function ``name`` of the module that ``build`` compiles, or of the file that an earlier process left.

    ``made_of``: whatever the code depends on; its ``repr`` is digested.  A file that cannot be loaded is made anew, and one
    that cannot be written (no linker, room, rights or home) is no error: the next process compiles again.
    """
    file = f"{name}-{_digest(made_of)}.so"
    try:
        if (path := folder() / file).exists():
            _check(path)
            return load_compiled(path)[name]
    except DataError as error:
        log.warning("%s", error)
    except Exception as error:  # whatever is wrong with it
        log.debug("%s cannot be used (%s); the kernel is compiled again", file, error)
    module = build()
    try:
        _keep(module, folder() / file)
    except Exception as error:  # linkers fail in many ways; the module at hand works all the same
        log.debug("%s is not kept (%s)", file, error)
    return module[name]


def folder() -> Path:
    """Where kernels lie.  Raises RuntimeError for a user without a home."""
    return user_cache("kernels")


def _digest(made_of: object) -> str:
    facts = repr((made_of, TVM_VERSION, FFI_VERSION, host_fingerprint()))
    return hashlib.sha256(facts.encode()).hexdigest()[:16]


def _check(path: Path) -> None:
    """Raise DataError for a file that is not as it was kept, or may be another user's work."""
    with open(path, "rb") as file:
        facts, raw = os.fstat(file.fileno()), file.read()
    if facts.st_uid not in (os.geteuid(), 0) or facts.st_mode & 0o022:
        raise damaged(path, "others may write it", "the kernel is compiled again")
    if hashlib.sha256(raw[:-DIGITS]).hexdigest().encode() != raw[-DIGITS:]:
        raise damaged(path, "its checksum does not fit", "the kernel is compiled again")


def _keep(module: Any, path: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="tcl-kernel-") as scratch:
        linked = Path(scratch) / path.name
        module.export_library(str(linked), workspace_dir=scratch)
        raw = linked.read_bytes()
        with replacing(path) as file:
            os.fchmod(file.fileno(), 0o600)
            file.write(raw + hashlib.sha256(raw).hexdigest().encode())  # no loader minds what follows a library
