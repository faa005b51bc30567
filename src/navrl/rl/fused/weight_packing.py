"""Copies parameters into the order in which the kernels read them, and gradients back."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
from numba import float32
from numpy.typing import NDArray

from navrl.rl.fused import buffer_layout as common
from navrl.rl.fused.buffer_layout import Band, Image, buffer_layout
from navrl.rl.fused.gemm import transpose
from navrl.simd import WIDTH, ahead, entry_for, floats_at, inner, integers_at, load, store

HEADS, PANEL, STATE = common.HEADS, common.PANEL, common.STATE
# The parameters of the convolutions come first and are copied into one array, whose last element,
# NOTHING, is zero.
_PLAIN = (60, 4, 960, 16, 3840, 16)
_W1, _B1, _W2, _B2, _W3, _B3, _NOTHING = np.cumsum((0, *_PLAIN)).tolist()


def _element(
    start: int, channels: int, output: Any, channel: Any, tap: Any, beam: Any, present: Any
) -> NDArray[Any]:
    """Return the indices of a kernel's elements, [outputs, channels, 5, 3].

    NOTHING where the kernel does not reach, or the beam is not `present` but padding.
    """
    index = start + ((output * channels + channel) * 5 + tap) * 3 + beam
    inside = (tap >= 0) & (tap < 5) & (beam >= 0) & (beam < 3) & present
    return np.where(inside, index, _NOTHING).ravel()


class _Maps:
    """Which parameter of the convolutions each packed weight, and each gradient, is of."""

    def __init__(self, image: Image) -> None:
        self.beams, self.after = image.beams, (image.beams + 1) // 2
        self.first_band, self.second_band, self.third_band, self.back_band = image.bands
        self.layout = buffer_layout(image.azimuths, image.beams, 1, False)

    @staticmethod
    def _each_kind(band: Band) -> list[tuple[int, int]]:
        """Return the group and the first beam of the window of each kind."""
        groups = [band.group(kind) for kind in range(band.kinds)]
        return [(group, band.start(group)) for group in groups]

    def first(self) -> NDArray[Any]:
        """By azimuth (6), beam of the window; azimuth (2), beam (4), channel (4) of the output."""
        found = []
        for group, start in self._each_kind(self.first_band):
            azimuth, seen, made, over, channel = np.ogrid[:6, : self.first_band.window, :2, :4, :4]
            beam, output = start + seen, 4 * group + over
            tap, present = azimuth - made, output < self.beams
            found.append(_element(_W1, 1, channel, 0, tap, beam - output + 1, present))
        return np.concatenate(found)

    def second(self, taps_first: bool) -> NDArray[Any]:
        """By beam of the window, channel (4), tap (or tap first); beam (2), channel (16) made."""
        found, window = [], self.second_band.window
        for pair, start in self._each_kind(self.second_band):
            if taps_first:
                tap, seen, channel, over, made = np.ogrid[:5, :window, :4, :2, :16]
            else:
                seen, channel, tap, over, made = np.ogrid[:window, :4, :5, :2, :16]
            beam, output = start + seen, 2 * pair + over
            present = (output < self.beams) & (beam < self.beams)
            found.append(_element(_W2, 4, made, channel, tap, beam - output + 1, present))
        return np.concatenate(found)

    def third(self, taps_first: bool) -> NDArray[Any]:
        """By beam of the window, channel (16), tap (or tap first); beam (2), channel (16) made.

        With the tap first, runs of rows are padded to whole tiles.
        """
        found, window = [], self.third_band.window
        for pair, start in self._each_kind(self.third_band):
            if taps_first:
                tap, seen, channel, over, made = np.ogrid[:5, :window, :16, :2, :16]
            else:
                seen, channel, tap, over, made = np.ogrid[:window, :16, :5, :2, :16]
            beam, output = start + seen, 2 * pair + over
            present = (output < self.after) & (beam < self.beams)
            index = _element(_W3, 16, made, channel, tap, beam - 2 * output + 1, present)
            if taps_first:
                padding = (self.layout.RUN - self.layout.RUN_USED) * 32
                index = np.pad(index, (0, padding), constant_values=_NOTHING)
            found.append(index)
        return np.concatenate(found)

    def second_back(self) -> NDArray[Any]:
        """By output: beam of the window, channel (16); tap, in reading order; beam (4), channel."""
        found, taps = [], np.array([2, 3, 0, 1, 4])
        for group, start in self._each_kind(self.back_band):
            seen, made, number, over, channel = np.ogrid[: self.back_band.window, :16, :5, :4, :4]
            output, beam = start + seen, 4 * group + over
            present = (output < self.beams) & (beam < self.beams)
            found.append(_element(_W2, 4, made, channel, taps[number], beam - output + 1, present))
        return np.concatenate(found)

    def third_back(self, outputs: int, taps: list[int], last: bool) -> NDArray[Any]:
        """By output: beam (of the pair's, and the next), channel (16); tap; beam (2), channel."""
        pair = self.after - 1 if last else 0
        over, made, tap, seen, channel = np.ogrid[:outputs, :16, : len(taps), :2, :16]
        output, beam = pair + over, 2 * pair + seen
        present = (output < self.after) & (beam < self.beams)
        tap = np.array(taps)[tap]
        return _element(_W3, 16, made, channel, tap, beam - 2 * output + 1, present)

    def biases(self) -> list[NDArray[Any]]:
        """By kind; azimuth (2), beam (4), channel (4) first, then beam (2), channel (16)."""
        bands = (self.first_band, self.second_band, self.third_band)
        found = []
        for start, band, beams, size, step in zip(
            (_B1, _B2, _B3),
            bands,
            (self.beams, self.beams, self.after),
            (4, 16, 16),
            (4, 2, 2),
            strict=True,
        ):
            groups = np.array([group for group, _ in self._each_kind(band)])[:, None]
            column = np.arange(32)[None, :]
            beam = step * groups + column // size % step
            found.append(np.where(beam < beams, start + column % size, _NOTHING).ravel())
        return found

    def bias_gradients(self) -> list[NDArray[Any]]:
        """By azimuth (2), beam, channel first, then beam, channel."""
        layout = self.layout
        widths = (2 * layout.FIRST_STRIDE, layout.SECOND_STRIDE, layout.THIRD_STRIDE)
        return [
            start + np.arange(width) % size
            for start, width, size in zip((_B1, _B2, _B3), widths, (4, 16, 16), strict=True)
        ]


@functools.cache
def maps(azimuths: int, beams: int) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Return, for every packed weight of the convolutions and every gradient, its parameter."""
    made = _Maps(Image(azimuths, beams))
    even, odd = [4, 2, 0], [3, 1]
    biases, sums = made.biases(), made.bias_gradients()
    forward = [made.first(), biases[0], made.second(False), biases[1], made.third(False), biases[2]]
    backward = [made.second_back()]
    backward += [made.third_back(2, taps, last=False) for taps in (even, odd)]
    backward += [made.third_back(1, taps, last=True) for taps in (even, odd)]
    gradients = [made.first(), sums[0], made.second(True), sums[1], made.third(True), sums[2]]
    packed = np.concatenate([*forward, *backward]).astype(np.int32)
    return packed, np.concatenate(gradients).astype(np.int32)


@inner
def _copy(source, result, number):
    for i in range(number):
        result[i] = source[i]


@inner
def _transposed(source, stride, rows, columns, result, result_stride):
    """Write rows as columns; rows are a multiple of WIDTH unless the columns are."""
    for row in range(0, rows - WIDTH + 1, WIDTH):
        for column in range(0, columns - WIDTH + 1, WIDTH):
            here = ahead(source, row * stride + column)
            there = ahead(result, column * result_stride + row)
            transpose(here, stride, there, result_stride)
    for row in range(rows):
        first = columns // WIDTH * WIDTH if row < rows // WIDTH * WIDTH else 0
        for column in range(first, columns):
            result[column * result_stride + row] = source[row * stride + column]


def _make_sort_flat(at: Any) -> Any:
    """Return a compiled function that reorders the columns of the LiDAR's dense layer.

    From [channel, position, beam] to [position, beam, channel] with padded beams, or back.
    """
    padded, beams, positions, flat = at.THIRD_STRIDE // 16, at.B3, at.P3, at.FLAT

    @inner
    def sort_flat(source, result, back):
        for output in range(128):
            for channel in range(16):
                for position in range(positions):
                    for beam in range(beams):
                        ours = output * flat + (position * padded + beam) * 16 + channel
                        theirs = ((output * 16 + channel) * positions + position) * beams + beam
                        result[theirs if back else ours] = source[ours if back else theirs]

    return sort_flat


def _make_pack_heads(at: Any) -> Any:
    @inner
    def pack_heads(parameters, w):
        for head in range(HEADS):
            number = 26 + 2 * min(head // 3, 2)
            matrix, bias = floats_at(parameters[number]), floats_at(parameters[number + 1])
            w[at.HEAD_BIAS + head] = bias[head % 3]
            for i in range(256):
                value = matrix[head % 3 * 256 + i]
                w[at.HEAD + i * PANEL + head] = value
                w[at.HEAD_BACK + (i // PANEL * 8 + head) * PANEL + i % PANEL] = value

    return pack_heads


def make_pack(at: Any, variant: str) -> Any:
    """Return a compiled function that writes the parameters as the weights that kernels read."""
    pack_heads, sort_flat = _make_pack_heads(at), _make_sort_flat(at)

    @entry_for(variant)
    def pack(parameters, scale, chosen, weights):
        w, which = floats_at(weights), integers_at(chosen)
        plain, place = ahead(w, at.PLAIN), 0
        for number in range(6):
            _copy(floats_at(parameters[number]), ahead(plain, place), _PLAIN[number])
            place += _PLAIN[number]
        for i in range(at.CONVOLUTIONS):
            w[i] = plain[which[i]]
        for first, inputs, outputs, width, start, depth, back, _, _ in at.TABLE:
            matrix = floats_at(parameters[first])
            if first == 6:
                matrix = ahead(w, at.SORTED)
                sort_flat(floats_at(parameters[first]), matrix, False)
            for output in range(0, outputs, PANEL):
                there = ahead(w, start + output * depth)
                _transposed(ahead(matrix, output * inputs), inputs, PANEL, inputs, there, PANEL)
            for column in range(0, width, WIDTH):
                there = back + column // PANEL * PANEL * outputs + column % PANEL
                for output in range(outputs):
                    store(w, there + output * PANEL, load(matrix, output * inputs + column))
            for i in range(3):
                vector = floats_at(parameters[first + 1 + i])
                _copy(vector, ahead(w, start + (depth + i) * outputs), outputs)
        pack_heads(parameters, w)
        _copy(floats_at(scale), ahead(w, at.SCALE), STATE)

    return pack


def _make_unpack_heads(at: Any) -> Any:
    @inner
    def unpack_heads(g, parameters):
        for head in range(HEADS):
            number = 26 + 2 * min(head // 3, 2)
            matrix, bias = floats_at(parameters[number]), floats_at(parameters[number + 1])
            bias[head % 3] = g[at.G_HEAD_BIAS + head]
            for i in range(256):
                matrix[head % 3 * 256 + i] = g[at.G_HEAD + i * PANEL + head]

    return unpack_heads


def make_unpack(at: Any, variant: str) -> Any:
    """Return a compiled function that sums the gradients of threads into those of parameters."""
    unpack_heads, sort_flat = _make_unpack_heads(at), _make_sort_flat(at)

    @entry_for(variant)
    def unpack(gradients, threads, chosen, weights, parameters):
        g, w, which = floats_at(gradients), floats_at(weights), integers_at(chosen)
        for thread in range(1, threads):
            for i in range(0, at.GRADIENTS, WIDTH):
                store(g, i, load(g, i) + load(g, thread * at.GRADIENTS + i))
        plain, place = ahead(w, at.PLAIN), 0
        for i in range(_NOTHING):
            plain[i] = float32(0)
        for i in range(at.G_CONVOLUTIONS):
            plain[which[i]] += g[i]
        plain[_NOTHING] = float32(0)
        for number in range(6):
            _copy(ahead(plain, place), floats_at(parameters[number]), _PLAIN[number])
            place += _PLAIN[number]
        for first, inputs, outputs, _, _, _, _, start, depth in at.TABLE:
            matrix = ahead(w, at.SORTED) if first == 6 else floats_at(parameters[first])
            for output in range(0, outputs, PANEL):
                here = ahead(g, start + output * depth)
                _transposed(here, PANEL, inputs, PANEL, ahead(matrix, output * inputs), inputs)
            if first == 6:
                sort_flat(matrix, floats_at(parameters[first]), True)
            for i in range(3):
                vector = ahead(g, start + (depth + i) * outputs)
                _copy(vector, floats_at(parameters[first + 1 + i]), outputs)
        unpack_heads(g, parameters)

    return unpack
