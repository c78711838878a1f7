"""The page at /, in a headless Chromium where there is one."""

import json
import os
from collections.abc import Iterator
from pathlib import Path

import browser
import pytest
import text_tables
from server_harness import Server, serving

SCRIPTS = {
    "thought": "<think>\nFirst this.\n</think>\n\nThen <b>that</b>.",
    "call": '<tool_call>\n{"name": "weather", "arguments": {"city": "Oslo"}}\n</tool_call>',
    "long": "Words and more words. " * 400,
}
TOOLS = [{"name": "weather", "parameters": {"type": "object", "properties": {
    "city": {"type": "string"}}}}]


@pytest.fixture(scope="module")
def core(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("core") / "tokenizer.json"
    path.write_text(text_tables.tagged().tokenizer.to_str())
    return path


@pytest.fixture(scope="module")
def server(core: Path) -> Iterator[Server]:
    with serving(core, env={"FAKE_SYNTAX": "tagged_json think_tag_lines", "FAKE_TICK_MS": "10",
                            "FAKE_SCRIPTS": json.dumps(list(SCRIPTS.values()))}) as running:
        yield running


def test_page_is_one_file_that_may_be_left_out(server: Server, core: Path) -> None:
    answer = server.get("/")
    assert answer.status_code == 200 and answer.headers["content-type"].startswith("text/html")
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy and "connect-src 'self'" in policy
    for outside in ('src="http', 'href="http', "@import", "cdn"):
        assert outside not in answer.text
    with serving(core, "ui=0") as without:
        assert without.get("/").status_code == 404


@pytest.fixture
def page(server: Server, tmp_path: Path) -> Iterator[browser.Page]:
    program = browser.executable()
    if program is None:
        pytest.skip("no Chromium on this machine")
    with browser.opened(program, tmp_path) as opened:
        opened.size(1360, 860)
        opened.call("Page.navigate", url=server.url + "/")
        opened.wait("document.getElementById('state')?.textContent === 'ready'")
        opened.wait("document.querySelectorAll('#model option').length === 2")
        yield opened
        assert not opened.errors


def ask(page: browser.Page, text: str, script: str | None = None, tools: bool = False) -> None:
    """Types a message and sends it. script: of the engine's double."""
    row = list(SCRIPTS).index(script) + 1 if script else 0
    page.evaluate(f"""(() => {{
        const plain = body;
        window.body = () => JSON.stringify({{...JSON.parse(plain()), priority: {row}}});
        body = window.body;
        document.getElementById('tools').value = {json.dumps(json.dumps(TOOLS) if tools else '')};
        document.getElementById('ask').value = {json.dumps(text)};
        document.getElementById('send').click();
        body = plain;
    }})()""")


ENDED = "document.querySelector('.turn.assistant:last-of-type .meta').textContent"


def picture(page: browser.Page, name: str) -> None:
    """Keeps a screenshot where somebody asks for one."""
    folder = os.environ.get("HELIOS_SCREENSHOTS")
    if folder:
        page.screenshot(Path(folder) / f"{name}.png")


def test_reasoning_and_text(page: browser.Page) -> None:
    ask(page, "Think <i>hard</i>", "thought")
    page.wait(f"{ENDED}.includes('ended by stop')")
    shown = page.evaluate("document.querySelector('.turn.assistant .text').textContent")
    assert shown == "Then <b>that</b>."  # text stays text
    assert page.evaluate("document.querySelector('.thoughts').textContent") == "First this."
    assert "first token after" in page.evaluate(ENDED) and "tokens/s" in page.evaluate(ENDED)
    assert page.evaluate("document.querySelectorAll('.turn i, .turn .text b').length") == 0
    picture(page, "reasoning")


def test_tool_call(page: browser.Page) -> None:
    ask(page, "Weather?", "call", tools=True)
    page.wait(f"{ENDED}.includes('ended by tool_calls')")
    call = page.evaluate("document.querySelector('.call').textContent")
    assert call == 'weather {"city": "Oslo"}'
    assert page.evaluate("messages[1].tool_calls[0].function.name") == "weather"
    picture(page, "call")


def test_stop_and_live_view(page: browser.Page, server: Server) -> None:
    page.evaluate("document.getElementById('limit').value = 3000")
    ask(page, "Talk for long", "long")
    page.wait("document.querySelector('.turn.assistant .text').textContent.length > 200")
    page.wait("rates.at(-1) > 10")
    cards = page.evaluate("document.getElementById('cards').textContent")
    assert "tokens/s" in cards and "permits used" in cards and "1/" in cards
    assert page.evaluate("document.getElementById('send').textContent") == "Stop"
    picture(page, "live")
    page.evaluate("document.getElementById('send').click()")
    page.wait(f"{ENDED}.includes('stopped')")
    server.idle()
    page.size(420, 800)
    picture(page, "narrow")


def test_error_is_shown(page: browser.Page) -> None:
    page.evaluate("document.getElementById('temperature').value = 9")
    ask(page, "Hello")
    page.wait(f"{ENDED}.includes('temperature')")
    assert page.evaluate("document.querySelectorAll('.turn.error').length") == 1
    page.errors.clear()  # the browser notes the 400
