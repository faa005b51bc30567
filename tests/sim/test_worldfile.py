"""Worlds from files: what they become, and what every kind of bad file is told."""

from __future__ import annotations

import io
import struct
import zipfile
import zlib

import numpy as np
import pytest
import torch
from PIL import Image

from navrl.errors import WorldError
from navrl.sim.env import NavigationEnv
from navrl.sim.settings import NavigationSettings
from navrl.sim.worlds.world_file import load_world

YARD = """
name: yard
boxes:
  - {center: [2.5, 0.0, 3.0], size: [1.0, 10.0, 6.0]}
  - {center: [-8, 1, 2], size: [2, 4, 1]}
cylinders:
  - {center: [0.0, 3.0], radius: 1.0, height: 5.0}
  - {center: [5, -5], radius: 0.5, height: 1, bottom: 2}
starts: [[0, 0, 2], [1, 1, 1]]
goals: [[10, 0, 2.5]]
"""


@pytest.fixture
def yard(tmp_path):
    path = tmp_path / "yard.yaml"
    path.write_text(YARD)
    return path


def env_in(*paths, **overrides):
    settings = NavigationSettings.of(
        env__num_envs=8,
        env__num_worlds=len(paths),
        env__world_files=[str(path) for path in paths],
        env_dyn__num_obstacles=0,
        **overrides,
    )
    return NavigationEnv(settings, auto_reset=False)


def saved_image(path, array, mode=None):
    Image.fromarray(array, mode).save(path)
    return path


# What a file becomes


def test_a_box_is_its_centre_and_size(yard):
    expected = [[2, 3, -5, 5, 0, 6], [-9, -7, -1, 3, 1.5, 2.5]]
    np.testing.assert_allclose(load_world(yard).boxes, expected)


def test_a_cylinder_stands_on_the_ground_unless_it_has_a_bottom(yard):
    np.testing.assert_allclose(load_world(yard).cylinders, [[0, 3, 1, 0, 5], [5, -5, 0.5, 2, 3]])


def test_the_points_and_the_name_of_a_file_are_kept(yard):
    world = load_world(yard)
    assert world.name == "yard"
    np.testing.assert_allclose(world.starts, [[0, 0, 2], [1, 1, 1]])
    np.testing.assert_allclose(world.goals, [[10, 0, 2.5]])


def test_an_empty_world_is_a_world(tmp_path):
    path = tmp_path / "nothing.yml"
    path.write_text("boxes: []")
    world = load_world(path)
    assert world.name == "nothing"
    assert len(world.boxes) == len(world.cylinders) == len(world.starts) == len(world.goals) == 0


def test_drones_start_and_aim_only_at_the_points_of_the_file(yard):
    env = env_in(yard)
    seen = set()
    for _ in range(5):
        env.reset()
        seen |= {tuple(point) for point in env.position.tolist()}
        assert (env.target == torch.tensor([10.0, 0.0, 2.5])).all()
    assert seen == {(0.0, 0.0, 2.0), (1.0, 1.0, 1.0)}


def test_a_file_without_points_leaves_the_drones_on_the_edges(tmp_path):
    path = tmp_path / "open.yaml"
    path.write_text("boxes: []")
    env = env_in(path)
    env.reset()
    assert (env.position[:, :2].abs().amax(1) == 24).all()
    assert (env.target[:, :2].abs().amax(1) == 24).all()


def test_a_file_with_starts_alone_draws_targets_on_the_edges(tmp_path):
    path = tmp_path / "starts.yaml"
    path.write_text("starts: [[1, 2, 3]]")
    env = env_in(path)
    env.reset()
    assert (env.position == torch.tensor([1.0, 2.0, 3.0])).all()
    assert (env.target[:, :2].abs().amax(1) == 24).all()


def test_files_are_cycled_over_the_worlds(tmp_path, yard):
    other = tmp_path / "other.yaml"
    other.write_text("boxes: []")
    settings = NavigationSettings.of(
        env__num_envs=3,
        env__num_worlds=3,
        env__world_files=[str(yard), str(other)],
        env_dyn__num_obstacles=0,
    )
    assert [world.name for world in NavigationEnv(settings).pool.worlds] == [
        "yard",
        "other",
        "yard",
    ]


def test_each_world_keeps_its_own_points(tmp_path):
    paths = []
    for number in range(2):
        paths.append(tmp_path / f"{number}.yaml")
        paths[-1].write_text(
            f"starts: [[{number}, 0, 1], [{number}, 5, 1]]\ngoals: [[{number}, 9, 2]]"
        )
    env = env_in(*paths)
    env.reset()
    assert (env.position[:, 0].long() == env.world).all()
    assert (env.target[:, 0].long() == env.world).all()


def test_rays_meet_a_cylinder_as_something_round(tmp_path):
    path = tmp_path / "pole.yaml"
    path.write_text("cylinders: [{center: [3, 0], radius: 1, height: 5}]")
    scan = env_in(path).place([0, 0, 2], [10, 0, 2])["lidar"][0, 0, :, 1]
    angle = np.deg2rad(10)
    assert 4 - scan[0].item() == pytest.approx(2.0, abs=1e-4)
    assert 4 - scan[1].item() == pytest.approx(
        3 * np.cos(angle) - np.sqrt(1 - 9 * np.sin(angle) ** 2), abs=1e-4
    )
    assert scan[2] == 0  # the square around it would be met at 20 degrees


def test_a_ray_passes_below_a_cylinder_that_hangs(tmp_path):
    path = tmp_path / "lamp.yaml"
    path.write_text("cylinders: [{center: [3, 0], radius: 1, height: 1, bottom: 2.5}]")
    scan = env_in(path).place([0, 0, 2], [10, 0, 2])["lidar"][0, 0, 0]
    assert scan[1] == 0
    assert scan[3] > 0  # 20 degrees up: 0.73 m higher after 2 m


def test_the_top_left_pixel_of_an_image_is_at_minus_x_and_plus_y(tmp_path):
    pixels = np.zeros((4, 4), np.uint8)
    pixels[0, 0] = 255
    world = load_world(saved_image(tmp_path / "corner.png", pixels))
    np.testing.assert_allclose(world.boxes, [[-20, -10, 10, 20, 0, 6]])
    assert world.name == "corner"


def test_the_bottom_row_of_a_wide_image_lies_at_minus_y(tmp_path):
    pixels = np.zeros((2, 8), np.uint8)
    pixels[1, 6:] = 128
    world = load_world(saved_image(tmp_path / "wide.png", pixels))
    np.testing.assert_allclose(world.boxes, [[10, 20, -20, 0, 0, 3.0]], rtol=1e-6)


@pytest.mark.parametrize(
    ("pixel", "kind", "height"),
    [(255, np.uint8, 6.0), (51, np.uint8, 1.2), (65535, np.uint16, 6.0), (32768, np.uint16, 3.0)],
)
def test_white_is_six_metres_high_whatever_the_depth(tmp_path, pixel, kind, height):
    pixels = np.zeros((2, 2), kind)
    pixels[0, 0] = pixel
    assert load_world(saved_image(tmp_path / "grey.png", pixels)).boxes[0, 5] == pytest.approx(
        height, abs=1e-5
    )


def test_an_image_of_one_bit_has_walls_of_six_metres(tmp_path):
    image = Image.new("1", (2, 2))
    image.putpixel((1, 0), 1)
    image.save(tmp_path / "bits.png")
    np.testing.assert_allclose(load_world(tmp_path / "bits.png").boxes, [[0, 20, 0, 20, 0, 6]])


def test_a_black_image_is_an_empty_world(tmp_path):
    assert (
        len(load_world(saved_image(tmp_path / "black.png", np.zeros((8, 8), np.uint8))).boxes) == 0
    )


def test_an_array_is_indexed_by_x_then_y_and_in_metres(tmp_path):
    heights = np.zeros((4, 4))
    heights[3, 0] = 2.5
    np.savez(tmp_path / "hill.npz", heights=heights)
    np.testing.assert_allclose(
        load_world(tmp_path / "hill.npz").boxes, [[10, 20, -20, -10, 0, 2.5]]
    )


def test_an_array_may_cover_a_smaller_square(tmp_path):
    heights = np.zeros((4, 4), np.int64)
    heights[3, 0] = 2
    np.savez_compressed(tmp_path / "hill.npz", heights=heights, half_width=8)
    np.testing.assert_allclose(load_world(tmp_path / "hill.npz").boxes, [[4, 8, -8, -4, 0, 2]])


def test_drones_see_the_heights_of_an_array(tmp_path):
    heights = np.zeros((40, 40))
    heights[22, 15:25] = 6.0  # x from 2 to 3
    np.savez(tmp_path / "wall.npz", heights=heights)
    scan = env_in(tmp_path / "wall.npz").place([0, 0, 2], [10, 0, 2])["lidar"][0, 0, 0]
    np.testing.assert_allclose(4 - scan.numpy(), [2.0309, 2.0, 2.0309, 2.1284], atol=1e-4)


# Bad files

BAD_YAML = {
    "unknown key at the top": ("boxs: []", ("'boxs'", "Did you mean 'boxes'?")),
    "unknown key of a box": (
        "boxes: [{centre: [0, 0, 1], size: [1, 1, 1]}]",
        ("boxes[0]", "'centre'", "'center'"),
    ),
    "unknown key of a cylinder": (
        "cylinders: [{center: [0, 0], radius: 1, heigth: 1}]",
        ("cylinders[0]", "'height'"),
    ),
    "missing key": ("boxes: [{center: [0, 0, 1]}]", ("boxes[0]", "size")),
    "missing radius": ("cylinders: [{center: [0, 0], height: 1}]", ("cylinders[0]", "radius")),
    "box is a number": ("boxes: [3]", ("boxes[0]", "center, size")),
    "boxes are a mapping": ("boxes: {center: [0, 0, 1]}", ("boxes", "expected a list")),
    "list at the top": ("- boxes", ("expected keys", "list")),
    "nothing at all": ("", ("expected keys", "NoneType")),
    "word as a number": (
        "boxes: [{center: [0, zero, 1], size: [1, 1, 1]}]",
        ("boxes[0].center", "zero"),
    ),
    "truth as a number": (
        "boxes: [{center: [0, true, 1], size: [1, 1, 1]}]",
        ("boxes[0].center", "True"),
    ),
    "two of three numbers": (
        "boxes: [{center: [0, 1], size: [1, 1, 1]}]",
        ("boxes[0].center", "3 finite"),
    ),
    "nan": ("boxes: [{center: [0, .nan, 1], size: [1, 1, 1]}]", ("boxes[0].center", "nan")),
    "infinite size": ("boxes: [{center: [0, 0, 1], size: [1, .inf, 1]}]", ("boxes[0].size", "inf")),
    "second box of no size": (
        "boxes: [{center: [0, 0, 1], size: [1, 1, 1]}, {center: [0, 0, 1], size: [1, 0, 1]}]",
        ("boxes[1].size", "above 0"),
    ),
    "negative size": (
        "boxes: [{center: [0, 0, 1], size: [1, -1, 1]}]",
        ("boxes[0].size", "above 0"),
    ),
    "negative radius": (
        "cylinders: [{center: [0, 0], radius: -1, height: 1}]",
        ("cylinders[0]", "radius -1"),
    ),
    "nan radius": (
        "cylinders: [{center: [0, 0], radius: .nan, height: 1}]",
        ("cylinders[0].radius", "nan"),
    ),
    "no height": (
        "cylinders: [{center: [0, 0], radius: 1, height: 0}]",
        ("cylinders[0]", "height 0"),
    ),
    "outside the ground": (
        "boxes: [{center: [24.8, 0, 1], size: [1, 1, 1]}]",
        ("boxes[0]", "25 m"),
    ),
    "cylinder outside": (
        "cylinders: [{center: [0, -24.8], radius: 1, height: 1}]",
        ("cylinders[0]", "25 m"),
    ),
    "below the ground": ("boxes: [{center: [0, 0, -3], size: [1, 1, 1]}]", ("boxes[0]", "top")),
    "higher than a tower": ("boxes: [{center: [0, 0, 50], size: [1, 1, 1]}]", ("boxes[0]", "50 m")),
    "where starts lie": (
        "boxes: [{center: [23, 0, 1], size: [2, 1, 1]}]",
        ("24.0 m", "starts and goals"),
    ),
    "cylinder where starts lie": (
        "cylinders: [{center: [0, -23], radius: 1, height: 1}]",
        ("24.0 m", "starts and goals"),
    ),
    "start outside": ("starts: [[0, 26, 1]]", ("starts[0]", "25 m")),
    "goal too high": ("goals: [[0, 0, 1], [0, 0, 4.5]]", ("goals[1]", "z < 4")),
    "start on the ground": ("starts: [[0, 0, 0]]", ("starts[0]", "0.2 < z")),
    "nan start": ("starts: [[0, .nan, 1]]", ("starts[0]", "nan")),
    "flat start": ("starts: [[0, 1]]", ("starts[0]", "3 finite")),
    "not YAML": ("boxes: [unclosed", ("not valid YAML",)),
    "tabs": ("boxes:\n\t- 1", ("not valid YAML",)),
    "python object": ("boxes: !!python/object/apply:os.getcwd []", ("not valid YAML",)),
    "too many": ("boxes: [" + "0," * 20001 + "]", ("20001 boxes", "at most 20000")),
}


@pytest.mark.parametrize("kind", BAD_YAML)
def test_a_bad_yaml_world_is_refused_with_its_file_and_key(tmp_path, kind):
    text, pieces = BAD_YAML[kind]
    path = tmp_path / "bad.yaml"
    path.write_text(text)
    with pytest.raises(WorldError) as caught:
        load_world(path)
    for piece in (str(path), *pieces):
        assert piece in str(caught.value)


def test_a_number_beyond_all_floats_is_refused(tmp_path):
    path = tmp_path / "huge.yaml"
    path.write_text(f"boxes: [{{center: [0, 1{'0' * 400}, 1], size: [1, 1, 1]}}]")
    with pytest.raises(WorldError, match=r"huge\.yaml"):
        load_world(path)


@pytest.mark.parametrize(
    "text", ["name: 2020-13-45", "name: " + "1" * 5000, "boxes: " + "[" * 20000]
)
def test_text_that_the_yaml_reader_itself_stumbles_over_is_refused(tmp_path, text):
    path = tmp_path / "odd.yaml"
    path.write_text(text)
    with pytest.raises(WorldError, match=r"odd\.yaml"):
        load_world(path)


@pytest.mark.parametrize("value", ["0", "false", "''"])
def test_an_empty_value_that_is_no_list_is_refused(tmp_path, value):
    path = tmp_path / "falsy.yaml"
    path.write_text(f"boxes: {value}")
    with pytest.raises(WorldError, match="boxes"):
        load_world(path)


def test_bytes_that_are_no_text_are_refused(tmp_path):
    path = tmp_path / "binary.yaml"
    path.write_bytes(bytes(range(256)))
    with pytest.raises(WorldError, match=r"binary\.yaml"):
        load_world(path)


@pytest.mark.parametrize("ending", [".yaml", ".yml", ".png", ".npz"])
def test_a_missing_file_is_named(tmp_path, ending):
    with pytest.raises(FileNotFoundError) as caught:
        load_world(tmp_path / f"none{ending}")
    assert caught.value.filename == str(tmp_path / f"none{ending}")


def test_a_folder_is_no_world(tmp_path):
    (tmp_path / "folder.yaml").mkdir()
    with pytest.raises((FileNotFoundError, WorldError), match=r"folder\.yaml"):
        load_world(tmp_path / "folder.yaml")


@pytest.mark.parametrize("name", ["world.json", "world", "world.npy"])
def test_another_ending_is_refused_with_the_ones_that_are_read(tmp_path, name):
    (tmp_path / name).write_text("boxes: []")
    with pytest.raises(WorldError, match=r"expected \.yaml, \.png or \.npz") as caught:
        load_world(tmp_path / name)
    assert name in str(caught.value)


@pytest.mark.parametrize("mode", ["RGB", "RGBA", "LA", "P"])
def test_an_image_in_colour_is_refused(tmp_path, mode):
    Image.new(mode, (4, 4)).save(tmp_path / "colour.png")
    with pytest.raises(WorldError, match=rf"colour.png: image mode {mode}"):
        load_world(tmp_path / "colour.png")


@pytest.fixture(scope="module")
def good_png():
    stream = io.BytesIO()
    Image.fromarray(np.random.RandomState(0).randint(0, 2, (64, 64)).astype(np.uint8) * 200).save(
        stream, "PNG"
    )
    return stream.getvalue()


@pytest.mark.parametrize("kept", [0, 1, 8, 12, 20, 33, 40, 60, 200, 400])
def test_an_image_that_is_cut_short_is_refused(tmp_path, good_png, kept):
    assert kept < len(good_png)
    path = tmp_path / "cut.png"
    path.write_bytes(good_png[:kept])
    with pytest.raises(WorldError, match=r"cut\.png"):
        load_world(path)


@pytest.mark.parametrize("place", range(8, 120, 7))
def test_an_image_with_a_wrong_byte_is_refused_or_read_but_never_breaks(tmp_path, good_png, place):
    path = tmp_path / "damaged.png"
    damaged = bytearray(good_png)
    damaged[place] ^= 0xFF
    path.write_bytes(damaged)
    try:
        load_world(path)
    except WorldError as error:
        assert "damaged.png" in str(error)  # noqa: PT017


def png_of_size(width, height):
    def chunk(kind, data):
        return (
            struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        )

    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", header)
        + chunk(b"IDAT", zlib.compress(b""))
        + chunk(b"IEND", b"")
    )


@pytest.mark.parametrize("side", [2001, 20_000])
def test_an_image_of_too_many_pixels_is_refused_before_it_is_read(tmp_path, side):
    path = tmp_path / "vast.png"
    path.write_bytes(png_of_size(side, side))
    with pytest.raises(WorldError, match=r"vast\.png"):
        load_world(path)


def test_an_image_of_one_pixel_is_refused(tmp_path):
    with pytest.raises(WorldError, match=r"dot.png: heights of shape \(1, 1\)"):
        load_world(saved_image(tmp_path / "dot.png", np.zeros((1, 1), np.uint8)))


def test_an_image_that_makes_too_many_boxes_is_refused(tmp_path):
    pixels = (np.indices((300, 300)).sum(0) % 2 * 200).astype(np.uint8)  # a chessboard
    with pytest.raises(WorldError, match=r"chess.png: makes 45000 boxes; expected at most 20000"):
        load_world(saved_image(tmp_path / "chess.png", pixels))


BAD_ARRAYS = {
    "one axis": (np.zeros(9), "shape"),
    "three axes": (np.zeros((3, 3, 3)), "shape"),
    "no cells": (np.zeros((0, 5)), "shape"),
    "one row": (np.zeros((1, 5)), "shape"),
    "too many cells": (np.zeros((2001, 2001), np.uint8), "at most 4000000"),
    "nan": (np.array([[0, np.nan], [0, 0]]), "finite"),
    "infinite": (np.array([[0, np.inf], [0, 0]]), "finite"),
    "negative": (np.array([[0, -1.0], [0, 0]]), "from 0 to 50"),
    "too high": (np.array([[0, 51.0], [0, 0]]), "from 0 to 50"),
    "words": (np.array([["a", "b"], ["c", "d"]]), "real numbers"),
    "truths": (np.zeros((3, 3), bool), "real numbers"),
    "complex": (np.zeros((3, 3), complex), "real numbers"),
    "objects": (np.array([[None, 1], [2, 3]], dtype=object), "not a readable NPZ"),
}


@pytest.mark.parametrize("kind", BAD_ARRAYS)
def test_a_bad_array_is_refused_with_its_file(tmp_path, kind):
    heights, piece = BAD_ARRAYS[kind]
    np.savez(tmp_path / "bad.npz", heights=heights)
    with pytest.raises(WorldError, match=piece) as caught:
        load_world(tmp_path / "bad.npz")
    assert "bad.npz" in str(caught.value)


def test_an_archive_without_heights_says_what_it_holds(tmp_path):
    np.savez(tmp_path / "bad.npz", height=np.zeros((3, 3)))
    with pytest.raises(WorldError, match=r"bad.npz: holds height; expected an array named heights"):
        load_world(tmp_path / "bad.npz")


@pytest.mark.parametrize("half_width", [0.0, -5.0, 24.0, np.nan, np.inf])
def test_an_impossible_half_width_is_refused(tmp_path, half_width):
    np.savez(tmp_path / "bad.npz", heights=np.zeros((3, 3)), half_width=half_width)
    with pytest.raises(WorldError, match=r"bad\.npz: half_width"):
        load_world(tmp_path / "bad.npz")


@pytest.mark.parametrize(
    "half_width",
    [np.array([8.0, 9.0]), np.array("wide"), np.array([])],
    ids=["two", "word", "none"],
)
def test_a_half_width_that_is_no_number_is_refused(tmp_path, half_width):
    np.savez(tmp_path / "bad.npz", heights=np.zeros((3, 3)), half_width=half_width)
    with pytest.raises(WorldError, match=r"bad\.npz"):
        load_world(tmp_path / "bad.npz")


@pytest.fixture(scope="module")
def good_npz():
    stream = io.BytesIO()
    np.savez_compressed(stream, heights=np.random.RandomState(0).randint(0, 2, (64, 64)))
    return stream.getvalue()


@pytest.mark.parametrize("kept", [0, 1, 4, 30, 100, 300, -30, -1])
def test_an_archive_that_is_cut_short_is_refused(tmp_path, good_npz, kept):
    path = tmp_path / "cut.npz"
    path.write_bytes(good_npz[:kept])
    with pytest.raises(WorldError, match=r"cut\.npz"):
        load_world(path)


@pytest.mark.parametrize("place", [0, 8, 26, 30, 60, 100, 150, 200, 300])
def test_an_archive_with_a_wrong_byte_is_refused_or_read_but_never_breaks(
    tmp_path, good_npz, place
):
    path = tmp_path / "damaged.npz"
    damaged = bytearray(good_npz)
    damaged[place] ^= 0xFF
    path.write_bytes(damaged)
    try:
        load_world(path)
    except WorldError as error:
        assert "damaged.npz" in str(error)  # noqa: PT017


def test_an_array_saved_without_an_archive_is_refused(tmp_path):
    with (tmp_path / "bare.npz").open("wb") as file:
        np.save(file, np.zeros((3, 3)))
    with pytest.raises(WorldError, match=r"bare\.npz"):
        load_world(tmp_path / "bare.npz")


def test_a_zip_of_other_things_is_refused(tmp_path):
    with zipfile.ZipFile(tmp_path / "other.npz", "w") as archive:
        archive.writestr("heights.npy", "not an array")
    with pytest.raises(WorldError, match=r"other\.npz"):
        load_world(tmp_path / "other.npz")


def test_text_named_as_an_archive_is_refused(tmp_path):
    (tmp_path / "text.npz").write_text("heights: [[0, 1], [2, 3]]")
    with pytest.raises(WorldError, match=r"text\.npz"):
        load_world(tmp_path / "text.npz")


def test_an_environment_with_a_bad_file_is_not_made(tmp_path):
    (tmp_path / "bad.yaml").write_text("boxes: [3]")
    with pytest.raises(WorldError, match=r"bad\.yaml"):
        env_in(tmp_path / "bad.yaml")
