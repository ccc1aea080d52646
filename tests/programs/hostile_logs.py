"""Lines that no tuner has written: real ones, changed at random places into what JSON can say."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Iterator
from typing import Any

DEEP = "@deep"
ODD: list[Any] = [
    None, True, False, 0, -1, 1, 2**31, -(2**31) - 1, 2**62, 2**63, 2**64, 10**400, 1e308, -1e308, 1e-320, 0.5, float("nan"),
    float("inf"), "", "x", "\x00", "\x1b[31m\n", "\ud800", "é" * 500, "a$", "a$x", "$²", "a$" + "9" * 5000, [], {}, [[]],
    {"a": 1}, DEEP, ["TENSOR", [-1, 2], "float²"], ["TENSOR", [2**62, 2**62], "float32"], ["TENSOR", [1, [2]], {}], "SP",
    "CA", [1] * 500,
]  # fmt: skip


def hostile(line: str, seed: int) -> bytes:
    """The line with one to three changes: of bytes, of its length, or of what its JSON says."""
    rng = random.Random(seed)
    if rng.random() < 0.15:
        changed = bytearray(line.encode())
        for _ in range(rng.randint(1, 4)):
            changed[rng.randrange(len(changed))] = rng.choice([*range(10), *range(11, 256)])  # 10 would end the line
        return bytes(changed[: rng.randrange(len(changed))] if rng.random() < 0.3 else changed)
    entry = json.loads(line)
    for _ in range(rng.choice([1, 1, 1, 2, 3])):
        _change(rng, *rng.choice(list(_places(entry))))
    nested = (b"[" * 700 + b"]" * 700, b"[" * 1100 + b"]" * 1100)[seed % 2]
    return json.dumps(entry).encode().replace(f'"{DEEP}"'.encode(), nested)


def _places(tree: Any) -> Iterator[tuple[Any, Any]]:
    """Every list and object in it, with each of its places."""
    for place in list(tree) if isinstance(tree, dict) else range(len(tree)):
        yield tree, place
        if isinstance(tree[place], dict | list):
            yield from _places(tree[place])


def _change(rng: random.Random, tree: Any, place: Any) -> None:
    how = rng.random()
    if how < 0.1:
        del tree[place]
    elif how < 0.3 and isinstance(tree, list):
        tree.insert(place, copy.deepcopy(tree[place]))
        rng.shuffle(tree)
    else:
        tree[place] = copy.deepcopy(rng.choice(ODD))
