"""RolloutStorage: what is saved comes back, whole or in part, and the promises of a background save
hold.
"""

from __future__ import annotations

import os
import pickle
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from io_states import assert_same, bits, random_tensor
from tensordict import TensorDict

from navrl.errors import (
    ConfigError,
    ContainerError,
    NavrlError,
    RolloutError,
    UnsupportedStateError,
)
from navrl.io.container.container_writer import CHUNK_BYTES, ArraySource, write_container
from navrl.io.container.element_types import NUMPY_DTYPES
from navrl.io.container.tensor_types import TORCH_DTYPES
from navrl.io.rollouts.rollout_keys import array_names
from navrl.io.rollouts.storage import RolloutStorage

ENVS, STEPS = 24, 20


def flights(envs: int = ENVS, steps: int = STEPS, seed: int = 0) -> dict:
    """Return a rollout that looks like one: rays that mostly hit nothing, smooth states, noisy
    actions, few endings.
    """
    generator = torch.Generator().manual_seed(seed)
    smooth = torch.randn(envs, steps, 144, generator=generator).mul_(0.01).cumsum(1)
    lidar = torch.where(
        torch.rand(envs, 1, 144, generator=generator) < 0.7, torch.zeros(()), smooth + 2
    ).reshape(envs, steps, 36, 4)
    return {
        "observation": {"lidar": lidar, "state": smooth[..., :8].contiguous()},
        "action": torch.rand(envs, steps, 3, generator=generator),
        "reward": torch.rand(envs, steps, generator=generator),
        "done": torch.rand(envs, steps, generator=generator) < 0.05,
        "episodes": torch.rand(7, 23, generator=generator),
    }


@pytest.fixture
def storage(tmp_path):
    with RolloutStorage(tmp_path / "rollouts") as storage:
        yield storage


# ------------------------------------------------------------------ round trips


def test_a_rollout_comes_back_bit_for_bit(storage):
    data = flights()
    path = storage.save(data, 7)
    assert path == storage.folder / "rollout_000000007.navrl"
    assert_same(storage.load(7), data)


@pytest.mark.filterwarnings("ignore:ComplexHalf")
def test_every_element_type_of_torch_and_numpy_comes_back(storage):
    data = {name: random_tensor(name, (70, 9, 3)) for name in TORCH_DTYPES}
    arrays = {
        name: np.random.default_rng(0)
        .integers(0, 2 if name == "bool" else 256, (70, 9, 5 * dtype.itemsize), np.uint8)
        .view(dtype)
        for name, dtype in NUMPY_DTYPES.items()
    }
    state = {
        "torch": data,
        "numpy": arrays,
        "note": "random bits",
        "numbers": [1, 2.5, None],
        "single": torch.tensor(3),
    }
    storage.save(state, 0)
    assert_same(storage.load(0), state)


def test_a_tensordict_comes_back_with_its_nested_keys_and_batch_sizes(storage):
    data = TensorDict(flights(), batch_size=[])
    del data["episodes"]
    data.batch_size = [ENVS, STEPS]
    data["observation"].batch_size = [ENVS, STEPS]
    data["task"] = "navigation"
    storage.save(data, 1)
    found = storage.load(1)
    assert isinstance(found, TensorDict)
    assert found.batch_size == data.batch_size
    assert found["task"] == "navigation"
    for key in data.keys(True, True):
        if key != "task":
            assert bits(found[key]) == bits(data[key]), key
    one = storage.load(1, envs=3)
    assert one.batch_size == (STEPS,)
    assert one["observation"].batch_size == (STEPS,)
    assert torch.equal(one["observation", "lidar"], data["observation", "lidar"][3])


def test_arrays_with_time_first_come_back_so_and_are_stored_by_environment(tmp_path):
    data = {key: value.swapaxes(0, 1) for key, value in flights()["observation"].items()} | {
        "last": torch.rand(ENVS, STEPS)
    }
    with RolloutStorage(tmp_path, time_first=True) as storage:
        storage.save(data, 1)
        assert_same(storage.load(1), data)
        info = storage.info(1)
        assert (info.envs, info.steps, info.keys["lidar"].shape) == (
            ENVS,
            STEPS,
            (STEPS, ENVS, 36, 4),
        )
        assert info.keys["lidar"].by_rows
        assert not info.keys[
            "last"
        ].by_rows  # it begins with (environments, steps): another order than the others
        part = storage.load(1, envs=[5, 2], steps=slice(3, 9))
        assert torch.equal(part["lidar"], data["lidar"][3:9, [5, 2]])
        assert torch.equal(storage.load(1, envs=5)["lidar"], data["lidar"][:, 5])
        assert torch.equal(storage.load(1, steps=-1)["lidar"], data["lidar"][-1])


def test_rows_that_are_longer_than_a_chunk_come_back_with_time_first(tmp_path):
    data = {
        "picture": torch.randint(0, 256, (3, 2, CHUNK_BYTES + 1), dtype=torch.uint8),
        "reward": torch.rand(3, 2),
    }
    with RolloutStorage(tmp_path, time_first=True) as storage:
        storage.save(data, 1)
        assert_same(storage.load(1), data)
        assert torch.equal(storage.load(1, envs=1)["picture"], data["picture"][:, 1])


shapes = st.tuples(st.integers(1, 40), st.integers(1, 40), st.lists(st.integers(0, 40), max_size=2))


@st.composite
def rollouts(draw):
    """Return a rollout of any shape, whose arrays are noise, constant, or change slowly."""
    envs, steps, _ = draw(shapes)
    data = {}
    for number in range(draw(st.integers(1, 4))):
        inner = draw(
            st.sampled_from(
                [(), (1,), (3,), (7, 3), (0,), (200,), (5000,) if envs * steps < 300 else (50,)]
            )
        )
        element = draw(
            st.sampled_from(
                ["float32", "float64", "uint8", "bool", "int16", "complex128", "bfloat16"]
            )
        )
        tensor = random_tensor(element, (envs, steps, *inner), draw(st.integers(0, 9)))
        kind = draw(st.sampled_from(["noise", "constant", "zeros", "one change"]))
        if kind != "noise":
            tensor = (
                (tensor[:, :1] if kind == "constant" else torch.zeros_like(tensor[:, :1]))
                .expand_as(tensor)
                .clone()
            )
            if kind == "one change" and tensor.numel():
                tensor[-1, steps // 2] = 1
        data[f"key {number}"] = {"inner": tensor} if draw(st.booleans()) else tensor
    data["other"] = torch.arange(draw(st.integers(0, 5)))
    return data


@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=rollouts(), time_first=st.booleans(), choice=st.data())
def test_any_part_of_any_rollout_equals_the_slice_of_the_whole(tmp_path, data, time_first, choice):
    storage = RolloutStorage(tmp_path, time_first=time_first, workers=1)
    storage.save(data, 0)
    whole = storage.load(0)
    assert_same(whole, data)
    info = storage.info(0)
    envs = choice.draw(indexes(info.envs))
    steps = choice.draw(indexes(info.steps))
    part = storage.load(0, envs=envs, steps=steps)
    storage.close()
    for name, key in info.keys.items():
        found, expected = at(part, name), at(data, name)
        if key.by_rows:
            expected = expected.swapaxes(0, 1) if time_first else expected
            expected = expected[slice(None) if envs is None else envs]
            expected = expected[
                (slice(None),) * (not isinstance(envs, int))
                + (slice(None) if steps is None else steps,)
            ]
            if time_first and not isinstance(envs, int) and not isinstance(steps, int):
                expected = expected.swapaxes(0, 1)
        assert_same(found, expected, name)


def at(tree: dict, name: str) -> torch.Tensor:
    """Return the array of a name, such as `observation/lidar`."""
    for key in name.split("/"):
        tree = tree[key]
    return tree


def indexes(count: int):
    number = st.integers(-count, count - 1)
    return (
        st.none()
        | number
        | st.slices(count).filter(lambda which: which.step is None or which.step > 0)
        | st.lists(number)
    )


# ------------------------------------------------------------------ reading a part


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    data = flights(200, 32)
    storage = RolloutStorage(tmp_path_factory.mktemp("stored"))
    storage.save(data, 5, metadata={"lidar_range": 4.0}, wait=True)
    yield data, storage
    storage.close()


@pytest.mark.parametrize(
    ("keys", "number"),
    [
        (["reward"], 1),
        ("reward", 1),
        (["observation"], 2),
        ([("observation", "lidar"), "action"], 2),
        ("observation/state", 1),
        ([("observation", "lidar"), ("observation", "state")], 2),
        (["observation", ("observation", "lidar")], 2),
        ("lidar", 1),
    ],
)
def test_only_the_keys_that_were_asked_for_come(stored, keys, number):
    data, storage = stored
    found = storage.load(5, keys=keys)
    for key in [keys] if isinstance(keys, str) else keys:
        name = (
            "observation/lidar"
            if key == "lidar"
            else key
            if isinstance(key, str)
            else "/".join(key)
        )
        assert_same(at(found, name), at(data, name))
    assert len(dict(array_names(found))) == number


def test_one_environment_reads_a_small_part_of_the_file(stored, monkeypatch):
    data, storage = stored
    seen = []
    from navrl.io.container import container_reader as container

    real = container.os.preadv
    monkeypatch.setattr(
        container.os, "preadv", lambda *given: seen.append(real(*given)) or seen[-1]
    )
    assert_same(
        storage.load(5, envs=100, keys=["observation"]),
        {"observation": {k: v[100] for k, v in data["observation"].items()}},
    )
    assert 0 < sum(seen) < storage.size(5) / 4


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        ({"iteration": 6}, "no rollout of iteration 6; there are 5"),
        ({"iteration": -1}, "iteration is -1"),
        ({"envs": 200}, "environment 200 is asked for; the rollout has 200"),
        ({"envs": [0, -201]}, "environment -201"),
        ({"steps": 32}, "step 32 is asked for; the rollout has 32"),
        ({"envs": 1.5}, "environments are 1.5; expected a whole number"),
        ({"keys": ["rewards"]}, "no key 'rewards'; there are .*Did you mean 'reward'"),
        ({"keys": [("observation", "lidr")]}, "observation/lidr.*Did you mean 'observation/lidar'"),
    ],
)
def test_what_is_not_there_is_named(stored, request_, message):
    with pytest.raises(RolloutError, match=message):
        stored[1].load(**{"iteration": 5, **request_})


def test_the_index_alone_tells_what_a_rollout_holds(stored):
    storage = stored[1]
    info = storage.info(5)
    assert (info.iteration, info.envs, info.steps, info.metadata) == (
        5,
        200,
        32,
        {"lidar_range": 4.0},
    )
    assert {name: key.shape for name, key in info.keys.items()} == {
        "observation/lidar": (200, 32, 36, 4),
        "observation/state": (200, 32, 8),
        "action": (200, 32, 3),
        "reward": (200, 32),
        "done": (200, 32),
        "episodes": (7, 23),
    }
    assert info.stored_bytes == storage.size(5) < info.raw_bytes / 2
    assert abs(info.created - time.time()) < 600


# ------------------------------------------------------------------ bounded errors


@pytest.mark.parametrize("element", ["float16", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize("bound", [1e-3, 0.5, 1e-30, 1e30])
@pytest.mark.parametrize("time_first", [False, True])
def test_a_rounded_key_keeps_its_bound_and_what_is_not_finite(tmp_path, element, bound, time_first):
    generator = torch.Generator().manual_seed(0)
    values = torch.randn(
        40, 30, 4, generator=generator, dtype=torch.float64
    ) * 10.0 ** torch.randint(-6, 7, (40, 30, 4))
    values = values.to(TORCH_DTYPES[element])
    values.view(-1)[:8] = torch.tensor(
        [torch.nan, torch.inf, -torch.inf, 0.0, -0.0, 6.5e4, -6.5e4, 1e-7]
    )
    exact = values.flip(0)
    with RolloutStorage(
        tmp_path, error_bounds={("observation", "lidar"): bound}, time_first=time_first
    ) as storage:
        storage.save({"observation": {"lidar": values, "exact": exact}}, 0)
        found = storage.load(0)["observation"]
        assert storage.info(0).keys["observation/lidar"].error_bound == bound
        assert storage.info(0).keys["observation/exact"].error_bound is None
    finite = values.isfinite()
    assert (found["lidar"].double() - values.double())[finite].abs().max() <= bound
    assert bits(found["lidar"][~finite]) == bits(values[~finite])
    assert_same(found["exact"], exact)


def test_a_millimetre_makes_lidar_much_smaller(tmp_path):
    data = flights(200, 32)
    with (
        RolloutStorage(tmp_path / "exact") as exact,
        RolloutStorage(tmp_path / "mm", error_bounds={"lidar": 1e-3}) as mm,
    ):
        for storage in (exact, mm):
            storage.save(data, 0)
        sizes = [storage.info(0).keys["observation/lidar"].stored_bytes for storage in (exact, mm)]
    assert sizes[1] < 0.6 * sizes[0]


@pytest.mark.parametrize(
    ("bounds", "message"),
    [
        ({"lidr": 1e-3}, "no key 'lidr'; there are observation/lidar.*Did you mean 'lidar'"),
        ({"done": 1e-3}, "'done', which is torch.bool; expected one of float16"),
        ({"reward": 0.0}, "'reward' is 0.0; expected a positive number"),
        ({"reward": float("nan")}, "expected a positive number"),
    ],
)
def test_an_impossible_bound_is_refused_when_it_is_used(tmp_path, bounds, message):
    storage = RolloutStorage(tmp_path, error_bounds=bounds)
    with pytest.raises((ConfigError, RolloutError), match=message):
        storage.save(flights(), 0)
    assert list(tmp_path.iterdir()) == []


# ------------------------------------------------------------------ promises


def test_what_the_caller_changes_after_the_call_does_not_reach_the_file(storage):
    data = flights() | {"array": np.ones((ENVS, STEPS, 50))}
    expected = flights() | {"array": np.ones((ENVS, STEPS, 50))}
    storage.save(data, 1)
    data["observation"]["lidar"].fill_(9)
    data["array"][:] = 9
    data["reward"] = None
    assert_same(storage.load(1), expected)


def test_a_failed_save_arrives_at_the_next_call_and_the_one_after_works(tmp_path):
    (tmp_path / "file").write_text("no folder")
    storage = RolloutStorage(tmp_path / "file")
    storage.save(flights(), 1)
    with pytest.raises(RolloutError, match=r"rollout_000000001\.navrl: not saved"):
        storage.flush()
    (tmp_path / "file").unlink()
    storage.save(flights(), 2, wait=True)
    assert storage.list() == [2]
    storage.close()


def test_a_failed_save_arrives_at_close(tmp_path):
    (tmp_path / "file").write_text("no folder")
    with (
        pytest.raises(RolloutError, match="not saved"),
        RolloutStorage(tmp_path / "file") as storage,
    ):
        storage.save(flights(), 1)


def test_a_failed_save_can_be_a_warning(tmp_path):
    (tmp_path / "file").write_text("no folder")
    storage = RolloutStorage(tmp_path / "file", on_error="warn")
    storage.save(flights(), 1)
    with pytest.warns(RuntimeWarning, match="not saved"):
        storage.close()


def test_a_closed_storage_refuses_to_save_and_still_reads(tmp_path):
    storage = RolloutStorage(tmp_path)
    storage.save(flights(), 1)
    storage.close()
    with pytest.raises(RolloutError, match="closed"):
        storage.save(flights(), 2)
    assert_same(storage.load(1), flights())


def test_a_rollout_that_was_replaced_is_read_anew(tmp_path):
    with RolloutStorage(tmp_path) as storage:
        for seed in range(6):  # the file system gives the number of a removed file to the next one
            storage.save(flights(seed=seed), 1, wait=True)
            assert_same(
                storage.load(1, envs=3, keys="reward"), {"reward": flights(seed=seed)["reward"][3]}
            )
            if seed % 2:
                storage.delete(1)


def open_files(folder):
    links = (os.path.realpath(f"/proc/self/fd/{number}") for number in os.listdir("/proc/self/fd"))
    return [link for link in links if link.startswith(str(folder))]


@pytest.mark.skipif(
    not os.path.isdir("/proc/self/fd"), reason="this system does not tell which files are open"
)
def test_only_the_file_that_was_read_last_stays_open_and_none_after_the_end(tmp_path):
    storage = RolloutStorage(tmp_path, keep_last_n=2)
    for iteration in (1, 2):
        storage.save(flights(), iteration, wait=True)
        storage.load(iteration)
    assert open_files(tmp_path) == [str(storage.path(2))]
    storage.delete(2)
    assert open_files(tmp_path) == []
    storage.load(1)
    for iteration in (3, 4):
        storage.save(flights(), iteration, wait=True)
    assert open_files(tmp_path) == []  # the one that was read is pruned
    storage.load(3)
    storage.close()
    storage.load(3)
    assert open_files(tmp_path) == []


def test_a_copy_of_a_storage_opens_its_files_itself(tmp_path):
    with RolloutStorage(tmp_path) as storage:
        storage.save(flights(), 1, wait=True)
    reader = RolloutStorage(tmp_path)
    assert_same(reader.load(1, envs=2, keys="reward")["reward"], flights()["reward"][2])
    copy = pickle.loads(pickle.dumps(reader))
    reader.close()
    assert_same(copy.load(1, envs=3, keys="reward")["reward"], flights()["reward"][3])


@pytest.mark.slow
def test_threads_read_different_rollouts_through_one_storage(tmp_path):
    with RolloutStorage(tmp_path) as storage:
        for iteration in range(4):
            storage.save(flights(seed=iteration), iteration)
        storage.flush()

        def read(turn):
            return turn % 4, storage.load(turn % 4, envs=turn % ENVS, keys="action")["action"]

        with ThreadPoolExecutor(4) as threads:
            for turn, (iteration, found) in enumerate(threads.map(read, range(200))):
                assert_same(found, flights(seed=iteration)["action"][turn % ENVS])


def test_the_oldest_files_go_and_foreign_ones_stay(tmp_path):
    (tmp_path / "rollout_notes.txt").write_text("mine")
    (tmp_path / "rollout_1.navrl").write_text("mine")
    with RolloutStorage(tmp_path, keep_last_n=2) as storage:
        for iteration in (
            30,
            10,
            20,
        ):  # as after a resume from an earlier iteration: what counts is what was written last
            storage.save(flights(), iteration, wait=True)
        assert storage.list() == [10, 20]
        storage.delete(20)
        assert storage.list() == [10]
        assert storage.size() == storage.size(10)
        with pytest.raises(RolloutError, match="no rollout of iteration 20"):
            storage.delete(20)
    assert len(list(tmp_path.iterdir())) == 3


def test_reading_makes_no_folder_and_starts_no_thread(tmp_path):
    storage = RolloutStorage(tmp_path / "nothing")
    assert storage.list() == []
    assert storage.size() == 0
    assert storage.get_stats() == {}
    assert not storage.folder.exists()


@pytest.mark.parametrize(
    ("data", "error", "message"),
    [
        (torch.zeros(3, 3), RolloutError, "a rollout is a Tensor; expected a TensorDict"),
        ({"reward": torch.zeros(3)}, RolloutError, "reward: none has two axes"),
        ({}, RolloutError, "none has two axes"),
        ({"a": torch.zeros(3, 3), "b": {"c": object()}}, UnsupportedStateError, "b/c"),
    ],
)
def test_what_is_no_rollout_is_refused(storage, data, error, message):
    with pytest.raises(error, match=message):
        storage.save(data, 0)


@pytest.mark.parametrize(
    "options", [{"compression_level": 17}, {"compression_level": -1}, {"keep_last_n": 0}]
)
def test_an_impossible_setting_is_refused_by_name(tmp_path, options):
    with pytest.raises(ConfigError, match=next(iter(options))):
        RolloutStorage(tmp_path, **options)


@pytest.mark.parametrize("level", [0, 9, 16])
def test_every_level_reads_back_the_same(tmp_path, level):
    with RolloutStorage(tmp_path, level) as storage:
        storage.save(flights(), 1)
        assert_same(storage.load(1), flights())


# ------------------------------------------------------------------ damage


def test_every_damaged_byte_is_noticed_and_named(tmp_path):
    storage = RolloutStorage(tmp_path)
    path = storage.save(flights(), 1, wait=True)
    content = path.read_bytes()
    generator = np.random.default_rng(0)
    for place in generator.integers(0, len(content), 60):
        damaged = bytearray(content)
        damaged[place] ^= 1 << generator.integers(8)
        path.write_bytes(damaged)
        with pytest.raises(ContainerError, match=path.name):
            storage.load(1)
    storage.close()


def test_damage_elsewhere_does_not_hinder_reading_a_part(tmp_path):
    data = flights(200, 32)
    storage = RolloutStorage(tmp_path)
    path = storage.save(data, 1, wait=True)
    content = bytearray(path.read_bytes())
    content[20] ^= 1  # in the first chunk: the LiDAR of the first environments
    path.write_bytes(content)
    with pytest.raises(
        ContainerError, match=r"rollout_000000001\.navrl: array 'observation/lidar' is damaged"
    ):
        storage.load(1, envs=0)
    assert torch.equal(
        storage.load(1, envs=199)["observation"]["lidar"], data["observation"]["lidar"][199]
    )
    storage.close()


@pytest.mark.parametrize(
    ("claims", "message"),
    [
        ({"envs": 1 << 50}, "claims"),
        ({"envs": -1}, "claims"),
        ({"steps": 5}, "does not have the"),
        ({"rows": [1]}, "does not have the"),
        ({"rows": None}, "incomplete"),
        ({"iteration": "1"}, "incomplete"),
        ({"tensordicts": [[1, 2, 3]]}, "TensorDicts"),
    ],
)
def test_an_index_with_a_valid_checksum_and_false_claims_is_refused(tmp_path, claims, message):
    said = {
        "iteration": 1,
        "envs": 3,
        "steps": 4,
        "time_first": False,
        "rows": [0],
        "error_bounds": {},
        "tensordicts": None,
    }
    document = {
        "kind": "rollout",
        "created": 0.0,
        "state": {"dict": [["x", {"tensor": 0}]]},
        "rollout": said | claims,
    }
    source = ArraySource("x", "float32", (3, 4, 0), np.zeros(0, np.uint8))
    write_container(tmp_path / "rollout_000000001.navrl", [source], document)
    with pytest.raises(ContainerError, match=rf"rollout_000000001\.navrl: .*{message}"):
        RolloutStorage(tmp_path).load(1, envs=slice(0, 1))


def test_a_file_that_is_no_rollout_is_refused(tmp_path):
    from navrl.io import save_checkpoint

    save_checkpoint({"x": torch.zeros(2, 2)}, tmp_path / "rollout_000000001.navrl")
    with pytest.raises(NavrlError, match="holds 'checkpoint', not a rollout"):
        RolloutStorage(tmp_path).load(1)
