"""Exact tree attention with what torch brings, for places without TRL's FlashAttention kernel.

TRL folds the samples of a row into a prefix tree and lays its segments end to end; each segment attends to the path
from the root to itself (trl/experimental/async_grpo/packing.py). TRL computes that with a CUDA kernel that it fetches
from the hub, which a cluster may not reach. The same numbers come from

- torch's own variable-length FlashAttention, on a GPU in half precision;
- one masked SDPA over the whole row, or, where the row is long, from one SDPA per segment, anywhere else.
"""

from typing import Any

import torch
from torch.nn.functional import scaled_dot_product_attention

from gymtrain_trainer.trl import internals

TREE_ATTENTION = "tree_fa3"  # the name under which TRL asks for it
_VARLEN_WIDTH = 256  # widest head of torch's FlashAttention (torch 2.13, aten/native/transformers/cuda/flash_attn)
_DENSE_LIMIT = 2048  # tokens of a row up to which the whole mask is cheaper than a loop over segments


class UnsupportedAttentionError(NotImplementedError):
    """The model's attention has something that isn't computed here."""


def check_supported(query: torch.Tensor, value: torch.Tensor, softcap: float | None, *, varlen: bool) -> None:
    """Refuses an attention that would come out wrong or not at all; preflight asks the same of the model's shapes.

    Args:
        query: any tensor of the width of a head, as is `value`.
        value: the values, whose heads may have another width (multi-head latent attention).
        softcap: of the scores, where the model has one.
        varlen: torch's variable-length FlashAttention will be used, which takes less than SDPA.

    Raises:
        UnsupportedAttentionError: with the reason.
    """
    if softcap:
        raise UnsupportedAttentionError(f"attention whose scores are soft-capped ({softcap}) needs TRL's own kernel")
    if varlen and query.shape[-1] > _VARLEN_WIDTH:
        raise UnsupportedAttentionError(
            f"heads of width {query.shape[-1]}: torch's FlashAttention takes {_VARLEN_WIDTH} at most"
        )
    if varlen and query.shape[-1] != value.shape[-1]:
        raise UnsupportedAttentionError(
            f"queries of width {query.shape[-1]} and values of width {value.shape[-1]}: torch's FlashAttention takes "
            "one width"
        )


class TreeAttention:
    """Callable that transformers' AttentionInterface takes. Keeps the last row's mask: every layer needs the same."""

    def __init__(self, dense_limit: int = _DENSE_LIMIT) -> None:
        self._dense_limit = dense_limit
        self._row: torch.Tensor | None = None
        self._masks: dict[int | None, torch.Tensor] = {}  # by sliding window

    def __call__(
        self,
        module: torch.nn.Module,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attention_mask: torch.Tensor | None,
        *,
        tree_kv_index: torch.Tensor,
        tree_cu_seqlens_q: torch.Tensor,
        tree_cu_seqlens_k: torch.Tensor,
        tree_max_seqlen_q: int,
        tree_max_seqlen_k: int,
        scaling: float | None = None,
        sliding_window: int | None = None,
        softcap: float | None = None,
        **_: Any,
    ) -> tuple[torch.Tensor, None]:
        """query [1, heads, tokens, width], key and value [1, kv heads, tokens, width] -> [1, tokens, heads, width]."""
        check_supported(query, value, softcap, varlen=False)
        if query.is_cuda:
            dtype = internals.target_dtype(query, module) or query.dtype  # of autocast, as TRL's own kernel gets it
            if dtype in (torch.bfloat16, torch.float16):
                check_supported(query, value, softcap, varlen=True)
                lengths = (tree_cu_seqlens_q, tree_cu_seqlens_k, tree_max_seqlen_q, tree_max_seqlen_k)
                q, k, v = (part.transpose(1, 2)[0].to(dtype) for part in (query, key, value))
                return _varlen(q, k, v, tree_kv_index, lengths, scaling, sliding_window), None
        tokens = query.shape[2]
        if tokens <= self._dense_limit:
            mask = self._dense_mask(tokens, tree_kv_index, tree_cu_seqlens_q, tree_cu_seqlens_k, sliding_window)
            gqa = query.shape[1] != key.shape[1]
            out = scaled_dot_product_attention(query, key, value, attn_mask=mask, scale=scaling, enable_gqa=gqa)
            return out.transpose(1, 2), None
        segments = segments_of(tree_kv_index, tree_cu_seqlens_q, tree_cu_seqlens_k)
        return by_segment(query, key, value, segments, scaling, sliding_window), None

    def _dense_mask(
        self, tokens: int, kv_index: torch.Tensor, cu_q: torch.Tensor, cu_k: torch.Tensor, window: int | None
    ) -> torch.Tensor:
        """[tokens, tokens], True where the row's token may look at the column's."""
        if self._row is not kv_index:
            self._row, self._masks = kv_index, {}
        if window not in self._masks:
            mask = torch.zeros(tokens, tokens, dtype=torch.bool, device=kv_index.device)
            for (start, end), path in segments_of(kv_index, cu_q, cu_k):
                mask[start:end, path] = _causal(end - start, len(path), window, kv_index.device)
            self._masks[window] = mask
        return self._masks[window]


def by_segment(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    segments: list[tuple[tuple[int, int], torch.Tensor]],
    scaling: float | None,
    window: int | None,
) -> torch.Tensor:
    """Shapes as in `__call__`; one SDPA for each segment."""
    gqa = query.shape[1] != key.shape[1]
    parts = []
    for (start, end), path in segments:
        mask = _causal(end - start, len(path), window, query.device)
        parts.append(
            scaled_dot_product_attention(
                query[:, :, start:end],
                key[:, :, path],
                value[:, :, path],
                attn_mask=mask,
                scale=scaling,
                enable_gqa=gqa,
            )
        )
    return torch.cat(parts, dim=2).transpose(1, 2)


def _varlen(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    kv_index: torch.Tensor,
    lengths: tuple[torch.Tensor, torch.Tensor, int, int],
    scaling: float | None,
    window: int | None,
) -> torch.Tensor:
    """query [tokens, heads, width], key and value [tokens, kv heads, width] -> [1, tokens, heads, width]."""
    from torch.nn.attention.varlen import varlen_attn

    out = varlen_attn(
        query,
        key.index_select(0, kv_index),
        value.index_select(0, kv_index),
        *lengths,
        scale=scaling,
        window_size=(window - 1 if window else -1, 0),  # causal, with the last query at the last key
        enable_gqa=query.shape[1] != key.shape[1],
    )
    assert isinstance(out, torch.Tensor)
    return out.unsqueeze(0)


def segments_of(
    kv_index: torch.Tensor, cu_q: torch.Tensor, cu_k: torch.Tensor
) -> list[tuple[tuple[int, int], torch.Tensor]]:
    """Token range of each segment, and the positions of its path."""
    queries, keys = cu_q.tolist(), cu_k.tolist()
    return [((queries[i], queries[i + 1]), kv_index[keys[i] : keys[i + 1]].long()) for i in range(len(queries) - 1)]


def _causal(queries: int, keys: int, window: int | None, device: torch.device) -> torch.Tensor:
    """[queries, keys]: the queries are the last tokens of the path, each sees itself and what comes before it."""
    place = torch.arange(keys - queries, keys, device=device)[:, None]
    column = torch.arange(keys, device=device)[None, :]
    mask = column <= place
    return mask & (column > place - window) if window else mask
