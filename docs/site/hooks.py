"""Hooks of `mkdocs build`: pages that are written from code, and links that leave docs/."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from api_pages import MODULES, module_page, page_name
from command_page import command_page
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[2]
LINK = re.compile(r"(!?\[[^\]]*\])\(([^)\s]+)\)")
FROM_ROOT = {  # pages that are files of the repository
    "index.md": "README.md",
    "zh-CN.md": "README.zh-CN.md",
    "changelog.md": "CHANGELOG.md",
    "contributing.md": "CONTRIBUTING.md",
    "policy-card.md": "src/navrl/policies/pretrained.md",
}
PAGES = {source: page for page, source in FROM_ROOT.items()}


def on_files(files: Files, config: Any) -> Files:
    """Add the pages that are written from code or stand outside docs/, and the files linked to."""
    texts = {page: (ROOT / source).read_text() for page, source in FROM_ROOT.items()}
    texts["commands.md"] = command_page()
    texts |= {page_name(module): module_page(module) for module in MODULES}
    for page, text in texts.items():
        files.append(File.generated(config, page, content=text))
    for path in sorted(_linked()):
        files.append(File.generated(config, f"repository/{path}", abs_src_path=str(ROOT / path)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Point the links of a page at the pages and files of the site."""
    source = FROM_ROOT.get(page.file.src_uri, f"docs/{page.file.src_uri}")
    depth = page.file.src_uri.count("/")
    return LINK.sub(lambda link: _moved(link, source, "../" * depth), markdown)


def _moved(link: re.Match[str], source: str, up: str) -> str:
    label, target = link.groups()
    place = _place(target, source)
    if place is None:
        return link[0]
    path, anchor = place
    if (ROOT / path).is_dir():
        return label.strip("[]")  # a site has no listings
    if path in PAGES:
        return f"{label}({up}{PAGES[path]}{anchor})"
    inside = path.removeprefix("docs/")
    return f"{label}({up}{inside if inside != path else f'repository/{path}'}{anchor})"


def _place(target: str, source: str) -> tuple[str, str] | None:
    """Return the file of the repository that a link leads to, and the anchor; None: elsewhere."""
    path, hash_sign, anchor = target.partition("#")
    if not path or "://" in path or path.startswith("mailto:"):
        return None
    found = (ROOT / source).parent.joinpath(path).resolve()
    if not found.exists() or ROOT not in found.parents:
        return None  # a generated page, or a mistake that mkdocs reports
    return found.relative_to(ROOT).as_posix(), hash_sign + anchor


def _linked() -> set[str]:
    """Return the files outside docs/ that pages link to."""
    sources = [*ROOT.glob("docs/*.md"), *(ROOT / source for source in PAGES)]
    linked = set()
    for source in sources:
        for _, target in LINK.findall(source.read_text()):
            place = _place(target, source.relative_to(ROOT).as_posix())
            if place and (ROOT / place[0]).is_file() and not place[0].startswith("docs/"):
                linked.add(place[0])
    return linked - PAGES.keys()
