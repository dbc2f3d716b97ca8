"""`graphflops scan`: every file has its row, whatever the others are; nothing is lost and nothing stands twice."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from onnx import TensorProto, helper

import graphflops
from graphflops import cli

pytest.importorskip("pyarrow")

from graphflops.scan import store, worker
from tests.exporters.build import call, meta, program, save, tensor
from tests.exporters.onnx_files import model, node, value

SAMPLES = Path(__file__).parents[2] / "samples"
TIMED = ("seconds", "limits")

# A worker that hangs or crashes for files of such names, and is ours otherwise.
ODD_WORKER = """
import os, time
from graphflops.scan import worker
answered = worker.answered
def odd(task):
    if "hang" in task.path and task.step == os.environ.get("HANGS", "analyze"):
        time.sleep(1000)
    if "crash" in task.path:
        os.kill(os.getpid(), 11)
    if "replaced" in task.path and task.step == "analyze":
        os.utime(task.file, (1, 1))
    return answered(task)
worker.answered = odd
worker.main()
"""


def run(*args: object) -> Result:
    return CliRunner().invoke(cli.main, ["scan", *map(str, args)], prog_name="graphflops")


def ok(*args: object) -> str:
    result = run(*args)
    assert result.exit_code == 0, result.output
    return result.stderr


def rows(folder: Path | str) -> list[dict[str, object]]:
    found = sorted(store.rows_of(store.read(str(folder))), key=lambda row: (row["path"], row["binding"]))
    return [{name: value for name, value in row.items() if name not in TIMED} for row in found]


def hidden_operator(path: Path) -> Path:
    """Its Relu is a function that adds up: onnxruntime runs the operator."""
    opsets = [helper.make_opsetid("", 21)]
    ours = helper.make_function("", "Relu", ["a"], ["b"], [node("ReduceSum", ["a"], ["b"])], opsets)
    made = model(
        [node("Relu", ["x"], ["y"])], [value("x")], [value("y")], functions=[ours], opset_imports=opsets
    )
    path.write_bytes(made.SerializeToString())
    return path


@pytest.fixture
def fleet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "fleet"
    folder.mkdir()
    for name in ("lstm.pt2", "convnet.pt2", "gqa_transformer.pt2", "gqa_transformer.onnx"):
        shutil.copy(SAMPLES / name, folder)
    (folder / "bad.onnx").write_text("no model")
    (folder / "notes.md").write_text("words")
    return folder


def test_a_row_for_every_file(fleet: Path) -> None:
    ok("fleet", "-o", "r.parquet", "--jobs", "2")
    found = {Path(str(row["path"])).name: row for row in rows("r.parquet")}
    assert {name: row["status"] for name, row in found.items()} == {
        "bad.onnx": "error",
        "convnet.pt2": "ok",
        "gqa_transformer.onnx": "ok",
        "gqa_transformer.pt2": "ok",
        "lstm.pt2": "ok",
    }
    assert found["bad.onnx"]["code"] == "FileError"
    report = graphflops.analyze(SAMPLES / "gqa_transformer.pt2")
    row = found["gqa_transformer.pt2"]
    for name in ("matrix_flops", "read_bytes", "vector_flops"):
        assert row[name] == report.value(getattr(report.totals.cost, name))
        assert row[f"{name}_formula"] == str(getattr(report.totals.cost, name))
    assert (row["parameters"], row["attentions"], row["bytes"]) == (
        report.parameters,
        4,
        (SAMPLES / "gqa_transformer.pt2").stat().st_size,
    )
    assert row["audit_errors"] is None  # of ONNX files only
    assert found["gqa_transformer.onnx"]["audit_errors"] == 0


def test_further_tables_sum_to_the_results(fleet: Path) -> None:
    ok("fleet/lstm.pt2", "-o", "r.parquet", "--rows", "calls", "--rows", "modules", "--rows", "findings")
    (result,) = rows("r.parquet")
    calls = store.read("r-calls.parquet", "calls").to_pylist()
    modules = store.read("r-modules.parquet", "modules").to_pylist()
    assert sum(call["matrix_flops"] for call in calls) == result["matrix_flops"]
    (whole,) = (module for module in modules if not module["module"])
    assert (whole["matrix_flops"], whole["parameters"]) == (result["matrix_flops"], result["parameters"])


def test_bindings_and_training(fleet: Path) -> None:
    Path("b.toml").write_text(
        '[[binding]]\nname = "short"\ndims = {"ids[1]" = 16, "ids[0]" = 1}\n'
        '[[binding]]\ndims = {"ids[1]" = 32, "ids[0]" = 1}\nmodels = ["**/gqa*.pt2"]\n'
    )
    ok("fleet/gqa_transformer.pt2", "-o", "r.parquet", "--bindings", "b.toml", "--training")
    short, long = sorted(rows("r.parquet"), key=lambda row: str(row["binding"]), reverse=True)
    assert (short["binding"], long["binding"]) == ("short", "ids[1]=32 ids[0]=1")
    # 51,200 multiply-adds a token in the weights and 1,024 FLOPs for each pair of tokens
    assert [row["matrix_flops"] for row in (short, long)] == [409_600 * n + 1_024 * n * n for n in (16, 32)]
    assert short["step_matrix_flops"] == short["matrix_flops"] + short["backward_matrix_flops"]


def test_what_the_table_has_is_not_analyzed_again(fleet: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ok("fleet", "-o", "r.parquet")
    before = rows("r.parquet")
    shutil.copy(fleet / "lstm.pt2", fleet / "copy.pt2")
    monkeypatch.setattr(worker, "_every", [])
    ask = worker.Isolated.__call__
    steps: list[str] = []
    monkeypatch.setattr(
        worker.Isolated, "__call__", lambda self, task: steps.append(task.step) or ask(self, task)
    )
    assert "5 were there already" in ok("fleet", "-o", "r.parquet")
    assert steps == ["look"]
    after = rows("r.parquet")
    (copy,) = (row for row in after if str(row["path"]).endswith("copy.pt2"))
    (lstm,) = (row for row in after if str(row["path"]).endswith("lstm.pt2"))
    assert [row for row in after if row is not copy] == before
    assert {**copy, "path": "", "modified": 0} == {**lstm, "path": "", "modified": 0}


def test_a_changed_file_has_one_row(fleet: Path) -> None:
    ok("fleet", "-o", "r.parquet")
    shutil.copy(fleet / "convnet.pt2", fleet / "lstm.pt2")
    ok("fleet", "-o", "r.parquet")
    found = [row for row in rows("r.parquet") if str(row["path"]).endswith("lstm.pt2")]
    assert [row["matrix_flops"] for row in found] == [2_261_152]


def test_a_file_that_hangs_crashes_or_is_replaced_costs_its_own_row(
    fleet: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ok("fleet", "-o", "good.parquet")
    for name in ("hang", "crash", "replaced"):
        shutil.copy(fleet / "lstm.pt2", fleet / f"{name}.pt2")
        with zipfile.ZipFile(fleet / f"{name}.pt2", "a") as file:
            file.writestr(f"{file.namelist()[0].partition('/')[0]}/extra/name", name)
    Path("worker.py").write_text(ODD_WORKER)
    monkeypatch.setattr(worker, "COMMAND", (sys.executable, "worker.py"))
    monkeypatch.setattr(worker, "GRACE", 0.5)
    monkeypatch.setenv("PYTHONPATH", str(Path(graphflops.__file__).parents[1]))
    ok("fleet", "-o", "r.parquet", "--jobs", "2", "--timeout", "6")
    found = {Path(str(row["path"])).stem: row for row in rows("r.parquet")}
    assert found["hang"]["status"] == "timeout"
    assert (found["crash"]["status"], found["crash"]["message"]) == (
        "killed",
        "the worker process ended with status -11",
    )
    assert found["replaced"]["code"] == "Replaced"
    good = [
        row for row in rows("r.parquet") if Path(str(row["path"])).stem not in ("hang", "crash", "replaced")
    ]
    assert good == rows("good.parquet")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="the system has no named pipes")
def test_a_pipe_costs_its_own_row(fleet: Path) -> None:
    os.mkfifo(fleet / "pipe.onnx")
    ok("fleet", "-o", "r.parquet", "--timeout", "20")
    found = {Path(str(row["path"])).name: row for row in rows("r.parquet")}
    assert (found["pipe.onnx"]["status"], found["pipe.onnx"]["message"]) == (
        "error",
        "is a device or a pipe, not a file",
    )
    assert [row["status"] for row in found.values()].count("ok") == 4


def test_a_file_that_cannot_be_read_takes_no_longer_than_it_may(
    fleet: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a mount that stalls: its first byte never comes."""
    shutil.copy(fleet / "lstm.pt2", fleet / "hang.pt2")
    Path("worker.py").write_text(ODD_WORKER)
    monkeypatch.setattr(worker, "COMMAND", (sys.executable, "worker.py"))
    monkeypatch.setattr(worker, "GRACE", 0.5)
    monkeypatch.setenv("HANGS", "look")
    monkeypatch.setenv("PYTHONPATH", str(Path(graphflops.__file__).parents[1]))
    ok("fleet/hang.pt2", "fleet/lstm.pt2", "-o", "r.parquet", "--timeout", "6")
    assert [row["status"] for row in rows("r.parquet")] == ["timeout", "ok"]


def test_a_file_that_contradicts_itself(fleet: Path) -> None:
    """A product that is recorded as 8 x 8 of operands of 64 x 64; a function of the file named as an operator."""
    nodes = [call("torch.ops.aten.mm.default", tensor("x"), tensor("x"))]
    save(fleet / "forged.pt2", program(nodes, {"x": meta(64, 64), "y": meta(8, 8)}))
    hidden_operator(fleet / "forged.onnx")
    ok("fleet", "-o", "r.parquet", "--report", "r.html")
    found = {Path(str(row["path"])).name: row for row in rows("r.parquet")}
    for name, code in (("forged.pt2", "GF102"), ("forged.onnx", "GF130")):
        assert found[name]["status"] == "contradiction"
        assert str(found[name]["contradiction"]).startswith("the file contradicts itself, so that its totals")
        assert code in str(found[name]["contradiction"])
        assert code in Path("r.html").read_text()
    assert [row["contradiction"] for row in found.values() if row["status"] == "ok"] == [""] * 4
    Path("policy.toml").write_text('[[budget]]\nmatrix_flops = "1 EFLOP"\n')
    broken = CliRunner().invoke(cli.main, ["check", "r.parquet", "--budget", "policy.toml"])
    assert broken.exit_code == 3
    assert broken.stdout.count("GF313") == 2
    assert broken.stdout.count("GF310") == 1  # the file that is no model


def test_a_file_that_no_runtime_loads_breaks_every_policy(fleet: Path) -> None:
    short = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[8, 8], raw_data=bytes(252))
    made = model([node("MatMul", ["x", "w"], ["y"])], [value("x", (8, 8))], [value("y", (8, 8))], [short])
    (fleet / "short.onnx").write_bytes(made.SerializeToString())
    ok("fleet/short.onnx", "-o", "r.parquet")
    (row,) = rows("r.parquet")
    assert (row["status"], row["code"], row["matrix_flops"]) == ("error", "GF210", 2 * 8**3)
    Path("policy.toml").write_text('[[budget]]\nmatrix_flops = "1 EFLOP"\n')
    broken = CliRunner().invoke(cli.main, ["check", "r.parquet", "--budget", "policy.toml"])
    assert (broken.exit_code, "256 bytes, but its data in the file has 252" in broken.stdout) == (3, True)


def test_a_row_of_an_older_version_was_not_looked_at(fleet: Path) -> None:
    """Its table has no column of contradictions."""
    import pyarrow.parquet as parquet

    ok("fleet/lstm.pt2", "-o", "r.parquet")
    (part,) = Path("r.parquet").iterdir()
    parquet.write_table(parquet.read_table(part).drop_columns(["contradiction"]), part)
    Path("policy.toml").write_text('[[budget]]\nmatrix_flops = "1 EFLOP"\n')
    checked = CliRunner().invoke(cli.main, ["check", "r.parquet", "--budget", "policy.toml"])
    assert (checked.exit_code, "an older version wrote this row" in checked.stdout) == (3, True)


def test_an_output_that_is_named_as_a_page_is_a_page(fleet: Path) -> None:
    assert ok("fleet", "-o", "scan.html").startswith("scan.html: 5 rows (")
    page = Path("scan.html").read_text()
    assert page.startswith("<!DOCTYPE html>")
    assert "<h1>scan.html</h1>" in page
    assert "gqa_transformer.onnx" in page
    assert sorted(path.name for path in Path().iterdir()) == ["fleet", "scan.html"]


def test_limits_of_one_file(fleet: Path) -> None:
    ok("fleet/gqa_transformer.pt2", "-o", "r.parquet", "--timeout", "0.0001")
    assert [row["status"] for row in rows("r.parquet")] == ["timeout"]
    ok("fleet/gqa_transformer.pt2", "-o", "r.parquet", "--timeout", "60")  # another limit: tried again
    assert [row["status"] for row in rows("r.parquet")] == ["ok"]


def test_lists_patterns_and_urls(fleet: Path) -> None:
    Path("list.txt").write_text("fleet/lstm.pt2\nfleet/con*.pt2\n")
    ok("list.txt", "-o", "a.parquet")
    ok("fleet/*.pt2", "-o", "b.parquet")
    ok(f"file://{fleet}/lstm.pt2", "-o", "c.parquet")
    assert [len(rows(name)) for name in ("a.parquet", "b.parquet", "c.parquet")] == [2, 3, 1]
    assert rows("c.parquet")[0]["matrix_flops"] == rows("a.parquet")[1]["matrix_flops"]


@pytest.mark.skipif(sys.platform != "linux", reason="names of files are text elsewhere")
def test_a_name_that_is_no_text_is_spelled_out(fleet: Path) -> None:
    shutil.copy(fleet / "lstm.pt2", os.path.join(os.fsencode(fleet), b"\xff\n.pt2"))
    ok("fleet", "-o", "r.parquet")
    assert [row["path"] for row in rows("r.parquet") if "xff" in str(row["path"])] == ["fleet/\\xff\n.pt2"]
    assert "6 were there already" in ok("fleet", "-o", "r.parquet")


@pytest.mark.parametrize(
    "args, code, says",
    [
        (("nothing", "-o", "r.parquet"), 1, "nothing: no model: name a file, a folder"),
        (("fleet",), 2, "name the table with --output"),
        (("fleet", "-o", "fleet/lstm.pt2"), 1, "is a file, and a scan writes a folder"),
        (("fleet", "-o", "r.parquet", "--bindings", "fleet/notes.md"), 1, "no bindings"),
        (("fleet", "-o", "r.parquet", "--scheduler", "tcp://127.0.0.1:9"), 1, "no scheduler there"),
        (("fleet", "-o", "r.parquet", "--device", "h300"), 2, "unknown device"),
        (("fleet", "-o", "scan.csv"), 2, "a scan writes a folder of Parquet files, or a page: FILE.html"),
        (
            ("fleet", "-o", "scan.html", "--report", "r.html"),
            2,
            "scan.html is a page: name a folder of tables",
        ),
        (("fleet", "-o", "scan.html", "--rows", "calls"), 2, "scan.html is a page: name a folder of tables"),
        (("-o", "scan.html"), 2, "scan.html is a page: name a folder of tables"),
        (("--diff", "fleet", "none.parquet"), 1, "none.parquet: no table"),
        (("-o", "none.parquet", "--report", "r.html"), 1, "none.parquet: no table"),
    ],
)
def test_misuse_is_one_line(
    fleet: Path, args: tuple[str, ...], code: int, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("graphflops.scan.run.CONNECT", 1)
    result = run(*args)
    assert (result.exit_code, says in result.stderr) == (code, True), result.stderr
    assert "Traceback" not in result.output


def test_a_number_that_no_column_holds_is_left_out(fleet: Path) -> None:
    """A parameter of 2 ** 80 elements."""
    values = {"x": meta(8), "w": meta(2**40, 2**40), "y": meta(8)}
    weight = {"parameter": {"arg": {"name": "w"}, "parameter_name": "w"}}
    inputs = [weight, {"user_input": {"arg": tensor("x")}}]
    nodes = [call("torch.ops.aten.relu.default", tensor("x"))]
    save(fleet / "vast.pt2", program(nodes, values, inputs, [{"user_output": {"arg": tensor("y")}}]))
    ok("fleet/vast.pt2", "-o", "r.parquet", "--rows", "modules")
    (row,) = rows("r.parquet")
    assert (row["status"], row["parameters"], row["counted"]) == ("ok", None, 1)


def test_diff_report_and_policy(fleet: Path) -> None:
    ok("fleet", "-o", "old.parquet")
    assert run("--diff", "old.parquet", "old.parquet").stdout.startswith("5 rows: identical;")
    shutil.copy(fleet / "convnet.pt2", fleet / "lstm.pt2")
    (fleet / "convnet.pt2").unlink()
    ok("fleet", "-o", "new.parquet")
    text = run("--diff", "old.parquet", "new.parquet").stdout
    assert text.startswith("5 rows: 1 changed, 1 gone;")
    assert "1.476 M  2.261 M  +53.2" in text  # 1,475,584 and 2,261,152 FLOPs
    ok("-o", "new.parquet", "--report", "fleet.html")
    page = Path("fleet.html").read_text()
    assert "gqa_transformer.onnx" in page
    assert "http" not in page.split("<script", 1)[0].replace("http-equiv", "")
    Path("policy.toml").write_text('[[budget]]\nmatrix_flops = "10 MFLOP"\n')
    result = CliRunner().invoke(cli.main, ["check", "new.parquet", "--budget", "policy.toml"])
    assert result.exit_code == 3
    assert "3 of 4 rows break the policy" in result.stderr  # two transformers and a file that is no model
    Path("policy.toml").write_text('[[budget]]\nmodels = "**/lstm.pt2"\nmatrix_flops = "10 MFLOP"\n')
    assert CliRunner().invoke(cli.main, ["check", "new.parquet", "--budget", "policy.toml"]).exit_code == 0


# Ends of processes


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs Linux's account of memory")
def test_a_process_does_not_have_the_memory_of_the_one_that_started_it() -> None:
    """Else each file that a large process scans has a worker of its own, for large ones are replaced."""
    held = bytes(range(256)) * 2**21  # 512 MiB
    code = "from graphflops.runtime.machine import most_held_bytes; print(most_held_bytes())"
    env = {**os.environ, "PYTHONPATH": str(Path(graphflops.__file__).parents[1])}
    told = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
    assert 2**20 < int(told.stdout) < len(held) // 4


def many(folder: Path, count: int) -> None:
    for number in range(count):
        path = folder / f"model_{number:03d}.pt2"
        shutil.copy(SAMPLES / "lstm.pt2", path)
        with zipfile.ZipFile(path, "a") as file:
            file.writestr("archive/extra/number", str(number))


def children(process: int) -> list[int]:
    listed = Path(f"/proc/{process}/task/{process}/children")
    return [int(child) for task in listed.parents[1].glob("*/children") for child in task.read_text().split()]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[dict[str, object]]]:
    """A folder with a fleet, and the rows of a scan of it that nothing ended."""
    place = tmp_path_factory.mktemp("restart")
    (place / "fleet").mkdir()
    many(place / "fleet", 60)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        ok("fleet", "-o", "undisturbed.parquet", "--jobs", "2")
        return place, rows("undisturbed.parquet")


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="needs Linux's list of processes")
@pytest.mark.parametrize("what", ["worker", "client", "interrupted", "terminated"])
def test_the_table_is_complete_after_a_restart(
    undisturbed: tuple[Path, list[dict[str, object]]], what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, expected = undisturbed
    monkeypatch.chdir(folder)
    table = f"{what}.parquet"
    command = [sys.executable, "-m", "graphflops", "scan", "fleet", "-o", table, "--jobs", "2"]
    env = {**os.environ, "PYTHONPATH": str(Path(graphflops.__file__).parents[1])}
    process = subprocess.Popen(command, env=env, stderr=subprocess.DEVNULL)
    while not (workers := children(process.pid)) and process.poll() is None:
        time.sleep(0.05)
    time.sleep(random.uniform(0, 1.5))
    if what == "worker":
        with contextlib.suppress(ProcessLookupError):  # it may be done already
            os.kill(workers[0], signal.SIGKILL)
    else:
        process.send_signal(
            {"client": signal.SIGKILL, "interrupted": signal.SIGINT, "terminated": signal.SIGTERM}[what]
        )
    code = process.wait(60)
    # By the signal itself (-2, -15): it came while Python began or ended.
    codes = {"worker": (0,), "client": (-9, 0), "interrupted": (130, 0, -2), "terminated": (143, 0, -15)}
    assert code in codes[what]
    ok("fleet", "-o", table, "--jobs", "2")
    assert rows(table) == expected
    deadline = time.monotonic() + 20
    while any(Path(f"/proc/{worker}").exists() for worker in workers) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not any(Path(f"/proc/{worker}").exists() for worker in workers)


def test_a_dask_cluster_writes_the_same_table(fleet: Path) -> None:
    distributed = pytest.importorskip("distributed")
    many(fleet, 20)
    ok("fleet", "-o", "here.parquet")
    with distributed.LocalCluster(
        n_workers=3, threads_per_worker=1, dashboard_address=None, processes=True
    ) as cluster:
        ok("fleet", "-o", "r.parquet", "--scheduler", cluster.scheduler_address)
    assert rows("r.parquet") == rows("here.parquet")


@pytest.mark.parametrize(
    ("column", "value", "code", "says"),
    [
        ("free", None, 3, "not-analyzed"),
        ("status", "killed", 3, "not-analyzed"),
        ("matrix_flops", -1, 3, "a number below zero"),
        ("unknown", 2, 3, "2 calls of unknown cost"),  # and no operator named
        ("path", None, 1, "a row states no path"),
    ],
)
def test_a_row_that_no_scan_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, column: str, value: object, code: int, says: str
) -> None:
    monkeypatch.chdir(tmp_path)
    row = {"path": "lstm.pt2", "binding": "", "status": "ok", "contradiction": "", "matrix_flops": 1}
    row |= {"counted": 1, "free": 0, "unknown": 0}
    store.prepare("r.parquet")
    store.write("r.parquet", [{**row, column: value}])
    Path("policy.toml").write_text('[[budget]]\nmatrix_flops = "1 EFLOP"\n')
    checked = CliRunner().invoke(cli.main, ["check", "r.parquet", "--budget", "policy.toml"])
    assert (checked.exit_code, says in checked.output) == (code, True)
