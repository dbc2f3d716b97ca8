"""A file's bytes, read page by page."""

import io

import pytest

from graphflops.exporters import archive
from graphflops.exporters.onnx_proto import messages, without_weights

DATA = bytes(range(256)) * 3


@pytest.fixture(params=[1, 7, 4096])
def opened(request, monkeypatch):
    monkeypatch.setattr(archive, "_PAGE", request.param)
    return lambda data: archive.Pages(io.BytesIO(data), len(data))


def test_bytes_are_those_of_the_file_in_any_order(opened):
    read = opened(DATA)
    places = [0, 5, 6, 767, 3, 300, 299]
    assert [read[place] for place in places] == [DATA[place] for place in places]
    assert (len(read), read[10:20], read[700:], read[:]) == (768, DATA[10:20], DATA[700:], DATA)


def test_past_the_end_is_an_index_error(opened):
    with pytest.raises(IndexError):
        opened(DATA)[768]


def test_weights_are_left_out_of_a_file_as_they_are_of_bytes(opened):
    proto = messages()
    tensors = [
        proto.TensorProto(name=f"w{n}", data_type=1, dims=[n], raw_data=bytes(4 * n)) for n in (1, 1000, 5000)
    ]
    node = proto.NodeProto(op_type="Relu", name="relu", input=["x"], output=["y"], doc_string="long" * 1000)
    data = proto.ModelProto(graph=proto.GraphProto(node=[node], initializer=tensors)).SerializeToString()
    slim = without_weights(opened(data))
    assert slim == without_weights(data)
    assert len(slim) < 5000 < 24000 < len(data)
    cut = data[: len(data) // 2]
    assert without_weights(opened(cut)) == cut
