"""A cache of compiled kernels on disk, keyed by everything that affects their machine code.

numba's own cache checks only the file of the entry point. A kernel is inlined from many files, so
the key here covers the contents of all of them, the versions and settings of the compiler, and the
processor. Each key has its own folder, beside the package's bytecode, or in the user's cache if the
package is read-only. Every kernel is one checksummed file, written atomically: processes may
compile at the same time.

    @kernel(nogil=True)                    # as numba.njit(cache=True, nogil=True)
    def step(...): ...

    callback = c_kernel(signature)(step)   # as numba.cfunc(signature, cache=True)
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import hashlib
import importlib.util
import os
import pickle
import platform
import re
import shutil
import tempfile
import time
import uuid
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath
from typing import Any

import llvmlite
import numba
import numpy as np
from llvmlite import binding as llvm
from numba import njit
from numba.core import config, registry, sigutils
from numba.core.caching import _Cache
from numba.core.ccallback import CFunc
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import Compiler, CompileResult
from numba.core.serialize import dumps

__all__ = [
    "KernelMissingError",
    "c_kernel",
    "compile_alone",
    "kernel",
    "key",
    "loading_only",
    "storage",
]

PACKAGE = Path(__file__).parent
# The sources of machine code: the kernels, and the modules whose constants they use.
SOURCES = (
    "kernel_cache.py",
    "navigation_observation.py",
    "observation.py",
    "simd/*.py",
    "sim/*.py",
    "sim/kernels/*.py",
    "sim/worlds/*.py",
    "rl/fused/*.py",
    "rl/networks/relative_motion.py",
    "io/container/codecs/*.py",
    "io/container/numba_memory.py",
    "io/replay/*.py",
    "deploy/shield_kernel.py",
    "deploy/shield_threats.py",
    "deploy/latency/scan_kernel.py",
    "evaluation/baselines/kernels/*.py",
    "render/kernels.py",
)
# Settings of numba that change the generated code; those of the processor are part of the target.
SETTINGS = (
    "OPT",
    "LOOP_VECTORIZE",
    "SLP_VECTORIZE",
    "USING_SVML",
    "BOUNDSCHECK",
    "DEBUGINFO_DEFAULT",
    "DEBUG_NRT",
    "EXTEND_VARIABLE_LIFETIMES",
    "LLVM_REFPRUNE_PASS",
    "LLVM_REFPRUNE_FLAGS",
    "PARFOR_MAX_TUPLE_SIZE",
)
KEPT = 4  # folders of other keys that are never pruned
UNUSED = 14 * 24 * 3600.0  # seconds without use after which the others are
INHERITED = "_NAVRL_KERNELS"  # environment variable: a temporary folder that child processes share

_only_loading = False


class KernelMissingError(RuntimeError):
    """A kernel is not in the cache, and must not be compiled here; see `loading_only`."""


def kernel(variant: str = "", **options: Any) -> Callable[[Callable[..., Any]], Any]:
    """Return a decorator that compiles a function on its first call and caches the result on disk.

    A function with a closure needs a `variant` that identifies the values in it.
    """

    def decorate(function: Callable[..., Any]) -> Any:
        dispatcher = njit(pipeline_class=_KernelCompiler, **options)(function)
        if dispatcher is not function:  # with NUMBA_DISABLE_JIT it is
            dispatcher._cache = _KernelCache(function, variant)
        return dispatcher

    return decorate


def c_kernel(signature: Any, **options: Any) -> Callable[[Callable[..., Any]], Any]:
    """Return a decorator that compiles a function with an `address` for C, cached on disk."""

    def decorate(function: Callable[..., Any]) -> Any:
        callback: Any = CFunc(
            function,
            sigutils.normalize_signature(signature),
            locals={},
            options=options,
            pipeline_class=_KernelCompiler,
        )
        callback._cache = _KernelCache(function)
        callback.compile()
        return callback

    return decorate


@contextlib.contextmanager
def loading_only() -> Iterator[None]:
    """Forbid compilation in this block: the first kernel that is not in the cache raises.

    Raises:
        KernelMissingError: a kernel would have to be compiled.
    """
    global _only_loading
    before, _only_loading = _only_loading, True
    try:
        yield
    finally:
        _only_loading = before


@contextlib.contextmanager
def compile_alone() -> Iterator[None]:
    """Hold the lock of this key's folder, so that one process compiles and the others load."""
    try:
        import fcntl

        lock = (storage() / "lock").open("wb")
        fcntl.flock(lock, fcntl.LOCK_EX)
    except (ImportError, OSError):  # without locks every process compiles, with the same results
        yield
        return
    with lock:
        yield


# -------------------------------------------------------------------- the key


def _sources() -> str:
    """Return a digest of the contents of every source of a kernel."""
    paths = sorted(path for pattern in SOURCES for path in PACKAGE.glob(pattern))
    if not paths:
        # installed without sources: versions cannot be told apart, so nothing may be reused
        return uuid.uuid4().hex
    digest = hashlib.sha256()
    for path in paths:
        contents = path.read_bytes()
        digest.update(
            f"{path.relative_to(PACKAGE).as_posix()} {len(contents)}\n".encode() + contents
        )
    return digest.hexdigest()


def _environment() -> dict[str, Any]:
    """Return what machine code depends on besides the sources."""
    return {
        "numba": numba.__version__,
        "llvmlite": llvmlite.__version__,
        "numpy": np.__version__,
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        # triple, processor, its features
        "target": registry.cpu_target.target_context.codegen().magic_tuple(),
        "settings": {name: str(getattr(config, name, None)) for name in SETTINGS},
    }


@functools.cache
def _sources_at_start() -> str:
    return _sources()


@functools.cache
def key() -> str:
    """Return the name of the folder of this process's kernels: 32 hexadecimal digits."""
    return hashlib.sha256(f"{_sources_at_start()} {_environment()!r}".encode()).hexdigest()[:32]


# ------------------------------------------------------------------ the places


@functools.cache
def _user_root() -> Path | None:
    """Return the folder in the user's cache; None if there is none, or others may write to it."""
    home = os.environ.get("XDG_CACHE_HOME", "")
    try:
        root = (Path(home) if os.path.isabs(home) else Path.home() / ".cache") / "navrl" / "kernels"
        state = root.stat()
    except FileNotFoundError:
        return root
    except (OSError, RuntimeError):
        return None
    own = not hasattr(os, "geteuid") or (state.st_uid == os.geteuid() and not state.st_mode & 0o022)
    return root if own else None  # kernels are pickles: loading one executes code


def _roots() -> list[Path]:
    """Return the possible parents of kernel folders, in order of preference."""
    beside = Path(importlib.util.cache_from_source(__file__)).parent / "kernels"
    usual = (
        [Path(config.CACHE_DIR) / "navrl-kernels"] if config.CACHE_DIR else [beside, _user_root()]
    )
    inherited = [Path(os.environ[INHERITED])] if INHERITED in os.environ else []
    return [root for root in (*usual, *inherited) if root is not None]


@functools.cache
def storage() -> Path:
    """Return the folder that this process writes kernels to; create it if necessary.

    If no other is writable it is a temporary one, with a warning.
    """
    for root in _roots():
        folder = root / key()
        known = folder.exists()
        try:
            root.mkdir(parents=True, exist_ok=True, mode=0o700 if root == _user_root() else 0o777)
            folder.mkdir(exist_ok=True)
            tempfile.TemporaryFile(dir=folder).close()
        except OSError:
            continue
        if not known:
            _prune(root)
        return folder
    return _temporary()


def _temporary() -> Path:
    """Return a folder that is removed when this process ends, shared with its child processes."""
    places = ", ".join(str(root) for root in _roots())
    warnings.warn(
        f"compiled kernels cannot be cached: {places} not writable. Every start compiles for about "
        "a minute; set NUMBA_CACHE_DIR to a writable folder",
        RuntimeWarning,
        stacklevel=2,
    )
    made, owner = tempfile.mkdtemp(prefix="navrl-kernels-"), os.getpid()
    atexit.register(
        lambda: shutil.rmtree(made, ignore_errors=True) if os.getpid() == owner else None
    )
    os.environ[INHERITED] = made
    folder = Path(made) / key()
    folder.mkdir()
    return folder


def _prune(root: Path) -> None:
    """Remove folders of other keys that have not been used for long, except the newest few.

    A process that still uses one has its kernels in memory, and compiles those it needs later.
    """
    with contextlib.suppress(OSError):  # another process prunes as well
        others = [
            path
            for path in root.iterdir()
            if re.fullmatch("[0-9a-f]{32}", path.name) and path.name != key()
        ]
        by_use = sorted(((path.stat().st_mtime, path) for path in others), reverse=True)
        for used, path in by_use[KEPT:]:
            if time.time() - used > UNUSED:
                shutil.rmtree(path, ignore_errors=True)


@functools.cache
def _note_use(folder: Path) -> None:
    """Mark a folder as used now, for `_prune`."""
    with contextlib.suppress(OSError):  # read-only
        os.utime(folder)


# ------------------------------------------------------------------- the files


class _KernelLibrary(JITCodeLibrary):  # type: ignore[misc]
    """The machine code of a kernel, which calls only its own copies of functions.

    numba lets kernels share a function that was not inlined, but each copy is optimised in another
    module and may round differently. A process that compiles would then compute different bits than
    one that loads.
    """

    def _optimize_final_module(self) -> None:
        super()._optimize_final_module()
        for function in self._final_module.functions:
            if not function.is_declaration and function.linkage == llvm.Linkage.linkonce_odr:
                function.linkage = llvm.Linkage.internal


class _KernelCompiler(Compiler):  # type: ignore[misc]
    """numba's compiler, into a `_KernelLibrary`."""

    def compile_extra(self, func: Callable[..., Any]) -> Any:
        """Return the compiled function."""
        self.state.library = _KernelLibrary(self.state.targetctx.codegen(), func.__qualname__)
        self.state.library.enable_object_caching()
        return super().compile_extra(func)


class _KernelCache(_Cache):  # type: ignore[misc]
    """numba's interface to the cached machine code of one function."""

    def __init__(self, function: Callable[..., Any], variant: str = "") -> None:
        module = function.__module__.removeprefix("navrl.")
        source = PurePosixPath(f"{module.replace('.', '/')}.py")
        closed = function.__closure__ and not variant
        if closed or not any(source.match(pattern) for pattern in SOURCES):
            raise TypeError(
                f"{function.__module__}.{function.__qualname__} cannot be cached on disk; expected "
                "a function in one of kernel_cache.SOURCES, without closure or with a variant"
            )
        name = f"{function.__name__}-{variant}" if variant else function.__qualname__
        self._name = f"{module}.{name}"
        # computed now: if the package is upgraded before the first call, its key must not be used
        _sources_at_start()

    @property
    def cache_path(self) -> str:
        """The folder, for numba's statistics."""
        return str(storage())

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """Return the compiled function for a signature; None if it is not on disk."""
        target_context.refresh()
        for folder in (root / key() for root in _roots()):
            payload = _read(folder / self._file(sig))
            if payload is not None:
                _note_use(folder)
                return CompileResult._rebuild(target_context, *pickle.loads(payload))
        if _only_loading:
            raise KernelMissingError(f"kernel {self._name} is not compiled")
        return None

    def save_overload(self, sig: Any, data: Any) -> None:
        """Store a compiled function, unless the sources have changed since this process started."""
        if data.library.has_dynamic_globals:
            return
        try:
            if _sources() == _sources_at_start():
                _write(storage() / self._file(sig), dumps(data._reduce()))
        except OSError as error:
            warnings.warn(
                f"kernel {self._name} cannot be cached: {error}", RuntimeWarning, stacklevel=2
            )

    def _file(self, sig: Any) -> str:
        return f"{self._name}-{hashlib.sha256(str(sig).encode()).hexdigest()[:16]}.nbc"

    def enable(self) -> None:
        """Part of numba's interface; it is always enabled."""

    def disable(self) -> None:
        """Part of numba's interface; it is always enabled."""

    def flush(self) -> None:
        """Part of numba's interface; files of a key never become stale."""


def _read(path: Path) -> bytes | None:
    """Return the contents of a file; None if it is missing or damaged, as by a power loss."""
    try:
        contents = path.read_bytes()
    except OSError:
        return None
    digest, payload = contents[:32], contents[32:]
    if hashlib.sha256(payload).digest() == digest:
        return payload
    with contextlib.suppress(OSError):
        path.unlink()
    return None


def _write(path: Path, payload: bytes) -> None:
    """Write a file atomically, unless it exists, so that every process runs the same code."""
    if path.exists():
        return
    temporary = path.with_name(f"{path.name}.{uuid.uuid4().hex[:16]}.tmp")
    try:
        temporary.write_bytes(hashlib.sha256(payload).digest() + payload)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
