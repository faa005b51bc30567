"""Same seed, same bits: whatever the threads, the number of drones, the moment of saving, or who
holds on to what.
"""

from __future__ import annotations

import copy
import hashlib
import io
import os
import pickle
import signal
import threading
import tracemalloc

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import forked
from navrl.errors import ActionError, StateError
from navrl.sim.env import NavigationEnv
from navrl.sim.settings import NavigationSettings

# Everything random at once, and short episodes.
BUSY = {
    "env__num_worlds": 3,
    "env__num_obstacles": 200,
    "env__max_episode_length": 40,
    "drone__delay": 3,
    "drone__mass_variation": 0.1,
    "drone__thrust_variation": 0.1,
    "drone__wind": 2.0,
    "sensor__noise": 0.05,
    "sensor__dropout": 0.05,
    "env_dyn__num_obstacles": 160,
}


def make(num_envs=32, seed=0, auto_reset=True, **overrides):
    return NavigationEnv(
        NavigationSettings.of(env__num_envs=num_envs, **(BUSY | overrides)),
        seed=seed,
        auto_reset=auto_reset,
    )


def action(number, num_envs):
    return torch.rand(128, 3, generator=torch.Generator().manual_seed(number))[:num_envs] * 4 - 2


def life(env, steps, first=0):
    """All that an environment reports over some steps, as flat arrays of bits: one a step."""
    told = []
    for number in range(first, first + steps):
        step = env.step(action(number, env.num_envs))
        done = step.done
        parts = [*step.observation.values(), step.reward, step.terminated, step.truncated]
        parts += [value[done] for value in (*step.final_observation.values(), step.statistics)]
        told.append(
            b"".join(
                part.contiguous().numpy().tobytes() for part in (*parts, env.position, env.world)
            )
        )
    return told


def drone_lives(env, drones, steps):
    """What the first drones live through, (steps, drones, ...)."""
    told = []
    for number in range(steps):
        step = env.step(action(number, env.num_envs))
        done = step.done.float()[:, None]
        told.append(
            torch.cat(
                [step.packed, step.reward[:, None], done, step.statistics * done, env.position], 1
            )[:drones]
        )
    return torch.stack(told)


def same(ours, theirs):
    return set(ours) == set(theirs) and all(
        torch.equal(value, theirs[key]) if isinstance(value, torch.Tensor) else value == theirs[key]
        for key, value in ours.items()
    )


# Seeds, threads, numbers


def test_the_same_seed_gives_the_same_bits():
    assert life(make(seed=7), 60) == life(make(seed=7), 60)


def test_other_seeds_give_other_lives():
    lives = [life(make(seed=seed), 2)[0] for seed in (0, 1, 2, 2**62)]
    assert len(set(lives)) == 4


@pytest.mark.parametrize("threads", [2, 3, 7, 64])
def test_the_number_of_threads_changes_nothing(threads):
    alone, together = make(100, sim__num_threads=1), make(100, sim__num_threads=threads)
    assert life(alone, 50) == life(together, 50)


@pytest.mark.parametrize(("few", "many"), [(8, 100), (17, 32), (1, 128)])
def test_a_drone_lives_the_same_life_whatever_the_number_of_drones(few, many):
    assert torch.equal(drone_lives(make(few), few, 60), drone_lives(make(many), few, 60))


def test_a_reset_with_a_seed_begins_everything_anew():
    env = make(seed=3)
    env.reset(seed=11)
    first = life(env, 50)
    env.reset(seed=11)
    assert life(env, 50) == first


def test_a_reset_with_a_seed_is_an_environment_made_with_it():
    used = make(seed=3)
    life(used, 45)
    used.reset(seed=11)
    assert life(used, 50) == life(make(seed=11), 50)


def test_the_first_step_begins_episodes_by_itself():
    begun = make()
    begun.reset()
    assert life(begun, 3) == life(make(), 3)


def test_looking_changes_nothing():
    watched = make()
    watched.reset()
    lives = []
    for number in range(20):
        watched.observe()
        _ = (
            watched.position,
            watched.velocity,
            watched.target,
            watched.yaw,
            watched.obstacles(1),
            watched.state_dict(),
        )
        lives += life(watched, 1, first=number)
    assert lives == life(make(), 20)


def test_a_numpy_action_is_a_torch_action():
    ours, theirs = make(), make()
    for number in range(5):
        a = ours.step(action(number, 32))
        b = theirs.step(action(number, 32).numpy().astype(np.float64))
        assert torch.equal(a.packed, b.packed)


def test_an_action_that_is_not_contiguous_is_read_in_order():
    ours, theirs = make(), make()
    wanted = action(0, 32)
    turned = wanted.T.contiguous().T
    assert not turned.is_contiguous()
    assert torch.equal(ours.step(wanted).packed, theirs.step(turned).packed)


def test_global_generators_are_left_alone():
    np.random.seed(1)
    torch.manual_seed(1)
    expected = np.random.random(), torch.rand(1).item()
    np.random.seed(1)
    torch.manual_seed(1)
    life(make(), 3)
    assert (np.random.random(), torch.rand(1).item()) == expected


def test_the_settings_that_were_given_are_copied():
    given = NavigationSettings.of(env__num_envs=8, **BUSY)
    before = copy.deepcopy(given)
    env = NavigationEnv(given)
    given.env.max_episode_length = 1
    assert not env.step(np.zeros((8, 3))).truncated.any()
    assert env.settings == before


# Saving and restoring


@pytest.fixture(scope="module")
def pairs():
    """An environment and a stranger made with another seed, for each action repeat."""
    return {
        repeat: (make(env__action_repeat=repeat, seed=1), make(env__action_repeat=repeat, seed=2))
        for repeat in (1, 3)
    }


@pytest.mark.slow
@given(moment=st.integers(0, 150), repeat=st.sampled_from([1, 3]), after=st.integers(0, 20))
@settings(max_examples=8, deadline=None)
def test_a_restored_environment_continues_bit_for_bit(pairs, moment, repeat, after):
    env, stranger = pairs[repeat]
    env.reset(seed=1)
    life(env, moment)
    saved = env.state_dict()
    life(stranger, after)
    stranger.load_state_dict(saved)
    assert life(stranger, 45, first=moment) == life(env, 45, first=moment)


def test_a_state_saved_before_the_first_reset_is_the_beginning():
    stranger = make(seed=2)
    life(stranger, 3)
    stranger.load_state_dict(make(seed=1).state_dict())
    assert life(stranger, 45) == life(make(seed=1), 45)


def test_frozen_drones_stay_frozen_after_restoring():
    env, stranger = make(seed=1, auto_reset=False), make(seed=2, auto_reset=False)
    life(env, 41)
    stranger.load_state_dict(env.state_dict())
    assert life(stranger, 2, first=41) == life(env, 2, first=41)
    ended = torch.arange(32) % 2 == 0
    assert torch.equal(stranger.reset(mask=ended)["lidar"], env.reset(mask=ended)["lidar"])
    assert life(stranger, 45) == life(env, 45)


def test_world_probabilities_are_part_of_the_state():
    env, stranger = make(seed=1), make(seed=1)
    env.set_world_probabilities([0, 1, 0])
    stranger.load_state_dict(env.state_dict())
    stranger.reset()
    stranger.reset()
    assert (stranger.world == 1).all()


def test_a_restored_environment_repeats_its_seeded_reset():
    env, stranger = make(seed=1), make(seed=2)
    life(env, 10)
    stranger.load_state_dict(env.state_dict())
    stranger.reset(seed=5)
    env.reset(seed=5)
    assert life(stranger, 20) == life(env, 20)


def test_a_state_may_be_loaded_with_another_number_of_threads():
    env, stranger = make(64, seed=1, sim__num_threads=1), make(64, seed=2, sim__num_threads=2)
    life(env, 20)
    stranger.load_state_dict(env.state_dict())
    assert life(stranger, 20, first=20) == life(env, 20, first=20)


def test_a_state_survives_a_file_without_pickled_code():
    env = make()
    life(env, 10)
    stream = io.BytesIO()
    torch.save(env.state_dict(), stream)
    stream.seek(0)
    assert same(torch.load(stream, weights_only=True), env.state_dict())


def test_a_saved_state_does_not_change_later():
    env = make()
    life(env, 5)
    saved = env.state_dict()
    kept = copy.deepcopy(saved)
    life(env, 50)
    env.reset(seed=9)
    assert same(saved, kept)


def test_a_loaded_state_is_copied():
    env, stranger = make(seed=1), make(seed=2)
    life(env, 5)
    saved = env.state_dict()
    kept = copy.deepcopy(saved)
    stranger.load_state_dict(saved)
    life(stranger, 50)
    assert same(saved, kept)


def edited(saved, **changes):
    return {**copy.deepcopy(saved), **changes}


def without(state, key):
    return {name: value for name, value in state.items() if name != key}


def other_settings(state, group, key, value):
    changed = copy.deepcopy(state)
    changed["settings"][group][key] = value
    return changed


BAD_STATES = {
    "a missing part": (lambda s: without(s, "goals"), "goals"),
    "no seed": (lambda s: without(s, "seed"), "seed"),
    "an unknown part": (lambda s: edited(s, gaols=1), "gaols"),
    "nothing": (lambda s: {}, "state"),
    "another setting": (lambda s: other_settings(s, "sim", "dt", 0.02), "sim.dt"),
    "another map": (lambda s: other_settings(s, "env", "map_seed", 5), "env.map_seed"),
    "a setting less": (lambda s: edited(s, settings=without(s["settings"], "reward")), "reward"),
    "another shape": (lambda s: edited(s, running=s["running"][:-1]), "running"),
    "more drones": (lambda s: edited(s, state=torch.cat([s["state"], s["state"]])), "state"),
}


IMPOSSIBLE_STATES = {
    "a list for an array": (lambda s: edited(s, goals=[1, 2, 3]), "goals"),
    "another type of number": (
        lambda s: edited(s, counters=s["counters"].double() + 0.5),
        "counters",
    ),
    "settings that are no mapping": (lambda s: edited(s, settings=None), "settings"),
    "a half that is neither": (lambda s: edited(s, half=7), "half"),
    "a negative time": (lambda s: edited(s, time=-1), "time"),
    "a negative seed": (lambda s: edited(s, seed=-1), "seed"),
    "a word for the time": (lambda s: edited(s, time="noon"), "time"),
    "worlds that are not there": (lambda s: edited(s, counters=s["counters"] + 100), "counters"),
    "a state that is no number": (
        lambda s: edited(s, state=s["state"] * torch.nan),
        "state holds NaN or infinite",
    ),
    "goals without end": (
        lambda s: edited(s, goals=s["goals"] + torch.inf),
        "goals holds NaN or infinite",
    ),
    "delays that are not there": (lambda s: edited(s, counters=s["counters"] - 100), "counters"),
}


@pytest.mark.parametrize("kind", BAD_STATES | IMPOSSIBLE_STATES)
def test_a_state_that_does_not_fit_is_refused_by_name_and_nothing_changes(kind):
    damage, name = (BAD_STATES | IMPOSSIBLE_STATES)[kind]
    env, other = make(seed=1), make(seed=2)
    life(env, 3)
    life(other, 5)
    before = env.state_dict()
    with pytest.raises(StateError, match=name):
        env.load_state_dict(damage(other.state_dict()))
    assert same(env.state_dict(), before)


def test_a_state_of_before_the_shortest_trip_fits_a_task_without_one_only():
    def saved():
        state = make(seed=1, env__min_trip_length=0.0).state_dict()
        return edited(
            state,
            settings={
                **state["settings"],
                "env": without(state["settings"]["env"], "min_trip_length"),
            },
        )

    make(seed=2, env__min_trip_length=0.0).load_state_dict(saved())
    with pytest.raises(StateError, match=r"env\.min_trip_length = 0\.0, this environment has 2\.0"):
        make(seed=2, env__min_trip_length=2.0).load_state_dict(saved())


# Processes and threads


def in_child(tell):
    """Return the digest of what a forked child tells; a child that hangs is killed by its alarm."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        signal.alarm(30)
        code = 1
        try:
            os.write(writer, hashlib.sha256(b"".join(tell())).digest())
            code = 0
        finally:
            os._exit(code)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        told = pipe.read()
    assert os.waitpid(child, 0)[1] == 0
    return told


def digest(lives):
    return hashlib.sha256(b"".join(lives)).digest()


ACTIONS = [action(number, 64) for number in range(60)]


def plain_life(env, first, steps):
    """As `life`, without torch's own thread pool, which a forked child must not enter."""
    told = []
    for number in range(first, first + steps):
        step = env.step(ACTIONS[number].numpy())
        told += [step.packed.numpy().tobytes(), step.reward.numpy().tobytes()]
    return told


def test_a_forked_child_continues_as_its_parent_does():
    env = make(64, sim__num_threads=2)
    plain_life(env, 0, 20)
    told = in_child(lambda: plain_life(env, 20, 30))
    assert told == digest(plain_life(env, 20, 30))


def test_an_environment_made_in_a_forked_child_lives_as_one_of_the_parent():
    env = make(64, sim__num_threads=2)
    expected = digest(plain_life(env, 0, 20))  # the parent's threads have run
    assert in_child(lambda: plain_life(make(64, sim__num_threads=2), 0, 20)) == expected


def test_another_thread_sees_the_same():
    expected, told = life(make(64, sim__num_threads=2), 20), []
    thread = threading.Thread(target=lambda: told.extend(life(make(64, sim__num_threads=2), 20)))
    thread.start()
    thread.join()
    assert told == expected


@pytest.mark.slow
@pytest.mark.parametrize("threads", [1, 2])
def test_two_environments_fly_in_two_threads_at_once(threads):
    program = f"""
import threading, numpy as np
from navrl.sim.env import NavigationEnv
from navrl.sim.settings import NavigationSettings
settings = NavigationSettings.of(env__num_envs=512, env__num_worlds=1, sim__num_threads={threads})
envs = [NavigationEnv(settings, seed=3) for _ in range(3)]
def fly(env):
    for _ in range(200):
        env.step(np.ones((512, 3)))
fly(envs[2])
pair = [threading.Thread(target=fly, args=(env,)) for env in envs[:2]]
[thread.start() for thread in pair]
[thread.join() for thread in pair]
assert all((env.position == envs[2].position).all() for env in envs)
print("same")
"""
    done = forked.run(program, timeout=120)
    assert done.stdout == "same\n", done.stderr[-500:]


# Who holds on to what


def copies(values):
    return [value.clone() for value in values]


@pytest.mark.parametrize(
    "taken",
    [
        lambda env: list(env.reset().values()),
        lambda env: list(env.observe().values()),
        lambda env: list(env.place([0, 0, 2], [9, 0, 2]).values()),
        lambda env: [env.position, env.velocity, env.target, env.yaw, env.world],
        lambda env: list(env.obstacles(0).values()),
        lambda env: [v for v in env.state_dict().values() if isinstance(v, torch.Tensor)],
    ],
    ids=["reset", "observe", "place", "properties", "obstacles", "state_dict"],
)
def test_nothing_returned_changes_later(taken):
    env = make()
    env.reset()
    values = taken(env)
    kept = copies(values)
    life(env, 45)
    env.reset(seed=4)
    assert all(torch.equal(value, copy_) for value, copy_ in zip(values, kept, strict=True))


@pytest.mark.parametrize(
    "taken",
    [
        lambda env: list(env.reset().values()),
        lambda env: [env.position, env.velocity, env.target, env.yaw, env.world],
        lambda env: list(env.obstacles(0).values()),
        lambda env: [v for v in env.state_dict().values() if isinstance(v, torch.Tensor)],
    ],
    ids=["reset", "properties", "obstacles", "state_dict"],
)
def test_editing_what_was_returned_changes_nothing_inside(taken):
    env, untouched = make(), make()
    for each in (env, untouched):
        each.reset()
        each.reset()
    for value in taken(env):
        value.zero_()
    assert same({"p": env.obstacles(0)["position"]}, {"p": untouched.obstacles(0)["position"]})
    torch.testing.assert_close(env.state_dict()["tracks"], untouched.state_dict()["tracks"])


def test_a_step_that_was_returned_does_not_change_later():
    env = make(env__max_episode_length=3)
    for number in range(3):
        step = env.step(action(number, 32))
    assert step.done.any()
    values = [
        step.packed,
        step.final_packed,
        step.reward,
        step.terminated,
        step.truncated,
        step.statistics,
    ]
    values += [
        *step.observation.values(),
        *step.final_observation.values(),
        *step.episodes().values(),
    ]
    kept = copies(values)
    life(env, 10)
    assert all(torch.equal(value, copy_) for value, copy_ in zip(values, kept, strict=True))


def test_episodes_are_copies_of_the_buffers_of_a_step():
    env = make(env__max_episode_length=3)
    step = env.make_step()
    for number in range(3):
        env.step(action(number, 32), out=step)
    episodes = step.episodes()
    kept = {name: value.clone() for name, value in episodes.items()}
    for number in range(3, 6):
        env.step(action(number, 32), out=step)
    assert same(episodes, kept)
    assert not same(step.episodes(), kept)


def test_a_step_writes_into_the_buffers_it_is_given():
    env, other = make(), make()
    step = env.make_step()
    names = ("packed", "final_packed", "reward", "terminated", "truncated", "statistics")
    places = {name: getattr(step, name).data_ptr() for name in names}
    for number in range(45):
        assert env.step(action(number, 32), out=step) is step
        new = other.step(action(number, 32))
        assert torch.equal(step.packed, new.packed)
        assert torch.equal(step.reward, new.reward)
        assert torch.equal(step.done, new.done)
    assert {name: getattr(step, name).data_ptr() for name in names} == places


def test_observations_of_a_step_are_views_of_its_one_buffer():
    step = make().make_step()
    low = step.packed.data_ptr()
    high = low + step.packed.numel() * 4
    assert all(low <= part.data_ptr() < high for part in step.observation.values())


def test_a_step_into_buffers_allocates_nothing_of_size():
    env = make(64)
    step, command = env.make_step(), action(0, 64)
    env.step(command, out=step)
    tracemalloc.start()
    try:
        for _ in range(20):
            env.step(command, out=step)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 10_000  # bytes; the observations of 64 drones take 50,000


def test_the_action_is_neither_edited_nor_kept():
    env, other = make(), make()
    command = action(0, 32)
    kept = command.clone()
    env.step(command)
    assert torch.equal(command, kept)
    other.step(command)
    command.fill_(1.5)
    assert life(env, 5) == life(other, 5)


# Copies


@pytest.mark.parametrize(
    "copied",
    [copy.deepcopy, lambda env: pickle.loads(pickle.dumps(env))],
    ids=["deepcopy", "pickle"],
)
def test_a_copy_continues_alike_and_leaves_the_original_alone(copied):
    env = make(seed=1)
    life(env, 5)
    other = copied(env)
    before = env.state_dict()
    told = life(other, 5)
    assert same(env.state_dict(), before)
    assert life(env, 5) == told


def test_a_copy_of_buffers_is_filled_and_the_original_is_not():
    env = make(seed=1)
    env.reset()
    step = env.make_step()
    other = copy.deepcopy(step)
    env.step(action(0, env.num_envs), out=other)
    assert (step.packed == 0).all()
    assert (other.packed != 0).any()


def test_buffers_that_were_moved_are_refused():
    env = make(seed=1)
    step = env.make_step()
    step.reward.share_memory_()
    with pytest.raises(ActionError, match="make_step"):
        env.step(action(0, env.num_envs), out=step)
