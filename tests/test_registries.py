"""What is listed twice says the same: a registry, the parameters that choose from it, and the documents that explain it."""

from __future__ import annotations

import re
from dataclasses import is_dataclass
from pathlib import Path
from typing import Annotated, get_args, get_origin, get_type_hints

import pytest

from tcl_core.params import Params
from tcl_core.platforms import KINDS
from tcl_core.settings import OneOf

ROOT = Path(__file__).resolve().parents[1]


def choices(kind: type = Params, prefix: str = "") -> dict[str, tuple[str, ...]]:
    """Dotted key -> what it may be, of all keys that choose from names."""
    found: dict[str, tuple[str, ...]] = {}
    for name, hint in get_type_hints(kind, include_extras=True).items():
        rule = get_args(hint)[1] if get_origin(hint) is Annotated else None
        inner = [part for part in (hint, *get_args(hint)) if is_dataclass(part)]
        found |= {prefix + name: rule.names} if isinstance(rule, OneOf) else {}
        for part in inner:
            found |= choices(part, f"{prefix}{name}.")
    return found


CHOICES = choices()


def test_the_keys_that_choose_are_found():
    assert {"collect.sampler", "train.loss", "distill.method", "platforms.kind"} <= set(CHOICES)


@pytest.mark.parametrize("key", sorted(set(CHOICES) - {"platforms.kind", "schedules.run"}))
def test_a_comment_in_params_yaml_names_every_choice(key):
    section, name = key.split(".")
    text = (ROOT / "params.yaml").read_text()
    line = re.search(rf"^{section}:.*?^ +({name}: .*?)$", text, re.MULTILINE | re.DOTALL)[1]
    assert [choice for choice in CHOICES[key] if not re.search(rf"(?<![\w-]){choice}(?![\w-])", line)] == []


def test_losses_and_schedules_are_those_of_the_training_loop():
    from tcl_core.learning.fit import LOSSES, SCHEDULES

    assert set(CHOICES["train.loss"]) == set(LOSSES)
    assert set(CHOICES["train.schedule"]) == set(SCHEDULES) - {"step"}  # the paper's KD phase alone: its period is no parameter


def test_methods_of_the_chain_are_those_of_the_stage():
    from tcl_core.stages.training import METHODS

    assert set(CHOICES["distill.method"]) == set(METHODS)


def test_a_kind_on_which_nothing_is_tuned_says_what_it_is():
    assert [kind.name for kind in KINDS.values() if not kind.elsewhere] == ["local"]


def test_the_documents_list_every_model_and_every_kind_of_platform():
    from tcl_core.models.catalogue import CLASSES

    def first_column(page: str) -> set[str]:
        return set(re.findall(r"^\| `([\w-]+)` \|", (ROOT / "docs" / page).read_text(), re.MULTILINE))

    assert set(CLASSES) <= first_column("models.md")
    assert set(KINDS) <= first_column("devices.md")
