"""A hostile name at every entry point: refused by name, nothing read, nothing written."""

from __future__ import annotations

import pytest
from test_model_names import HOSTILE

from navrl.errors import RegistryError
from navrl.registry import find_model

CALLS = {
    "register": lambda registry, name, file: registry.register(name, file),
    "register with an alias": lambda registry, name, file: registry.register(
        "policy", file, aliases=[name]
    ),
    "register with a tag": lambda registry, name, file: registry.register(
        "policy", file, tags=[name]
    ),
    "register with a stage": lambda registry, name, file: registry.register(
        "policy", file, stage=name or "?"
    ),
    "register with a parent": lambda registry, name, file: registry.register(
        "policy", file, lineage={"parent": name}
    ),
    "resolve": lambda registry, name, file: registry.resolve(name),
    "resolve an alias": lambda registry, name, file: registry.resolve(f"policy:{name}"),
    "resolve a project": lambda registry, name, file: registry.resolve(f"ada/{name}/policy:best"),
    "resolve a user": lambda registry, name, file: registry.resolve(f"{name}/drones/policy:best"),
    "versions": lambda registry, name, file: registry.versions(name),
    "history": lambda registry, name, file: registry.history(name, "best"),
    "history of an alias": lambda registry, name, file: registry.history("policy", name),
    "set_alias": lambda registry, name, file: registry.set_alias("policy", name, 1),
    "set_alias of a model": lambda registry, name, file: registry.set_alias(name, "best", 1),
    "set_alias to": lambda registry, name, file: registry.set_alias("policy", "best", name),
    "remove_alias": lambda registry, name, file: registry.remove_alias("policy", name),
    "rollback": lambda registry, name, file: registry.rollback("policy", name),
    "rollback of a model": lambda registry, name, file: registry.rollback(name, "best"),
    "promote": lambda registry, name, file: registry.promote(name, "production"),
    "promote to": lambda registry, name, file: registry.promote("policy", name),
    "tag": lambda registry, name, file: registry.tag("policy", {name: "x"}),
    "tag of a model": lambda registry, name, file: registry.tag(name, ["x"]),
    "prune": lambda registry, name, file: registry.prune(name, 1),
    "delete": lambda registry, name, file: registry.delete(name, 1),
    "delete of a version": lambda registry, name, file: registry.delete("policy", name),
    "compare": lambda registry, name, file: registry.compare([name, "policy"]),
    "card": lambda registry, name, file: registry.card(name),
    "find_model": lambda registry, name, file: find_model(f"{name}:best", registry),
}


def contents(registry) -> set[tuple[str, bytes]]:
    return {
        (path.name, path.read_bytes())
        for path in (registry.root / "objects").glob("??/*")
        if path.is_file()
    }


@pytest.mark.parametrize("call", CALLS)
def test_no_hostile_name_gets_past_an_entry_point(registry, put, tmp_path, call):
    put(aliases=["best"])
    file = tmp_path / "other.pt"
    file.write_text("other")
    before = (
        registry.versions("policy"),
        registry.models(),
        contents(registry),
        sorted(tmp_path.rglob("*")),
    )
    for name in HOSTILE:
        with pytest.raises(RegistryError) as caught:
            CALLS[call](registry, name, file)
        assert str(caught.value).isprintable(), name
    assert before == (
        registry.versions("policy"),
        registry.models(),
        contents(registry),
        sorted(tmp_path.rglob("*")),
    )


@pytest.mark.parametrize("number", [0, -1, 10**30, True, 2.0, None])
def test_a_version_that_is_no_number_of_one_is_refused(registry, put, number):
    put()
    with pytest.raises(RegistryError):
        registry.set_alias("policy", "best", number)
    with pytest.raises(RegistryError):
        registry.delete("policy", number, force=True)
    assert len(registry.versions("policy")) == 1
