"""What a frontend needs of a core: tokenizer, chat template and typed metadata, nothing else."""

from dataclasses import dataclass, field

from helios_dod.frontend.boundaries import Boundary
from helios_dod.frontend.images.syntax import ImageSyntax
from helios_dod.frontend.output.syntax import OutputSyntax
from helios_dod.frontend.text import ByteTable


@dataclass(frozen=True)
class Sampling:
    """A core's sampling defaults; explicit request values win."""

    temperature: float = 1.0
    top_p: float = 1.0
    min_p: float = 0.0
    top_k: int = 0  # 0: off
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0


@dataclass(frozen=True)
class Assets:
    """The frontend's part of a core, decoded."""

    served_id: str
    aliases: tuple[str, ...]
    tokenizer_json: bytes  # `tokenizers` JSON
    chat_template: str  # Jinja source; empty: the core serves no chat
    byte_table: ByteTable
    strip_leading_space: bool
    eos: tuple[int, ...]
    bos: int
    add_bos: bool
    vocabulary: int  # sampled ids are below
    input_vocabulary: int
    context_tokens: int  # prompt and output of one request at most
    sampling: Sampling = Sampling()
    template_tokens: dict[str, str] = field(default_factory=dict)
    output: OutputSyntax | None = None  # None: all output is text
    masks: bool = False  # the programs take grammar masks
    scores: bool = True  # there is a program that scores prompts
    image: ImageSyntax | None = None  # None: the model takes no images
    boundaries: tuple[Boundary, ...] = ()  # where a prompt's prefix may be shared
    image_encoder: bool = False  # the engine makes features of images
