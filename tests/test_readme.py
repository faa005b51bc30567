"""The README in both languages: the same commands, code and figures, and those of the results."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "benchmarks"))

import _page  # noqa: E402
import _readme_page  # noqa: E402

ENGLISH, CHINESE = ((ROOT / name).read_text() for name in ("README.md", "README.zh-CN.md"))


@pytest.mark.parametrize("words", [_readme_page.ENGLISH, _readme_page.CHINESE], ids=["en", "zh"])
def test_the_table_is_that_of_the_results(words):
    page = (ROOT / words["page"]).read_text()
    told = "run `python benchmarks/_readme_page.py`"
    assert _page.written(page, _readme_page.WRITER) == _readme_page.table(words), told


def without_comments(code: str) -> list[str]:
    """Return the lines of a block without comments."""
    return [re.split(r"\s+#", line)[0].rstrip() for line in code.splitlines()]


def test_both_languages_show_the_same_commands_and_code():
    english, chinese = (
        [without_comments(code) for code in re.findall(r"```\w+\n(.*?)```", page, re.S)]
        for page in (ENGLISH, CHINESE)
    )
    assert english == chinese


def test_both_languages_name_the_same_numbers():
    english, chinese = (sorted(re.findall(r"\d+(?:[.,]\d+)*", page)) for page in (ENGLISH, CHINESE))
    assert english == chinese


def test_both_languages_link_to_the_same_pages_in_the_same_order():
    english, chinese = (re.findall(r"\]\(([^)]+)\)", page) for page in (ENGLISH, CHINESE))
    assert english[1:] == chinese[1:]  # the first is the other language
    assert all((ROOT / link.partition("#")[0]).exists() for link in english if "://" not in link)
