"""The stages that make models, on made-up records of a chain a -> b -> c: what lies in a model's folder and when,
what an interruption changes (nothing), and what an evaluation compares.
"""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from tcl_core import provenance, store
from tcl_core.chain import ckd
from tcl_core.chain.ckd import DistillSettings
from tcl_core.chain.state import fit_settings, within_steps
from tcl_core.errors import DataError
from tcl_core.evaluation.metrics import pairwise_accuracy, top_k
from tcl_core.features.batches import Samples, concatenate
from tcl_core.features.layout import WIDTH
from tcl_core.features.tokens import hardware_rows
from tcl_core.learning.fit_settings import FitSettings
from tcl_core.models import catalogue
from tcl_core.models.mamba import MambaModel
from tcl_core.params import Platform, Baselines, Chain, Link, load_params
from tcl_core.platforms import Hardware
from tcl_core.evaluation.report import terminal_table
from tcl_core.stages import judging, training
from tcl_core.stages.baselines import train_baseline
from tcl_core.platforms import save_hardware
from tcl_core.stages.machine import training_alone
from tcl_core.stages.workspace import Skipped, Workspace, learning_curve
from tests.shipped import SHIPPED

CHAIN = Chain("a", {"b": Link("a"), "c": Link("b")})
BRIDGE = {"distill": {"method": "bridge"}, "bridge": {"epochs": 2, "rehearsal": 0.0}}
collection_of = judging._collection  # the fixture ``folder`` puts another one in its place
WEIGHTS = {"network": dict.fromkeys(range(8), 1.0)}
FILES = {
    "a": {
        "contents.json",
        "curve.json",
        "fisher.safetensors",
        "hardware.json",
        "learned.json",
        "model.json",
        "provenance.json",
        "weights.safetensors",
        "knowledge_base",
    },
}
FILES["b"] = FILES["c"] = FILES["a"] | {"scratch"}


def samples(platform: str, kind: str) -> Samples:
    """64 programs of 8 tasks; a program's latency follows from its tokens, on each platform a little differently."""
    number = ord(platform) - ord("a")
    draw, fixed = np.random.default_rng([number, kind == "holdout"]), np.random.default_rng(5)
    direction = fixed.normal(size=5) + 0.4 * number * np.random.default_rng(number).normal(size=5)
    tokens = draw.normal(size=(64, 6, 5)).astype(np.float32)
    latencies_s = 1e-3 * np.exp(-0.5 * np.tanh(tokens @ direction).sum(1))
    rows = np.pad(tokens, [(0, 0), (0, 0), (0, WIDTH - 5)])
    return Samples(rows, np.full(64, 6, np.int32), np.repeat(np.arange(8, dtype=np.int32), 8), latencies_s)


class TinyWorkspace(Workspace):
    encoder = SimpleNamespace(numbers={f"judged-{number}": number for number in range(8)})  # type: ignore[assignment]

    def samples(self, platform: str, kind: str = "records") -> Samples:
        return samples(platform, kind)

    def recorded_tasks(self, platform: str) -> frozenset[str]:
        return frozenset({"everywhere", f"of-{platform}"})

    def task_weights(self, split: str) -> dict[str, dict[int, float]]:
        return WEIGHTS


def project() -> TinyWorkspace:
    params = load_params(SHIPPED)
    return TinyWorkspace(
        params=dataclasses.replace(
            params,
            chain=CHAIN,
            platforms=dict.fromkeys("abc", Platform(mcpu="nehalem")),
            train=dataclasses.replace(params.train, epochs=6, batch_size=32, unlabelled=0, shipped=False),
            distill=dataclasses.replace(params.distill, method="ckd", epochs=6, kd_epochs=6),
            evaluate=dataclasses.replace(params.evaluate, top_k=(1, 5), bootstrap=20),
        )
    )


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    """An empty project's folder, in which the platforms' hardware is known."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(judging, "_collection", lambda *_: [{"round": 0, "measured": {"dense": 3}, "failed": 0, "best_score": 0.5}])
    for platform in "abc":
        for kind in ("records", "holdout"):
            save_hardware(Workspace().records_folder(platform, kind), Hardware(cores=ord(platform)))
    return tmp_path


def run_chain(chain: Workspace) -> None:
    training.train(chain)
    training.distill(chain, "b")
    training.distill(chain, "c")


def curve(platform: str) -> list[dict]:
    return learning_curve(Workspace().model_folder(platform))


def test_a_model_folder_holds_all_that_its_readers_want(folder):
    run_chain(project())
    for platform, files in FILES.items():
        assert {path.name for path in Workspace().model_folder(platform).iterdir()} == files
        assert json.loads((Workspace().model_folder(platform) / "hardware.json").read_text())["cores"] == ord(platform)
    tasks = [sorted(provenance.learned_tasks(Workspace().model_folder(p))) for p in "abc"]
    assert tasks == [["everywhere", *(f"of-{p}" for p in "abc"[: n + 1])] for n in range(3)]
    learned = [json.loads((Workspace().model_folder(p) / "learned.json").read_text())["hardware"] for p in "abc"]
    assert [[row[0] for row in rows] for rows in learned] == [[97.0], [97.0, 98.0], [97.0, 98.0]], "nothing goes on from the last"
    assert [e["phase"] for e in curve("b")] == ["CL"] * 6 + ["KD"] * 6
    assert [e["epoch"] for e in curve("c")] == [1, 2, 3, 4, 5, 6]
    assert {path.name for path in (folder / "data" / "models").iterdir()} == {"a", "b", "c"}
    assert {path.name for path in (folder / "data" / "journal" / "checkpoints").iterdir()} == {"a.lock", "b.lock", "c.lock"}
    made = provenance.read(Workspace().model_folder("b"))
    assert made["stage"] == "distill@b" and made["data"] == {"b": store.data_digest(Workspace().records_folder("b"))}
    assert made["model_before"] == store.data_digest(Workspace().model_folder("a"))
    assert (made["parameters"]["train"]["epochs"], made["parameters"]["distill"]["kd_epochs"]) == (6, 6)
    assert list(provenance.read(Workspace().model_folder("a"))["parameters"]) == ["seed", "train", "collect", "measure"]


class Shipped:
    """Stands for the data set that comes with TCL: two tasks, numbered as the project's first ones."""

    def __init__(self) -> None:
        self.told_under: list[float] = []  # cores of the machine that its programs are told to have run on

    def pooled(self, without):
        self.without = without
        found = samples("c", "records")
        return dataclasses.replace(found.take(found.tasks < 2), task_names=("another", "data set's"))

    def trained_keys(self, without):
        assert without == self.without
        return {"come with TCL"}

    def unmeasured(self, without):
        assert without == self.without
        return self.pooled(without).take(np.arange(5))


@pytest.fixture
def with_shipped(folder, monkeypatch) -> tuple[TinyWorkspace, Shipped]:
    chain, shipped = project(), Shipped()
    chain.params = dataclasses.replace(chain.params, train=dataclasses.replace(chain.params.train, shipped=True))
    monkeypatch.setattr(training.reference, "learned_sets", lambda: [shipped])
    monkeypatch.setattr(training.reference, "shipped", lambda heap, sets: heap(*sets))
    monkeypatch.setattr(training, "as_here", lambda heap, here: shipped.told_under.append(here.cores) or heap)
    chain.tasks = [None] * 8  # of which no name is asked
    chain.networks = [{"split": "train", "task_key": "mine"}, {"split": "held_out", "task_key": "judged"}]
    return chain, shipped


def test_what_comes_with_tcl_is_learned_beside_the_first_platform(with_shipped):
    """In tasks of its own, and without those on which the project judges; later platforms learn from the chain alone."""
    chain, shipped = with_shipped
    report = training.train(chain)
    assert (report.measured, report.shipped, report.labelled) == (64, 16, 0) and shipped.without == {"judged"}
    assert str(report) == "trained on 64 measured programs of a, on 16 that come with TCL"
    assert shipped.told_under == [ord("a")] * 2
    more = shipped.pooled(())
    both = concatenate([samples("a", "records"), dataclasses.replace(more, tasks=more.tasks + np.int32(8))])
    beside, held_out = MambaModel(fit_settings(chain.params)), samples("a", "holdout")
    beside.fit(both)
    learned = catalogue.load(Workspace().model_folder("a"))
    np.testing.assert_array_equal(learned.predict(held_out), beside.predict(held_out))
    assert provenance.read(Workspace().model_folder("a"))["parameters"]["shipped"] == training.reference.digest()
    assert provenance.learned_tasks(Workspace().model_folder("a")) == {"come with TCL", "everywhere", "of-a"}


def test_another_machines_programs_are_told_to_be_this_ones_but_for_the_width_of_vectors():
    """Else the machine and the first platform's vectors come together alone, and later platforms are ranked as the first one is."""
    there, here = Hardware(cores=2, l2_kib=2048, turbo_ghz=3), Hardware(cores=8, l2_kib=512, simd_bytes=16)
    widths = [16.0, 32.0, 64.0]
    rows = np.concatenate([hardware_rows(dataclasses.replace(there, simd_bytes=width).vector(), 1) for width in widths])
    tokens = np.random.default_rng(0).normal(size=(3, 4, rows.shape[1])).astype(np.float32)
    tokens[:, 0] = rows
    given = Samples(tokens.copy(), np.full(3, 4, np.int32), np.zeros(3, np.int32), np.ones(3))
    told = training.as_here(given, here).features
    wanted = np.concatenate([hardware_rows(dataclasses.replace(here, simd_bytes=width).vector(), 1) for width in widths])
    np.testing.assert_array_equal(told[:, 0], wanted)
    np.testing.assert_array_equal(told[:, 1:], tokens[:, 1:])
    np.testing.assert_array_equal(given.features, tokens)


def test_what_knows_the_shipped_stays_as_it_is_where_few_measurements_show_no_difference(with_shipped, monkeypatch):
    """Of fewer tasks than there are folds nothing is believed.  The model of the platform before is judged, and shown, as ever."""
    chain, _ = with_shipped
    chain.params = dataclasses.replace(
        chain.params,
        distill=dataclasses.replace(chain.params.distill, method="bridge"),
        bridge=dataclasses.replace(chain.params.bridge, epochs=2, rehearsal=0.0),
    )
    few = samples("b", "records")
    few = few.take(few.tasks < 3)
    monkeypatch.setattr(training._Step, "measured", few)
    monkeypatch.setattr(training._Step, "others", lambda step: (few.take(np.arange(0)), [np.full(len(few), np.nan)], [(0.0,) * 11]))
    training.train(chain)
    report = training.distill(chain, "b")
    kept = f"{len(few)} programs of b show no difference from a that can be believed: its model stays as it is for b"
    assert report.kept and str(report) == kept and curve("b") == []
    held_out, models = samples("b", "holdout"), [catalogue.load(Workspace().model_folder(p)) for p in "ab"]
    np.testing.assert_array_equal(models[0].predict(held_out), models[1].predict(held_out))
    assert (Workspace().model_folder("b") / "scratch").is_dir(), "what it is compared with was taught all the same"
    chain.params = dataclasses.replace(chain.params, train=dataclasses.replace(chain.params.train, shipped=False))
    assert training.distill(chain, "b").kept, "what the model has learned counts, not what one would learn today"
    training.train(chain)
    report = training.distill(chain, "b")
    assert not report.kept and report.share == 0 and len(curve("b")) == 2


def test_tasks_kept_apart_for_validation_are_not_learned_from_what_comes_with_tcl(with_shipped):
    chain, shipped = with_shipped
    chain.params = dataclasses.replace(chain.params, train=dataclasses.replace(chain.params.train, validation_share=0.25))
    keys = [f"task {number}" for number in range(8)]
    chain.encoder = SimpleNamespace(numbers={key: number for number, key in enumerate(keys)})
    report = training.train(chain)
    apart = shipped.without - {"judged"}
    assert len(apart) == 2 and apart < set(keys) and report.measured == 48


@pytest.mark.parametrize("wanted", [True, False])
def test_what_was_tuned_is_learned_beside_the_first_platform(folder, monkeypatch, wanted):
    """Of each CPU of the chain, under this machine's row with its vectors, in tasks of its own; nothing of held-out networks."""
    chain, told = project(), {}
    train = dataclasses.replace(chain.params.train, tuned=wanted)
    chain.params = dataclasses.replace(chain.params, train=train, platforms=chain.params.platforms | {"c": Platform(mcpu="haswell")})
    chain.tasks = [None] * 8
    chain.networks = [{"split": "train", "task_key": "mine"}, {"split": "held_out", "task_key": "judged"}]
    some = {"b": samples("b", "holdout").take(np.arange(12)), "c": samples("c", "holdout").take(np.arange(20))}

    def tuned(workspace, platform, hardware, without):
        told[platform] = (hardware, without)
        return some[platform]

    monkeypatch.setattr(training, "tuned_samples", tuned)
    monkeypatch.setattr(training, "tuned_keys", lambda workspace, platform, without: {f"tuned on {platform}"})
    for platform in some:
        (chain.tuned_folder(platform) / "records").mkdir(parents=True)
        (chain.tuned_folder(platform) / "records" / "one.parquet").write_text("as records")
    report = training.train(chain)
    parameters = provenance.read(Workspace().model_folder("a"))["parameters"]
    if not wanted:
        assert not told and report.tuned == 0 and "tuned" not in parameters
        return
    assert told == {
        "b": (Hardware(cores=ord("a"), simd_bytes=16).vector(), {"judged"}),
        "c": (Hardware(cores=ord("a"), simd_bytes=32).vector(), {"judged"}),
    }
    assert report.tuned == 32 and str(report) == "trained on 64 measured programs of a, on 32 of earlier tunings"
    assert parameters["tuned"] == {platform: store.data_digest(chain.tuned_folder(platform)) for platform in some}
    apart = [dataclasses.replace(part, tasks=part.tasks + np.int32(first)) for part, first in zip(some.values(), (8, 10), strict=True)]
    assert set(apart[0].tasks) == {8, 9} and set(apart[1].tasks) == {10, 11, 12}
    beside, held_out = MambaModel(fit_settings(chain.params)), samples("a", "holdout")
    beside.fit(concatenate([samples("a", "records"), *apart]))
    np.testing.assert_array_equal(catalogue.load(Workspace().model_folder("a")).predict(held_out), beside.predict(held_out))


@pytest.mark.parametrize(
    ("mcpu", "design_space"),
    [("cortex-a72", "cpu"), ("", "cuda"), ("nehalem", "cuda-sm80")],
    ids=["Arm", "GPU", "GPU that has a CPU's name"],
)
def test_other_hardware_does_not_learn_what_x86_cpus_measured(with_shipped, mcpu, design_space):
    chain, _ = with_shipped
    candidates = dataclasses.replace(chain.params.candidates, design_space=design_space)
    platforms = dict.fromkeys("abc", Platform(mcpu=mcpu))
    chain.params = dataclasses.replace(chain.params, candidates=candidates, platforms=platforms)
    assert training.train(chain).shipped == 0
    assert "shipped" not in provenance.read(Workspace().model_folder("a"))["parameters"]


def test_a_teacher_ensemble_learns_what_comes_with_tcl_beside_the_measured(with_shipped, monkeypatch):
    chain, shipped = with_shipped
    chain.params = dataclasses.replace(chain.params, train=dataclasses.replace(chain.params.train, unlabelled=8))
    further = samples("a", "holdout")
    monkeypatch.setattr(chain, "unlabelled", lambda tasks, count, platform, reads: {each: further for each in reads}, raising=False)
    given, further_given = {}, []

    def pseudo_labelled(measured, unlabelled, seed, **options):
        given.update(measured)
        further_given.append(unlabelled["tokens"])
        return concatenate([measured["tokens"], unlabelled["tokens"]])

    monkeypatch.setattr(training, "pseudo_labelled", pseudo_labelled)
    report = training.train(chain)
    assert (report.measured, report.shipped, report.labelled) == (64, 16, len(further) + 5)
    assert further_given[0].tasks[len(further) :].tolist() == [8] * 5
    assert list(given) == ["tokens"] and set(given["tokens"].tasks[64:].tolist()) == {8, 9} and len(given["tokens"]) == 80


def test_the_scratch_model_is_a_plain_one_of_this_platforms_records(folder):
    chain = project()
    run_chain(chain)
    alone = MambaModel(fit_settings(chain.params))
    alone.fit(samples("b", "records"))  # no further programs here, and so no teacher ensemble
    saved, held_out = catalogue.load(Workspace().model_folder("b") / "scratch"), samples("b", "holdout")
    np.testing.assert_array_equal(saved.predict(held_out), alone.predict(held_out))


def test_a_platform_can_go_on_from_a_champion_wherever_that_was_trained(folder, monkeypatch):
    """To the same model as from the one that lies here."""
    chain = project()
    training.train(chain)
    training.distill(chain, "b")
    here, held_out = catalogue.load(Workspace().model_folder("b")), samples("b", "holdout")
    elsewhere = Workspace().model_folder("a").rename(folder / "fetched")
    monkeypatch.setattr(training.registry, "champion", lambda platform: {"a": (1, elsewhere)}[platform])
    training.distill(chain, "b", from_registry=True)
    np.testing.assert_array_equal(catalogue.load(Workspace().model_folder("b")).predict(held_out), here.predict(held_out))
    assert provenance.read(Workspace().model_folder("b"))["model_before"] == store.data_digest(elsewhere)


def test_what_the_platform_before_measured_here_is_among_the_learned_tasks(folder, monkeypatch):
    """The bridge reads both platforms' records, and a champion that was fetched may have learned none of those that lie here."""
    chain = project()
    settings = {name: dataclasses.replace(getattr(chain.params, name), **values) for name, values in BRIDGE.items()}
    chain = TinyWorkspace(params=dataclasses.replace(chain.params, **settings))
    training.train(chain)
    elsewhere = Workspace().model_folder("a").rename(folder / "fetched")
    monkeypatch.setattr(training.registry, "champion", lambda platform: (1, elsewhere))
    monkeypatch.setattr(TinyWorkspace, "seconds", lambda self, platform: {("of-a", 0, ()): 1.0})
    monkeypatch.setattr(TinyWorkspace, "recorded_tasks", lambda self, platform: frozenset({f"measured-{platform}"}))
    monkeypatch.setattr(
        training._Step, "others", lambda step: (samples("b", "holdout").take(np.arange(0)), [np.full(64, np.nan)], [(0.0,) * 11])
    )
    training.distill(chain, "b", from_registry=True)
    assert provenance.learned_tasks(Workspace().model_folder("b")) == {"everywhere", "of-a", "measured-a", "measured-b"}


def test_a_step_is_told_what_each_earlier_platform_measured(folder, monkeypatch):
    """Of its own pool, the nearest platform first; a platform without records here tells nothing."""
    chain, asked = project(), []
    key = lambda number, sketch=0: ("task", sketch, (number,))  # noqa: E731
    seconds = {"a": {key(1): 1.0, key(2): np.inf, key(3): 3.0, key(5, sketch=9): 5.0}, "b": {key(1): 10.0, key(4): 40.0}, "d": {}}
    chain.params = dataclasses.replace(chain.params, chain=Chain("a", {"d": Link("a"), "b": Link("d"), "c": Link("b")}))
    chain.encoder = SimpleNamespace(numbers={"task": 0}, texts={("task", 0): ""}, encode=lambda keys, hardware: tuple(keys))
    monkeypatch.setattr(TinyWorkspace, "records", lambda self, platform: [SimpleNamespace(key=key(1))])
    monkeypatch.setattr(TinyWorkspace, "seconds", lambda self, platform: seconds[platform])
    monkeypatch.setattr(TinyWorkspace, "unlabelled_keys", lambda self, *given: asked.append(given) or [key(3), key(7)])
    hardware = {"a": Hardware(simd_bytes=16), "b": Hardware(simd_bytes=32), "c": Hardware(simd_bytes=64)}
    monkeypatch.setattr(training, "read_saved_hardware", lambda records: hardware[records.name.removeprefix("platform=")])
    step = training._Step(chain, "c", None, folder)
    others, sources_s, machines = step.others()
    assert list(step.sources) == ["b", "a"] and others == (key(4), key(3), key(7))
    np.testing.assert_array_equal(sources_s, [[10.0, 40.0, np.nan, np.nan], [1.0, np.nan, 3.0, np.nan]])
    assert machines == [hardware["b"].vector(), hardware["a"].vector()]
    ((tasks, _, known, preferred),) = asked
    assert tasks == [0] and known == {key(1), key(4)} and preferred == [key(1), key(2), key(3)]


def test_a_champion_that_ended_its_chain_does_not_know_its_own_platform(folder, monkeypatch, capsys):
    """With ckd; it is said, and the figures are those of what it had learned before."""
    chain = project()
    training.train(chain)
    short = TinyWorkspace(params=dataclasses.replace(chain.params, chain=Chain("a", {"b": Link("a")})))
    training.distill(short, "b")
    monkeypatch.setattr(training.registry, "champion", lambda platform: (1, Workspace().model_folder(platform)))
    training.distill(chain, "c", from_registry=True)
    assert "the champion of b was its chain's last, whose knowledge base does not learn b; c goes on from" in capsys.readouterr().err
    training.distill(chain, "b", from_registry=True)
    assert "was its chain's last" not in capsys.readouterr().err


def test_mended_distillation_learns_from_what_the_teachers_labelled(folder, monkeypatch):
    chain, given = project(), {}
    chain = TinyWorkspace(params=dataclasses.replace(chain.params, distill=dataclasses.replace(chain.params.distill, method="ckd-mended")))
    training.train(chain)
    monkeypatch.setattr(
        training, "_pseudo_labelled", lambda workspace, platform, measured, reads: concatenate([measured, samples(platform, "holdout")])
    )
    learn_next = ckd.learn_next
    monkeypatch.setattr(ckd, "learn_next", lambda *args, **more: given.update(more, settings=args[3]) or learn_next(*args, **more))
    training.distill(chain, "b")
    assert len(given["pseudo_labelled"]) == 128 and not given["last"] and given["settings"].unlabelled_kd
    assert given["settings"].ewc_lambda == chain.params.distill.ewc_lambda / 100
    assert [e["phase"] for e in curve("b")] == ["CL"] * 6 + ["KD"] * 6


@pytest.mark.parametrize("broken", ["save_hardware", "write_json"])
def test_a_model_folder_appears_whole_or_not_at_all(folder, monkeypatch, broken):
    def fail(*args):
        raise DataError("no")

    chain = project()
    with monkeypatch.context() as patch, pytest.raises(DataError):
        patch.setattr(training, broken, fail)
        training.train(chain)
    assert list((folder / "data" / "models").iterdir()) == []
    training.train(chain)
    before = store.data_digest(Workspace().model_folder("a"))
    monkeypatch.setattr(training, broken, fail)
    with pytest.raises(DataError):
        training.train(chain)
    assert store.data_digest(Workspace().model_folder("a")) == before


class Interrupt(BaseException):
    pass


def killed(monkeypatch, chain: Workspace, note: str, times: int) -> None:
    """Distill onto b, but die when the progress bar gets ``note`` for the ``times``-th time."""
    seen, advance = [], training.Progress.advance

    def die(self, text=""):
        advance(self, text)
        seen.extend([text] * text.startswith(note))
        if len(seen) == times:
            raise Interrupt

    with monkeypatch.context() as patch, pytest.raises(Interrupt):
        patch.setattr(training.Progress, "advance", die)
        training.distill(chain, "b")


@pytest.mark.parametrize("note", ["CL", "KD", "for comparison"])
def test_an_interrupted_training_ends_in_the_same_bytes(folder, monkeypatch, note):
    chain = project()
    training.train(chain)
    training.distill(chain, "b")
    expected = store.data_digest(Workspace().model_folder("b"))
    former = (Workspace().model_folder("b") / "curve.json").read_bytes()
    killed(monkeypatch, chain, note, 6)
    training.distill(chain, "b")
    assert (Workspace().model_folder("b") / "curve.json").read_bytes() == former
    assert store.data_digest(Workspace().model_folder("b")) == expected


def test_the_last_platform_is_the_chains_last_whatever_this_machine_skips(folder):
    """Whether b's knowledge base learns b must not hang on what collecting on c found."""
    chain = project()
    training.train(chain)
    store.write_skipped(Workspace().records_folder("c"), "c", "no AVX-512 here")
    training.distill(chain, "b")
    assert {entry["phase"] for entry in curve("b")} == {"CL", "KD"}
    (Workspace().model_folder("c") / "knowledge_base").mkdir(parents=True)  # as if a better machine had learned it
    assert training.distill(chain, "c") == Skipped("c", "no AVX-512 here")
    assert [path.name for path in Workspace().model_folder("c").iterdir()] == ["skipped.json"]
    skipped = json.loads((Workspace().model_folder("c") / "skipped.json").read_text())
    assert skipped["model_before"] == store.data_digest(Workspace().model_folder("b"))


def test_a_platform_that_is_skipped_needs_no_model_before_it_here(folder):
    """As with `tcl distill --add`, where that model is a champion from elsewhere."""
    store.write_skipped(Workspace().records_folder("b"), "b", "no AVX2 here")
    assert training.distill(project(), "b", from_registry=True) == Skipped("b", "no AVX2 here")
    skipped = json.loads((Workspace().model_folder("b") / "skipped.json").read_text())
    assert skipped["reason"] == "no AVX2 here" and "model_before" not in skipped


@pytest.mark.parametrize(
    ("train", "checkpoints"),
    [
        (training.train, "a"),
        (lambda project: training.distill(project, "b"), "b"),
        (lambda project: train_baseline(project, "tlp"), "baselines/tlp"),
    ],
)
def test_two_trainings_never_share_their_checkpoints(folder, monkeypatch, capfd, train, checkpoints):
    """The second one waits, with a word."""

    def waits(seconds):
        raise KeyboardInterrupt

    monkeypatch.setattr("tcl_core.stages.machine.time.sleep", waits)
    with training_alone(Workspace().journal / "checkpoints" / checkpoints), pytest.raises(KeyboardInterrupt):
        train(project())
    assert "trains the same model; waiting for its end" in capfd.readouterr().err


def test_many_programs_are_passed_over_less_often():
    settings = FitSettings(epochs=30, period=30, batch_size=512)
    epochs = lambda programs, steps=2000: within_steps(settings, programs, steps).epochs  # noqa: E731
    assert [epochs(8_000), epochs(34_133), epochs(40_000), epochs(63_232), epochs(10_000_000)] == [30, 30, 25, 16, 1]
    assert epochs(63_232, steps=20_000) == 30 and within_steps(settings, 63_232, 2000) == dataclasses.replace(
        settings, epochs=16, period=16
    )


def test_how_training_and_distillation_go():
    """The first platform's scores are learned along a cosine, the later ones' order at a rate of their own."""
    chain = project()
    t, d = chain.params.train, chain.params.distill
    first, later = fit_settings(chain.params), DistillSettings.of(chain.params)
    assert (first.epochs, first.batch_size, first.learning_rate) == (6, 32, t.learning_rate)
    assert (first.loss, first.schedule, first.period) == ("scores", "cosine", 6)
    assert (later.epochs, later.fit.batch_size, later.fit.learning_rate) == (6, d.batch_size, d.learning_rate)
    assert (later.fit.loss, later.fit.schedule, later.ewc_lambda) == ("rank", "constant", d.ewc_lambda)
    for settings in (first, later.fit):
        assert (settings.weight_decay, settings.clip_norm, settings.seed) == (
            t.weight_decay, t.gradient_clip, chain.params.seed,
        )  # fmt: skip


@pytest.fixture
def evaluation(folder, monkeypatch) -> dict:
    run_chain(project())
    (folder / "data" / "reports" / "plots").mkdir(parents=True)
    (folder / "data" / "reports" / "plots" / "of_a_former_version.png").touch()
    text = terminal_table(judging.evaluate(project()))
    found = json.loads((folder / "data" / "reports" / "evaluation.json").read_text())
    return {**found, "text": text}


def test_an_evaluation_shows_what_distillation_is_worth(evaluation):
    def top_1(name: str | Path, platform: str) -> float:
        s = samples(platform, "holdout")
        return top_k(catalogue.load(Workspace().model_folder(name)).predict(s), s.latencies_s, s.tasks, WEIGHTS, 1)

    def pairs(name: str | Path, platform: str) -> float:
        s = samples(platform, "holdout")
        return pairwise_accuracy(catalogue.load(Workspace().model_folder(name)).predict(s), s.latencies_s, s.tasks)

    zero_shot, alone = evaluation["baselines"]["zero-shot"], evaluation["baselines"]["own data only"]
    assert list(zero_shot) == list(alone) == ["b", "c"]
    assert zero_shot["c"]["top_1"]["value"] == top_1("b", "c") and pairs("b", "c") == evaluation["chain"]["pairs"][1][2]
    assert alone["b"]["top_1"]["value"] == top_1("b/scratch", "b")
    assert evaluation["platforms"]["b"]["top_1"]["value"] == top_1("b", "b") and pairs("b", "b") == evaluation["chain"]["pairs"][1][1]
    base = evaluation["knowledge_base"]["pairs"]
    assert base[1] == [pairs("b/knowledge_base", p) for p in "abc"] == base[2]  # the last platform has no KD phase
    assert base[0] == evaluation["chain"]["pairs"][0]  # the first platform's model is the knowledge base
    assert evaluation["judged"]["b"] == {
        "model": store.data_digest(Workspace().model_folder("b")), "holdout": store.data_digest(Workspace().records_folder("b", "holdout")),
    }  # fmt: skip
    assert evaluation["parameters"]["a"] * 2 < evaluation["parameters"]["b"] == evaluation["parameters"]["c"]


def with_baselines(chain: Workspace, *names: str) -> Workspace:
    return TinyWorkspace(params=dataclasses.replace(chain.params, baselines=Baselines(names)))


def test_models_that_params_list_are_judged_beside_the_chain(folder, monkeypatch):
    own = catalogue.own_settings
    monkeypatch.setattr(catalogue, "own_settings", lambda name: dataclasses.replace(own(name), epochs=2))
    monkeypatch.setattr(judging, "_plot", lambda *_: None)
    chain = with_baselines(project(), "tlp", "mtl-tlp")
    run_chain(chain)
    for name in ("tlp", "mtl-tlp"):
        train_baseline(chain, name)
    text = terminal_table(judging.evaluate(chain))
    found = json.loads((folder / "data" / "reports" / "evaluation.json").read_text())["baselines"]
    assert list(found) == ["zero-shot", "own data only", "tlp", "mtl-tlp"]
    assert list(found["tlp"]) == ["a", "b", "c"] and list(found["mtl-tlp"]) == ["b", "c"] and text.count("tlp") == 5
    s = samples("b", "holdout")
    scores = catalogue.load(folder / "data/models/beside_chain/tlp/b").predict(s)
    assert found["tlp"]["b"]["top_1"]["value"] == top_k(scores, s.latencies_s, s.tasks, WEIGHTS, 1)


def test_held_out_tasks_that_a_model_has_learned_are_left_out(folder, monkeypatch, capsys):
    monkeypatch.setattr(judging, "_plot", lambda *_: None)
    monkeypatch.setattr(
        TinyWorkspace, "recorded_tasks", lambda self, platform: frozenset({"judged-7", "judged-2"} if platform == "b" else ())
    )
    run_chain(project())
    found = judging.evaluate(project())
    assert {figures["tasks"] for figures in (*found["platforms"].values(), *found["baselines"]["zero-shot"].values())} == {6}
    assert "held-out tasks of a that a model of the chain has learned, and that are left out of all figures: 2" in capsys.readouterr().err
    monkeypatch.setattr(TinyWorkspace, "recorded_tasks", lambda self, platform: frozenset(self.encoder.numbers))
    run_chain(project())
    with pytest.raises(DataError, match="each of the 8 held-out tasks of a was learned by a model of the chain; hold out other networks"):
        judging.evaluate(project())


def test_records_of_tasks_that_were_cut_anew_are_refused_before_anything_is_judged():
    workspace = SimpleNamespace(
        records=lambda platform: [SimpleNamespace(task_key="gone")], encoder=SimpleNamespace(numbers={"there": 0}),
    )  # fmt: skip
    with pytest.raises(DataError, match="records of a are of tasks that the project no longer has; run: dvc repro collect@a"):
        collection_of(workspace, "a")


def test_a_platform_of_which_nothing_lies_here_is_left_out(folder, capsys):
    """As where `tcl distill --add` went on from a champion that was trained elsewhere."""
    run_chain(project())
    whole = judging.evaluate(project())
    for place in (Workspace().model_folder("a"), Workspace().records_folder("a", "holdout")):
        shutil.rmtree(place)
    found = judging.evaluate(project())
    assert "left out, since neither a model nor held-out records of it lie here: a\n" in capsys.readouterr().err
    assert found["platforms"] == {p: whole["platforms"][p] for p in "bc"}
    assert list(found["baselines"]["zero-shot"]) == ["c"] and found["chain"]["platforms"] == ["b", "c"]
    shutil.rmtree(Workspace().model_folder("b"))
    with pytest.raises(DataError, match="data/models/b"):  # half of it does
        judging.evaluate(project())


def test_a_model_is_compared_with_the_one_it_was_distilled_from_alone(folder, monkeypatch, capsys):
    """As where `tcl distill --add` went on from a champion, and here lies a newer model, which the gate refused."""
    monkeypatch.setattr(judging, "_plot", lambda *_: None)
    chain = project()
    run_chain(chain)
    chain.params = dataclasses.replace(chain.params, seed=chain.params.seed + 1)
    training.distill(chain, "b")
    found = judging.evaluate(chain)
    assert "the model of c was not distilled from the model of b that lies here: zero-shot, and what" in capsys.readouterr().err
    assert list(found["baselines"]["zero-shot"]) == ["b"] and list(found["baselines"]["own data only"]) == ["b", "c"]
    assert found["chain"]["forgotten"] == {"a": None, "b": None, "c": 0.0}
    training.distill(chain, "c")
    assert list(judging.evaluate(chain)["baselines"]["zero-shot"]) == ["b", "c"]
    assert "was not distilled from" not in capsys.readouterr().err


def test_platforms_that_learned_from_one_that_was_skipped_have_no_link(folder, monkeypatch):
    """As where `tcl distill --add` went on from the champion of the chain's first platform, which this machine cannot run."""
    monkeypatch.setattr(judging, "_plot", lambda *_: None)
    chain = project()
    chain.params = dataclasses.replace(chain.params, chain=Chain("a", {"b": Link("a"), "c": Link("a")}))
    training.train(chain)
    elsewhere = Workspace().model_folder("a").rename(folder / "fetched")
    monkeypatch.setattr(training.registry, "champion", lambda platform: {"a": (1, elsewhere)}[platform])
    store.write_skipped(Workspace().records_folder("a"), "a", "no AVX-512 here")
    for platform in "bc":
        training.distill(chain, platform, from_registry=True)
    found = judging.evaluate(chain)
    assert list(found["platforms"]) == ["b", "c"] and found["chain"]["forgotten"] == {"b": 0.0, "c": 0.0}
    assert found["baselines"]["zero-shot"] == {} and list(found["baselines"]["own data only"]) == ["b", "c"]
    with pytest.raises(DataError, match="no platform before b in the chain could be run here; nothing to go on from"):
        training.distill(chain, "b")


def test_an_evaluation_names_a_listed_model_that_was_not_trained(folder):
    chain = with_baselines(project(), "tlp")
    run_chain(chain)
    with pytest.raises(DataError, match="there is no data/models/beside_chain/tlp/a; run: tcl train --model tlp"):
        judging.evaluate(chain)


def test_the_table_and_the_plots_show_them(evaluation, folder):
    rows = [line.split("│")[2].strip() for line in evaluation["text"].splitlines() if line.count("│") > 6]
    assert rows == ["TCL", "random", *["TCL", "zero-shot", "own data only", "random"] * 2]
    assert "Pairs of the knowledge base alone" in evaluation["text"]
    assert {path.name for path in (folder / "data" / "reports" / "plots").iterdir()} == {
        "top_k.png", "chain.png", "ranks.png", "learning.png", "collection.png",
    }  # fmt: skip
