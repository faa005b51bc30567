"""Every public name says what it is and shows how to use it; the examples run."""

from __future__ import annotations

import ast
import doctest
import importlib
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "docs" / "site"))

import api_pages  # noqa: E402

WITHOUT_EXAMPLE = {  # and why
    "CollectorError": "raised while a collector of TorchRL runs",
    "SweepError": "raised after trainings of a sweep have run",
    "export_minari": "needs the rollouts of a training; test_rollouts_command.py exports some",
}
NAMES = {
    (name, place)
    for module in api_pages.MODULES
    for name, place in api_pages.public_names(module).items()
}


@pytest.mark.parametrize("module", api_pages.MODULES)
def test_every_public_name_and_method_has_a_docstring(module):
    for name, place in api_pages.public_names(module).items():
        for node in api_pages._definitions(api_pages._tree(place)):
            if node.name == name:
                assert ast.get_docstring(node), f"{place}.{name}"
                for part in api_pages._definitions(node) if isinstance(node, ast.ClassDef) else ():
                    assert part.name.startswith("_") or ast.get_docstring(part), (name, part.name)


@pytest.mark.parametrize("module", api_pages.MODULES)
def test_every_public_function_and_class_has_an_example(module):
    defined = {
        (node.name, place): ast.get_docstring(node) or ""
        for place in {*api_pages.public_names(module).values()}
        for node in api_pages._definitions(api_pages._tree(place))
    }
    named = api_pages.public_names(module).items()
    without = [name for name in named if ">>>" not in defined.get(name, ">>>")]
    assert [name for name, _ in without if name not in WITHOUT_EXAMPLE] == []


def test_what_needs_no_example_is_public_and_has_none():
    places = dict(NAMES)
    docstrings = {
        name: ast.get_docstring(node) or ""
        for name in WITHOUT_EXAMPLE
        for node in api_pages._definitions(api_pages._tree(places[name]))
        if node.name == name
    }
    assert [*docstrings] == [*WITHOUT_EXAMPLE]
    assert not any(">>>" in docstring for docstring in docstrings.values())


@pytest.mark.slow
def test_the_examples_run(tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("NAVRL_REGISTRY", str(tmp_path / "registry"))
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    runner = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS)
    finder = doctest.DocTestFinder(recurse=False)
    for name, place in sorted(NAMES):
        found = getattr(importlib.import_module(place), name)
        for example in finder.find(found, f"{place}.{name}", globs={name: found}):
            folder = tmp_path / example.name
            folder.mkdir()
            monkeypatch.chdir(folder)
            runner.run(example)
    torch.set_num_threads(threads)
    assert runner.summarize(verbose=False).failed == 0
