"""Records what the image processors of Hugging Face transformers make of images.

    python tests/oracles/image_processors.py tests/fixtures/images.json

Needs transformers, torch, torchvision and pillow; no weights and no network. Processors are made
from their settings. `sizes` are grids for sides drawn at random, `pictures` what a few images
become (some values of the patches, at places drawn at random, and their sum), `positions` those of
prompts with images. Kimi's processor has no Pillow variant, so its pictures are smaller than it
resizes."""

import json
import random
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from PIL import Image
from transformers.models.glm4v.image_processing_pil_glm4v import Glm4vImageProcessorPil
from transformers.models.glm46v.image_processing_pil_glm46v import Glm46VImageProcessorPil
from transformers.models.kimi_k25.image_processing_kimi_k25 import Kimi_K25ImageProcessor
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil
from transformers.models.qwen3_vl.modeling_qwen3_vl import Qwen3VLModel

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from image_samples import SIDES, sample

CLIP = ([0.48145466, 0.4578275, 0.40821073], [0.26862954, 0.26130258, 0.27577711])
HALF = ([0.5] * 3, [0.5] * 3)
GRID = {"preparation": "resize_to_grid", "merged_side": 2, "temporal_patch": 2, "aspect_max": 200}


def syntax(values: dict[str, Any], normal: tuple[list[float], list[float]]) -> dict[str, Any]:
    """Settings in this project's terms."""
    return {**values, "mean": normal[0], "deviation": normal[1]}


def of_grid(kind: Any, patch: int, least: int, most: int, normal: tuple[list[float], list[float]],
            **more: Any) -> tuple[Any, dict[str, Any]]:
    """A processor that resizes to a grid, and the same as data."""
    made = kind(patch_size=patch, size={"shortest_edge": least, "longest_edge": most},
                image_mean=normal[0], image_std=normal[1])
    return made, syntax({**GRID, "patch": patch, "pixels_min": least, "pixels_max": most, **more},
                        normal)


def processors() -> dict[str, tuple[Any, dict[str, Any]]]:
    """Processors of section i of the list of formats."""
    frames = {"area_frames": 2, "side_min": 28}
    kimi = Kimi_K25ImageProcessor(size={"max_height": 64, "max_width": 64}, max_patches=400)
    return {
        "merged blocks, 14": of_grid(Qwen2VLImageProcessorPil, 14, 56 * 56, 28 * 28 * 1280, CLIP),
        "merged blocks, 16": of_grid(Qwen2VLImageProcessorPil, 16, 65536, 16777216, HALF),
        "small area": of_grid(Qwen2VLImageProcessorPil, 14, 56 * 56, 28 * 28 * 9, CLIP),
        "frames in the area": of_grid(Glm4vImageProcessorPil, 14, 112 * 112, 28 * 28 * 15000, CLIP,
                                      **frames),
        "frames in a small area": of_grid(Glm46VImageProcessorPil, 14, 112 * 112, 28 * 28 * 64,
                                          CLIP, **frames),
        "cap and pad": (kimi, syntax(
            {"preparation": "cap_and_pad", "patch": 14, "merged_side": 2, "order": "raster",
             "cap_patches": 400, "cap_side_patches": 64}, HALF)),
    }


def size_cases(processor: Any, draw: random.Random) -> list[list[int]]:
    """Height, width, patches; 0 patches where the processor refuses the sides."""
    cases = []
    for _ in range(120):
        top = draw.choice((40, 300, 2000, 6000))
        height, width = draw.randint(1, top), draw.randint(1, top)
        try:
            count = processor.get_number_of_image_patches(height, width, {})
        except ValueError:
            count = 0
        cases.append([height, width, int(count)])
    return cases


def picture_cases(processor: Any, draw: np.random.Generator) -> list[dict[str, Any]]:
    """What the samples become."""
    cases = []
    for height, width in SIDES:
        image = Image.fromarray(sample(height, width))
        made = processor(images=[image], return_tensors="np" if "Pil" in type(processor).__name__
                         else "pt")
        patches = np.asarray(made["pixel_values"], np.float32)
        patches = patches.reshape(len(patches), -1)
        places = draw.integers(0, patches.size, 24)
        cases.append({
            "height": height, "width": width, "shape": list(patches.shape),
            "grid": np.asarray(made["image_grid_thw"])[0].tolist(),
            "places": places.tolist(),
            "values": [float(value) for value in patches.reshape(-1)[places]],
            "sum": float(patches.astype(np.float64).sum())})
    return cases


def position_cases(draw: random.Random) -> list[dict[str, Any]]:
    """Text lengths around images, their grids in patches, and the positions."""
    config = SimpleNamespace(vision_config=SimpleNamespace(spatial_merge_size=2))
    model = SimpleNamespace(config=config)
    model.get_vision_position_ids = lambda *a, **k: Qwen3VLModel.get_vision_position_ids(
        model, *a, **k)
    cases = []
    for images in (1, 2, 3):
        grids = [[1, 2 * draw.randint(1, 5), 2 * draw.randint(1, 5)] for _ in range(images)]
        texts = [draw.randint(1, 6) for _ in range(images + 1)]
        kinds: list[int] = []
        for text, (_, rows, columns) in zip(texts, grids, strict=False):
            kinds += [0] * text + [1] * (rows * columns // 4)
        kinds += [0] * texts[-1]
        ids, delta = Qwen3VLModel.get_rope_index(
            model, torch.zeros(1, len(kinds), dtype=torch.long), torch.tensor([kinds]),
            image_grid_thw=torch.tensor(grids))
        cases.append({"texts": texts, "grids": grids, "positions": ids[:, 0].tolist(),
                      "delta": int(delta[0, 0])})
    return cases


def main(path: str) -> None:
    """Writes the fixture."""
    draw, places = random.Random(6), np.random.default_rng(6)
    made = {name: {"syntax": values, "sizes": size_cases(processor, draw),
                   "pictures": picture_cases(processor, places)}
            for name, (processor, values) in processors().items()}
    found = {"processors": made, "positions": position_cases(draw)}
    Path(path).write_text(json.dumps(found, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main(sys.argv[1])
