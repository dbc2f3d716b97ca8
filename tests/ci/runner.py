"""Plays what runs an action: `action.yml` step by step, the files that a runner makes, and a server for comments.

Of the action nothing is left out but the network: `pip install` is noted and not done (the package under test is installed),
and actions of others do nothing.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
ACTION: dict[str, Any] = yaml.safe_load((ROOT / "action.yml").read_text())
_EXPRESSION = re.compile(r"\$\{\{\s*(.*?)\s*\}\}")
_PYTHON = """#!/bin/sh
# Stands for the Python of a virtual environment that has graphflops in it.
if [ "$1 $2" = "-m venv" ]; then mkdir -p "$3/bin" && cp "$0" "$3/bin/python"; exit; fi
if [ "$1 $2" = "-m pip" ]; then echo "$@" >> "$RUNNER_TEMP/pip.txt"; exit; fi
root="import sys; sys.path.insert(0, '{root}'); "  # what -I hides: the package under test
if [ "$1 $2" = "-I -m" ]; then exec "{python}" -I -c "$root import runpy; runpy.run_module('$3', run_name='__main__')"; fi
if [ "$1 $2" = "-I -c" ]; then exec "{python}" -I -c "$root $3"; fi
exec "{python}" "$@"
"""


@dataclass
class Server:
    """The comments of pull requests; what a token that may not write is told."""

    writable: bool = True
    comments: list[dict[str, Any]] = field(default_factory=list)
    calls: list[str] = field(default_factory=list)

    def __enter__(self) -> Server:
        server = self

        class Handler(BaseHTTPRequestHandler):
            def log_message(self, *args: object) -> None:
                pass

            def answer(self, status: int, body: object) -> None:
                data = json.dumps(body).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def body(self) -> str:
                length = int(self.headers["Content-Length"])
                text: str = json.loads(self.rfile.read(length))["body"]
                assert len(text) <= 65_536
                return text

            def do_GET(self) -> None:
                server.calls.append(f"GET {self.path}")
                assert self.headers["Authorization"] == "Bearer secret"
                path, _, query = self.path.partition("?")
                assert path == "/repos/me/models/issues/7/comments"
                page = int(re.search(r"&page=(\d+)", query)[1])  # type: ignore[index]
                self.answer(200, server.comments[100 * (page - 1) : 100 * page])

            def do_POST(self) -> None:
                server.calls.append(f"POST {self.path}")
                text = self.body()
                if not server.writable:
                    return self.answer(403, {"message": "Resource not accessible by integration"})
                assert self.path == "/repos/me/models/issues/7/comments"
                server.write(text)
                return self.answer(201, {})

            def do_PATCH(self) -> None:
                server.calls.append(f"PATCH {self.path}")
                text = self.body()
                number = int(self.path.removeprefix("/repos/me/models/issues/comments/"))
                server.comments[number]["body"] = text
                self.answer(200, {})

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.thread = threading.Thread(target=self.http.serve_forever, daemon=True)
        self.thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.http.shutdown()
        self.http.server_close()

    def write(self, body: str, kind: str = "Bot", association: str = "NONE") -> None:
        """Add a comment."""
        user = {"type": kind}
        self.comments.append(
            {"id": len(self.comments), "body": body, "user": user, "author_association": association}
        )

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self.http.server_address[1]}"


@dataclass
class Run:
    """What a job left behind."""

    code: int
    log: str
    summary: str
    outputs: dict[str, str]


class Runner:
    """A machine with a checkout in `workspace`."""

    def __init__(self, folder: Path, workspace: Path) -> None:
        self.folder = folder
        self.workspace = workspace
        self.temp = folder / "temp"
        self.temp.mkdir()
        self.python = folder / "python3"
        self.python.write_text(_PYTHON.format(python=sys.executable, root=ROOT))
        self.python.chmod(0o755)
        self.jobs = 0

    def run(self, event: str, payload: dict[str, Any], api: str = "", **inputs: str) -> Run:
        """Run the action for an event."""
        self.jobs += 1
        job = self.folder / f"job{self.jobs}"
        job.mkdir()
        (job / "event.json").write_text(json.dumps(payload))
        given = {name.replace("_", "-"): value for name, value in inputs.items()}
        values = {
            "github.token": "secret",
            "github.run_id": str(self.jobs),
            "runner.temp": str(self.temp),
        }
        for name, spec in ACTION["inputs"].items():
            values[f"inputs.{name}"] = _evaluated(given.get(name, spec["default"]), values)
        values["inputs.python"] = str(self.python)
        assert given.keys() <= ACTION["inputs"].keys()
        env = {
            **{name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ},
            "CI": "true",
            "GITHUB_ACTIONS": "true",
            "GITHUB_ACTION_PATH": str(ROOT),
            "GITHUB_API_URL": api or "http://127.0.0.1:9",
            "GITHUB_EVENT_NAME": event,
            "GITHUB_EVENT_PATH": str(job / "event.json"),
            "GITHUB_REPOSITORY": "me/models",
            "GITHUB_WORKSPACE": str(self.workspace),
            "RUNNER_TEMP": str(self.temp),
        }
        code, log, outputs, summaries = 0, "", {}, ""
        for number, step in enumerate(ACTION["runs"]["steps"]):
            if "uses" in step:
                continue
            files = {name: job / f"{name}{number}" for name in ("ENV", "OUTPUT", "STEP_SUMMARY")}
            for file in files.values():
                file.touch()
            own = {name: _evaluated(text, values) for name, text in step.get("env", {}).items()}
            assert "${{" not in step["run"], "an expression in a script is an injection"
            done = subprocess.run(
                ["bash", "-e", "-o", "pipefail", "-c", step["run"]],
                cwd=self.workspace,
                env={**env, **own, **{f"GITHUB_{name}": str(file) for name, file in files.items()}},
                capture_output=True,
                text=True,
                timeout=120,
                check=False,
            )
            log += done.stdout + done.stderr
            env.update(_pairs(files["ENV"]))
            outputs.update(
                {name: value for name, value in _pairs(files["OUTPUT"]).items() if name in ACTION["outputs"]}
            )
            summaries += files["STEP_SUMMARY"].read_text()
            code = done.returncode
            if code:
                break
        return Run(code, log, summaries, outputs)


def _evaluated(text: object, values: dict[str, str]) -> str:
    """A text with its expressions filled in."""
    return _EXPRESSION.sub(lambda found: values[found[1]], str(text))


def _pairs(file: Path) -> dict[str, str]:
    return dict(line.split("=", 1) for line in file.read_text().splitlines())  # type: ignore[misc]
