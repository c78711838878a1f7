"""Real clients against a live server: each package's own calls, streaming and not.

    PYTHON perf/clients.py --serve HELIOS_PYTHON [--core CORE] [--out results.json]
    PYTHON perf/clients.py --url http://127.0.0.1:8000 [--out results.json]

PYTHON has the packages: openai, anthropic, litellm, langchain-openai, and optionally schemathesis
and guidellm (their commands beside it). A package that is not there is reported as absent.
HELIOS_PYTHON has this one: it serves the core (default: the demo core) twice, on the core's own
device and on the simulated executor at real pace, and every client asks both."""

import argparse
import asyncio
import importlib.metadata
import json
import re
import subprocess
import sys
import tempfile
import traceback
import urllib.request
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from helios_dod.perf.served import Served

TOOL = {"name": "weather", "description": "Weather of a city", "parameters": {
    "type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}}
ASKED = [{"role": "user", "content": "Say hello."}]
TOKENS = 12


def with_openai(url: str, model: str) -> str:
    """Chat, stream, completions, responses and models; then the asynchronous client."""
    import openai

    client = openai.OpenAI(base_url=url + "/v1", api_key="none", max_retries=0)
    assert model in [m.id for m in client.models.list()]
    same = {"model": model, "messages": ASKED, "max_tokens": TOKENS, "temperature": 0}
    whole = client.chat.completions.create(**same).choices[0].message.content
    chunks = client.chat.completions.create(stream=True, **same)
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == whole
    text = client.completions.create(model=model, prompt="Hello", max_tokens=TOKENS, echo=True)
    assert text.choices[0].text.startswith("Hello")
    response = client.responses.create(model=model, input="Hello", max_output_tokens=TOKENS,
                                       temperature=0)
    events = list(client.responses.create(model=model, input="Hello", temperature=0, stream=True,
                                          max_output_tokens=TOKENS))
    assert events[-1].response.output_text == response.output_text
    try:
        client.chat.completions.create(model=model, messages=[])
    except openai.BadRequestError as error:
        assert error.param == "messages"
    else:
        raise AssertionError("an empty conversation was served")

    async def together() -> None:
        async with openai.AsyncOpenAI(base_url=url + "/v1", api_key="none") as many:
            answers = await asyncio.gather(*(
                many.chat.completions.create(**same) for _ in range(8)))
            assert {a.choices[0].message.content for a in answers} == {whole}
            stream = await many.responses.create(model=model, input="Hello", stream=True,
                                                 max_output_tokens=TOKENS)
            kinds = [event.type async for event in stream]
            assert kinds[0] == "response.created" and kinds[-1].startswith("response.")

    asyncio.run(together())
    return "chat, stream, completions, responses, models, errors; async"


def with_anthropic(url: str, model: str) -> str:
    """Messages, stream, count_tokens."""
    import anthropic

    client = anthropic.Anthropic(base_url=url, api_key="none", max_retries=0)
    same: dict[str, Any] = {"model": model, "messages": ASKED, "max_tokens": TOKENS,
                            "extra_body": {"temperature": 0}}
    whole = client.messages.create(**same)
    with client.messages.stream(**same) as stream:
        streamed = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert streamed == whole.content[0].text and final.stop_reason == whole.stop_reason
    counted = client.messages.count_tokens(model=model, messages=ASKED)
    usage = whole.usage
    assert counted.input_tokens == usage.input_tokens + (usage.cache_read_input_tokens or 0)
    try:
        client.messages.create(**{**same, "extra_body": {"temperature": 9}})
    except anthropic.BadRequestError as error:
        assert "temperature" in str(error)
    else:
        raise AssertionError("a temperature of 9 was served")
    return "messages, stream, count_tokens, errors"


def with_litellm(url: str, model: str) -> str:
    """Through its OpenAI and Anthropic routes."""
    import litellm

    same = {"messages": ASKED, "max_tokens": TOKENS, "temperature": 0, "api_key": "none"}
    base = url + "/v1"
    whole = litellm.completion(model=f"openai/{model}", api_base=base, **same)
    parts = litellm.completion(model=f"openai/{model}", api_base=base, stream=True, **same)
    text = "".join(p.choices[0].delta.content or "" for p in parts)
    assert text == whole.choices[0].message.content
    other = litellm.completion(model=f"anthropic/{model}", api_base=url, **same)
    assert other.choices[0].message.content == text
    return "chat and stream over OpenAI's API, chat over Anthropic's"


def with_langchain(url: str, model: str) -> str:
    """ChatOpenAI: invoke, stream, batch, and tools declared."""
    from langchain_openai import ChatOpenAI

    chat = ChatOpenAI(model=model, base_url=url + "/v1", api_key="none", temperature=0,
                      max_tokens=TOKENS)
    whole = chat.invoke("Say hello.")
    assert "".join(part.content for part in chat.stream("Say hello.")) == whole.content
    assert len(chat.batch(["a", "b", "c"])) == 3
    return f"invoke, stream, batch; {whole.usage_metadata['output_tokens']} tokens"


def with_curl(url: str, model: str) -> str:
    """JSON and SSE."""
    body = json.dumps({"model": model, "messages": ASKED, "max_tokens": TOKENS})
    words = ["curl", "-sS", url + "/v1/chat/completions", "-H", "content-type: application/json"]
    whole = subprocess.run([*words, "-d", body], capture_output=True, check=True)
    assert json.loads(whole.stdout)["object"] == "chat.completion"
    streamed = subprocess.run([*words, "-N", "-d", body[:-1] + ', "stream": true}'],
                              capture_output=True, check=True)
    assert streamed.stdout.rstrip().endswith(b"data: [DONE]")
    return "JSON and SSE"


def with_schemathesis(url: str, model: str) -> str:
    """Every operation of the OpenAPI document; a 500 or an undocumented answer fails. Deadlines
    that pass and capacities that do not suffice are 504 and 503, which are documented."""
    command = Path(sys.executable).with_name("schemathesis")
    done = subprocess.run(
        [str(command), "run", url + "/openapi.json", "--checks", "all", "--exclude-checks",
         "ignored_auth,positive_data_acceptance", "--request-timeout", "60", "-n", "50",
         "--no-color"], capture_output=True, text=True)
    last = [line.strip() for line in done.stdout.splitlines() if "generated" in line]
    found = re.findall(r"^- (ST\d+ .*)$", done.stdout, re.M)
    other = [line for line in found if line != "ST101 Server error"]
    assert last and not other and "[500]" not in done.stdout, done.stdout[-3000:]
    return last[-1].split(",")[0] + ", no 500, no undocumented answer"


def with_guidellm(url: str, model: str, tokenizer: str) -> str:
    """A load generator: four streams, forty requests. tokenizer: a folder of the model's."""
    command = Path(sys.executable).with_name("guidellm")
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        done = subprocess.run(
            [str(command), "run", "--backend", f"kind=openai_http,target={url},model={model}",
             "--profile", "kind=concurrent,streams=4", "--constraint",
             "kind=max_requests,count=40", "--tokenizer", f"kind=hf_auto,model={tokenizer}",
             "--data", "kind=synthetic_text,prompt_tokens=32,output_tokens=16", "--output",
             f"kind=json,path={report}", "--disable-progress"], capture_output=True, text=True)
        assert report.exists(), done.stdout[-2000:] + done.stderr[-2000:]
        requests = json.loads(report.read_text())["benchmarks"][0]["requests"]
    assert not requests["errored"], requests["errored"][0]["info"]["error"]
    assert all(request["output_tokens"] == 16 for request in requests["successful"])
    return f"{len(requests['successful'])} streamed requests, none failed"


CLIENTS: dict[str, Callable[[str, str], str]] = {
    "openai": with_openai, "anthropic": with_anthropic, "litellm": with_litellm,
    "langchain-openai": with_langchain, "curl": with_curl, "schemathesis": with_schemathesis}


def version_of(name: str) -> str:
    """The package's version, or of curl its own."""
    if name == "curl":
        text = subprocess.run(["curl", "--version"], capture_output=True, text=True).stdout
        return text.split()[1]
    return importlib.metadata.version(name)


TOKENIZER = """import sys
from pathlib import Path
from helios_dod.cores.demo import demo_core
from helios_dod.server.bootstrap import load_assets
core, folder = Path(sys.argv[1]) if sys.argv[1] else demo_core(), Path(sys.argv[2])
(folder / "tokenizer.json").write_bytes(load_assets(core).tokenizer_json)
(folder / "tokenizer_config.json").write_text('{"tokenizer_class": "PreTrainedTokenizerFast"}')
"""
EXECUTORS = {"host": [], "simulated": ["--executor", "simulated", "--pace", "real"]}


def ask_all(url: str, model: str, only: list[str] | None) -> dict[str, Any]:
    """Every client's version, and what passed or failed."""
    results: dict[str, Any] = {}
    for name, run in CLIENTS.items():
        if only and name not in only:
            continue
        try:
            version = version_of(name)
        except (importlib.metadata.PackageNotFoundError, OSError):
            results[name] = {"absent": True}
            continue
        try:
            results[name] = {"version": version, "passed": run(url, model)}
        except Exception as error:
            traceback.print_exc()
            results[name] = {"version": version, "failed": f"{type(error).__name__}: {error}"}
        print(name, results[name], flush=True)
    return results


def serve_and_ask(python: str, core: str, only: list[str] | None) -> dict[str, Any]:
    """The results on each executor."""
    results = {}
    for name, words in EXECUTORS.items():
        server = Served(core, ["--cache-memory", "400M", *words], python)
        try:
            url = f"http://127.0.0.1:{server.port}"
            with urllib.request.urlopen(url + "/v1/models") as answer:
                model = json.load(answer)["data"][0]["id"]
            results[name] = ask_all(url, model, only)
        finally:
            server.stop()
    return results


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument("--url")
    where.add_argument("--serve", metavar="HELIOS_PYTHON")
    parser.add_argument("--core", default="")
    parser.add_argument("--model", default="default", help="with --url")
    parser.add_argument("--only", action="append")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--tokenizer", help="with --url: a tokenizer's folder, for guidellm")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        if args.serve:
            subprocess.run([args.serve, "-c", TOKENIZER, args.core, folder], check=True)
        if args.serve or args.tokenizer:
            CLIENTS["guidellm"] = partial(with_guidellm, tokenizer=args.tokenizer or folder)
        if args.serve:
            results = serve_and_ask(args.serve, args.core, args.only)
        else:
            results = {args.url: ask_all(args.url, args.model, args.only)}
    if args.out:
        args.out.write_text(json.dumps(results, indent=1) + "\n")
    return int(any("failed" in result for named in results.values() for result in named.values()))


if __name__ == "__main__":
    sys.exit(main())
