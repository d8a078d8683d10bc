"""The safetensors reader and writer: against the safetensors library, and against everything a file can do wrong."""

from __future__ import annotations

import gc
import json
import os
import weakref
from pathlib import Path

import numpy as np
import pytest
import safetensors
import safetensors.numpy
from hypothesis import given
from hypothesis import strategies as st

import nbxtensor.interop.safetensors as reader
from nbxtensor import host
from nbxtensor.dtype import DTYPES, convert, dtype
from nbxtensor.errors import ArgumentError, DTypeError, FileFormatError, NBXError

STORABLE = [d for d in DTYPES.values() if d.safetensors]


def example(name: str, shape: tuple[int, ...] = (3, 5)) -> np.ndarray:
    """Random bits of a dtype, NaN included; bools are 0 and 1."""
    kind = dtype(name)
    raw = np.random.default_rng(len(name)).integers(0, 2 if name == "bool" else 256, (*shape, kind.itemsize), np.uint8)
    return raw.reshape(-1).view(kind.numpy).reshape(shape)


def examples() -> dict[str, np.ndarray]:
    tensors = {f"all.{kind}": example(kind) for kind in STORABLE}
    shapes = {"scalar": np.array(1.5, np.float32), "empty": np.zeros((0, 4), np.float16), "Ünïcode 名 😀": np.arange(7)}
    return {**tensors, **shapes}


def file_of(header: object, data: bytes = b"") -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


def tensor(kind: object = "F32", shape: object = (2,), offsets: object = (0, 8)) -> dict[str, object]:
    return {"dtype": kind, "shape": shape, "data_offsets": offsets}


@pytest.fixture
def path(tmp_path):
    return tmp_path / "file.safetensors"


# Together with the safetensors library


def test_reads_what_the_library_writes(path):
    written = examples()
    safetensors.numpy.save_file(written, path, {"format": "np", "note": "ü"})
    with reader.open(path) as file:
        assert file.metadata == {"format": "np", "note": "ü"}
        assert set(file) == set(written) and len(file) == len(written)
        for name, array in written.items():
            assert file.entries[name].dtype.numpy == array.dtype == file[name].dtype
            assert file.entries[name].shape == array.shape == file[name].shape
            assert file[name].tobytes() == array.tobytes()


def test_the_library_reads_what_is_written(path):
    written = examples()
    reader.save(path, written, {"note": "ü"})
    with safetensors.safe_open(path, "np") as file:
        assert file.metadata() == {"note": "ü"}
    read = dict(safetensors.deserialize(path.read_bytes()))
    assert set(read) == set(written)
    for name, array in written.items():
        assert dtype(array.dtype).safetensors == read[name]["dtype"]
        assert (list(array.shape), array.tobytes()) == (read[name]["shape"], bytes(read[name]["data"]))


def test_writes_any_strides_and_nothing_at_all(path):
    source = example("float32", (6, 4))
    reader.save(path, {"t": source.T, "step": source[::2, ::-1]})
    with reader.open(path) as file:
        assert np.array_equal(file["t"].view("u4"), source.T.copy().view("u4"))
        assert np.array_equal(file["step"].view("u4"), source[::2, ::-1].copy().view("u4"))
    reader.save(path, {})
    assert dict(reader.open(path)) == {} and safetensors.numpy.load_file(path) == {}


# The map


def test_tensors_lie_on_the_map_and_cannot_be_written(path):
    reader.save(path, examples())
    with reader.open(path) as file:
        for name in file:
            assert not file[name].flags.writeable
            assert file[name].size == 0 or np.shares_memory(file[name], file[name])
            assert file[name].flags.aligned
        with pytest.raises(ValueError, match="read-only"):
            file["scalar"][...] = 0


def test_a_tensor_outlives_the_file_and_the_map_goes_with_it(path):
    reader.save(path, {"a": np.arange(1000)})
    with reader.open(path) as file:
        array = file["a"]
        raw = weakref.ref(file._data)
    os.remove(path)
    gc.collect()
    assert np.array_equal(array, np.arange(1000))
    with pytest.raises(ArgumentError, match="is closed"):
        file["a"]
    file.close()
    assert "closed" in repr(file)
    del array
    gc.collect()
    assert raw() is None


def test_unknown_names(path):
    reader.save(path, {"a": np.arange(3)})
    with reader.open(path) as file:
        assert "b" not in file and file.get("b") is None
        with pytest.raises(KeyError, match="b"):
            file["b"]


@pytest.mark.parametrize("shift", range(8))
def test_a_misaligned_tensor_is_copied_and_right(path, shift):
    header = json.dumps({"a": tensor("F64", (3,), (0, 24))}).encode()
    header += b" " * (-len(header) % 8 + shift)
    path.write_bytes(file_of(header, np.arange(3.0).tobytes()))
    with reader.open(path) as file:
        assert file["a"].flags.aligned and not file["a"].flags.writeable
        assert np.array_equal(file["a"], np.arange(3.0))
        assert np.shares_memory(file["a"], file["a"]) == (shift == 0)


# What a file can do wrong

FAULTS = {
    "not UTF-8": (file_of(b'{"\xff": 1}'), "not UTF-8"),
    "not JSON": (file_of(b"{"), "not JSON"),
    "byte order mark": (file_of(b"\xef\xbb\xbf{}"), "not JSON"),
    "no header": (file_of(b""), "not JSON"),
    "list": (file_of([]), "a JSON list, not an object"),
    "number": (file_of(1), "a JSON int, not an object"),
    "NaN": (file_of(b'{"__metadata__": NaN}'), "NaN is no number"),
    "nested": (file_of(b"[" * 200_000), "nested too deeply"),
    "key twice": (file_of(b'{"a":{"dtype":"F32","shape":[0],"data_offsets":[0,0]},"a":{}}'), "the key 'a' twice"),
    "field twice": (file_of(b'{"a":{"dtype":"F32","dtype":"F16"}}'), "the key 'dtype' twice"),
    "half a surrogate pair": (file_of(b'{"\\ud800":{}}'), "not Unicode"),
    "metadata list": (file_of({"__metadata__": []}), "__metadata__ is not an object of strings"),
    "metadata number": (file_of({"__metadata__": {"a": 1}}), "__metadata__ is not an object of strings"),
    "tensor null": (file_of({"a": None}), "tensor 'a' is not an object with"),
    "no offsets": (file_of({"a": {"dtype": "F32", "shape": [2]}}, bytes(8)), "not an object with dtype, shape"),
    "unknown dtype": (file_of({"a": tensor("F33")}, bytes(8)), "the dtype 'F33', which"),
    "dtype list": (file_of({"a": tensor(["F32"])}, bytes(8)), "the dtype .*F32.*, which"),
    "shape number": (file_of({"a": tensor(shape=2)}, bytes(8)), "the shape 2, not a list"),
    "negative size": (file_of({"a": tensor(shape=[-2])}, bytes(8)), r"the shape \[-2\], not a list"),
    "minus zero": (file_of(b'{"a":{"dtype":"F32","shape":[-0],"data_offsets":[0,0]}}'), "-0 is no integer"),
    "fraction": (file_of({"a": tensor(shape=[2.0])}, bytes(8)), r"the shape \[2.0\], not a list"),
    "bool size": (file_of({"a": tensor(shape=[True, 2])}, bytes(8)), r"the shape \[True, 2\], not a list"),
    "huge size": (file_of({"a": tensor(shape=[2**63])}, bytes(8)), "the shape .* not a list"),
    "huger size": (file_of(b'{"a":{"dtype":"F32","shape":[%s]}}' % (b"9" * 5000)), "no integer of 64 bits"),
    "overflow": (file_of({"a": tensor(shape=[2**32, 2**32])}, bytes(8)), "overflows 64 bits"),
    "overflow with 0": (file_of({"a": tensor(shape=[0, 2**61, 8], offsets=(0, 0))}), "overflows 64 bits"),
    "dimensions": (file_of({"a": tensor(shape=[1] * 65, offsets=(0, 4))}, bytes(4)), "65 dimensions; at most"),
    "one offset": (file_of({"a": tensor(offsets=[0])}, bytes(8)), r"the data_offsets \[0\], not"),
    "negative offset": (file_of({"a": tensor(offsets=[-8, 0])}, bytes(8)), r"the data_offsets \[-8, 0\], not"),
    "reversed": (file_of({"a": tensor(offsets=[8, 0])}, bytes(8)), r"the data_offsets \[8, 0\], not"),
    "size differs": (file_of({"a": tensor(shape=[3])}, bytes(8)), "has 8 bytes; float32 of shape .3. takes 12"),
    "overlap": (file_of({"a": tensor(), "b": tensor(offsets=(4, 12))}, bytes(12)), "instead of 8: it overlaps"),
    "same place": (file_of({"a": tensor(), "b": tensor()}, bytes(8)), "instead of 8: it overlaps"),
    "hole": (file_of({"a": tensor(), "b": tensor(offsets=(9, 17))}, bytes(17)), "instead of 8: it leaves a hole"),
    "hole at the start": (file_of({"a": tensor(offsets=(1, 9))}, bytes(9)), "instead of 0: it leaves a hole"),
    "truncated": (file_of({"a": tensor()}, bytes(7)), "take 8 bytes; 7 follow the header: the file is truncated"),
    "too long": (file_of({"a": tensor()}, bytes(9)), "take 8 bytes; 9 follow the header"),
    "empty file": (b"", "has 0 bytes"),
    "seven bytes": (bytes(7), "has 7 bytes"),
    "header past the end": ((3).to_bytes(8, "little") + b"{}", "states a header of 3 bytes; 2 follow"),
    "header past the limit": (b"\xff" * 8 + b"{}", "states a header of 18446744073709551615 bytes; the format allows"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_named(path, fault):
    content, rule = FAULTS[fault]
    path.write_bytes(content)
    with pytest.raises(FileFormatError, match=rule) as caught:
        reader.open(path)
    assert (caught.value.where, caught.value.argument) == ("safetensors.open", "path")
    assert str(path) in str(caught.value)
    assert len(str(caught.value)) < 600


@pytest.mark.parametrize("fault", FAULTS)
def test_the_library_refuses_what_is_refused(fault):
    ours_alone = {"dimensions", "overflow with 0"}  # numpy's limits; the format has none
    if fault in ours_alone:
        safetensors.deserialize(FAULTS[fault][0])
    else:
        with pytest.raises(safetensors.SafetensorError):
            safetensors.deserialize(FAULTS[fault][0])


def test_what_is_no_file(path, tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for no_file, rule in [
        (tmp_path, "is not a regular file"),
        (tmp_path / "pipe", "is not a regular file"),
        (path, "cannot be read: No such file"),
        (f"{path}\0", "cannot be read"),
    ]:
        with pytest.raises(FileFormatError, match=rule):
            reader.open(no_file)


def test_a_bool_is_0_or_1(path):
    path.write_bytes(file_of({"a": tensor("BOOL", (2,), (0, 2)), "b": tensor("BOOL", (1,), (2, 3))}, b"\0\2\1"))
    with reader.open(path) as file:
        assert file["b"].tolist() == [True]
        with pytest.raises(FileFormatError, match="'a' holds a bool that is neither 0 nor 1"):
            file["a"]


def test_a_file_cut_anywhere_is_refused(path):
    reader.save(path, {"a": np.arange(3, dtype=np.int16), "b": np.ones(2, np.float32)}, {"k": "v"})
    whole = path.read_bytes()
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        with pytest.raises(FileFormatError):
            reader.open(path)


def ours(content: bytes, path) -> dict[str, bytes] | None:
    path.write_bytes(content)
    try:
        with reader.open(path) as file:
            return {name: array.tobytes() for name, array in file.items()}
    except FileFormatError:
        return None


def theirs(content: bytes) -> dict[str, bytes] | None:
    try:
        return {name: bytes(value["data"]) for name, value in safetensors.deserialize(content)}
    except safetensors.SafetensorError:
        return None


@pytest.fixture(scope="module")
def scratch(tmp_path_factory):
    return tmp_path_factory.mktemp("scratch") / "file.safetensors"


@given(content=st.binary(max_size=64), header=st.booleans())
def test_random_bytes_are_read_as_the_library_reads_them(scratch, content, header):
    content = file_of(content) if header else content
    assert ours(content, scratch) == theirs(content)


VALID = file_of(
    {"a": tensor("U8", [2, 3], [0, 6]), "bc": tensor("F32", [], [6, 10]), "__metadata__": {"k": "v"}}, bytes(10)
)


@given(
    where=st.integers(0, len(VALID) - 1),
    remove=st.integers(0, 3),
    insert=st.one_of(st.binary(max_size=3), st.text('0123456789[]{}",:-.eEtrufalsn\\ ', max_size=3).map(str.encode)),
    adjust=st.booleans(),
)
def test_mutated_files_are_read_as_the_library_reads_them(scratch, where, remove, insert, adjust):
    content = VALID[:where] + insert + VALID[where + remove :]
    if adjust and where >= 8:  # the length still fits, so that the change reaches the parser
        length = len(content) - 10
        content = max(length - 8, 0).to_bytes(8, "little") + content[8:]
    assert ours(content, scratch) == theirs(content)


offset_values = st.one_of(st.integers(-1, 16), st.sampled_from([2**31, 2**32, 2**63, 2**64, 1.0, True, None, "1"]))
headers = st.dictionaries(
    st.sampled_from(["a", "b", "c", ""]),
    st.fixed_dictionaries(
        {
            "dtype": st.sampled_from(["U8", "I16", "F32", "BOOL", "C64", "u8", None, 1]),
            "shape": st.lists(st.one_of(st.integers(0, 3), offset_values), max_size=3),
            "data_offsets": st.lists(offset_values, min_size=1, max_size=3),
        },
        optional={"strides": st.just([1])},
    ),
    max_size=3,
)


@given(header=headers, data=st.integers(0, 16))
def test_generated_headers_are_read_as_the_library_reads_them(scratch, header, data):
    content = file_of(header, bytes(data))
    assert ours(content, scratch) == theirs(content)


layouts = st.lists(
    st.tuples(st.sampled_from(STORABLE), st.lists(st.integers(0, 3), max_size=3).map(tuple)), min_size=1, max_size=5
)


@given(layout=layouts)
def test_what_is_written_is_read(scratch, layout):
    written = {f"{i}": example(kind, shape) for i, (kind, shape) in enumerate(layout)}
    reader.save(scratch, written)
    with reader.open(scratch) as file:
        assert {name: (a.dtype, a.shape, a.tobytes()) for name, a in file.items()} == {
            name: (a.dtype, a.shape, a.tobytes()) for name, a in written.items()
        }
        assert all(np.shares_memory(a, file._data) for a in file.values() if a.size)
    assert theirs(scratch.read_bytes()) == {name: a.tobytes() for name, a in written.items()}


# Writing


def test_refusals_of_the_writer(path):
    for tensors, metadata, error, rule in [
        ({"a": np.zeros(2, np.complex128)}, None, DTypeError, "the format has no such dtype"),
        ({"a": np.zeros(2, ">f4")}, None, DTypeError, "byte order"),
        ({"a": np.array([{}])}, None, DTypeError, "objects"),
        ({1: np.zeros(2)}, None, ArgumentError, "tensors=1: names and metadata are strings"),
        ({"\ud800": np.zeros(2)}, None, ArgumentError, "tensors=.*Unicode"),
        ({"__metadata__": np.zeros(2)}, None, ArgumentError, "the format's own name"),
        ({"a": np.zeros(2)}, {"n": 1}, ArgumentError, "metadata=1: names and metadata are strings"),
    ]:
        with pytest.raises(error, match=rule):
            reader.save(path, tensors, metadata)
    assert list(path.parent.iterdir()) == []


def test_a_failed_write_leaves_the_old_file_and_nothing_else(path, monkeypatch):
    reader.save(path, {"a": np.arange(3)})
    before = path.read_bytes()

    def fail(*_):
        raise OSError(28, "No space left on device")

    for name in ("fsync", "replace"):
        with monkeypatch.context() as patch:
            patch.setattr(os, name, fail)
            with pytest.raises(OSError, match="No space"):
                reader.save(path, {"a": np.arange(4)})
    assert path.read_bytes() == before
    assert list(path.parent.iterdir()) == [path]
    with pytest.raises(FileNotFoundError):
        reader.save(path.parent / "absent" / "file", {"a": np.arange(4)})


def test_an_open_file_may_be_replaced(path):
    reader.save(path, {"a": np.arange(3)})
    with reader.open(path) as file:
        reader.save(path, {"a": file["a"] + 1})
        assert file["a"].tolist() == [0, 1, 2]
    with reader.open(path) as file:
        assert file["a"].tolist() == [1, 2, 3]
        assert path.stat().st_mode & 0o777 == 0o666 & ~umask()


def umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def test_data_begins_aligned_and_so_does_every_tensor(path):
    tensors = {"odd": np.ones(3, np.uint8), "wide": np.ones(3), "half": np.ones(5, np.float16)}
    reader.save(path, tensors)
    with reader.open(path) as file:
        assert list(file) == ["wide", "half", "odd"]
        start = int.from_bytes(path.read_bytes()[:8], "little") + 8
        assert start % reader.DATA_ALIGNMENT == 0
        for entry in file.entries.values():
            assert entry.begin % entry.dtype.itemsize == 0


# Upload


def mapped(path, address: int) -> bool:
    """Whether the address lies on a memory map of the file, by the kernel's own account."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        span, *_, name = line.split(maxsplit=5)
        low, high = (int(end, 16) for end in span.split("-"))
        if low <= address < high:
            return name == str(path)
    return False


def test_load_leaves_tensors_on_the_map_of_a_host_device(path):
    written = {"f": example("float32"), "h": example("bfloat16"), "i": np.arange(5), "b": np.array([True, False])}
    reader.save(path, {**written, "empty": np.zeros((0, 2), np.float32)})
    loaded = reader.load(path, "cpu")
    gc.collect()
    assert loaded["empty"].shape == (0, 2)
    for name, array in written.items():
        assert loaded[name].dtype.numpy == array.dtype and loaded[name].shape == array.shape
        assert loaded[name].numpy().tobytes() == array.tobytes()
        assert mapped(path, loaded[name].data_ptr())
        with pytest.raises(NBXError, match="read-only"):
            loaded[name].fill_(0)


def test_load_converts_floats_alone(path):
    floats = np.linspace(-3, 3, 2 * host.BLOCK).astype(np.float32)
    reader.save(path, {"f": floats, "i": np.arange(5), "same": np.ones(3, np.float16)})
    loaded = reader.load(path, "cpu", "float16")
    assert [loaded[name].dtype for name in ("f", "i", "same")] == ["float16", "int64", "float16"]
    assert loaded["f"].numpy().tobytes() == convert(floats, "float16").tobytes()
    assert [mapped(path, loaded[name].data_ptr()) for name in ("f", "i", "same")] == [False, True, True]


def test_load_copies_a_misaligned_tensor(path):
    header = json.dumps({"a": tensor("F64", (3,), (0, 24))}).encode()
    path.write_bytes(file_of(header + b" " * (-len(header) % 8 + 3), np.arange(3.0).tobytes()))
    loaded = reader.load(path, "cpu")["a"]
    assert loaded.numpy().tolist() == [0, 1, 2]
    assert not mapped(path, loaded.data_ptr())


def test_saves_tensors_of_a_device(path):
    reader.save(path, {"f": example("bfloat16"), "t": np.arange(12).reshape(3, 4)})
    loaded = reader.load(path, "cpu")
    copy = path.with_name("copy")
    reader.save(copy, {"f": loaded["f"], "t": loaded["t"].t()})
    with reader.open(copy) as file:
        assert file["f"].tobytes() == example("bfloat16").tobytes()
        assert np.array_equal(file["t"], np.arange(12).reshape(3, 4).T)


def test_refusals_of_load(path):
    reader.save(path, {"a": np.arange(3)})
    with pytest.raises(DTypeError, match=r"load: dtype=.*must be a floating dtype"):
        reader.load(path, "cpu", "int8")
    with pytest.raises(DTypeError, match="load: dtype='float33'"):
        reader.load(path, "cpu", "float33")
    with pytest.raises(ArgumentError, match="nowhere"):
        reader.load(path, "nowhere")
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(FileFormatError, match="truncated"):
        reader.load(path, "cpu")
