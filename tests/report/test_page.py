"""The page of a run as a reader finds it: its figures, no markup but its own, nothing fetched, legible light and dark."""

from __future__ import annotations

import re
import shutil
import subprocess

import made_up
import pytest

from tcl_core.report import charts
from tcl_core.report.compare import compare
from tcl_core.report.page import page_of, provenance
from tcl_core.report.parts import duration, interval, milliseconds, number, short
from tcl_core.report.render import render
from tests.report import page_reader
from tests.report.page_reader import HOSTILE, Reader, without

undrawn = page_reader.undrawn


@pytest.fixture(scope="module")
def page() -> str:
    return render(page_of(made_up.run()))


@pytest.fixture(scope="module")
def read(page) -> Reader:
    return Reader(page)


# --- figures ---


def test_the_page_begins_with_what_one_wants_to_know_first(read):
    top = " ".join(read.sections[""].split())
    assert "TCL: small measured from 2026-11-22 12:00:05 to 2026-11-22 12:08:41 UTC" in top
    assert "12.4 ms resnet-18, tuned on host-avx512 1.31 times as fast as PyTorch eager (16.3 ms)".replace(" ", "") in top.replace(" ", "")
    assert "0.546top-1 on host-avx512a random ranking: 0.182" in top and "1,200programs measuredon 3 platforms" in top
    assert "9.2 minin stages" in top and "champion: version 3" in top and "160 programs measured, 240 held out" in top


def test_accuracy_stands_beside_its_peers_with_intervals(read):
    rows = read.tables["Accuracy on held-out programs; 1 is best"]
    assert rows[0] == ["platform", "model", "top-1 (95 % interval)", "top-5 (95 % interval)", "pairs", "Spearman", "tasks", "programs"]
    assert [row[:2] for row in rows[1:4]] == [["host-sse42", name] for name in ("TCL", "xgboost", "random ranking")]
    assert rows[4] == ["host-avx2", "TCL", "0.614 (0.514 to 0.714)", "0.986 (0.966 to 1.000)", "0.727", "0.600", "24", "240"]
    assert [row[1] for row in rows[4:9]] == ["TCL", "zero-shot", "own data only", "xgboost", "random ranking"]
    assert rows[8][2:6] == ["0.300 (0.100 to 0.500)", "0.750 (0.500 to 0.900)", "0.500", "0.000"]
    drawn = read.sections["accuracy"]
    assert all(text in drawn for text in ("Top-1", "Top-5", "Pairs ranked right", "0.546", "zero-shot", "host-avx512"))


def test_the_matrix_shows_what_was_forgotten(read):
    rows = read.tables["Pairs ranked right, of each platform's model"]
    assert rows[1:] == [
        ["host-sse42", "0.808", "0.584", "0.402"],
        ["host-avx2", "0.801", "0.614", "0.431"],
        ["host-avx512", "0.790", "0.609", "0.546"],
        ["forgotten", "0.018", "0.005", "0.000"],
    ]
    tinted = [cell["style"] for cell in read.all("td") if "style" in cell]
    assert tinted[0] == "background: color-mix(in srgb, var(--s1) 44%, transparent)"  # 55 % of 0.808


def test_curves_collection_errors_noise_and_time(read):
    assert ["host-avx2", "learning the platform (CL)", "3", "0.5000", "0.1667"] in read.tables["Loss of each phase"]
    assert read.tables["Programs measured in each round"][1] == ["host-sse42", "0", "52", "27", "1", "0.610"]
    assert read.tables["Covered"][1] == ["host-sse42", "160", "1,600", "10.0 %", "39 of 40", "1 to 17"]
    assert read.tables["Covered, by operator type"][1] == ["host-sse42", "conv2d", "92", "900", "10.2 %"]
    assert read.tables["Candidates by how they ended"][1:3] == [
        ["host-sse42", "training", "160", "157", "3"],
        ["host-sse42", "held-out", "240", "240", "0"],
    ]
    assert "host-sse42: timeout" in read.sections["errors"].replace("…", "")
    assert read.tables["Noise"][1] == ["host-sse42", "397", "4.2", "1.1 %", "1.9 %", "2.1 %", "7"]
    times = read.tables["Time of each stage's last run"]
    assert times[1] == ["tasks", "86.5", "15.7 %"] and times[-1] == ["all", "551.8", ""]


def test_tuning_stands_beside_pytorch_and_untuned(read):
    assert read.tables["One inference"][1:] == [
        ["tuned", "12.4 ms", "12.0 ms to 13.1 ms", "–", "2.5e-07"],
        ["PyTorch eager", "16.3 ms", "16.1 ms to 18.2 ms", "0.76 (0.75 to 0.78)", "2.5e-07"],
        ["torch.compile", "22.1 ms", "22.0 ms to 23.4 ms", "0.57 (0.55 to 0.62)", "2.5e-07"],
        ["untuned", "2,745 ms", "–", "–", "–"],
    ]
    text = read.sections["tuning"]
    assert "champion version 3: 200 programs of 2 tasks in 56 s" in text and "programs measured" in text
    assert read.tables["Tasks of the network, the costliest first"][1:] == [
        ["fused_conv2d_add_relu", "2", "0.640 ms", "100.0 %", "120"],
        ["transpose", "1", "–", "0.0 %", "80"],
    ]


def test_the_page_says_where_it_comes_from_and_what_it_lacks(read):
    assert read.tables["Models"][1] == ["host-sse42", "distill@host-sse42", "0123456789ab", "as committed", "a CPU x2"]
    assert ["torch", "2.13.0"] in read.tables["Versions"]
    assert read.tables["Parameters that differ from the committed ones"][1:] == [["train.epochs", "30", "60"]]
    assert ["networks.train", "resnet-50"] in read.tables["All parameters"]
    assert read.tables["Left out"][1:] == [["torch.compile", "it failed"]]


def test_figures_of_another_model_are_said_to_be_so_at_the_top(read, undrawn):
    found = without(stale=["host-avx2"]).sections[""]
    assert "The accuracy of host-avx2 is that of another model" in found and "another model" not in read.sections[""]


def test_a_chain_that_branches_says_who_learns_from_whom(read, undrawn):
    run = made_up.run()
    assert "learns from" not in read.sections[""]
    assert "learns from host-sse42" in without(chain=[*run["chain"][:2], run["chain"][2] | {"previous": "host-sse42"}]).sections[""]


# --- what may be missing ---


@pytest.mark.parametrize(
    ("part", "section"),
    [("evaluation", "accuracy"), ("learning", "learning"), ("collection", "collection"), ("errors", "errors"), ("noise", "noise"),
     ("seconds", "time"), ("made", "provenance"), ("tuned", "tuning")],
)  # fmt: skip
def test_each_part_may_be_missing(read, undrawn, part, section):
    assert section in read.sections
    assert set(read.sections) - set(without(**{part: {}}).sections) - {"forgetting"} == {section}


# --- what a page must never be ---


def renamed(value, name: str):
    """All that a user or a file names, called otherwise."""
    ours = {
        "evaluation",
        "learning",
        "collection",
        "errors",
        "noise",
        "tuned",
        "seconds",
        "made",
        "left_out",
        "chain",
        "compared",
        "systems",
    }
    if isinstance(value, dict):
        foreign = set(made_up.PLATFORMS) | {"xgboost", "conv2d", "train.epochs"}
        return {f"{key}{name}" if key in foreign else key: renamed(item, name) for key, item in value.items()}
    if isinstance(value, list):
        return [renamed(item, name) for item in value]
    return f"{value}{name}" if isinstance(value, str) and value not in ours else value


def test_no_name_becomes_markup(read):
    run = renamed(made_up.run(), HOSTILE)
    for page in (page_of(run), compare(run, run, (HOSTILE, HOSTILE))):
        text = render(page)
        found = Reader(text)
        assert not found.all("script") and not found.all("img") and len(found.all("style")) == 1
        assert not [a for _, attributes in found.elements for a in attributes if a.startswith("on")]
        assert text.count("</svg>") == len(found.all("svg")) and text.count("</style>") == 1
        assert any(HOSTILE in cell for rows in found.tables.values() for row in rows for cell in row)
    assert {name for name, _ in found.elements} <= {name for name, _ in read.elements} | {"circle", "title"}


def test_nothing_is_fetched(page, read):
    assert "default-src 'none'" in next(m["content"] for m in read.all("meta") if m.get("http-equiv") == "Content-Security-Policy")
    for name, attributes in read.elements:
        for key in ("src", "href", "data", "action", "srcset"):
            assert attributes.get(key, "#").startswith(("#", "data:,")), (name, attributes)
    assert not re.search(r"url\((?!#)|@import|https?:(?!//www\.w3\.org)", page)


def test_what_a_chart_refers_to_is_there_once(read):
    names = [attributes["id"] for _, attributes in read.elements if "id" in attributes]
    assert len(names) == len(set(names)) > 50
    asked = {attributes["href"][1:] for name, attributes in read.elements if attributes.get("href", "").startswith("#")}
    asked |= {found for _, attributes in read.elements for value in attributes.values() for found in re.findall(r"url\(#([^)]*)\)", value)}
    assert asked <= set(names)


def test_every_chart_says_what_it_shows(page, read):
    charts_ = read.all("svg")
    assert len(charts_) == len(read.all("figure")) == 14
    for chart in charts_:
        assert chart["role"] == "img" and chart["aria-labelledby"].endswith("-title") and "width" not in chart
    assert len(re.findall(r"<title id=[^>]*>[^<]{12,}</title>", page)) == page.count("<title id=") == len(charts_)
    assert len(read.all("text")) > 100  # text stays text


def test_charts_take_their_colours_from_the_page(page):
    body = page.split("</style>")[1]
    assert "var(--s1)" in body and "var(--ink)" in body
    assert not re.search(r"#[0-9a-f]{6}\b", body.replace("&#", ""))
    assert "font-family" not in body


def test_the_same_figures_give_the_same_page(page):
    assert render(page_of(made_up.run())) == page
    assert len(page) < 600_000


def luminance(colour: str) -> float:
    channels = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("scheme", [0, 1], ids=["light", "dark"])
def test_colours_are_legible_on_their_ground(page, scheme):
    """Contrast by WCAG 2: 4.5 for text, 3 for what is drawn."""
    block = re.findall(r":root \{(.*?)\}", page, re.DOTALL)[scheme]
    colours = dict(re.findall(r"--(\w+): (#[0-9a-f]{6})", block))

    def contrast(one: str, other: str) -> float:
        low, high = sorted((luminance(colours[one]), luminance(colours[other])))
        return (high + 0.05) / (low + 0.05)

    for text in ("ink", "faint", "better", "worse", "s1"):
        assert contrast(text, "card") >= 4.5 and contrast(text, "page") >= 4.5, text
    for series in (f"s{place}" for place in range(1, 9)):
        assert contrast(series, "card") >= 3, series


# --- small things ---


def test_figures_are_written_as_people_read_them():
    assert [milliseconds(ms) for ms in (2745.03, 12.44, 1.234, 0.4807, 0.00762, None)] == [
        "2,745 ms",
        "12.4 ms",
        "1.23 ms",
        "0.481 ms",
        "0.0076 ms",
        "–",
    ]
    assert [duration(s) for s in (4.52, 86.5, 893, 9000, None)] == ["4.5 s", "86 s", "14.9 min", "2.5 h", "–"]
    assert number(float("nan")) == "–" and interval({"value": 0.5}) == "0.500" and interval(None) == "–"
    assert short("a\x1b[31m\udce9") == "a\\x1b[31m\\udce9"
    assert short("networks/a-very-long-name-of-a-file.onnx") == "networks/a-ve…ile.onnx" and short("host-avx2") == "host-avx2"


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        (None, "–"),
        (False, "as committed"),
        ([], "as committed"),
        (True, "changed since"),
        (["tcl_core/chain/ckd.py"], "changed since: tcl_core/chain/ckd.py"),
    ],
)
def test_a_model_says_which_code_made_it(changed, said):
    """As provenance.json has it now, and as it had it before names were kept."""
    run = made_up.run()
    for made in run["made"]["models"].values():
        made["code"]["changed"] = changed
    models = next(table for table in provenance(run).tables if table.caption == "Models")
    assert {row[3] for row in models.rows} == {said}


@pytest.mark.parametrize("rounds", [[0], list(range(40))])
def test_a_collection_of_any_number_of_rounds_can_be_drawn(rounds):
    drawn = charts.stacks("n", "a chart of rounds", rounds, {"conv2d": (1, [3.0] * len(rounds))}, "round", "programs")
    shown = [int(text) for text in re.findall(r">(\d+)</text>", drawn)]
    assert 0 in shown and len(set(shown) & set(rounds)) <= 9


@pytest.mark.parametrize(("slowest", "ticks"), [(3.0, {"0.0", "1.0", "2.0"}), (900.0, {"1", "10", "100"})])
def test_rounds_far_apart_are_drawn_on_a_logarithmic_axis(slowest, ticks):
    drawn = charts.scatters("n", "a chart of rounds", [charts.Repeated("eager", [1.0, 1.1, slowest], 1.1, 2, "1.10 ms")], "ms")
    texts = re.findall(r">([^<]+)</text>", drawn)
    assert ticks <= set(texts) and {"eager", "1.10 ms", "ms"} <= set(texts)


# --- in a browser ---

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))), None)
WIDTHS = "<script>document.title = document.documentElement.scrollWidth + ' of ' + innerWidth</script>"


@pytest.mark.skipif(BROWSER is None, reason="there is no Chromium here")
@pytest.mark.parametrize("width", [390, 1280])
def test_the_page_is_as_wide_as_the_window(page, tmp_path, width):
    """A frame has the width of a phone, which no window of Chromium can have."""
    policy = re.compile(r'<meta http-equiv="Content-Security-Policy"[^>]*>')
    (tmp_path / "page.html").write_text(
        policy.sub("", page).replace("</body>", f"{WIDTHS.replace('document.title', 'parent.document.title')}</body>")
    )
    (tmp_path / "frame.html").write_text(
        f'<title>none</title><iframe src="page.html" style="border: 0; width: {width}px; height: 900px"></iframe>'
    )
    command = [BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--allow-file-access-from-files", f"--user-data-dir={tmp_path / 'profile'}",
               "--window-size=1400,1000", "--virtual-time-budget=5000", "--dump-dom", (tmp_path / "frame.html").as_uri()]  # fmt: skip
    shown = subprocess.run(command, capture_output=True, text=True, timeout=120).stdout
    wide, window = map(int, re.search(r"<title>(\d+) of (\d+)</title>", shown).groups())
    assert wide <= window == width
