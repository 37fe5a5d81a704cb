"""
The Hugging Face Hub on loopback, as far as pushing and downloading a model needs it: it stores what it is sent.

Requests can be made to fail: `server.fail("/commit/", 500)`.
"""

import base64
import hashlib
import json
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit


TOKEN = "hf_" + "a" * 30
USER = "someone"
REPO = r"(?P<repo>[\w.-]+/[\w.-]+)"


def constants_for(url):
    """What the client's `constants` say where its Hub is at this address."""
    template = url + "/{repo_id}/resolve/{revision}/{filename}"
    where = {"ENDPOINT": url, "HUGGINGFACE_CO_URL_TEMPLATE": template}
    return {"HF_HUB_OFFLINE": False, "HF_HUB_DISABLE_XET": True, **where}


class QuietServer(ThreadingHTTPServer):
    def handle_error(self, request, client_address):
        """A client may be killed while it is answered."""


class HubServer:
    """
    Attributes:
        repos (`dict`): by name: `files` (`{path: bytes}`), `commits` (messages), `private`.
        requests (`list[str]`): method and path of every request.
        url (`str`): for `HF_ENDPOINT`.
    """

    def __init__(self):
        self.repos = {}
        self.blobs = {}
        self.requests = []
        self.failures = {}
        self.resets = 0
        self.on_request = None  # is called before a request is answered
        self.http = QuietServer(("127.0.0.1", 0), type("Bound", (Handler,), {"hub": self}))
        self.url = f"http://127.0.0.1:{self.http.server_port}"
        self.thread = threading.Thread(target=self.http.serve_forever, daemon=True)
        self.thread.start()

    def close(self):
        self.http.shutdown()
        self.http.server_close()

    def reset(self):
        for held in (self.repos, self.blobs, self.requests, self.failures):
            held.clear()
        self.resets += 1

    def fail(self, part, status):
        """Every request whose path has this part is answered with a status."""
        self.failures[part] = status

    def files(self, repo):
        return self.repos[repo]["files"]

    def sha(self, repo):
        """The commit: it changes with every one, and with every reset, as clients cache its files."""
        return hashlib.sha1(f"{self.resets} {repo}{len(self.repos[repo]['commits'])}".encode()).hexdigest()


def git_oid(content):
    return hashlib.sha1(f"blob {len(content)}\0".encode() + content).hexdigest()


def is_lfs(path):
    return path.endswith((".safetensors", ".bin", ".pt"))


def oid_of(path, content):
    return hashlib.sha256(content).hexdigest() if is_lfs(path) else git_oid(content)


class Handler(BaseHTTPRequestHandler):
    hub: HubServer
    protocol_version = "HTTP/1.1"

    def log_message(self, *args):
        pass

    def answer(self, status, content=None, **headers):
        body = content if isinstance(content, bytes) else json.dumps(content or {}).encode()
        self.send_response(status)
        headers.setdefault("Content-Type", "application/json")
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def handle_request(self):
        length = int(self.headers.get("Content-Length") or 0)
        body = self.rfile.read(length)
        path = unquote(urlsplit(self.path).path)
        self.hub.requests.append(f"{self.command} {path}")
        if self.hub.on_request is not None:
            self.hub.on_request()
        for part, status in self.hub.failures.items():
            if part in path:
                return self.answer(status, {"error": "a failure that a test ordered"})
        authorised = self.headers.get("Authorization") == f"Bearer {TOKEN}"
        for pattern, method, needs_token, action in ROUTES:
            match = re.fullmatch(pattern, path)
            if match and method == self.command:
                if needs_token and not authorised:
                    return self.answer(401, {"error": "Invalid username or password."})
                repo = match.groupdict().get("repo")
                if repo is not None and repo not in self.hub.repos:
                    return self.answer(404, {"error": "no such repository"}, X_Error_Code="RepoNotFound")
                return action(self, match, body)
        self.answer(404, {"error": f"not spoken here: {self.command} {path}"})

    do_GET = do_HEAD = do_POST = do_PUT = handle_request

    def whoami(self, match, body):
        self.answer(200, {"type": "user", "name": USER, "orgs": [], "auth": {"type": "access_token"}})

    def create(self, match, body):
        order = json.loads(body)
        owner = order.get("organization") or USER
        name = f"{owner}/{order['name']}"
        if owner != USER:
            return self.answer(403, {"error": f"You don't have the rights to create a model under {owner}"})
        status = 409 if name in self.hub.repos else 200
        private = order.get("visibility") == "private" or bool(order.get("private"))
        self.hub.repos.setdefault(name, {"files": {}, "commits": [], "private": private})
        self.answer(status, {"url": f"{self.hub.url}/{name}", "name": name, "id": name})

    def check_write(self, match, body):
        status = 200 if match["repo"].startswith(f"{USER}/") else 403
        self.answer(status, {"error": "You don't have write access to this repository"} if status == 403 else {})

    def validate(self, match, body):
        self.answer(200, {"errors": [], "warnings": []})

    def preupload(self, match, body):
        held = self.hub.files(match["repo"])
        files = []
        for path in (file["path"] for file in json.loads(body)["files"]):
            answer = {"path": path, "uploadMode": "lfs" if is_lfs(path) else "regular", "shouldIgnore": False}
            files.append(answer | ({"oid": oid_of(path, held[path])} if path in held else {}))
        self.answer(200, {"files": files})

    def lfs_batch(self, match, body):
        objects = []
        for wanted in json.loads(body)["objects"]:
            answer = {"oid": wanted["oid"], "size": wanted["size"]}
            if wanted["oid"] not in self.hub.blobs:
                answer["actions"] = {"upload": {"href": f"{self.hub.url}/lfs/{wanted['oid']}"}}
            objects.append(answer)
        self.answer(200, {"transfer": "basic", "objects": objects})

    def lfs_put(self, match, body):
        self.hub.blobs[match["oid"]] = body
        self.answer(200)

    def commit(self, match, body):
        repo = self.hub.repos[match["repo"]]
        files = dict(repo["files"])
        message = None
        for line in body.decode().splitlines():
            operation = json.loads(line)
            value = operation["value"]
            if operation["key"] == "header":
                message = value["summary"]
            elif operation["key"] == "file":
                files[value["path"]] = base64.b64decode(value["content"])
            elif operation["key"] == "lfsFile":
                files[value["path"]] = self.hub.blobs[value["oid"]]
            else:  # "deletedFile"
                del files[value["path"]]
        repo["files"] = files  # all of it, or nothing
        repo["commits"].append(message)
        sha = self.hub.sha(match["repo"])
        self.answer(200, {"commitUrl": f"{self.hub.url}/{match['repo']}/commit/{sha}", "commitOid": sha})

    def info(self, match, body):
        files = self.hub.files(match["repo"])
        siblings = [{"rfilename": path} for path in sorted(files)]
        content = {"id": match["repo"], "sha": self.hub.sha(match["repo"]), "siblings": siblings}
        self.answer(200, content | {"private": self.hub.repos[match["repo"]]["private"], "tags": [], "downloads": 0})

    def tree(self, match, body):
        rows = []
        for path, content in sorted(self.hub.files(match["repo"]).items()):
            row = {"type": "file", "path": path, "size": len(content), "oid": git_oid(content)}
            if is_lfs(path):
                row["lfs"] = {"oid": oid_of(path, content), "size": len(content), "pointerSize": 130}
            rows.append(row)
        self.answer(200, json.dumps(rows).encode())

    def resolve(self, match, body):
        files = self.hub.files(match["repo"])
        if match["path"] not in files:
            return self.answer(404, {"error": "no such file"}, X_Error_Code="EntryNotFound")
        content = files[match["path"]]
        headers = {"ETag": f'"{oid_of(match["path"], content)}"', "X_Repo_Commit": self.hub.sha(match["repo"])}
        self.answer(200, content, Content_Type="application/octet-stream", **headers)


ROUTES = [
    ("/api/whoami-v2", "GET", True, Handler.whoami),
    ("/api/repos/create", "POST", True, Handler.create),
    (f"/api/models/{REPO}/auth-check/write", "GET", True, Handler.check_write),
    ("/api/validate-yaml", "POST", False, Handler.validate),
    (f"/api/models/{REPO}/preupload/main", "POST", True, Handler.preupload),
    (f"/{REPO}\\.git/info/lfs/objects/batch", "POST", True, Handler.lfs_batch),
    ("/lfs/(?P<oid>[0-9a-f]{64})", "PUT", False, Handler.lfs_put),
    (f"/api/models/{REPO}/commit/main", "POST", True, Handler.commit),
    (f"/api/models/{REPO}", "GET", False, Handler.info),
    (f"/api/models/{REPO}/revision/[\\w.-]+", "GET", False, Handler.info),
    (f"/api/models/{REPO}/tree/[\\w.-]+", "GET", False, Handler.tree),
    (f"/{REPO}/resolve/[\\w.-]+/(?P<path>.+)", "HEAD", False, Handler.resolve),
    (f"/{REPO}/resolve/[\\w.-]+/(?P<path>.+)", "GET", False, Handler.resolve),
]
