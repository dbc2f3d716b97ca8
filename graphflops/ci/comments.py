"""One comment on a pull request, found again by a mark in it and kept up to date."""

from __future__ import annotations

import json
import re
import urllib.error
import urllib.request
from dataclasses import dataclass
from typing import Any

MARK = "<!-- graphflops -->"
_PER_PAGE = 100
_PAGES = 30  # of comments looked through
_SECONDS = 30
_LARGEST = 2**24  # bytes of an answer
_TRUSTED = frozenset({"OWNER", "MEMBER", "COLLABORATOR"})
_NAME = re.compile(r"[\w.-]+/[\w.-]+")


class CommentError(Exception):
    """The comment could not be written: the token lacks the permission, or the server cannot be reached."""


@dataclass(frozen=True, slots=True)
class PullRequest:
    """Where to comment, and as whom."""

    api: str
    repository: str
    number: int
    token: str

    def existing(self) -> int | None:
        """The comment that an earlier run wrote."""
        for page in range(1, _PAGES + 1):
            comments = self._call("GET", f"issues/{self.number}/comments?per_page={_PER_PAGE}&page={page}")
            if not isinstance(comments, list):
                raise CommentError("the server's list of comments is none")
            for comment in comments:
                if _ours(comment):
                    return int(comment["id"])
            if len(comments) < _PER_PAGE:
                break
        return None

    def create(self, body: str) -> None:
        """Write a new comment."""
        self._call("POST", f"issues/{self.number}/comments", {"body": body})

    def update(self, comment: int, body: str) -> None:
        """Write another text into a comment."""
        self._call("PATCH", f"issues/comments/{comment}", {"body": body})

    def _call(self, method: str, path: str, body: dict[str, str] | None = None) -> Any:
        if not self.api.startswith(("https://", "http://")) or not _NAME.fullmatch(self.repository):
            raise CommentError(f"{self.api!r} and {self.repository!r} are no server and repository")
        request = urllib.request.Request(
            f"{self.api.rstrip('/')}/repos/{self.repository}/{path}",
            None if body is None else json.dumps(body).encode(),
            {
                "Accept": "application/vnd.github+json",
                "Authorization": f"Bearer {self.token}",
                "Content-Type": "application/json",
                "User-Agent": "graphflops",
                "X-GitHub-Api-Version": "2022-11-28",
            },
            method=method,
        )
        try:
            with urllib.request.urlopen(request, timeout=_SECONDS) as answer:
                return json.loads(answer.read(_LARGEST))
        except urllib.error.HTTPError as error:
            raise CommentError(f"{method} {error.code} {error.reason}") from None
        except (OSError, ValueError) as error:
            raise CommentError(f"{method}: {error}") from None


def _ours(comment: Any) -> bool:
    """True if an earlier run wrote it: it begins with the mark, and its author is trusted."""
    if not isinstance(comment, dict) or not str(comment.get("body", "")).startswith(MARK):
        return False
    author = comment.get("user") or {}
    return author.get("type") == "Bot" or comment.get("author_association") in _TRUSTED
