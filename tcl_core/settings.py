"""Parses a YAML file into frozen dataclasses: a field's annotation is its whole check.

Knows YAML and dataclasses, but no parameter of TCL.  Supported annotations: int, float, bool, str, each
optionally ``Annotated`` with ``Between`` or ``OneOf``; ``tuple[X, ...]`` of at least one entry, or ``Annotated`` with
another length; ``dict[str, X]``; a dataclass.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin, get_type_hints

from tcl_core.errors import UsageError, unknown_name
from tcl_core.files import shown

LARGEST = 1 << 20  # bytes of a YAML file


@dataclass(frozen=True)
class Between:
    """Allowed range of a number; ``above`` excludes the lower bound itself."""

    low: float
    high: float = math.inf
    above: bool = False

    def __contains__(self, value: float) -> bool:
        return (self.low < value if self.above else self.low <= value) and value <= self.high

    def __str__(self) -> str:
        bound = f"{'above' if self.above else 'of at least'} {self.low:.15g}"
        return bound if self.high == math.inf else f"{bound} and at most {self.high:.15g}"


@dataclass(frozen=True)
class OneOf:
    names: tuple[str, ...]


def parse(kind: Any, value: Any, key: str, source: str) -> Any:
    """``value`` checked against the annotation ``kind`` and converted.

    ``key`` is dotted, as in ``measure.repeats``, and empty for the whole document; ``source`` is the file.
    Raises UsageError: unknown or missing key, wrong type, value out of range.
    """
    kind, rule = get_args(kind) if get_origin(kind) is Annotated else (kind, None)
    if isinstance(kind, type) and is_dataclass(kind):
        return _parse_section(kind, value, key, source)
    if get_origin(kind) is dict:
        entries = _mapping(value, key, source)
        return {name: parse(get_args(kind)[1], entry, f"{key}.{name}", source) for name, entry in entries.items()}
    if get_origin(kind) is tuple:
        return _parse_list(get_args(kind)[0], rule or Between(1), value, key, source)
    return _parse_scalar(kind, rule, value, key, source)


def _parse_section(kind: type, value: Any, key: str, source: str) -> Any:
    tree = _mapping(value, key, source)
    known = get_type_hints(kind, include_extras=True)
    where = f"section '{key}' of {source}" if key else source
    for name in tree:
        if name not in known:
            raise unknown_name("key" if key else "section", str(name), known, where)
    for field in fields(kind):
        if field.name not in tree and field.default is MISSING and field.default_factory is MISSING:
            raise UsageError(f"{where} lacks '{field.name}'; add it as it stands in the file that tcl init NAME writes")
    return kind(**{name: parse(known[name], tree[name], f"{key}.{name}".lstrip("."), source) for name in tree})


def _mapping(value: Any, key: str, source: str) -> Mapping:
    if not isinstance(value, Mapping):
        raise UsageError(f"{source}: '{key}' is {_told(value)}; it must be a section of 'name: value' lines")
    for name in value:
        if not isinstance(name, str):
            raise UsageError(f"{source}: the name {_told(name)} in '{key}' is no text; put it in quotes")
    return value


def _parse_list(kind: Any, length: Between, value: Any, key: str, source: str) -> tuple:
    if not isinstance(value, list) or len(value) not in length:
        raise UsageError(f"{source}: {key} is {_told(value)}; it must be a list{' of at least one entry' if length.low else ''}")
    items = tuple(parse(kind, item, f"{key}[{index}]", source) for index, item in enumerate(value))
    for index, item in enumerate(items):
        if item in items[:index]:
            raise UsageError(f"{source}: {key} lists {_told(item)} twice; remove one")
    return items


def _told(value: Any) -> str:
    """A value as text for a message, shortened since it may be of any size."""
    if isinstance(value, int) and not isinstance(value, bool) and value.bit_length() > 1_000:
        return f"a number of {value.bit_length():,} bits"
    return shown(repr(value))


_EXPECTED = {int: "an integer", float: "a number", bool: "true or false", str: "text"}


def _parse_scalar(kind: type, rule: Between | OneOf | None, value: Any, key: str, source: str) -> Any:
    if isinstance(rule, OneOf) and isinstance(value, str) and value not in rule.names:
        raise unknown_name(key, value, rule.names, source)
    if not _is_a(kind, value) or (isinstance(rule, Between) and value not in rule):
        bounds = f" {rule}" if isinstance(rule, Between) else ""
        raise UsageError(f"{source}: {key} is {_told(value)}; it must be {_EXPECTED[kind]}{bounds}")
    return kind(value)


def _is_a(kind: type, value: Any) -> bool:
    """Whether a value is of a kind; an integer may stand for a float, but true is no number, '3' no integer, '' no text."""
    if kind is float:
        whole = isinstance(value, int) and not isinstance(value, bool)  # ruamel has types of its own, as for 10_000
        return whole or (isinstance(value, float) and math.isfinite(value))
    return isinstance(value, kind) and (kind is bool or not isinstance(value, bool)) and value != ""


def read_yaml(path: Path, round_trip: bool = False) -> Any:
    """The document in ``path``, with its comments if ``round_trip``.  Raises UsageError that names the bad line."""
    from ruamel.yaml.error import MarkedYAMLError, YAMLError

    try:
        text = _checked_text(path)
        _refuse_aliases(text, path)
        return yaml_format(round_trip).load(text)
    except MarkedYAMLError as error:
        line = f", line {error.problem_mark.line + 1}" if error.problem_mark else ""
        raise UsageError(f"{path}{line}: not valid YAML ({shown(error.problem)}); mend that line") from None
    except YAMLError as error:
        raise UsageError(f"{path}: not valid YAML ({shown(str(error).splitlines()[0])}); mend it") from None
    except (ValueError, TypeError) as error:  # a number or date that YAML allows and Python does not, or a list as a key
        raise UsageError(f"{path}: not valid YAML ({shown(error)}); mend it") from None
    except RecursionError:
        raise UsageError(f"{path} is nested too deeply to be parameters; restore it ({restored(path)})") from None


def restored(path: str | Path) -> str:
    """How to restore a file of parameters, in words: from its Git repository, or from a fresh project."""
    folders = Path(path).absolute().parents
    return f"git checkout {path}" if any((folder / ".git").exists() for folder in folders) else "tcl init NAME writes a fresh one"


def _checked_text(path: Path) -> str:
    """Text of a file.  Raises UsageError if it cannot be read, is larger than ``LARGEST``, or is not UTF-8."""
    try:
        with open(path, "rb") as file:
            raw = file.read(LARGEST + 1)
    except FileNotFoundError:
        raise UsageError(f"there is no {path}; run in the root of the repository or name another file") from None
    except OSError as error:
        raise UsageError(f"cannot read {path} ({error.strerror}); name a readable file") from None
    if len(raw) > LARGEST:
        raise UsageError(f"{path} is larger than {LARGEST >> 20} MiB, so it is no file of parameters; restore it ({restored(path)})")
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError:
        raise UsageError(f"{path} is not UTF-8 text; restore it ({restored(path)})") from None
    return text


def _refuse_aliases(text: str, path: Path) -> None:
    """Raise UsageError for anchors and aliases: a few lines of these can stand for gigabytes."""
    from ruamel.yaml.tokens import AliasToken, AnchorToken

    if "&" in text or "*" in text:
        for token in yaml_format(round_trip=False).scan(text):
            if isinstance(token, AliasToken | AnchorToken):
                line = token.start_mark.line + 1
                raise UsageError(f"{path}, line {line}: anchors and aliases of YAML are not read here; write the values out")


def yaml_format(round_trip: bool) -> Any:
    """YAML 1.2 as DVC reads it; the round-trip form keeps comments and layout."""
    from ruamel.yaml import YAML

    yaml = YAML(typ="rt" if round_trip else "safe", pure=True)
    yaml.preserve_quotes = True
    yaml.width = 4096  # never fold a line: a profile changes values and nothing else
    yaml.indent(mapping=2, sequence=4, offset=2)
    return yaml
