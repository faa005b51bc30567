"""Where things stand in the buffers of the fused network: weights as the products read them, activations, gradients.

All sizes are in floats. Rows of matrices are padded so that rows far apart do not compete for the same lines of the
cache, which strides of a power of two would do.
"""

from __future__ import annotations

from navrl.simd import WIDTH

PANEL = 2 * WIDTH  # columns of a matrix that one tile computes; weights are stored in panels of so many columns
GROUP = 12  # samples are computed in groups of so many: rows of a tile of the dense layers
DEEP = 13  # rows of a tile of the gradients of dense weights

AZIMUTHS, BEAMS, OBSERVED = 36, 4, 5  # the one layout of observations that this is written for
LIDAR, DYNAMIC, STATE = AZIMUTHS * BEAMS, 10 * OBSERVED, 8
FLAT = 288  # the image after three convolutions: 9 azimuths, 2 beams, 16 channels
JOINED = 200  # both encoders and the state
HEADS = 7

# Activations of a sample. The image and what the first two convolutions make of it carry two azimuths more on either side.
IMAGE, FIRST, SECOND, THIRD = 40 * BEAMS, 40 * 16, 22 * 64, 304
WIDE, MIDDLE, SMALL = 272, 144, 80  # rows of 256, 128, 64 (or 50) numbers
_ACTIVATIONS = (IMAGE, FIRST, SECOND, THIRD, MIDDLE, SMALL, MIDDLE, MIDDLE, SMALL, 208, WIDE, WIDE, WIDE, WIDE)
JOIN = 208


def _places(sizes: tuple[int, ...]) -> tuple[int, ...]:
    """Return where each of these stands, and last the whole."""
    places = [0]
    for size in sizes:
        places.append(places[-1] + size)
    return tuple(places)


# The lidar's dense layer (before its normalisation); dynamic input, layer, normalised, second layer; joined; trunk.
(
    AT_IMAGE, AT_FIRST, AT_SECOND, AT_THIRD, AT_LIDAR, AT_DYNAMIC, AT_D1, AT_D1N, AT_D2, AT_JOIN, AT_T1, AT_T1N, AT_T2, AT_T2N,
    ACTIVATIONS,
) = _places(_ACTIVATIONS)  # fmt: skip


def padded(rows: int) -> int:
    """Return how many rows the gradient of a weight with so many inputs is computed with."""
    return -(-rows // DEEP) * DEEP


# Weights as read forward: convolutions by column and tap, dense layers in panels of [inputs, PANEL].
(
    C1, C1_BIAS, C2, C2_BIAS, C3, C3_BIAS,
    LIN, LIN_BIAS, LIN_GAIN, LIN_SHIFT, D1, D1_BIAS, D1_GAIN, D1_SHIFT, D2, D2_BIAS, D2_GAIN, D2_SHIFT,
    T1, T1_BIAS, T1_GAIN, T1_SHIFT, T2, T2_BIAS, T2_GAIN, T2_SHIFT, HEAD, HEAD_BIAS, SCALE,
    # and backward: panels of [outputs, PANEL inputs]
    C2_BACK, C3_LOW, C3_HIGH, LIN_BACK, D2_BACK, T1_BACK, T2_BACK, HEAD_BACK, LIN_SORTED, WEIGHTS,
) = _places((
    24 * 32, 32, 2 * 12 * 5 * 32, 64, 64 * 5 * 32, 32,
    FLAT * 128, 128, 128, 128, 52 * 128, 128, 128, 128, 128 * 64, 64, 64, 64,
    JOINED * 256, 256, 256, 256, 256 * 256, 256, 256, 256, 256 * 16, 16, 16,
    64 * 5 * 16, 32 * 5 * 32, 16 * 5 * 32, FLAT * 128, 64 * 128, 192 * 256, 256 * 256, 8 * 256, FLAT * 128,
))  # fmt: skip

# Gradients; dense ones are panels of [padded inputs, PANEL], as the weights forward.
(
    G_C1, G_C1_BIAS, G_C2, G_C2_BIAS, G_C3, G_C3_BIAS,
    G_LIN, G_LIN_BIAS, G_LIN_GAIN, G_LIN_SHIFT, G_D1, G_D1_BIAS, G_D1_GAIN, G_D1_SHIFT, G_D2, G_D2_BIAS, G_D2_GAIN, G_D2_SHIFT,
    G_T1, G_T1_BIAS, G_T1_GAIN, G_T1_SHIFT, G_T2, G_T2_BIAS, G_T2_GAIN, G_T2_SHIFT, G_HEAD, G_HEAD_BIAS, GRADIENTS,
) = _places((
    24 * 32, 32, 2 * 5 * 12 * 32, 64, padded(320) * 32, 32,
    padded(FLAT) * 128, 128, 128, 128, padded(50) * 128, 128, 128, 128, padded(128) * 64, 64, 64, 64,
    padded(JOINED) * 256, 256, 256, 256, padded(256) * 256, 256, 256, 256, padded(256) * 16, 16,
))  # fmt: skip

# Scratch of the backward pass: gradients of activations. Those of the convolutions carry one position more on either side.
BACK_SECOND, BACK_THIRD = 20 * 64, 11 * 32
S_HEADS, S_WIDE, S_BEFORE, S_JOIN, S_MIDDLE, S_MIDDLE2, S_SMALL, S_THIRD, S_SCRATCH = _places(
    (16, WIDE, WIDE, JOIN, MIDDLE, MIDDLE, SMALL, BACK_THIRD)
)  # per sample of a block of dense layers
IMAGES = 12  # samples that the convolutions go back through at a time
S_CONVOLUTION = IMAGES * (BACK_SECOND + AZIMUTHS * 16)
BLOCK = 96  # samples that the dense layers take at a time
