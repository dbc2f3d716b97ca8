"""The action from end to end, on a machine that plays the runner."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import subprocess
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.ci.runner import ACTION, ROOT, Run, Runner, Server

SAMPLES = ROOT / "samples"
ZEROS = "0" * 40
MARK = "<!-- graphflops -->"


class Repository:
    """A repository whose `origin` is beside it."""

    def __init__(self, folder: Path) -> None:
        self.origin, self.path = folder / "origin", folder / "checkout"
        self.path.mkdir()
        self.git("init", "--quiet", "--initial-branch", "main")
        subprocess.run(["git", "init", "--quiet", "--bare", self.origin], check=True)
        self.git("remote", "add", "origin", str(self.origin))

    def git(self, *command: str) -> str:
        identity = ("-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false")
        done = subprocess.run(
            ["git", *identity, *command], cwd=self.path, check=True, capture_output=True, text=True
        )
        return done.stdout.strip()

    def commit(self, **files: str | Path | bytes) -> str:
        """Write files (`lm_pt2` is lm.pt2) and commit: a text, a copy of a sample, or nothing to delete it."""
        for name, content in files.items():
            place = self.path / name.replace("_", ".")
            if isinstance(content, Path):
                shutil.copy(content, place)
            elif content == b"":
                place.unlink()
            elif isinstance(content, bytes):
                place.write_bytes(content)
            else:
                place.write_text(content)
        self.git("add", "--all")
        self.git("commit", "--quiet", "--message", "x")
        self.git("push", "--quiet", "origin", "HEAD:main")
        return self.git("rev-parse", "HEAD")


def edited(folder: Path, sample: str, edit: Callable[[bytes], bytes]) -> Path:
    """A sample with its program's JSON edited."""
    path = folder / f"edited-{sample}"
    with zipfile.ZipFile(SAMPLES / sample) as old, zipfile.ZipFile(path, "w") as new:
        for entry in old.infolist():
            new.writestr(entry.filename, edit(old.read(entry)))
    return path


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    return Repository(tmp_path)


@pytest.fixture
def runner(tmp_path: Path, repository: Repository) -> Runner:
    return Runner(tmp_path, repository.path)


def pull_request(base: str, fork: bool = False) -> dict[str, Any]:
    repo = {"full_name": "other/models" if fork else "me/models", "fork": fork}
    return {
        "action": "synchronize",
        "number": 7,
        "pull_request": {
            "number": 7,
            "base": {"sha": base, "repo": {"full_name": "me/models"}},
            "head": {"repo": repo},
        },
    }


@pytest.fixture
def changed(repository: Repository) -> str:
    """The base commit of a change: a transformer became an LSTM, which costs less; the convnet stayed."""
    base = repository.commit(lm_pt2=SAMPLES / "gqa_transformer.pt2", net_pt2=SAMPLES / "convnet.pt2")
    repository.commit(lm_pt2=SAMPLES / "lstm.pt2")
    return base


def fine(run: Run) -> Run:
    assert run.code == 0, run.log
    return run


# The four cases


def test_a_push_gets_a_summary(runner: Runner, changed: str) -> None:
    with Server() as server:
        run = fine(runner.run("push", {"before": changed, "after": "x"}, server.url))
    assert "### lm.pt2" in run.summary
    assert "net.pt2" not in run.summary
    assert "13.63 M" in run.summary  # what the transformer cost
    assert run.outputs == {"changed": "1", "past-threshold": "true", "comment": "none", "broken": "false"}
    assert server.calls == []


def test_a_pull_request_gets_one_comment_that_is_kept_up_to_date(
    runner: Runner, repository: Repository, changed: str
) -> None:
    with Server() as server:
        server.write("a person's", kind="User")
        first = fine(runner.run("pull_request", pull_request(changed), server.url))
        body = server.comments[1]["body"]
        repository.commit(lm_pt2=SAMPLES / "gqa_transformer.pt2")  # the change is taken back
        second = fine(runner.run("pull_request", pull_request(changed), server.url))
    assert first.outputs["comment"] == "created"
    assert body.startswith(MARK)
    assert body.removeprefix(f"{MARK}\n") == first.summary
    assert second.outputs["comment"] == "updated"
    assert len(server.comments) == 2
    assert "No model changed." in server.comments[1]["body"]


def test_a_pull_request_from_a_fork_needs_no_token_that_may_write(runner: Runner, changed: str) -> None:
    with Server(writable=False) as server:
        run = fine(runner.run("pull_request", pull_request(changed, fork=True), server.url))
        assert server.calls[-1].startswith("POST")
    assert "### lm.pt2" in run.summary
    assert run.outputs["comment"] == "none"
    assert "::notice title=graphflops::no comment, see the job's summary: POST 403" in run.log
    assert server.comments == []


def test_an_unchanged_model_gets_no_comment(runner: Runner, repository: Repository) -> None:
    base = repository.commit(lm_pt2=SAMPLES / "gqa_transformer.pt2")
    repository.commit(README="words")
    with Server() as server:
        run = fine(runner.run("pull_request", pull_request(base), server.url))
    assert "No model changed." in run.summary
    assert run.outputs == {"changed": "0", "past-threshold": "false", "comment": "none", "broken": "false"}
    assert [call for call in server.calls if not call.startswith("GET")] == []


# What else a runner meets


def test_what_the_action_installs(runner: Runner, changed: str) -> None:
    fine(runner.run("push", {"before": changed}))
    assert (runner.temp / "pip.txt").read_text().split()[-1] == str(ROOT)


@pytest.mark.parametrize("token, api", [("", ""), ("secret", "http://127.0.0.1:9"), ("secret", "no server")])
def test_no_token_and_no_server_are_no_failure(runner: Runner, changed: str, token: str, api: str) -> None:
    run = fine(runner.run("pull_request", pull_request(changed), api, token=token))
    assert "### lm.pt2" in run.summary


def test_a_change_below_the_threshold_gets_no_comment(
    runner: Runner, repository: Repository, tmp_path: Path
) -> None:
    base = repository.commit(net_pt2=SAMPLES / "convnet.pt2")
    silu = edited(
        tmp_path, "convnet.pt2", lambda data: data.replace(b"aten.relu.default", b"aten.silu.default")
    )
    repository.commit(net_pt2=silu)
    with Server() as server:
        run = fine(runner.run("pull_request", pull_request(base), server.url, comment_threshold="60 %"))
        assert run.outputs["past-threshold"] == "false"
        assert server.comments == []
        run = fine(runner.run("pull_request", pull_request(base), server.url, comment_threshold="40 %"))
        assert run.outputs["comment"] == "created"  # 4,096 more sigmoids are 50 % of 8,208 transcendentals


def test_an_outsider_cannot_have_their_comment_taken_for_ours(runner: Runner, changed: str) -> None:
    with Server() as server:
        server.write(f"{MARK} mine", kind="User")
        run = fine(runner.run("pull_request", pull_request(changed), server.url))
    assert run.outputs["comment"] == "created"
    assert server.comments[0]["body"] == f"{MARK} mine"


def test_the_comment_is_found_among_many(runner: Runner, changed: str) -> None:
    with Server() as server:
        for _ in range(130):
            server.write("talk", kind="User")
        server.write(f"{MARK}\nold", kind="User", association="MEMBER")
        run = fine(runner.run("pull_request", pull_request(changed), server.url))
    assert run.outputs["comment"] == "updated"
    assert len(server.comments) == 131


def test_a_broken_budget_fails_the_step_beside_the_source_line(
    runner: Runner, repository: Repository, changed: str
) -> None:
    (repository.path / "tools" / "samples").mkdir(parents=True)
    (repository.path / "tools" / "samples" / "make.py").touch()
    budget = '[[budget]]\nmodels = "net.pt2"\nmatrix_flops = "1 k"\nparameters = "+0 %"\n'
    base = repository.commit(graphflops_toml=budget)
    with Server() as server:
        run = runner.run("pull_request", pull_request(base), server.url, sarif="out.sarif")
        assert run.code == 3
        assert run.outputs["broken"] == "true"
        assert "GF301" in server.comments[0]["body"]
        assert "GF301" in run.summary
        place = "file=tools/samples/make.py,line=41,title=GF301 over-limit"
        assert f"::error {place}::net.pt2: matrix_flops is 2.261 MFLOP" in run.log
        results = json.loads((repository.path / "out.sarif").read_text())["runs"][0]["results"]
        (broken,) = (result for result in results if result["level"] == "error")
        location = broken["locations"][0]["physicalLocation"]
        assert location["artifactLocation"]["uri"] == "tools/samples/make.py"
        assert fine(runner.run("push", {"before": base}, enforce="false")).outputs["broken"] == "true"


def test_relative_limits_are_of_the_base_commit(
    runner: Runner, repository: Repository, tmp_path: Path
) -> None:
    budget = '[[budget]]\ntranscendentals = "+10 %"\n'
    base = repository.commit(net_pt2=SAMPLES / "convnet.pt2", graphflops_toml=budget)
    silu = edited(
        tmp_path, "convnet.pt2", lambda data: data.replace(b"aten.relu.default", b"aten.silu.default")
    )
    repository.commit(net_pt2=silu, new_pt2=SAMPLES / "lstm.pt2")
    run = runner.run("push", {"before": base})
    assert run.code == 3
    assert "transcendentals is 12.30 k: 4,096 (49.9 %) more than before" in run.summary
    assert "new.pt2: transcendentals" not in run.log
    assert (
        "Limits relative to an earlier commit are not checked"
        in fine(runner.run("push", {"before": ZEROS})).summary
    )


def test_a_shallow_checkout_fetches_the_base(tmp_path: Path, repository: Repository, changed: str) -> None:
    shallow = tmp_path / "shallow"
    command = [
        "git",
        "clone",
        "--quiet",
        "--depth=1",
        "--branch=main",
        f"file://{repository.origin}",
        shallow,
    ]
    subprocess.run(command, check=True)
    (tmp_path / "second").mkdir()
    run = fine(Runner(tmp_path / "second", shallow).run("push", {"before": changed}))
    assert "### lm.pt2" in run.summary


@pytest.mark.parametrize(
    "before, says",
    [(ZEROS, "There is no earlier commit"), ("1" * 40, "The base commit 111111111111 cannot be fetched")],
)
def test_no_base_is_said(runner: Runner, changed: str, before: str, says: str) -> None:
    run = fine(runner.run("push", {"before": before}))
    assert says in run.summary
    assert "No model changed" not in run.summary


def test_new_gone_moved_and_unreadable_models(runner: Runner, repository: Repository) -> None:
    base = repository.commit(
        old_pt2=SAMPLES / "lstm.pt2", a_onnx=SAMPLES / "convnet.onnx", bad_pt2=SAMPLES / "cond.pt2"
    )
    repository.commit(
        old_pt2=b"", b_pt2=SAMPLES / "gqa_transformer.pt2", bad_pt2="no model", notes_txt="words"
    )
    run = fine(runner.run("push", {"before": base}))
    assert "### old.pt2: gone" in run.summary
    assert "### b.pt2: new" in run.summary
    assert "205.4 k parameters" in run.summary
    assert "### bad.pt2: not analyzed" in run.summary
    assert run.outputs["changed"] == "3"


def test_a_pointer_is_resolved_from_the_local_store_or_named(runner: Runner, repository: Repository) -> None:
    content = (SAMPLES / "convnet.pt2").read_bytes()
    digest = hashlib.sha256(content).hexdigest()
    pointer = f"version https://git-lfs.github.com/spec/v1\noid sha256:{digest}\nsize {len(content)}\n"
    base = repository.commit(net_pt2=SAMPLES / "lstm.pt2")
    repository.commit(net_pt2=pointer)
    run = fine(runner.run("push", {"before": base}))
    assert "not analyzed" in run.summary
    assert "that the local store does not have" in run.summary
    place = repository.path / ".git" / "lfs" / "objects" / digest[:2] / digest[2:4] / digest
    place.parent.mkdir(parents=True)
    place.write_bytes(content)
    assert "2.261 M" in fine(runner.run("push", {"before": base})).summary  # what the sample costs


def test_models_are_those_of_the_patterns(runner: Runner, repository: Repository, changed: str) -> None:
    repository.commit(other_pt2=SAMPLES / "lstm.pt2")
    run = fine(runner.run("push", {"before": changed}, models="nothing/**\nother.*\n"))
    assert run.outputs["changed"] == "1"
    assert "other.pt2: new" in run.summary


def test_reports_of_the_base_are_kept(runner: Runner, changed: str) -> None:
    first = fine(runner.run("push", {"before": changed}))
    (kept,) = (runner.temp / "graphflops-cache" / changed).glob("*.json")
    assert json.loads(kept.read_text())["totals"]["parameters"] == 205_376
    assert fine(runner.run("push", {"before": changed})).summary == first.summary
    kept.write_text("{}")
    assert fine(runner.run("push", {"before": changed})).summary == first.summary


@pytest.mark.parametrize(
    "given, says",
    [
        ({"comment_threshold": "much"}, "input comment-threshold: 'much' is no percentage"),
        ({"budget": "net.pt2"}, "net.pt2: no TOML"),
    ],
)
def test_wrong_inputs_are_said_in_one_line(
    runner: Runner, changed: str, given: dict[str, str], says: str
) -> None:
    run = runner.run("push", {"before": changed}, **given)
    assert run.code == 1
    assert f"::error title=graphflops::{says}" in run.log
    assert "Traceback" not in run.log


@pytest.mark.parametrize("payload", [{"pull_request": {}}, {"pull_request": None}, {"before": 7}])
def test_an_event_that_is_none_is_said(runner: Runner, changed: str, payload: dict[str, Any]) -> None:
    run = runner.run("push", payload)
    assert run.code == 1
    assert "no event" in run.log
    assert "Traceback" not in run.log


def test_every_input_and_output_is_documented() -> None:
    text = (ROOT / "docs" / "ci.md").read_text()
    for name in (*ACTION["inputs"], *ACTION["outputs"]):
        assert f"`{name}`" in text


def test_a_budget_loosened_by_the_same_change_is_said_first(runner: Runner, repository: Repository) -> None:
    budget = 'models = "*.pt2"\n[[budget]]\nmatrix_flops = "{}"\nforbid = "aten.relu"\n'
    model = SAMPLES / "convnet.pt2"
    base = repository.commit(graphflops_toml=budget.format("1 FLOP"), net_pt2=model)
    repository.commit(graphflops_toml=budget.format("1 EFLOP").replace("aten.relu", "aten.tan"))
    with Server() as server:
        run = fine(runner.run("pull_request", pull_request(base), server.url))
    first, *_ = server.comments[0]["body"].split("All limits kept")
    assert "was at most 1 FLOP, is at most 1 EFLOP now" in first.replace("\\", "")
    assert "no longer forbidden: aten.relu" in first.replace("\\", "")
    assert run.code == 0


# The base of a pull request


def request_for(base: str, head: str, fork: bool = False) -> dict[str, Any]:
    payload = pull_request(base, fork)
    payload["pull_request"]["head"]["sha"] = head
    return payload


@pytest.fixture
def parted(repository: Repository) -> dict[str, str]:
    """main changed net.pt2 after `topic`, which changes lm.pt2, had left it; `stacked` goes on from `topic`."""
    found = {
        "start": repository.commit(lm_pt2=SAMPLES / "gqa_transformer.pt2", net_pt2=SAMPLES / "convnet.pt2")
    }
    for name, files, branch in (
        ("main", {"net_pt2": SAMPLES / "cond.pt2"}, "main"),
        ("topic", {"lm_pt2": SAMPLES / "lstm.pt2"}, "topic"),
        ("stacked", {"other_pt2": SAMPLES / "cond.pt2"}, "stacked"),
    ):
        if branch == "topic":
            repository.git("checkout", "--quiet", "-b", "topic", found["start"])
        if branch == "stacked":
            repository.git("checkout", "--quiet", "-b", "stacked")
        for place, content in files.items():
            shutil.copy(content, repository.path / place.replace("_", "."))
        repository.git("add", "--all")
        repository.git("commit", "--quiet", "--message", name)
        repository.git("push", "--quiet", "--force", "origin", f"HEAD:{branch}")
        found[name] = repository.git("rev-parse", "HEAD")
    return found


def test_what_main_changed_meanwhile_is_not_of_the_pull_request(
    runner: Runner, repository: Repository, parted: dict[str, str]
) -> None:
    repository.git("checkout", "--quiet", "topic")
    run = fine(runner.run("pull_request", request_for(parted["main"], parted["topic"]), token=""))
    assert "### lm.pt2" in run.summary
    assert "net.pt2" not in run.summary


def test_githubs_merge_is_compared_with_its_first_parent(
    runner: Runner, repository: Repository, parted: dict[str, str]
) -> None:
    repository.git("checkout", "--quiet", "--detach", parted["main"])
    repository.git("merge", "--quiet", "--no-ff", "--message", "merge", parted["topic"])
    # The event's base is older than the merge: main went on in between.
    run = fine(runner.run("pull_request", request_for(parted["start"], parted["topic"]), token=""))
    assert "### lm.pt2" in run.summary
    assert "net.pt2" not in run.summary


def test_a_stacked_pull_request_has_only_its_own_changes(
    runner: Runner, repository: Repository, parted: dict[str, str]
) -> None:
    repository.git("checkout", "--quiet", "stacked")
    run = fine(runner.run("pull_request", request_for(parted["topic"], parted["stacked"]), token=""))
    assert "### other.pt2: new" in run.summary
    assert "lm.pt2" not in run.summary


def test_a_shallow_fork_is_compared_with_the_merge_base(
    tmp_path: Path, repository: Repository, parted: dict[str, str]
) -> None:
    shallow = tmp_path / "shallow"
    url = f"file://{repository.origin}"
    command = ["git", "clone", "--quiet", "--depth=1", "--branch=topic", url, shallow]
    subprocess.run(command, check=True)
    (tmp_path / "second").mkdir()
    event = request_for(parted["main"], parted["topic"], fork=True)
    run = fine(Runner(tmp_path / "second", shallow).run("pull_request", event, token=""))
    assert "### lm.pt2" in run.summary
    assert "net.pt2" not in run.summary


def test_a_model_of_the_same_cost_gets_no_comment(
    runner: Runner, repository: Repository, tmp_path: Path
) -> None:
    base = repository.commit(net_pt2=SAMPLES / "convnet.pt2")
    repository.commit(
        net_pt2=edited(tmp_path, "convnet.pt2", lambda data: data + b" " * data.startswith(b"{"))
    )
    with Server() as server:
        run = fine(runner.run("pull_request", pull_request(base), server.url))
    assert server.comments == []
    assert "Identical in cost: net.pt2" in run.summary
    assert run.outputs["changed"] == "0"


def test_names_mention_nobody_and_are_no_commands(runner: Runner, repository: Repository) -> None:
    name = "@team #12 GH-7 www.evil.example ##[error] ::error::x.pt2"
    base = repository.commit(README="words")
    shutil.copy(SAMPLES / "lstm.pt2", repository.path / name)
    budget = f"[[budget]]\nmodels = '{name}'\nmatrix_flops = '1 FLOP'\n"
    repository.commit(graphflops_toml=budget)
    with Server() as server:
        run = runner.run("pull_request", pull_request(base), server.url)
    assert run.code == 3
    body = server.comments[0]["body"]
    assert all(word not in body for word in ("@team", "#12", "GH-7", "www.evil"))
    assert "##[" not in run.log
    assert not any(line.lstrip().startswith("::error::x") for line in run.log.splitlines())


def test_actions_of_others_are_pinned_by_commit() -> None:
    uses = [step["uses"] for step in ACTION["runs"]["steps"] if "uses" in step]
    uses += re.findall(r"uses: (\S+)", (ROOT / "docs" / "ci.md").read_text())
    assert all(re.search(r"@[0-9a-f]{40}$", name) for name in uses if not name.startswith("OWNER/"))
