"""What computes each layer of a loaded model, and why, for people to read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

ComputeMode = Literal["mlx", "exact", "fast"]
Level = Literal["fused", "operations", "mlx"]


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

    def summary(self) -> str:
        """One line, such as "30 layers fused; output head 8-bit wide"."""
        if self.mode == "mlx":
            return f"MLX computes all but attention. {self.reason}"
        parts = []
        for level in ("fused", "operations", "mlx"):
            layers = [layer for layer in self.layers if layer.level == level]
            if not layers:
                continue
            words = {"fused": "fused", "operations": "by operations", "mlx": "on plain MLX"}[level]
            text = f"{len(layers)} {'layer' if len(layers) == 1 else 'layers'} {words}"
            if reasons := sorted({layer.reason for layer in layers if layer.reason}):
                text += f" ({reasons[0].rstrip('.')}{' and others' if len(reasons) > 1 else ''})"
            parts.append(text)
        return "; ".join([*parts, self.head] if self.head else parts)

    def table(self) -> list[str]:
        """A line for each layer, then for the head and for what MLX keeps."""
        lines = [f"compute: {self.mode}. {self.reason}"]
        width = max((len(layer.name) for layer in self.layers), default=0)
        lines += [
            f"{layer.name:<{width}}  {layer.level:<10}  {layer.reason}".rstrip()
            for layer in self.layers
        ]
        if self.head:
            lines.append(self.head)
        return lines + [f"{name}: mlx. {reason}" for name, reason in self.kept]

    def as_json(self) -> dict[str, Any]:
        return {
            "mode": self.mode,
            "reason": self.reason,
            "summary": self.summary(),
            "layers": [vars(layer) for layer in self.layers],
            "head": self.head,
            "kept": dict(self.kept),
        }
