"""What is listed twice says the same: a registry, the parameters that choose from it, and the documents that explain it."""

from __future__ import annotations

import inspect
import re
from dataclasses import asdict, is_dataclass, replace
from pathlib import Path
from typing import Annotated, get_args, get_origin, get_type_hints

import pytest

from tcl_core.errors import UsageError
from tcl_core.learning_names import LOSSES, SCHEDULES
from tcl_core.params import METHODS, Params, load_params
from tcl_core.platforms import KINDS
from tcl_core.sampler_names import SAMPLERS
from tcl_core.settings import OneOf
from tests.shipped import SHIPPED

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
    text = SHIPPED.read_text()
    line = re.search(rf"^{section}:.*?^ +({name}: .*?)$", text, re.MULTILINE | re.DOTALL)[1]
    assert [choice for choice in CHOICES[key] if not re.search(rf"(?<![\w-]){choice}(?![\w-])", line)] == []


def test_losses_and_schedules_are_where_their_names_say():
    from tcl_core.learning import fit, losses

    assert CHOICES["train.loss"] == tuple(LOSSES) and CHOICES["train.schedule"] == ("constant", "cosine")
    assert {fit._at(place) for place in LOSSES.values()} == {losses.lambda_rank, losses.rank_net, losses.score_regression}
    assert [fit._at(place)(3, 10) for place in SCHEDULES.values()] == [1.0, fit.cosine(3, 10), 1.0]
    assert [round(fit._at(place)(25, 10), 4) for place in SCHEDULES.values()] == [1.0, 0.5, 0.64]


def test_methods_of_the_chain_are_where_their_names_say():
    from tcl_core.chain import named
    from tcl_core.chain.method import Method

    assert CHOICES["distill.method"] == tuple(METHODS)
    assert len({type(named(method)) for method in METHODS}) == len(METHODS)
    for method in map(named, METHODS):
        assert isinstance(method, Method) and set(method.sections) <= set(get_type_hints(Params))


def test_a_method_that_is_not_there_is_told_with_the_nearest():
    from tcl_core.chain import named

    with pytest.raises(UsageError, match="unknown method 'bridges' .*bridge"):
        named("bridges")


def test_comparisons_know_the_samplers_that_they_compare():
    import samplers

    assert set(samplers.SAMPLERS) == set(SAMPLERS)


def test_a_kind_on_which_nothing_is_tuned_says_what_it_is():
    assert [kind.name for kind in KINDS.values() if not kind.elsewhere] == ["local", "cuda"]


def test_the_documents_list_every_model_and_every_kind_of_platform():
    from tcl_core.models.catalogue import CLASSES

    def first_column(page: str) -> set[str]:
        return set(re.findall(r"^\| `([\w-]+)` \|", (ROOT / "docs" / page).read_text(), re.MULTILINE))

    assert set(CLASSES) <= first_column("models.md")
    assert set(KINDS) <= first_column("devices.md")


def test_the_document_and_the_help_name_every_dialect_of_logs():
    from tcl_core.cli.data import import_
    from tcl_core.cli.use import predict
    from tcl_core.programs.tuning_logs.dialects import DIALECTS

    table = re.search(r"^\| dialect \|.*?\n\n", (ROOT / "docs" / "data.md").read_text(), re.MULTILINE | re.DOTALL)[0]
    assert set(DIALECTS) <= set(re.findall(r"^\| (\w+)", table, re.MULTILINE))
    for command, argument in ((import_, "logs"), (predict, "log")):
        told = get_type_hints(command, include_extras=True)[argument].__metadata__[0].help
        assert [name for name in DIALECTS if name not in told] == []


# --- numbers: params.yaml has all of a run's, and what works without a project has its own ---


@pytest.fixture
def project():
    """With the parameters as shipped; with those on the disk where the library has them already: a change that is not committed yet."""
    from tcl_core.chain.state import fit_settings
    from tcl_core.stages.workspace import Workspace
    from tcl_core.teaching import STUDENT

    here = Workspace(ROOT)
    return here if fit_settings(here.params) == STUDENT else Workspace(params=load_params(SHIPPED))


def test_the_library_trains_as_params_yaml_does(project):
    from tcl_core.chain.bridge import BridgeSettings
    from tcl_core.chain.ckd import DistillSettings
    from tcl_core.chain.state import fit_settings
    from tcl_core.teaching import STUDENT

    assert fit_settings(project.params) == STUDENT and STUDENT.period == STUDENT.epochs
    assert BridgeSettings.of(project.params) == BridgeSettings()
    found, usual = DistillSettings.of(project.params), DistillSettings()
    assert (found.epochs, found.kd_epochs) == (20, 20) and (usual.epochs, usual.kd_epochs) == (50, 50)  # the paper's
    fit = replace(found.fit, epochs=usual.fit.epochs, period=usual.fit.period)  # of which neither is used
    assert replace(found, fit=fit, epochs=usual.epochs, kd_epochs=usual.kd_epochs) == usual


def test_the_library_and_the_comparisons_count_as_params_yaml_does(project):
    from _datasets import Reference
    from _transfer_rows import FEW_EPOCHS

    from tcl_core.library import DEFAULT_TRIALS
    from tcl_core.programs.graph import PREPARED

    params = project.params
    assert params.distill.epochs == params.distill.kd_epochs == FEW_EPOCHS
    assert inspect.signature(Reference).parameters["unlabelled"].default == params.train.unlabelled
    assert params.tune.trials == DEFAULT_TRIALS and asdict(params.graph) == asdict(PREPARED)
