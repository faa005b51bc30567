"""States to save, and what it means that two are the same: types, keys, order, dtypes, shapes, and
every bit.
"""

from __future__ import annotations

from collections import OrderedDict

import numpy as np
import torch

from navrl.io.container.tensor_types import TORCH_DTYPES


def bits(tensor: torch.Tensor) -> bytes:
    plain = tensor.detach().resolve_conj().resolve_neg()
    # a tensor of one element may have any stride, and keep it
    fresh = torch.empty(plain.shape, dtype=plain.dtype).copy_(plain)
    return fresh.reshape(-1).view(torch.uint8).numpy().tobytes()


def assert_same(found, expected, place="state"):
    assert type(found) is type(expected) or isinstance(expected, torch.nn.Parameter), place
    if isinstance(expected, torch.Tensor):
        assert (found.dtype, found.shape) == (expected.dtype, expected.shape), place
        assert bits(found) == bits(expected), place
    elif isinstance(expected, np.ndarray | np.generic):
        assert (found.dtype, found.shape) == (expected.dtype, expected.shape), place
        assert found.tobytes() == expected.tobytes(), place
    elif isinstance(expected, dict):
        assert list(found) == list(expected), place
        for key in expected:
            assert_same(found[key], expected[key], f"{place}/{key}")
        if isinstance(expected, OrderedDict):
            assert vars(found) == vars(expected), place
    elif isinstance(expected, list | tuple):
        assert len(found) == len(expected), place
        for number, (one, other) in enumerate(zip(found, expected, strict=True)):
            assert_same(one, other, f"{place}/{number}")
    else:
        assert repr(found) == repr(expected), place  # NaN equals NaN, -0.0 does not equal 0.0


def random_tensor(name: str, shape: tuple[int, ...], seed: int = 0) -> torch.Tensor:
    """Return a tensor of any element type with random bits; complex and float ones get NaNs and
    infinities too.
    """
    dtype = TORCH_DTYPES[name]
    generator = torch.Generator().manual_seed(seed)
    width = torch.empty(0, dtype=dtype).element_size()
    count = int(np.prod(shape, dtype=np.int64))
    high = 2 if dtype is torch.bool else 256
    data = torch.randint(0, high, (count * width,), dtype=torch.uint8, generator=generator)
    return data.view(dtype).reshape(shape)


def everything() -> dict:
    """Return a state with one of each: dtypes, shapes, ties, slices, scalars, containers,
    generators.
    """
    shared = torch.randn(6, 5)
    return {
        "dtypes": {name: random_tensor(name, (3, 4)) for name in TORCH_DTYPES},
        "tied": shared,
        "tied again": shared,
        "sliced": torch.randn(100, 100)[3:7, ::2],
        "transposed": torch.randn(4, 9).T,
        "conjugate": torch.randn(4, dtype=torch.complex64).conj(),
        "negative bit": torch.randn(4, dtype=torch.complex64).conj().imag,
        "expanded": torch.tensor([1.5]).expand(7),
        "empty": torch.empty(0, 3),
        "0-d": torch.tensor(3.25),
        "parameter": torch.nn.Parameter(torch.randn(3)),
        "transposed parameter": torch.nn.Parameter(torch.randn(4, 3).T),
        "with gradient": torch.randn(4, 3, requires_grad=True),
        "arrays": [
            np.arange(6).reshape(2, 3),
            np.zeros((0, 2), np.float16),
            np.float32(2.5),
            np.bool_(True),
        ],
        "scalars": (
            True,
            False,
            None,
            0,
            -1,
            1 << 100,
            0.1,
            -0.0,
            float("nan"),
            float("inf"),
            float("-inf"),
            2 - 3j,
        ),
        "texts": ["", "höhe", "\ud800", b"", b"\x00\xff"],
        5: {(1, "a"): 1, 2.5: 2, None: 3, b"k": 4, True: 5},
        "ordered": OrderedDict(b=1, a=torch.Size([2, 3])),
    }


class TinyTraining:
    """A network that trains in microseconds, with everything a checkpoint meets: ties, buffers, two
    optimisers.
    """

    def __init__(self, width: int = 64, *, buffers: bool = True) -> None:
        norm = torch.nn.BatchNorm1d(width) if buffers else torch.nn.LayerNorm(width)
        self.model = torch.nn.Sequential(
            torch.nn.Linear(8, width), norm, torch.nn.ELU(), torch.nn.Linear(width, width)
        )
        self.head = torch.nn.Linear(width, width)
        self.head.weight = self.model[3].weight
        self.adam = torch.optim.Adam(self.model.parameters(), 1e-2)
        self.momentum = torch.optim.SGD([self.head.bias], 1e-2, momentum=0.9)
        self.iteration = 0

    def step(self) -> None:
        output = self.head(self.model(torch.randn(16, 8)))
        for optimizer in (self.adam, self.momentum):
            optimizer.zero_grad()
        output.square().mean().backward()
        for optimizer in (self.adam, self.momentum):
            optimizer.step()
        self.iteration += 1

    @property
    def optimizers(self):
        return [self.adam, self.momentum]

    def state(self) -> dict:
        return {
            "model": self.model.state_dict(),
            "head": self.head.state_dict(),
            "adam": self.adam.state_dict(),
            "momentum": self.momentum.state_dict(),
            "iteration": self.iteration,
        }
