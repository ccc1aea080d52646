"""Errors that a user can act on: one sentence that says what is wrong, where, and what to do."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

DRIFT = 7  # exit code of `tcl drift` if it finds drift: not an error, but something to act on


class TclError(Exception):
    """Base of every error that the user can fix; the command line prints it and exits with ``exit_code``."""

    exit_code = 1


class UsageError(TclError):
    """A name, a file or a parameter that was given is wrong."""

    exit_code = 2


class DataError(TclError):
    """A file of the data set is missing, damaged, of another schema or of another host."""

    exit_code = 3


class PlatformError(TclError):
    """The hardware, the compiler or the runtime cannot do what was asked."""

    exit_code = 4


class BusyError(PlatformError):
    """Another process is at the same measurement and will be for long, so retrying soon is useless."""

    exit_code = 6


class RegistryError(TclError):
    """The model registry has no such model, version or champion."""

    exit_code = 5


class NoChampionError(RegistryError):
    """Nothing was promoted for a platform yet."""


def unknown_name(kind: str, name: str, known: Iterable[str], where: str = "") -> UsageError:
    """An error that names the nearest known name, e.g. ``unknown platform 'host-avx' ...``."""
    known = sorted(known)
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.4)
    hint = f"did you mean '{near[0]}'?" if near else f"known: {', '.join(known) or 'none'}."
    return UsageError(f"unknown {kind} '{name}'{' in ' + where if where else ''}; {hint}")


def check_seed(seed: int) -> None:
    """Raise UsageError for a seed that NumPy and torch do not take."""
    if not 0 <= seed < 2**32:
        raise UsageError(f"the seed is {seed}; give a number from 0 to {2**32 - 1}")


def last_line(error: BaseException) -> str:
    """Last line of an error's message, where TVM gives the reason; the error's type if the message is empty."""
    return (str(error).strip().splitlines() or [type(error).__name__])[-1]


EXTRAS = {  # optional package -> the extra that installs it
    "cronsim": "pipeline", "distributed": "dask", "dvc": "pipeline", "jinja2": "pipeline", "markupsafe": "pipeline",
    "matplotlib": "pipeline", "mlflow": "pipeline", "onnx": "tvm", "prefect": "pipeline", "prefect_dask": "dask", "psutil": "tvm",
    "rich": "pipeline", "ruamel": "pipeline", "transformers": "pipeline", "tvm": "tvm", "tvm_ffi": "tvm", "typer": "pipeline",
    "upath": "remote", "xgboost": "trees",
}  # fmt: skip


def missing_extra(error: ModuleNotFoundError) -> str | None:
    """The sentence for a package of an extra that is not installed; None for any other module."""
    package = (error.name or "").split(".")[0]
    return str(missing_package(package)) if package in EXTRAS else None


def missing_package(package: str) -> UsageError:
    """The error for a package of an extra that is not installed."""
    return UsageError(
        f"this needs the package {package}, which is not installed; run in TCL's checkout: pip install '.[{EXTRAS[package]}]'"
    )


@contextmanager
def naming_extras() -> Iterator[None]:
    """Turn a failed import of an extra's package within the block into a UsageError that names the extra."""
    try:
        yield
    except ModuleNotFoundError as error:
        if (sentence := missing_extra(error)) is None:
            raise
        raise UsageError(sentence) from error
