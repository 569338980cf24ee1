"""Answering requests: prompts, the step loop, sampling, text."""

import pamx.quiet_mlx_lm  # noqa: F401  # before any module here imports mlx-lm
from pamx.engine.chat import ChatSession
from pamx.engine.completion import Completion, Delta
from pamx.engine.engine import AttentionStatus, Engine, load
from pamx.engine.prompt import Message
from pamx.engine.sampling import Sampling

__all__ = [
    "AttentionStatus",
    "ChatSession",
    "Completion",
    "Delta",
    "Engine",
    "Message",
    "Sampling",
    "load",
]
