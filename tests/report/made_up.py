"""The figures of a small run that never was, as ``tcl_core.stages.figures`` gathers them."""

from __future__ import annotations

from typing import Any

import pytest
from markupsafe import Markup

from tcl_core.report import charts

PLATFORMS = ("host-sse42", "host-avx2", "host-avx512")


def undraw(monkeypatch: pytest.MonkeyPatch) -> None:
    """Charts take most of a page's time; where they do not matter they are empty."""
    for kind in ("dots", "lines", "stacks", "bars", "scatters"):
        monkeypatch.setattr(charts, kind, lambda name, alt, *given, **options: Markup("<svg></svg>"))


def judged(top_1: float, top_5: float, pairs: float, chance: float = 0.3) -> dict[str, Any]:
    return {
        "tasks": 24, "programs": 240, "failed": 0, "pairwise_accuracy": pairs, "spearman": 0.6,
        "top_1": {"value": top_1, "low": top_1 - 0.1, "high": top_1 + 0.1}, "top_1_random": {"value": chance, "low": 0.1, "high": 0.5},
        "top_5": {"value": top_5, "low": top_5 - 0.02, "high": 1.0}, "top_5_random": {"value": 0.75, "low": 0.5, "high": 0.9},
    }  # fmt: skip


def collected(name: str) -> dict[str, Any]:
    progress = [
        {"round": 0, "measured": {"conv2d": 52, "matmul": 27}, "failed": 1, "best_score": 0.61},
        {"round": 1, "measured": {"conv2d": 40, "matmul": 41}, "failed": 0, "best_score": 1.0},
    ]
    return {
        "platform": name, "programs": 160, "pool": 1600, "errors": {"ok": 157, "timeout": 3}, "rounds": [], "progress": progress,
        "coverage": {"conv2d": [92, 900], "matmul": [68, 700]}, "tasks": {"measured": 39, "of": 40, "least": 1, "most": 17},
    }  # fmt: skip


def step(name: str, place: int) -> dict[str, Any]:
    return {
        "platform": name, "kind": "local", "hardware": "nehalem", "previous": PLATFORMS[place - 1] if place else None, "skipped": None,
        "measured": 160, "held_out": 240, "champion": place + 1,
    }  # fmt: skip


def tuned() -> dict[str, Any]:
    rounds = {"tuned": [12.0, 12.4, 13.1], "eager": [16.1, 16.3, 18.2], "compile": [22.0, 22.1, 23.4]}
    return {
        "network": "resnet-18", "platform": "host-avx512", "champion_version": 3, "trials": 200, "tasks": 2, "untuned_ms": 2745.03,
        "tuned_ms": 12.4, "pytorch_ms": 16.3, "compile_ms": 22.1, "difference": 2.5e-7, "search_s": 56.2, "left_out": 0,
        "task_times": [
            {"name": "fused_conv2d_add_relu", "weight": 2.0, "latency_ms": 0.64, "trials": 120},
            {"name": "transpose", "weight": 1.0, "latency_ms": None, "trials": 80},
        ],
        "curve": [[24, 9.0, 61.0], [88, 25.5, 17.2], [160, 44.1, 12.9]],
        "compared": {
            "systems": {name: {"median_ms": ms[1], "rounds_ms": ms, "difference": 2.5e-7, "waiting": ""} for name, ms in rounds.items()},
            "missing": {}, "reference": "eager",
            "ratios": {"tuned/eager": {"value": 0.761, "low": 0.747, "high": 0.781}, "tuned/compile": {"value": 0.566, "low": 0.545, "high": 0.623}},
        },
    }  # fmt: skip


def made(name: str) -> dict[str, Any]:
    code = {"commit": "0123456789abcdef", "changed": False, "sources": "s" * 64}
    return {"code": code, "versions": {"python": "3.11.7", "torch": "2.13.0"}, "host": "a CPU x2", "stage": f"distill@{name}"}


def run() -> dict[str, Any]:
    first, second, third = PLATFORMS
    names = list(PLATFORMS)
    pairs = [[0.808, 0.584, 0.402], [0.801, 0.614, 0.431], [0.790, 0.609, 0.546]]
    return {
        "name": "small", "target": third, "chain": [step(name, place) for place, name in enumerate(names)],
        "evaluation": {
            "judged": {name: {"holdout": f"records of {name}"} for name in names},
            "platforms": {first: judged(0.808, 0.992, 0.730), second: judged(0.614, 0.986, 0.727), third: judged(0.546, 0.995, 0.743, 0.182)},
            "baselines": {
                "zero-shot": {second: judged(0.584, 0.974, 0.708), third: judged(0.431, 0.968, 0.724)},
                "own data only": {second: judged(0.655, 0.999, 0.666), third: judged(0.763, 0.999, 0.745)},
                "xgboost": {name: judged(0.5, 0.9, 0.7) for name in names},
            },
            "chain": {"platforms": names, "pairs": pairs, "forgotten": {first: 0.018, second: 0.005, third: 0.0}},
            "knowledge_base": {"platforms": names, "pairs": pairs, "forgotten": dict.fromkeys(names, 0.0)},
        },
        "learning": {
            first: [{"phase": "train", "epoch": epoch, "loss": 1 / epoch, "valid_loss": 1.2 / epoch} for epoch in range(1, 6)],
            second: [{"phase": phase, "epoch": epoch, "loss": 0.5 / epoch} for phase in ("CL", "KD") for epoch in range(1, 4)],
        },
        "collection": {name: collected(name) for name in names},
        "errors": {name: {"training": {"ok": 157, "timeout": 3}, "held-out": {"ok": 240}} for name in names},
        "noise": {name: {"programs": 397, "repeats": 4.2, "spread": [0.001 * (n + 1) for n in range(21)], "disturbed": 7} for name in names},
        "tuned": tuned(),
        "seconds": {"tasks": 86.5, "collect@host-sse42": 118.3, "train": 128.9, "distill@host-avx2": 35.2, "evaluate": 4.5, "tune": 178.4},
        "made": {
            "measured": ["2026-11-22T12:00:05", "2026-11-22T12:08:41"], "parameters": {"seed": 0, "train.epochs": 60, "networks.train": ["resnet-50"]},
            "changed": {"train.epochs": [30, 60]}, "models": {name: made(name) for name in names},
        },
        "stale": [], "left_out": [["torch.compile", "it failed"]],
    }  # fmt: skip
