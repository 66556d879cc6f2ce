"""What an answer took, in the shapes of the APIs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from ..engine import Result


def passes_of(results: Sequence[Result]) -> dict[str, Any]:
    """What only this server tells: decoding passes, and what they brought."""
    tokens, passes = sum(r.tokens for r in results), sum(r.passes for r in results)
    accepted: Counter[str] = Counter()
    for result in results:
        accepted.update(result.accepted_by)
    return {
        "mode": results[0].mode,
        "passes": passes,
        "tokens_per_pass": tokens / passes if passes else 0.0,
        "seconds": max(r.seconds for r in results),
        "prompt_seconds": max(r.prompt_seconds for r in results),
        "accepted_drafts": dict(accepted),
        "notes": sorted({note for r in results for note in r.notes}),
    }


def chat_usage(results: Sequence[Result], reasoning_tokens: int = 0) -> dict[str, Any]:
    """`usage` of chat and text completions: the prompt counts once, the answers together."""
    prompt, tokens = results[0].prompt_tokens, sum(r.tokens for r in results)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": tokens,
        "total_tokens": prompt + tokens,
        "prompt_tokens_details": {"cached_tokens": results[0].cached_tokens},
        "completion_tokens_details": {"reasoning_tokens": min(reasoning_tokens, tokens)},
        "trifolium": passes_of(results),
    }
