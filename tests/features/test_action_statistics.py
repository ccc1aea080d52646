from __future__ import annotations

import numpy as np

from tcl_core.features.action_statistics import COUNTED, action_statistics, annotation_reaches, hardware_numbers
from tcl_core.features.layout import ANNOTATE, ANNOTATIONS, KINDS, NUMBERS, WIDTH


def row(kind: str, *numbers: float) -> np.ndarray:
    token = np.zeros(WIDTH, dtype=np.float32)
    token[KINDS.index(kind)] = 1.0
    token[len(KINDS) : len(KINDS) + len(numbers)] = numbers
    return token


def program(*rows: np.ndarray, length: int = 5) -> np.ndarray:
    return np.stack([*rows, *[np.zeros(WIDTH, np.float32)] * (length - len(rows))])


def of_kind(statistics: np.ndarray, kind: str) -> tuple:
    """Count, sums, maxima and minima of a kind."""
    mine = statistics.reshape(len(COUNTED), 1 + 3 * NUMBERS)[COUNTED.index(KINDS.index(kind))]
    return mine[0], *mine[1:].reshape(3, NUMBERS)


def test_statistics_by_hand():
    tokens = np.stack(
        [
            program(row("hardware", 7), row("workload", 9), row("Split", 2, -1), row("Split", 3, -4), row("level", 5)),
            program(row("hardware", 7), row("Fuse", 1)),
            program(row("hardware", 7), row("workload", 9), row("Split", 8), row("Split", 1), row("level", 6)),
        ]
    )
    found = action_statistics(tokens)
    assert found.shape == (3, len(COUNTED) * (1 + 3 * NUMBERS)) and found.dtype == np.float32
    count, total, largest, smallest = of_kind(found[0], "Split")
    assert (count, *total[:3], *largest[:3], *smallest[:3]) == (2, 5, -5, 0, 3, -1, 0, 2, -4, 0)
    assert of_kind(found[0], "level")[1][0] == 5 and of_kind(found[2], "Split")[2][0] == 8
    assert not np.any(of_kind(found[1], "Split")[0]) and of_kind(found[1], "Fuse")[3][0] == 1
    assert found[1].sum() == 1 + 3 * 1  # nothing else: neither hardware, workload nor padding is counted


def test_order_does_not_count_and_padding_neither():
    tokens = np.stack([program(row("Split", 1), row("Reorder", 2)), program(row("Reorder", 2), row("Split", 1))])
    found = action_statistics(tokens)
    np.testing.assert_array_equal(found[0], found[1])
    np.testing.assert_array_equal(action_statistics(tokens[:, :2]), found)


def test_hardware_numbers():
    tokens = np.stack([program(row("workload", 9), row("hardware", 7, 3)), program(row("Split", 1))])
    found = hardware_numbers(tokens)
    assert found.shape == (2, NUMBERS) and found[0, :3].tolist() == [7, 3, 0] and not found[1].any()


def annotation(name: str, reached: int) -> np.ndarray:
    numbers = np.zeros(ANNOTATE.width)
    numbers[ANNOTATE.key.start + ANNOTATIONS.index(name)], numbers[ANNOTATE.reach] = 1.0, np.log2(1.0 + reached)
    return row("Annotate", *numbers)


def test_each_annotations_reach_is_told_apart():
    """Their statistics are equal where parallel and vector iterations change places."""
    cpu = row("hardware", np.log2(3.0), np.log2(3.0))  # two cores, two threads
    tokens = np.stack(
        [
            program(cpu, annotation("parallel", 33), annotation("vectorize", 16), annotation("unroll_explicit", 0)),
            program(cpu, annotation("parallel", 16), annotation("vectorize", 33), annotation("unroll_explicit", 0)),
            program(cpu, row("Split", 5, 5, 5)),  # runs on one thread
            program(annotation("parallel", 3)),  # of unknown hardware
        ]
    )
    np.testing.assert_array_equal(action_statistics(tokens)[0], action_statistics(tokens)[1])
    found = annotation_reaches(tokens)
    expected = [[33, 16, 0, 34 / 33], [16, 33, 0, 1], [0, 0, 0, 2], [3, 0, 0, 1]]
    np.testing.assert_allclose(np.concatenate([np.exp2(found[:, :3]) - 1, found[:, 3:]], axis=1), expected, atol=1e-5)


def test_no_programs():
    none = np.zeros((0, 4, WIDTH), dtype=np.float32)
    assert action_statistics(none).shape == (0, len(COUNTED) * (1 + 3 * NUMBERS))
    assert hardware_numbers(none).shape == (0, NUMBERS) and annotation_reaches(none).shape == (0, 4)
