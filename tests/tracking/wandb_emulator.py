"""A small W&B server on loopback: enough GraphQL and file endpoints for the real client to log,
upload, download and resume.

Run as a program it prints its address and serves until it is killed; in a test, `Emulator()` serves
from a thread.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import http.server
import json
import threading
import traceback
from typing import Any

from graphql import Query

ENTITY = "tester"
NOW = "2026-01-01T00:00:00Z"


class Emulator:
    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.runs: dict[str, dict[str, Any]] = {}
        self.artifacts: dict[str, dict[str, Any]] = {}
        self.blobs: dict[str, bytes] = {}
        self.operations: dict[str, int] = {}
        self.uploads = 0  # of artifacts, whole
        self.server = _Server(("127.0.0.1", 0), _Handler)
        self.server.emulator = self
        self.url = self._base = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, args=(0.05,), daemon=True).start()

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()

    # ------------------------------------------------------------ what tests look at

    def history(self, run: str) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.runs[run]["files"].get("wandb-history.jsonl", [])]

    def collection(self, name: str) -> list[dict[str, Any]]:
        kept = [
            a
            for a in self.artifacts.values()
            if a["collection"] == name and a["state"] == "COMMITTED"
        ]
        return sorted(kept, key=lambda artifact: artifact["versionIndex"])

    # ------------------------------------------------------------ GraphQL

    def execute(self, text: str, variables: dict[str, Any], host: str) -> dict[str, Any]:
        query = Query(text)
        with self.lock:
            # files go the way that the question came, through a proxy or not
            self._base = f"http://{host}"
            self.operations[query.name] = self.operations.get(query.name, 0) + 1
            return query.answer(self._roots(), variables)

    def _roots(self) -> dict[str, Any]:
        def by_input(act: Any) -> Any:
            return lambda input: act(**input)

        return {
            "serverInfo": {
                "features": [],
                "cliVersionInfo": {"max_cli_version": "9.9.9"},
                "latestLocalVersionInfo": None,
            },
            "viewer": {
                "id": "viewer",
                "username": ENTITY,
                "entity": ENTITY,
                "flags": "{}",
                "email": "t@example.com",
                "admin": False,
                "teams": {"edges": [{"node": {"id": "team", "name": ENTITY}}]},
                "defaultEntity": {"name": ENTITY},
            },
            "entity": lambda name: {
                "name": name,
                "xxhashDigestsEnabled": False,
                "organization": None,
            },
            "model": lambda name=None, entityName=None: self._project(entityName or ENTITY, name),
            "project": lambda name=None, entityName=None: self._project(entityName or ENTITY, name),
            "artifact": lambda id: self._artifact(self.artifacts.get(id)),
            "clientIDMapping": lambda clientID: None,
            "upsertBucket": by_input(self._upsert_run),
            "createRunFiles": by_input(self._create_run_files),
            "markRunFilesUploaded": by_input(lambda **_: {"success": True}),
            "createArtifact": by_input(self._create_artifact),
            "createArtifactManifest": by_input(self._create_manifest),
            "updateArtifactManifest": by_input(self._update_manifest),
            "createArtifactFiles": by_input(self._create_files),
            "commitArtifact": by_input(self._commit),
            "updateArtifact": by_input(self._update_artifact),
            "addAliases": by_input(
                lambda artifactID, aliases, **_: self._aliases(artifactID, aliases, True)
            ),
            "deleteAliases": by_input(
                lambda artifactID, aliases, **_: self._aliases(artifactID, aliases, False)
            ),
            "deleteArtifact": by_input(self._delete),
            "useArtifact": by_input(
                lambda artifactID, **_: {"artifact": self._artifact(self.artifacts[artifactID])}
            ),
        }

    def _project(self, entity: str, name: str) -> dict[str, Any]:
        return {
            "__typename": "Project",
            "id": f"P-{name}",
            "internalId": f"I-{name}",
            "name": name,
            "entityName": entity,
            "entity": {"id": f"E-{entity}", "name": entity},
            "bucket": lambda name, missingOk=False: self._run(self.runs.get(name)),
            "run": lambda name: self._run(self.runs.get(name)),
            "artifactCollectionMembership": lambda name: self._membership(*name.split(":")),
            "artifactCollection": lambda name: self._collection(name),
            "artifactType": lambda name: {
                "name": name,
                "artifactCollection": lambda name: self._collection(name),
            },
        }

    def _run(self, run: dict[str, Any] | None) -> dict[str, Any] | None:
        if run is None:
            return None
        lines = {
            name: run["files"].get(f"wandb-{name}.jsonl", []) for name in ("history", "events")
        }
        last = [json.loads(line).get("_step", -1) for line in lines["history"][-1:]]
        summary = "".join(run["files"].get("wandb-summary.json", [])[-1:]) or "{}"
        return {
            "__typename": "Run",
            "id": f"R-{run['name']}",
            "name": run["name"],
            "displayName": run["displayName"],
            "summaryMetrics": summary,
            "config": run["config"],
            "tags": [],
            "notes": "",
            "logLineCount": 0,
            "historyLineCount": len(lines["history"]),
            "eventsLineCount": len(lines["events"]),
            "historyTail": json.dumps(lines["history"][-1:]),
            "eventsTail": json.dumps(lines["events"][-1:]),
            "wandbConfig": lambda keys=None: json.dumps({"t": {}}),
            "lastHistoryStep": last[0] if last else -1,
            "stopped": False,
            "shouldStop": False,
            "state": run["state"],
            "historyKeys": {"lastStep": last[0] if last else -1},
            "projectId": 1,
            "project": self._project(ENTITY, run["project"]),
            "sweepName": None,
            "group": None,
            "jobType": None,
            "user": {"name": ENTITY, "username": ENTITY},
            "createdAt": NOW,
            "heartbeatAt": NOW,
            "description": "",
            "systemMetrics": "{}",
            "readOnly": False,
            "commit": None,
            "internalId": f"I-{run['name']}",
            "agent": None,
            "files": lambda **_: {"edges": []},
        }

    def _upsert_run(self, name: str = "", modelName: str = "", **values: Any) -> dict[str, Any]:
        new = name not in self.runs
        run = self.runs.setdefault(
            name, {"name": name, "files": {}, "config": "{}", "state": "running"}
        )
        run |= {
            "project": modelName or run.get("project"),
            "displayName": values.get("displayName") or name,
        }
        run["config"] = values.get("config") or run["config"]
        return {
            "bucket": self._run(run) | {"project": self._project(ENTITY, run["project"])},
            "inserted": new,
        }

    def _create_run_files(self, runName: str, files: list[str], **_: Any) -> dict[str, Any]:
        urls = [
            {"name": file, "uploadUrl": f"{self._base}/upload/run/{runName}/{file}"}
            for file in files
        ]
        return {"runID": f"R-{runName}", "uploadHeaders": [], "files": urls}

    # ------------------------------------------------------------ artifacts

    def _artifact(self, artifact: dict[str, Any] | None) -> dict[str, Any] | None:
        if artifact is None:
            return None
        collection = {
            "__typename": "ArtifactSequence",
            "id": f"C-{artifact['collection']}",
            "name": artifact["collection"],
            "project": self._project(ENTITY, artifact["project"]),
            "latestArtifact": None,
        }
        manifest = {
            "id": f"M-{artifact['id']}",
            "file": {"directUrl": f"{self._base}/blob/manifest/{artifact['id']}"},
        }
        return {
            **{key: artifact[key] for key in ("id", "state", "digest", "versionIndex", "metadata")},
            "__typename": "Artifact",
            "artifactSequence": collection,
            "artifactType": {"name": artifact["type"]},
            "description": artifact["description"],
            "ttlDurationSeconds": -2,
            "ttlIsInherited": False,
            "tags": [],
            "historyStep": None,
            "size": 1,
            "digestAlgorithm": "MANIFEST_MD5",
            "commitHash": artifact["id"],
            "fileCount": 1,
            "createdAt": NOW,
            "updatedAt": NOW,
            "currentManifest": manifest,
            "aliases": [
                {
                    "__typename": "ArtifactAlias",
                    "id": f"{artifact['id']}-{alias}",
                    "alias": alias,
                    "artifactCollection": collection,
                }
                for alias in sorted(artifact["aliases"])
            ],
        }

    def _collection(self, name: str) -> dict[str, Any] | None:
        versions = self.collection(name)
        if not versions:
            return None
        edges = [
            {"version": f"v{a['versionIndex']}", "node": self._artifact(a), "cursor": "c"}
            for a in reversed(versions)
        ]
        page = {"__typename": "PageInfo", "endCursor": None, "hasNextPage": False}
        aliases = [alias for version in versions for alias in self._artifact(version)["aliases"]]
        return {
            "__typename": "ArtifactSequence",
            "id": f"C-{name}",
            "name": name,
            "description": None,
            "createdAt": NOW,
            "updatedAt": NOW,
            "project": self._project(ENTITY, versions[0]["project"]),
            "digestAlgorithm": "MANIFEST_MD5",
            "defaultArtifactType": {"name": versions[0]["type"]},
            "tags": {"edges": []},
            "artifacts": lambda **_: {"totalCount": len(edges), "pageInfo": page, "edges": edges},
            "aliases": lambda **_: {
                "pageInfo": page,
                "edges": [{"node": alias} for alias in aliases],
            },
            "artifactMembership": lambda aliasName: self._membership(name, aliasName),
        }

    def _membership(self, name: str, label: str = "latest") -> dict[str, Any] | None:
        labels = {a["id"]: a["aliases"] | {f"v{a['versionIndex']}"} for a in self.collection(name)}
        artifact = next(
            (artifact for artifact in self.collection(name) if label in labels[artifact["id"]]),
            None,
        )
        if artifact is None:
            return None
        whole = self._artifact(artifact)
        page = {"__typename": "PageInfo", "endCursor": None, "hasNextPage": False}
        urls = {path: f"{self._base}/blob/{key}" for path, key in artifact["files"].items()}
        files = [
            {"node": {"__typename": "File", "name": path, "directUrl": url}}
            for path, url in urls.items()
        ]
        return {
            "__typename": "ArtifactCollectionMembership",
            "id": f"S-{artifact['id']}",
            "createdAt": NOW,
            "versionIndex": artifact["versionIndex"],
            "aliases": whole["aliases"],
            "artifact": whole,
            "artifactCollection": whole["artifactSequence"],
            "files": lambda **_: {"totalCount": len(files), "pageInfo": page, "edges": files},
        }

    def _create_artifact(self, **values: Any) -> dict[str, Any]:
        names = values.get("artifactCollectionNames") or [values.get("artifactCollectionName")]
        wanted = {alias["alias"] for alias in values.get("aliases") or []}
        for known in self.collection(names[0]):
            if known["digest"] == values["digest"]:
                self._move(known, wanted | {"latest"})
                return {"artifact": self._artifact(known)}
        identity = base64.b64encode(f"artifact-{len(self.artifacts)}".encode()).decode().rstrip("=")
        self.artifacts[identity] = {
            "id": identity,
            "collection": names[0],
            "project": values["projectName"],
            "type": values["artifactTypeName"],
            "digest": values["digest"],
            "metadata": values.get("metadata"),
            "wanted": wanted,
            "aliases": set(),
            "files": {},
            "state": "PENDING",
            "versionIndex": None,
            "description": values.get("description"),
        }
        return {"artifact": self._artifact(self.artifacts[identity])}

    def _create_manifest(self, artifactID: str, **_: Any) -> dict[str, Any]:
        return self._manifest(artifactID)

    def _update_manifest(self, artifactManifestID: str, **_: Any) -> dict[str, Any]:
        return self._manifest(artifactManifestID.removeprefix("M-"))

    def _manifest(self, identity: str) -> dict[str, Any]:
        file = {
            "id": f"F-{identity}",
            "uploadUrl": f"{self._base}/upload/manifest/{identity}",
            "uploadHeaders": [],
        }
        return {"artifactManifest": {"id": f"M-{identity}", "file": file}}

    def _create_files(self, artifactFiles: list[dict[str, Any]], **_: Any) -> dict[str, Any]:
        edges = []
        for file in artifactFiles:
            key = f"{file['artifactID']}/{hashlib.md5(file['name'].encode()).hexdigest()}"
            self.artifacts[file["artifactID"]]["files"][file["name"]] = key
            edges.append(
                {
                    "node": {
                        "storagePath": f"wandb_artifacts/{key}",
                        "uploadUrl": f"{self._base}/upload/{key}",
                        "uploadHeaders": [],
                        "uploadMultipartUrls": None,
                        "artifact": {"id": file["artifactID"]},
                        "name": file["name"],
                        "id": key,
                    }
                }
            )
        return {"files": {"edges": edges}}

    def _commit(self, artifactID: str, **_: Any) -> dict[str, Any]:
        artifact = self.artifacts[artifactID]
        if artifact["state"] != "COMMITTED":
            taken = [
                a["versionIndex"]
                for a in self.artifacts.values()
                if a["collection"] == artifact["collection"]
            ]
            artifact["versionIndex"] = (
                max([-1, *(number for number in taken if number is not None)]) + 1
            )
            artifact["state"] = "COMMITTED"
            self._move(artifact, artifact["wanted"] | {"latest"})
        return {"artifact": self._artifact(artifact) | {"digest": artifact["digest"]}}

    def _move(self, artifact: dict[str, Any], aliases: set[str]) -> None:
        for other in self.collection(artifact["collection"]):
            other["aliases"] -= aliases
        artifact["aliases"] |= aliases

    def _update_artifact(
        self, artifactID: str, metadata: str | None = None, **_: Any
    ) -> dict[str, Any]:
        artifact = self.artifacts[artifactID]
        artifact["metadata"] = metadata or artifact["metadata"]
        return {"artifact": self._artifact(artifact)}

    def _aliases(self, identity: str, aliases: list[dict[str, Any]], add: bool) -> dict[str, Any]:
        names = {alias["alias"] for alias in aliases}
        if add:
            self._move(self.artifacts[identity], names)
        else:
            self.artifacts[identity]["aliases"] -= names
        return {"success": True}

    def _delete(self, artifactID: str, deleteAliases: bool = False, **_: Any) -> dict[str, Any]:
        artifact = self.artifacts[artifactID]
        if artifact["aliases"] and not deleteAliases:
            raise ValueError("the artifact has aliases")
        for key in artifact["files"].values():
            self.blobs.pop(key, None)
        artifact |= {"state": "DELETED", "aliases": set()}
        return {"artifact": {"id": artifactID}}


class _Server(http.server.ThreadingHTTPServer):
    daemon_threads = True
    emulator: Emulator

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Clients that are killed hang up: nothing to tell."""


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def log_message(self, *arguments: Any) -> None:
        """Say nothing."""

    def _answer(self, code: int, body: bytes = b"{}", kind: str = "application/json") -> None:
        self.send_response(code)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _body(self) -> bytes:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        return gzip.decompress(body) if self.headers.get("Content-Encoding") == "gzip" else body

    def do_POST(self) -> None:
        body = json.loads(self._body() or b"{}")
        if self.path != "/graphql":
            self._stream(body)
            return
        try:
            answer = {
                "data": self.server.emulator.execute(
                    body["query"], body.get("variables") or {}, self.headers["Host"]
                )
            }
        except Exception as error:
            traceback.print_exc()
            answer = {"errors": [{"message": f"{type(error).__name__}: {error}"}], "data": None}
        self._answer(200, json.dumps(answer, default=sorted).encode())

    def _stream(self, body: dict[str, Any]) -> None:
        """Take the lines of a run's files, each at its offset: lines that come again overwrite
        themselves.
        """
        run = self.server.emulator.runs.get(self.path.split("/")[4])
        if run is None:
            self._answer(404)
            return
        with self.server.emulator.lock:
            for name, piece in (body.get("files") or {}).items():
                lines = run["files"].setdefault(name, [])
                lines[piece["offset"] :] = piece["content"]
            if body.get("complete"):
                run["state"] = "finished" if not body.get("exitcode") else "failed"
        self._answer(200, b'{"exitcode": null, "limits": {}}')

    def do_PUT(self) -> None:
        body, key = self._body(), self.path.removeprefix("/upload/")
        with self.server.emulator.lock:
            self.server.emulator.blobs[key] = body
            self.server.emulator.uploads += not key.startswith(("run/", "manifest/"))
        self._answer(200)

    def do_GET(self) -> None:
        body = self.server.emulator.blobs.get(self.path.removeprefix("/blob/"))
        self._answer(404 if body is None else 200, body or b"", "application/octet-stream")


if __name__ == "__main__":
    emulator = Emulator()
    print(emulator.url, flush=True)
    threading.Event().wait()
