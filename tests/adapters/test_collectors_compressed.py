"""Rollouts kept compressed, and sent compressed: exact, read in parts, written by whole entries
only.
"""

from __future__ import annotations

import io
import socket
import struct
import tracemalloc

import pytest
import torch
from collector_parts import FRAMES, NUMBER, STEPS, navigation, random_policy, same, steer
from hypothesis import given, settings
from hypothesis import strategies as st
from tensordict import TensorDict
from torchrl.envs import TransformedEnv

import forked
from navrl import CompressedDataCollector, CompressedTensorDict
from navrl.adapters.collectors import NavigationCollector
from navrl.adapters.observation_compression import CompressedLidarTransform, ObservationCompression
from navrl.adapters.torchrl import TorchRLNavigationEnv
from navrl.errors import ConfigError, ContainerError
from navrl.sim.settings import NavigationSettings


def example(*batch, seed=0):
    generator = torch.Generator().manual_seed(seed)
    lidar = torch.rand(*batch, 12, generator=generator).sub(0.7).clamp_min(0)
    return TensorDict(
        {
            "lidar": lidar,
            "action": torch.rand(*batch, 3, generator=generator),
            "done": torch.rand(*batch, 1, generator=generator) > 0.5,
            "next": {"lidar": lidar + 1, "deep": {"grid": (10 * lidar).to(torch.uint8)}},
        },
        batch,
    )


KEYS = ["lidar", ("next", "lidar"), ("next", "deep", "grid")]


def compressed(data, *, shuffle=False, **options):
    return CompressedTensorDict(
        data, KEYS, shuffle=torch.Generator() if shuffle else None, **options
    )


def slices(size):
    # tensors know no others
    return st.slices(size).filter(lambda part: part.step is None or part.step > 0)


BATCHES = st.lists(st.integers(1, 6), min_size=1, max_size=3)


@st.composite
def batches_and_indices(draw):
    batch = draw(BATCHES)
    size = batch[0]
    index = draw(
        st.one_of(
            st.integers(-size, size - 1),
            slices(size),
            st.lists(st.integers(-size, size - 1), min_size=1, max_size=8).map(torch.tensor),
            st.lists(st.booleans(), min_size=size, max_size=size).map(torch.tensor),
            st.just(...),
            *([st.tuples(st.integers(0, size - 1), slices(batch[1]))] if len(batch) > 1 else []),
        )
    )
    return batch, index


@settings(max_examples=50, deadline=None)
@given(batches_and_indices(), st.integers(1, 9), st.booleans())
def test_any_index_gives_what_the_plain_one_gives(case, chunk_rows, shuffle):
    batch, index = case
    data = example(*batch)
    packed = compressed(data, chunk_rows=chunk_rows, shuffle=shuffle)
    assert same(packed[index], data[index])
    assert packed[index].batch_size == data[index].batch_size


@settings(max_examples=30, deadline=None)
@given(
    BATCHES,
    st.sampled_from(["raw", "lz4", "zstd", "planes-zstd"]),
    st.integers(1, 9),
    st.booleans(),
    st.integers(1, 12),
)
def test_everything_comes_back_bit_for_bit(batch, codec, level, shuffle, chunk_rows):
    data = example(*batch)
    packed = compressed(data, codec=codec, level=level, shuffle=shuffle, chunk_rows=chunk_rows)
    assert same(packed.to_tensordict(), data)
    assert packed.nbytes == data.bytes()


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("size", [4, 7, 30, 100])
def test_minibatches_give_every_frame_once_in_random_order(shuffle, size):
    data = example(10, 3)
    data["number"] = torch.arange(30).reshape(10, 3)
    data["again"] = torch.arange(30).reshape(10, 3)
    packed = CompressedTensorDict(
        data,
        ["lidar", "again"],
        chunk_rows=4,
        shuffle=torch.Generator().manual_seed(1) if shuffle else None,
    )
    generator = torch.Generator().manual_seed(2)
    epochs = [list(packed.minibatches(size, generator)) for _ in range(2)]
    for epoch in epochs:
        numbers = torch.cat([batch["number"] for batch in epoch])
        assert sorted(numbers.tolist()) == list(range(30))
        assert {len(batch) for batch in epoch[:-1]} <= {size}
        for batch in epoch:
            assert torch.equal(batch["again"], batch["number"])
            assert torch.equal(batch["lidar"], data["lidar"].reshape(30, 12)[batch["number"]])
    orders = [torch.cat([batch["number"] for batch in epoch]).tolist() for epoch in epochs]
    assert orders[0] != orders[1] != sorted(orders[1])


def test_the_last_minibatch_can_be_dropped_and_keys_chosen():
    batches = list(compressed(example(10)).minibatches(4, keys=["lidar", "done"], drop_last=True))
    assert [(len(batch), set(batch.keys())) for batch in batches] == [(4, {"lidar", "done"})] * 2


def test_shuffled_minibatches_decompress_every_chunk_once(monkeypatch):
    from navrl.io.container.codecs import BlockCodec as Codec

    packed = CompressedTensorDict(
        example(64, 4), ["lidar"], chunk_rows=16, shuffle=torch.Generator()
    )
    decoded = []
    decode = Codec.decode
    monkeypatch.setattr(
        Codec, "decode", lambda self, *arguments: decoded.append(1) or decode(self, *arguments)
    )
    list(packed.minibatches(64))
    assert len(decoded) == 256 // 16


def test_keys_are_those_of_the_plain_one():
    data = example(4)
    packed = compressed(data)
    assert set(packed.keys()) == set(data.keys())
    assert set(packed.keys(True, True)) == set(data.keys(True, True))
    assert set(packed.keys(True)) == set(data.keys(True))
    assert ("next", "deep", "grid") in packed
    assert "lidar" in packed
    assert "nothing" not in packed
    assert (packed.shape, len(packed), packed.numel(), packed.device) == ((4,), 4, 4, None)


def test_a_nested_entry_is_compressed_too():
    data = example(4, 2)
    inner = compressed(data)["next"]
    assert isinstance(inner, CompressedTensorDict)
    assert torch.equal(inner["deep", "grid"], data["next", "deep", "grid"])
    assert same(inner[1:3], data["next"][1:3])
    assert same(compressed(data)["next", "deep"].to_tensordict(), data["next", "deep"])


def test_a_name_of_a_nested_entry_means_all_below_it():
    assert set(CompressedTensorDict(example(4), ["next"]).sizes()) == {
        ("next", "lidar"),
        ("next", "deep", "grid"),
    }


def test_selecting_and_excluding_decompress_nothing_and_give_the_rest():
    data = example(4)
    packed = compressed(data)
    assert same(
        packed.select("lidar", ("next", "deep")).to_tensordict(),
        data.select("lidar", ("next", "deep")),
    )
    assert same(
        packed.exclude("lidar", ("next", "deep")).to_tensordict(),
        data.exclude("lidar", ("next", "deep")),
    )


def test_an_entry_that_is_not_there_is_refused_by_name():
    packed = compressed(example(4))
    with pytest.raises(KeyError, match="no entry 'nothing'"):
        packed["nothing"]
    assert packed.get("nothing", 5) == 5
    with pytest.raises(KeyError, match="next"):
        packed.select(("next", "nothing"))
    with pytest.raises(ConfigError, match="compress_keys names 'nothing'"):
        CompressedTensorDict(example(4), ["nothing"])


def test_writing_into_what_was_read_changes_nothing():
    data = example(4)
    packed = compressed(data)
    packed["lidar"].fill_(9)
    packed[0]["lidar"].fill_(9)
    assert torch.equal(packed["lidar"], data["lidar"])


def test_what_was_compressed_may_be_written_again():
    data = example(4)
    packed, before = compressed(data), data.clone()
    data.zero_()
    assert same(packed.to_tensordict(), before)


@pytest.mark.parametrize("shuffle", [False, True])
def test_entries_are_written_whole(shuffle):
    packed = compressed(example(6), shuffle=shuffle)
    packed["lidar"] = torch.arange(72.0).reshape(6, 12)
    packed["advantage"] = torch.arange(6.0)
    packed["next", "value"] = torch.arange(6.0)
    assert torch.equal(packed["lidar"], torch.arange(72.0).reshape(6, 12))
    assert ("lidar",) in packed.sizes()
    assert torch.equal(packed[2:4]["advantage"], torch.tensor([2.0, 3.0]))
    assert torch.equal(packed["next", "value"], torch.arange(6.0))
    with pytest.raises(TypeError, match="whole entries"):
        packed[0] = example(4)[0]
    with pytest.raises(ConfigError, match=r"begins with \(6,\)"):
        packed["lidar"] = torch.zeros(5, 12)


def test_sizes_say_what_is_kept():
    data = TensorDict({"zeros": torch.zeros(1000, 50), "small": torch.zeros(1000)}, [1000])
    packed = CompressedTensorDict(data)
    assert set(packed.sizes()) == {("zeros",)}  # the small one is not worth it
    assert packed.nbytes == 204_000
    assert packed.stored_nbytes < 10_000
    assert "0.2 MB in 0.0 MB" in repr(packed)


@pytest.mark.parametrize("shuffle", [False, True])
def test_rollouts_are_joined_along_time(shuffle):
    parts = [example(5, steps, seed=steps) for steps in (2, 3, 1)]
    packed = CompressedTensorDict.joined(
        [compressed(part, shuffle=shuffle, chunk_rows=4) for part in parts]
    )
    expected = torch.cat(parts, -1)
    assert same(packed.to_tensordict(), expected)
    assert same(packed[2, 1:4], expected[2, 1:4])
    seen = torch.cat([batch["action"] for batch in packed.minibatches(7)])
    assert torch.equal(seen.sum(1).sort()[0], expected["action"].reshape(30, 3).sum(1).sort()[0])


@pytest.mark.parametrize("seed", [None, 0])
def test_minibatches_of_joined_rollouts_are_random_whether_frames_are_in_order_or_not(seed):
    batches = [
        TensorDict({"x": torch.rand(64, 4, 32), "time": torch.full((64, 4), float(t))}, (64, 4))
        for t in range(4)
    ]
    (rollout,) = CompressedDataCollector(batches, batches_per_rollout=4, chunk_rows=64, seed=seed)
    rollout["drone"] = torch.arange(64.0)[:, None].expand(64, 16)
    for minibatch in rollout.minibatches(256, torch.Generator().manual_seed(0)):
        # four chunks in order would hold 16 drones each, at most 64 by luck
        assert len(minibatch["drone"].unique()) > 48
    first = next(rollout.minibatches(64))
    assert len(first["drone"].unique()) > 32  # one chunk in order: 16


@pytest.mark.parametrize("seed", [None, 0])
def test_an_entry_of_joined_rollouts_is_written_whole(seed):
    batches = [TensorDict({"x": torch.rand(3, 2, 32)}, (3, 2)) for _ in range(3)]
    # chunks of 4 and 2
    (rollout,) = CompressedDataCollector(batches, batches_per_rollout=3, chunk_rows=4, seed=seed)
    new = torch.rand(3, 6, 32)
    rollout["x"] = new
    assert torch.equal(rollout["x"], new)
    assert torch.equal(rollout[1:, 3]["x"], new[1:, 3])


def test_a_rollout_of_several_batches_is_not_held_twice():
    noise = [
        TensorDict({"x": torch.randint(0, 256, (64, 4, 4096), dtype=torch.uint8)}, (64, 4))
        for _ in range(8)
    ]
    # it cannot be compressed, so about as much is kept
    size = sum(batch.bytes() for batch in noise)
    tracemalloc.start()  # sees NumPy's memory, in which what is compressed is kept, not torch's
    try:
        rollout = next(iter(CompressedDataCollector(noise, batches_per_rollout=8)))
        assert tracemalloc.get_traced_memory()[1] < 1.4 * size
    finally:
        tracemalloc.stop()
    assert rollout.stored_nbytes > 0.9 * size


def test_entries_come_back_on_the_device_asked_for():
    packed = compressed(example(4)).to("meta")
    assert packed["lidar"].is_meta
    assert packed[0]["action"].is_meta


# ---------------------------------------------------------------------- the collector


def test_several_small_batches_make_one_rollout():
    expected = list(navigation(batches=6))
    collector = CompressedDataCollector(
        navigation(batches=6, return_same_td=True), batches_per_rollout=4
    )
    rollouts = list(collector)
    assert len(rollouts) == len(collector) == 2
    assert same(rollouts[0].to_tensordict(), torch.cat(expected[:4], -1))
    assert same(rollouts[1].to_tensordict(), torch.cat(expected[4:], -1))


def test_a_rollout_is_postprocessed_before_it_is_compressed():
    collector = CompressedDataCollector(
        navigation(return_same_td=True),
        postproc=lambda batch: batch.select("lidar").set("mean", batch["lidar"].mean((-1, -2))),
    )
    rollout = next(iter(collector))
    assert set(rollout.keys()) == {"lidar", "mean"}
    assert torch.equal(rollout["mean"], rollout["lidar"].mean((-1, -2)))


def test_it_offers_what_the_base_offers():
    policy = random_policy()
    with CompressedDataCollector(navigation(policy)) as collector:
        next(iter(collector))
        assert collector.state_dict()["frames"] == FRAMES
        assert collector.policy is policy
        assert collector.fps > 0
    assert collector.base_collector.closed
    with pytest.raises(AttributeError):
        collector.nothing  # noqa: B018


def test_equal_seeds_give_equal_minibatches():
    def first(seed):
        rollout = next(iter(CompressedDataCollector(navigation(), seed=seed)))
        return next(iter(rollout.minibatches(8, torch.Generator().manual_seed(0))))

    assert same(first(1), first(1))
    assert not same(first(1), first(2))


# ---------------------------------------------------------------------- over a link

SENDER = """
import io, socket, struct, sys, torch
from collector_parts import navigation
from navrl.adapters.observation_compression import ObservationCompression
link = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
for batch in navigation():
    packed = ObservationCompression(["lidar", ("next", "lidar"), ("next", "stats")])(batch)
    file = io.BytesIO()
    torch.save({"packed": packed.to_dict(), "plain": batch.to_dict()}, file)
    link.sendall(struct.pack("<Q", len(file.getvalue())) + file.getvalue())
link.close()
"""


def received(link):
    """Yield the rollouts that come through a socket, compressed and plain, until it is closed."""
    with link.makefile("rb") as stream:
        while length := stream.read(8):
            data = stream.read(struct.unpack("<Q", length)[0])
            message = torch.load(io.BytesIO(data), weights_only=True)
            yield (
                TensorDict.from_dict(message["packed"], batch_size=[]),
                TensorDict(message["plain"], [NUMBER, STEPS]),
            )


@pytest.mark.slow
def test_rollouts_go_compressed_from_process_to_process_and_come_out_exact(pytestconfig):
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = str(server.getsockname()[1])
        folder = pytestconfig.rootpath / "tests" / "adapters"
        with forked.start(SENDER, port, cwd=folder) as sender:
            server.settimeout(60)
            link, _ = server.accept()
            with link:
                packed = list(received(link))
        assert sender.returncode == 0
    transform = ObservationCompression(["lidar", ("next", "lidar"), ("next", "stats")])
    assert len(packed) > 1
    for message, expected in packed:
        assert message["lidar"].dtype == torch.uint8
        assert message["lidar"].nbytes < expected["lidar"].nbytes / 2
        whole = transform.inv(message)
        assert whole.batch_size == (NUMBER, STEPS)
        assert same(whole, expected)


def test_the_transform_leaves_what_it_is_given_alone_and_undoes_itself():
    data = example(6, 2)
    data.refine_names(..., "time")
    before = data.clone()
    transform = ObservationCompression(["lidar", ("next", "deep", "grid")])
    packed = transform(data)
    assert same(data, before)
    assert data.batch_size == (6, 2)
    assert packed.batch_size == ()
    whole = transform.inv(packed)
    assert same(whole, data)
    assert whole.names == data.names
    assert packed["lidar"].dtype == torch.uint8  # nor does the way back touch what it is given


def test_a_message_damaged_on_its_way_is_refused():
    packed = ObservationCompression(["lidar"])(example(6))
    packed["lidar"][40] ^= 1
    with pytest.raises(ContainerError, match="damaged"):
        ObservationCompression(["lidar"]).inv(packed)


def test_every_lidar_is_compressed_wherever_it_is():
    data = TensorDict(
        {
            "lidar": torch.rand(6, 36),
            "state": torch.rand(6, 8),
            "next": {"agents": {"lidar": torch.rand(6, 36)}},
        },
        [6],
    )
    transform = CompressedLidarTransform(compression_level=1)
    packed = transform(data)
    assert packed["lidar"].dtype == packed["next", "agents", "lidar"].dtype == torch.uint8
    assert torch.equal(packed["state"], data["state"])
    assert same(transform.inv(packed), data)
    with pytest.raises(ConfigError, match="no entry 'lidar' to compress; it has state"):
        transform(data.select("state"))
    with pytest.raises(ConfigError, match="CompressedLidarTransform compresses whole rollouts"):
        transform.set_container(None)


def test_mistakes_with_the_transform_are_refused_by_name():
    with pytest.raises(ConfigError, match="no 'nothing' to compress"):
        ObservationCompression(["nothing"])(example(6))
    with pytest.raises(ConfigError, match="in_keys is empty"):
        ObservationCompression([])
    small = NavigationSettings.of(env__num_envs=2, env__num_worlds=1, sim__num_threads=1)
    with pytest.raises(ConfigError, match="postproc="):
        TransformedEnv(TorchRLNavigationEnv(small), ObservationCompression(["lidar"]))


def test_a_compressed_rollout_is_smaller_than_a_plain_one():
    small = NavigationSettings.of(env__num_envs=32, env__num_worlds=1, sim__num_threads=1)
    batch = next(iter(NavigationCollector(small, steer, frames_per_batch=32 * 16)))
    assert CompressedTensorDict(batch).stored_nbytes < batch.bytes() / 2
