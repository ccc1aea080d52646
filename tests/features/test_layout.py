"""The layout of tokens: names without gaps, and the bytes that saved models and caches were made of."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest
from test_log_tokens import DECISIONS, STEP_DECISIONS, encode
from test_tokens import HARDWARE as FIELDS, tokens_of

from tcl_core.features import layout
from tcl_core.features.action_statistics import action_statistics
from tcl_core.features.batches import Samples
from tcl_core.features.layout import ALL_OPERATORS, KINDS, NUMBERS, WIDTH, Columns, kinds_of, numbers_of, token_row
from tcl_core.models.mamba_paper import primitive_rows

ROWS = {name: columns for name, columns in vars(layout).items() if isinstance(columns, Columns)}

# SHA-256 of the encoding of fixed programs: a saved model of this version reads these bytes.  Others are another version's.
VERSION = 3
NETWORKS = {"matmul": "63bded4ee71d2565", "conv": "eb13ccaedffeb222", "softmax": "a4d1f99258f67b5d"}
LOGS = {"AutoTVM": "dcc668cd44c8787c", "Ansor": "16cae0ea19939805"}
DERIVED = {"statistics": "9856b53bd502de83", "paper": "9bd63e476603ad4e"}


def digest(*arrays: np.ndarray) -> str:
    found = hashlib.sha256()
    for array in arrays:
        assert array.dtype == np.float32
        found.update(repr(array.shape).encode() + np.ascontiguousarray(array).tobytes())
    return found.hexdigest()[:16]


@pytest.mark.parametrize("name", NETWORKS)
def test_the_bytes_of_a_networks_programs(tiny_tasks, name):
    tiny = tiny_tasks[name]
    assert digest(*(tokens_of(tiny, sketch, tiny.sample(sketch, 5, seed=3)) for sketch in tiny.sketches)) == NETWORKS[name]
    assert layout.VERSION == VERSION


def test_the_bytes_of_a_logs_programs():
    bound = [*STEP_DECISIONS[:9], 6, *STEP_DECISIONS[10:]]
    autotvm = encode(("a", 1, DECISIONS, [0.5]), ("a", 2, DECISIONS[:4], [0.5]), hardware=FIELDS)
    ansor = encode(("b", 1, STEP_DECISIONS, [0.5]), ("b", 1, bound, [0.5]))
    assert {"AutoTVM": digest(autotvm.features), "Ansor": digest(ansor.features)} == LOGS


def test_the_bytes_of_what_is_made_of_tokens(matmul):
    tokens = tokens_of(matmul, matmul.sketches[-1], matmul.sample(matmul.sketches[-1], 5, seed=3))
    lengths, tasks = np.full(5, tokens.shape[1], np.int32), np.zeros(5, np.int32)
    paper = primitive_rows(Samples(tokens, lengths, tasks, np.linspace(1e-3, 2e-3, 5)))
    assert {"statistics": digest(action_statistics(tokens)), "paper": digest(paper.features)} == DERIVED


def test_the_columns_of_a_row_follow_each_other_and_fit_into_it():
    assert len(ROWS) == 7
    for columns in ROWS.values():
        slices = list(columns._slices.values())
        assert slices[0].start == 0 and columns.width <= NUMBERS
        assert all(one.stop == other.start for one, other in zip(slices, slices[1:], strict=False))
        assert all(part.stop > part.start for part in slices)
    assert WIDTH == len(KINDS) + NUMBERS == 48 and layout.WORKLOAD.operator == slice(6, 6 + len(ALL_OPERATORS))


def test_a_row_by_names():
    columns = Columns(first=2, second=1, third=2)
    assert (columns.second, columns.width) == (slice(2, 3), 5)
    assert columns.row() == [0.0] * 5
    assert columns.row(third=[4.0], first=[1.0, 2.0, 3.0], second=5.0) == [1.0, 2.0, 5.0, 4.0, 0.0]
    with pytest.raises(AttributeError, match="these columns have no 'fourth', only first, second, third"):
        columns.row(fourth=1.0)


def test_kinds_and_numbers_are_views_of_the_tokens():
    tokens = token_row("Split", layout.SPLIT.row(extent=np.array([1.0, 2.0]), factors=[3.0]), 2)
    assert kinds_of(tokens).argmax(axis=1).tolist() == [KINDS.index("Split")] * 2
    assert numbers_of(tokens)[:, layout.SPLIT.extent].ravel().tolist() == [1.0, 2.0]
    assert numbers_of(tokens)[:, layout.SPLIT.factors].tolist() == [[3.0, 0, 0, 0, 0]] * 2
    numbers_of(tokens)[:] = 7.0
    assert tokens.sum() == 2 * (1 + 7 * NUMBERS)
