"""Profiles: named sets of changes to params.yaml, and any other file of changes, applied with comments kept."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tcl_core.errors import UsageError, unknown_name
from tcl_core.files import replacing
from tcl_core.params import PARAMS, Params, parse_params
from tcl_core.settings import read_yaml, yaml_format

# Sections whose keys are names of the user's own: a profile replaces such a section as a whole.
NAMED = ("platforms", "chain", "schedules")


def profile_names(path: str | Path = PARAMS) -> tuple[str, ...]:
    """Names of the profiles ``profiles/NAME.yaml`` beside ``path``, each with only the keys that differ."""
    return tuple(sorted(file.stem for file in (Path(path).parent / "profiles").glob("*.yaml")))


def apply_profile(name: str, path: str | Path = PARAMS) -> dict[str, tuple[Any, Any]]:
    """Write a profile's values into ``path`` in one atomic step; comments are kept.

    Returns dotted key -> (old, new) of what changed.  Raises UsageError, and leaves ``path`` alone, for an
    unknown profile, for a key that ``path`` lacks, and for a result that is not valid.
    """
    path = Path(path)
    if name not in profile_names(path):
        raise unknown_name("profile", name, profile_names(path), str(path.parent / "profiles"))
    document, changed = _patched(path, path.parent / "profiles" / f"{name}.yaml")
    if changed:
        with replacing(Path(os.path.realpath(path))) as file:
            os.fchmod(file.fileno(), stat.S_IMODE(path.stat().st_mode))  # keep the former permissions, such as a group's
            yaml_format(round_trip=True).dump(document, file)
    return changed


def load_patched(patch_file: str | Path, path: str | Path = PARAMS) -> Params:
    """Parameters of ``path``, overridden by ``patch_file``; neither is changed.  Raises UsageError as ``apply_profile``."""
    document, _ = _patched(Path(path), Path(patch_file))
    return parse_params(document, f"{path} with {patch_file}")


def _patched(path: Path, patch_file: Path) -> tuple[Any, dict[str, tuple[Any, Any]]]:
    """The valid document of ``path`` with a patch applied, and dotted key -> (old, new) of what changed."""
    document, patch = read_yaml(path, round_trip=True), read_yaml(patch_file, round_trip=True) or {}
    parse_params(document, str(path))
    if not isinstance(patch, Mapping):
        raise UsageError(f"{patch_file} holds no sections of parameters; give it keys and values as in {path}")
    changed = dict(_patch(document, patch, "", str(patch_file)))
    parse_params(document, f"{path} with {patch_file}")
    return document, changed


def _patch(tree: Any, patch: Mapping, prefix: str, source: str) -> Iterator[tuple[str, tuple[Any, Any]]]:
    for key, new in patch.items():
        dotted, old = f"{prefix}{key}", tree.get(key)
        if key not in tree:
            raise unknown_name("key", dotted, (f"{prefix}{known}" for known in tree), source)
        if isinstance(old, Mapping) and isinstance(new, Mapping) and dotted not in NAMED:
            yield from _patch(old, new, f"{dotted}.", source)
        elif old != new:
            yield dotted, (_plain(old), _plain(new))
            _replace(tree, key, new)


def _replace(tree: Any, key: str, new: Any) -> None:
    """Set a value; a list is refilled in place, so that it keeps its block or flow style."""
    if isinstance(tree[key], list) and isinstance(new, list):
        tree[key].clear()
        tree[key].extend(new)
    else:
        tree[key] = new


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _plain(entry) for name, entry in value.items()}
    return list(value) if isinstance(value, list) else value
