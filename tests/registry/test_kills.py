"""Kills at any change of the disk: no registration, promotion or first start leaves a half."""

from __future__ import annotations

import resource
import shutil
import sqlite3
import threading
from contextlib import closing
from functools import partial
from pathlib import Path

from tcl_core import registry
from tcl_core.errors import RegistryError
from tcl_core.registry import local_store
from tests.registry import helpers
from tests.registry.helpers import TAGS, aliases, child, runs_without_version, saved, some_of

empty, store, fresh, none_yet = helpers.empty, helpers.store, helpers.fresh, helpers.none_yet


def test_a_killed_registration_leaves_nothing_and_stops_nothing(fresh, tmp_path):
    models, kinds = [saved(tmp_path / f"m{seed}", seed) for seed in range(30)], []

    def register(model: Path, champion: int | None = None) -> int:
        version = registry.register("p-kill", model, {"epochs": 3}, {"top_1": 0.5}, TAGS, {"loss": [2.0]}, [model / "model.json"])
        return registry.champion("p-kill")[0] if champion else version

    assert child(lambda: register(models[0])) == 1
    assert child(lambda: registry.promote("p-kill", 1, True, "the first", None))
    assert child(lambda: register(models[1]), changes=kinds) == 2
    assert kinds.count("commit") > 10 and kinds.count("fsync") > 5
    left = 0
    for model, number in zip(models[2:], sample := list(some_of(kinds)), strict=False):
        assert child(partial(register, model), kill_at=number) is None
        left += len(runs_without_version(fresh))
        assert child(partial(register, model, champion=1)) == 1
        assert runs_without_version(fresh) == []
    assert left > len(sample) / 2, "most kills leave a run behind, for the next one to remove"
    with closing(sqlite3.connect(fresh / "mlflow.db")) as connection:
        (versions,) = connection.execute("SELECT count(*) FROM model_versions").fetchone()
    kept = [folder for folder in (fresh / "mlruns/models").iterdir() if folder.is_dir()]
    assert len(kept) == versions == 2 + len(sample)


def test_a_killed_promotion_leaves_a_champion_with_its_reason(fresh, tmp_path):
    def ready() -> list[int]:
        return [registry.register("p-kill", saved(tmp_path / f"m{seed}", seed), {}, {}, TAGS) for seed in range(2)]

    def promote(version: int, against: int | None, time: int = 0) -> bool:
        return registry.promote("p-kill", version, True, f"better for the {time}. time", against)

    def champion_and_back_to_one() -> list:
        import mlflow

        version, folder = registry.champion("p-kill")
        tags = mlflow.MlflowClient().get_model_version("tcl-p-kill", str(version)).tags
        promote(1, promote(2, 1) * 2 if version == 1 else 2)
        return [version, folder.is_dir(), tags.get("promotion", "no reason"), aliases("p-kill")]

    kinds: list[str] = []
    assert child(ready) == [1, 2] and child(lambda: promote(1, None))
    assert child(lambda: promote(2, 1), changes=kinds) and child(lambda: promote(1, 2))
    for number in range(1, len(kinds) + 1):
        child(partial(promote, 2, 1, number), kill_at=number)
        now = child(champion_and_back_to_one)
        after = {"champion": 1, "previous": 2}
        assert now in ([1, True, "promoted: better for the 0. time", after], [2, True, f"promoted: better for the {number}. time", after])


def test_a_killed_first_registration_leaves_none_half_made(none_yet, tmp_path):
    model, kinds = saved(tmp_path / "model"), []
    assert child(lambda: registry.register("p-first", model, {}, {}, TAGS), changes=kinds) == 1
    assert local_store.experiments(none_yet / "mlflow.db")["tcl"] == f"file://{none_yet}/mlruns"
    until = kinds.index("commit") if "commit" in kinds else len(kinds)
    for number in range(1, until + 1):
        shutil.rmtree(none_yet)
        none_yet.mkdir()
        assert child(lambda: registry.register("p-first", model, {}, {}, TAGS), kill_at=number) is None
        assert child(lambda: registry.register("p-first", model, {}, {}, TAGS)) == 1
        assert {path.name for path in (none_yet / "mlruns").iterdir()} == {"models", "registry.lock"}


def test_two_first_registrations_at_once_both_succeed(none_yet, tmp_path):
    models, versions = [saved(tmp_path / f"m{seed}", seed) for seed in range(2)], []
    register = [lambda model=model: registry.register("p-two", model, {}, {}, TAGS) for model in models]
    threads = [threading.Thread(target=lambda act=act: versions.append(child(act))) for act in register]
    [thread.start() for thread in threads]
    [thread.join(timeout=120) for thread in threads]
    assert sorted(versions) == [1, 2] and runs_without_version(none_yet) == []


def test_a_full_disk_leaves_the_champion_and_the_next_registration_goes_on(fresh, tmp_path):
    def on_a_full_disk() -> str:
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
        try:
            registry.register("p-full", models[1], {}, {}, TAGS)
        except RegistryError as error:
            return str(error)

    models = [saved(tmp_path / f"m{seed}", seed) for seed in range(2)]
    assert child(lambda: registry.register("p-full", models[0], {}, {}, TAGS)) == 1
    assert child(lambda: registry.promote("p-full", 1, True, "the first", None))
    assert child(on_a_full_disk).startswith(f"the model registry at {fresh}/mlflow.db failed (")
    assert child(lambda: registry.champion("p-full")[0]) == 1
    assert child(lambda: registry.register("p-full", models[1], {}, {}, TAGS)) == 2 and runs_without_version(fresh) == []


def test_a_killed_rollback_leaves_one_that_can_be_gone_back_from(fresh, tmp_path):
    def ready() -> None:
        for number in (1, 2):
            registry.register("p-kill", saved(tmp_path / f"m{number}", number), {}, {}, TAGS)
            registry.promote("p-kill", number, True, "better", number - 1 or None)

    def back() -> tuple[int, int]:
        return registry.rollback("p-kill", "slow")

    def champion_and_back() -> list:
        champion, pair = registry.champion_version("p-kill"), back()
        return [champion, pair, aliases("p-kill")]

    child(ready)
    kinds: list[str] = []
    assert child(back, changes=kinds) == [1, 2] and kinds.count("commit") >= 5
    for number in some_of(kinds):
        assert child(back, kill_at=number) is None
        champion, pair, after = child(champion_and_back)
        assert pair == [3 - champion, champion] and after == {"champion": 3 - champion, "previous": champion}
