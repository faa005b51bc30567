"""After any sequence of operations, losses and kills, the registry agrees with a plain dict."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import tempfile
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from navrl.errors import RegistryError
from navrl.registry import STAGES, Registry
from navrl.registry.blobs import BlobStore
from navrl.registry.journal import Journal

NAMES = st.sampled_from(["a", "b"])
ALIASES = st.sampled_from(["latest", "best", "prod", "v1.0"])
NUMBERS = st.integers(0, 5)


class Against(RuleBasedStateMachine):
    """The oracle: for each model its counter, contents and stages by version, and for each alias
    the pile of its targets.
    """

    def __init__(self) -> None:
        super().__init__()
        memory = Path("/dev/shm")
        self.folder = Path(
            tempfile.mkdtemp(prefix="navrl-", dir=memory if memory.is_dir() else None)
        )
        self.registry = Registry(self.folder / "registry")
        self.last: dict[str, int] = {}
        self.content: dict[str, dict[int, str]] = {}
        self.stage: dict[str, dict[int, str]] = {}
        self.pile: dict[tuple[str, str], list[int | None]] = {}
        # contents that a killed process placed, and no version refers to
        self.unknown: set[str] = set()

    def teardown(self) -> None:
        self.registry.close()
        shutil.rmtree(self.folder)

    def at(self, name: str, alias: str) -> int | None:
        return (self.pile.get((name, alias)) or [None])[-1]

    def aliases(self, name: str, version: int) -> list[str]:
        return sorted(
            alias for model, alias in self.pile if model == name and self.at(name, alias) == version
        )

    def move(self, name: str, alias: str, version: int | None) -> None:
        old = self.at(name, alias)
        if old == version:
            return
        self.pile.setdefault((name, alias), []).append(version)
        self.staged(name, alias, old, version)

    def staged(self, name: str, alias: str, old: int | None, new: int | None) -> None:
        if alias == "prod" and old in self.stage.get(name, {}):
            self.stage[name][old] = "archived"
        if alias == "prod" and new is not None:
            self.stage[name][new] = "production"

    def remove(self, name: str, version: int) -> None:
        del self.content[name][version], self.stage[name][version]

    @contextlib.contextmanager
    def only_if(self, possible: bool):
        if possible:
            yield
        else:
            with pytest.raises(RegistryError):
                yield

    @rule(name=NAMES, content=st.sampled_from("xyz"), alias=st.none() | ALIASES)
    def register(self, name, content, alias):
        file = self.folder / "file"
        file.write_text(content)
        made = self.registry.register(
            name, file, aliases=[alias] if alias else [], lineage={"git": {}}
        )
        assert made.version == self.added(name, content, alias)

    def added(self, name: str, content: str, alias: str | None = None) -> int:
        """Note a registration, and return the number that the version must have."""
        number = self.last[name] = self.last.get(name, 0) + 1
        self.content.setdefault(name, {})[number] = content
        self.stage.setdefault(name, {})[number] = "none"
        for moved in dict.fromkeys([*([alias] if alias else []), "latest"]):
            self.move(name, moved, number)
        return number

    @rule(
        name=NAMES, content=st.sampled_from("xyz"), moment=st.sampled_from(["placed", "recorded"])
    )
    def register_and_be_killed(self, name, content, moment):
        file = self.folder / "file"
        file.write_text(content)
        child = os.fork()
        if child == 0:
            _die_when(moment)
            with contextlib.suppress(BaseException):
                self.registry.register(name, file, aliases=[], lineage={"git": {}})
            os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
        self.registry.close()  # who opens it next finishes what is in the journal
        if moment == "recorded":
            self.added(name, content)
        else:
            self.unknown.add(content)

    @rule(empty=st.booleans())
    def lose_the_database(self, empty):
        self.registry.close()
        for file in self.registry.root.glob("registry.db*"):
            file.unlink()
        if empty and self.registry.root.is_dir():
            (self.registry.root / "registry.db").touch()

    @rule()
    def copy_the_database(self):
        self.registry.close()
        if (self.registry.root / "registry.db").exists():
            shutil.copy(self.registry.root / "registry.db", self.folder / "copy.db")

    @rule()
    def restore_the_copy(self):
        self.registry.close()
        if (self.folder / "copy.db").exists():
            for file in self.registry.root.glob("registry.db-*"):
                file.unlink()
            shutil.copy(self.folder / "copy.db", self.registry.root / "registry.db")

    @rule()
    def overwrite_the_database_and_repair(self):
        if (self.registry.root / "registry.db").exists():
            self.registry.close()
            (self.registry.root / "registry.db").write_bytes(b"garbage " * 1000)
        self.repair()

    @rule()
    def repair(self):
        for label in self.registry.repair().adopted:
            content = self.registry.resolve(label).path.read_text()
            assert content in self.unknown
            assert label == f"recovered:v{self.added('recovered', content)}"

    @rule(purge=st.booleans())
    def collect_garbage(self, purge):
        for path in self.registry.collect_garbage(purge_quarantine=purge).files:
            # `delete` and `prune` removed the rest themselves
            assert path.parent.name == "quarantine"
        self.unknown.clear()

    @rule(name=NAMES, alias=ALIASES, number=NUMBERS)
    def set_alias(self, name, alias, number):
        with self.only_if(number in self.content.get(name, {})):
            self.registry.set_alias(name, alias, number)
            self.move(name, alias, number)

    @rule(name=NAMES, alias=ALIASES)
    def remove_alias(self, name, alias):
        with self.only_if(self.at(name, alias) is not None):
            self.registry.remove_alias(name, alias)
            self.move(name, alias, None)

    @rule(name=NAMES, alias=ALIASES)
    def rollback(self, name, alias):
        pile, now = self.pile.get((name, alias), []), self.at(name, alias)
        places = [
            i
            for i, version in enumerate(pile[:-1])
            if version in self.content.get(name, {}) and version != now
        ]
        with self.only_if(bool(places)):
            found = self.registry.rollback(name, alias)
            del pile[places[-1] + 1 :]
            assert found.version == pile[-1]
            self.staged(name, alias, now, pile[-1])

    @rule(name=NAMES, number=NUMBERS, stage=st.sampled_from(STAGES))
    def promote(self, name, number, stage):
        possible = number in self.content.get(name, {})
        if possible and stage != "production":
            possible = self.stage[name][number] != "production"
        with self.only_if(possible):
            self.registry.promote(f"{name}:v{number}", stage)
            if stage == "production":
                self.move(name, "prod", number)
            else:
                self.stage[name][number] = stage

    @rule(name=NAMES, number=NUMBERS, force=st.booleans())
    def delete(self, name, number, force):
        there = number in self.content.get(name, {})
        pointing = self.aliases(name, number)
        with self.only_if(there and (force or not pointing)):
            self.registry.delete(name, number, force=force)
            left = [version for version in self.content[name] if version != number]
            for alias in pointing:
                self.move(name, alias, max(left) if alias == "latest" and left else None)
            self.remove(name, number)

    @rule(name=NAMES, keep=st.integers(1, 3))
    def prune(self, name, keep):
        versions = sorted(self.content.get(name, {}))
        with self.only_if(bool(versions)):
            gone = [version.version for version in self.registry.prune(name, keep)]
            expected = [
                version
                for version in versions[:-keep]
                if not self.aliases(name, version)
                and self.stage[name][version] not in ("staging", "production")
            ]
            assert gone == expected
            for version in expected:
                self.remove(name, version)

    @invariant()
    def they_agree(self):
        models = {name: versions for name, versions in self.content.items() if versions}
        assert [model.name for model in self.registry.models()] == sorted(models)
        for name, contents in models.items():
            found = self.registry.versions(name)
            assert {version.version: version.path.read_text() for version in found} == contents
            assert {version.version: version.stage for version in found} == self.stage[name]
            assert {version.version: sorted(version.aliases) for version in found} == {
                version: self.aliases(name, version) for version in contents
            }
        stored = {
            path.read_text()
            for path in (self.registry.root / "objects").glob("??/*")
            if path.is_file()
        }
        needed = {content for contents in models.values() for content in contents.values()}
        assert needed <= stored <= needed | self.unknown
        assert self.registry.verify() == []


def _die_when(moment: str) -> None:
    """Have this process killed when it has placed its file, or when its change is in the journal
    and not committed.
    """
    owner, name = {"placed": (BlobStore, "place"), "recorded": (Journal, "append")}[moment]
    original = getattr(owner, name)

    def act_and_die(*arguments, **options):
        original(*arguments, **options)
        os.kill(os.getpid(), signal.SIGKILL)

    setattr(owner, name, act_and_die)


TestAgainstADict = pytest.mark.slow(Against.TestCase)
TestAgainstADict.settings = settings(max_examples=20, stateful_step_count=25, deadline=None)
