"""`graphflops diff` on revisions of git: blobs, ranges, folders, Git LFS."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from graphflops import cli
from graphflops.errors import FileError
from graphflops.versions import revisions

SAMPLES = Path(__file__).parents[2] / "samples"
OLD, NEW, OTHER = (SAMPLES / name for name in ("cond.pt2", "lstm.pt2", "convnet.pt2"))
POINTER = f"version https://git-lfs.github.com/spec/v1\noid sha256:{7:064x}\nsize 4843\n"


def run(*args: str) -> Result:
    return CliRunner().invoke(cli.main, ["diff", *args], prog_name="graphflops")


def ok(*args: str) -> str:
    result = run(*args)
    assert result.exit_code == 0, result.output
    return result.stdout


def failed(*args: str) -> str:
    result = run(*args)
    assert result.exit_code == 1, result.output
    assert result.stderr.count("\n") == 1
    return result.stderr


@pytest.fixture(autouse=True)
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A model that changed in the second commit, beside others; nothing may be left in the folder for temporary files."""
    folder, scratch = tmp_path / "repository", tmp_path / "scratch"
    folder.mkdir()
    scratch.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.setattr(tempfile, "tempdir", str(scratch))
    for name, value in {"NAME": "a", "EMAIL": "a@example.org"}.items():
        monkeypatch.setenv(f"GIT_AUTHOR_{name}", value)
        monkeypatch.setenv(f"GIT_COMMITTER_{name}", value)
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", os.devnull)
    git("init", "-q", "-b", "main")
    (folder / "models").mkdir()
    shutil.copy(OLD, "models/m.pt2")
    shutil.copy(OTHER, "models/kept.pt2")
    Path("models/lfs.pt2").write_text(POINTER)
    commit("one")
    git("tag", "v1")
    shutil.copy(NEW, "models/m.pt2")
    shutil.copy(SAMPLES / "training_step.pt2", "models/added.pt2")
    git("mv", "models/kept.pt2", "models/renamed.pt2")
    commit("two")
    yield folder
    assert list(scratch.iterdir()) == []


def git(*command: str) -> None:
    subprocess.run(["git", *command], check=True, capture_output=True)


def commit(message: str) -> None:
    git("add", "-A")
    git("commit", "-qm", message)


def first(text: str) -> str:
    return text.splitlines()[0]


@pytest.mark.parametrize(
    "args, title",
    [
        (("v1..HEAD", "--", "models/m.pt2"), "v1:models/m.pt2 → HEAD:models/m.pt2: "),
        (("v1", "HEAD", "--", "models/m.pt2"), "v1:models/m.pt2 → HEAD:models/m.pt2: "),
        (("v1...HEAD", "--", "models/m.pt2"), "v1:models/m.pt2 → HEAD:models/m.pt2: "),
        (("v1", "--", "models/m.pt2"), "v1:models/m.pt2 → models/m.pt2: "),
        (("v1:models/m.pt2", "models/m.pt2"), "v1:models/m.pt2 → models/m.pt2: "),
        (("v1:models/m.pt2", "HEAD:models/m.pt2"), "v1:models/m.pt2 → HEAD:models/m.pt2: "),
        (("v1", "models/m.pt2"), "v1:models/m.pt2 → models/m.pt2: "),
        (("models/m.pt2", "v1"), "models/m.pt2 → v1:models/m.pt2: "),
    ],
)
def test_revisions_can_be_named_in_many_ways(args: tuple[str, ...], title: str) -> None:
    text = ok(*args)
    assert first(text).startswith(title)
    assert "identical" not in first(text)


def test_one_file_is_compared_with_the_last_commit() -> None:
    assert "identical" in first(ok("models/m.pt2"))
    shutil.copy(OLD, "models/m.pt2")
    assert first(ok("models/m.pt2")).startswith("HEAD:models/m.pt2 → models/m.pt2: FLOPs")
    assert first(ok("--", "models/m.pt2")).startswith("HEAD:models/m.pt2 → models/m.pt2: FLOPs")


def test_paths_count_from_where_the_user_stands(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir("models")
    assert first(ok("v1", "--", "m.pt2")).startswith("v1:m.pt2 → m.pt2: ")
    assert first(ok("v1:./m.pt2", "m.pt2")).startswith("v1:./m.pt2 → m.pt2: ")
    assert first(ok("v1:models/m.pt2", "m.pt2")).startswith("v1:models/m.pt2 → m.pt2: ")


@pytest.mark.parametrize("args", [("v1..HEAD",), ("v1", "HEAD"), ("v1",), ("v1..HEAD", "--", "models")])
def test_without_a_path_every_model_that_differs_is_compared(args: tuple[str, ...]) -> None:
    text = ok(*args)
    assert "models/added.pt2: new, nothing to compare with" in text
    assert "m.pt2 → " in text
    assert "kept.pt2" not in text  # renamed, and the same
    assert run("--exit-code", *args).exit_code == 3


def test_a_table_is_for_many_and_json_for_one() -> None:
    result = run("v1..HEAD", "--format", "json")
    assert result.exit_code == 2
    assert "3 models differ: name one" in result.stderr
    assert (
        json.loads(ok("v1..HEAD", "--format", "json", "--", "models/m.pt2"))["before"]["path"]
        == "v1:models/m.pt2"
    )


def test_nothing_changed() -> None:
    assert ok("HEAD") == "no model differs\n"
    assert run("HEAD..HEAD", "--exit-code").exit_code == 0


@pytest.mark.parametrize(
    "args, message",
    [
        (("v9..HEAD", "--", "models/m.pt2"), "v9: neither a file nor a git revision"),
        (("v1..HEAD", "--", "nothing.pt2"), "nothing.pt2: nothing of that name in v1 and HEAD"),
        (("v1", "--", "nothing"), "nothing: nothing of that name in v1 and the checkout"),
        (("v1:nothing.pt2", "models/m.pt2"), "no such file in that revision"),
        (("v1:models", "models/m.pt2"), "a folder, not a model"),
        (("nothing.pt2", "models/m.pt2"), "nothing.pt2: no such file"),
        (("HEAD..--output=x", "--", "models/m.pt2"), "'--output=x' is no git revision"),
    ],
)
def test_what_is_not_there_is_said_in_one_line(args: tuple[str, ...], message: str, repository: Path) -> None:
    assert message in failed(*args)
    assert not (repository / "x").exists()


def test_a_revision_that_is_an_option_is_refused() -> None:
    for text in ("-", "--help", "-c", ""):
        with pytest.raises(FileError, match="is no git revision"):
            revisions.resolved(text)


@pytest.mark.parametrize("args", ["v1..HEAD -- m.pt2", "m.pt2", "HEAD", "v1 m.pt2", "v1:m.pt2 m.pt2"])
def test_outside_a_repository_there_are_no_revisions(
    args: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    shutil.copy(OLD, "m.pt2")
    assert "in no git repository, so it has no revisions: name files" in failed(*args.split())


def test_a_strange_name_is_a_name(repository: Path) -> None:
    name = ":(glob)*;$(touch x) \x1b[31m.pt2"
    shutil.copy(OLD, name)
    commit("three")
    shutil.copy(NEW, name)
    text = ok("HEAD", "--", name)
    assert "\x1b" not in text
    assert "FLOPs" in first(text)
    assert not (repository / "x").exists()


def test_links_are_not_followed() -> None:
    os.symlink("/etc/hostname", "models/link.pt2")
    commit("three")
    assert "a symbolic link, not a model" in failed("HEAD:models/link.pt2", "models/m.pt2")


def stored(content: bytes, pointer: str) -> Path:
    """Put an object into the local store of git-lfs under the digest of a pointer."""
    digest = pointer.split("sha256:")[1][:64]
    path = Path(".git", "lfs", "objects", digest[:2], digest[2:4], digest)
    path.parent.mkdir(parents=True)
    path.write_bytes(content)
    return path


def pointer_to(content: bytes) -> str:
    digest = hashlib.sha256(content).hexdigest()
    return f"version https://git-lfs.github.com/spec/v1\noid sha256:{digest}\nsize {len(content)}\n"


def test_pointers_are_resolved_from_the_local_store() -> None:
    content = OLD.read_bytes()
    Path("models/here.pt2").write_text(pointer_to(content))
    commit("three")
    stored(content, pointer_to(content))
    assert "identical" in first(ok("HEAD:models/here.pt2", "v1:models/m.pt2"))
    assert "identical" in first(ok("models/here.pt2", "v1:models/m.pt2"))


@pytest.mark.parametrize("content", [OLD.read_bytes() + b" ", NEW.read_bytes(), b""])
def test_an_object_with_another_hash_is_refused(content: bytes) -> None:
    stored(content, POINTER)
    assert "the object that is there has another hash or size" in failed("models/lfs.pt2", "models/m.pt2")


@pytest.fixture
def lfs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A git-lfs that fetches one object."""
    folder = tmp_path / "bin"
    folder.mkdir()
    script = folder / "git-lfs"
    script.write_text(
        f'#!/bin/sh\ncase "$1" in version) echo git-lfs/3;; smudge) cat >/dev/null; cat {OLD};; esac\n'
    )
    script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("GRAPHFLOPS_LFS_LIMIT", "1MB")
    return script


def test_an_object_is_fetched_only_up_to_the_limit(lfs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("models/lfs.pt2").write_text(pointer_to(OLD.read_bytes()))
    assert "identical" in first(ok("models/lfs.pt2", "v1:models/m.pt2"))
    monkeypatch.setenv("GRAPHFLOPS_LFS_LIMIT", "1kB")
    assert "more than the 1,000 of GRAPHFLOPS_LFS_LIMIT" in failed("models/lfs.pt2", "models/m.pt2")
    monkeypatch.delenv("GRAPHFLOPS_LFS_LIMIT")
    assert "that the local store does not have: run git lfs fetch" in failed("models/lfs.pt2", "models/m.pt2")


def test_pointers_that_cannot_be_resolved_are_named(lfs: Path) -> None:
    assert "another hash or size" in failed("models/lfs.pt2", "models/m.pt2")
    lfs.write_text(
        '#!/bin/sh\ncase "$1" in version) echo git-lfs/3;; smudge) echo "no server" >&2; exit 2;; esac\n'
    )
    assert "models/lfs.pt2 at " in (said := failed("v1:models/lfs.pt2", "models/m.pt2"))
    assert "a Git LFS pointer to 4,843 bytes that git-lfs cannot fetch: git lfs: no server" in said
    lfs.write_text("#!/bin/sh\nexit 127\n")
    assert "a Git LFS pointer to 4,843 bytes, and git-lfs is not installed" in failed(
        "models/lfs.pt2", "models/m.pt2"
    )


def test_options_behind_the_dashes_are_options() -> None:
    text = ok("v1..HEAD", "--", "models/m.pt2", "--format", "json")
    assert json.loads(text)["before"]["path"] == "v1:models/m.pt2"
    result = run("v1..HEAD", "--", "--formatt", "json")
    assert result.exit_code == 2
    assert "No such option" in result.stderr


@pytest.mark.parametrize("command", ["diff", "history"])
def test_only_options_behind_the_dashes_name_no_model(command: str) -> None:
    result = CliRunner().invoke(cli.main, [command, "--", "--output=x"])
    assert result.exit_code == 2
    assert re.search("name (OLD and NEW|one MODEL)", result.stderr)


def test_a_file_on_one_side_only_is_new_gone_or_renamed() -> None:
    assert ok("v1..HEAD", "--", "models/added.pt2") == "models/added.pt2: new, nothing to compare with\n"
    assert ok("HEAD..v1", "--", "models/added.pt2") == "models/added.pt2: gone, nothing to compare with\n"
    assert first(ok("v1..HEAD", "--", "models/renamed.pt2")).startswith("kept.pt2 → renamed.pt2: ")


def test_a_git_in_the_checkout_is_not_run(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("git").write_text("#!/bin/sh\ntouch ran\n")
    Path("git").chmod(0o755)
    for folder in ("", ".", str(repository)):
        monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
        assert "identical" in first(ok("HEAD:models/m.pt2", "models/m.pt2"))
    assert not Path("ran").exists()


def history(*args: str) -> Result:
    return CliRunner().invoke(cli.main, ["history", *args], prog_name="graphflops")


def test_history_follows_a_renamed_model(repository: Path) -> None:
    shutil.copy(NEW, "models/renamed.pt2")
    commit("three")
    Path("models/renamed.pt2").write_text("no model")
    commit("four")
    Path("models/renamed.pt2").unlink()
    commit("five")
    points = json.loads(history("--", "models/renamed.pt2", "--format", "json").stdout)["points"]
    assert [point["subject"] for point in points] == ["one", "two", "three", "four", "five"]
    assert [point["path"] for point in points[:2]] == ["models/kept.pt2", "models/renamed.pt2"]
    assert [point["matrix_flops"] for point in points[:2]] == [
        2_261_152
    ] * 2  # what analyze says of the sample
    assert "no zip archive" in points[3]["error"]
    assert points[4]["error"] == "deleted"
    lines = history("v1..HEAD~2", "--", "models/renamed.pt2").stdout.splitlines()
    assert [line.split()[2] for line in lines[3:]] == ["one", "two", "three"]
    assert history("models/renamed.pt2", "--last", "2", "--format", "csv").stdout.count("\n") == 3
    assert history("models/renamed.pt2", "--output", "h.html").exit_code == 0
    page = Path("h.html").read_text()
    assert page.count("<svg") == 4
    assert "<script" not in page


@pytest.mark.parametrize(
    "args, code, says",
    [
        (("--", "nothing.pt2"), 1, "no commit of that range has such a file"),
        (("v9..HEAD", "--", "models/m.pt2"), 1, "v9: neither a file nor a git revision"),
        (("v1", "--", "models/m.pt2"), 2, "v1 is no range"),
        ((), 2, "name one MODEL"),
    ],
)
def test_history_of_nothing(args: tuple[str, ...], code: int, says: str) -> None:
    result = history(*args)
    assert (result.exit_code, says in result.stderr) == (code, True), result.stderr


@pytest.mark.parametrize(
    "text, expected",
    [
        ("main..HEAD", revisions.RevisionRange("main", "HEAD")),
        ("main...topic", revisions.RevisionRange("main", "topic", merge_base=True)),
        ("main..", revisions.RevisionRange("main", "HEAD")),
        ("..topic", revisions.RevisionRange("HEAD", "topic")),
        ("origin/main..a/b", revisions.RevisionRange("origin/main", "a/b")),
        ("../model.pt2", None),
        ("a/../b.pt2", None),
        ("main", None),
    ],
)
def test_ranges(text: str, expected: revisions.Range | None) -> None:
    assert revisions.range_of(text) == expected
