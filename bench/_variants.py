"""Networks of the edition *variants*: those of the other editions' training networks in other widths and with other inputs.

Models err most on tasks unlike all that they have learned, and more tasks help more than more programs (docs/accuracy.md).  These add
several hundred.  None is a held-out or sealed network, though some share a width with one; tasks that are equal are left out.
Depths are small: a repeated layer is no further task.
"""

from __future__ import annotations

from typing import Any

from tcl_core.network_names import NETWORKS, Network


def _image(side: int) -> tuple[int, ...]:
    return (1, 3, side, side)


def _of(model: str, side: int, **sizes: Any) -> Network:
    return Network(f"{model}ForImageClassification", f"{model}Config", sizes, _image(side))


def _text(model: str, length: int, **sizes: Any) -> Network:
    return Network(f"{model}Model", f"{model}Config", sizes, (1, length))


def _resnet(side: int, widths: list[int], stem: int = 64, layer: str = "basic") -> Network:
    return _of("ResNet", side, depths=[2, 2, 2, 2], hidden_sizes=widths, embedding_size=stem, layer_type=layer)


def _regnet(side: int, widths: list[int], group: int) -> Network:
    return _of("RegNet", side, depths=[2, 2, 2, 2], hidden_sizes=widths, groups_width=group)


def _efficientnet(side: int, width: float) -> Network:
    return _of("EfficientNet", side, width_coefficient=width, depth_coefficient=1.0, image_size=side, hidden_dim=int(1280 * width) // 8 * 8)


def _convnext(side: int, widths: list[int]) -> Network:
    return _of("ConvNext", side, depths=[1, 1, 1, 1], hidden_sizes=widths)


def _poolformer(side: int, widths: list[int]) -> Network:
    return _of("PoolFormer", side, depths=[1, 1, 1, 1], hidden_sizes=widths)


def _vit(side: int, width: int, heads: int, patch: int = 16) -> Network:
    sizes = {"hidden_size": width, "num_attention_heads": heads, "intermediate_size": 4 * width}
    return _of("ViT", side, num_hidden_layers=2, image_size=side, patch_size=patch, **sizes)


def _swin(side: int, width: int, window: int = 7) -> Network:
    heads = [max(1, width * 2**stage // 32) for stage in range(4)]
    return _of("Swin", side, image_size=side, embed_dim=width, depths=[2, 2, 2, 2], num_heads=heads, window_size=window)


def _cvt(side: int, widths: list[int]) -> Network:
    return _of("Cvt", side, embed_dim=widths, num_heads=[1, widths[1] // 64, widths[2] // 64], depth=[1, 2, 3])


def _swiftformer(side: int, widths: list[int]) -> Network:
    return _of("SwiftFormer", side, image_size=side, embed_dims=widths, depths=[2, 2, 2, 2])


def _bit(side: int, widths: list[int], stem: int) -> Network:
    return _of("Bit", side, hidden_sizes=widths, embedding_size=stem, depths=[2, 2, 2, 2])


def _bert(length: int, width: int, heads: int, model: str = "Bert", grows: int = 4) -> Network:
    sizes = {"hidden_size": width, "num_attention_heads": heads, "intermediate_size": grows * width}
    return _text(model, length, num_hidden_layers=2, **sizes)


def _gpt2(length: int, width: int, heads: int) -> Network:
    return _text("GPT2", length, n_embd=width, n_head=heads, n_layer=2)


def _distilbert(length: int, width: int, heads: int) -> Network:
    return _text("DistilBert", length, dim=width, n_layers=2, n_heads=heads, hidden_dim=4 * width)


def _opt(length: int, width: int, heads: int) -> Network:
    sizes = {"hidden_size": width, "num_attention_heads": heads, "ffn_dim": 4 * width, "word_embed_proj_dim": width}
    return _text("OPT", length, num_hidden_layers=2, **sizes)


VARIANTS: dict[str, Network] = {
    "resnet-48-160": _resnet(160, [48, 96, 192, 384], 48),
    "resnet-80-192": _resnet(192, [80, 160, 320, 640], 80),
    "resnet-32-256": _resnet(256, [32, 64, 128, 256], 32),
    "resnet-64-288": _resnet(288, [64, 128, 256, 512]),
    "resnet-96-128": _resnet(128, [96, 192, 384, 768], 96),
    "resnet-24-320": _resnet(320, [24, 56, 120, 232], 24),
    "wide-resnet-320-160": _resnet(160, [320, 640, 1280, 2560], 80, "bottleneck"),
    "wide-resnet-192-192": _resnet(192, [192, 384, 768, 1536], 48, "bottleneck"),
    "wide-resnet-448-128": _resnet(128, [448, 896, 1792, 3584], 112, "bottleneck"),
    "regnet-y-48-224": _regnet(224, [48, 104, 208, 440], 8),
    "regnet-y-64-256": _regnet(256, [64, 144, 320, 784], 16),
    "regnet-y-168-160": _regnet(160, [168, 448, 896, 2016], 56),
    "regnet-y-96-192": _regnet(192, [96, 192, 432, 1008], 48),
    "regnet-y-24-288": _regnet(288, [24, 56, 152, 368], 8),
    "mobilenet-v1-50-256": _of("MobileNetV1", 256, depth_multiplier=0.5),
    "mobilenet-v1-75-192": _of("MobileNetV1", 192, depth_multiplier=0.75),
    "mobilenet-v1-125-160": _of("MobileNetV1", 160, depth_multiplier=1.25),
    "mobilenet-v1-25-320": _of("MobileNetV1", 320, depth_multiplier=0.25),
    "mobilenet-v1-100-288": _of("MobileNetV1", 288, depth_multiplier=1.0),
    "efficientnet-11-240": _efficientnet(240, 1.1),
    "efficientnet-14-160": _efficientnet(160, 1.4),
    "efficientnet-7-288": _efficientnet(288, 0.7),
    "efficientnet-18-128": _efficientnet(128, 1.8),
    "convnext-64-192": _convnext(192, [64, 128, 256, 512]),
    "convnext-48-288": _convnext(288, [48, 104, 208, 416]),
    "convnext-128-160": _convnext(160, [128, 256, 512, 1024]),
    "convnext-72-256": _convnext(256, [72, 144, 288, 576]),
    "poolformer-48-256": _poolformer(256, [48, 96, 240, 384]),
    "poolformer-96-160": _poolformer(160, [96, 192, 384, 768]),
    "poolformer-80-192": _poolformer(192, [80, 176, 352, 608]),
    "vit-256-192": _vit(192, 256, 4),
    "vit-320-256": _vit(256, 320, 5),
    "vit-512-160": _vit(160, 512, 8),
    "vit-768-128": _vit(128, 768, 12),
    "vit-192-320": _vit(320, 192, 3),
    "vit-448-224-32": _vit(224, 448, 7, 32),
    "vit-640-256-32": _vit(256, 640, 10, 32),
    "swin-64-224": _swin(224, 64),
    "swin-128-224": _swin(224, 128),
    "swin-96-256": _swin(256, 96, 8),
    "swin-32-320": _swin(320, 32, 10),
    "cvt-48-192": _cvt(192, [48, 128, 320]),
    "cvt-96-160": _cvt(160, [96, 256, 512]),
    "cvt-64-288": _cvt(288, [64, 192, 256]),
    "swiftformer-48-256": _swiftformer(256, [48, 64, 168, 224]),
    "swiftformer-64-160": _swiftformer(160, [64, 96, 192, 384]),
    "swiftformer-32-320": _swiftformer(320, [32, 48, 96, 184]),
    "bit-128-192": _bit(192, [128, 256, 512, 1024], 32),
    "bit-320-160": _bit(160, [384, 768, 1536, 3072], 96),
    "bert-192-64": _bert(64, 192, 3),
    "bert-320-256": _bert(256, 320, 5),
    "bert-640-32": _bert(32, 640, 10),
    "bert-448-96": _bert(96, 448, 7),
    "bert-1024-64": _bert(64, 1024, 16),
    "bert-256-384": _bert(384, 256, 4),
    "electra-192-192": _bert(192, 192, 4, "Electra"),
    "electra-512-48": _bert(48, 512, 8, "Electra", 3),
    "electra-320-80": _bert(80, 320, 5, "Electra", 2),
    "gpt2-256-64": _gpt2(64, 256, 4),
    "gpt2-512-256": _gpt2(256, 512, 8),
    "gpt2-640-160": _gpt2(160, 640, 10),
    "gpt2-896-24": _gpt2(24, 896, 14),
    "distilbert-320-160": _distilbert(160, 320, 5),
    "distilbert-640-64": _distilbert(64, 640, 10),
    "distilbert-192-320": _distilbert(320, 192, 6),
    "opt-192-256": _opt(256, 192, 3),
    "opt-512-64": _opt(64, 512, 8),
    "opt-768-40": _opt(40, 768, 12),
}


def add() -> None:
    """Make them known by name, in this process."""
    NETWORKS.update(VARIANTS)
