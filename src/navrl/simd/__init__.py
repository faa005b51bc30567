"""Short vectors for numba kernels: `Lanes` holds WIDTH float32 and computes on all of them at once.

LLVM's vectoriser gives up where arrays might overlap or loops are short. Code written with lanes is
vector code by construction, on any processor that LLVM supports: it splits the lanes where
registers are narrower.

In a compiled function: `floats = floats_at(address)`, `a = load(floats, index)`, `+ - * /`,
comparisons that give a mask, `where(mask, a, b)`, `minimum`, `maximum`, `floor`, `sqrt`, `log`,
`splat(number)`, `bits_of(mask)`, `smallest(a)`, `total(a)`, `store(floats, index, a)`,
`ahead(floats, number)`.
"""

from __future__ import annotations

from navrl.simd.arithmetic import (
    bits_of,
    floor,
    lane_numbers,
    log,
    lowest_bit,
    maximum,
    minimum,
    smallest,
    splat,
    sqrt,
    total,
    where,
)
from navrl.simd.decorators import FAST, entry, entry_for, inner
from navrl.simd.lanes import FLOATS, WIDTH, aligned_zeros
from navrl.simd.memory import (
    ahead,
    call_at,
    flags_at,
    floats_at,
    gather,
    integers_at,
    load,
    load_columns,
    longs_at,
    store,
    store_interleaved,
    swap_runs,
)

__all__ = [
    "FAST",
    "FLOATS",
    "WIDTH",
    "ahead",
    "aligned_zeros",
    "bits_of",
    "call_at",
    "entry",
    "entry_for",
    "flags_at",
    "floats_at",
    "floor",
    "gather",
    "inner",
    "integers_at",
    "lane_numbers",
    "load",
    "load_columns",
    "log",
    "longs_at",
    "lowest_bit",
    "maximum",
    "minimum",
    "smallest",
    "splat",
    "sqrt",
    "store",
    "store_interleaved",
    "swap_runs",
    "total",
    "where",
]
