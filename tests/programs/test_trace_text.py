"""A sketch's text, read without replaying it, says what the replayed trace says."""

from __future__ import annotations

import json

import pytest

from tcl_core.errors import DataError
from tcl_core.programs.primitives import sketch_primitives
from tcl_core.programs.sketches import read_sketch, trace_from_json, trace_to_json
from tcl_core.programs.trace_text import read_trace_text


@pytest.mark.parametrize("name", ["matmul", "conv", "softmax"])
def test_text_and_replayed_trace_have_the_same_primitives_and_slots(tiny_tasks, name):
    tiny = tiny_tasks[name]
    for sketch in tiny.sketches:
        text = trace_to_json(sketch.trace)
        read = read_sketch("", 0, read_trace_text(text, tiny.workload))
        replayed = read_sketch("", 0, trace_from_json(text, tiny.module))
        assert read.slots == replayed.slots and read.width == sketch.width
        assert sketch_primitives(read, tiny.workload) == sketch_primitives(replayed, tiny.workload)


def changed(text, number, **parts):
    """The text with parts of one instruction replaced."""
    instructions, decisions = json.loads(text)
    places = ("kind", "inputs", "attrs", "outputs")
    for part, value in parts.items():
        instructions[number][places.index(part)] = value
    return json.dumps([instructions, decisions])


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda t: t[:-9], "delimiter"),
        (lambda t: "", "Expecting value"),
        (lambda t: "{}", "values to unpack"),
        (lambda t: "[[3], []]", "int"),
        (lambda t: '[[["Split"]], []]', "arguments"),
        (lambda t: t.replace("Split", "Splat"), "Splat"),
        (lambda t: changed(t, 0, attrs=["another", "main"]), "there is no block another"),
        (lambda t: changed(t, 0, attrs=[]), "tuple index out of range"),
        (lambda t: changed(t, 0, outputs=[]), "takes b0, which is not defined"),
        (lambda t: changed(t, 0, outputs=[["b0"]]), "takes b0, which is not defined"),
    ],
)
def test_damaged_text(matmul, damage, said):
    text = trace_to_json(matmul.sketches[0].trace)
    with pytest.raises(DataError, match=f"sketch does not fit its task.*{said}.*run the stage candidates again"):
        read_trace_text(damage(text), matmul.workload)


def test_the_text_of_another_task(matmul, conv):
    with pytest.raises(DataError, match="does not fit its task.*there is no block"):
        read_trace_text(trace_to_json(conv.sketches[0].trace), matmul.workload)
