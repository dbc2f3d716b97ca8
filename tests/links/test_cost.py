"""What collectives take, against published figures and NCCL's own model."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from graphflops.devices import device
from graphflops.errors import OptionError
from graphflops.links import Network, link_bytes, network_of, seconds

MB = 2**20
H100, A100 = network_of(device("h100")), network_of(device("a100"))


@pytest.mark.parametrize(
    ("kind", "sent"),
    [
        ("all_reduce", 2 * 7 * 1024 // 8),
        ("all_gather", 7 * 1024),
        ("reduce_scatter", 7 * 1024 // 8),
        ("all_to_all", 7 * 1024 // 8),
        ("broadcast", 1024),
        ("send", 1024),
    ],
)
def test_what_each_of_eight_devices_sends(kind, sent):
    assert link_bytes(kind, 1024, 8) == sent


@pytest.mark.parametrize(
    ("text", "rate"),
    [
        # of 8 devices: their part of the links, of whose line rate NCCL reaches 46 of 50 GB/s
        ("8x400Gbit", 46e9),
        ("8x400Gbit/s", 46e9),
        ("4x200gbit", 11.5e9),
        ("1x1.6Tbit", 23e9),
        ("4:4x400Gbit", 46e9),
    ],
)
def test_the_links_between_nodes_are_shared_by_the_devices_of_a_node(text, rate):
    found = network_of(device("h100"), text).rate
    assert found == pytest.approx(rate)


@pytest.mark.parametrize(
    "text", ["", "8", "8x400", "0x400Gbit", "8x0Gbit", "0:8x400Gbit", "8x400Gbyte", "x" * 99]
)
def test_other_texts_are_refused_in_one_line(text):
    with pytest.raises(OptionError, match=r"--network .*8x400Gbit") as refused:
        network_of(device("h100"), text)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("name", "kind", "group", "message", "gigabytes"),
    [
        # what links between devices carry (busbw of nccl-tests), large messages
        (
            "a100",
            "all_reduce",
            8,
            8192 * MB,
            235,
        ),  # the limit of an A100 in NCCL, src/graph/tuning.cc
        ("h100", "all_reduce", 8, 4096 * MB, 476),  # https://github.com/NVIDIA/nccl-tests/issues/290
        ("h200", "all_reduce", 1984, 512 * MB, 350),  # https://github.com/NVIDIA/nccl-tests/issues/283
    ],
)
def test_published_bandwidths(name, kind, group, message, gigabytes):
    found = seconds(kind, message, group, network_of(device(name)))
    assert 2 * (group - 1) / group * message / found.seconds == pytest.approx(gigabytes * 1e9, rel=0.12)


@pytest.mark.parametrize(
    "kind", ["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "send"]
)
def test_between_nodes_the_network_is_the_limit(kind):
    inside, between = (seconds(kind, 64 * MB, 8, H100, within=within) for within in (8, 1))
    assert between.seconds >= link_bytes(kind, 64 * MB, 8) / 50e9
    assert inside.seconds < between.seconds / 4
    assert between.is_guess
    assert between.low < between.seconds < between.high


def test_devices_of_one_node_share_its_links():
    slow = network_of(device("h100"), "4x400Gbit")
    one, other = (seconds("all_gather", 64 * MB, 16, network).seconds for network in (H100, slow))
    # 15 operands pass each node's links, at 8 and at 4 x 46 GB/s
    assert other - one == pytest.approx(15 * 64 * MB / 46e9 * (1 / 4 - 1 / 7.05), rel=0.1)


def test_a_small_sum_between_nodes_takes_steps_of_a_tree():
    # 8 nodes: 3 steps up and 3 down, 5 us each
    two, eight = (seconds("all_reduce", 256, nodes, H100, within=1).seconds for nodes in (2, 8))
    assert eight - two == pytest.approx(2 * (3 - 1) * 5e-6, rel=0.35)


def test_what_was_measured_is_no_guess():
    assert not seconds("all_reduce", MB, 8, H100).is_guess
    assert seconds("all_reduce", MB, 16, H100).is_guess
    assert seconds("all_reduce", MB, 8, A100).is_guess
    assert seconds("all_reduce", MB, 8, network_of(device("l4"))).is_guess
    assert seconds("broadcast", MB, 8, H100).is_guess


def test_one_device_needs_no_collective():
    assert seconds("all_reduce", MB, 1, H100).seconds == 0


def test_without_a_switch_that_adds_up_a_ring_does():
    ring = Network(replace(H100.device, capability=(8, 0), calibration=()), H100.node)
    switch = Network(replace(H100.device, calibration=()), H100.node)
    # 2 * 7 / 8 of the message over each link, or 9 / 8 of it
    slower = (
        seconds("all_reduce", 1024 * MB, 8, ring).seconds
        / seconds("all_reduce", 1024 * MB, 8, switch).seconds
    )
    assert 1.2 < slower < 2 * 7 / 9


def test_a_device_without_measured_collectives_reaches_six_tenths_of_its_links():
    """After 15 us for each doubling of the group; it may take half of that or twice."""
    profile = replace(device("h100"), rates={}, calibration=())
    found = seconds("all_gather", MB, 8, network_of(profile))
    expected = 3 * 15e-6 + 7 * MB / (0.6 * profile.links[0].bandwidth)
    assert found == pytest.approx((expected, expected / 2, expected * 2, True))


@pytest.mark.parametrize(("other", "wider"), [("", 1.0), ("h100", 1.3)])
def test_constants_of_another_device_widen_the_interval(other, wider):
    profile = replace(device("h200"), calibration=(), rates_of=other)
    found = seconds("all_gather", MB, 2, network_of(profile))
    spread = profile.rates["collective.all_gather"]["spread"] * wider
    assert (found.high / found.seconds, found.seconds / found.low) == pytest.approx((spread, spread))
    assert found.is_guess == bool(other)
