"""Offsets and sizes of the buffers of the fused network, for one layout of the observation.

The network's convolutions are products of overlapping rows with banded matrices. A product computes
two vectors at a time: two azimuths of 4 beams and 4 channels for the first convolution, two beams
of 16 channels for the others. Beams are padded with zeros to fill the vectors. Each group of beams
reads a window of input beams; the matrix is the same for all groups but the first and the last,
whose windows are clipped at the edge of the image, so there are up to three kinds of each matrix.

The activations of all dense layers have the same row stride, so that a few compiled products serve
every layer. Sizes and offsets are in floats.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from types import ModuleType
from typing import Any

from navrl.navigation_observation import OBSTACLE
from navrl.navigation_observation import STATE as STATE_NAMES
from navrl.rl.networks.relative_motion import RELATIVE
from navrl.simd import WIDTH

GROUP = 12  # samples are computed in groups: the rows of a tile of the dense layers
PANEL = 2 * WIDTH  # columns of a tile; weights are stored in panels of this many columns
DEEP = 13  # rows of a tile of the gradients of weights
POSITIONS = 9  # most positions of a tile of a convolution
UNROLLED = 18  # most positions that one round of a gradient tile sums over
STATE, FEATURES = len(STATE_NAMES), len(OBSTACLE)
HEADS = 7
JOINED = 200  # inputs of the trunk: both encoders and the state
STATISTICS = 8  # distance of the mean and scale of a normalised row from its end

# Matrices of activations: the first dense layers of both encoders; what follows in the dynamic one;
# the trunk's input; the trunk. A layer's output is followed by its normalised output.
ENCODERS, MIXED, JOIN, TRUNK_1, TRUNK_1_NORMAL, TRUNK_2, TRUNK_2_NORMAL, ROWS = range(8)
ENCODER_DYNAMIC = 144  # column in ENCODERS, behind the lidar's
# columns in MIXED, behind the normalised first layer: the second layer, the input
MIXED_SECOND, MIXED_INPUT = (144, 224)
PART_HEADS, PART_SMALL, PART_MIDDLE = 0, 48, 128  # columns of the backward pass's PARTS

DEFAULT_BLOCK, DEFAULT_ACTIVATIONS = 96, 4944  # samples of a block, and floats of each
DEFAULT_IMAGES, DEFAULT_BACK = 12, 1856


def deep(rows: int) -> int:
    """Return a number of rows, rounded up to whole tiles of a weight's gradient."""
    return _up(rows, DEEP)


def _up(number: int, multiple: int) -> int:
    return -(-number // multiple) * multiple


def _odd_lines(floats: int) -> int:
    """Return a row stride of an odd number of cache lines, so that rows use all cache sets."""
    return (-(-floats // WIDTH) | 1) * WIDTH


def _tiles(positions: int) -> tuple[int, int]:
    """Return the number of tiles and the positions of each; the last tile may overlap."""
    number = -(-positions // POSITIONS)
    return number, -(-positions // number)


def _divisor(number: int) -> int:
    """Return the largest divisor that is not above UNROLLED."""
    return max(n for n in range(1, UNROLLED + 1) if number % n == 0)


def _places(*sizes: int) -> tuple[int, ...]:
    """Return the offset of each size, and last their sum."""
    return tuple(sum(sizes[:number]) for number in range(len(sizes) + 1))


@dataclass(frozen=True)
class Band:
    """How groups of output beams read windows of input beams.

    Group g reads `window` beams from `step * g - 1` on, moved into the image at its edges.
    """

    groups: int
    step: int
    window: int
    beams: int  # of the input

    @property
    def kinds(self) -> int:
        """Number of different matrices: first, inner and last group."""
        return min(self.groups, 3)

    def group(self, kind: int) -> int:
        """Return a group of a kind."""
        return kind if kind < 2 and kind < self.kinds - 1 else self.groups - 1

    def start(self, group: int) -> int:
        """Return the first beam of a group's window."""
        return min(max(self.step * group - 1, 0), self.beams - self.window)


@dataclass(frozen=True)
class Image:
    """The sizes of the LiDAR image and of what the convolutions make of it."""

    azimuths: int
    beams: int

    @property
    def positions(self) -> tuple[int, int, int]:
        """Azimuths after each convolution."""
        second = (self.azimuths + 1) // 2
        return self.azimuths, second, (second + 1) // 2

    @property
    def padded_beams(self) -> tuple[int, int, int]:
        """Beams after each convolution, filled up to whole vectors."""
        return _up(self.beams, 4), _up(self.beams, 2), _up((self.beams + 1) // 2, 2)

    @property
    def bands(self) -> tuple[Band, Band, Band, Band]:
        """The bands of the three convolutions, and of the second one backward."""
        first, second, third = self.padded_beams
        return (
            Band(first // 4, 4, min(6, self.beams), self.beams),
            Band(second // 2, 2, 3 if second == 4 else min(4, second), second),
            Band(third // 2, 4, min(5, second), second),
            Band(first // 4, 4, min(6, second), second),
        )


@cache
def buffer_layout(azimuths: int, beams: int, observed: int, related: bool) -> Any:
    """Return all sizes and places as attributes of a module.

    To numba they are constants. Of a named tuple it would copy all numbers at each use, which takes
    a third of the time to compile a layout.

    With `related`, the encoder of obstacles has their relative motion as further inputs.
    """
    image = Image(azimuths, beams)
    names = _images(image)
    names |= _tiling(image, names)
    lidar, obstacles = azimuths * beams, FEATURES * observed
    dynamic = obstacles + (len(RELATIVE) * observed if related else 0)
    names |= {"LIDAR": lidar, "OBSTACLES": obstacles, "DYNAMIC": dynamic}
    names |= _activations(names)
    names |= _weights(names, image)
    names |= _gradients(names, image)
    names |= _scratch(names)
    found = ModuleType("buffer_layout")
    found.__dict__.update(names)
    return found


def _images(image: Image) -> dict[str, Any]:
    """Return strides from azimuth to azimuth, sizes of the images, and the bands."""
    azimuths, second, third = image.positions
    y, z, v = image.padded_beams
    odd = azimuths % 2
    b1, b2, b3, b2_back = image.bands
    return {
        "AZIMUTHS": azimuths,
        "BEAMS": image.beams,
        "P2": second,
        "P3": third,
        "FIRST_STRIDE": 4 * y,
        "SECOND_STRIDE": 16 * z,
        "THIRD_STRIDE": 16 * v,
        "B3": (image.beams + 1) // 2,
        # with two azimuths more on either side, and a whole pair at the end
        "IMAGE": (azimuths + 4 + odd) * image.beams,
        "FIRST": (azimuths + 4 + odd) * 4 * y,
        "SECOND": (second + 4) * 16 * z,
        "FLAT": third * 16 * v,
        "BANDS": tuple(
            (band.groups, band.step, band.window, band.beams - band.window, band.kinds)
            for band in (b1, b2, b3, b2_back)
        ),
    }


def _tiling(image: Image, names: dict[str, Any]) -> dict[str, Any]:
    """Return how positions are divided into tiles, forward and backward.

    With stride two, an odd number of azimuths cannot be continued periodically backward. Then the
    gradient of the padding is computed too and folded into the image.
    """
    azimuths, second, third = image.positions
    pairs = min(-(-azimuths // (2 * POSITIONS)), azimuths)
    width = min(-(-azimuths // (2 * pairs)), azimuths // 2)
    fold_second, fold_first = second % 2 == 1, azimuths % 2 == 1
    margin = 2 if fold_second or fold_first else 1
    reached = second + 4 if fold_second else second
    back_pairs = (azimuths + 5) // 2 if fold_first else azimuths // 2
    # rows of the image that one tile of the first convolution's gradient takes
    window = names["BANDS"][0][2]
    rows = {1: 6, 2: 12, 3: 9, 4: 12, 5: 10, 6: 12}[window]
    whole = window == image.beams
    return {
        "PAIR_TILES": -(-azimuths // (2 * width)),
        "PAIRS": width,
        "SECOND_TILES": _tiles(second),
        "THIRD_TILES": _tiles(third),
        "EVEN_TILES": (*_tiles((reached + 1) // 2), (reached + 1) // 2),
        "ODD_TILES": (*_tiles(reached // 2), reached // 2),
        "BACK_PAIR_TILES": (*_tiles(back_pairs), back_pairs),
        "FOLD_SECOND": fold_second,
        "FOLD_FIRST": fold_first,
        "THIRD_MARGIN": 2 if fold_second else 1,
        "SECOND_MARGIN": margin,
        "BACK_THIRD": (third + (4 if fold_second else 2)) * names["THIRD_STRIDE"],
        "BACK_SECOND": (second + 2 * margin) * names["SECOND_STRIDE"],
        "BACK_FIRST": 2 * back_pairs * names["FIRST_STRIDE"],
        "DEPTH_FIRST": tuple(row // window * image.beams + row % window for row in range(rows)),
        "DEPTH_STEP": rows if whole else rows // window * image.beams,
        "ROWS_SECOND": names["BANDS"][1][2] * 4 if names["BANDS"][1][2] < 4 else 8,
        "CHUNKS": (_divisor((azimuths + 1) // 2), _divisor(second), _divisor(third)),
    }


def _activations(names: dict[str, Any]) -> dict[str, Any]:
    """Return where the activations of a sample are: images, then rows of the dense layers."""
    row = _odd_lines(max(19 * WIDTH, MIXED_INPUT + deep(names["DYNAMIC"])))
    third_row = row if deep(names["FLAT"]) <= row else _odd_lines(deep(names["FLAT"]))
    at_first, at_second, at_third, at_rows = _places(
        names["IMAGE"], names["FIRST"], names["SECOND"], third_row
    )[1:]
    activations = at_rows + ROWS * row
    block = DEFAULT_BLOCK * DEFAULT_ACTIVATIONS // activations // GROUP * GROUP
    images = DEFAULT_IMAGES * DEFAULT_BACK // (names["BACK_SECOND"] + names["BACK_FIRST"])
    return {
        "ROW": row,
        "THIRD_ROW": third_row,
        "AT_FIRST": at_first,
        "AT_SECOND": at_second,
        "AT_THIRD": at_third,
        "AT_ROWS": at_rows,
        "ACTIVATIONS": activations,
        # samples that go through all layers while they are in the cache
        "BLOCK": min(max(block, GROUP), DEFAULT_BLOCK),
        # samples that the convolutions go back through at a time
        "IMAGES": min(max(images, 1), DEFAULT_IMAGES),
    }


def _weights(names: dict[str, Any], image: Image) -> dict[str, Any]:
    """Return where the weights are: convolutions by column and tap, dense ones in panels."""
    flat, dynamic = names["FLAT"], names["DYNAMIC"]
    b1, b2, b3, b2_back = image.bands
    sizes = {
        "C1": b1.kinds * 6 * b1.window * 32,
        "C1_BIAS": b1.kinds * 32,
        "C2": b2.kinds * b2.window * 4 * 5 * 32,
        "C2_BIAS": b2.kinds * 32,
        "C3": b3.kinds * b3.window * 16 * 5 * 32,
        "C3_BIAS": b3.kinds * 32,
        "C2_BACK": b2_back.kinds * b2_back.window * 16 * 5 * 16,
        "C3_LOW": 32 * 5 * 32,
        "C3_HIGH": 16 * 5 * 32,
    }
    found = dict(zip((*sizes, "CONVOLUTIONS"), _places(*sizes.values()), strict=True))
    depth = _up(dynamic, 4)
    depths = (flat, depth, 128, JOINED, 256)
    outputs = (128, 128, 64, 256, 256)
    dense = dict(zip(("LIN", "D1", "D2", "T1", "T2"), depths, strict=True))
    sizes = {
        name: width * (depth + 3)
        for (name, depth), width in zip(dense.items(), outputs, strict=True)
    }
    sizes |= {
        "HEAD": 256 * PANEL + PANEL,
        "LIN_BACK": flat * 128,
        "D2_BACK": 128 * 64,
        "T1_BACK": 192 * 256,
        "T2_BACK": 256 * 256,
        "HEAD_BACK": 256 * 8,
        "SCALE": STATE,
        "SORTED": flat * 128,
        "PLAIN": 4896 + WIDTH,
    }
    places = [found["CONVOLUTIONS"] + place for place in _places(*sizes.values())]
    found |= dict(zip((*sizes, "WEIGHTS"), places, strict=True))
    # bias, gain and shift of each layer follow its panels
    found |= {
        f"{name}_BIAS": found[name] + depth * width
        for (name, depth), width in zip(dense.items(), outputs, strict=True)
    }
    return found | {"HEAD_BIAS": found["HEAD"] + 256 * PANEL, "D1_DEPTH": depth}


def _gradients(names: dict[str, Any], image: Image) -> dict[str, Any]:
    """Return where the gradients are, and the table of dense layers."""
    b1, b2, b3, _ = image.bands
    whole = b3.window == b3.beams  # then the rows of all five taps are contiguous
    run = (5 if whole else 1) * b3.window * 16
    padded = deep(run) if whole else run
    runs = 1 if whole else 5
    sizes = {
        "G_C1": b1.kinds * 6 * b1.window * 32,
        "G_C1_BIAS": 2 * names["FIRST_STRIDE"],
        "G_C2": b2.kinds * 5 * b2.window * 4 * 32,
        "G_C2_BIAS": names["SECOND_STRIDE"],
        "G_C3": b3.kinds * runs * padded * 32,
        "G_C3_BIAS": names["THIRD_STRIDE"],
    }
    found = dict(zip((*sizes, "G_CONVOLUTIONS"), _places(*sizes.values()), strict=True))
    # first parameter (weight, bias, gain and shift follow), inputs, outputs, inputs with a gradient
    layers = {
        "LIN": (6, names["FLAT"], 128, names["FLAT"]),
        "D1": (10, names["DYNAMIC"], 128, 0),
        "D2": (14, 128, 64, 128),
        "T1": (18, JOINED, 256, 192),
        "T2": (22, 256, 256, 256),
    }
    sizes = {f"G_{name}": layer[2] * (deep(layer[1]) + 3) for name, layer in layers.items()}
    sizes["G_HEAD"] = deep(256) * PANEL + PANEL
    places = [found["G_CONVOLUTIONS"] + place for place in _places(*sizes.values())]
    found |= dict(zip((*sizes, "GRADIENTS"), places, strict=True))
    found |= {
        f"G_{name}_BIAS": found[f"G_{name}"] + deep(layer[1]) * layer[2]
        for name, layer in layers.items()
    }
    depths = (names["FLAT"], names["D1_DEPTH"], 128, JOINED, 256)
    # and: place, depth and backward place of the weight; place and depth of the gradient
    backs = [names.get(f"{name}_BACK", 0) for name in layers]
    table = tuple(
        (*layer, names[name], depth, back, found[f"G_{name}"], deep(layer[1]))
        for (name, layer), depth, back in zip(layers.items(), depths, backs, strict=True)
    )
    return found | {
        "G_HEAD_BIAS": found["G_HEAD"] + deep(256) * PANEL,
        "TABLE": table,
        "RUNS": runs,
        "RUN": padded,
        "RUN_USED": run,
        "ROWS_THIRD": DEEP if whole else 10,
    }


def _scratch(names: dict[str, Any]) -> dict[str, Any]:
    """Return where the backward pass of a block keeps gradients of activations."""
    block, back, row = names["BLOCK"], names["BACK_THIRD"], names["ROW"]
    rows = ("WIDE", "BEFORE", "BACK_JOIN", "PARTS", "OTHER")
    found = {name: block * (back + number * row) for number, name in enumerate(rows)}
    at_second = block * (back + len(rows) * row)
    at_first = at_second + names["IMAGES"] * names["BACK_SECOND"]
    scratch = at_first + names["IMAGES"] * names["BACK_FIRST"]
    return found | {"AT_BACK_SECOND": at_second, "AT_BACK_FIRST": at_first, "SCRATCH": scratch}
