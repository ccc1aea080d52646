from __future__ import annotations

import math

import numpy as np
import pytest

from tcl_core.evaluation import plots
from tcl_core.evaluation.intervals import chain_figures, model_figures
from tcl_core.evaluation.report import collection_progress, ks_of, terminal_table

INF = math.inf


def figures(seed: int, noise: float) -> dict:
    rng = np.random.default_rng(seed)
    seconds = np.exp(rng.normal(size=200))
    predictions = -np.log(seconds) + noise * rng.normal(size=200)
    tasks = np.repeat(np.arange(20), 10)
    return model_figures(predictions, seconds, tasks, {"resnet-18": dict.fromkeys(range(20), 1.0)}, (1, 5), draws=50)


@pytest.fixture(scope="module")
def evaluation() -> dict:
    platforms = {name: figures(seed, 0.5) for seed, name in enumerate(("host-sse42", "host-avx2"))}
    return {
        "platforms": platforms,
        "baselines": {"tenset-mlp": {"host-avx2": figures(1, 2.0)}},
        "chain": chain_figures(list(platforms), [[0.91, math.nan], [0.875, 0.95]], {"host-avx2": "host-sse42"}),
        "knowledge_base": chain_figures(list(platforms), [[0.9, 0.7], [0.6, 0.8]], {"host-avx2": "host-sse42"}),
    }


def test_the_table_shows_every_model_beside_random(evaluation):
    text = terminal_table(evaluation)
    lines = [line.split("│") for line in text.splitlines()]
    rows = [[cell.strip() for cell in line[1:-1]] for line in lines if len(line) > 6]
    assert [row[:2] for row in rows] == [
        ["host-sse42", "TCL"], ["", "random"], ["host-avx2", "TCL"], ["", "tenset-mlp"], ["", "random"],
    ]  # fmt: skip
    top_1 = evaluation["platforms"]["host-sse42"]["top_1"]
    assert rows[0][2] == f"{top_1['value']:.3f} ({top_1['low']:.3f}-{top_1['high']:.3f})"
    assert rows[0][-2:] == ["20", "200"]
    chain = [[cell.strip() for cell in line[1:-1]] for line in lines if len(line) == 5]
    assert chain == [
        ["host-sse42", "0.910", "-"],
        ["host-avx2", "0.875", "0.950"],
        ["forgotten", "0.035", "0.000"],
        ["host-sse42", "0.900", "0.700"],
        ["host-avx2", "0.600", "0.800"],
        ["forgotten", "0.300", "0.000"],
    ]
    assert text.index("Pairs along the chain") < text.index("Pairs of the knowledge base alone") and "\x1b[" not in text
    assert max(map(len, text.splitlines())) <= 110


def test_a_knowledge_base_that_is_the_deployable_model_is_not_shown_twice(evaluation):
    """And a matrix of an earlier version, of top-1, is not taken for one of pairs."""
    text = terminal_table(evaluation | {"knowledge_base": dict(evaluation["chain"])})
    assert text.count("forgotten") == 1 and "knowledge base" not in text
    earlier = {"platforms": ["host-sse42"], "top_1": [[0.9]], "forgetting": {"host-sse42": 0.0}}
    assert "forgotten" not in terminal_table(evaluation | {"chain": earlier, "knowledge_base": earlier})


def test_the_table_does_without_chain_and_baselines(evaluation):
    text = terminal_table({"platforms": evaluation["platforms"]})
    assert "chain" not in text and "knowledge base" not in text and text.count("random") == 2
    assert ks_of(evaluation) == [1, 5]


def test_collection_progress_by_hand():
    """Task x: 4 s in round 0, 2 s in round 1.  Task y: failed, then 3 s.  Task z never runs and has no
    score.
    """
    progress = collection_progress(
        rounds=np.array([0, 0, 0, 1, 1]),
        latencies_s=np.array([4.0, INF, INF, 2.0, 3.0]),
        tasks=np.array(["x", "y", "z", "x", "y"]),
        operator_types=["conv2d", "dense", "dense", "conv2d", "dense"],
    )
    assert progress == [
        {"round": 0, "measured": {"conv2d": 1, "dense": 2}, "failed": 2, "best_score": (2 / 4 + 0) / 2},
        {"round": 1, "measured": {"conv2d": 1, "dense": 1}, "failed": 0, "best_score": 1.0},
    ]


RNG = np.random.default_rng(0)
CURVES = {
    "host-sse42": [{"epoch": e, "loss": 1 / e, "valid_loss": 1.2 / e} for e in range(1, 6)],
    "host-avx2": [{"epoch": e, "loss": 1 / e, "phase": phase} for phase in ("CL", "KD") for e in range(1, 6)],
}
PROGRESS = {
    name: collection_progress(RNG.integers(0, 4, 99), RNG.random(99), RNG.integers(0, 9, 99), [f"op-{n % 9}" for n in range(99)])
    for name in CURVES
}
RANKED = {name: (RNG.random(50), RNG.random(50), np.repeat(np.arange(10), 5)) for name in CURVES}


@pytest.mark.parametrize(
    ("draw", "name"),
    [
        (lambda evaluation, folder: plots.plot_top_k(evaluation, folder), "top_k.png"),
        (lambda evaluation, folder: plots.plot_chain(evaluation["chain"], folder), "chain.png"),
        (lambda evaluation, folder: plots.plot_ranks(RANKED, folder), "ranks.png"),
        (lambda evaluation, folder: plots.plot_learning(CURVES, folder), "learning.png"),
        (lambda evaluation, folder: plots.plot_collection(PROGRESS, folder), "collection.png"),
    ],
)
def test_each_plot_is_a_png_with_content_and_repeats_byte_for_byte(evaluation, tmp_path, draw, name):
    from matplotlib.image import imread

    path = draw(evaluation, tmp_path / "a")
    assert path == tmp_path / "a" / name
    pixels = imread(path)[..., :3]
    assert pixels.shape[0] > 250 and pixels.shape[1] > 400
    assert len(np.unique((pixels * 255).astype(np.uint8).reshape(-1, 3), axis=0)) > 20
    assert draw(evaluation, tmp_path / "b").read_bytes() == path.read_bytes()


def test_rank_share_runs_from_0_to_1_within_each_task():
    share = plots._rank_share(np.array([5.0, 9.0, 7.0, 1.0]), np.array([0, 0, 0, 1]))
    assert share.tolist() == [1.0, 0.0, 0.5, 0.0]


def test_a_plot_of_nothing_says_so(tmp_path):
    with pytest.raises(ValueError, match="at least one platform"):
        plots.plot_learning({}, tmp_path)
