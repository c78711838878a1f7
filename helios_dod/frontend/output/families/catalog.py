"""Every syntax by name."""

from helios_dod.frontend.output.families import elements, frames, jsons, pairs, tags, thinking

CATALOG = {
    "think_tags": thinking.THINK_TAGS,
    "think_tag_lines": thinking.THINK_TAG_LINES,
    "function_tags": tags.FUNCTION_TAGS,
    "function_tag_lines": tags.FUNCTION_TAG_LINES,
    "argument_tags": pairs.ARGUMENT_TAGS,
    "argument_tag_lines": pairs.ARGUMENT_TAG_LINES,
    "dsml_function_calls": tags.DSML_FUNCTION_CALLS,
    "dsml_tool_calls": tags.DSML_TOOL_CALLS,
    "dsml_spaced": tags.DSML_SPACED,
    "xtml": elements.XTML,
    "recipient_frames": frames.RECIPIENT_FRAMES,
    "channel_frames": frames.CHANNEL_FRAMES,
    "tagged_json": jsons.TAGGED_JSON,
    "tagged_json_lines": jsons.TAGGED_JSON_LINES,
    "bare_json": jsons.BARE_JSON,
    "named_json": jsons.NAMED_JSON,
    "identified_json": jsons.IDENTIFIED_JSON,
}
