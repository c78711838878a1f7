"""Names that case files give syntaxes -> names of our catalog.

The file format names some of them after the models whose templates write them."""

CASE_SYNTAXES = {
    "qwen_function_tags": "function_tags",
    "glm_arg_tags": "argument_tags",
    "dsml_v32": "dsml_function_calls",
    "dsml_v4": "dsml_tool_calls",
    "dsml_v41": "dsml_spaced",
    "xtml": "xtml",
    "recipient_frames_atem": "recipient_frames",
    "think_tags": "think_tags",
    "harmony": "channel_frames",
    "hermes_json": "tagged_json",
    "kimi_k2_tokens": "identified_json",
    "llama3_json": "bare_json",
    "mistral": "named_json",
}
