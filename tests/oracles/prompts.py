"""The 32 prompts of the greedy oracle: chats and raw texts, one token to over 4,000 tokens long."""

SHIP_WORDS = {
    "who": ["the navigator", "a young cook", "our pilot", "the botanist", "an old engineer"],
    "did": ["mended", "counted", "painted", "measured", "lost", "forgot", "sold", "weighed"],
    "what": ["seven lamps", "the spare anchor", "a crate of lemons", "two maps", "the brass bell"],
    "where": ["in the hold", "near the reef", "on deck", "behind the galley", "at the pier"],
}
CODE_WORDS = ["pressure", "altitude", "voltage", "distance", "humidity", "torque", "salinity"]


def pick(words: list[str], seed: int) -> str:
    """One of the words, spread by a multiplicative hash of the seed."""
    return words[(seed * 2654435761 >> 7) % len(words)]


def ship_log(day_count: int) -> str:
    """An invented ship's log, one sentence a day, never quite the same."""
    days = []
    for day in range(1, day_count + 1):
        who, did, what, where = (
            pick(words, day * 31 + index) for index, words in enumerate(SHIP_WORDS.values())
        )
        wind = (day * 37) % 29
        days.append(f"Day {day}: {who} {did} {what} {where}; wind {wind} knots.")
    return "\n".join(days)


def sensor_module(function_count: int) -> str:
    """An invented Python module of small conversion functions."""
    parts = ["import math\n"]
    for index in range(function_count):
        name = CODE_WORDS[index % len(CODE_WORDS)]
        parts.append(
            f"\ndef scale_{name}_{index}(value: float) -> float:\n"
            f'    """Scale one {name} reading by {index + 2} and clip it."""\n'
            f"    return math.fmod(value * {index + 2}, {100 + 7 * index}.5)\n"
        )
    return "".join(parts)


def user(text: str) -> list[dict]:
    """A chat of one user message."""
    return [{"role": "user", "content": text}]


def chat_prompts() -> dict[str, list[dict]]:
    """Message lists that are rendered by the model's chat template, generation prompt added."""
    return {
        "chat_capital": user("What is the capital of Portugal?"),
        "chat_poem": user("Write a four line poem about a lighthouse in winter."),
        "chat_sum": user("Tom has 17 apples, gives away 5 and buys 12 more. How many has he?"),
        "chat_python": user("Write a Python function that reverses a linked list."),
        "chat_sql": user("Explain this query:\nSELECT name, COUNT(*) FROM crew GROUP BY name;"),
        "chat_list": user("List five uses of a paper clip, as a numbered list."),
        "chat_german": user("Übersetze ins Englische: Der Zug fährt um halb neun ab."),
        "chat_chinese": user("请用中文介绍一下长江。"),
        "chat_japanese": user("日本の春について短い文章を書いてください。"),
        "chat_emoji": user("What do these mean? 🚀🔥🎉 And this family: 👩‍👩‍👧‍👦"),
        "chat_json": user('Return JSON with the keys "name" and "age" for Ada, 36 years old.'),
        "chat_empty": user(""),
        "chat_system": [
            {"role": "system", "content": "You answer in the voice of a pirate."},
            *user("How do I bake bread?"),
        ],
        "chat_turns": [
            *user("Name a red fruit."),
            {"role": "assistant", "content": "A strawberry."},
            *user("And a yellow one?"),
            {"role": "assistant", "content": "A lemon."},
            *user("Which of the two is sweeter, and why?"),
        ],
        "chat_summary": user("Summarise this log in two sentences.\n\n" + ship_log(25)),
        "chat_review": user("Review this module.\n```python\n" + sensor_module(16) + "```"),
    }


def raw_prompts() -> dict[str, str]:
    """Texts that are continued as they are."""
    return {
        "raw_one_token": "The",
        "raw_newline": "\n",
        "raw_two_tokens": "Once upon",
        "raw_story": "Once upon a time, in a village beside a slow green river, there lived a",
        "raw_python": "def fibonacci(n):\n    if n < 2:\n        return n\n",
        "raw_c": "#include <stdio.h>\n\nint main(void) {\n    for (int i = 0; i < 10; i++) {\n",
        "raw_html": '<ul class="menu">\n  <li><a href="/home">Home</a></li>\n  <li>',
        "raw_digits": "1, 1, 2, 3, 5, 8, 13, 21, 34, 55, 89, 144,",
        "raw_spaces": "column   a      column   b\n   1.50           2.75\n",
        "raw_marks": "Cafe\u0301 nai\u0308ve A\u030angstro\u0308m: combining marks are",
        "raw_mixed": "Привет, κόσμε! שלום 你好 안녕 नमस्ते 🌍 — hello is",
        "raw_special_inside": "<|im_start|>user\nStop here<|im_end|>\nand go on",
        "raw_module": sensor_module(8),
        "raw_log_36_days": ship_log(36),
        "raw_log_92_days": ship_log(92),
        "raw_log_190_days": ship_log(190),
    }
