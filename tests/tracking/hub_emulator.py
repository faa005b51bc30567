"""A stand-in for the Hugging Face hub: the part of its HTTP API that the real client uses.

Repositories are lists of commits in memory. Files that end with `.pt` go through Git LFS, others are
part of the commit; a commit whose parent is not the newest is refused, as by the hub.
"""

from __future__ import annotations

import base64
import hashlib
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit

TOKEN, USER = "hf_of_ada", "ada"


class Repository:
    def __init__(self, private):
        self.private, self.commits = private, []
        self.commit({".gitattributes": b"*.pt filter=lfs"})

    @property
    def head(self):
        return self.commits[-1][0]

    def commit(self, files):
        seed = f"{len(self.commits)} {sorted(files)}".encode()
        self.commits.append((hashlib.sha1(seed).hexdigest(), dict(files)))

    def files(self, revision):
        if revision == "main":
            return self.commits[-1]
        return next((one for one in self.commits if one[0] == revision), None)


class HubEmulator:
    """The server; `repositories`, `requests` and `before_commit` are for tests."""

    def __init__(self):
        self.repositories, self.blobs, self.requests = {}, {}, []
        self.before_commit = []  # functions, each called once before a commit is looked at
        self.lock = threading.RLock()
        handler = type("Handler", (_Handler,), {"hub": self})
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self):
        self._server.shutdown()
        self._server.server_close()


class _Refused(Exception):
    def __init__(self, status, message, code=""):
        super().__init__(message)
        self.status, self.code = status, code


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def _answer(self):
        length = int(self.headers.get("Content-Length") or 0)
        body = self._chunks() if self.headers.get("Transfer-Encoding") else self.rfile.read(length)
        path = unquote(urlsplit(self.path).path)
        self.hub.requests.append((self.command, path))
        if "/commit/" in path and self.hub.before_commit:
            self.hub.before_commit.pop()()  # without the lock: it may talk to the hub itself
        try:
            with self.hub.lock:
                status, content, headers = self._route(path, body)
        except _Refused as refused:
            headers = {"X-Error-Code": refused.code} if refused.code else {}
            status, content = refused.status, {"error": str(refused)}
        data = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.send_response(status)
        for name, value in {"Content-Length": str(len(data)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    do_GET = do_HEAD = do_POST = do_PUT = _answer

    def _chunks(self):
        parts = []
        while size := int(self.rfile.readline(), 16):
            parts.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(parts)

    def _signed_in(self):
        return self.headers.get("authorization") == f"Bearer {TOKEN}"

    def _must_be_signed_in(self):
        if not self._signed_in():
            raise _Refused(401, "Invalid username or password.")

    def _repository(self, name):
        found = self.hub.repositories.get(name)
        if found is None or (found.private and not self._signed_in()):
            status = 404 if self._signed_in() else 401
            raise _Refused(status, "Repository not found", "RepoNotFound")
        return found

    def _route(self, path, body):
        parts = path.strip("/").split("/")
        if path == "/api/whoami-v2":
            self._must_be_signed_in()
            return 200, {"name": USER, "type": "user", "orgs": []}, {}
        if path == "/api/validate-yaml":
            return 200, {"errors": [], "warnings": []}, {}
        if path == "/api/repos/create":
            return self._create(json.loads(body))
        if parts[0] == "lfs":
            return self._large_file(parts[1], body)
        if path.endswith(".git/info/lfs/objects/batch"):
            return self._batch(json.loads(body))
        if parts[:2] == ["api", "models"]:
            return self._api("/".join(parts[2:4]), parts[4:], body)
        if len(parts) > 4 and parts[2] == "resolve":
            return self._resolve("/".join(parts[:2]), parts[3], "/".join(parts[4:]))
        raise _Refused(404, f"the stand-in has no {self.command} {path}")

    def _create(self, asked):
        self._must_be_signed_in()
        name = f"{asked.get('organization') or USER}/{asked['name']}"
        url = {"url": f"{self.hub.url}/{name}"}
        if name in self.hub.repositories:
            return 409, url | {"error": "You already created this model repo"}, {}
        self.hub.repositories[name] = Repository(asked.get("visibility") == "private")
        return 200, url, {}

    def _api(self, name, rest, body):
        repository = self._repository(name)
        if not rest or rest[0] == "revision":
            return 200, {"id": name, "sha": repository.head, "private": repository.private}, {}
        self._must_be_signed_in()
        if rest[0] == "preupload":
            paths = [file["path"] for file in json.loads(body)["files"]]
            modes = {path: "lfs" if path.endswith(".pt") else "regular" for path in paths}
            files = [
                {"path": path, "uploadMode": mode, "shouldIgnore": False}
                for path, mode in modes.items()
            ]
            return 200, {"files": files}, {}
        return self._commit(name, [json.loads(line) for line in body.splitlines()])

    def _commit(self, name, lines):
        repository = self.hub.repositories[name]
        files = dict(repository.commits[-1][1])
        for line in lines:
            value = line["value"]
            if line["key"] == "header":
                if value.get("parentCommit") not in (None, repository.head):
                    raise _Refused(
                        412, "A commit has happened since. Please refresh and try again."
                    )
            elif line["key"] == "file":
                files[value["path"]] = base64.b64decode(value["content"])
            elif line["key"] == "lfsFile":
                files[value["path"]] = self.hub.blobs[value["oid"]]
            else:
                del files[value["path"]]
        repository.commit(files)
        url = f"{self.hub.url}/{name}/commit/{repository.head}"
        return 200, {"commitOid": repository.head, "commitUrl": url}, {}

    def _batch(self, asked):
        self._must_be_signed_in()
        objects = []
        for one in asked["objects"]:
            upload = {"upload": {"href": f"{self.hub.url}/lfs/{one['oid']}"}}
            known = one["oid"] in self.hub.blobs
            objects.append(one if known else one | {"actions": upload})
        return 200, {"transfer": "basic", "objects": objects}, {}

    def _large_file(self, digest, body):
        if hashlib.sha256(body).hexdigest() != digest:
            raise _Refused(400, "the content is not what was announced")
        self.hub.blobs[digest] = body
        return 200, b"", {}

    def _resolve(self, name, revision, path):
        found = self._repository(name).files(revision)
        if found is None:
            raise _Refused(404, f"Invalid rev id: {revision}", "RevisionNotFound")
        commit, files = found
        if path not in files:
            raise _Refused(404, "Entry not found", "EntryNotFound")
        digest = hashlib.sha256(files[path]).hexdigest()
        return 200, files[path], {"X-Repo-Commit": commit, "ETag": f'"{digest}"'}
