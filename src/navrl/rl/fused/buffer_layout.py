"""Where things stand in the buffers of the fused network: weights as the products read them,
activations, gradients.

Sizes are in floats. What the convolutions make is kept by position, beam and channel, with azimuths
added on either side; all matrices of the dense layers have rows of the same length, so that a few
compiled products serve every layer.
"""

from __future__ import annotations

from collections.abc import Sequence

from navrl.simd import WIDTH

GROUP = 12  # samples are computed in groups of so many: rows of a tile of the dense layers
# samples that the dense layers take at a time: their weights then come from the outer cache only so
# often
BLOCK = 96
IMAGES = 12  # samples that the convolutions go back through at a time
# columns of a matrix that one tile computes; weights are stored in panels of so many columns
PANEL = 2 * WIDTH
DEEP = 13  # rows of a tile of the gradients of weights

AZIMUTHS, BEAMS, OBSERVED = 36, 4, 5  # the one layout of observations that this is written for
LIDAR, DYNAMIC, STATE, HEADS = AZIMUTHS * BEAMS, 10 * OBSERVED, 8, 7
FLAT = 288  # the image after three convolutions: 9 azimuths, 2 beams, 16 channels
JOINED = 200  # both encoders and the state


def _places(*sizes: int) -> tuple[int, ...]:
    """Return where each of these stands, and last the whole."""
    return tuple(sum(sizes[:number]) for number in range(len(sizes) + 1))


def deep(rows: int) -> int:
    """Return with how many rows the gradient of a weight with so many inputs is computed."""
    return -(-rows // DEEP) * DEEP


# Activations of a sample: the image (4 beams) and what two convolutions make of it (4 beams of 4,
# of 16 channels), each with two azimuths more on either side; then rows. 19 cache lines: an odd
# number, so that rows do not compete for the same sets.
ROW = 19 * WIDTH
IMAGE, FIRST, SECOND = 40 * BEAMS, 40 * 16, 22 * 64
AT_FIRST, AT_SECOND, AT_ROWS = IMAGE, IMAGE + FIRST, IMAGE + FIRST + SECOND
# Rows, each a matrix of its own: what the third convolution makes; the first dense layers of both
# encoders; what follows them in the dynamic one; all joined; the trunk. A layer's value is followed
# by its normalised value.
THIRD, ENCODERS, MIXED, JOIN, TRUNK_1, TRUNK_1_NORMAL, TRUNK_2, TRUNK_2_NORMAL, ROWS = range(9)
ACTIVATIONS = AT_ROWS + ROWS * ROW
STATISTICS = 8  # mean and scale of a normalised row stand so far behind it
ENCODER_DYNAMIC = 144  # in ENCODERS, behind that of the lidar
# in MIXED, behind the normalised first layer: the second layer, the input
MIXED_SECOND, MIXED_INPUT = (144, 224)

# Weights as read forward: those of convolutions by column and tap; dense ones in panels of [inputs,
# PANEL]. Then backward.
(C1, C1_BIAS, C2, C2_BIAS, C3, C3_BIAS, C2_BACK, C3_LOW, C3_HIGH, CONVOLUTIONS) = _places(
    24 * 32, 32, 2 * 12 * 5 * 32, 64, 64 * 5 * 32, 32, 64 * 5 * 16, 32 * 5 * 32, 16 * 5 * 32
)

# Dense layers: their first parameter (weight, bias, gain, shift follow), inputs, outputs, inputs
# that need a gradient.
LAYERS = (
    (6, FLAT, 128, FLAT),
    (10, DYNAMIC, 128, 0),
    (14, 128, 64, 128),
    (18, JOINED, 256, 192),
    (22, 256, 256, 256),
)
_DEPTHS = (FLAT, 52, 128, JOINED, 256)  # inputs, rounded up to what a product is unrolled by

LIN, D1, D2, T1, T2, HEAD, _END = (
    CONVOLUTIONS + place
    for place in _places(
        *(outputs * (depth + 3) for (_, _, outputs, _), depth in zip(LAYERS, _DEPTHS, strict=True)),
        256 * PANEL + PANEL,
    )
)
LIN_BACK, D2_BACK, T1_BACK, T2_BACK, HEAD_BACK, SCALE, SORTED, PLAIN, WEIGHTS = (
    _END + place
    for place in _places(
        FLAT * 128, 128 * 64, 192 * 256, 256 * 256, 256 * 8, STATE, FLAT * 128, 4896 + WIDTH
    )
)
# Where bias, gain and shift of each layer follow its panels.
LIN_BIAS = LIN + FLAT * 128
D1_BIAS = D1 + 52 * 128
D2_BIAS = D2 + 128 * 64
T1_BIAS = T1 + JOINED * 256
T2_BIAS = T2 + 256 * 256
HEAD_BIAS = HEAD + 256 * PANEL

# Gradients, in the order of the weights forward.
G_C1, G_C1_BIAS, G_C2, G_C2_BIAS, G_C3, G_C3_BIAS, G_CONVOLUTIONS = _places(
    24 * 32, 32, 2 * 5 * 12 * 32, 64, deep(320) * 32, 32
)
G_LIN, G_D1, G_D2, G_T1, G_T2, G_HEAD, GRADIENTS = (
    G_CONVOLUTIONS + place
    for place in _places(
        *(outputs * (deep(inputs) + 3) for _, inputs, outputs, _ in LAYERS),
        deep(256) * PANEL + PANEL,
    )
)
G_LIN_BIAS = G_LIN + deep(FLAT) * 128
G_D1_BIAS = G_D1 + deep(DYNAMIC) * 128
G_D2_BIAS = G_D2 + deep(128) * 64
G_T1_BIAS = G_T1 + deep(JOINED) * 256
G_T2_BIAS = G_T2 + deep(256) * 256
G_HEAD_BIAS = G_HEAD + deep(256) * PANEL

# Parameter, inputs, outputs, inputs with a gradient; place, depth and backward place of the weight;
# place and depth of the gradient.
TABLE: Sequence[tuple[int, ...]] = tuple(
    (*layer, place, depth, back, gradient, deep(layer[1]))
    for layer, place, depth, back, gradient in zip(
        LAYERS,
        (LIN, D1, D2, T1, T2),
        _DEPTHS,
        (LIN_BACK, 0, D2_BACK, T1_BACK, T2_BACK),
        (G_LIN, G_D1, G_D2, G_T1, G_T2),
        strict=True,
    )
)

# The backward pass of a block: gradients of what the third convolution made, one position more on
# either side; then rows. Of IMAGES images: gradients of what the second made, one position more on
# either side, and of the first.
BACK_THIRD, BACK_SECOND, BACK_FIRST = 11 * 32, 20 * 64, 18 * 32
WIDE, BEFORE, BACK_JOIN, PARTS, OTHER = (BLOCK * (BACK_THIRD + number * ROW) for number in range(5))
PART_HEADS, PART_SMALL, PART_MIDDLE = 0, 48, 128  # columns of PARTS
AT_BACK_SECOND = BLOCK * (BACK_THIRD + 5 * ROW)
AT_BACK_FIRST = AT_BACK_SECOND + IMAGES * BACK_SECOND
SCRATCH = AT_BACK_FIRST + IMAGES * BACK_FIRST
