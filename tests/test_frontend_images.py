"""Images: decoding within bounds, grids and patches as recorded of Hugging Face's processors
(tests/oracles/image_processors.py), layout, positions, and requests that carry them."""

import base64
import io
import json
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import text_tables
from image_samples import SIDES, sample
from PIL import Image
from test_frontend_preparation import assets_of
from test_spans import QUIET, ask
from tokenizers import Tokenizer

from helios_dod.contract.decode import decode as decode_contract
from helios_dod.contract.wire import contract_pb2 as contract
from helios_dod.errors import UserError
from helios_dod.frontend.anthropic import decode_message
from helios_dod.frontend.images import decoding
from helios_dod.frontend.images.decoding import decode, read_bytes
from helios_dod.frontend.images.grid import GridError, grid_of
from helios_dod.frontend.images.layout import lay
from helios_dod.frontend.images.pictures import Picture, prepare
from helios_dod.frontend.images.syntax import (
    Arrangement,
    Filter,
    ImageSyntax,
    PatchOrder,
    Preparation,
)
from helios_dod.frontend.preparation import Preparer
from helios_dod.frontend.requests import ChatRequest, RequestError, decode_chat
from helios_dod.frontend.responses import decode_response
from helios_dod.frontend.text import ByteTable
from helios_dod.server.bootstrap import images_of
from helios_dod.simulation.kinds import PLAIN
from helios_dod.simulation.simulator import Simulator
from tests.test_contract_extents import with_vision

RECORDED = json.loads((Path(__file__).parent / "fixtures" / "images.json").read_text())
NAMES = tuple(RECORDED["processors"])
FEATURE, OPEN, CLOSE, SEPARATOR = 900, 901, 902, 903
SMALL = {"preparation": "resize_to_grid", "patch": 4, "merged_side": 2, "mean": [0.5] * 3,
         "deviation": [0.5] * 3, "pixels_min": 64, "pixels_max": 1024, "aspect_max": 8}
NO_IMAGES = "this model takes no images"


def syntax_of(values: dict[str, Any], **more: Any) -> ImageSyntax:
    """A syntax of recorded settings. more: fields of ImageSyntax."""
    fields: dict[str, Any] = {
        "arrangement": Arrangement.FEATURE_GRID, "feature_token": FEATURE,
        "placeholder_token": FEATURE, "tokens": frozenset({FEATURE}),
        "reserved": frozenset({FEATURE, OPEN, CLOSE}), "feature_slots": 8, "features_max": 1 << 20,
        "patches_max": 1 << 20, **values, **more}
    for name, kind in (("preparation", Preparation), ("order", PatchOrder), ("filter", Filter)):
        if name in fields:
            fields[name] = kind(fields[name])
    for name in ("mean", "deviation"):
        fields[name] = tuple(fields[name])
    return ImageSyntax(**fields)


def picture(height: int, width: int, **more: Any) -> Picture:
    """A sample, prepared by the small syntax."""
    return prepare(Image.fromarray(sample(height, width)), syntax_of(SMALL, **more))


@pytest.mark.parametrize("name", NAMES)
def test_grids(name: str) -> None:
    """120 pairs of sides, of all magnitudes; where the processor refuses, so do we."""
    recorded = RECORDED["processors"][name]
    syntax, seen = syntax_of(recorded["syntax"]), set()
    for height, width, patches in recorded["sizes"]:
        try:
            found = grid_of(height, width, syntax).patch_count
        except GridError as error:
            assert "to 1" in str(error)
            found = 0
        assert found == patches, (height, width)
        seen.add(patches)
    assert len(seen) > 10


@pytest.mark.parametrize("name", NAMES)
def test_patches(name: str) -> None:
    """Resized, normalised and ordered alike: values at random places, and the sum of all."""
    recorded = RECORDED["processors"][name]
    syntax = syntax_of(recorded["syntax"])
    assert len(recorded["pictures"]) == len(SIDES)
    for case in recorded["pictures"]:
        image = Image.fromarray(sample(case["height"], case["width"]))
        made = prepare(image, syntax)
        patches = made.patches()
        assert patches.dtype == np.float32 and list(patches.shape) == case["shape"]
        assert [1, *made.grid.patches] == case["grid"]
        np.testing.assert_allclose(patches.reshape(-1)[case["places"]], case["values"], atol=2e-6)
        np.testing.assert_allclose(patches.astype(np.float64).sum(), case["sum"], rtol=1e-5,
                                   atol=0.05)


def test_the_order_of_patches_is_compared() -> None:
    """The recorded values tell the orders apart."""
    recorded = RECORDED["processors"]["merged blocks, 14"]
    case = recorded["pictures"][0]
    other = syntax_of(recorded["syntax"], order="raster")
    patches = prepare(Image.fromarray(sample(case["height"], case["width"])), other).patches()
    assert np.abs(patches.reshape(-1)[case["places"]] - case["values"]).max() > 0.1


def grid_picture(rows: int, columns: int) -> Picture:
    """Of so many patches of the small syntax, two along each side of a feature."""
    made = prepare(Image.new("RGB", (columns * 4, rows * 4)),
                   syntax_of(SMALL, pixels_min=1, pixels_max=1 << 20, aspect_max=0))
    assert made.grid.patches == (rows, columns)
    return made


@pytest.mark.parametrize("case", RECORDED["positions"], ids=lambda case: str(len(case["grids"])))
def test_positions_of_three_axes(case: dict[str, Any]) -> None:
    """And the difference between a token's number and its position behind the prompt."""
    ids: list[int] = []
    for text, _ in zip(case["texts"], case["grids"], strict=False):
        ids += [7] * text + [FEATURE]
    ids += [7] * case["texts"][-1]
    pictures = [grid_picture(rows, columns) for _, rows, columns in case["grids"]]
    layout = lay(ids, pictures, pictures[0].syntax, lambda text: [])
    positions, delta = layout.positions()
    assert positions.tolist() == case["positions"] and delta == case["delta"]


def test_layout_of_each_arrangement() -> None:
    made = picture(16, 24)  # two rows of three features
    assert made.grid.features == (2, 3)
    ids = [1, OPEN, FEATURE, CLOSE, 2]
    around = syntax_of(SMALL, spans=((OPEN, CLOSE),))
    layout = lay(ids, [made], around, lambda text: [])
    assert layout.ids.tolist() == [1, OPEN, *[FEATURE] * 6, CLOSE, 2]
    assert layout.spans == ((1, 9, made.digest),)
    assert layout.feature_index().tolist() == [-1, -1, 0, 1, 2, 3, 4, 5, -1, -1]
    assert layout.context_index().tolist() == [-1, 0, 1, 2, 3, 4, 5, 6, 7, -1]
    assert layout.tensors()["grid"].tolist() == [[1, 4, 6]]
    assert layout.tensors()["patches"].shape == (24, 48)
    rows = picture(16, 24, arrangement=Arrangement.FEATURE_ROWS)
    layout = lay([FEATURE], [rows], syntax_of(
        SMALL, arrangement=Arrangement.FEATURE_ROWS, separator_token=SEPARATOR), lambda text: [])
    assert layout.ids.tolist() == [*[FEATURE] * 3, SEPARATOR] * 2
    assert layout.feature_index().tolist() == [0, 1, 2, -1, 3, 4, 5, -1]
    assert layout.positions()[0].tolist() == [list(range(8))]
    fixed = picture(16, 24, fixed_features=2, arrangement=Arrangement.FEATURE_RUN)
    parts = syntax_of(SMALL, before=(OPEN, "{height}x{width}"), after=(CLOSE,))
    layout = lay([FEATURE, 5], [fixed], parts, lambda text: list(text.encode()))
    assert layout.ids.tolist() == [OPEN, *b"16x24", FEATURE, FEATURE, CLOSE, 5]
    assert layout.spans[0][:2] == (6, 8)


def test_digests_tell_contents_apart() -> None:
    same, again, other = picture(16, 24), picture(16, 24), picture(24, 16)
    assert same.digest == again.digest != other.digest
    bright = Image.fromarray(np.minimum(sample(16, 24), 254) + np.uint8(1))
    assert prepare(bright, syntax_of(SMALL)).digest != same.digest
    assert 0 <= same.digest < 1 << 64


def test_grids_beyond_what_is_declared() -> None:
    with pytest.raises(GridError, match="16 x 24 pixels make 24 patches, at most 20"):
        picture(16, 24, patches_max=20)
    with pytest.raises(GridError, match="make 6 features, at most 5"):
        picture(16, 24, features_max=5)
    with pytest.raises(GridError, match="10 x 90 pixels are longer than 8 to 1"):
        picture(10, 90)
    with pytest.raises(GridError, match="no images by resize_and_tile"):
        picture(16, 24, preparation="resize_and_tile")


def encoded(image: Image.Image, form: str, **options: Any) -> bytes:
    out = io.BytesIO()
    image.save(out, form, **options)
    return out.getvalue()


def png_of(height: int, width: int) -> bytes:
    """A PNG that says so and holds next to nothing."""
    def chunk(kind: bytes, data: bytes) -> bytes:
        return (struct.pack(">I", len(data)) + kind + data
                + struct.pack(">I", zlib.crc32(kind + data)))

    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return (b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head)
            + chunk(b"IDAT", zlib.compress(bytes(1000))) + chunk(b"IEND", b""))


@pytest.mark.parametrize("form, options", [
    ("PNG", {}), ("WEBP", {"lossless": True}), ("JPEG", {"quality": 100, "subsampling": 0}),
    ("WEBP", {"quality": 100})])
def test_formats(form: str, options: dict[str, Any]) -> None:
    pixels = sample(40, 56)[:, :, [0, 0, 0]]
    found = np.asarray(decode(encoded(Image.fromarray(pixels), form, **options), "image"))
    assert np.abs(found.astype(int) - pixels).max() <= (
        0 if form == "PNG" or "lossless" in options else 40)


def test_images_are_upright_and_of_three_channels() -> None:
    turned = Image.Exif()
    turned[0x0112] = 6  # a quarter turn
    image = Image.fromarray(sample(40, 56))
    assert decode(encoded(image, "PNG", exif=turned), "image").size == (40, 56)
    for mode in ("L", "P", "1", "RGBA", "LA", "I;16"):
        other = Image.new("I;16", (4, 4)) if mode == "I;16" else image.convert(mode)
        assert decode(encoded(other, "PNG"), "image").mode == "RGB"


def webp_head(kind: bytes, body: bytes) -> bytes:
    return b"RIFF" + struct.pack("<I", 30) + b"WEBP" + kind + struct.pack("<I", 10) + body


SIDE_16383 = (16382).to_bytes(3, "little")


@pytest.mark.parametrize("data, words", [
    (png_of(40_000, 10), "has 40000 x 10"),
    (png_of(9000, 9000), "at most 67108864 pixels and sides of 32768, this one has 9000 x 9000"),
    (png_of(20_000, 20_000), "the image is too large"),
    (webp_head(b"VP8X", bytes(4) + SIDE_16383 * 2), "this one has 16383 x 16383"),
    (webp_head(b"VP8L", b"\x2f" + (16382 | 16382 << 14).to_bytes(4, "little") + bytes(5)),
     "16383 x 16383"),
    (webp_head(b"VP8 ", b"\0\0\0\x9d\x01\x2a" + (16383).to_bytes(2, "little") * 2),
     "16383 x 16383"),
    (webp_head(b"ALPH", bytes(10)), "WebP file without a size"),
    (b"", "none of PNG, JPEG, WEBP"), (b"GIF89a" + bytes(40), "none of PNG, JPEG, WEBP"),
    (png_of(30, 30)[:60], "cannot be decoded"), (png_of(300, 300), "cannot be decoded"),
], ids=lambda value: None if isinstance(value, str) else str(len(value)))
def test_bombs_and_damage_are_refused_with_the_field(data: bytes, words: str) -> None:
    """Sizes before anything is decoded: Pillow would allocate a WebP's canvas when it opens it."""
    with pytest.raises(RequestError, match=words) as caught:
        decode(data, "messages[0].content[1].image_url")
    assert caught.value.param == "messages[0].content[1].image_url"


def test_a_jpeg_of_many_scans_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each scan of a progressive JPEG is a pass over all of its pixels, for a few bytes."""
    image = Image.fromarray(sample(64, 64))
    data = encoded(image, "JPEG", progressive=True)
    several = encoded(image, "MPO", save_all=True, append_images=[image] * 3)
    for found in (data, several):
        assert found.count(b"\xff\xda") > 3
        assert decode(found, "image").size == (64, 64)
    monkeypatch.setattr(decoding, "SCANNED_PIXELS_MAX", 3 * 64 * 64)
    for found in (data, several):
        with pytest.raises(RequestError, match="at most 3 scans, this one has"):
            decode(found, "image")
    monkeypatch.setattr(decoding, "IMAGE_NBYTES_MAX", 10)
    with pytest.raises(RequestError, match="at most 10 bytes"):
        decode(data, "image")


@pytest.mark.parametrize("url, words", [
    ("data:image/png;base64,@@@@", "not valid base64"), ("data:image/png,abc", "begins with data:"),
    ("data:image/gif;base64,abcd", "one of image/png"), ("data:image/png;base64", "begins with"),
    ("file:///etc/passwd", "data URL or an http"), ("ftp://h/a.png", "data URL or an http"),
    ("/tmp/a.png", "data URL or an http"), ("", "data URL or an http"),
    ("https://example.com/a.png", "fetches no remote images"),
    ("HTTP://example.com/a.png", "fetches no remote images"),
])
def test_addresses_that_are_refused(url: str, words: str) -> None:
    with pytest.raises(RequestError, match=words):
        read_bytes(url, "image", None)


def test_a_bootstrap_reads_the_image_syntax() -> None:
    serving, manifest, image = with_vision()
    image.layout, image.preparation = contract.FEATURE_GRID, contract.CAP_AND_PAD
    image.settings.patches_max, image.settings.side_patches_max = 256, 16
    image.settings.filter, image.settings.order = contract.LANCZOS, contract.RASTER
    image.tokens.before.add(token=5)
    found = images_of(decode_contract(serving, manifest))
    assert found is not None
    assert (found.preparation, found.arrangement, found.order, found.filter) == (
        Preparation.CAP_AND_PAD, Arrangement.FEATURE_GRID, PatchOrder.RASTER, Filter.LANCZOS)
    assert (found.patch, found.merged_side, found.cap_patches, found.patches_max) == (
        14, 2, 256, 256)
    assert found.reserved == found.tokens | {3, 4, 5} and found.before == (5,)
    assert images_of(decode_contract(*with_vision_removed())) is None


def with_vision_removed() -> tuple[Any, Any]:
    serving, manifest, _ = with_vision()
    serving.model.ClearField("vision")
    serving.model.frontend.ClearField("image")
    return serving, manifest


# Requests.

TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n"
    "{% if message.content is string %}{{ message.content }}{% else %}"
    "{% for part in message.content %}{% if part.type == 'image' %}<|open|><|image|><|close|>"
    "{% else %}{{ part.text }}{% endif %}{% endfor %}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}")


@pytest.fixture(scope="module")
def sighted() -> text_tables.Sample:
    tokenizer = Tokenizer.from_str(text_tables.byte_level().tokenizer.to_str())
    tokenizer.add_special_tokens(["<|open|>"])
    tokenizer.add_tokens(["<|image|>", "<|close|>"])  # not special: the syntax reserves them
    return text_tables.sample_of("sighted", tokenizer.to_str())


def preparer_of(sample: text_tables.Sample, **fields: Any) -> Preparer:
    feature, opening, closing = (sample.tokenizer.token_to_id(text)
                                 for text in ("<|image|>", "<|open|>", "<|close|>"))
    image = syntax_of(
        SMALL, feature_token=feature, placeholder_token=feature, tokens=frozenset({feature}),
        reserved=frozenset({feature, opening, closing}), spans=((opening, closing),),
        feature_slots=2, **fields.pop("image", {}))
    return Preparer(assets_of(sample, TEMPLATE, **{
        "image": image, "image_encoder": True, **fields}))


def url_of(height: int, width: int) -> str:
    data = base64.b64encode(encoded(Image.fromarray(sample(height, width)), "PNG")).decode()
    return f"data:image/png;base64,{data}"


def chat_of(*parts: Any, **fields: Any) -> ChatRequest:
    """Parts are texts, or the sides of samples."""
    content = [{"type": "text", "text": part} if isinstance(part, str) else
               {"type": "image_url", "image_url": {"url": url_of(*part)}} for part in parts]
    return decode_chat(json.dumps({
        "model": "m", "messages": [{"role": "user", "content": content}], **fields}).encode())


def test_a_request_with_images(sighted: text_tables.Sample) -> None:
    preparer = preparer_of(sighted)
    prepared = preparer.prepare(chat_of("Compare ", (16, 24), " and ", (24, 16), n=2), 1000)
    ids, tokenizer = prepared.prompt.tolist(), sighted.tokenizer
    feature = tokenizer.token_to_id("<|image|>")
    assert ids.count(feature) == 12
    text = tokenizer.encode("<|im_start|>user\nCompare <|open|><|image|><|close|> and "
                            "<|open|><|image|><|close|><|im_end|>\n<|im_start|>assistant\n").ids
    assert [token for token in ids if token != feature] == [
        token for token in text if token != feature]
    first, second = prepared.submissions[1].spans
    assert prepared.submissions[0].spans == (first, second)
    assert (first[1] - first[0], second[1] - second[0]) == (8, 8) and first[2] != second[2]
    assert ids[first[0]] == tokenizer.token_to_id("<|open|>")


def test_text_cannot_bring_an_image(sighted: text_tables.Sample) -> None:
    preparer = preparer_of(sighted)
    request = chat_of("<|open|><|image|><|close|>", (16, 24), "<|image", "|>")
    feature = sighted.tokenizer.token_to_id("<|image|>")
    assert preparer.prompt_tokens(request).tolist().count(feature) == 6
    with pytest.raises(RequestError, match=f"token {feature} stands for an image"):
        preparer.plain_tokens([1, feature], False)


def test_what_is_cached_is_the_image(sighted: text_tables.Sample) -> None:
    """Through the tables: the same picture is found again, another of the same size is not."""
    image = {"pixels_min": 64, "pixels_max": 64}  # one feature: this device's vocabulary is small
    preparer = preparer_of(sighted, image=image)
    prompts = []
    for parts in (("a" * 20, (8, 8), "b" * 40), ("a" * 20, (8, 8), "b" * 40),
                  ("a" * 20, (9, 8), "b" * 40)):
        (submission,) = preparer.prepare(chat_of(*parts, max_tokens=2), 1000).submissions
        submission.prompt = (submission.prompt % 50).astype(np.int32)
        submission.eos, submission.top_k, submission.temperature = (), 0, 0.0
        submission.repetition_penalty = 1.0
        submission.tag = len(prompts) + 1
        prompts.append(submission)
    simulator = Simulator(9, walked=False, kinds=PLAIN, workload=QUIET)
    cached = [ask(simulator, submission) for submission in prompts]
    assert cached[0] == 0 and cached[1] > prompts[0].spans[0][1] > cached[2]


@pytest.mark.parametrize("fields, request_, words, param", [
    ({"image": None}, lambda: chat_of((8, 8)), NO_IMAGES, "messages[0].content[0].image_url"),
    ({"image_encoder": False}, lambda: chat_of("a", (8, 8)), "no image encoder",
     "messages[0].content[1].image_url"),
    ({}, lambda: chat_of((8, 8), (8, 8), (8, 8)), "3 images; at most 2", "messages"),
    ({}, lambda: chat_of((8, 80)), "longer than 8 to 1", "messages[0].content[0].image_url"),
    ({"chat_template": "{{ messages[0].content[0].text }}"}, lambda: chat_of("a", (8, 8)),
     "shows 0 of 1 images", "messages"),
])
def test_requests_that_are_refused(sighted: text_tables.Sample, fields: dict[str, Any],
                                   request_: Any, words: str, param: str) -> None:
    if "image" in fields:
        preparer = Preparer(assets_of(sighted, TEMPLATE))
    else:
        preparer = preparer_of(sighted)
        preparer = Preparer(assets_of(sighted, fields.get("chat_template", TEMPLATE),
                                      image=preparer.assets.image,
                                      image_encoder=fields.get("image_encoder", True)))
    with pytest.raises(RequestError, match=words) as caught:
        preparer.prepare(request_(), 1000)
    assert caught.value.param == param


@pytest.mark.parametrize("message, words", [
    ({"role": "user", "content": [{"type": "image_url"}]}, "content\\[0\\].image_url' is required"),
    ({"role": "user", "content": [{"type": "text"}]}, "content\\[0\\].text' is required"),
    ({"role": "user", "content": [{"type": "text", "text": "a", "image_url": {"url": "b"}}]},
     "image_url' does not belong to a part of type text"),
    ({"role": "assistant", "content": [{"type": "image_url", "image_url": {"url": "b"}}]},
     "images belong to messages of user and tool, got assistant"),
    ({"role": "user", "content": [{"type": "image_url",
                                   "image_url": {"url": "b", "detail": "low"}}]},
     "detail' must be one of auto, high, got 'low'"),
    ({"role": "user", "content": [{"type": "input_audio"}]}, "only parts of text and image_url"),
])
def test_parts_that_are_refused(message: dict[str, Any], words: str) -> None:
    with pytest.raises(RequestError, match=words):
        decode_chat(json.dumps({"model": "m", "messages": [message]}).encode())


def test_scores_do_not_end_with_an_image(sighted: text_tables.Sample) -> None:
    plain = preparer_of(sighted)
    bare = Preparer(assets_of(sighted, "{% for part in messages[0].content %}{% if part.type == "
                              "'image' %}<|image|>{% else %}{{ part.text }}{% endif %}{% endfor %}",
                              image=plain.assets.image, image_encoder=True))
    with pytest.raises(RequestError, match="ends with an image is not scored"):
        bare.prepare(chat_of("a", (8, 8), prompt_logprobs=0), 1000)
    assert bare.prepare(chat_of((8, 8), "a", prompt_logprobs=0), 1000).scored


def test_tensors_that_no_layout_makes(sighted: text_tables.Sample) -> None:
    with pytest.raises(UserError, match="one of patches, grid expected, got 'pixels'"):
        preparer_of(sighted, image={"tensors": ("pixels",)})


def test_the_other_dialects() -> None:
    """Images of Anthropic's messages and of responses become the same parts, in order."""
    url = url_of(8, 8)
    data = url.partition(",")[2]
    want = [("text", "a"), ("image_url", url), ("text", "b"), ("image_url", "https://h/i.png")]
    blocks = [{"type": "text", "text": "a"},
              {"type": "image", "source": {"type": "base64", "media_type": "image/png",
                                           "data": data}},
              {"type": "text", "text": "b"},
              {"type": "image", "source": {"type": "url", "url": "https://h/i.png"}}]
    _, chat = decode_message(json.dumps({
        "model": "m", "max_tokens": 3, "messages": [{"role": "user", "content": blocks}, {
            "role": "user", "content": [{"type": "tool_result", "tool_use_id": "t",
                                         "content": blocks[1:2]}]}]}).encode())
    assert shown(chat.messages[0]) == want and chat.messages[1].role == "tool"
    assert shown(chat.messages[1]) == want[1:2]
    parts = [{"type": "input_text", "text": "a"}, {"type": "input_image", "image_url": url},
             {"type": "input_text", "text": "b"},
             {"type": "input_image", "image_url": "https://h/i.png", "detail": "auto"}]
    _, chat = decode_response(json.dumps({
        "model": "m", "input": [{"role": "user", "content": parts}]}).encode())
    assert shown(chat.messages[0]) == want
    for call, body in ((decode_message, {"max_tokens": 3, "messages": [{
            "role": "user", "content": [{"type": "image", "source": {"type": "url"}}]}]}),
            (decode_response, {"input": [{"role": "user", "content": [{"type": "input_image"}]}]})):
        with pytest.raises(RequestError, match="Missing required parameter"):
            call(json.dumps({"model": "m", **body}).encode())


def shown(message: Any) -> list[tuple[str, str]]:
    return [(part.type, part.text if part.image_url is None else part.image_url.url)
            for part in message.content]


def test_tables_take_the_bytes_of_a_sentinel(sighted: text_tables.Sample) -> None:
    """A feature token may lie beyond the vocabulary that has bytes."""
    table = sighted.table
    count = sighted.tokenizer.token_to_id("<|image|>")
    cut = ByteTable.of(table.data[:table.offsets[count]].tobytes(), table.offsets[:count + 1],
                       table.special[:count].tobytes())
    preparer = Preparer(assets_of(sighted, TEMPLATE, byte_table=cut, vocabulary=count,
                                  input_vocabulary=len(table),
                                  image=preparer_of(sighted).assets.image, image_encoder=True))
    assert preparer.prepare(chat_of((8, 8)), 1000).prompt.max() >= count
