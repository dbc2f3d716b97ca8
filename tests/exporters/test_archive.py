"""Files that are no `.pt2` archive, and archives that are damaged or made to harm: one line each."""

from __future__ import annotations

import json
import os
import pickle
import struct
import tracemalloc
import zipfile
import zlib
from pathlib import Path

import pytest

from graphflops.exporters import archive, load
from tests.exporters.build import PROGRAM, SMALL, program, refused, save
from tests.exporters.zips import Part, packed


def test_missing(tmp_path: Path) -> None:
    assert refused(tmp_path / "no.pt2", "no such file").startswith(str(tmp_path))
    refused(Path("x" * 5000), "name too long")
    refused(Path("a\0b"), "null")


def test_directory(tmp_path: Path) -> None:
    refused(tmp_path, "is a directory")


def test_empty(tmp_path: Path) -> None:
    (tmp_path / "a.pt2").touch()
    refused(tmp_path / "a.pt2", "is empty")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes here")
def test_pipe(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a.pt2")
    refused(tmp_path / "a.pt2", "not a file")


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "git lfs pull"),
        (pickle.dumps({"a": 1}), "pickle"),
        (b"<!DOCTYPE html><html><body>Not found</body></html>", "web page"),
        (b'{"schema": 1, "rows": []}', "JSON"),
        (b"\x08\x08\x12\x07pytorch", "ONNX"),
        (b"\x7fELF\x02\x01", "compiled library"),
        (b"GGUF\x03", "GGUF"),
        (b"\x40\0\0\0\0\0\0\0" + b'{"weight": {}}', "safetensors"),
        (b"hello", "not a .pt2"),
        (b"\0" * 600, "not a .pt2"),
    ],
)
def test_other_files(tmp_path: Path, content: bytes, says: str) -> None:
    (tmp_path / "a.pt2").write_bytes(content)
    refused(tmp_path / "a.pt2", says)


@pytest.mark.parametrize(
    ("members", "says"),
    [
        (["m/data.pkl", "m/data/0"], "checkpoint"),
        (["m/constants.pkl", "m/data.pkl", "m/code/__torch__.py"], "TorchScript"),
        (["m/data/aotinductor/model/a.so"], "AOTInductor"),
        (["data/aotinductor/model/a.so"], "AOTInductor"),
        (["a.txt"], "without an exported program"),
        (["m/models/a/b/model.txt"], "without an exported program"),
    ],
)
def test_other_archives(tmp_path: Path, members: list[str], says: str) -> None:
    with zipfile.ZipFile(tmp_path / "a.pt2", "w") as file:
        for member in members:
            file.writestr(member, b"x")
    refused(tmp_path / "a.pt2", says)


# Damaged and dangerous archives


@pytest.mark.parametrize("kept", [4, 5, 100, 0.1, 0.5, 0.9, -1, -22, -100])
def test_truncated(tmp_path: Path, kept: float) -> None:
    whole = SMALL.read_bytes()
    (tmp_path / "a.pt2").write_bytes(whole[: int(kept * len(whole)) if 0 < kept < 1 else int(kept)])
    refused(tmp_path / "a.pt2", "truncated or damaged")


def test_damaged_member(tmp_path: Path) -> None:
    path = save(tmp_path / "a.pt2", program())
    path.write_bytes(path.read_bytes().replace(b"graph_module", b"graph_modulo", 1))
    refused(path, "model.json is damaged")


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_the_same_member_twice(tmp_path: Path) -> None:
    path = save(tmp_path / "a.pt2", program())
    with zipfile.ZipFile(path, "a") as file:
        file.writestr(PROGRAM, json.dumps(program([])))
    refused(path, "read in two ways", PROGRAM)


# Archives that two readers may read differently

ONE = Part(PROGRAM, json.dumps(program()).encode())
OTHER = Part("m/other", b"other")
NAMED = b"m/named"  # another name of a member, as an extra field
DESCRIPTOR = struct.pack("<3L", zlib.crc32(b"other"), 5, 5)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (packed([ONE, ONE]), "members m/models/model.json and m/models/model.json"),
        (packed([ONE, OTHER._replace(name="m/Models/MODEL.json")]), "m/Models/MODEL.json"),
        (packed([ONE, OTHER._replace(name="m\\models\\model.json")]), "m\\models\\model.json"),
        (packed([ONE, OTHER._replace(name="m/a\0b")]), "can be read in two ways"),
        (packed([ONE], other=[OTHER]), "two end records"),
        (packed([ONE], last=packed([OTHER])), "truncated or damaged"),
        (packed([ONE], last=b"x"), "truncated or damaged"),
        (packed([ONE], comment=packed([OTHER])), "truncated or damaged"),
        (packed([ONE], comment=b"PK\x05\x06" + bytes(18)), "truncated or damaged"),
        (packed([ONE, OTHER._replace(told="m/Other")]), "two names of m/other"),
        (packed([ONE, OTHER._replace(told_size=6)]), "two sizes of m/other"),
        (packed([ONE, OTHER._replace(told_size=0)]), "two sizes of m/other"),
        (packed([ONE, OTHER._replace(gap=b"abc")]), "3 bytes belong to no member"),
        (packed([ONE, OTHER._replace(gap=packed([ONE]))]), "bytes belong to no member"),
        (packed([ONE, OTHER._replace(is_hidden=True)]), "bytes belong to no member"),
        (packed([ONE._replace(is_hidden=True), OTHER]), "bytes belong to no member"),
        (packed([ONE, OTHER._replace(after=DESCRIPTOR)]), "12 bytes belong to no member"),
        (packed([ONE, OTHER._replace(flags=8, after=DESCRIPTOR[::-1])]), "12 bytes belong to no member"),
        (packed([ONE, OTHER._replace(extra=struct.pack("<2HBL", 0x7075, 12, 1, 0) + NAMED)]), "two names"),
        (packed([ONE, OTHER._replace(extra=struct.pack("<2HQ", 1, 8, 5) * 2)]), "two names or sizes"),
        (packed([ONE, OTHER])[: -22 - 5] + packed([])[-22:], "truncated or damaged"),
        (packed([ONE, Part("m/models/model.onnx", b"")]), "m/models/model.json and m/models/model.onnx"),
        (packed([ONE, Part("n/models/model.json", b"")]), "m/models/model.json and n/models/model.json"),
        (packed([ONE, Part("serialized_exported_program.json", b"")]), "serialized_exported_program.json"),
        (
            packed(
                [ONE, *(Part(f"m/data/weights/model{s}", b"{}") for s in (".pt", "_weights_config.json"))]
            ),
            ".pt",
        ),
        (
            packed(
                [ONE, *(Part(f"m/data/constants/model{s}", b"{}") for s in (".pt", "_constants_config.json"))]
            ),
            ".pt",
        ),
    ],
)
def test_archives_that_can_be_read_in_two_ways(tmp_path: Path, content: bytes, says: str) -> None:
    (tmp_path / "a.pt2").write_bytes(content)
    refused(tmp_path / "a.pt2", says, "again")


@pytest.mark.parametrize(
    "content",
    [
        packed([ONE, OTHER], comment=b"a comment"),
        packed([ONE, OTHER._replace(flags=8, told_size=0, after=DESCRIPTOR)]),
        packed([ONE, OTHER._replace(flags=8, after=b"PK\x07\x08" + DESCRIPTOR)]),
        packed([ONE, OTHER._replace(flags=8, after=b"PK\x07\x08" + DESCRIPTOR), ONE._replace(name="m/b")]),
        packed([ONE, OTHER._replace(flags=8, after=struct.pack("<L2Q", zlib.crc32(b"other"), 5, 5))]),
        packed([ONE, Part("m/data/", b""), OTHER._replace(extra=struct.pack("<2HL", 0x5455, 4, 0))]),
    ],
)
def test_what_packers_may_write(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a.pt2").write_bytes(content)
    assert len(load(tmp_path / "a.pt2").nodes) == 1


@pytest.mark.parametrize("member", ["../a.json", "m/../../a", "/etc/passwd", "..\\a", "C:\\a", "m/.."])
def test_members_that_point_outside(tmp_path: Path, member: str) -> None:
    refused(save(tmp_path / "a.pt2", program(), extra={member: b""}), "points outside")


def patched(path: Path, at: int, form: str, value: int) -> Path:
    """Overwrite a field of the last member, in the archive's directory (at this place) and in the member's header."""
    content = bytearray(path.read_bytes())
    struct.pack_into(form, content, content.rfind(b"PK\x01\x02") + at, value)
    struct.pack_into(form, content, content.rfind(b"PK\x03\x04") + at - 2, value)
    path.write_bytes(content)
    return path


def test_a_member_that_claims_gigabytes(tmp_path: Path) -> None:
    tracemalloc.start()
    path = patched(save(tmp_path / "a.pt2", program(), compression=8), 24, "<I", 4_000_000_000)
    refused(path, "claims 4,000,000,000 bytes", seconds=1.0)
    assert tracemalloc.get_traced_memory()[1] < 10_000_000
    tracemalloc.stop()


def test_a_member_that_claims_ten_gigabytes(tmp_path: Path) -> None:
    """Sizes past 4 GB are written in a field of their own."""
    path = tmp_path / "a.pt2"
    data = json.dumps(program()).encode()
    info = zipfile.ZipInfo(PROGRAM)
    info.compress_type = zipfile.ZIP_DEFLATED
    with zipfile.ZipFile(path, "w") as file:
        with file.open(info, "w", force_zip64=True) as stream:
            stream.write(data)
        info.file_size = 10 * 2**30
    content = path.read_bytes()
    at = content.index(struct.pack("<2HQ", 1, 16, len(data)))
    path.write_bytes(content[: at + 4] + struct.pack("<Q", 10 * 2**30) + content[at + 12 :])
    refused(path, "claims 10,737,418,240 bytes", seconds=1.0)


def test_a_zip_bomb(tmp_path: Path) -> None:
    path = save(tmp_path / "a.pt2", b" " * 80_000_000, compression=zipfile.ZIP_DEFLATED)
    assert path.stat().st_size < 100_000
    refused(path, "zip bomb", seconds=1.0)


def test_a_member_that_unpacks_to_more_than_it_claims(tmp_path: Path) -> None:
    path = save(tmp_path / "a.pt2", b" " * 3_000_000, compression=zipfile.ZIP_DEFLATED)
    refused(patched(path, 24, "<I", 1000), "damaged")


def test_a_huge_directory(tmp_path: Path) -> None:
    path = save(tmp_path / "a.pt2", program())
    content = bytearray(path.read_bytes())
    struct.pack_into("<I", content, content.rfind(b"PK\x05\x06") + 12, 3_000_000_000)
    path.write_bytes(content)
    refused(path, "too many")


def test_too_many_members(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archive, "MAX_MEMBERS", 2)
    refused(save(tmp_path / "a.pt2", program(), extra={"m/a": b"", "m/b": b""}), "3 members")


def test_encrypted(tmp_path: Path) -> None:
    refused(patched(save(tmp_path / "a.pt2", program()), 8, "<H", 1), "is encrypted")


def test_unknown_compression(tmp_path: Path) -> None:
    refused(patched(save(tmp_path / "a.pt2", program()), 10, "<H", 99), "cannot be unpacked")


def test_a_member_name_that_is_not_utf8(tmp_path: Path) -> None:
    path = save(tmp_path / "a.pt2", program(), extra={"m/zz": b""})
    content = path.read_bytes().replace(b"m/zz", b"m/\xff\xfe")
    path.write_bytes(content)
    assert len(load(path).nodes) == 1  # an old zip tool's name: nobody asks for it
    refused(patched(path, 8, "<H", 0x800), "damaged")


def test_out_of_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr("graphflops.exporters.pt2.graph_of", full)
    refused(save(tmp_path / "a.pt2", program()), "does not fit in memory")
