"""Writes the programs of tests/data/pt2 as the installed torch saves them: `python -m tests.oracle.recorded_programs FOLDER`.

The models are text, with lines where every file of tests/data has them, so that files of all releases agree in their source
lines. Weights are zeros, and folders of the machine are taken out of the traces.
"""

from __future__ import annotations

import contextlib
import io
import linecache
import re
import sys
import zipfile
from pathlib import Path
from typing import Any

import torch
from torch.export import Dim, ExportedProgram, export, save

SOURCE = """\
import torch, torch.nn as nn, torch.nn.functional as F
class Conv(nn.Module):
    def __init__(s):
        super().__init__(); s.conv=nn.Conv2d(3,8,3,padding=1)
        s.bn=nn.BatchNorm2d(8)
        s.dw=nn.Conv2d(8,8,3,groups=8)
        s.up=nn.ConvTranspose2d(8,4,2,stride=2)
        s.fc=nn.Linear(3136,10)
    def forward(s,x): return s.fc(s.up(F.relu(s.dw(F.relu(s.bn(s.conv(x)))))).flatten(1))
class Block(nn.Module):
    def __init__(s,d=64,h=4):
        super().__init__(); s.h=h; s.n1=nn.LayerNorm(d); s.qkv=nn.Linear(d,3*d,bias=False); s.o=nn.Linear(d,d); s.n2=nn.LayerNorm(d); s.up=nn.Linear(d,4*d); s.down=nn.Linear(4*d,d)
    def forward(s,x):
        B,S,D=x.shape; q,k,v=s.qkv(s.n1(x)).view(B,S,3,s.h,D//s.h).permute(2,0,3,1,4).unbind(0)
        x=x+s.o(F.scaled_dot_product_attention(q,k,v,is_causal=True).transpose(1,2).reshape(B,S,D)); return x+s.down(F.gelu(s.up(s.n2(x))))
class LM(nn.Module):
    def __init__(s):
        super().__init__(); s.emb=nn.Embedding(100,64); s.blocks=nn.ModuleList(Block() for _ in range(2)); s.head=nn.Linear(64,100)
    def forward(s,ids):
        x=s.emb(ids)
        for b in s.blocks: x=b(x)
        return s.head(x)
""" + "\n" * 14 + """\
class R(nn.Module):
    def __init__(s):
        super().__init__(); s.l=nn.LSTM(16,32,num_layers=2,bidirectional=True,batch_first=True)
    def forward(s,x): return s.l(x)[0]
"""  # fmt: skip
FILE = "models/gen_m.py"


def programs() -> dict[str, ExportedProgram]:
    """The programs by name, exported by the installed torch."""
    linecache.cache[FILE] = (len(SOURCE), None, SOURCE.splitlines(keepends=True), FILE)
    made: dict[str, Any] = {"__name__": "__main__"}
    exec(compile(SOURCE, FILE, "exec"), made)
    conv, model, recurrent = (made[name]().eval() for name in ("Conv", "LM", "R"))
    batch, time = Dim("batch", min=2, max=64), Dim("time", min=2, max=512)
    ids, image = torch.zeros(3, 7, dtype=torch.int64), torch.zeros(2, 3, 16, 16)
    language = export(model, (ids,), dynamic_shapes={"ids": {0: batch, 1: time}})
    return {
        "conv_batch": export(conv, (torch.zeros(3, 3, 16, 16),), dynamic_shapes={"x": {0: batch}}),
        "conv_static": export(conv, (image,)),
        "lm_dynamic": language,
        "lm_core_aten": language.run_decompositions(),
        "lstm_static": export(recurrent, (torch.zeros(2, 5, 16),)),
    }


def saved(name: str, program: ExportedProgram, path: Path) -> None:
    """Save a program without weights that differ, example inputs and this machine's folders."""
    with torch.no_grad(), contextlib.suppress(AttributeError):
        program.example_inputs = None
        for tensor in program.state_dict.values():
            tensor.zero_()
    buffer = io.BytesIO()
    save(program, buffer)
    with zipfile.ZipFile(buffer) as source, zipfile.ZipFile(path, "w") as target:
        for entry in source.infolist():
            data = source.read(entry)
            if "/models/" in entry.filename and entry.filename.endswith(".json"):
                data = re.sub(rb'(File \\")[^"]*?/site-packages/', rb"\1site-packages/", data)
            inside = name + "/" + entry.filename.partition("/")[2]
            info = zipfile.ZipInfo(inside, date_time=(2025, 1, 1, 0, 0, 0))
            target.writestr(info, data, zipfile.ZIP_DEFLATED)


def main() -> None:
    """Write every program into the folder that is named."""
    folder, release = Path(sys.argv[1]), torch.__version__.partition("+")[0]
    for name, program in programs().items():
        saved(name, program, folder / f"{name}-torch{release}.pt2")


if __name__ == "__main__":
    main()
