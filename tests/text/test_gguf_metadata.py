"""The metadata of GGUF files: what the gguf package reads, and clear errors for damaged files."""

from __future__ import annotations

from pathlib import Path

import gguf
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from trifolium.errors import CheckpointError, CorruptFileError, NotFoundError, UnsupportedModelError
from trifolium.text import read_metadata


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("gguf") / "all.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_uint8("a.u8", 200)
    writer.add_int8("a.i8", -3)
    writer.add_uint16("a.u16", 60_000)
    writer.add_int16("a.i16", -300)
    writer.add_uint32("a.u32", 2**32 - 1)
    writer.add_int32("a.i32", -(2**31))
    writer.add_uint64("a.u64", 2**64 - 1)
    writer.add_int64("a.i64", -(2**63))
    writer.add_float32("a.f32", 0.5)
    writer.add_float64("a.f64", 0.1)
    writer.add_bool("a.bool", True)
    writer.add_string("a.text", "é👍\n")
    writer.add_array("a.texts", ["", "x", "ü"])
    writer.add_array("a.numbers", [1, -2, 3])
    writer.add_array("a.floats", [0.25, -1.5])
    writer.add_array("a.bools", [True, False])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_every_type_reads_as_in_the_gguf_package(written: Path) -> None:
    theirs = {key: field.contents() for key, field in gguf.GGUFReader(written).fields.items()}
    ours = read_metadata(written)
    assert ours == {key: value for key, value in theirs.items() if not key.startswith("GGUF.")}
    assert ours["a.text"] == "é👍\n"
    assert ours["a.texts"] == ["", "x", "ü"]
    assert len(ours) == 17


def test_every_truncation_is_an_error(written: Path, tmp_path: Path) -> None:
    content = written.read_bytes()
    end = content.rindex(b"a.bools") + len(b"a.bools") + 4 + 4 + 8 + 2
    assert read_metadata(write(tmp_path, content[:end])) == read_metadata(written)
    for length in range(end):
        with pytest.raises(CorruptFileError, match=r"cut\.gguf"):
            read_metadata(write(tmp_path, content[:length]))


def write(folder: Path, content: bytes) -> Path:
    (folder / "cut.gguf").write_bytes(content)
    return folder / "cut.gguf"


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(place=st.integers(4, 700), value=st.integers(0, 255), width=st.integers(1, 8))
def test_damage_is_an_error_or_other_values(written: Path, tmp_path: Path, place: int, value: int, width: int) -> None:
    content = bytearray(written.read_bytes())
    content[place : place + width] = bytes([value]) * width
    try:
        read_metadata(write(tmp_path, bytes(content)))
    except CheckpointError as error:
        assert str(error)


def test_other_files_are_named(written: Path, tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="nowhere"):
        read_metadata(tmp_path / "nowhere")
    with pytest.raises(CorruptFileError, match="not a GGUF file"):
        read_metadata(write(tmp_path, b"PK" + b"\0" * 100))
    content = written.read_bytes()
    with pytest.raises(UnsupportedModelError, match="version 16777216"):
        read_metadata(write(tmp_path, content[:4] + b"\1\0\0\0"[::-1] + content[8:]))
