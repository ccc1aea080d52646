"""Checksums: what was changed behind our back is noticed, whatever was changed."""

from __future__ import annotations

import numpy as np
import pytest
from safetensors.numpy import load, save

from tcl_core.checked import check_contents, read_json, read_tensors, write_contents, write_json, write_tensors
from tcl_core.errors import DataError, PlatformError, UsageError

FACTS = {"top_1": 0.25, "name": "ä", "none": None, "list": [1, 2.5, {"a": True}]}


def test_json_comes_back_as_it_was(tmp_path):
    path = write_json(tmp_path / "a.json", FACTS | {"nan": float("nan"), "array": np.arange(2), "pair": (1, 2)})
    assert read_json(path, "") == FACTS | {"nan": None, "array": [0, 1], "pair": [1, 2]}
    with pytest.raises(FileNotFoundError):
        read_json(tmp_path / "none.json", "")


def flips(raw: bytes):
    """The bytes with each single bit turned over."""
    for place in range(len(raw)):
        for bit in range(8):
            yield place, raw[:place] + bytes([raw[place] ^ 1 << bit]) + raw[place + 1 :]


def test_no_flipped_bit_of_json_becomes_another_value(tmp_path):
    path = write_json(tmp_path / "a.json", FACTS)
    noticed = 0
    for place, changed in flips(path.read_bytes()):
        path.write_bytes(changed)
        try:
            assert read_json(path, "") == FACTS, place  # white space, say
        except DataError as error:
            noticed += "is damaged" in str(error)
    assert noticed > 1000


def test_no_flipped_bit_of_tensors_is_loaded(tmp_path):
    path = tmp_path / "t.safetensors"
    write_tensors(path, save, {"a": np.arange(3, dtype=np.float32)}, {"format": "1"})
    tensors, facts = read_tensors(path, load, "")
    assert tensors["a"].tolist() == [0, 1, 2] and facts == {"format": "1"}
    for _, changed in flips(path.read_bytes()):
        path.write_bytes(changed)
        with pytest.raises(DataError, match="is damaged"):
            read_tensors(path, load, "")


@pytest.mark.parametrize("raw", [b"", b"{", b"[1]", b'{"a": 1}', b"\xff\xfe", b'{"a":' * 5000])
def test_what_is_none_of_ours_is_damaged(tmp_path, raw):
    (tmp_path / "a").write_bytes(raw)
    with pytest.raises(DataError, match="a is damaged .*; make it anew"):
        read_json(tmp_path / "a", "make it anew")
    with pytest.raises(DataError, match="a is damaged .*; make it anew"):
        read_tensors(tmp_path / "a", load, "make it anew")


def test_what_cannot_be_read_is_not_called_damaged(tmp_path):
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    for path in (tmp_path / "loop", tmp_path):
        with pytest.raises((PlatformError, UsageError), match="cannot read"):
            read_json(path, "")


@pytest.mark.parametrize("change, why", [("swap", "is not as it was written"), ("more", "does not belong there"), ("less", "is missing")])
def test_a_folder_knows_its_files(tmp_path, change, why):
    folder = tmp_path / "model"
    (folder / "base").mkdir(parents=True)
    for name in ("base/x", "y"):
        (folder / name).write_text(name)
    write_contents(folder)
    check_contents(folder, "")
    {"swap": lambda: (folder / "y").write_text("base/x"), "more": lambda: (folder / "z").write_text(""),
     "less": lambda: (folder / "base/x").unlink()}[change]()  # fmt: skip
    with pytest.raises(DataError, match=rf"model is damaged \(.* {why}\); train again"):
        check_contents(folder, "train again")
