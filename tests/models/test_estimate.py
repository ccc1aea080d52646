"""The analytical estimate: counted by hand, fitted to times that it could have made, and as part of a network and of trees."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.stats import spearmanr

from tcl_core.chain.ckd import DistillSettings, start_column
from tcl_core.errors import DataError
from tcl_core.features.batches import Samples
from tcl_core.features.layout import ANNOTATE, ANNOTATIONS, LEVEL, WIDTH, WORKLOAD, log2p, token_row
from tcl_core.features.tokens import hardware_rows, with_hardware
from tcl_core.learning.fit import FitSettings
from tcl_core.models.estimate import NOTHING, START, TERMS, Estimate, work
from tcl_core.models.lateral_mamba import LateralMamba
from tcl_core.models.mamba import MambaModel, MambaNetwork
from tcl_core.models.trees import TreesModel
from tcl_core.platforms import Hardware

AVX2, AVX512 = Hardware(threads=2, simd_bytes=32), Hardware(threads=2, simd_bytes=64)
OPERATIONS = 12_288
# iterations from the level on, whether it is of reduced axes, its trips, lines touched in two accesses: 10,000, 600 and 100 of 64 bytes
LEVELS = (6144, False, 3, 7000, 3000), (2048, True, 16, 500, 100), (128, False, 128, 60, 40)


def tokens_of(
    hardware: Hardware = AVX2, parallel: float = 3, vector: float = 8, unrolled: float = 4, levels=LEVELS, more=()
) -> torch.Tensor:
    """(1, L, F) of one program, with a row of zeros behind it."""
    rows = [hardware_rows(hardware.vector(), 1), token_row("workload", WORKLOAD.row(sizes=[float(log2p(OPERATIONS))]), 1), *more]
    for name, reach in zip(ANNOTATIONS, (parallel, vector, unrolled), strict=False):
        key = [float(name == one) for one in ANNOTATIONS]
        rows.append(token_row("Annotate", ANNOTATE.row(key=key, values=[9.0], reach=float(log2p(reach))), 1))
    for inside, reduces, trips, *lines in levels:
        numbers = {"work": log2p(inside), "trips": log2p(trips), "lines": [float(log2p(n)) for n in lines]}
        rows.append(token_row("level", LEVEL.row(reduces=float(reduces), **numbers), 1))
    return torch.from_numpy(np.stack([*rows, np.zeros((1, WIDTH), np.float32)], axis=1))


def counted(tokens: torch.Tensor) -> dict[str, float]:
    found, known = work(tokens, torch.tensor([tokens.shape[1] - 1]))
    assert known.item()
    return dict(zip(TERMS, found[0].tolist(), strict=True))


def test_counted_by_hand():
    """Three turns on two threads take four thirds as long as if divided evenly.  An eighth of the 128 sums are 16 vectors, more than 14
    registers hold, so each is moved at each of 6,144 iterations."""
    uneven = 4 / 3
    assert counted(tokens_of()) == pytest.approx({
        "instructions": OPERATIONS / 8 * uneven,
        "sums": 6144 / 8 * uneven,
        "turns": 6144 / (8 * 4) * uneven,
        "through L1": 6144 * 100 * 64 / 128 * uneven,  # 6,400 bytes fit into 16 KiB, 38,400 do not
        "through L2": 6144 * 600 * 64 / 2048 * uneven,  # 640,000 do not fit into half of a MiB
        "through L3": 10_000 * 64 * uneven,
        "threads": START,
    }, rel=1e-4)  # fmt: skip


def test_registers_and_vectors_of_another_platform():
    """AVX-512's 30 registers hold 16 vectors of sums, which are then moved once in the 16 trips of the reduced level."""
    narrow, wide = counted(tokens_of()), counted(tokens_of(AVX512))
    assert wide == pytest.approx({**narrow, "sums": narrow["sums"] / 16}, rel=1e-4)
    # A vector of 16 is one instruction there, and two of AVX2's.
    of_16 = {name: counted(tokens_of(hardware, vector=16))["instructions"] for name, hardware in (("narrow", AVX2), ("wide", AVX512))}
    assert of_16["narrow"] == pytest.approx(2 * of_16["wide"], rel=1e-4)


def test_where_nothing_fits_each_iteration_moves_a_line_and_one_loop_starts_no_threads():
    huge = ((6144, False, 3, 1e7, 1e7),)
    found = counted(tokens_of(parallel=1, levels=huge))
    assert found["through L3"] == pytest.approx(6144 * 64 * 2, rel=1e-4)  # one of two threads works
    assert found["threads"] == pytest.approx(NOTHING)


def test_what_the_hardware_row_does_not_say_has_a_usual_value():
    assert counted(tokens_of(Hardware())) == pytest.approx(counted(tokens_of(Hardware(threads=1, simd_bytes=16))), rel=1e-5)


def test_logs_and_programs_of_a_gpu_are_not_estimated():
    estimate = Estimate()
    estimate.unit.fill_(1.0)
    bound, without = tokens_of(more=[token_row("Bind", [], 1)]), tokens_of(levels=())
    lengths = lambda tokens: torch.tensor([tokens.shape[1] - 1])  # noqa: E731
    assert estimate(tokens_of(), lengths(tokens_of())).item() != 0.0
    assert [estimate(tokens, lengths(tokens)).item() for tokens in (bound, without)] == [0.0, 0.0]
    alone = samples_of(without.repeat(4, 1, 1), np.array([1.0, 2.0, 3.0, 4.0]), np.zeros(4, np.int32))
    untaught = Estimate()
    untaught.learn(alone)
    assert untaught.unit.item() == 0.0


def drawn(count: int, hardware: Hardware, seed: int = 0) -> Samples:
    """Programs of four tasks, which take as long as their counted work does (``timed``), and tenfold from task to task."""
    draw, parts = np.random.default_rng(seed), []
    for _ in range(count):
        tile, trips, lines = 2.0 ** draw.integers(0, 8), 2.0 ** draw.integers(0, 5), 2.0 ** draw.integers(3, 14)
        levels = ((2.0**16, False, 4.0, 8 * lines, 0), (2.0**14, True, trips, lines, 0), (tile, False, tile, tile / 8, 0))
        knobs = {"parallel": draw.integers(1, 9), "vector": 2.0 ** draw.integers(0, 5), "unrolled": 2.0 ** draw.integers(0, 6)}
        parts.append(tokens_of(hardware, levels=levels, **knobs))
    tokens = torch.cat(parts)
    tasks = np.arange(count, dtype=np.int32) % 4
    return samples_of(tokens, timed(tokens) * 10.0**tasks, tasks)


def timed(tokens: torch.Tensor) -> np.ndarray:
    """(N,) seconds that the counted work takes with other costs than the usual ones."""
    counts, _ = work(tokens, torch.full((len(tokens),), tokens.shape[1] - 1))
    return counts.numpy() @ np.array([3.0, 8.0, 1.0, 0.02, 0.2, 1.0, 20.0]) * 1e-9


def samples_of(tokens: torch.Tensor, seconds: np.ndarray, tasks: np.ndarray) -> Samples:
    """Programs with a row of zeros behind them."""
    return Samples(features=tokens.numpy(), lengths=np.full(len(tokens), tokens.shape[1] - 1), tasks=tasks, latencies_s=seconds)


def test_costs_are_learned_from_times_within_tasks_and_hold_for_other_hardware():
    estimate, learned, other = Estimate(), drawn(400, AVX2), drawn(400, AVX512, seed=1)
    slow = learned.latencies_s.copy()
    slow[::7] = np.inf  # failed programs say nothing
    estimate.learn(replace(learned, latencies_s=slow))
    for task in range(4):
        mine = other.take(other.tasks == task)
        assert spearmanr(estimate.scores(mine), -mine.latencies_s).statistic > 0.99
    assert estimate.unit.item() == pytest.approx(1.0, abs=0.1)  # the labels are logarithms of seconds
    again = Estimate()
    again.learn(replace(learned, latencies_s=slow))
    assert torch.equal(again.log_costs, estimate.log_costs)


def test_tasks_without_two_programs_that_ran_leave_the_usual_costs():
    estimate, samples = Estimate(), drawn(4, AVX2)
    estimate.learn(samples)  # one program of each task
    assert estimate.unit.item() == 0.0 and not estimate.log_costs.any()


def test_a_network_adds_the_estimate_to_its_score_and_keeps_it(tmp_path):
    samples = drawn(64, AVX2)
    model = MambaModel(FitSettings(epochs=1, loss="scores")).fit(samples)
    network = model.network
    tokens, lengths = torch.from_numpy(samples.features), torch.from_numpy(samples.lengths)
    with torch.no_grad():
        whole, both = network(tokens, lengths), network.score_and_embed(tokens, lengths)
        layers = both[:, 1:] @ network.decoder[2].weight[0] + network.decoder[2].bias
        torch.testing.assert_close(whole, layers + network.estimate(tokens, lengths), rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(both[:, 0], whole)
        assert network.estimate(tokens, lengths).std() > 0.1
    model.save(tmp_path / "model")
    np.testing.assert_array_equal(MambaModel.load(tmp_path / "model").predict(samples), model.predict(samples))
    assert sum(p.numel() for p in network.estimate.parameters()) == 0  # nothing that gradient descent moves


def test_how_times_change_from_one_platform_to_another_is_counted():
    wide = drawn(40, AVX512, seed=3)
    model = MambaModel(FitSettings(epochs=1, loss="scores")).fit(drawn(64, AVX2))
    narrow = with_hardware(wide, AVX2.vector())
    found = model.counted_change(wide, AVX2.vector())
    expected = (model.network.estimate.scores(narrow) - model.network.estimate.scores(wide)) / model.network.estimate.unit.item()
    np.testing.assert_allclose(found, expected, atol=1e-4)
    assert (found <= 1e-6).all() and (found < -0.1).any()  # wider vectors and more registers make nothing slower
    assert not model.counted_change(wide, AVX512.vector()).any()
    plain = MambaModel()
    plain.network = copy_without(model.network)
    assert not plain.counted_change(wide, AVX2.vector()).any()


def test_a_column_estimates_as_the_knowledge_base_does():
    model = MambaModel(FitSettings(epochs=1, loss="scores")).fit(drawn(64, AVX2))
    column = start_column(model.network, DistillSettings())
    assert isinstance(column.network, LateralMamba)
    assert torch.equal(column.network.column.estimate.log_costs, model.network.estimate.log_costs)
    samples = drawn(8, AVX512)
    tokens, lengths = torch.from_numpy(samples.features), torch.from_numpy(samples.lengths)
    plain = copy_without(column.network.column)
    with torch.no_grad():
        assert (column.network(tokens, lengths) - plain(tokens, lengths)).abs().min() > 0.1


def copy_without(network: MambaNetwork) -> MambaNetwork:
    plain = MambaNetwork(**{**network.arguments, "estimate": False})
    plain.load_state_dict({name: value for name, value in network.state_dict().items() if not name.startswith("estimate.")})
    return plain


def test_networks_of_before_load_without_an_estimate(tmp_path, monkeypatch):
    monkeypatch.setattr(MambaModel, "estimates", False)
    samples = drawn(64, AVX2)
    model = MambaModel(FitSettings(epochs=1, loss="scores")).fit(samples)
    assert model.network.estimate is None
    model.network.arguments.pop("estimate")  # as they were written
    model.save(tmp_path / "model")
    monkeypatch.undo()
    loaded = MambaModel.load(tmp_path / "model")
    np.testing.assert_array_equal(loaded.predict(samples), model.predict(samples))


def test_an_unseen_platform_is_ranked_by_its_hardware_row_alone():
    """Nothing that was learned says what wider vectors do; the counted work does."""
    model = MambaModel(FitSettings(epochs=2, loss="scores")).fit(drawn(200, AVX2))
    wide = with_hardware(drawn(200, AVX2, seed=2), AVX512.vector())
    narrow = drawn(200, AVX2, seed=2)
    true = timed(torch.from_numpy(wide.features))
    rank = lambda scores: np.mean([spearmanr(scores[wide.tasks == t], -true[wide.tasks == t]).statistic for t in range(4)])  # noqa: E731
    assert rank(model.predict(wide)) > rank(model.predict(narrow)) + 0.01


def test_trees_add_what_counting_misses_and_know_what_other_vectors_change():
    """A tree cannot ask for a hardware row that it saw one of; all that changes is what is counted."""
    narrow = drawn(200, AVX2, seed=2)
    wide = with_hardware(narrow, AVX512.vector())
    model = TreesModel(FitSettings(epochs=4, loss="pairs")).fit(drawn(400, AVX2))
    changed = model.estimate.scores(wide) - model.estimate.scores(narrow)
    assert np.abs(changed).max() > 0.1
    np.testing.assert_allclose(model.predict(wide) - model.predict(narrow), changed, atol=1e-4)
    grown = model.predict(narrow) - model.estimate.scores(narrow)
    assert grown.std() > 0.01
    scores, places = model.predict_and_embed(narrow)
    np.testing.assert_allclose(scores, model.predict(narrow), atol=1e-4)
    np.testing.assert_allclose(places.sum(1), grown, atol=1e-4)
    before = model.estimate.log_costs.clone()
    model.fit(drawn(40, AVX512, seed=5))  # more trees, upon the same estimate
    assert torch.equal(model.estimate.log_costs, before)


def test_trees_are_kept_with_their_estimate_and_those_of_before_load_without(tmp_path, monkeypatch):
    samples = drawn(64, AVX2)
    model = TreesModel(FitSettings(epochs=1, loss="pairs")).fit(samples)
    model.save(tmp_path / "model")
    np.testing.assert_array_equal(TreesModel.load(tmp_path / "model").predict(samples), model.predict(samples))
    monkeypatch.setattr(TreesModel, "estimates", False)
    plain = TreesModel(FitSettings(epochs=1, loss="pairs")).fit(samples)
    plain.save(tmp_path / "plain")
    monkeypatch.undo()
    loaded = TreesModel.load(tmp_path / "plain")
    assert loaded.estimate is None and (loaded.predict(samples) != model.predict(samples)).any()
    np.testing.assert_array_equal(loaded.predict(samples), plain.predict(samples))


def test_broken_tokens_are_refused_before_they_are_counted():
    samples = drawn(8, AVX2)
    samples.features[0, 3, 20] = np.nan
    with pytest.raises(DataError):
        MambaModel(FitSettings(epochs=1)).fit(samples)
