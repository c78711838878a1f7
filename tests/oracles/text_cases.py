"""Message lists and strings that tell tokenizers and chat templates apart."""

import random

MESSAGE_LISTS = [
    [{"role": "user", "content": "Hello!"}],
    [
        {"role": "system", "content": "You are terse."},
        {"role": "user", "content": "Name 3 primes > 10."},
    ],
    [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "Hello, how can I help?"},
        {"role": "user", "content": "  Indented,\n\twith a tab and trailing space "},
    ],
    [{"role": "user", "content": "你好，世界 🌍! <|im_end|> \u200d\u0301 42"}],
    [
        {"role": "system", "content": ""},
        {"role": "user", "content": "```python\nprint('a' * 10)\n```"},
        {"role": "assistant", "content": ""},
        {"role": "user", "content": '"quotes" & <tags> \\ back'},
    ],
]

SPACES = [
    "", " ", "  ", "   ", "\t", "\t\t", "\n", "\n\n", "\r\n", "\r\n\r\n", " \n ", "\n  \n", " a",
    "  a", "   a", "a ", "a  ", "a   b", "a \n b", "a\n\n\nb", "\ta", "a\t b", "a \t b",
    "\u00a0a", "a\u00a0\u00a0b", "\u3000a", "a\u2003 b", "\u2028x\u2029", "\u0085a",
    "\u000b\u000c", " \u200b a", "x\ufeffy", "\ufeff", "                a",
    "    def f():\n        return 1\n",
]  # fmt: skip
DIGITS = [
    "1", "12", "123", "1234567890", " 1", "  1", " 12", "a1", "a12b", "3.14159", "-1e-10",
    "1,000,000", "0x1F", "1 2  3   4", "x2y", "  12  34  ", "2024-05-17T08:09:10Z", "٣٤٥", " ٣",
    "१२३", "½¾", " ½", "x²", "H₂O", "Ⅷ", "①②③", "一二三", "𝟘𝟙𝟚", "12's", "1st 2nd", "\n1",
    "\t 1", "$ 5", "v1.2.3",
]  # fmt: skip
CONTRACTIONS = [
    "I'm", "you're they've he'll she'd it's don't", "I'M YOU'RE", "'s", " 's", "''s", "x's's",
    "'tis", "rock'n'roll", "it’s", "o'clock 's 't", "'S", "'ſ", "'lll", "can't've", "'d",
    "'re're",
]  # fmt: skip
WORDS = [
    "Hello, world!", "hello world", "HELLO", "helloWorld fooBar", "snake_case_name",
    "kebab-case", "a.b.c", "...", "....", "!?!?", " !", "  !", "--", "—", "(a)[b]{c}",
    "<a href='x'>y</a>", "a/b\\c", "user@example.org", "https://example.org/a?b=c&d=e#f",
    "#include <x.h>", "i++; j--;", "a == b != c", "=>", "->", "::", "$$", "%d%s", "&amp;",
    "`code`", "```", "**bold**", "~/x", "antidisestablishmentarianism", "aaaaaaaaaaaaaaaaaaaa",
    "zzzzzzzzzzqqqqqqqq", "_", "__init__",
]  # fmt: skip
SCRIPTS = [
    "中文", "你好，世界！", "日本語のテキスト", "ひらがな カタカナ", "한국어 텍스트", "각",
    "Привет, мир", "Ελληνικά", "עברית", "العربية", "हिन्दी", "ภาษาไทย", "தமிழ்", "ქართული",
    "Tiếng Việt", "naïve café", "cafe\u0301", "e\u0301\u0302", "\u0301", "a\u0301 \u0301b", "Å",
    "A\u030a", "ﬁ", "ß", "İi", "Ǆ", "ʼn", "ª º", "𝒜𝓑", "𐍈", "𠮷野家", "\U000e0041", "ﷺ",
    "Z͑ͫa̴l",
]  # fmt: skip
EMOJI = [
    "😀", " 😀", "😀😀", "👩‍👩‍👧‍👦", "👍🏽", "🇵🇹🇯🇵", "❤️", "❤", "1️⃣", "🏴󠁧󠁢󠁥󠁮󠁧󠁿",
    "a😀b", "🤷‍♀️ ok", "™©®", "→←↑", "∑∫√", "€£¥", "°C", "…", "“q”", "•", "\ufffd", "\ue000",
    "\U0010ffff", "\U000f0000", "\U000fffff", "\u200d", "\u200b", "\u202e", "\ufe0f",
]  # fmt: skip
CONTROLS = [
    "\x00", "\x01\x02\x03", "\x04", "a\x04b", "\x06", "\x13\x14\x16\x1d", " \x04",
    "\x1b[31mred\x1b[0m", "\x7f", "\x80", "\x9f", "\x1c", "a\x1cb", "\x1f x",
]  # fmt: skip
SPECIALS = [
    "<|im_start|>", "<|im_end|>", "<|endoftext|>", " <|im_end|>", "<|im_end|> ", "<|im_end|>\n",
    "a<|im_end|>b", "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n", "<|im_start|",
    "<|im_start|><|im_start|>", "<|IM_END|>", "< |im_end|>", "<repo_name>x", "<file_sep>",
    "<reponame>", "<filename>a.py", "<issue_start>", "<issue_comment>", "<jupyter_code>1+1",
    "<empty_output>", "<<|im_end|>>", "1<|im_end|>2", "  <|im_end|>  ", "<gh_stars>100", "<unk>",
    "<s>", "</s>",
]  # fmt: skip


def random_strings(count: int) -> list[str]:
    """Seeded strings over an alphabet that mixes spaces, digits, letters, marks and emoji."""
    alphabet = list("  \n\t'aBsx12,.-é中\u0301😀\u00a0٣½") + ["'re", "<|im_end|>"]
    generator = random.Random(20)
    return ["".join(generator.choices(alphabet, k=generator.randint(2, 24))) for _ in range(count)]


def tricky_strings() -> list[str]:
    """All strings, in a fixed order, each once."""
    groups = SPACES + DIGITS + CONTRACTIONS + WORDS + SCRIPTS + EMOJI + CONTROLS + SPECIALS
    return list(dict.fromkeys(groups + random_strings(40)))
