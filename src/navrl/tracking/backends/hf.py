"""Hugging Face hub: models only, one repository for each name.

A repository holds `v3/model.pt` for every version, the newest model card as `README.md`, and
`navrl.json`: file, digest and metadata of the versions, and the aliases. Every change is one
commit on top of the commit that was read, so two processes never overwrite each other's.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi
from huggingface_hub.errors import (
    HfHubHTTPError,
    LocalTokenNotFoundError,
    RemoteEntryNotFoundError,
    RepositoryNotFoundError,
)

from navrl.errors import TrackingError
from navrl.registry.model_names import check_alias, check_name, parse_reference
from navrl.tracking.backends.interface import (
    Backend,
    all_aliases,
    described,
    legal_file_name,
    verified,
    wanted_version,
)

INDEX, CARD = "navrl.json", "README.md"
ATTEMPTS = 8  # of a commit, while others commit to the same repository
MOVED = (409, 412)  # answers to a commit whose parent is not the newest any more
LARGEST_INDEX = 1 << 24  # bytes
FRONT_MATTER = "---\nlibrary_name: navrl\npipeline_tag: reinforcement-learning\n---\n\n"
Index = dict[str, Any]


class HfBackend(Backend):
    """Models in repositories `USER/NAME`, private unless told otherwise. Metrics are left out."""

    def __init__(
        self,
        user: str = "",
        private: bool | str = True,
        endpoint: str = "",
        project: str = "",
        folder: str | os.PathLike[str] = ".",
    ) -> None:
        self._api = HfApi(endpoint=endpoint or None, library_name="navrl")
        self._user = check_name(user, "user") if user else ""
        self._private = str(private).lower() not in ("false", "0", "no")

    def upload(
        self,
        file: Path,
        name: str,
        *,
        aliases: Collection[str] = (),
        metadata: Mapping[str, Any] | None = None,
    ) -> str:
        """Commit a file as the newest version."""
        check_name(name)
        labels, known = all_aliases(aliases), described(file, metadata)
        card = str(known.pop("description", ""))
        with _advised():
            repository = self._repository(name)
            self._api.create_repo(repository, private=self._private, exist_ok=True)

        def change(index: Index) -> tuple[str, list[Any]]:
            same = (v for v, e in index["versions"].items() if e["sha256"] == known["sha256"])
            version = next(same, None)
            operations = []
            if version is None:
                version = f"v{index['next']}"
                index["next"] += 1
                index["versions"][version] = known
                operations.append(CommitOperationAdd(f"{version}/{known['file']}", str(file)))
                if card:
                    text = (FRONT_MATTER + card).encode()
                    operations.append(CommitOperationAdd(CARD, text))
            index["aliases"].update(dict.fromkeys(labels, version))
            return version, operations

        return self._commit(name, change, f"Upload {known['file']}")

    def download(self, reference: str, folder: Path) -> Path:
        """Fetch `name:alias` or `name:v3`, verified."""
        parsed = parse_reference(reference)
        commit, index = self._read(parsed.name)
        if commit is None:
            raise TrackingError(
                f"{reference}: {self._api.endpoint} has no repository "
                f"{self._repository(parsed.name)}, or it is private: sign in with "
                "`hf auth login`, or set HF_TOKEN"
            )
        _, version = wanted_version(reference, [*index["versions"]], index["aliases"])
        entry = index["versions"][version]
        file_name = legal_file_name(entry["file"])
        target = Path(folder) / parsed.name / version / file_name
        with self._fetched(parsed.name, f"{version}/{file_name}", commit) as fetched:
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(fetched, target)
        return verified(target, entry["sha256"], reference)

    def versions(self, name: str) -> list[str]:
        """Return the versions, oldest first."""
        return [*self._read(name)[1]["versions"]]

    def aliases(self, name: str) -> dict[str, str]:
        """Return the version of each alias."""
        return dict(self._read(name)[1]["aliases"])

    def set_alias(self, name: str, alias: str, version: str) -> None:
        """Move an alias."""

        def change(index: Index) -> tuple[str, list[Any]]:
            _, found = wanted_version(f"{name}:{version}", [*index["versions"]], {})
            index["aliases"][check_alias(alias)] = found
            return found, []

        self._commit(name, change, f"Point {alias} at {version}")

    def delete(self, name: str, version: str) -> None:
        """Remove a version from the newest commit; the history of the repository keeps it."""

        def change(index: Index) -> tuple[str, list[Any]]:
            _, found = wanted_version(f"{name}:{version}", [*index["versions"]], {})
            entry = index["versions"].pop(found)
            index["aliases"] = {a: v for a, v in index["aliases"].items() if v != found}
            path = f"{found}/{legal_file_name(entry['file'])}"
            return found, [CommitOperationDelete(path)]

        self._commit(name, change, f"Delete {version}")

    # ----------------------------------------------------------------- repositories

    def _repository(self, name: str) -> str:
        """Return `USER/NAME`; the user is the account that is signed in, unless given."""
        check_name(name)
        if not self._user:
            with _advised():
                self._user = str(self._api.whoami()["name"])
        return f"{self._user}/{name}"

    def _commit(
        self, name: str, change: Callable[[Index], tuple[str, list[Any]]], message: str
    ) -> str:
        """Apply a change to the index and commit it; again if another process was faster."""
        repository = self._repository(name)
        for attempt in range(ATTEMPTS):
            parent, index = self._read(name)
            before = json.dumps(index)
            version, operations = change(index)
            if json.dumps(index) == before:
                return version
            text = json.dumps(index, indent=1).encode()
            operations.append(CommitOperationAdd(INDEX, text))
            try:
                with _advised():
                    self._api.create_commit(
                        repository, operations, commit_message=message, parent_commit=parent
                    )
                return version
            except HfHubHTTPError as error:
                moved = error.response is not None and error.response.status_code in MOVED
                if not moved or attempt == ATTEMPTS - 1:
                    raise
        raise AssertionError("unreachable")

    def _read(self, name: str) -> tuple[str | None, Index]:
        """Return the newest commit of a name's repository and its index; None without one."""
        empty: Index = {"format": 1, "next": 1, "versions": {}, "aliases": {}}
        repository = self._repository(name)
        try:
            with _advised():
                commit = str(self._api.model_info(repository).sha)
            with self._fetched(name, INDEX, commit) as file:
                return commit, _checked(file, repository)
        except RepositoryNotFoundError:
            return None, empty
        except RemoteEntryNotFoundError:  # not its local sibling, which means a lost connection
            return commit, empty

    @contextlib.contextmanager
    def _fetched(self, name: str, path: str, commit: str) -> Iterator[Path]:
        """Give a file of a commit for the block, outside the user's cache of the hub."""
        with tempfile.TemporaryDirectory(prefix="navrl-hub-") as cache:
            with _advised():
                found = self._api.hf_hub_download(
                    self._repository(name), path, revision=commit, cache_dir=cache
                )
            yield Path(found)


def _checked(file: Path, repository: str) -> Index:
    """Return the index in a file.

    Raises:
        TrackingError: it is not one that this class has written.
    """
    try:
        if file.stat().st_size > LARGEST_INDEX:
            raise ValueError("too large")
        index = json.loads(file.read_bytes())
        versions, aliases = index["versions"], index["aliases"]
        for version, entry in versions.items():
            check_name(version, "version")
            check_name(entry["file"], "file")
            bytes.fromhex(entry["sha256"])
        known = all(check_alias(alias) and versions[v] for alias, v in aliases.items())
        if index["format"] != 1 or not known or not index["next"] > len(versions):
            raise ValueError("another format")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise TrackingError(
            f"{INDEX} of {repository} is not an index of navrl ({type(error).__name__}: {error}); "
            "expected a repository that `navrl models push --mirror hf` made"
        ) from error
    return dict(index)


@contextlib.contextmanager
def _advised() -> Iterator[None]:
    """Turn errors of signing in into one that says how."""
    try:
        yield
    except RepositoryNotFoundError:
        raise
    except (HfHubHTTPError, LocalTokenNotFoundError) as error:
        response = getattr(error, "response", None)
        if response is not None and response.status_code not in (401, 403):
            raise
        raise TrackingError(
            f"the hub refuses: {str(error).splitlines()[0]}. Sign in with `hf auth login`, or set "
            "HF_TOKEN to a token that may write"
        ) from error
