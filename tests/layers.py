"""The layers of navrl: reads `layers.toml`, finds imports, draws the picture of docs/architecture.md.

python tests/layers.py     # write the generated part of the page anew
"""

from __future__ import annotations

import ast
import functools
from dataclasses import dataclass
from pathlib import Path

import tomllib

REPOSITORY = Path(__file__).parents[1]
PACKAGE = REPOSITORY / "src" / "navrl"
PAGE = REPOSITORY / "docs" / "architecture.md"
BEGIN, END = (
    f"<!-- {word} of what tests/layers.py writes from tests/layers.toml -->"
    for word in ("begin", "end")
)


@dataclass(frozen=True)
class Layers:
    """The table: parts by layer, from the top; imports within a layer; imports within a part."""

    layers: dict[str, dict[str, str]]  # name: {part: what it is}
    about: dict[str, str]  # name of a layer: what it is
    sideways: dict[str, list[str]]
    without: dict[str, list[str]]  # what a part may not import although it lies below
    rooms: dict[str, dict[str, list[str]]]

    def layer_of(self, part: str) -> int | None:
        """Return the number of a part's layer, 0 at the top; None if it has none."""
        for number, parts in enumerate(self.layers.values()):
            if part in parts:
                return number
        return None

    def may_import(self, part: str, other: str) -> bool:
        """Return whether a part may import another."""
        own, its = self.layer_of(part), self.layer_of(other)
        if own is None or its is None or other in self.without.get(part, ()):
            return False
        return own < its or other in self.sideways.get(part, ())


def read_layers() -> Layers:
    """Return the table of `layers.toml`."""
    table = tomllib.loads(Path(__file__).with_suffix(".toml").read_text())
    return Layers(
        {layer["name"]: layer["parts"] for layer in table["layer"]},
        {layer["name"]: layer["about"] for layer in table["layer"]},
        table["sideways"],
        table["without"],
        table["rooms"],
    )


def part_of(module: str) -> str:
    """Return the part that a dotted module belongs to: `navrl.sim.env` -> `sim`."""
    pieces = module.split(".")
    return pieces[1] if len(pieces) > 1 else "__init__"


@functools.cache
def imports_of(path: Path, package: Path = PACKAGE) -> list[tuple[int, str]]:
    """Return (line, module) of everything of navrl that a file imports, anywhere in it."""
    inside = ["navrl", *path.relative_to(package).parts[:-1]]
    found = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found += [(node.lineno, alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = inside[: len(inside) - node.level + 1] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            # `from navrl.io import saver` names a module, `from navrl.io.saver import Saver` a class
            names = [f"{module}.{alias.name}" for alias in node.names]
            found += [
                (node.lineno, name if _is_module(name, package) else module) for name in names
            ]
    return [(line, module) for line, module in found if module.split(".")[0] == "navrl"]


def _is_module(name: str, package: Path) -> bool:
    path = package.joinpath(*name.split(".")[1:])
    return name == "navrl.__version__" or path.is_dir() or path.with_suffix(".py").is_file()


def picture(layers: Layers) -> str:
    """Return the layers as a Mermaid flowchart: arrows point at what is imported."""
    lines = ["```mermaid", "flowchart TB"]
    for number, (name, parts) in enumerate(layers.layers.items()):
        lines.append(f'  subgraph L{number}["{name}: {layers.about[name]}"]')
        lines += [f'    {_node(part)}["{_title(part)}"]' for part in parts]
        lines.append("  end")
    lines += [f"  L{number} ==> L{number + 1}" for number in range(len(layers.layers) - 1)]
    lines += [
        f"  {_node(part)} --> {_node(other)}"
        for part, others in layers.sideways.items()
        for other in others
    ]
    return "\n".join([*lines, "```"])


def _node(part: str) -> str:
    return f"part_{part.strip('_')}"


def _title(part: str) -> str:
    return f"{part}/" if (PACKAGE / part).is_dir() else f"{part}.py"


def description(layers: Layers) -> str:
    """Return a Markdown table of the parts, and one of the rooms inside them."""
    lines = ["| part | what it is | imports within its layer |", "|---|---|---|"]
    for name, parts in layers.layers.items():
        lines.append(f"| **{name}** | {layers.about[name]} | |")
        for part, about in parts.items():
            others = ", ".join(
                [f"`{other}`" for other in layers.sideways.get(part, ())]
                + [f"never `{other}`" for other in layers.without.get(part, ())]
            )
            lines.append(f"| `{_title(part)}` | {about} | {others} |")
    lines += ["", "| room | may import, of the same part |", "|---|---|"]
    for part, rooms in layers.rooms.items():
        for room, others in rooms.items():
            listed = ", ".join(f"`{other}`" for other in others) or "nothing"
            lines.append(f"| `{part}/{room}` | {listed} |")
    return "\n".join(lines)


def generated(layers: Layers) -> str:
    """Return the part of the page that comes from the table, with its markers."""
    return "\n\n".join([BEGIN, picture(layers), description(layers), END])


def written(page: str) -> str:
    """Return the generated part of a page, as it is there."""
    return page[page.index(BEGIN) : page.index(END) + len(END)]


def main() -> None:
    """Write the generated part of the page anew."""
    page = PAGE.read_text()
    PAGE.write_text(page.replace(written(page), generated(read_layers())))


if __name__ == "__main__":
    main()
