"""A sketch's text, read without replaying it, says what the replayed trace says."""

from __future__ import annotations

import json

import pytest

from tcl_core.errors import DataError
from tcl_core.features.encode import Encoder
from tcl_core.programs.primitives import sketch_primitives
from tcl_core.programs.sketches import read_sketch, trace_from_json, trace_to_json
from tcl_core.programs.trace_text import read_template

HARDWARE = (2.0,) * 11


@pytest.mark.parametrize("name", ["matmul", "conv", "softmax"])
def test_text_and_replayed_trace_have_the_same_primitives(tiny_tasks, name):
    tiny = tiny_tasks[name]
    for sketch in tiny.sketches:
        text = trace_to_json(sketch.trace)
        replayed = read_sketch("", 0, trace_from_json(text, tiny.module))
        assert read_template(text, tiny.workload) == (sketch_primitives(replayed, tiny.workload), sketch.width)


def changed(text, kind, **parts):
    """The text with parts of the first instruction of a kind replaced."""
    instructions, decisions = json.loads(text)
    places = ("kind", "inputs", "attrs", "outputs")
    found = next(instruction for instruction in instructions if instruction[0] == kind)
    for part, value in parts.items():
        found[places.index(part)] = value
    return json.dumps([instructions, decisions])


DAMAGED = {
    "cut": (lambda t: t[:-9], ""),
    "empty": (lambda t: "", "Expecting value"),
    "no instructions": (lambda t: "{}", "values to unpack"),
    "a number for an instruction": (lambda t: "[[3], []]", "int"),
    "a bare instruction": (lambda t: '[[["Split"]], []]', "arguments"),
    "an unknown instruction": (lambda t: t.replace("Split", "Splat"), "Splat"),
    "no block's name": (lambda t: changed(t, "GetSBlock", attrs=[]), "out of range"),
    "no block": (lambda t: changed(t, "GetSBlock", outputs=[]), "takes b0, which is not defined"),
    "another output": (lambda t: changed(t, "GetSBlock", outputs=[["b0"]]), "takes b0, which is not defined"),
    "no annotation": (lambda t: changed(t, "Annotate", attrs=[]), "out of range"),
    "a huge annotation": (lambda t: changed(t, "Annotate", inputs=["b0", 2**70]), "64 bits"),
    "a billion parts": (lambda t: changed(t, "SamplePerfectTile", attrs=[10**9, 64]), "1000000000 parts"),
    "no number of parts": (lambda t: changed(t, "SamplePerfectTile", attrs=["x", 64]), "x parts"),
    "a split of nothing": (lambda t: changed(t, "Split", inputs=[]), "out of range"),
    "loops of nothing": (lambda t: changed(t, "GetLoops", inputs=[]), "out of range"),
}


@pytest.mark.parametrize("damage", DAMAGED)
def test_damaged_text(matmul, damage):
    change, said = DAMAGED[damage]
    text = change(trace_to_json(matmul.sketches[0].trace))
    encoder = Encoder([matmul.task], [matmul.rows()[0] | {"trace_json": text}])
    with pytest.raises(DataError, match=f"sketch does not fit its task.*{said}.*run the stage candidates again"):
        encoder.encode([(matmul.task.key, 0, (1,) * 12)], HARDWARE)


def test_an_annotation_may_be_a_map(matmul):
    text = trace_to_json(matmul.sketches[0].trace)
    primitives, width = read_template(changed(text, "Annotate", inputs=["b0", {"a": [1, 2]}]), matmul.workload)
    assert width == matmul.sketches[0].width and next(p for p in primitives if p.kind == "Annotate").block == "matmul"


def test_the_text_of_another_task(matmul, conv):
    with pytest.raises(DataError, match="does not fit its task.*the task has no block"):
        read_template(trace_to_json(conv.sketches[0].trace), matmul.workload)


def test_a_block_that_the_trace_made_may_be_asked_for(matmul):
    """As imported traces do: nothing is known of it."""
    made = [
        ["CacheWrite", ["b0"], [0, "global", []], ["b90"]],
        ["GetSBlock", [], ["matmul_global", "main"], ["b91"]],
        ["GetLoops", ["b91"], [], ["l92"]],
    ]
    instructions = [["GetSBlock", [], ["matmul", "main"], ["b0"]], *made, ["Parallel", ["l92"], [], []]]
    primitives, _ = read_template(json.dumps([instructions, []]), matmul.workload)
    assert [(p.kind, p.block) for p in primitives] == [("CacheWrite", "matmul"), ("Parallel", "matmul_global")]
