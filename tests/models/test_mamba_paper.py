"""The paper's input: which rows stay, and that their arguments are those of the schedule."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tcl_core.errors import DataError
from tcl_core.features.batches import Samples
from tcl_core.features.layout import KINDS, WIDTH, log2p, token_row
from tcl_core.learning.fit import FitSettings
from tcl_core.models import catalogue
from tcl_core.models.mamba_paper import ROWS, primitive_rows
from tcl_core.trained import load_folder

PRIMITIVES = KINDS[3:]


def samples(rows: list[np.ndarray]) -> Samples:
    """One task's programs, whose rows are given as (N, F) arrays."""
    tokens = np.stack(rows, axis=1)
    count = len(tokens)
    lengths, tasks = np.full(count, tokens.shape[1], np.int32), np.zeros(count, np.int32)
    return Samples(tokens, lengths, tasks, np.linspace(1e-3, 2e-3, count))


def split_row(*factors: list[int]) -> np.ndarray:
    """The row of a split: five columns of factors, then the extent, which the paper does not have."""
    return token_row("Split", [*(log2p(np.array(column)) for column in factors), 7.0], len(factors[0]))


def some() -> Samples:
    count = 2
    return samples([
        token_row("hardware", [3.0, 4.0], count),
        token_row("workload", [20.0], count),
        split_row([4, 7], [2, 1], [8, 8], [1, 3], [0, 0]),
        token_row("ComputeAt", [5 / 32, 1.0], count),
        token_row("Annotate", [0.0, 1.0, 0.0, 0.0, 0.0, log2p(64)], count),
        token_row("level", [1.0], count),
    ])  # fmt: skip


def test_rows_are_the_hardware_and_the_primitives_with_their_arguments_unscaled():
    rows = primitive_rows(some())
    assert rows.features.shape == (2, 4, 22) and rows.lengths.tolist() == [4, 4]
    np.testing.assert_array_equal(rows.features[:, 0, :3], [[3, 4, 0]] * 2)
    split = rows.features[:, 1]
    assert split[0, PRIMITIVES.index("Split")] == 1 and split[:, : len(PRIMITIVES)].sum() == 2
    np.testing.assert_array_equal(split[:, len(PRIMITIVES) :], [[4, 2, 8, 1, 0, 0, 0, 0, 0], [7, 1, 8, 3, 0, 0, 0, 0, 0]])
    assert rows.features[0, 2, len(PRIMITIVES)] == 5  # the loop's number
    np.testing.assert_array_equal(rows.features[0, 3, len(PRIMITIVES) :], [0, 1, 0, 0, 0, 64, 0, 0, 0])


def test_of_a_logs_primitives_as_many_numbers_stay_as_fit():
    """They may have more than a network's schedule: a tuner's knobs, and the code of the thread that a loop is bound to."""
    more = np.array([5, 3])
    numbers = [log2p(np.full(2, n)) for n in (1, 2, 3, 4)]
    rows = primitive_rows(samples([
        token_row("Reorder", [1.0, *numbers, log2p(more)], 2),
        token_row("Annotate", [0.0, 1.0, 0.0, 0.0, 0.0, log2p(64), 0.0, log2p(more)], 2),
        token_row("Bind", [0.0, 0.0, 0.0, 0.0, 0.0, log2p(more)], 2),
    ]))  # fmt: skip
    reorder, annotate, bind = (rows.features[0, place, len(PRIMITIVES) :].tolist() for place in range(3))
    assert reorder == [1, 1, 2, 3, 4, 5, 0, 0, 0]
    assert annotate == [0, 1, 0, 0, 0, 64, 0, 5, 0]
    assert bind == [0, 0, 0, 0, 0, 5, 0, 0, 0]


def test_programs_of_unlike_lengths_keep_their_own_rows_and_long_ones_are_cut():
    one = some()
    short = replace(one, lengths=np.array([6, 3], np.int32))
    rows = primitive_rows(short)
    assert rows.lengths.tolist() == [4, 2]
    assert (rows.features[1, 2:] == 0).all() and (rows.features[1, 1] == primitive_rows(one).features[1, 1]).all()
    long = samples([split_row([n, n], [1, 1], [1, 1], [1, 1], [0, 0]) for n in range(1, ROWS + 5)])
    cut = primitive_rows(long)
    assert cut.lengths.tolist() == [ROWS, ROWS]
    np.testing.assert_array_equal(cut.features[0, :, len(PRIMITIVES)], np.arange(1, ROWS + 1))


def test_the_network_has_the_papers_size_and_comes_back_from_disk(tmp_path):
    model = catalogue.create("mamba-paper", FitSettings(epochs=2))
    model.fit(some())
    assert model.parameter_count() == 92_097
    model.save(tmp_path / "model")
    again = catalogue.load(tmp_path / "model")
    np.testing.assert_array_equal(again.predict(some()), model.predict(some()))
    scores, places = again.predict_and_embed(some())  # all that a search asks
    np.testing.assert_array_equal(scores, model.predict(some()))
    np.testing.assert_array_equal(places, model.embed(some()))
    assert places.shape == (2, 32) and np.ptp(scores) > 0
    np.testing.assert_array_equal(load_folder(tmp_path / "model").predict(some()), model.predict(some()))  # its rows are of its own width


def test_tokens_of_another_layout_are_refused():
    narrow = replace(some(), features=np.zeros((2, 3, WIDTH - 1), np.float32))
    with pytest.raises(DataError, match=f"tokens of {WIDTH} features, not {WIDTH - 1}"):
        primitive_rows(narrow)
