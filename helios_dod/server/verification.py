"""Everything that can be checked of a core without a device: what is signed, what its weights are,
and that its frontend parts make a frontend that prepares and reads a conversation."""

import json
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from helios_dod.contract.errors import ContractError
from helios_dod.contract.prepared import PreparedContract
from helios_dod.cores.reader import Core
from helios_dod.frontend.preparation import Preparer
from helios_dod.frontend.requests import RequestError, decode_chat
from helios_dod.frontend.template import RENDER_SECONDS_MAX
from helios_dod.frontend.token_text import check_token_bytes
from helios_dod.server.bootstrap import Bootstrap
from helios_dod.terms import FINISH_EOS

USER, ASSISTANT, SYSTEM = (
    {"role": role, "content": text}
    for role, text in (("user", "Hello"), ("assistant", "Good day."), ("system", "Be brief.")))
TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}
PLAIN_CHAT = json.dumps({"model": "default", "messages": [USER]}).encode()
# A template may refuse some of these, but not all.
CHATS = (PLAIN_CHAT, *(json.dumps({"model": "default", **fields}).encode() for fields in (
    {"messages": [SYSTEM, USER]}, {"messages": [USER, ASSISTANT, USER]},
    {"messages": [SYSTEM, USER, ASSISTANT, USER]}, {"messages": [USER], "tools": [TOOL]})))


@dataclass(frozen=True)
class Verified:
    """A core that holds, and what its frontend makes of a plain conversation."""

    contract: PreparedContract
    prompt_count: int  # tokens of PLAIN_CHAT
    refusal: str  # why it is refused, as a template may; empty where it is not


def verify(core: Core, progress: Callable[[int], None] | None = None) -> Verified:
    """Reads and checks everything. Raises CoreError, ContractError, UserError.

    progress: called with bytes of weights checked since its last call."""
    manifest = core.manifest()
    verified = verify_frontend(core, core.prepared(manifest, known=True))
    core.weights(progress=progress, manifest=manifest)
    return verified


def verify_frontend(core: Core, contract: PreparedContract) -> Verified:
    """Loads tokenizer, template, byte table and output syntax as a worker of a server does, then
    prepares a plain conversation and reads its tokens as if they were an answer."""
    assets = Bootstrap.of(core, contract).assets
    preparer = Preparer(assets)
    preparer.encoder.keep_no_words()
    preparer.encoder.check_speed()
    check_token_bytes(assets.tokenizer_json, assets.byte_table, contract.frontend.text_decoding)
    try:
        chat = preparer.prepare(decode_chat(PLAIN_CHAT), contract.context_tokens)
    except RequestError as error:
        if preparer.template is not None and not renders_any(preparer, CHATS[1:]):
            raise ContractError("chat_template", f"a conversation of {len(CHATS)} that it renders",
                                str(error)) from None
        return Verified(contract, 0, str(error))
    prompt = chat.prompt.tolist()
    for reading in chat.readings:
        for i, token in enumerate(prompt):
            reading.token(token, i + 1)
        reading.finish(FINISH_EOS, len(prompt))
    return Verified(contract, len(prompt), "")


def renders_any(preparer: Preparer, bodies: Sequence[bytes]) -> bool:
    """Whether a template makes a prompt of a conversation. Where one takes all the time that a
    template has, no other is tried."""
    until = time.thread_time() + RENDER_SECONDS_MAX
    for body in bodies:
        if time.thread_time() > until:
            break
        with suppress(RequestError):
            preparer.prompt_tokens(decode_chat(body))
            return True
    return False
