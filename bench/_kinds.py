"""Small networks, with random weights, of kinds that no model was trained on, in plain PyTorch or from ``transformers``.

``KINDS`` maps each name to a function that returns the network and its example inputs.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

Built = tuple[nn.Module, tuple[Tensor, ...]]
IMAGE, TEXT = (1, 3, 96, 96), (1, 64)


def export(kind: str, folder: Path) -> str:
    """Export the network to ``KIND.pt2``; return the file's path."""
    torch.manual_seed(0)
    network, inputs = (KINDS | DENSE)[kind]()
    path = folder / f"{kind}.pt2"
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")  # torch.export warns about its own deprecated calls
        torch.export.save(torch.export.export(network.eval(), inputs), path)
    return str(path)


# --- parts ---


def conv(inputs: int, outputs: int, size: int = 3, act: type[nn.Module] = nn.ReLU, **options: int) -> nn.Sequential:
    """Convolution, batch norm and activation; padded so that a stride of 1 keeps the size."""
    options = {"padding": size // 2, "bias": False} | options
    return nn.Sequential(nn.Conv2d(inputs, outputs, size, **options), nn.BatchNorm2d(outputs), act())


class Residual(nn.Module):
    def __init__(self, *inner: nn.Module) -> None:
        super().__init__()
        self.inner = nn.Sequential(*inner)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.inner(x)


class Beside(nn.Module):
    """The outputs of several parts, concatenated along an axis."""

    def __init__(self, *parts: nn.Module, axis: int = 1) -> None:
        super().__init__()
        self.parts, self.axis = nn.ModuleList(parts), axis

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([part(x) for part in self.parts], dim=self.axis)


def classifier(width: int, classes: int = 10) -> nn.Sequential:
    return nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, classes))


# --- convolutional networks ---


def squeezenet() -> Built:
    def fire(inputs: int, squeezed: int, each: int) -> nn.Sequential:
        expand = Beside(nn.Conv2d(squeezed, each, 1), nn.Conv2d(squeezed, each, 3, padding=1))
        return nn.Sequential(nn.Conv2d(inputs, squeezed, 1), nn.ReLU(), expand, nn.ReLU())

    parts = [nn.Conv2d(3, 64, 3, stride=2), nn.ReLU(), nn.MaxPool2d(3, 2), fire(64, 16, 64), fire(128, 16, 64)]
    parts += [nn.MaxPool2d(3, 2), fire(128, 32, 128), fire(256, 48, 192), classifier(384)]
    return nn.Sequential(*parts), (torch.randn(IMAGE),)


class UNet(nn.Module):
    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.down = nn.ModuleList([self.twice(3, width), self.twice(width, 2 * width), self.twice(2 * width, 4 * width)])
        self.up = nn.ModuleList([nn.ConvTranspose2d(4 * width, 2 * width, 2, stride=2), nn.ConvTranspose2d(2 * width, width, 2, stride=2)])
        self.joined = nn.ModuleList([self.twice(4 * width, 2 * width), self.twice(2 * width, width)])
        self.last = nn.Conv2d(width, 2, 1)

    @staticmethod
    def twice(inputs: int, outputs: int) -> nn.Sequential:
        return nn.Sequential(conv(inputs, outputs), conv(outputs, outputs))

    def forward(self, x: Tensor) -> Tensor:
        first = self.down[0](x)
        second = self.down[1](functional.max_pool2d(first, 2))
        x = self.down[2](functional.max_pool2d(second, 2))
        for up, joined, beside in zip(self.up, self.joined, (second, first), strict=True):
            x = joined(torch.cat([beside, up(x)], dim=1))
        return self.last(x)


class Excited(nn.Module):
    """Squeeze and excitation: channels weighted by their means over the image."""

    def __init__(self, width: int) -> None:
        super().__init__()
        inner = nn.Conv2d(width, width // 4, 1), nn.ReLU(), nn.Conv2d(width // 4, width, 1), nn.Hardsigmoid()
        self.weight = nn.Sequential(nn.AdaptiveAvgPool2d(1), *inner)

    def forward(self, x: Tensor) -> Tensor:
        return x * self.weight(x)


def mobilenet_v3() -> Built:
    def bottleneck(inputs: int, inner: int, outputs: int, size: int, stride: int = 1) -> nn.Module:
        parts = [conv(inputs, inner, 1, nn.Hardswish), conv(inner, inner, size, nn.Hardswish, stride=stride, groups=inner)]
        parts += [Excited(inner), conv(inner, outputs, 1, nn.Identity)]
        return Residual(*parts) if inputs == outputs and stride == 1 else nn.Sequential(*parts)

    parts = [conv(3, 16, act=nn.Hardswish, stride=2), bottleneck(16, 64, 24, 3, 2), bottleneck(24, 72, 24, 3)]
    parts += [bottleneck(24, 96, 40, 5, 2), bottleneck(40, 240, 40, 5), conv(40, 240, 1, nn.Hardswish), classifier(240)]
    return nn.Sequential(*parts), (torch.randn(IMAGE),)


def resnext() -> Built:
    def block(width: int) -> nn.Module:
        return nn.Sequential(Residual(conv(width, width, 1), conv(width, width, groups=16), conv(width, width, 1, nn.Identity)), nn.ReLU())

    parts = [conv(3, 64, 7, stride=2), nn.MaxPool2d(3, 2), block(64), block(64), conv(64, 128, stride=2, groups=16), block(128)]
    return nn.Sequential(*parts, classifier(128)), (torch.randn(IMAGE),)


def densenet() -> Built:
    def grown(width: int) -> nn.Module:
        inner = nn.BatchNorm2d(width), nn.ReLU(), nn.Conv2d(width, 48, 1, bias=False), conv(48, 16)
        return Beside(nn.Identity(), nn.Sequential(*inner))

    parts = [conv(3, 32, stride=2), *(grown(32 + 16 * n) for n in range(4)), conv(96, 48, 1), nn.AvgPool2d(2)]
    return nn.Sequential(*parts, *(grown(48 + 16 * n) for n in range(4)), classifier(112)), (torch.randn(IMAGE),)


def shufflenet() -> Built:
    def unit(width: int) -> nn.Module:
        inner = conv(width, width, 1, groups=4), nn.ChannelShuffle(4), conv(width, width, act=nn.Identity, groups=width)
        return nn.Sequential(Residual(*inner, conv(width, width, 1, nn.Identity, groups=4)), nn.ReLU())

    parts = [conv(3, 24, stride=2), nn.MaxPool2d(3, 2), conv(24, 96, 1), unit(96), unit(96), conv(96, 192, stride=2, groups=4), unit(192)]
    return nn.Sequential(*parts, classifier(192)), (torch.randn(IMAGE),)


def group_norm() -> Built:
    def block(width: int) -> nn.Module:
        normed = (nn.GroupNorm(8, width), nn.SiLU(), nn.Conv2d(width, width, 3, padding=1))
        return Residual(*normed, nn.GroupNorm(8, width), nn.SiLU(), nn.Conv2d(width, width, 3, padding=1))

    parts = [nn.Conv2d(3, 32, 3, padding=1), block(32), nn.Conv2d(32, 64, 3, stride=2, padding=1), block(64)]
    return nn.Sequential(*parts, nn.GroupNorm(8, 64), nn.SiLU(), classifier(64)), (torch.randn(1, 3, 64, 64),)


def conv_1d() -> Built:
    """Dilated convolutions over a signal."""

    def block(dilation: int) -> nn.Module:
        return Residual(nn.Conv1d(64, 64, 3, padding=dilation, dilation=dilation), nn.ReLU(), nn.Conv1d(64, 64, 1))

    parts = [nn.Conv1d(1, 64, 9, stride=4, padding=4), nn.ReLU(), *(block(2**n) for n in range(5)), nn.Conv1d(64, 16, 1)]
    return nn.Sequential(*parts), (torch.randn(1, 1, 2048),)


def conv_3d() -> Built:
    """3D convolutions over a few video frames."""
    parts = [nn.Conv3d(3, 16, 3, padding=1), nn.ReLU(), nn.MaxPool3d((1, 2, 2)), nn.Conv3d(16, 32, 3, padding=1), nn.ReLU()]
    parts += [nn.MaxPool3d(2), nn.Conv3d(32, 64, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(64 * 4 * 8 * 8, 10)]
    return nn.Sequential(*parts), (torch.randn(1, 3, 8, 32, 32),)


# --- networks of sequences ---


class Lstm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers, self.last = nn.LSTM(64, 128, batch_first=True), nn.Linear(128, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.layers(x)[0][:, -1])


class Mamba(nn.Module):
    """One block of a selective state-space model (arXiv 2312.00752, section 3), its scan written out step by step."""

    def __init__(self, width: int = 64, states: int = 8) -> None:
        super().__init__()
        self.inner, self.states = 2 * width, states
        self.norm, self.enter = nn.LayerNorm(width), nn.Linear(width, 4 * width)
        self.local = nn.Conv1d(self.inner, self.inner, 4, padding=3, groups=self.inner)
        self.choose, self.step = nn.Linear(self.inner, 2 * states), nn.Linear(self.inner, self.inner)
        self.decay = nn.Parameter(torch.arange(1.0, states + 1).repeat(self.inner, 1).log())
        self.leave = nn.Linear(self.inner, width)

    def forward(self, x: Tensor) -> Tensor:
        u, gate = self.enter(self.norm(x)).chunk(2, dim=-1)
        u = functional.silu(self.local(u.transpose(1, 2))[..., : x.shape[1]].transpose(1, 2))
        into, out = self.choose(u).chunk(2, dim=-1)
        step = functional.softplus(self.step(u))
        state, outputs = torch.zeros(x.shape[0], self.inner, self.states), []
        for t in range(x.shape[1]):
            kept = torch.exp(-step[:, t, :, None] * self.decay.exp())
            state = kept * state + (step[:, t] * u[:, t])[..., None] * into[:, t, None]
            outputs.append((state * out[:, t, None]).sum(-1))
        return x + self.leave(torch.stack(outputs, dim=1) * functional.silu(gate))


class Turned(nn.Module):
    """Swaps the last two axes."""

    def forward(self, x: Tensor) -> Tensor:
        return x.transpose(1, 2)


def mlp_mixer() -> Built:
    def mlp(width: int) -> nn.Sequential:
        return nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))

    patches, width = 36, 128
    parts = [nn.Conv2d(3, width, 16, stride=16), nn.Flatten(2), Turned()]
    for _ in range(2):
        parts += [Residual(nn.LayerNorm(width), Turned(), mlp(patches), Turned()), Residual(nn.LayerNorm(width), mlp(width))]
    return nn.Sequential(*parts, nn.LayerNorm(width)), (torch.randn(IMAGE),)


# --- of transformers ---


class FirstOutput(nn.Module):
    """The logits or the last hidden state alone."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        return self.model(x, return_dict=True)[0]


def _of_transformers(model: str, config: str, shape: tuple[int, ...], part: str = "", **sizes: object) -> Callable[[], Built]:
    def build() -> Built:
        import transformers

        settings = getattr(transformers, config)(**sizes)
        settings.use_cache, settings._attn_implementation = False, "eager"
        whole = getattr(transformers, model)(settings)
        given = torch.arange(shape[1]).reshape(shape) if len(shape) == 2 else torch.randn(shape)
        return FirstOutput(getattr(whole, part) if part else whole), (given,)

    return build


WIDTHS = {"hidden_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 256}

KINDS: dict[str, Callable[[], Built]] = {
    "squeezenet": squeezenet,
    "u-net": lambda: (UNet(), (torch.randn(1, 3, 64, 64),)),
    "mobilenet-v3": mobilenet_v3,
    "resnext": resnext,
    "densenet": densenet,
    "shufflenet": shufflenet,
    "group-norm": group_norm,
    "conv-1d": conv_1d,
    "conv-3d": conv_3d,
    "lstm": lambda: (Lstm(), (torch.randn(1, 16, 64),)),
    "mamba": lambda: (Mamba(), (torch.randn(1, 16, 64),)),
    "mlp-mixer": mlp_mixer,
    "albert": _of_transformers("AlbertModel", "AlbertConfig", TEXT, embedding_size=64, **WIDTHS),
    "t5-encoder": _of_transformers("T5EncoderModel", "T5Config", TEXT, d_model=128, d_kv=32, d_ff=256, num_layers=2, num_heads=4),
    "llama": _of_transformers("LlamaModel", "LlamaConfig", TEXT, vocab_size=1000, num_key_value_heads=2, **WIDTHS),
    "qwen2": _of_transformers("Qwen2Model", "Qwen2Config", TEXT, vocab_size=1000, num_key_value_heads=2, **WIDTHS),
    "gpt-neox": _of_transformers("GPTNeoXModel", "GPTNeoXConfig", TEXT, vocab_size=1000, **WIDTHS),
    "whisper-encoder": _of_transformers(
        "WhisperModel", "WhisperConfig", (1, 80, 100), "encoder", d_model=128, encoder_layers=2, decoder_layers=1,
        encoder_attention_heads=4, decoder_attention_heads=4, encoder_ffn_dim=256, decoder_ffn_dim=256, max_source_positions=50,
    ),
    "levit": _of_transformers("LevitForImageClassification", "LevitConfig", (1, 3, 224, 224), depths=[1, 1, 1]),
    "mobilevit": _of_transformers("MobileViTForImageClassification", "MobileViTConfig", (1, 3, 128, 128), image_size=128),
    "segformer": _of_transformers("SegformerForImageClassification", "SegformerConfig", (1, 3, 128, 128), depths=[1, 1, 1, 1]),
}  # fmt: skip
DENSE = {"dense": lambda: (nn.Sequential(nn.Linear(16, 8), nn.ReLU()), (torch.randn(4, 16),))}  # for the smallest form; none of ``KINDS``
