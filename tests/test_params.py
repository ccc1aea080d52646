"""params.yaml: what it holds, and each thing that may be wrong in it as one sentence."""

from __future__ import annotations

import dataclasses
import re
import subprocess
import sys
from itertools import pairwise

import pytest
from ruamel.yaml import YAML

from tcl_core.errors import UsageError
from tcl_core.params import load_params, parse_params
from tcl_core.profiles import apply_profile
from tests import params_copy
from tests.params_copy import ROOT, edit, error_of
from tests.shipped import SHIPPED

project = params_copy.project


def test_committed_file_is_valid_and_in_chain_order(project):
    params = load_params(project)
    assert params.chain_order == ("host-sse42", "host-avx2", "host-avx512")
    assert [params.previous(p) for p in params.chain_order] == [None, "host-sse42", "host-avx2"]
    assert params.platforms["host-avx2"].mcpu == "haswell"
    assert params.evaluate.top_k == (1, 5)
    assert isinstance(params.measure.timeout_s, float)
    with pytest.raises(dataclasses.FrozenInstanceError):
        params.seed = 1


def test_previous_of_an_unknown_platform_names_the_nearest(project):
    with pytest.raises(UsageError, match="did you mean 'host-avx512'"):
        load_params(project).previous("host-avx51")


def test_every_number_has_a_comment():
    numbers = re.findall(r"^ *\w+: [\[\d].*$", SHIPPED.read_text(), re.MULTILINE)
    assert len(numbers) > 30
    assert [line for line in numbers if "#" not in line] == []


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        (
            "  repeats: 3 ",
            "  repeat: 3 ",
            "unknown key 'repeat' in section 'measure' of {file}; did you mean 'repeats'?",
        ),
        ("\nmeasure:", "\nmeasuer:", "unknown section 'measuer' in {file}; did you mean 'measure'?"),
        (
            "  warmup: 1 ",
            "  # warmup: 1 ",
            "section 'measure' of {file} lacks 'warmup'; add it as it stands in the file that tcl init NAME writes",
        ),
        ("  repeats: 3 ", "  repeats: 0 ", "measure.repeats is 0; it must be an integer of at least 1"),
        ("  repeats: 3 ", "  repeats: 2.5 ", "measure.repeats is 2.5; it must be an integer of at least 1"),
        ("  repeats: 3 ", "  repeats: true ", "measure.repeats is True; it must be an integer"),
        ("  repeats: 3 ", "  repeats: '3' ", "measure.repeats is '3'; it must be an integer"),
        (
            "\n  fraction: 0.1 ",
            "\n  fraction: -0.1 ",
            "collect.fraction is -0.1; it must be a number above 0 and at most 1",
        ),
        (
            "\n  fraction: 0.1 ",
            "\n  fraction: 1.5 ",
            "collect.fraction is 1.5; it must be a number above 0 and at most 1",
        ),
        ("\n  fraction: 0.1 ", "\n  fraction: .nan ", "collect.fraction is nan; it must be a number"),
        ("\n  fraction: 0.1 ", "\n  fraction: ", "collect.fraction is None; it must be a number"),
        (
            "  beta: 0.5 ",
            "  beta: 1.01 ",
            "distill.beta is 1.01; it must be a number of at least 0 and at most 1",
        ),
        ("flush_cache: false", "flush_cache: 0", "measure.flush_cache is 0; it must be true or false"),
        ("pin_threads: true", "pin_threads: 1", "measure.pin_threads is 1; it must be true or false"),
        ("  max_repeats: 8 ", "  max_repeats: 0 ", "measure.max_repeats is 0; it must be an integer of at least 1"),
        ("  max_repeats: 8 ", "  max_repeats: 2 ", "measure.max_repeats is 2, fewer than measure.repeats (3); raise it"),
        ("  max_spread: 0.05 ", "  max_spread: -0.1 ", "measure.max_spread is -0.1; it must be a number of at least 0"),
        ("  memory_gib: 16 ", "  memory_gib: 1 ", "measure.memory_gib is 1; it must be a number of at least 2"),
        ("sampler: rdu ", "sampler: rdu-papr ", "unknown collect.sampler 'rdu-papr' in {file}; did you mean 'rdu-paper'?"),
        ("    timezone: UTC\n  drift:", "    timezone: ''\n  drift:", "schedules.nightly.timezone is ''; it must be text"),
        ("  loss: scores ", "  model: mamba\n  loss: scores ", "unknown key 'model' in section 'train' of {file}"),
        ("top_k: [1, 5]", "top_k: [5, 10]", "evaluate.top_k is [5, 10], but must contain 1"),
        (
            "    - vit-tiny",
            "    - vit-tini",
            "unknown network of networks.train 'vit-tini' in {file}, and no .pt2 or .onnx file; did you mean 'vit-tiny'?",
        ),
        ("    - bert-tiny", "    - bert_tiny", "unknown network of networks.held_out 'bert_tiny'"),
        ("network: resnet-18 ", "network: resnet-180 ", "unknown network of tune.network 'resnet-180' in {file}"),
        ("  host-avx512:\n    mcpu", "  Host_AVX512:\n    mcpu", "'Host_AVX512' cannot name a platform"),
        ("  host-avx512:\n    mcpu", "  ../avx512:\n    mcpu", "use small letters, digits and hyphens only"),
        ("  host-avx512:\n    mcpu", "  -avx512:\n    mcpu", "'-avx512' cannot name a platform"),
        ("top_k: [1, 5]", "top_k: []", "evaluate.top_k is []; it must be a list of at least one entry"),
        ("top_k: [1, 5] ", "top_k: 5 ", "evaluate.top_k is 5; it must be a list"),
        ("top_k: [1, 5]", "top_k: [1, 0]", "evaluate.top_k[1] is 0; it must be an integer of at least 1"),
        ("top_k: [1, 5]", "top_k: [1, 1]", "evaluate.top_k lists 1 twice"),
        (
            "    - bert-tiny",
            "    - resnet-50",
            "network 'resnet-50' is in both networks.train and networks.held_out",
        ),
        ("  min_tasks: 5 ", "  min_tasks: 0 ", "promote.min_tasks is 0; it must be an integer of at least 1"),
        (
            "  first_confidence: 0.5 ",
            "  first_confidence: 1.5 ",
            "promote.first_confidence is 1.5; it must be a number of at least 0 and at most 1",
        ),
        ("  first_confidence: 0.5 ", "  # first_confidence: 0.5 ", "section 'promote' of {file} lacks 'first_confidence'"),
        (
            "prev: host-avx2",
            "prev: host-avx512",
            "chain.then.host-avx512.prev is 'host-avx512', which is not an earlier platform",
        ),
        ("prev: host-avx2", "prev: host-avx1", "use one of: host-sse42, host-avx2"),
        (
            "first: host-sse42",
            "first: host-sse41",
            "unknown platform 'host-sse41' in the chain of {file}; did you mean 'host-sse42'?",
        ),
        (
            "first: host-sse42",
            "first: host-avx2",
            "platform 'host-avx2' is both chain.first and in chain.then",
        ),
        ("seed: 0 ", "seed: [0 ", "line "),
        ("seed: 0 ", "seed: 0\nseed: 1 ", "line 5: not valid YAML (found duplicate key"),
        ("  host-avx2:\n    mcpu", "  7:\n    mcpu", "the name 7 in 'platforms' is no text"),
        ("chain: ", "chain: later ", "not valid YAML"),
        ("engine: local ", "engine: ray ", "unknown run.engine 'ray' in {file}; known: dask, local"),
        ("  workers: 0 ", "  workers: -1 ", "run.workers is -1; it must be an integer of at least 0"),
        ("engine: local ", "scheduler: tcp://a:1\n  engine: local ", "run.scheduler says nothing about the engine local; remove it"),
        ("engine: local ", "scheduler: a:8786\n  engine: dask ", "run.scheduler is 'a:8786'; it must be an address such as tcp://"),
    ],
)
def test_a_wrong_file_is_one_sentence(project, old, new, expected):
    edit(project, old, new)
    assert expected.format(file=project) in error_of(project)


def test_platforms_stand_in_the_chains_order(project):
    """Those beside the chain anywhere."""
    document = YAML(typ="safe").load(project)
    document["platforms"] = {"beside": document["platforms"]["host-avx2"], **document["platforms"]}
    parse_params(document, "here")
    document["platforms"] = dict(reversed(document["platforms"].items()))
    with pytest.raises(
        UsageError, match=r"^here: platforms stand in another order than in the chain \(host-sse42, host-avx2, host-avx512\)"
    ):
        parse_params(document, "here")


def test_reading_parameters_loads_nothing_heavy(project):
    code = "import sys; from tcl_core.params import load_params; load_params(sys.argv[1]); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code, project], cwd=ROOT, capture_output=True, text=True, check=True)
    assert not {"torch", "tvm", "transformers", "onnx", "mlflow", "numpy"} & set(done.stdout.split())


def test_a_syntax_error_names_its_line(project):
    edit(project, "  repeats: 3 ", "  repeats: 3: 4 ")
    line = project.read_text().splitlines().index(next(x for x in project.read_text().splitlines() if "3: 4" in x)) + 1
    assert f"{project}, line {line}: not valid YAML" in error_of(project)


@pytest.mark.parametrize("content", [b"", b"just text", b"\xff\xfe\x00", b"- a\n- b\n"])
def test_a_file_that_holds_no_sections(project, content):
    project.write_bytes(content)
    error_of(project)


def test_a_missing_file_says_where_to_run(project):
    project.unlink()
    assert "run in the root of the repository" in error_of(project)


def test_exponents_are_numbers_as_dvc_reads_them(project):
    edit(project, "learning_rate: 0.002", "learning_rate: 2e-3")
    assert load_params(project).train.learning_rate == 0.002


# --- boards and GPUs ---

RPC = "kind: rpc, tracker: 'localhost:9190', key: pi4, mcpu: cortex-a72, threads: 4"


def with_platform(project, platform, design_space="cpu"):
    (project.parent / "profiles/board.yaml").write_text(
        f"platforms: {{board: {{{platform}}}}}\nchain: {{first: board, then: {{}}}}\ncandidates: {{design_space: {design_space}}}\n"
    )
    apply_profile("board", project)
    return load_params(project).platforms["board"]


def test_a_board(project):
    board = with_platform(project, RPC + ", hardware: {memory_gib: 4}")
    assert (board.kind, board.tracker, board.key, board.threads) == ("rpc", "localhost:9190", "pi4", 4)
    assert (board.mcpu, board.hardware) == ("cortex-a72", {"memory_gib": 4.0})
    assert load_params(project).chain_order == ("board",)


@pytest.mark.parametrize("design_space", ["cuda", "cuda-sm80"])
def test_a_gpu(project, design_space):
    assert with_platform(project, "kind: cuda", design_space).mcpu == ""


@pytest.mark.parametrize(
    ("platform", "expected"),
    [
        ("kind: rcp", "unknown platforms.board.kind 'rcp' in "),
        ("hardware: {cores: 2}", "platforms.board is of kind local and lacks 'mcpu'; add it"),
        ("mcpu: haswell, threads: 2", "platforms.board.threads says nothing about kind local; remove it"),
        ("mcpu: haswell, key: pi4", "platforms.board.key says nothing about kind local; remove it"),
        (RPC.replace(", key: pi4", ""), "platforms.board is of kind rpc and lacks 'key'; add it"),
        (RPC.replace(", threads: 4", ""), "platforms.board is of kind rpc and lacks 'threads'; add it"),
        (RPC.replace("localhost:9190", "localhost"), "platforms.board.tracker is 'localhost'; it must be a host and a port"),
        (RPC.replace("9190", "70000"), "platforms.board.tracker is 'localhost:70000'; it must be a host and a port"),
        ("kind: cuda, mcpu: haswell", "platforms.board.mcpu says nothing about kind cuda; remove it"),
        ("kind: cuda", "platforms.board is of kind cuda, but candidates.design_space is cpu, and CPUs and GPUs share no programs"),
    ],
)
def test_a_platform_has_the_keys_of_its_kind(project, platform, expected):
    before = project.read_bytes()
    with pytest.raises(UsageError) as raised:
        with_platform(project, platform)
    assert expected in str(raised.value) and "\n" not in str(raised.value)
    assert project.read_bytes() == before


def test_cpus_do_not_measure_a_gpus_programs(project):
    with pytest.raises(UsageError, match="platforms.board is of kind rpc, but candidates.design_space is cuda"):
        with_platform(project, RPC, "cuda")
    edit(project, "  host-avx2:\n    mcpu: haswell   ", "  host-avx2:\n    kind: cuda      ")
    assert "platforms.host-avx2 is of kind cuda, but candidates.design_space is cpu" in error_of(project)


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("seed: 0 ", "seed: -1 ", "seed is -1; it must be an integer of at least 0 and at most"),
        ("seed: 0 ", "seed: 1.0e+30 ", "seed is 1e+30; it must be an integer"),
        ("seed: 0 ", f"seed: {10**30} ", f"seed is {10**30}; it must be an integer of at least 0 and at most"),
        ("seed: 0 ", f"seed: {'9' * 5000} ", "not valid YAML (Exceeds the limit"),
        ("seed: 0 ", f"seed: 0x{'f' * 5000} ", "seed is a number of 20,000 bits; it must be an integer"),
        ("  bootstrap: 1000 ", "  bootstrap: 100000000000 ", "evaluate.bootstrap is 100000000000; it must be an integer of at least 1 and at most 100000"),
        ("  rounds: 4 ", "  rounds: 1000000000000 ", "collect.rounds is 1000000000000; it must be an integer of at least 1 and at most 10000"),
        ("  timeout_s: 5 ", "  timeout_s: 1.0e+300 ", "measure.timeout_s is 1e+300; it must be a number above 0 and at most 86400"),
        ("  timeout_s: 5 ", f"  timeout_s: 0x{'f' * 5000} ", "measure.timeout_s is a number of 20,000 bits; it must be a number above 0"),
        ("  ensemble: 2 ", "  ensemble: 1000 ", "collect.ensemble is 1000; it must be an integer of at least 1 and at most 100"),
        ("seed: 0 ", "seed: &a 0 ", "line 4: anchors and aliases of YAML are not read here; write the values out"),
        ("\nmeasure:", "\n? [a]\n: b\nmeasure:", "the name ('a',) in '' is no text; put it in quotes"),
        ("seed: 0 ", "\tseed: 0 ", "not valid YAML (found character"),
        ("seed: 0 ", "seed: 2020-99-99 ", "not valid YAML (month must be in 1..12"),
        ("seed: 0 ", f"seed: {'[' * 3000} ", "is nested too deeply to be parameters"),
        ("top_k: [1, 5]", f"top_k: {[[1] * 300]}", "evaluate.top_k[0] is [1, 1, "),
    ],
)  # fmt: skip
def test_values_that_no_run_could_use(project, old, new, expected):
    edit(project, old, new)
    message = error_of(project)
    assert expected in message and message.isprintable() and len(message) < 700


def test_a_few_lines_that_stand_for_gigabytes(project):
    lines = ["a: &a [x, x, x, x, x, x, x, x, x]"]
    lines += [f"{b}: &{b} [{', '.join([f'*{a}'] * 9)}]" for a, b in pairwise("abcdefghij")]
    project.write_text("\n".join(lines))
    assert "line 1: anchors and aliases of YAML are not read here" in error_of(project)


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"# " + b"x" * (1 << 20), "is larger than 1 MiB, so it is no file of parameters"),
        (bytes(range(256)), "is not UTF-8 text"),
        (b"\0" * 100, "not valid YAML"),
        (b"", "holds no sections"),
    ],
)
def test_files_that_are_no_parameters(project, content, expected):
    project.write_bytes(content)
    assert expected in error_of(project)


def test_a_folder_instead_of_parameters(project):
    project.unlink()
    project.mkdir()
    assert "cannot read" in error_of(project)


@pytest.mark.parametrize(
    ("schedule", "told"),
    [
        ('{run: pipeline, cron: "0 99 * * *", timezone: UTC}', "schedules.a.cron is '0 99 * * *', no cron expression (bad hour"),
        (
            '{run: pipeline, cron: "0 2 * * *", timezone: Mars}',
            "schedules.a.cron has the time zone 'Mars', which this system does not know",
        ),
        ('{run: collct, cron: "0 2 * * *", timezone: UTC}', "unknown schedules.a.run 'collct'"),
        ('{run: train, cron: "0 2 * * *", timezone: UTC, platform: host-avx2}', "schedules.a runs 'train' on a platform"),
        ('{run: drift, cron: "0 2 * * *", timezone: UTC, platform: host-avx3}', "did you mean 'host-avx2'?"),
        ('{run: distill, cron: "0 2 * * *", timezone: UTC, platform: host-sse42}', "unknown platform 'host-sse42'"),
        ("{run: drift, timezone: UTC}", "section 'schedules.a' of"),
    ],
)
def test_a_schedule_that_cannot_be_kept_is_refused(project, schedule, told):
    text = project.read_text()
    project.write_text(text[: text.index("\nschedules:")] + f"\nschedules:\n  a: {schedule}\n")
    assert told in error_of(project)


def test_there_may_be_no_schedule(project):
    text = project.read_text()
    project.write_text(text[: text.index("\nschedules:")] + "\nschedules: {}\n")
    assert load_params(project).schedules == {}
