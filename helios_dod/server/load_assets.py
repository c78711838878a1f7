"""The frontend's assets, read from a core folder."""

from pathlib import Path

from helios_dod.contract.prepared import PreparedSampling
from helios_dod.cores.acceptance import authorize
from helios_dod.cores.reader import open_core
from helios_dod.frontend.assets import Assets, Sampling
from helios_dod.frontend.text import ByteTable


def sampling_of(declared: PreparedSampling) -> Sampling:
    """The core's sampling defaults; what it leaves open is OpenAI's default."""
    given = {name: getattr(declared, name) for name in Sampling.__dataclass_fields__}
    return Sampling(**{name: value for name, value in given.items() if value is not None})


def load_assets(path: Path) -> Assets:
    """Opens and validates a core. Raises CoreError, ContractError, ValueError."""
    core = open_core(path)
    authorize(core)
    contract = core.prepared(core.manifest())
    table, frontend = core.token_bytes(), contract.frontend
    return Assets(
        served_id=contract.served_id, aliases=contract.aliases, tokenizer_json=core.tokenizer(),
        chat_template=core.chat_template(),
        byte_table=ByteTable.of(table.data.tobytes(), table.offsets, table.special.tobytes()),
        strip_leading_space=frontend.strip_leading_space, eos=frontend.eos_tokens,
        bos=frontend.bos_token, add_bos=frontend.add_bos, vocabulary=contract.vocabulary,
        input_vocabulary=contract.input_vocabulary, context_tokens=contract.context_tokens,
        sampling=sampling_of(contract.sampling), template_tokens=dict(frontend.template_tokens))
