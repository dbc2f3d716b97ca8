"""Lists of blocks and predictions of tiles, against counting in the whole mask."""

from __future__ import annotations

import pytest
import torch
from torch.nn.attention.flex_attention import BlockMask, create_block_mask

from graphflops.errors import ModelError
from graphflops.runtime.flex import FlexCounts, Tiles, blocks, counted, flex_attention, predicted_tiles
from tests.runtime.flex_cases import CASES, Sizes, operands, seen

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
SIZES = Sizes(2, 2, 1, 52, 70, 16, 16)
MASKS = [case for case in CASES if case.make(SIZES, torch.device("cpu"))[1] is not None]


def brute(truth: torch.Tensor, block: int, tiles: Tiles) -> FlexCounts:
    """Tiles of the blocks that are seen whole, and of those that are seen in part, for tiles that start inside."""
    queries, keys = truth.shape[2:]
    found = {"full": 0, "partial": 0}
    for row in range(0, queries, tiles.rows):
        for column in range(0, keys, block):
            top = row // block * block
            part = truth[:, :, top : top + block, column : column + block]
            whole = part.shape[-1] == block and part.shape[-2] == block
            number = part.flatten(2).sum(-1)
            full = (number == block * block) & whole
            found["full"] += int(full.sum()) * (block // tiles.columns)
            found["partial"] += int(((number > 0) & ~full).sum()) * (block // tiles.columns)
    return FlexCounts(found["full"], found["partial"])


@pytest.mark.parametrize("given", MASKS, ids=str)
@pytest.mark.parametrize("tiles", [Tiles(16, 16), Tiles(32, 16), Tiles(16, 32)], ids=str)
def test_predictions(given: object, tiles: Tiles) -> None:
    mask = given.make(SIZES, torch.device("cpu"))[1]  # type: ignore[attr-defined]
    made = create_block_mask(mask, 2, 2, 52, 70, device="cpu", BLOCK_SIZE=32)
    truth = seen(mask, SIZES, torch.device("cpu"))
    assert predicted_tiles(made, tiles, 2, 2) == brute(truth, 32, tiles)
    across = Tiles(tiles.columns, tiles.rows)
    assert predicted_tiles(made, across, 2, 2, by_column=True) == brute(truth.transpose(2, 3), 32, tiles)


def test_one_mask_for_all_heads() -> None:
    """A causal mask of 4 blocks a side has 6 blocks below the diagonal and 4 on it; 3 x 5 heads; 2 tiles a block."""
    causal = blocks.causal(128, 128, 32, 32, torch.device("cpu"))
    assert predicted_tiles(causal, Tiles(32, 16), 3, 5) == FlexCounts(6 * 15 * 2, 4 * 15 * 2)


def test_dense_lengths_that_are_no_multiples() -> None:
    """Two rows of blocks; per row two blocks inside and one that sticks out."""
    dense = blocks.dense(40, 70, 32, 32, torch.device("cpu"))
    assert predicted_tiles(dense, Tiles(32, 32), 1, 1) == FlexCounts(2 * 2, 2 * 1)


def test_blocks_in_any_order() -> None:
    """Lists that torch takes: places out of order, fewer than there is room for, no mask function."""
    places = torch.tensor([[[[2, 0, 1], [1, 2, 0]]]], dtype=torch.int32, device=DEVICE)
    mask = BlockMask.from_kv_blocks(
        torch.tensor([[[2, 1]]], dtype=torch.int32, device=DEVICE),
        places,
        BLOCK_SIZE=16,
        seq_lengths=(32, 48),
    )
    q, k, v, _ = operands(Sizes(1, 1, 1, 32, 48, 16, 16), torch.float32, DEVICE)
    out, counts = flex_attention(q, k, v, block_mask=mask, count=True)
    truth = torch.zeros(32, 48, dtype=torch.bool, device=DEVICE)
    truth[:16, :16] = truth[:16, 32:] = truth[16:, 16:32] = True
    assert torch.allclose(
        out, torch.nn.functional.scaled_dot_product_attention(q, k, v, truth[None, None]), atol=1e-5
    )
    assert counts.visible == 3 * 16 * 16


@pytest.mark.parametrize(
    "shape, message",
    [
        ((1, 1, 40, 16), "the mask is for 32 queries and 32 keys, not 40 and 40"),
        ((1, 3, 32, 16), "the mask is for 1 batch entries and 2 heads, not 1 and 3"),
    ],
)
def test_masks_that_do_not_fit(shape: tuple[int, ...], message: str) -> None:
    mask = create_block_mask(lambda b, h, q, k: q >= k, None, 2, 32, 32, device="cpu", BLOCK_SIZE=16)
    q = torch.randn(shape)
    with pytest.raises(ModelError, match=message):
        flex_attention(q, q, q, block_mask=mask)


def test_counts_are_sums_over_programs() -> None:
    assert counted(torch.tensor([[1, 2, 3], [10, 20, 30]])).visible == 33


def test_blocks_that_no_tile_divides() -> None:
    mask = create_block_mask(lambda b, h, q, k: q >= k, None, None, 48, 48, device=DEVICE.type, BLOCK_SIZE=24)
    q = torch.randn(1, 1, 48, 16, device=DEVICE)
    with pytest.raises(ModelError, match="a block of 24 is not a multiple of 16"):
        flex_attention(q, q, q, block_mask=mask)
