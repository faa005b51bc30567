"""load_checkpoint: finds what was written, loads in place, reads old files, and runs no code unless
told to.
"""

from __future__ import annotations

import io
import os
import pickle

import lz4.frame
import pytest
import torch
import xxhash
from io_states import TinyTraining, assert_same

from navrl.errors import CheckpointError, ContainerError
from navrl.io import find_checkpoint, load_checkpoint, save_checkpoint


@pytest.fixture
def state():
    training = TinyTraining()
    training.step()
    return training.state()


def torch_bytes(state) -> bytes:
    buffer = io.BytesIO()
    torch.save(state, buffer)
    return buffer.getvalue()


def test_a_plain_torch_file_loads(tmp_path, state):
    torch.save(state, tmp_path / "old.pt")
    assert_same(load_checkpoint(tmp_path / "old.pt"), state)


def test_a_torch_file_of_the_old_format_loads(tmp_path, state):
    torch.save(state, tmp_path / "older.pt", _use_new_zipfile_serialization=False)
    assert_same(load_checkpoint(tmp_path / "older.pt"), state)


def test_a_torch_file_in_an_lz4_frame_loads_by_either_name(tmp_path, state):
    (tmp_path / "old.pt.lz4").write_bytes(lz4.frame.compress(torch_bytes(state)))
    assert_same(load_checkpoint(tmp_path / "old.pt.lz4"), state)
    assert_same(load_checkpoint(tmp_path / "old.pt"), state)


def test_a_new_file_is_found_by_its_compressed_name(tmp_path, state):
    save_checkpoint(state, tmp_path / "new.pt")
    assert find_checkpoint(tmp_path / "new.pt.lz4") == tmp_path / "new.pt"
    assert_same(load_checkpoint(tmp_path / "new.pt.lz4"), state)


@pytest.mark.parametrize("newer", ["x.pt", "x.pt.lz4"])
def test_of_two_names_the_newer_file_is_loaded_with_a_warning(tmp_path, newer):
    for name in ("x.pt", "x.pt.lz4"):
        save_checkpoint({"name": name}, tmp_path / name)
        os.utime(tmp_path / name, (1000, 2000 if name == newer else 1000))
    with pytest.warns(
        RuntimeWarning, match=rf"x\.pt and x\.pt\.lz4; {newer}, modified last, is used"
    ):
        assert load_checkpoint(tmp_path / "x.pt") == {"name": newer}


def test_a_missing_checkpoint_names_what_was_tried(tmp_path):
    with pytest.raises(
        CheckpointError, match=r"x\.pt: no such checkpoint; tried x\.pt, x\.pt\.lz4"
    ):
        load_checkpoint(tmp_path / "x.pt")


class Malice:
    def __reduce__(self):
        return os.mkdir, (os.environ["MALICE"],)


@pytest.fixture
def evil(tmp_path, monkeypatch):
    monkeypatch.setenv("MALICE", str(tmp_path / "ran"))
    torch.save({"x": Malice()}, tmp_path / "evil.pt")
    (tmp_path / "evil.pickle").write_bytes(pickle.dumps(Malice(), protocol=2))
    (tmp_path / "evil.lz4").write_bytes(lz4.frame.compress((tmp_path / "evil.pt").read_bytes()))
    return tmp_path


@pytest.mark.parametrize("name", ["evil.pt", "evil.pickle", "evil.lz4"])
def test_a_pickle_with_code_in_it_does_not_run(evil, name):
    with pytest.raises((CheckpointError, ContainerError), match=name):
        load_checkpoint(evil / name)
    assert not (evil / "ran").exists()


def test_a_trusted_pickle_runs(evil):
    load_checkpoint(evil / "evil.pt", trusted=True)
    assert (evil / "ran").exists()


@pytest.mark.parametrize(
    "content", [b"", b"hello", b"PK\x03\x04 not a zip", b"\x80\x02", b"\x04\x22\x4d\x18 no frame"]
)
def test_a_file_of_something_else_is_refused_by_name(tmp_path, content):
    (tmp_path / "x.pt").write_bytes(content)
    with pytest.raises((ContainerError, CheckpointError), match=r"x\.pt"):
        load_checkpoint(tmp_path / "x.pt")


def test_an_lz4_frame_that_claims_more_than_it_can_hold_costs_no_memory(tmp_path, monkeypatch):
    frame = bytearray(lz4.frame.compress(b"x" * 1000, store_size=True))
    frame[6:14] = (1 << 40).to_bytes(8, "little")  # the size of the content
    frame[14] = xxhash.xxh32_intdigest(bytes(frame[4:14])) >> 8 & 0xFF
    (tmp_path / "x.pt.lz4").write_bytes(frame)
    monkeypatch.setattr(lz4.frame, "decompress", lambda _: pytest.fail("decompressed"))
    with pytest.raises(
        ContainerError, match=r"x\.pt\.lz4: damaged: an LZ4 frame .* claims to hold 1099511627776"
    ):
        load_checkpoint(tmp_path / "x.pt.lz4")


@pytest.mark.parametrize("error", [MemoryError, IndexError, TypeError])
def test_whatever_a_damaged_pickle_raises_names_the_file(tmp_path, state, monkeypatch, error):
    torch.save(state, tmp_path / "x.pt")

    def fail(*arguments, **settings):
        raise error("bad")

    monkeypatch.setattr(torch, "load", fail)
    with pytest.raises(ContainerError, match=rf"x\.pt: damaged: {error.__name__}"):
        load_checkpoint(tmp_path / "x.pt")


def test_a_cut_torch_file_is_refused_by_name(tmp_path, state):
    (tmp_path / "x.pt").write_bytes(torch_bytes(state)[:-100])
    with pytest.raises(ContainerError, match=r"x\.pt"):
        load_checkpoint(tmp_path / "x.pt")


@pytest.mark.parametrize("codec", ["raw", "planes-zstd"])
@pytest.mark.parametrize("workers", [1, 3])
def test_loading_into_a_state_fills_its_tensors(tmp_path, codec, workers):
    source, target = TinyTraining(width=300), TinyTraining(width=300)
    source.step()
    target.step()
    save_checkpoint(source.state(), tmp_path / "x.pt", codec=codec)
    loaded = load_checkpoint(tmp_path / "x.pt", into=target.state(), workers=workers)
    assert loaded["model"]["3.weight"].data_ptr() == target.model[3].weight.data_ptr()
    assert_same(target.adam.state_dict()["state"], source.adam.state_dict()["state"])
    assert_same(target.model.state_dict(), source.model.state_dict())


def test_loading_into_tensors_that_are_not_contiguous_fills_them_too(tmp_path):
    save_checkpoint({"x": torch.arange(12.0).reshape(3, 4)}, tmp_path / "x.pt")
    target = torch.nn.Parameter(torch.zeros(4, 3).T)
    load_checkpoint(tmp_path / "x.pt", into={"x": target})
    assert target.equal(torch.arange(12.0).reshape(3, 4))


@pytest.mark.parametrize(
    "target", [torch.zeros(4), torch.zeros(3, dtype=torch.float64), torch.zeros(1, 3)]
)
def test_a_state_that_does_not_fit_is_refused_and_untouched(tmp_path, target):
    save_checkpoint({"first": torch.ones(2), "x": torch.ones(3)}, tmp_path / "x.pt")
    first = torch.zeros(2)
    with pytest.raises(CheckpointError, match=r"x is float32 \[3\], to be loaded into"):
        load_checkpoint(tmp_path / "x.pt", into={"first": first, "x": target})
    assert first.sum() == 0


def write_plain(state, path):
    torch.save(state, path)


def write_in_lz4(state, path):
    path.write_bytes(lz4.frame.compress(torch_bytes(state)))


@pytest.mark.parametrize("write", [write_plain, write_in_lz4])
def test_a_file_of_torch_fills_the_tensors_of_a_state_too(tmp_path, write):
    source, target = TinyTraining(), TinyTraining()
    source.step()
    target.step()
    write({**source.state(), "further": (torch.ones(2), 7)}, tmp_path / "x.pt")
    loaded = load_checkpoint(tmp_path / "x.pt", into=target.state())
    assert loaded["model"]["3.weight"].data_ptr() == target.model[3].weight.data_ptr()
    assert_same(target.adam.state_dict()["state"], source.adam.state_dict()["state"])
    assert_same(target.model.state_dict(), source.model.state_dict())
    assert loaded["further"][0].sum() == 2
    assert loaded["further"][1] == 7


@pytest.mark.parametrize("write", [write_plain, write_in_lz4])
def test_a_file_of_torch_that_does_not_fit_leaves_the_state_untouched(tmp_path, write):
    write({"first": torch.ones(2), "x": [torch.ones(3)]}, tmp_path / "x.pt")
    first = torch.zeros(2)
    with pytest.raises(
        CheckpointError,
        match=r"x\.pt: x/0 is torch.float32 \[3\], to be loaded into torch.float32 \[4\]",
    ):
        load_checkpoint(tmp_path / "x.pt", into={"first": first, "x": [torch.zeros(4)]})
    assert first.sum() == 0


def test_a_file_that_cannot_be_read_is_named_with_the_cause(tmp_path, monkeypatch):
    save_checkpoint({"n": 1}, tmp_path / "x.pt")

    def broken(*arguments):
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "pread", broken)
    with pytest.raises(
        ContainerError, match=r"x\.pt: cannot be read: OSError: .*Input/output error"
    ):
        load_checkpoint(tmp_path / "x.pt")


def test_what_the_state_lacks_is_created(tmp_path):
    save_checkpoint({"a": torch.ones(2), "b": torch.ones(3)}, tmp_path / "x.pt")
    assert load_checkpoint(tmp_path / "x.pt", into={"a": torch.zeros(2)})["b"].sum() == 3


def test_the_loaded_tensors_are_not_tied_to_the_file(tmp_path):
    save_checkpoint({"x": torch.ones(300_000)}, tmp_path / "x.pt", codec="raw")
    loaded = load_checkpoint(tmp_path / "x.pt")
    (tmp_path / "x.pt").write_bytes(b"")
    loaded["x"] += 1
    assert loaded["x"].sum() == 600_000


def test_the_device_is_where_the_tensors_go(tmp_path):
    save_checkpoint({"x": torch.ones(3)}, tmp_path / "x.pt")
    assert load_checkpoint(tmp_path / "x.pt", device="meta")["x"].device.type == "meta"


def test_a_container_of_another_kind_is_refused(tmp_path):
    from navrl.io.container.container_writer import write_container

    write_container(tmp_path / "x.pt", [], {"kind": "rollout"})
    with pytest.raises(ContainerError, match=r"x\.pt: holds 'rollout', not a checkpoint"):
        load_checkpoint(tmp_path / "x.pt")
