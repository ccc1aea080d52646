"""On-disk cache of compiled kernels: later processes load one in milliseconds, without importing the compiler.

    $XDG_CACHE_HOME/tcl/kernels/NAME-DIGEST.so      ~/.cache where that is not set

The digest covers what the kernel is built from, the versions of TVM and tvm-ffi, and the processor.  Files with other digests
are never read; any file may be deleted at any time.  The files are code: one is loaded only if its last 64 characters are the
SHA-256 of the rest, and if only this user or root could have written it.
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
    """Function ``name`` of the module that ``build`` compiles, or of the file that an earlier process cached.

    ``made_of`` is everything the code depends on; its ``repr`` is hashed.  A file that cannot be loaded is compiled again.
    Failing to write one (no linker, disk space, permission or home) is no error: the next process compiles again.
    """
    file = f"{name}-{_digest(made_of)}.so"
    try:
        if (path := folder() / file).exists():
            _check(path)
            return load_compiled(path)[name]
    except DataError as error:
        log.warning("%s", error)
    except Exception as error:  # loaders fail in many ways
        log.debug("%s cannot be used (%s); the kernel is compiled again", file, error)
    module = build()
    try:
        _keep(module, folder() / file)
    except Exception as error:  # linkers fail in many ways; the module in memory works anyway
        log.debug("%s is not kept (%s)", file, error)
    return module[name]


def folder() -> Path:
    """Folder of the cached kernels.  Raises RuntimeError for a user without a home."""
    return user_cache("kernels")


def _digest(made_of: object) -> str:
    facts = repr((made_of, TVM_VERSION, FFI_VERSION, host_fingerprint()))
    return hashlib.sha256(facts.encode()).hexdigest()[:16]


def _check(path: Path) -> None:
    """Raise DataError if the file has changed since it was cached, or another user could have written it."""
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
            file.write(raw + hashlib.sha256(raw).hexdigest().encode())  # loaders ignore what follows a library
