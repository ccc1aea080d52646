"""Networks by name: plain data, so that params.yaml can be checked without loading anything."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

IMAGE = (1, 3, 224, 224)
TEXT = (1, 128)


@dataclass(frozen=True)
class Network:
    """How to build one named network: a model class, its configuration class and the sizes that differ."""

    model: str
    config: str
    sizes: dict[str, Any]
    shape: tuple[int, ...] = IMAGE


def _resnet(depths: list[int], layer: str, widths: list[int], model: str = "ResNet") -> Network:
    sizes = {"depths": depths, "hidden_sizes": widths, "layer_type": layer}
    return Network(f"{model}ForImageClassification", f"{model}Config", sizes)


def _bert(layers: int, width: int, prefix: str = "Bert") -> Network:
    sizes = {
        "hidden_size": width,
        "num_hidden_layers": layers,
        "num_attention_heads": max(2, width // 64),
        "intermediate_size": 4 * width,
    }
    return Network(f"{prefix}Model", f"{prefix}Config", sizes, TEXT)


def _vit(layers: int, width: int, heads: int, prefix: str = "ViT") -> Network:
    sizes = {
        "hidden_size": width,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "intermediate_size": 4 * width,
    }
    return Network(f"{prefix}ForImageClassification", f"{prefix}Config", sizes)


NETWORKS: dict[str, Network] = {
    "resnet-18": _resnet([2, 2, 2, 2], "basic", [64, 128, 256, 512]),
    "resnet-50": _resnet([3, 4, 6, 3], "bottleneck", [256, 512, 1024, 2048]),
    "wide-resnet-50": Network(
        "ResNetForImageClassification",
        "ResNetConfig",
        {"depths": [3, 4, 6, 3], "hidden_sizes": [384, 768, 1536, 3072], "embedding_size": 96},
    ),
    "regnet-y-4": Network(
        "RegNetForImageClassification",
        "RegNetConfig",
        {"depths": [2, 6, 12, 2], "hidden_sizes": [128, 192, 512, 1088], "groups_width": 64},
    ),
    "mobilenet-v1": Network("MobileNetV1ForImageClassification", "MobileNetV1Config", {}),
    "mobilenet-v2": Network("MobileNetV2ForImageClassification", "MobileNetV2Config", {}),
    "efficientnet-b0": Network(
        "EfficientNetForImageClassification",
        "EfficientNetConfig",
        {"width_coefficient": 1.0, "depth_coefficient": 1.0, "image_size": 224, "hidden_dim": 1280},
    ),
    "convnext-tiny": Network("ConvNextForImageClassification", "ConvNextConfig", {}),
    "poolformer-s12": Network("PoolFormerForImageClassification", "PoolFormerConfig", {}),
    "vit-tiny": _vit(12, 192, 3),
    "deit-small": _vit(12, 384, 6, "DeiT"),
    "swin-tiny": Network("SwinForImageClassification", "SwinConfig", {}),
    "bert-tiny": _bert(2, 128),
    "bert-small": _bert(4, 512),
    "bert-base": _bert(12, 768),
    "electra-small": _bert(12, 256, "Electra"),
    "albert-base": _bert(12, 768, "Albert"),
    "gpt2-small": Network("GPT2Model", "GPT2Config", {}, TEXT),
    "distilbert": Network("DistilBertModel", "DistilBertConfig", {"dim": 512, "n_layers": 4, "n_heads": 8, "hidden_dim": 2048}, TEXT),
    "bit-50": Network("BitForImageClassification", "BitConfig", {}),
    "cvt-13": Network("CvtForImageClassification", "CvtConfig", {}),
    "swiftformer-s": Network("SwiftFormerForImageClassification", "SwiftFormerConfig", {}),
    "opt-tiny": Network(
        "OPTModel",
        "OPTConfig",
        {"hidden_size": 320, "num_hidden_layers": 4, "num_attention_heads": 5, "ffn_dim": 1280, "word_embed_proj_dim": 320},
        TEXT,
    ),
    "regnet-x-8": Network(
        "RegNetForImageClassification",
        "RegNetConfig",
        {"depths": [2, 5, 15, 1], "hidden_sizes": [80, 240, 720, 1920], "groups_width": 120, "layer_type": "x"},
    ),
    "convnextv2-atto": Network(
        "ConvNextV2ForImageClassification", "ConvNextV2Config", {"depths": [2, 2, 6, 2], "hidden_sizes": [40, 80, 160, 320]}
    ),
    "textnet-tiny": Network("TextNetForImageClassification", "TextNetConfig", {}),
    "segformer-b0": Network("SegformerForImageClassification", "SegformerConfig", {}),
    "pvt-v2-b1": Network("PvtV2ForImageClassification", "PvtV2Config", {"hidden_sizes": [64, 128, 320, 512]}),
    "mobilevit-xs": Network(
        "MobileViTForImageClassification",
        "MobileViTConfig",
        {"hidden_sizes": [96, 120, 144], "neck_hidden_sizes": [16, 32, 48, 64, 80, 96, 384]},
        (1, 3, 256, 256),
    ),
    "levit-128": Network("LevitForImageClassification", "LevitConfig", {}),
    "squeezebert-small": Network(
        "SqueezeBertModel",
        "SqueezeBertConfig",
        {"hidden_size": 384, "embedding_size": 384, "num_hidden_layers": 4, "num_attention_heads": 6, "intermediate_size": 1536},
        TEXT,
    ),
    "mpnet-small": Network(
        "MPNetModel",
        "MPNetConfig",
        {"hidden_size": 384, "num_hidden_layers": 6, "num_attention_heads": 12, "intermediate_size": 1536},
        TEXT,
    ),
    "llama-tiny": Network(
        "LlamaModel",
        "LlamaConfig",
        {"hidden_size": 448, "num_hidden_layers": 4, "num_attention_heads": 7, "num_key_value_heads": 7, "intermediate_size": 1216},
        TEXT,
    ),
}


def is_file_name(network: str) -> bool:
    """Whether ``network`` means a file: a ``torch.export`` archive or an ONNX model."""
    return network.endswith((".pt2", ".onnx"))
