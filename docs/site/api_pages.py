"""The reference of the Python API: public names, their signatures and docstrings, as Markdown.

The sources are parsed, never imported, so the pages need no optional package and take milliseconds.
"""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

SOURCE = Path(__file__).parents[2] / "src"
MODULES = (  # the public ones; a page each
    "navrl",
    "navrl.io",
    "navrl.io.checkpoint",
    "navrl.io.replay",
    "navrl.io.rollouts",
    "navrl.evaluation",
    "navrl.registry",
    "navrl.deploy",
    "navrl.sweep",
    "navrl.observation",
    "navrl.rl.environment",
    "navrl.rl.action_space",
    "navrl.adapters.gymnasium",
    "navrl.adapters.stable_baselines3",
    "navrl.adapters.torchrl",
    "navrl.adapters.rsl_rl",
    "navrl.tracking.backends",
    "navrl.metrics_log",
    "navrl.testing",
    "navrl.errors",
)
SECTIONS = ("Args", "Returns", "Raises", "Yields", "Attributes")
Definition = ast.ClassDef | ast.FunctionDef


def page_name(module: str) -> str:
    """Return the file of a module's page."""
    return f"api/{module}.md"


def module_page(module: str) -> str:
    """Return the page of a module: what it is for, and every public name."""
    parts = [f"# `{module}`", _as_markdown(ast.get_docstring(_tree(module)) or "")]
    elsewhere = []
    for name, place in public_names(module).items():
        home = _home(name, place)
        if home == module:
            parts += _definition_of(name, place)
        else:
            elsewhere.append(f"[`{name}`]({Path(page_name(home)).name}#{name.lower()})")
    if elsewhere:
        parts.append(f"Also here: {', '.join(elsewhere)}.")
    return "\n\n".join(part for part in parts if part) + "\n"


@lru_cache
def _home(name: str, place: str) -> str:
    """Return the first module that offers a name: its page describes it."""
    return next(module for module in MODULES if public_names(module).get(name) == place)


@lru_cache
def public_names(module: str) -> dict[str, str]:
    """Return the public names of a module, and the module that defines each."""
    assigned = {
        target.id: node.value
        for node in _tree(module).body
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    if "_PUBLIC" in assigned:
        places = ast.literal_eval(assigned["_PUBLIC"])
    else:
        listed = (
            ast.literal_eval(assigned["__all__"]) if "__all__" in assigned else _defined(module)
        )
        imported = {
            alias.asname or alias.name: node.module
            for node in _tree(module).body
            if isinstance(node, ast.ImportFrom)
            for alias in node.names
        }
        places = {name: imported.get(name, module) for name in listed}
    return {name: _origin(name, place, module) for name, place in sorted(places.items())}


def _origin(name: str, place: str, asking: str) -> str:
    """Return the module that defines a name, through packages that only pass it on."""
    if place == asking or any(node.name == name for node in _definitions(_tree(place))):
        return place
    return public_names(place).get(name, place)


def _defined(module: str) -> list[str]:
    """Return the public classes of a module that lists no names."""
    nodes = (node for node in _tree(module).body if isinstance(node, ast.ClassDef))
    return [node.name for node in nodes if not node.name.startswith("_")]


@lru_cache
def _tree(module: str) -> ast.Module:
    path = SOURCE.joinpath(*module.split("."))
    file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    return ast.parse(file.read_text())


def _definitions(tree: ast.Module | ast.ClassDef) -> Iterator[Definition]:
    return (node for node in tree.body if isinstance(node, Definition))


def _definition_of(name: str, module: str) -> Iterator[str]:
    """Yield the heading, signature, description and public methods of a name."""
    yield f"## {name}"
    found = next((node for node in _definitions(_tree(module)) if node.name == name), None)
    if found is None:
        yield from _constant(name, module)
        return
    yield f"```python\n{_signature(found)}\n```"
    yield _as_markdown(ast.get_docstring(found) or "")
    if isinstance(found, ast.ClassDef):
        for member in _definitions(found):
            if isinstance(member, ast.FunctionDef) and not member.name.startswith("_"):
                yield from _method(member)


def _constant(name: str, module: str) -> Iterator[str]:
    for node in _tree(module).body:
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        if any(isinstance(target, ast.Name) and target.id == name for target in targets):
            line = ast.unparse(node)
            yield f"```python\n{line if len(line) <= 200 else f'{name} = ...'}\n```"


def _method(member: ast.FunctionDef) -> Iterator[str]:
    decorators = [ast.unparse(decorator) for decorator in member.decorator_list]
    if any(decorator.endswith((".setter", "overload")) for decorator in decorators):
        return
    yield f"### {member.name}"
    if "property" not in decorators and "cached_property" not in decorators:
        yield f"```python\n{_signature(member, skip_first='staticmethod' not in decorators)}\n```"
    yield _as_markdown(ast.get_docstring(member) or "")


def _signature(node: Definition, skip_first: bool = False) -> str:
    if isinstance(node, ast.ClassDef):
        made = next((part for part in _definitions(node) if part.name == "__init__"), None)
        if isinstance(made, ast.FunctionDef):
            return _call(node.name, _arguments(made.args, skip_first=True), "")
        fields = [ast.unparse(part) for part in node.body if isinstance(part, ast.AnnAssign)]
        fields = [field for field in fields if not field.startswith("_")]
        return _call(node.name, fields if _is_dataclass(node) else [], "")
    returned = f" -> {ast.unparse(node.returns)}" if node.returns else ""
    return _call(node.name, _arguments(node.args, skip_first), returned)


def _is_dataclass(node: ast.ClassDef) -> bool:
    return any("dataclass" in ast.unparse(decorator) for decorator in node.decorator_list)


def _call(name: str, arguments: list[str], returned: str) -> str:
    line = f"{name}({', '.join(arguments)}){returned}"
    if len(line) <= 88:
        return line
    return f"{name}(\n    " + ",\n    ".join(arguments) + f",\n){returned}"


def _arguments(arguments: ast.arguments, skip_first: bool) -> list[str]:
    """Return the parameters of a function as they are written."""
    positional = [*arguments.posonlyargs, *arguments.args]
    defaults = [None] * (len(positional) - len(arguments.defaults)) + [*arguments.defaults]
    written = [_argument(part, value) for part, value in zip(positional, defaults, strict=True)]
    written = written[1:] if skip_first else written
    if arguments.vararg:
        written.append(f"*{_argument(arguments.vararg, None)}")
    elif arguments.kwonlyargs:
        written.append("*")
    pairs = zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
    written += [_argument(part, value) for part, value in pairs]
    return [*written, *([f"**{_argument(arguments.kwarg, None)}"] if arguments.kwarg else [])]


def _argument(part: ast.arg, value: ast.expr | None) -> str:
    kind = f": {ast.unparse(part.annotation)}" if part.annotation else ""
    if value is None:
        return f"{part.arg}{kind}"
    return f"{part.arg}{kind}{' = ' if kind else '='}{ast.unparse(value)}"


def _as_markdown(docstring: str) -> str:
    """Return a docstring with its sections as lists and its examples as code."""
    blocks = []
    for block in re.split(r"\n\s*\n", inspect.cleandoc(docstring)):
        heading = re.match(rf"({'|'.join(SECTIONS)}):\n", block)
        if block.lstrip().startswith(">>>"):
            blocks.append(f"```pycon\n{inspect.cleandoc(block)}\n```")
        elif heading:
            blocks.append(f"**{heading[1]}**\n\n{_items(block[heading.end() :])}")
        else:
            blocks.append(block)
    return "\n\n".join(blocks)


def _items(lines: str) -> str:
    """Return `name: meaning` lines as a list."""
    cleaned = inspect.cleandoc(f"\n{lines}")
    joined = re.sub(r"\n\s+", " ", cleaned)
    return "\n".join(re.sub(r"^(\*{0,2}\w+): ", r"- `\1`: ", line) for line in joined.split("\n"))
