"""The last layer of a language model: features -> log-probabilities of the next token.

The weights are the embedding's (tied) or its own. The adaptive softmax (Grave et al. 2017) splits a
vocabulary that is ordered by frequency: frequent words and one entry per cluster of rarer words are
scored first, and a cluster's words only where they are asked for.

Letters: N tokens, d features, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import fwgen


class Softmax(nn.Module):
    """All words at once."""

    def __init__(self, vocab: int, d_model: int, tied: bool) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(vocab))
        self.own = None if tied else nn.Parameter(torch.randn(vocab, d_model) * 0.02)

    def log_probs(self, h: Tensor, embedding: Tensor) -> Tensor:
        """[..., d] -> [..., V] in float32."""
        return F.log_softmax(self._scores(h, embedding).float(), -1)

    def nll(self, h: Tensor, embedding: Tensor, targets: Tensor) -> Tensor:
        """The negative log-likelihood of each target: [N, d] and [N] -> [N]."""
        return F.cross_entropy(self._scores(h, embedding), targets, reduction="none")

    def _scores(self, h: Tensor, embedding: Tensor) -> Tensor:
        return F.linear(h, embedding if self.own is None else self.own, self.bias)


class AdaptiveSoftmax(nn.Module):
    """Frequent words first, then one cluster; the weights are the embedding's."""

    def __init__(self, vocab: int, d_model: int, cutoffs: Sequence[int]) -> None:
        super().__init__()
        if not cutoffs or sorted({0, *cutoffs, vocab}) != [0, *cutoffs, vocab]:
            raise fwgen.ArgumentError(
                f"cutoffs: expected rising numbers between 0 and the vocabulary of {vocab}, "
                f"got {list(cutoffs)}"
            )
        self.edges = [*cutoffs, vocab]  # cluster i holds the words edges[i] .. edges[i + 1]
        self.clusters = nn.Parameter(torch.randn(len(cutoffs), d_model) * 0.02)
        self.bias = nn.Parameter(torch.zeros(vocab))
        self.cluster_bias = nn.Parameter(torch.zeros(len(cutoffs)))

    def log_probs(self, h: Tensor, embedding: Tensor) -> Tensor:
        """[..., d] -> [..., V] in float32."""
        head, first = self._head(h, embedding), self.edges[0]
        parts = [head[..., :first]]
        for i in range(len(self.clusters)):
            parts.append(head[..., first + i, None] + self._tail(h, embedding, i))
        return torch.cat(parts, -1)

    def nll(self, h: Tensor, embedding: Tensor, targets: Tensor) -> Tensor:
        """The negative log-likelihood of each target: [N, d] and [N] -> [N]."""
        first = self.edges[0]
        head = self._head(h, embedding)
        edges = torch.tensor(self.edges[:-1], device=targets.device)
        cluster = torch.bucketize(targets, edges, right=True)  # 0: a frequent word
        found = head.gather(1, torch.where(cluster == 0, targets, first + cluster - 1)[:, None])
        found = found[:, 0]
        for i in range(len(self.clusters)):
            rows = (cluster == i + 1).nonzero()[:, 0]
            tail = self._tail(h[rows], embedding, i)
            own = tail.gather(1, (targets[rows] - self.edges[i])[:, None])[:, 0]
            found = found.index_add(0, rows, own)
        return -found

    def _head(self, h: Tensor, embedding: Tensor) -> Tensor:
        first = self.edges[0]
        weight = torch.cat([embedding[:first], self.clusters])
        bias = torch.cat([self.bias[:first], self.cluster_bias])
        return F.log_softmax(F.linear(h, weight, bias).float(), -1)

    def _tail(self, h: Tensor, embedding: Tensor, i: int) -> Tensor:
        own = slice(self.edges[i], self.edges[i + 1])
        return F.log_softmax(F.linear(h, embedding[own], self.bias[own]).float(), -1)
