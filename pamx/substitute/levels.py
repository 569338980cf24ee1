"""What computes each layer of a loaded model, and why, for people to read."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby
from typing import Any, Literal

ComputeMode = Literal["fast", "exact", "mlx"]
Level = Literal["fused", "operations", "mlx"]

AS_ASKED = "As asked."  # the reason for "mlx" where nothing stands in the way of more
_WORDS: dict[Level, str] = {
    "fused": "fused",
    "operations": "by operations",
    "mlx": "on plain MLX",
}


@dataclass(frozen=True)
class LayerLevel:
    """One decoder layer.

    Attributes:
        name: Its name in the model.
        level: "fused": one or two native operations; "operations": native operations in place of
            the layer's own, one by one; "mlx": MLX's operations, and native attention alone.
        reason: Why it is not more; "" if it is fused whole.
    """

    name: str
    level: Level
    reason: str = ""


@dataclass(frozen=True)
class Levels:
    """What computes a model.

    Attributes:
        mode: "fast" (activations in int8), "exact" (in float32) or "mlx" (MLX's own operations).
        reason: One sentence: why this mode.
        layers: The decoder layers; empty in mode "mlx".
        head: The output projection, in words; "" in mode "mlx".
        kept: Why linear layers that stay with MLX do, by name.
    """

    mode: ComputeMode
    reason: str
    layers: tuple[LayerLevel, ...] = ()
    head: str = ""
    kept: tuple[tuple[str, str], ...] = ()

    def __str__(self) -> str:
        return self.summary()

    def summary(self) -> str:
        """One line, such as "30 layers fused; output head: dense weights"."""
        if self.mode == "mlx":
            return self._with_reason("MLX computes all but attention")
        parts = []
        for level, words in _WORDS.items():
            layers = [layer for layer in self.layers if layer.level == level]
            if not layers:
                continue
            text = f"{len(layers)} {'layer' if len(layers) == 1 else 'layers'} {words}"
            if reasons := sorted({layer.reason for layer in layers if layer.reason}):
                text += f" ({reasons[0].rstrip('.')}{' and others' if len(reasons) > 1 else ''})"
            parts.append(text)
        return "; ".join([*parts, f"output head: {self.head}"] if self.head else parts)

    def table(self, *more: tuple[str, str]) -> list[str]:
        """Lines: the mode, neighbouring layers of one kind, the head, and what MLX keeps.

        Args:
            more: Names and texts of rows to put below the head's.
        """
        rows = []
        first = 0
        for (level, reason), group in groupby(self.layers, lambda one: (one.level, one.reason)):
            last = first + len(list(group)) - 1
            name = f"layer {first}" if first == last else f"layers {first}-{last}"
            why = reason or ("one native operation each" if level == "fused" else "")
            rows.append((name, f"{_WORDS[level]}: {why}" if why else _WORDS[level]))
            first = last + 1
        if self.head:
            rows.append(("output head", self.head))
        rows += more
        width = max((len(name) for name, _ in rows), default=0)
        return [
            self._with_reason(f"compute: {self.mode}"),
            *(f"{name:<{width}}  {text}" for name, text in rows),
            *(f"{name}: on plain MLX. {reason}" for name, reason in self.kept),
        ]

    def _with_reason(self, text: str) -> str:
        return f"{text}, as asked." if self.reason == AS_ASKED else f"{text}. {self.reason}"

    def as_json(self) -> dict[str, Any]:
        return {
            "mode": self.mode,
            "reason": self.reason,
            "summary": self.summary(),
            "layers": [vars(layer) for layer in self.layers],
            "head": self.head,
            "kept": dict(self.kept),
        }
