"""Champions: loaded as they were registered, replaced only by who was compared with them, taken back."""

from __future__ import annotations

import shutil
import threading
from pathlib import Path

import numpy as np
import pytest
from mlflow.utils.file_utils import local_file_uri_to_path

from tcl_core import registry
from tcl_core.errors import DataError, NoChampionError, RegistryError
from tcl_core.learning.fit import FitSettings
from tcl_core.models.catalogue import create
from tests.registry import helpers
from tests.registry.helpers import TAGS, aliases, saved, some_samples

empty, store, fresh, little_code = helpers.empty, helpers.store, helpers.fresh, helpers.little_code


def test_a_model_comes_back_as_it_was(tmp_path):
    model = saved(tmp_path / "model", seed=7)
    version = registry.register("p-back", model, {"epochs": 3}, {"top_1": 0.5}, TAGS)
    assert registry.promote("p-back", version, True, "the first", None)
    number, folder = registry.champion("p-back")
    assert number == version == 1
    assert (folder / "model.json").read_bytes() == (model / "model.json").read_bytes()
    expected = create("random", FitSettings(seed=7)).predict(some_samples())
    np.testing.assert_array_equal(registry.load_champion("p-back").predict(some_samples()), expected)


def test_a_models_name_in_the_registry_means_its_platform(tmp_path):
    version = registry.register("p-named", saved(tmp_path / "model", 7), {}, {}, TAGS)
    registry.promote("p-named", version, True, "the first", None)
    assert registry.champion("tcl-p-named") == registry.champion("p-named")
    assert registry.champion(f"tcl-p-named:{version}") == registry.champion(f"p-named:{version}")
    with pytest.raises(NoChampionError, match="p-nobody has no champion"):
        registry.champion("tcl-p-nobody")


def test_a_platform_whose_own_name_begins_as_a_models_is_found(tmp_path):
    """Beside a platform of the name without that beginning."""
    from tcl_core.trained import load

    for platform, seed in (("tcl-box", 1), ("box", 2)):
        registry.promote(platform, registry.register(platform, saved(tmp_path / platform, seed), {}, {}, TAGS), True, "the first", None)
    for named, seed in (("tcl-box:1", 1), ("tcl-box", 1), ("box:1", 2), ("tcl-tcl-box:1", 1)):
        assert load(named).model.settings.seed == seed


def test_only_a_better_version_becomes_champion(tmp_path):
    import mlflow

    first = registry.register("p-better", saved(tmp_path / "a", 1), {}, {}, TAGS)
    second = registry.register("p-better", saved(tmp_path / "b", 2), {}, {}, TAGS)
    assert registry.promote("p-better", first, True, "no champion yet", None)
    assert not registry.promote("p-better", second, False, "top-1 .80 against .81", first)
    assert registry.champion_version("p-better") == first
    assert mlflow.MlflowClient().get_model_version("tcl-p-better", str(second)).tags["promotion"] == ("kept back: top-1 .80 against .81")
    assert registry.promote("p-better", second, True, "top-1 .85 against .81", first)
    assert registry.champion_version("p-better") == second


def test_of_two_promotions_at_once_one_wins(tmp_path):
    versions = [registry.register("p-race", saved(tmp_path / f"m{i}", i), {}, {}, TAGS) for i in range(3)]
    registry.promote("p-race", versions[0], True, "the first", None)
    outcomes: list[str] = []

    def contend(version: int) -> None:
        try:
            registry.promote("p-race", version, True, "better than the first", versions[0])
            outcomes.append("won")
        except RegistryError as error:
            outcomes.append("told" if "changed from version 1" in str(error) else str(error))

    threads = [threading.Thread(target=contend, args=(version,)) for version in versions[1:]]
    [thread.start() for thread in threads]
    [thread.join(timeout=60) for thread in threads]
    assert sorted(outcomes) == ["told", "won"]


def test_what_is_missing_is_said_with_what_to_run(tmp_path):
    assert registry.champion_version("p-none") is None
    with pytest.raises(RegistryError, match="p-none has no champion; run: tcl register"):
        registry.champion("p-none")
    registry.promote("p-there", registry.register("p-there", saved(tmp_path / "a"), {}, {}, TAGS), True, "the first", None)
    with pytest.raises(RegistryError, match=r"p-their has no champion; .*; there are champions of .*p-there"):
        registry.champion("p-their")
    model = saved(tmp_path / "model")
    with pytest.raises(RegistryError, match="model of p-none in .* is not registered; run: tcl register --platform p-none"):
        registry.version_of("p-none", model, TAGS)
    with pytest.raises(RegistryError, match="there is no model of p-none in"):
        registry.register("p-none", tmp_path, {}, {}, TAGS)


@pytest.mark.parametrize("how", ["changed", "lost"])
def test_a_champion_that_is_not_what_was_registered_is_refused_and_can_be_replaced(fresh, tmp_path, how):
    model = saved(tmp_path / "model", 1)
    registry.register("p-bytes", model, {}, {}, TAGS)
    registry.promote("p-bytes", 1, True, "the first", None)
    _, folder = registry.champion("p-bytes")
    saved(folder, 2) if how == "changed" else shutil.rmtree(folder)
    with pytest.raises(DataError, match="^version 1 of tcl-p-bytes cannot be used .*; register and promote"):
        registry.load_champion("p-bytes")
    assert registry.register("p-bytes", model, {}, {}, TAGS) == 2 == registry.version_of("p-bytes", model, TAGS)
    registry.promote("p-bytes", 2, True, "version 1 is damaged", 1)
    assert registry.champion("p-bytes")[0] == 2


# --- candidate, champion, previous ---


def tags_of(platform: str, number: int) -> dict[str, str]:
    return dict(registry.versions(platform)[number - 1].tags)


def test_the_aliases_follow_what_is_registered_and_promoted(tmp_path, little_code):
    models = [saved(tmp_path / str(seed), seed) for seed in range(3)]

    def register(which: int) -> dict[str, int]:
        registry.register("p-alias", models[which], {}, {}, TAGS)
        return aliases("p-alias")

    def promote(version: int, better: bool, against: int | None) -> dict[str, int]:
        registry.promote("p-alias", version, better, "why", against)
        return aliases("p-alias")

    assert register(0) == {"candidate": 1}
    assert promote(1, True, None) == {"champion": 1}
    assert register(1) == {"candidate": 2, "champion": 1} == promote(2, False, 1)
    assert promote(2, True, 1) == {"champion": 2, "previous": 1}
    assert register(0) == {"candidate": 1, "champion": 2, "previous": 1}, "the first model was made again"
    assert register(1) == {"candidate": 1, "champion": 2, "previous": 1}, "the champion is no candidate"
    assert register(2) == {"candidate": 3, "champion": 2, "previous": 1}
    assert promote(3, True, 2) == {"champion": 3, "previous": 2}
    assert tags_of("p-alias", 3)["champion.before"] == "2" and tags_of("p-alias", 3)["champion.since"].endswith("+00:00")


def test_a_champion_of_an_older_tcl_becomes_the_previous_one(tmp_path, little_code):
    """It has the alias and no tags, as has one to which somebody gave the alias by hand."""
    import mlflow

    for seed in range(2):
        registry.register("p-old", saved(tmp_path / str(seed), seed), {}, {}, TAGS)
    mlflow.MlflowClient().set_registered_model_alias("tcl-p-old", "champion", "1")
    registry.promote("p-old", 2, True, "better", 1)
    assert aliases("p-old") == {"champion": 2, "previous": 1}


def test_what_lags_behind_a_promotion_that_was_killed_is_brought_along(tmp_path, little_code):
    """As it is left between the move of `champion` and those of the others."""
    import mlflow

    two_champions("p-lag", tmp_path)
    registry.register("p-lag", saved(tmp_path / "3", 3), {}, {}, TAGS)
    client = mlflow.MlflowClient()
    client.set_model_version_tag("tcl-p-lag", "3", "champion.before", "2")
    client.set_registered_model_alias("tcl-p-lag", "champion", "3")
    assert client.get_registered_model("tcl-p-lag").aliases.keys() == {"candidate", "champion", "previous"}
    assert aliases("p-lag") == {"champion": 3, "previous": 1}
    registry.register("p-lag", saved(tmp_path / "4", 4), {}, {}, TAGS)
    assert aliases("p-lag") == {"candidate": 4, "champion": 3, "previous": 2}


def test_a_previous_champion_that_was_deleted_is_none(tmp_path, little_code):
    import mlflow

    two_champions("p-gone", tmp_path)
    mlflow.MlflowClient().delete_model_version("tcl-p-gone", "1")
    with pytest.raises(RegistryError, match="^p-gone has no champion before version 2 to go back to; nothing was changed; "):
        registry.rollback("p-gone", "slow")
    assert aliases("p-gone") == {"champion": 2}


def test_the_files_of_a_version_that_was_deleted_go_with_the_next_registration(tmp_path, little_code):
    import mlflow

    client = mlflow.MlflowClient()
    first = registry.register("p-files", saved(tmp_path / "1", 1), {}, {}, TAGS)
    run = client.get_run(client.get_model_version("tcl-p-files", str(first)).run_id)
    kept = local_file_uri_to_path(client.get_model_version_download_uri("tcl-p-files", str(first)))
    assert list(Path(kept).rglob("model.json"))
    client.delete_model_version("tcl-p-files", str(first))
    assert list(Path(kept).rglob("model.json"))  # MLflow leaves them
    second = registry.register("p-files", saved(tmp_path / "2", 2), {}, {}, TAGS)
    assert second == 2 and not list(Path(kept).rglob("model.json"))
    assert client.get_run(run.info.run_id).info.lifecycle_stage == "deleted"


def two_champions(platform: str, folder) -> None:
    """Version 2 took the place of version 1."""
    for number in (1, 2):
        registry.register(platform, saved(folder / str(number), number), {}, {}, TAGS)
        registry.promote(platform, number, True, "better", number - 1 or None)


def test_a_rollback_gives_the_place_back_and_another_one_takes_it_again(tmp_path, little_code):
    two_champions("p-given-back", tmp_path)
    assert registry.rollback("p-given-back", "slower on BERT") == (1, 2)
    assert aliases("p-given-back") == {"champion": 1, "previous": 2}
    assert registry.champion("p-given-back")[0] == 1
    assert tags_of("p-given-back", 1)["rollback"].endswith(": slower on BERT (in the place of version 2)")
    assert registry.withdrawn("p-given-back", 2).endswith(": slower on BERT") and registry.withdrawn("p-given-back", 1) is None
    assert registry.rollback("p-given-back", "it was the network") == (2, 1)
    assert aliases("p-given-back") == {"champion": 2, "previous": 1}
    assert registry.withdrawn("p-given-back", 2) is None and registry.withdrawn("p-given-back", 1).endswith(": it was the network")


def test_a_rollback_crowns_no_version_that_compilers_would_refuse(tmp_path, little_code, monkeypatch):
    """Such as one of before an upgrade, which reads other tokens."""

    def refused(folder, origin):
        raise DataError(f"{origin} reads tokens of 40 numbers, and this version's have 48; train it again")

    two_champions("p-older", tmp_path)
    monkeypatch.setattr(registry.model_files, "check_tokens", refused)
    with pytest.raises(DataError, match="^version 1 of tcl-p-older reads tokens of 40 numbers"):
        registry.rollback("p-older", "slow")
    assert aliases("p-older") == {"champion": 2, "previous": 1} and registry.withdrawn("p-older", 2) is None


def test_a_rollback_that_was_killed_before_it_moved_the_alias_has_withdrawn_nothing(tmp_path, little_code):
    import mlflow

    two_champions("p-half", tmp_path)
    mlflow.MlflowClient().set_model_version_tag("tcl-p-half", "2", registry.WITHDRAWN, "2027-01-01: slow")
    registry.register("p-half", saved(tmp_path / "3", 3), {}, {}, TAGS)
    assert aliases("p-half") == {"candidate": 3, "champion": 2, "previous": 1}
    assert registry.withdrawn("p-half", 2) is None and registry.WITHDRAWN not in tags_of("p-half", 2)


def test_a_version_of_another_host_takes_the_place_by_name_only(tmp_path, little_code):
    """Two projects may share a server and the name of a platform."""
    for number, host in enumerate(("a Xeon x2", "an EPYC x4"), start=1):
        registry.register("p-hosts", saved(tmp_path / str(number), number), {}, {}, TAGS | {registry.HOST: host})
    registry.promote("p-hosts", 1, True, "the first", None)
    before = registry.versions("p-hosts")
    said = "^the champion of p-hosts, version 1, was judged on a Xeon x2, and version 2 on an EPYC x4; give the platform another name"
    with pytest.raises(RegistryError, match=said):
        registry.promote("p-hosts", 2, True, "better", 1)
    assert registry.versions("p-hosts") == before
    assert registry.rollback("p-hosts", "the project moved", to=2) == (2, 1)
    with pytest.raises(RegistryError, match="^the champion of p-hosts, version 2, was judged on an EPYC x4, and version 1 on a Xeon x2; "):
        registry.rollback("p-hosts", "slow")
    assert aliases("p-hosts") == {"champion": 2, "previous": 1}


def test_a_version_of_an_older_tcl_does_not_tell_its_host(tmp_path, little_code):
    for number, tags in enumerate(({}, {registry.HOST: "an EPYC x4"}), start=1):
        registry.register("p-untold", saved(tmp_path / str(number), number), {}, {}, TAGS | tags)
    assert registry.promote("p-untold", 1, True, "the first", None) and registry.promote("p-untold", 2, True, "better", 1)


def test_a_rollback_may_go_to_any_version(tmp_path, little_code):
    two_champions("p-any", tmp_path)
    registry.register("p-any", saved(tmp_path / "3", 3), {}, {}, TAGS)
    assert aliases("p-any") == {"candidate": 3, "champion": 2, "previous": 1}
    assert registry.rollback("p-any", "by hand", to=3) == (3, 2)
    assert aliases("p-any") == {"champion": 3, "previous": 2}
    for to, said in ((3, "version 3 of tcl-p-any is the champion already"), (9, "there is no version 9 of tcl-p-any")):
        with pytest.raises(RegistryError, match=f"^{said}; "):
            registry.rollback("p-any", "by hand", to=to)


@pytest.mark.parametrize("champions", [0, 1])
def test_without_a_previous_champion_nothing_is_changed(tmp_path, little_code, champions):
    platform = f"p-only-{champions}"
    registry.register(platform, saved(tmp_path / "1"), {}, {}, TAGS)
    if champions:
        registry.promote(platform, 1, True, "the first", None)
    before = registry.versions(platform)
    said = "has no champion before version 1 to go back to; nothing was changed; " if champions else (
        "has no champion to go back from; nothing was changed; run: tcl promote --platform"
    )  # fmt: skip
    with pytest.raises(RegistryError, match=f"^{platform} {said}"):
        registry.rollback(platform, "slow")
    assert registry.versions(platform) == before


def test_a_previous_champion_that_is_damaged_does_not_come_back(tmp_path, little_code):
    two_champions("p-torn", tmp_path)
    _, folder = registry.champion("p-torn:1")
    saved(folder, 9)
    before = registry.versions("p-torn")
    with pytest.raises(DataError, match="^version 1 of tcl-p-torn cannot be used .*holds other bytes than were registered"):
        registry.rollback("p-torn", "slow")
    assert registry.versions("p-torn") == before and registry.champion("p-torn")[0] == 2
